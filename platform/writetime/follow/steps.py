"""A step of a table: when it is due, and the result of its last attempt. Its failure does not stop other tables."""

import logging
import random
import re
import time
from collections.abc import Callable

from writetime.core import alerts
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError, reason_of
from writetime.core.outages import is_outage
from writetime.delta.bucketed_table import Conflict
from writetime.landing.step_counts import StepCounts
from writetime.row_events.publish import PublisherFenced
from writetime.view.expected_rows import Unexpected
from writetime.wire.watermarks import StepReport

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
# The longest pause after an outage.
_LONGEST_PAUSE_OF_OUTAGE_SECONDS = 5.0
# Offsets, counts and names of files differ from one attempt to the next.
_VARIES = re.compile(r"\w*\d\w*")


class Stopped(Exception):
    """The program must end. The step does its work after the next start."""


class Step(StepCounts):
    """One step of a table. It has work from `begin` to the next successful attempt, and is due again `every` seconds
    after the start of its last attempt.
    """

    def __init__(self, settings: Settings, name: str, table: str, every: float, *, is_wanted: bool = True) -> None:
        super().__init__()
        self.name = name
        self.fault: str | None = None
        self._is_unexpected = False
        # The faults that were alerted since the last attempt that succeeded.
        self._alerted: set[str] = set()
        self._settings = settings
        self._table = table
        self._every = every
        self._is_wanted = is_wanted
        # When the last attempt that succeeded began.
        self.worked_at = 0.0
        # At first, the position of the step is not known.
        self.behind_since = time.time() if is_wanted else 0.0
        self._next = 0.0
        self._attempts = 0

    @property
    def works(self) -> bool:
        """Return whether the step is on, and its last attempt did not fail."""
        return self._is_wanted and self.fault is None

    @property
    def is_due(self) -> bool:
        """Return whether the step has work now."""
        return self.is_behind and time.monotonic() >= self._next

    @property
    def report(self) -> StepReport:
        """The report of the step."""
        return StepReport(
            self.behind_since, self.rows, self.batch, round(self.delay, 3), self.fault, unexpected=self._is_unexpected
        )

    def begin(self) -> None:
        """Record that there is work."""
        if self._is_wanted:
            super().begin()

    def rest(self, seconds: float) -> None:
        """Make no attempt for so many seconds."""
        self._next = max(self._next, time.monotonic() + seconds)

    def attempt(self, work: Callable[[], int]) -> bool:
        """Do the work, which returns its number of rows. Return whether it succeeds. If not, it is retried later."""
        began_at = time.time()
        self._next = time.monotonic() + self._every
        try:
            with self.measured():
                rows = work()
        except (Conflict, Stopped) as e:
            # Another process was first, or is next. It continues from there.
            if isinstance(e, PublisherFenced):
                # Without a pause, two programs would fence each other, and publish nothing.
                self._pause(_LONGEST_PAUSE_SECONDS, random.uniform(0.5, 1.0))
            return False
        except Exception as e:
            self._failed(e)
            return False
        if self.fault is not None:
            log.info("%s: %s works again", self._table, self.name)
        self.fault, self._is_unexpected, self._attempts = None, False, 0
        self.worked_at = began_at
        self._alerted.clear()
        self.done(rows)
        return True

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        self._pause(_LONGEST_PAUSE_OF_OUTAGE_SECONDS if is_outage(error) else _LONGEST_PAUSE_SECONDS)
        if self.fault != (fault := reason_of(error)):
            unknown = not isinstance(error, WritetimeError) and not is_outage(error)
            log.error("%s: %s fails, and is retried: %s", self._table, self.name, fault, exc_info=unknown)
        self.fault, self._is_unexpected = fault, isinstance(error, Unexpected)
        # Rows that are not as expected are named in the fault, and others may join them.
        kind = "unexpected" if self._is_unexpected else _VARIES.sub("", fault)
        if kind not in self._alerted and not is_outage(error):
            self._alerted.add(kind)
            alerts.send(self._settings, f"{self._table}: {self.name} fails, and is retried", [fault])

    def _pause(self, longest: float, share: float = 1.0) -> None:
        """Wait before the next attempt: twice as long each time, up to the longest pause."""
        self._attempts += 1
        pause = share * min(_PAUSE_SECONDS * 2 ** min(self._attempts - 1, 10), longest)
        self._next = time.monotonic() + max(pause, self._every)
