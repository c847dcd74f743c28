"""The deletions that the lake lost; no server is needed."""

from typing import Any

import numpy as np
import pytest

from tests.support.made import batch, write
from writetime.changes.position import STATIC_POSITION
from writetime.lake.views import time_now
from writetime.merge import merge
from writetime.row_events.compare import Rows
from writetime.schema.cql import parse_table
from writetime.verify.compared_rows import differing
from writetime.verify.lost_deletions import FirstRead, timed_rows

_TABLE = parse_table(
    "CREATE TABLE shop.items (id int, n int, s text STATIC, v text, w int, m map<text, int>, PRIMARY KEY (id, n))"
)
_AT = 1000


def read(*rows: dict[str, Any]) -> tuple[Rows, np.ndarray]:
    """The rows of a side; a static cell is a change of its own."""
    parts = [each for row in rows for each in _parts(row)]
    return timed_rows(merge([batch(parts, _TABLE)], _TABLE), _TABLE, time_now())


def _parts(row: dict[str, Any]) -> list[dict[str, Any]]:
    static = {"kind": "static", "position": STATIC_POSITION, "n": None, "marker": None, "v": None, "w": None, "m": None}
    return [{name: each for name, each in row.items() if name != "s"}, *([row | static] if "s" in row else [])]


def row(write_time: int, **values: Any) -> dict[str, Any]:
    """A row whose cells were written at one time; `n` is its clustering column, `s` the static cell, `m` a map."""
    n, static, elements = values.pop("n", 1), values.pop("s", None), values.pop("m", None)
    made = write(1, n, 1, **values)
    for name in values:
        made[name]["write_time"] = write_time
    if static is not None:
        made["s"] = {"value": static, "write_time": write_time, "tombstone": False}
    if elements is not None:
        cells = [{"path": key, "value": value, "write_time": write_time} for key, value in elements.items()]
        made["m"] = {"tombstone": None, "elements": cells}
    return made


@pytest.mark.parametrize("cell", [{"v": "a"}, {"s": "a"}, {"m": {"a": 1}}], ids=["v", "s", "m"])
@pytest.mark.parametrize(
    ("written", "lost"), [(_AT, True), (_AT + 1, False)], ids=["before the read", "after the read"]
)
def test_a_cell_that_the_database_lacked(cell: dict[str, Any], written: int, lost: bool) -> None:
    """Another cell of the row is written all the time; the lake also has another row of the partition."""
    (before, _), (after, _) = read(row(5, w=1)), read(row(_AT + 5, w=2))
    lake, times = read(row(written, **cell), row(_AT + 9, w=2) | {"marker": None}, row(2, v="a", n=0))
    found = differing(lake, after, _TABLE)
    columns = [c.name for c in _TABLE.static + _TABLE.regular]
    place = found.before.tolist().index(1)
    marks = FirstRead(before, _AT).lost(lake, times, after, found, _TABLE)[place].tolist()
    assert [name for name, mark in zip(columns, marks, strict=True) if mark] == (list(cell) if lost else [])


def test_a_cell_that_the_database_had_or_has() -> None:
    """Its deletion, or its next write, may only not be in the lake yet."""
    lake, times = read(row(5, v="a", w=1))
    for before, after in (({"v": "a", "w": 1}, {"w": 1}), ({"w": 1}, {"v": "b", "w": 1})):
        now = read(row(5, **after))[0]
        found = differing(lake, now, _TABLE)
        assert not FirstRead(read(row(5, **before))[0], _AT).lost(lake, times, now, found, _TABLE).any()
