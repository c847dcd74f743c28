"""Counts the rows that reach a log after their window was read, and are found when it is read again.

The number of rows of each stream in a window is kept in memory until the window is read again. An agent that was
restarted meanwhile reads the same rows, but cannot distinguish the late ones.
"""

from collections import Counter, defaultdict

import numpy as np

from writetime.scylla_cdc.findings import CLOSED_SET, LATE
from writetime.scylla_cdc.pieces import StreamPiece


class LateStep:
    """The numbers of rows of one step, by the start of the window and by stream. They count only once it is finished,
    because it may fail and be repeated.
    """

    def __init__(self, start: int, window: int) -> None:
        """Store the start of some window and the length of a window, in microseconds."""
        self._start = start
        self._window = window
        # In windows that are read for the first time, and in those that are read again.
        self.first: defaultdict[int, Counter[bytes]] = defaultdict(Counter)
        self.again: defaultdict[int, Counter[bytes]] = defaultdict(Counter)
        # The streams of sets that are closed.
        self.closed: set[bytes] = set()

    def see(self, piece: StreamPiece, times: np.ndarray) -> None:
        """Count rows with these write times."""
        counts = self.again if piece.again else self.first
        begins, numbers = np.unique(times - (times - self._start) % self._window, return_counts=True)
        for begin, number in zip(begins.tolist(), numbers.tolist(), strict=True):
            counts[begin][piece.stream] += number
        if piece.closed_at is not None:
            self.closed.add(piece.stream)


class LateRows:
    """The row counts of one table's windows at their first read. Times are in microseconds."""

    def __init__(self) -> None:
        self._first: dict[int, Counter[bytes]] = {}

    def finish(self, step: LateStep, windows: range, again: tuple[int, int]) -> Counter[str]:
        """Return the late rows of a step: rows of closed sets, and others. It read the windows with the starts
        `windows` for the first time (none if they are not read again), and those between two write times again.
        """
        self._first |= {begin: Counter() for begin in windows}
        for begin, counts in step.first.items():
            # A set that is published late is read from its start, so older windows may get more rows.
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
