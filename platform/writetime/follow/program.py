"""`writetime follow`: one program that runs the steps of many tables, until it is stopped.

A few requests to Kafka find what is new for all tables. Each table with news gets a thread, so a table with much to do,
or one that fails, delays no other. A table without news costs nothing.
"""

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from writetime.clients.kafka import TopicEnds, ends_of_topics
from writetime.core.config import Settings, Table
from writetime.core.errors import WritetimeError, reason_of
from writetime.core.outages import is_outage
from writetime.follow.follow_metrics import FollowMetrics, serve_metrics
from writetime.follow.pipeline import TablePipeline
from writetime.follow.shares import Shares, shares
from writetime.lake.followed_tables import read_entries
from writetime.landing.following import TableLanding, ends_of
from writetime.landing.landing import Topics
from writetime.landing.reports import Reporter
from writetime.wire.publishing import SCHEMAS_TOPIC
from writetime.wire.topic_names import table_of_topic
from writetime.wire.watermarks import WATERMARKS_TOPIC, SourceMarks

log = logging.getLogger(__name__)

# Tables at work at the same time. More would wait for the same cores.
_THREADS = 8


class Follower:
    """Follows tables, all captured ones or those that are named."""

    def __init__(self, settings: Settings, names: Sequence[str] = (), *, accept_gap: bool = False) -> None:
        self.tables: dict[str, TablePipeline] = {}
        self._settings = settings
        self._names = names
        self._accept_gap = accept_gap
        self._topics: Topics | None = None
        self._reporter = Reporter(settings)
        self._entries = {table.name: table.entry for table in read_entries(settings)[0]}
        self._working: dict[str, Future[int]] = {}
        self._fault: str | None = None

    def run(self, stop: threading.Event) -> None:
        """Follow the tables until the stop is requested, including those that are captured later.

        Raises:
            NoZooKeeper: ZooKeeper does not answer at the start, and is needed to share the tables.
            WritetimeError: the port of the metrics cannot be used.
        """
        serve_metrics(self._settings, FollowMetrics(lambda: list(self.tables.values()), self._skipped))
        with shares(self._settings) as own, ThreadPoolExecutor(_THREADS, "follow") as threads:
            while not stop.is_set():
                next_look = time.monotonic() + self._settings.follow.events_seconds
                own.look()
                self.look(threads, own)
                stop.wait(max(next_look - time.monotonic(), 0))
        for table in self.tables.values():
            table.close()
        self._reporter.flush()

    def look(self, threads: ThreadPoolExecutor, own: Shares) -> None:
        """Start work on each table that has something to do, and is not at work. A few requests cover all tables."""
        for name, work in list(self._working.items()):
            if work.done():
                del self._working[name]
                self._note(name, work)
        try:
            sources, ends = self._ask()
        except Exception as e:
            self._failed(e)
            return
        if self._fault is not None:
            self._fault = None
            log.info("Kafka answers again")
        for table in self._wanted(ends):
            reached = ends_of(ends, table.name)
            if table.name not in self._working and own.has(table.name) and table.is_due(reached, sources):
                self._working[table.name] = threads.submit(table.run, reached, sources)

    def _ask(self) -> tuple[dict[str, SourceMarks], TopicEnds]:
        """Read the data of all tables: first the watermarks, then the ends, then the schemas; see `Landing`."""
        if self._topics is None:
            self._topics = Topics(self._settings)
        sources = self._topics.watermarks.read()
        ends = ends_of_topics(self._settings, lambda topic: table_of_topic(topic) is not None)
        self._topics.schemas.read_on()
        return sources, ends

    def _wanted(self, ends: TopicEnds) -> list[TablePipeline]:
        assert self._topics is not None
        there = {str(table_of_topic(topic)) for topic in (*ends.ends, *ends.faults)}
        for name in self._names or sorted(there):
            if name not in self.tables:
                landing = TableLanding(self._settings, name, self._topics, self._reporter, accept_gap=self._accept_gap)
                self.tables[name] = TablePipeline(self._settings, landing, self._entries.get(name, Table()))
        if not self._names:
            # A table whose topic was deleted, such as by `writetime forget`, no longer exists.
            self.tables = {name: table for name, table in self.tables.items() if name in there}
        return list(self.tables.values())

    def _skipped(self) -> dict[str, int]:
        if self._topics is None:
            return {}
        return {SCHEMAS_TOPIC: self._topics.schemas.skipped, WATERMARKS_TOPIC: self._topics.watermarks.skipped}

    def _note(self, name: str, work: Future[int]) -> None:
        error = work.exception()
        if error is not None:
            # Each step catches its own errors.
            log.error("%s: %s", name, reason_of(error), exc_info=error)
        elif landed := work.result():
            log.info("%d changes of %s landed", landed, name)

    def _failed(self, error: Exception) -> None:
        """Report an error of a service that all tables need, such as Kafka, once."""
        fault = reason_of(error)
        if fault != self._fault:
            self._fault = fault
            unknown = not isinstance(error, WritetimeError) and not is_outage(error)
            log.error("no table can be followed: %s; retrying", fault, exc_info=unknown)
