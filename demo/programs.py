"""The platform's services, which run during the demo, and functions that wait for their results."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from demo import enrichment
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.lake.views import time_now
from writetime.servers.process import port_answers
from writetime.wire.watermarks import WatermarkTopic
from writetime.workqueue.inspect import inspect

Program = subprocess.Popen[bytes]
# Enough for a whole year of flights on a slow machine.
_PATIENCE_SECONDS = 3600.0


@contextmanager
def programs(log_file: Path) -> Iterator[tuple[Program, Program, Program]]:
    """Run `writetime serve`, `work` and `agent` during a `with` block; then stop them gracefully."""
    with ExitStack() as running:
        serve = running.enter_context(_program(["serve"], log_file))
        work = ["work", "--queue", enrichment.QUEUE, "--handler", enrichment.HANDLER]
        yield (
            serve,
            running.enter_context(_program(work, log_file)),
            running.enter_context(_program(["agent"], log_file)),
        )


@contextmanager
def following(table: str, log_file: Path) -> Iterator[Program]:
    """Run `writetime follow` for one table during a `with` block."""
    with _program(["follow", table], log_file) as program:
        yield program


def wait_for_ingress(settings: Settings, ingress: Program, log_file: Path) -> None:
    """Wait until the ingress accepts calls."""
    _wait(lambda: port_answers(settings.ingest.port), "serve", ingress, log_file)


def wait_for_work(settings: Settings, worker: Program, log_file: Path) -> None:
    """Wait until the queue of flights has no unfinished item, including items of earlier runs."""
    _wait(lambda: not inspect(settings, enrichment.QUEUE).depth, "work", worker, log_file)


def wait_for_capture(settings: Settings, tables: list[str], agent: Program, log_file: Path) -> None:
    """Wait until the agent reports that all earlier writes to some tables are in Kafka."""
    now, topic = time_now(), WatermarkTopic(settings)

    def captured() -> bool:
        marks = [source.tables for source in topic.read().values() if not source.retired]
        return all(any(name in of and of[name].until >= now for of in marks) for name in tables)

    _wait(captured, "agent", agent, log_file)


def _wait(condition: Callable[[], bool], command: str, program: Program, log_file: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise WritetimeError(
                f"`writetime {command}` does not finish; see {log_file} and `writetime status --agents`"
            )
        if program.poll() is not None:
            raise WritetimeError(f"`writetime {command}` has ended; see {log_file}")
        time.sleep(0.2)


@contextmanager
def _program(arguments: list[str], log_file: Path) -> Iterator[Program]:
    with log_file.open("ab") as log:
        process = subprocess.Popen([sys.executable, "-m", "writetime", *arguments], stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
