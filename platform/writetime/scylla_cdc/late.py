"""Counts the rows that reach a log after their window was read, and are found when it is read again.

How many rows each stream had in a window is kept in memory until the window is read again. An agent that was started
meanwhile reads the same rows, but cannot tell which of them are late.
"""

from collections import Counter, defaultdict

import numpy as np

from writetime.scylla_cdc.findings import CLOSED_SET, LATE
from writetime.scylla_cdc.reading import Piece

Counts = defaultdict[int, Counter[bytes]]
"""Numbers of rows, by the beginning of the window and by stream."""


class LateStep:
    """The rows of one step, which counts only once it is finished, as it may fail and be repeated."""

    def __init__(self, start: int, window: int) -> None:
        """Take where some window begins and how long one is, in microseconds."""
        self._start = start
        self._window = window
        self.first: Counts = defaultdict(Counter)
        """Of windows that are read for the first time."""
        self.again: Counts = defaultdict(Counter)
        """Of windows that are read again."""
        self.closed: set[bytes] = set()
        """Streams of sets that are closed."""

    def see(self, piece: Piece, times: np.ndarray) -> None:
        """Count rows with these write times."""
        counts = self.again if piece.again else self.first
        begins, numbers = np.unique(times - (times - self._start) % self._window, return_counts=True)
        for begin, number in zip(begins.tolist(), numbers.tolist(), strict=True):
            counts[begin][piece.stream] += number
        if piece.closed_at is not None:
            self.closed.add(piece.stream)


class LateRows:
    """What one table's windows had when they were read for the first time. Times are in microseconds."""

    def __init__(self) -> None:
        self._first: dict[int, Counter[bytes]] = {}

    def finish(self, step: LateStep, windows: range, again: tuple[int, int]) -> Counter[str]:
        """Return what a step found late: rows of closed sets, and others.

        Args:
            step: all of its rows.
            windows: the beginnings of the windows that it read for the first time; none if they are not read again.
            again: from which write time to which one it read windows again.
        """
        self._first |= {begin: Counter() for begin in windows}
        for begin, counts in step.first.items():
            # A set that is published late is read from its beginning, so older windows may get more.
            if begin in self._first:
                self._first[begin].update(counts)
        found: Counter[str] = Counter()
        first, last = again
        for begin in [begin for begin in self._first if begin < last]:
            before = self._first.pop(begin)
            if begin >= first:
                for stream, number in (step.again[begin] - before).items():
                    found[CLOSED_SET if stream in step.closed else LATE] += number
        return found
