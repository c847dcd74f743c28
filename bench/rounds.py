"""A round of a benchmark in a separate process: its rate, and the CPU time that it and its servers use."""

import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import psutil

from writetime.servers.process import EmbeddedServer

_spawn = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Result:
    """The measures of one round; CPU times are per item."""

    per_second: float
    client_us: float
    server_us: float


def measure(work: Callable[..., None], *arguments: Any, count: int, servers: Sequence[EmbeddedServer]) -> Result:
    """Run a function on `count` items in a process. The measures include its connections, but not its imports."""
    before = cpu_seconds(servers)
    here, there = _spawn.Pipe()
    process = _spawn.Process(target=_run, args=(work, arguments, there))
    process.start()
    there.close()
    seconds, cpu = here.recv()
    process.join()
    return Result(count / seconds, cpu / count * 1e6, (cpu_seconds(servers) - before) / count * 1e6)


def cpu_seconds(servers: Sequence[EmbeddedServer]) -> float:
    """Return the CPU seconds that servers have used until now."""
    return sum(sum(psutil.Process(server.pid()).cpu_times()[:2]) for server in servers)


def _run(work: Callable[..., None], arguments: Sequence[Any], to: Connection) -> None:
    begin, cpu = time.perf_counter(), time.process_time()
    work(*arguments)
    to.send((time.perf_counter() - begin, time.process_time() - cpu))
