"""The steps of one table: its changes land, its row events are found and published, its view is refreshed.

Each step's commit records how far it is, so a program that was killed continues from the last commits, and two programs
at once do no harm: of two commits that follow the same one, Delta accepts one. A step that fails does not stop the
steps before it.
"""

import logging
import time
from collections.abc import Mapping
from contextlib import suppress

from writetime.core.config import Settings
from writetime.core.errors import WritetimeError, reason_of
from writetime.follow.steps import Step
from writetime.lake import retention, state
from writetime.lake.followed_tables import FollowedTable
from writetime.lake.merging import Runner
from writetime.lake.table import LakeTable, is_in_lake, open_table
from writetime.lake.touched import next_expiry
from writetime.landing.following import TableLanding
from writetime.landing.landed_offsets import not_landed
from writetime.row_events.changed_rows import Position, position_of
from writetime.row_events.publish import EventPublisher
from writetime.row_events.stream import NAMES as STREAM
from writetime.row_events.stream import extend
from writetime.view.expected_rows import ExpectedRows
from writetime.view.placed_rows import NAMES as VIEW
from writetime.view.refreshing import refresh
from writetime.wire.watermarks import SourceMarks

log = logging.getLogger(__name__)

# How often new changes are folded into the state. Until then each batch reads them again.
_FOLD_SECONDS = 5.0
LOOK_SECONDS = 30.0
"""How often the lake is asked whether others added changes, such as a backfill."""
# The same for a table that the lake does not have yet.
_ABSENT_SECONDS = 1.0
# Row events per attempt, so that the view does not wait for a long backlog of them.
_PUBLISHED_AT_ONCE = 50_000
# Folds between two that also trim the logs.
_TRIM_EVERY = 64


class TablePipeline:
    """The steps of one table. One thread at a time may use it."""

    def __init__(
        self, settings: Settings, landing: TableLanding, entry: FollowedTable, in_spark: Runner | None = None
    ) -> None:
        """Follow a table; `in_spark` runs the tasks of large batches."""
        self.name = landing.name
        self.landing = landing
        # Changes that wait in the topic, as of the last batch.
        self.waiting = 0
        every, wanted = settings.follow, entry.entry.row_events
        self.events = Step(settings, "row events", self.name, every.events_seconds, is_wanted=wanted)
        self.publishing = Step(settings, "publishing", self.name, every.events_seconds, is_wanted=wanted)
        self.view = Step(settings, "view", self.name, every.view_seconds)
        self.upkeep = Step(settings, "upkeep", self.name, _FOLD_SECONDS)
        self.steps = (self.events, self.publishing, self.view, self.upkeep)
        self._settings = settings
        self._in_spark = in_spark
        self._run: Runner = map
        self._entry = entry
        self._expected: ExpectedRows | None = None
        self._table: LakeTable | None = None
        self._publisher: EventPublisher | None = None
        self._upkeeps = 0
        self._is_in_lake = False
        # How many changes the lake had when that was last counted, and when it is counted again.
        self._count = -1
        self._next_look = 0.0
        # When data expires next (seconds since 1970), if it is known.
        self._expires_at: float | None = None

    def is_due(self, ends: Mapping[int, int] | Exception, sources: Mapping[str, SourceMarks]) -> bool:
        """Return whether a step has something to do."""
        return (
            (self._is_in_lake and any(step.is_due for step in self.steps))
            or (self._expires_at is not None and time.time() > self._expires_at)
            or time.monotonic() >= self._next_look
            or (self.landing.is_due(ends) and not self.landing.is_current(ends, sources))
        )

    def run(self, ends: Mapping[int, int] | Exception, sources: Mapping[str, SourceMarks]) -> int:
        """Run the steps that are due; return the number of changes that landed."""
        self.waiting = self.landing.waiting(ends)
        self._run = self._in_spark if self._in_spark and self._is_large() else map
        landed = self._land(ends, sources)
        self.waiting = max(self.waiting - landed, 0)
        expired = self._expires_at is not None and time.time() > self._expires_at
        self._is_in_lake = self._is_in_lake or landed > 0
        # Before the steps, so that they have seen what is counted.
        added = self._others_added()
        if not self._is_in_lake:
            return 0
        if landed or expired or added:
            self._expires_at = None
            for step in (self.events, self.view, self.upkeep):
                step.begin()
        if self.events.is_due and self.events.attempt(self._find_events):
            self.publishing.begin()
        if self._publisher is not None and self._publisher.is_record_due:
            self.publishing.begin()
        if self.publishing.is_due and self.publishing.attempt(self._publish):
            assert self._publisher is not None
            if self._publisher.has_more:
                self.publishing.begin()
        if self.view.is_due:
            self.view.attempt(self._refresh)
        if self.upkeep.is_due and not any(step.is_behind and step.fault is None for step in (self.events, self.view)):
            self.upkeep.attempt(self._keep_up)
        self.landing.report_steps({step.name: step.report for step in self.steps})
        return landed

    def failures(self) -> dict[str, int]:
        """Return how many attempts of each step failed."""
        return {"landing": self.landing.failures, **{step.name: step.failures for step in self.steps}}

    def close(self) -> None:
        """Record what was published."""
        if self._publisher is not None:
            self._publisher.close()

    def _land(self, ends: Mapping[int, int] | Exception, sources: Mapping[str, SourceMarks]) -> int:
        if not self.landing.is_due(ends) or self.landing.is_current(ends, sources):
            return 0
        outcome = self.landing.land(ends, sources, self._run)
        if isinstance(outcome, Exception):
            # What is remembered may be the cause.
            self._table = None
            return 0
        return outcome

    def _is_large(self) -> bool:
        """Return whether a batch of what waits now is to run in Spark."""
        if self._count == -1:
            # At first only Kafka and the lake know it. An error meets landing, too.
            with suppress(WritetimeError):
                self.waiting = not_landed(self._settings, self.name)
        return self.waiting >= (self._settings.follow.spark_changes or 0)

    def _others_added(self) -> bool:
        """Return whether the lake has another number of changes than before, looking now and then."""
        if time.monotonic() < self._next_look:
            return False
        self._next_look = time.monotonic() + LOOK_SECONDS
        try:
            self._is_in_lake = self._is_in_lake or is_in_lake(self._settings, self.name)
            if not self._is_in_lake:
                self._next_look = time.monotonic() + _ABSENT_SECONDS
                return False
            before, self._count = self._count, sum(file.rows for file in self._opened().changes.load().files)
        except Exception as e:
            # The steps meet it, too, and report it.
            log.debug("%s: %s", self.name, reason_of(e))
            self._table = None
            return False
        return before != self._count

    def _opened(self) -> LakeTable:
        if self._table is None:
            self._table = open_table(self._settings, self.name)
        return self._table

    def _find_events(self) -> int:
        return extend(self._opened(), run=self._run)

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

    def _keep_up(self) -> int:
        """Fold what all steps have seen into the state, and find when data expires next."""
        table = self._opened()
        # A step that fails, such as a view whose rows are not as expected, does not hold the state.
        positions: list[Position | None] = []
        if self.view.fault is None:
            positions.append(position_of(table.view_files.load().version, VIEW))
        if self.events.fault is None and table.row_events.exists():
            positions.append(position_of(table.row_events.load(), STREAM))
        reached = [position.changes for position in positions if position is not None]
        folded = state.fold(table, self._run, until=min(reached)) if reached else 0
        if folded:
            state.compact(table, self._run)
        self._upkeeps += 1
        if self._upkeeps % _TRIM_EVERY == 0:
            retention.trim_logs(table, self._settings.lake.vacuum_hours)
        held = state.contents(table, table.state.load(), table.changes.load()).values()
        sources = [source for each in held for source in each.sources]
        self._expires_at = next_expiry(sources, int(time.time()), table.cache)
        return folded
