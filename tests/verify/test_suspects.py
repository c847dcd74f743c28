"""Partitions that are read again: for how long, and the number of differences that are kept. No server is needed."""

from dataclasses import dataclass

import pytest

from writetime.verify import suspects
from writetime.verify.suspects import Suspects


@dataclass(frozen=True)
class Row:
    token: int
    lagging: bool
    written_at: int


class Sides:
    """Two sides of which one lags: no row becomes equal; from one token on, rows really differ."""

    def __init__(self, differ_from: int = 1 << 62) -> None:
        self.waited: list[float] = []
        self._differ_from = differ_from

    def settle(self, tokens: set[int], seconds: float) -> list[Row]:
        self.waited.append(seconds)
        return [Row(t, t < self._differ_from, t) for t in sorted(tokens) for _ in range(2)]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects, "SUSPECTS", 10)
    monkeypatch.setattr(suspects, "KEPT", 15)


def test_a_side_that_lags_far_behind_costs_little() -> None:
    sides = Sides()
    found = Suspects(sides.settle, 8.0)
    for first in range(0, 1000, 100):
        found.add(set(range(first, first + 100)))
    found.read_again()
    assert (found.real, found.lagging, found.unsettled) == (0, 2000, 0)
    assert sides.waited[:4] == [8, 4, 2, 1]
    assert sum(sides.waited) <= 16
    assert sorted(row.token for row in found.left) == sorted([*range(993, 1000), *range(993, 1000), 992])


def test_rows_that_differ_are_kept_with_those_that_lag() -> None:
    found = Suspects(Sides(995).settle, 8.0)
    found.add(set(range(970, 1100)))
    found.read_again()
    assert (found.real, found.lagging, found.unsettled) == (10, 50, 100)
    assert [row.lagging for row in found.left] == [False] * 10 + [True] * 15
    assert {row.token for row in found.left if not row.lagging} == set(range(995, 1000))


def test_partitions_that_become_equal_may_all_take_their_time() -> None:
    waited: list[float] = []
    found = Suspects[Row](lambda _, seconds: waited.append(seconds) or [], 8.0)
    found.add(set(range(30)))
    found.read_again()
    assert (found.left, waited) == ([], [8.0] * 3)
