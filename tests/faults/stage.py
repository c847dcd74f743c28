"""The stage of a fault test: a proxy before Cassandra, sinks as processes, and the watch on their effects."""

import os
import random
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.faults.checker import check
from tests.faults.ledger import Ledger
from tests.faults.watch import UNREACHABLE, Watch
from tests.support.proxy import Proxy
from tests.support.sinks import SinkProcess
from tests.support.waiting import PATIENCE_SECONDS
from writetime.core.config import Settings
from writetime.core.waiting import wait_until
from writetime.ingest.event import Event

# Some faults are tried with the default mode alone; FAULT_MODES=lwt,lwt-batch tries both.
MODES = os.environ.get("FAULT_MODES", "lwt-batch").split(",")


class Stage:
    """Everything of one test, closed at its end."""

    def __init__(self, settings: Settings, rng: random.Random, folder: Path, **ingest: Any) -> None:
        quick = {"commit_interval_seconds": 0.2, "drain_seconds": 5.0, **ingest}
        self.settings = settings.model_copy(update={"ingest": settings.ingest.model_copy(update=quick)})
        self.rng = rng
        self.proxy = Proxy(settings.cassandra, rng)
        self.watch = Watch(self.settings)
        self.ledger = Ledger(self.settings, rng)
        self._folder = folder
        self._sinks: list[SinkProcess] = []
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        self._resources.enter_context(self.watch)
        self._resources.enter_context(self.proxy)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sink in self._sinks:
            if sink.running:
                sink.kill()
            print(f"--- {sink.log.name}\n{sink.log.read_text()}")
        self._resources.close()

    def sink(self) -> SinkProcess:
        """Start a sink that reaches Cassandra through the proxy."""
        changes = {"contact_points": ["127.0.0.1"], "port": self.proxy.port, "request_timeout_seconds": 2.0}
        slow = self.settings.cassandra.model_copy(update=changes)
        sink = SinkProcess(self.settings.model_copy(update={"cassandra": slow}), self._folder, len(self._sinks))
        self._sinks.append(sink)
        return sink

    def wait_for_writes(self, at_least: int) -> None:
        """Wait until a row is stored, and the database has then sent that many more replies: a sink is in the midst of
        its work. Before the first row, replies may be those to its start, which ends if the database does.
        """
        # A topic without its events would have no lag.
        self.ledger.flush()
        until(lambda: bool(self.watch.rows) or self._caught_up(), "a row")
        goal = self.proxy.replies + at_least
        until(lambda: self.proxy.replies >= goal or self._caught_up(), f"{at_least} more replies")

    def wait_for_rows(self, events: list[Event]) -> None:
        """Wait until all these events are in the table."""
        until(lambda: all(e.event_id in self.watch.rows for e in events), f"{len(events)} events in the table")

    def wait_for_samples(self, count: int) -> None:
        """Wait until the watch has looked that many times more."""
        goal = len(self.watch.commits) + count
        until(lambda: len(self.watch.commits) >= goal, f"{count} more samples")

    def finish(self, *others: Ledger) -> None:
        """Wait until nothing is left to do, stop the sinks, and check."""
        for ledger in (self.ledger, *others):
            ledger.flush()
        until(self._caught_up, "the sinks have committed everything")
        for sink in self._sinks:
            if sink.running:
                sink.stop()
        check(self.settings, self.watch, self.ledger, *others)

    def _caught_up(self) -> bool:
        try:
            return self.watch.lag() == 0
        except UNREACHABLE:
            return False


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds."""
    assert wait_until(condition, PATIENCE_SECONDS, 0.05), f"waited {PATIENCE_SECONDS:.0f} s in vain: {what}"
