"""The differences that are lag, by the write times of the cells that differ; no server is needed."""

from typing import Any

import numpy as np
import pytest

from tests.support.made import batch, write
from writetime.changes.position import STATIC_POSITION
from writetime.lake.views import time_now
from writetime.merge import merge
from writetime.row_events.compare import OrderedRows
from writetime.row_events.events import placed_rows
from writetime.schema.cql import parse_table
from writetime.verify.compared_rows import differing
from writetime.verify.lag import NO_TIME, WriteLag, lag_of, times_at

_TABLE = parse_table(
    "CREATE TABLE shop.items (id int, n int, s text STATIC, v text, w int, l frozen<list<int>>, PRIMARY KEY (id, n))"
)
_BEGAN = time_now() - 10_000_000
_OLD, _NEW, _FUTURE = _BEGAN - 1_000_000, _BEGAN + 1_000_000, _BEGAN + 10**15


_ALONE = {"position": STATIC_POSITION, "n": None, "marker": None}


def side(*rows: dict[str, Any]) -> OrderedRows:
    return placed_rows(merge([batch(rows, _TABLE)], _TABLE), _TABLE, time_now())


def row(**values: Any) -> dict[str, Any]:
    static = values.pop("s", None)
    made = write(1, 1, 1, **values)
    return made if static is None else made | {"s": {"value": static, "write_time": 1, "tombstone": False}}


def lag(lake: OrderedRows, database: OrderedRows, **times: int) -> WriteLag:
    """Compare two sides of one row, of which the database reports some write times."""
    columns = [c.name for c in _TABLE.static + _TABLE.regular]
    reported = np.array([[times.get(name, NO_TIME) for name in columns]] * len(database.tokens))
    found = differing(lake, database, _TABLE)
    assert len(found.before) == 1
    return lag_of(
        lake, database, found, times_at(reported.reshape(-1, len(columns)), found.after), _TABLE, began=_BEGAN
    )


@pytest.mark.parametrize("written", [{"v": "b"}, {"v": "a"}])
def test_a_lost_cell_in_a_row_that_is_written_often(written: dict[str, Any]) -> None:
    """Also if the lake does not have the newest write of the other cell yet."""
    found = lag(side(row(v="a")), side(row(**written, w=1)), v=_NEW, w=_OLD)
    assert (found.lagging.tolist(), found.written_at.tolist()) == ([False], [_NEW if written["v"] == "b" else _OLD])


def test_cells_that_were_all_written_later() -> None:
    found = lag(side(row(v="a", w=1)), side(row(v="b", w=2)), v=_NEW, w=_NEW + 1)
    assert (found.lagging.tolist(), found.written_at.tolist()) == ([True], [_NEW + 1])
    assert lag(side(row(v="a")), side(row(v="b", w=2)), v=_FUTURE, w=_NEW).lagging.tolist() == [False]
    # The cell of the future is on both sides.
    assert lag(side(row(v="a")), side(row(v="a", w=2)), v=_FUTURE, w=_NEW).lagging.tolist() == [True]


@pytest.mark.parametrize(
    ("other", "lags"),
    [(_NEW, True), (_OLD, False), (_FUTURE, False), (NO_TIME, False)],
    # Each process of the tests has other times.
    ids=["new", "old", "future", "none"],
)
def test_the_newest_write_of_the_row_counts_if_no_cell_that_differs_has_a_time(other: int, lags: bool) -> None:
    deleted = lag(side(row(v="a", w=1)), side(row(w=1)), w=other)
    assert deleted.lagging.tolist() == [lags]
    assert lag(side(row(v="a", w=1)), side(row(v="a", w=1, l=[1])), v=_OLD, w=other).lagging.tolist() == [lags]


def test_a_row_that_only_one_side_has() -> None:
    none = side()
    assert lag(none, side(row(v="a", w=1)), v=_NEW, w=_NEW).lagging.tolist() == [True]
    assert lag(none, side(row(v="a", w=1)), v=_NEW, w=_OLD).lagging.tolist() == [False]
    assert lag(none, side(row()), s=_OLD).lagging.tolist() == [False]
    gone = lag(side(row(v="a")), none)
    assert (gone.lagging.tolist(), gone.written_at.tolist()) == ([False], [0])


def test_a_static_cell_is_not_a_cell_of_a_row_that_one_side_lacks() -> None:
    """The lake may have it in the other rows of the partition."""
    assert lag(side(), side(row(s="old", v="a")), s=_OLD, v=_NEW).lagging.tolist() == [True]
    alone = row(s="old") | _ALONE
    assert lag(side(), side(alone), s=_OLD).lagging.tolist() == [False]
    assert lag(side(), side(alone), s=_NEW).lagging.tolist() == [True]
    assert lag(side(row(s="a", v="a")), side(row(s="b", v="a")), s=_OLD, v=_NEW).lagging.tolist() == [False]


def test_static_columns_alone_are_compared_with_the_first_row() -> None:
    """The partition has rows on the other side only, which are places of their own."""
    alone, several = side(row(s="a") | _ALONE), side(row(s="a", v="a"), write(1, 2, 1, v="b"))
    for lake, database in ((alone, several), (several, alone)):
        found = differing(lake, database, _TABLE)
        assert sorted(zip(found.before.tolist(), found.after.tolist(), strict=True)) == (
            [(-1, 0), (-1, 1)] if lake is alone else [(0, -1), (1, -1)]
        )


@pytest.mark.parametrize(("other", "lags"), [(_NEW, True), (_OLD, False)], ids=["new", "old"])
def test_static_columns_alone_that_differ(other: int, lags: bool) -> None:
    """The write times of the row's regular cells do not count."""
    columns = _TABLE.static + _TABLE.regular
    for static in ("b", None):
        lake, database = side(row(s="a") | _ALONE), side(row(s=static, v="a"))
        found = differing(lake, database, _TABLE)
        assert sorted(zip(found.before.tolist(), found.after.tolist(), strict=True)) == [(-1, 0), (0, 0)]
        times = {"s": other if static else NO_TIME, "v": _NEW}
        reported = np.array([[times.get(c.name, NO_TIME) for c in columns]] * 2)
        lagging = lag_of(lake, database, found, reported, _TABLE, began=_BEGAN).lagging
        assert lagging[found.before.tolist().index(0)] == (lags and static is not None)
