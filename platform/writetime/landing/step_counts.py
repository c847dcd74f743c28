"""The counts of a step of a table: landing, or one of the steps of `follow` after it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class StepCounts:
    """The counts and times of a step. It is behind from `begin` to `done`.

    `rows` is the number of rows that all attempts have done, `batch` that of the last attempt that succeeded.
    `failures` counts the attempts that failed. All of them took `seconds`, and `cpu` seconds of CPU in their thread.
    `delay` is the time in seconds from `begin` to `done` for the last attempt that succeeded. It has been behind since
    `behind_since` (seconds since 1970, 0 if it is not).
    """

    def __init__(self) -> None:
        self.rows = self.batch = self.failures = 0
        self.seconds = self.cpu = self.delay = 0.0
        self.behind_since = 0.0

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
