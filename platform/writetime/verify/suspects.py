"""The partitions that differ at the first read. They are read again, as the two sides are not read at the same time."""

import heapq
from collections.abc import Callable
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

SUSPECTS = 1_000
"""How many partitions are read again at once."""

KEPT = 5_000
"""The number of differences of each kind that are kept. Others are only counted, because most rows may lag."""


class Differs(Protocol):
    """A row that differs."""

    @property
    def lagging(self) -> bool:
        """Whether it differs only because one side is behind."""
        ...

    @property
    def written_at(self) -> int:
        """Its newest write time."""
        ...


_D = TypeVar("_D", bound=Differs)


class Suspects(Generic[_D]):
    """Partitions by their tokens, and the differences that stay.

    If a table takes writes, many partitions are equal when they are read again. As soon as some really differ, there is
    no point in distinguishing more, so the others are only counted.
    """

    def __init__(self, settle: Callable[[set[int], float], list[_D]], wait_seconds: float) -> None:
        """Store the parameters. `settle` reads partitions again, for at most some seconds, and returns the remaining
        differences. After each call with remaining differences, the next call has half the seconds, so all calls take
        at most twice `wait_seconds`.
        """
        self.real = 0
        self.lagging = 0
        self.unsettled = 0
        self._kept: tuple[list[_D], list[_D]] = [], []
        self._settle = settle
        self._seconds = wait_seconds
        self._waiting: list[int] = []

    @property
    def left(self) -> list[_D]:
        """The remaining differences, with those that lag last. If there are many: some that differ, the newest lag."""
        return [*self._kept[False], *self._kept[True]]

    def add(self, tokens: set[int]) -> None:
        """Add the partitions of a range that has not been compared before."""
        self._waiting += sorted(tokens)
        while len(self._waiting) > SUSPECTS:
            self.read_again()

    def read_again(self) -> None:
        """Read the first of the partitions that wait again."""
        some, self._waiting = self._waiting[:SUSPECTS], self._waiting[SUSPECTS:]
        if self.real:
            self.unsettled += len(some)
        elif some and (found := self._settle(set(some), self._seconds)):
            self._seconds /= 2
            real, lagging = [d for d in found if not d.lagging], [d for d in found if d.lagging]
            self.real, self.lagging = len(real), self.lagging + len(lagging)
            newest = heapq.nlargest(KEPT, self._kept[True] + lagging, key=attrgetter("written_at"))
            self._kept = real[:KEPT], newest
