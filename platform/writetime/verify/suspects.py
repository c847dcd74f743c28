"""The partitions that differ at the first read. They are read again, as the two sides are not read at the same time."""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

SUSPECTS = 1_000
"""How many partitions are read again at once."""


class Differs(Protocol):
    """A row that differs."""

    @property
    def lagging(self) -> bool:
        """Whether it differs only because one side is behind."""
        ...


_D = TypeVar("_D", bound=Differs)


class Suspects(Generic[_D]):
    """Partitions by their tokens, and the differences that stay.

    Of a table that is written to, many partitions are equal when they are read again. As soon as some really differ,
    there is no point in distinguishing more; these are counted.
    """

    def __init__(self, settle: Callable[[set[int]], list[_D]]) -> None:
        """`settle` reads partitions again, and returns the differences that stay."""
        self.left: list[_D] = []
        self.unsettled = 0
        self._settle = settle
        self._waiting: list[int] = []

    def add(self, tokens: set[int]) -> None:
        """Add the partitions of a range that has not been compared before."""
        self._waiting += sorted(tokens)
        while len(self._waiting) > SUSPECTS:
            self.read_again()

    def read_again(self) -> None:
        """Read the first of the partitions that wait again."""
        some, self._waiting = self._waiting[:SUSPECTS], self._waiting[SUSPECTS:]
        if not all(difference.lagging for difference in self.left):
            self.unsettled += len(some)
        elif some:
            self.left += self._settle(set(some))
