"""The steps of one table: landing of changes, computing and publishing of row events, and the refresh of the view.

The commit of each step records its position, so a killed program continues from the last commits. Two programs may work
on one table: of two commits on top of the same version, Delta accepts one. A step that fails does not stop the steps
before it.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from writetime.core.config import Settings
from writetime.core.errors import reason_of
from writetime.files.merging import Runner
from writetime.files.point_reads import next_expiry
from writetime.follow.registration import TableRegistration
from writetime.follow.replication import TableReplication
from writetime.follow.steps import Step, Stopped
from writetime.lake import state
from writetime.lake.followed_tables import FollowedTable
from writetime.lake.projection import CLOCKS_DIFFER, ROW_EVENTS, VIEW
from writetime.lake.table import LakeTable, is_in_lake, open_table, stored_schema
from writetime.landing.following import TableLanding
from writetime.landing.landed_offsets import not_landed
from writetime.landing.step_counts import StepCounts
from writetime.row_events.publish import EventPublisher
from writetime.row_events.stream import extend
from writetime.view.expected_rows import ExpectedRows
from writetime.view.refreshing import refresh
from writetime.view.upkeep import keep_up, settle
from writetime.wire.watermarks import Sources

log = logging.getLogger(__name__)

# How often new changes are folded into the state. Until then each batch reads them again.
_FOLD_SECONDS = 5.0
LOOK_SECONDS = 30.0
"""The pause between two checks for changes in the lake by others, such as a backfill."""
# The same for a table that the lake does not have yet.
_ABSENT_SECONDS = 1.0
# Row events per attempt, so that the view does not wait for a long backlog of them.
_PUBLISHED_AT_ONCE = 50_000


@dataclass(frozen=True)
class _Seen:
    """The data that start the steps of a table, whichever program committed them: the number of its changes, its
    schema, and the generations of its changes and its state. The state has its new generation later than the changes.
    """

    rows: int
    schema: Any
    generations: tuple[int, int]

    @staticmethod
    def of(table: LakeTable) -> "_Seen":
        changes, merged = table.changes.load(), table.state.load()
        generations = state.generation_of(changes), state.generation_of(merged)
        return _Seen(sum(file.rows for file in changes.files), stored_schema(changes), generations)


class TablePipeline:
    """The steps of one table. One thread at a time may use it."""

    def __init__(
        self,
        settings: Settings,
        landing: TableLanding,
        entry: FollowedTable,
        in_spark: Runner | None = None,
        stop: threading.Event | None = None,
        *,
        replication: TableReplication | None = None,
    ) -> None:
        """Follow a table. `in_spark` runs the tasks of large batches. After the `stop`, no step begins, and a running
        step ends after its present task, such as a bucket of the view. The `replication` has turns of its own, and so
        has the `registration`.
        """
        self.name = landing.name
        self.landing = landing
        # Changes that wait in the topic, as of the last batch.
        self.waiting = 0
        # The live files of each part that was loaded, as of the last turn.
        self.files: dict[str, int] = {}
        every, wanted = settings.follow, entry.entry.row_events
        self.events = Step(settings, "row events", self.name, every.events_seconds, is_wanted=wanted)
        self.publishing = Step(settings, "publishing", self.name, every.events_seconds, is_wanted=wanted)
        self.view = Step(settings, "view", self.name, every.view_seconds)
        self.iceberg = Step(settings, "iceberg", self.name, every.view_seconds, is_wanted=settings.lake.iceberg)
        self.replication = replication
        self.registration = TableRegistration(settings, self.name) if settings.lake.iceberg_catalog else None
        self.upkeep = Step(settings, "upkeep", self.name, _FOLD_SECONDS)
        iceberg = (self.iceberg,) if settings.lake.iceberg else ()
        self._own_steps = (self.events, self.publishing, self.view, *iceberg, self.upkeep)
        apart = [each.step for each in (self.registration, replication) if each]
        self.steps = (*self._own_steps, *apart)
        self._settings = settings
        self._in_spark = in_spark
        self._stop = stop or threading.Event()
        self._run: Runner = map
        self._entry = entry
        self._expected: ExpectedRows | None = None
        self._table: LakeTable | None = None
        self._publisher: EventPublisher | None = None
        self._upkeeps = 0
        self._is_in_lake = False
        # The content of the lake at the last check, and the time of the next check.
        self._seen: _Seen | None = None
        self._next_look = 0.0
        # The last search for data that expires, if it is still valid: its time, and the time of the next expiry, if
        # there is one (seconds since 1970).
        self._expiry: tuple[float, float | None] | None = None

    def is_due(self, ends: Mapping[int, int] | Exception, sources: Sources) -> bool:
        """Return whether a step has work."""
        return (
            (self._is_in_lake and any(step.is_due for step in self._own_steps))
            or self._is_expiry_due()
            or time.monotonic() >= self._next_look
            or self._lands(ends, sources)
        )

    def run(self, ends: Mapping[int, int] | Exception, sources: Sources) -> int:
        """Run the steps that are due; return the number of changes that landed."""
        self.waiting = self.landing.waiting(ends)
        in_spark = self._in_spark if self._in_spark and self._is_large() else None
        self._run = in_spark or self._each
        lands = self._lands(ends, sources)
        landed = self._land(ends, sources, in_spark or map) if lands else 0
        if lands and not landed:
            # It may have followed a schema or a truncation.
            self._next_look = 0.0
        self.waiting = max(self.waiting - landed, 0)
        expired = self._is_expiry_due()
        self._is_in_lake = self._is_in_lake or landed > 0
        # Before the steps, so that they have read the counted changes.
        is_new = self._has_news()
        if not self._is_in_lake:
            return 0
        if self.replication and (lands or is_new):
            # Also if only watermarks have moved: the log of `changes` from before its position is deleted.
            self.replication.begin()
        if landed or expired or is_new:
            self._expiry = None
            for step in (self.events, self.view, self.upkeep):
                step.begin()
        if self._begins(self.events) and self.events.attempt(lambda: extend(self._opened(), run=self._run)):
            self.publishing.begin()
        if self._publisher is not None and self._publisher.is_record_due:
            self.publishing.begin()
        if self._begins(self.publishing) and self.publishing.attempt(self._publish):
            assert self._publisher is not None
            if self._publisher.has_more:
                self.publishing.begin()
        if self._begins(self.view):
            self.view.attempt(self._refresh)
        self._publish_iceberg()
        caught_up = not any(step.is_behind and step.fault is None for step in (self.events, self.view))
        if caught_up and self._begins(self.upkeep):
            self.upkeep.attempt(self._keep_up)
        self._count_files()
        self.landing.report_steps({step.name: step.report for step in self.steps})
        return landed

    def counts(self) -> dict[str, StepCounts]:
        """Return the counts of each step, landing first."""
        return {"landing": self.landing, **{step.name: step for step in self.steps}}

    def close(self) -> None:
        """Record the position of the publisher, and end it."""
        publisher, self._publisher = self._publisher, None
        if publisher is None:
            return
        try:
            publisher.record()
        except Exception as e:
            # The next publisher reads its position from Kafka.
            log.warning("%s: the position of the publisher is not recorded in the lake: %s", self.name, reason_of(e))

    def _lands(self, ends: Mapping[int, int] | Exception, sources: Sources) -> bool:
        return self.landing.is_due(ends) and not self.landing.is_current(ends, sources)

    def _begins(self, step: Step) -> bool:
        return step.is_due and not self._stop.is_set()

    def _each(self, function: Callable[[Any], Any], tasks: Iterable[Any], /) -> Iterator[Any]:
        """Run tasks like `map`. Raise `Stopped` when the program must end."""
        for task in tasks:
            if self._stop.is_set():
                raise Stopped
            yield function(task)

    def _land(self, ends: Mapping[int, int] | Exception, sources: Sources, run: Runner) -> int:
        outcome = self.landing.land(ends, sources, run, one_batch=True)
        if isinstance(outcome, Exception):
            # The kept data may be the cause.
            self._table = None
            return 0
        return outcome

    def _is_large(self) -> bool:
        """Return whether a batch of the waiting changes is to run in Spark."""
        if self._seen is None:
            # At first only Kafka and the lake have the number. Landing meets any error, too, and reports it.
            with suppress(Exception):
                self.waiting = not_landed(self._settings, self.name)
        return self.waiting >= (self._settings.follow.spark_changes or 0)

    def _has_news(self) -> bool:
        """Return whether the lake has other changes, another schema or another generation than at the last check."""
        if time.monotonic() < self._next_look:
            return False
        self._next_look = time.monotonic() + LOOK_SECONDS
        try:
            self._is_in_lake = self._is_in_lake or is_in_lake(self._settings, self.name)
            if not self._is_in_lake:
                self._next_look = time.monotonic() + _ABSENT_SECONDS
                return False
            before, self._seen = self._seen, _Seen.of(self._opened())
        except Exception as e:
            # The steps meet it, too, and report it.
            log.debug("%s: %s", self.name, reason_of(e))
            self._table = None
            return False
        return before != self._seen

    def _opened(self) -> LakeTable:
        if self._table is None:
            self._table = open_table(self._settings, self.name)
            # The registration does: a catalog that does not answer would hold up each commit.
            self._table.registers = False
        return self._table

    def _count_files(self) -> None:
        if table := self._table:
            counts = {name: getattr(table, name).known_files for name in ("changes", "state", "view", "row_events")}
            self.files = {name: count for name, count in counts.items() if count is not None}

    def _publish(self) -> int:
        if self._publisher is None:
            self._publisher = EventPublisher(self._settings, self.name)
        try:
            return self._publisher.publish(self._opened(), _PUBLISHED_AT_ONCE)
        except BaseException:
            # It may have been fenced by another one.
            self._publisher = None
            raise

    def _refresh(self) -> int:
        table = self._opened()
        if self._expected is None and self._entry.entry.expect:
            self._expected = ExpectedRows(table, self._entry)
        done = refresh(self._settings, table, self._run, self._expected)
        return done.written + done.marked

    def _publish_iceberg(self) -> None:
        """Publish the Iceberg tables that the steps before could not publish, and let the others be registered."""
        tables = self._table.iceberg.values() if self._table else ()
        if not all(each.is_published for each in tables):
            self.iceberg.begin()
        if self._begins(self.iceberg):
            self.iceberg.attempt(lambda: settle(self._opened()))
        if self.registration and self._table:
            self.registration.begin(self._table.iceberg.values())

    def _keep_up(self) -> int:
        """Fold the changes that all steps have read into the state, and find when data expires next."""
        table = self._opened()
        # A step that is off or fails, such as a view with unexpected rows, does not hold the state.
        working = [each for each, step in ((VIEW, self.view), (ROW_EVENTS, self.events)) if step.works]
        try:
            folded = keep_up(self._settings, table, self._upkeeps + 1, working, self._run)
            # Only now, so that a failure skips no turn of the logs.
            self._upkeeps += 1
            return folded
        finally:
            self._expiry = time.time(), self._next_expiry(table)

    def _is_expiry_due(self) -> bool:
        """Return whether data has expired since the last search, or the clock was ahead then. In the second case, data
        that expired only by that clock must return.
        """
        if self._expiry is None:
            return False
        looked_at, expires_at = self._expiry
        now = time.time()
        return now < looked_at - CLOCKS_DIFFER / 1_000_000 or (expires_at is not None and now > expires_at)

    def _next_expiry(self, table: LakeTable) -> int | None:
        """Return the time (seconds since 1970) of the next expiry that a step has not handled; None without one."""
        held = state.contents(table, table.state.load(), table.changes.load()).values()
        sources = [source for each in held for source in each.sources]
        seen = min((step.worked_at for step in (self.events, self.view) if step.works), default=time.time())
        return next_expiry(sources, int(seen), table.cache)
