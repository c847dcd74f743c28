"""CPU and wall seconds of this process, of a program, and of a server, as one kind of result."""

import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any, TypeVar

import psutil

_T = TypeVar("_T")

# CPU time of a process between its last sample and its end is not counted.
_WATCH_SECONDS = 0.5


@dataclass(frozen=True)
class Cost:
    """CPU seconds (user and system, all processes) and wall seconds of reading a number of rows."""

    rows: int
    cpu: float
    wall: float

    def without(self, start: "Cost") -> "Cost":
        """Return the cost without the cost of the start."""
        return replace(self, cpu=self.cpu - start.cpu, wall=self.wall - start.wall)


@dataclass(frozen=True)
class Comparison:
    """Writetime compared with one peer. The peer must use at least `target` times the CPU of Writetime."""

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
        """The peer's CPU as a multiple of Writetime's."""
        return self.theirs.cpu / self.ours.cpu


def best(costs: Iterable[Cost]) -> Cost:
    """Return the pass with the least CPU."""
    return min(costs, key=lambda cost: cost.cpu)


def here(work: Callable[..., int], *arguments: Any, passes: int) -> list[Cost]:
    """Run a function that returns its number of rows `passes` times in this process.

    It first runs in another process, which stores its compiled code on disk, like the first use on a machine.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
        other.submit(work, *arguments).result()
    return [_once(work, *arguments) for _ in range(passes)]


def in_turns(work: Callable[[_T], int], *arguments: _T, passes: int) -> list[Cost]:
    """Run a function on each argument in turns, in this process; return the best pass of each.

    Other load on the machine then slows all of them, so small differences are visible.
    """
    costs = [[_once(work, argument) for argument in arguments] for _ in range(passes)]
    return [best(of_one) for of_one in zip(*costs, strict=True)]


def _once(work: Callable[..., int], *arguments: Any) -> Cost:
    cpu, wall = time.process_time(), time.perf_counter()
    rows = work(*arguments)
    return Cost(rows, time.process_time() - cpu, time.perf_counter() - wall)


def printed(lines: Iterable[Mapping[str, Any]]) -> list[Cost]:
    """Return the measures that a Java program printed of its own passes."""
    return [Cost(line["rows"], line["cpu"], line["wall"]) for line in lines]


def child(command: list[str], rows: int) -> Cost:
    """Run a program and discard its output. Measure the whole process.

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
    """Return the command line of a module in a separate Python process."""
    return [sys.executable, "-m", module, *arguments]


@contextmanager
def with_others(*pids: int) -> Iterator[list[float]]:
    """Measure this process and the process trees of others. At the end, the list has the CPU and wall seconds."""
    result: list[float] = []
    trees, done = _Trees(pids), threading.Event()

    def watch() -> None:
        while not done.wait(_WATCH_SECONDS):
            trees.look()

    watcher = threading.Thread(target=watch, daemon=True)
    cpu, wall = trees.look(), time.perf_counter()
    watcher.start()
    try:
        yield result
    finally:
        done.set()
        watcher.join()
    result += [trees.look() - cpu, time.perf_counter() - wall]


class _Trees:
    """The CPU seconds of this process and of others with all their children.

    A process that has ended counts with its last sample, because its parent may not include it. An example is PySpark's
    daemon, which ignores SIGCHLD.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._roots = [psutil.Process(pid) for pid in pids]
        self._seen: dict[tuple[int, float], float] = {}

    def look(self) -> float:
        for root in self._roots:
            for each in [root, *root.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    times = each.cpu_times()
                    self._seen[each.pid, each.create_time()] = times.user + times.system
        return time.process_time() + sum(self._seen.values())
