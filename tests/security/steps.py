"""Steps of the paths through the platform."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from click.testing import CliRunner, Result

from tests.support.waiting import PATIENCE_SECONDS
from writetime.cli.main import main
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.landing.landing import Landing


def command(*arguments: str, given: bytes | None = None) -> str:
    result: Result = CliRunner(catch_exceptions=False).invoke(main, arguments, input=given)
    assert result.exit_code == 0, result.output
    return result.stdout


@contextmanager
def in_thread(target: Callable[[Settings, threading.Event], Any], settings: Settings) -> Iterator[Future[Any]]:
    """The programs that run until they are stopped."""
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(target, settings, stop)
        try:
            yield outcome
        finally:
            stop.set()


def until(condition: Callable[[], Any], outcome: Future[Any]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert not outcome.done(), outcome.result()
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.1)


def landed(settings: Settings, table: str, count: int, agent: Future[Any]) -> None:
    """Wait until so many changes are in the lake."""
    landing, found = Landing(settings, table), 0

    def land() -> bool:
        nonlocal found
        # Until the agent has made the topic, and sent the table's schema.
        with suppress(WritetimeError):
            found += landing.drain()
        return found >= count

    until(land, agent)
