"""The counts of a step of a table: landing, or one of the steps of `follow` after it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class StepCounts:
    """The counts and times of a step. It is behind from `begin` to `done`."""

    def __init__(self) -> None:
        self.rows = 0
        """The rows that all attempts have done."""
        self.batch = 0
        """The rows of the last attempt that succeeded."""
        self.seconds = 0.0
        """The seconds that the attempts took."""
        self.cpu = 0.0
        """The CPU seconds of their thread."""
        self.delay = 0.0
        """The seconds from `begin` to `done`, for the last attempt that succeeded."""
        self.failures = 0
        """The attempts that failed."""
        self.behind_since = 0.0
        """Since when it is behind (seconds since 1970, 0 if it is not)."""

    @property
    def is_behind(self) -> bool:
        """Return whether the step has work."""
        return self.behind_since > 0

    def begin(self) -> None:
        """Record that there is work."""
        if not self.is_behind:
            self.behind_since = time.time()

    def done(self, rows: int, *, more: bool = False) -> None:
        """Record a successful attempt, its number of rows, and whether there are more rows."""
        self.rows += rows
        self.batch = rows
        # The clock may have been set back meanwhile.
        self.delay = max(time.time() - self.behind_since, 0.0) if self.is_behind else 0.0
        if not more:
            self.behind_since = 0.0

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Add the time of the `with` block."""
        begin, cpu = time.monotonic(), time.thread_time()
        try:
            yield
        finally:
            self.seconds += time.monotonic() - begin
            self.cpu += time.thread_time() - cpu
