"""The deletions that the lake lost; no server is needed."""

from typing import Any

import pytest

from tests.support.made import batch, write
from writetime.changes.position import STATIC_POSITION
from writetime.lake.views import time_now
from writetime.merge import merge
from writetime.schema.cql import parse_table
from writetime.verify.compared_rows import differing
from writetime.verify.lost_deletions import FirstRead, LakeRows, rows_with_entries

_TABLE = parse_table(
    "CREATE TYPE shop.place (street text, city text); CREATE TABLE shop.items (id int, n int, s text STATIC, v text, "
    "w int, m map<text, int>, e set<int>, u place, PRIMARY KEY (id, n))"
)
_AT = 1000


def read(*rows: dict[str, Any]) -> LakeRows:
    """The rows of a side; a static cell is a change of its own."""
    parts = [each for row in rows for each in _parts(row)]
    return rows_with_entries(merge([batch(parts, _TABLE)], _TABLE), _TABLE, time_now())


def _parts(row: dict[str, Any]) -> list[dict[str, Any]]:
    regular = dict.fromkeys(column.name for column in _TABLE.regular)
    static = {"kind": "static", "position": STATIC_POSITION, "n": None, "marker": None, **regular}
    return [{name: each for name, each in row.items() if name != "s"}, *([row | static] if "s" in row else [])]


def row(write_time: int, n: int = 1, **values: Any) -> dict[str, Any]:
    """A row whose cells were written at one time; `n` is its clustering column, `s` the static cell, `m` a map, `e` a
    set and `u` a UDT.
    """
    made = write(1, n, 1)
    for name, value in values.items():
        made[name] = _column(name, value, write_time)
    return made


def _column(name: str, value: Any, write_time: int) -> dict[str, Any]:
    times = {"write_time": write_time, "tombstone": False}
    if name == "u":
        return {"tombstone": None, "fields": {field: {"value": each, **times} for field, each in value.items()}}
    if name == "m":
        return {"tombstone": None, "elements": [{"path": key, "value": each, **times} for key, each in value.items()]}
    if name == "e":
        return {"tombstone": None, "elements": [{"path": each, **times} for each in value]}
    return {"value": value, **times}


def lost(lake: LakeRows, before: LakeRows, after: LakeRows, index: int) -> list[str]:
    """Return the columns of a row of the lake that lost a deletion."""
    found = differing(lake.rows, after.rows, _TABLE)
    first = FirstRead(before.rows, _AT, _AT + 3)
    marks = first.lost(lake, after.rows, found, _TABLE)[found.before.tolist().index(index)]
    columns = [c.name for c in _TABLE.static + _TABLE.regular]
    return [name for name, mark in zip(columns, marks.tolist(), strict=True) if mark]


@pytest.mark.parametrize(
    "cell",
    [{"v": "a"}, {"s": "a"}, {"m": {"a": 1}}, {"e": [1]}, {"u": {"city": "a"}}],
    ids=["v", "s", "m", "e", "u"],
)
@pytest.mark.parametrize(
    ("written", "is_lost"), [(_AT, True), (_AT + 1, False)], ids=["before the read", "after the read"]
)
def test_a_cell_that_the_database_lacked(cell: dict[str, Any], written: int, is_lost: bool) -> None:
    """Another cell of the row is written all the time; the lake also has another row of the partition."""
    before, after = read(row(5, w=1)), read(row(_AT + 5, w=2))
    lake = read(row(written, **cell), row(_AT + 9, w=2) | {"marker": None}, row(2, v="a", n=0))
    assert lost(lake, before, after, 1) == (list(cell) if is_lost else [])


@pytest.mark.parametrize(
    ("all_parts", "one"),
    [
        ({"m": {"a": 1, "b": 2}}, {"m": {"b": 2}}),
        ({"e": [1, 2]}, {"e": [2]}),
        ({"u": {"city": "a"}}, {"u": {"street": "b"}}),
    ],
    ids=["m", "e", "u"],
)
def test_a_part_of_a_cell_that_the_database_lacked(all_parts: Any, one: Any) -> None:
    """The other parts are written all the time, so they are newer."""
    before, after = read(row(5, w=1, **one)), read(row(_AT + 5, w=2, **one))
    newer = {**row(_AT + 5, **one), "marker": None}
    for written, is_lost in ((_AT, True), (_AT + 1, False)):
        lake = read(row(written, w=2, **all_parts), newer)
        assert lost(lake, before, after, 0) == (list(one) if is_lost else [])
    # It may be deleted, or written, after the first read, and the lake not have that yet.
    lake = read(row(5, w=1, **all_parts))
    assert lost(lake, read(row(5, w=1, **all_parts)), after, 0) == []
    assert lost(lake, before, read(row(_AT + 5, w=2, **all_parts)), 0) == []


def test_a_cell_that_the_database_had_or_has() -> None:
    """Its deletion, or its next write, may only not be in the lake yet."""
    lake = read(row(5, v="a", w=1))
    for before, after in (({"v": "a", "w": 1}, {"w": 1}), ({"w": 1}, {"v": "b", "w": 1})):
        assert lost(lake, read(row(5, **before)), read(row(5, **after)), 0) == []
