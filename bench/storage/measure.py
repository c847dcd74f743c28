"""CPU and wall seconds of this process, of a program, and of a server, as one kind of result."""

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any

import psutil


@dataclass(frozen=True)
class Cost:
    """CPU seconds (user and system, all processes) and wall seconds of reading a number of rows."""

    rows: int
    cpu: float
    wall: float

    def without(self, start: "Cost") -> "Cost":
        """Return the cost beyond that of starting."""
        return replace(self, cpu=self.cpu - start.cpu, wall=self.wall - start.wall)


@dataclass(frozen=True)
class Comparison:
    """The project against one peer; `target` is how many times less CPU the project is to take."""

    what: str
    ours: Cost
    peer: str
    theirs: Cost
    target: float | None = None

    def __post_init__(self) -> None:
        if self.ours.rows != self.theirs.rows:
            raise RuntimeError(f"{self.what}: {self.ours.rows} rows, but {self.peer} has {self.theirs.rows}")

    @property
    def less_cpu(self) -> float:
        """How many times less CPU the project takes."""
        return self.theirs.cpu / self.ours.cpu


def best(costs: Iterable[Cost]) -> Cost:
    """Return the pass with the least CPU."""
    return min(costs, key=lambda cost: cost.cpu)


def here(work: Callable[..., int], *arguments: Any, passes: int) -> list[Cost]:
    """Run a function that returns its rows in this process, some times.

    Before that it runs in another process, which leaves its compiled code on disk, as the first use on a machine does.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
        other.submit(work, *arguments).result()
    costs = []
    for _ in range(passes):
        cpu, wall = time.process_time(), time.perf_counter()
        rows = work(*arguments)
        costs.append(Cost(rows, time.process_time() - cpu, time.perf_counter() - wall))
    return costs


def printed(lines: Iterable[Mapping[str, Any]]) -> list[Cost]:
    """Return what a Java program measured of its own passes."""
    return [Cost(line["rows"], line["cpu"], line["wall"]) for line in lines]


def child(command: list[str], rows: int) -> Cost:
    """Run a program, with its output thrown away, and measure all of it.

    Raises:
        RuntimeError: the program fails.
    """
    before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    answer = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if answer.returncode:
        raise RuntimeError(f"{command[-3:]}: {answer.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(rows, cpu, time.perf_counter() - wall)


def python(module: str, *arguments: str) -> list[str]:
    """Return the command line of a module in a Python process of its own."""
    return [sys.executable, "-m", module, *arguments]


@contextmanager
def with_others(*pids: int) -> Iterator[list[float]]:
    """Measure this process and the trees of others; the CPU and the wall seconds are in the list at the end."""
    result: list[float] = []
    cpu, wall = _trees(pids), time.perf_counter()
    yield result
    result += [_trees(pids) - cpu, time.perf_counter() - wall]


def _trees(pids: Iterable[int]) -> float:
    """Return the CPU seconds so far of this process and of others, with all that they started, dead or alive."""
    total = time.process_time()
    for pid in pids:
        process = psutil.Process(pid)
        for each in [process, *process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):  # It ended just now, and is in its parent's count.
                times = each.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
    return total
