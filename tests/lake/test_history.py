"""Views as of a time, if the changes in the lake can show it, and the changes that retention leaves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.lake_answers import view_rows
from tests.support.made import SCHEMA, add, batch, new_table, write
from writetime.changes.model import change_schema
from writetime.core.errors import WritetimeError
from writetime.core.instants import parse_instant
from writetime.delta.versions import TableVersion
from writetime.lake import retention, state, views
from writetime.lake.history import after, history_from, raise_history, until
from writetime.lake.horizon import (
    complete_snapshot,
    newest_snapshot,
    raise_complete_snapshot,
    raise_snapshot,
)
from writetime.lake.state import BASE
from writetime.lake.table import LakeTable
from writetime.merge import live_rows, merge
from writetime.schema.cql import parse_table

SECOND = 1_000_000
HOUR = 3600 * SECOND


def as_of(table: LakeTable, instant: int | None) -> list[tuple[int, int, str]]:
    return sorted((r["id"], r["n"], r["v"]) for r in view_rows(views.virtual(table, instant)))


def expected(writes: list[tuple[int, int, int]], instant: int) -> list[tuple[int, int, str]]:
    """The result of writes to (id, n) at a time, in plain Python."""
    latest: dict[tuple[int, int], int] = {}
    for id_, n, at in writes:
        if at <= instant:
            latest[id_, n] = max(at, latest.get((id_, n), at))
    return sorted((*key, str(at)) for key, at in latest.items())


def many_writes(start: int) -> list[tuple[int, int, int]]:
    """Writes to ten rows in the 24 hours from `start` on, not in the order of their times."""
    return [(i % 5, i % 2, start + HOUR * (1 + (7 * i) % 24)) for i in range(24)]


def filled(folder: Path, writes: list[tuple[int, int, int]], *, folds: int) -> LakeTable:
    """A table with these writes in twelve batches, folded into the state after every few of them."""
    table = new_table(folder, buckets=1)
    for number in range(12):
        two = writes[2 * number : 2 * number + 2]
        add(table, [write(id_, n, at, v=str(at)) for id_, n, at in two], number)
        if number % folds == folds - 1:
            state.fold(table)
    return table


def test_as_of(tmp_path: Path) -> None:
    writes = many_writes(0)
    table = filled(tmp_path, writes, folds=5)
    for instant in range(0, 26 * HOUR, HOUR // 2):
        assert as_of(table, instant) == expected(writes, instant)
    assert as_of(table, None) == expected(writes, 26 * HOUR)


def test_trimmed_history(tmp_path: Path) -> None:
    # Files that are in the lake already, with writes of which some are yet to come.
    start = views.time_now()
    writes = many_writes(start)
    horizon = start + 12 * HOUR
    table = filled(tmp_path, writes, folds=9)
    # The files that are not in the state stay; nine files are merged, two stay in part.
    assert retention.trim_history(table, start - HOUR) == 0
    assert retention.trim_history(table, horizon) == 9
    names = [file.path.rsplit("/", 1)[-1] for file in table.changes.load().files]
    assert len(names) == 3 + 2
    assert sum(name.startswith(BASE) for name in names) == 2
    for instant in range(horizon, start + 26 * HOUR, HOUR):
        assert as_of(table, instant) == expected(writes, instant)
    with pytest.raises(WritetimeError, match=r"shop.items as of .*: the lake can show only"):
        as_of(table, horizon - 1)
    # Merged files are not folded in once more, but those that were not are.
    assert state.fold(table) == 3
    assert state.fold(table) == 0
    # A write that comes late counts.
    late = (9, 0, start + HOUR)
    add(table, [write(*late, v=str(late[2]))], 100)
    for _ in range(2):
        assert as_of(table, None) == as_of(table, start + 26 * HOUR) == expected([*writes, late], start + 26 * HOUR)
        state.fold(table)


def test_history_only_shrinks(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    assert history_from(table.changes.load()) is None
    for instant, first in ((5, 5), (9, 9), (7, 9)):
        raise_history(table, instant)
        assert history_from(table.changes.load()) == first


@pytest.mark.parametrize(
    ("raise_to", "found"),
    [(raise_history, history_from), (raise_snapshot, newest_snapshot), (raise_complete_snapshot, complete_snapshot)],
)
def test_two_processes_raise_at_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    raise_to: Callable[[LakeTable, int], None],
    found: Callable[[TableVersion], int | None],
) -> None:
    """The higher time stays."""
    table = new_table(tmp_path)
    other = LakeTable(table.storage)
    load = table.changes.load

    def load_before_other() -> TableVersion:
        monkeypatch.undo()
        now = load()
        raise_to(other, 9)
        return now

    monkeypatch.setattr(table.changes, "load", load_before_other)
    raise_to(table, 5)
    assert found(table.changes.load()) == 9


COMPLEX = parse_table(
    "CREATE TYPE ks.u (a int, b int); CREATE TABLE ks.t (id int PRIMARY KEY, m map<int, int>, st set<int>, u u, v int)"
)


def element(path: int, at: int) -> dict[str, Any]:
    return {"path": path, "value": path, "write_time": at, "tombstone": False}


def tombstone(at: int) -> dict[str, int]:
    return {"write_time": at, "deletion_time": at}


# Changes with parts of all kinds, which were written at the instants 1 to 6.
CHANGES = pa.Table.from_batches(
    [
        batch(
            [
                {
                    "kind": "row",
                    "id": 1,
                    "key": b"\0\0\0\1",
                    "token": 1,
                    "position": b"\x38",
                    "marker": {"write_time": 3},
                    "tombstone": tombstone(1),
                    "m": {"tombstone": tombstone(2), "elements": [element(1, 4), element(2, 6), element(3, 5)]},
                    "st": {"tombstone": None, "elements": [element(1, 6)]},
                    "u": {
                        "tombstone": None,
                        "fields": {"a": {"value": 1, "write_time": 6, "tombstone": False}, "b": None},
                    },
                    "v": {"value": 1, "write_time": 5, "tombstone": False},
                },
                {
                    "kind": "partition_tombstone",
                    "id": 2,
                    "key": b"\0\0\0\2",
                    "token": 2,
                    "position": b"",
                    "tombstone": tombstone(6),
                },
            ],
            COMPLEX,
        )
    ]
)


def test_the_parts_of_a_change_until_an_instant() -> None:
    kept = until(CHANGES, COMPLEX, 5)
    kept.validate(full=True)
    (row,) = kept.to_pylist()
    assert (row["marker"]["write_time"], row["v"]["value"]) == (3, 1)
    assert [e["path"] for e in row["m"]["elements"]] == [1, 3]
    assert (row["st"], row["u"]) == (None, None)
    assert until(CHANGES, COMPLEX, 0).num_rows == 0
    assert until(CHANGES, COMPLEX, 6).equals(CHANGES)
    assert until(change_schema(COMPLEX).empty_table(), COMPLEX, 5).num_rows == 0


def test_the_parts_of_a_change_after_an_instant() -> None:
    later = after(CHANGES, COMPLEX, 5)
    assert [r["kind"] for r in later.to_pylist()] == ["row", "partition_tombstone"]
    assert later.to_pylist()[0]["u"]["fields"]["a"]["value"] == 1


def test_changes_split_at_any_instant_merge_to_the_same_result() -> None:
    whole = merge([CHANGES], COMPLEX)
    for instant in range(8):
        parts = [until(CHANGES, COMPLEX, instant), after(CHANGES, COMPLEX, instant)]
        assert merge(parts, COMPLEX).equals(whole)


def test_instants() -> None:
    assert parse_instant("1970-01-01T00:00:01Z") == parse_instant("1970-01-01 00:00:01") == SECOND
    assert parse_instant("1970-01-01T02:00:00+02:00") == 0
    assert parse_instant("-5") == -5
    with pytest.raises(WritetimeError, match="is neither a time"):
        parse_instant("yesterday")


@pytest.mark.parametrize(("as_of", "there"), [(1999, [1, 2]), (2000, [])])
def test_cells_expire_at_their_second(as_of: int, there: list[int]) -> None:
    """The row marker and the cell, each alone in its row (`LivenessInfo.isLive`, `AbstractCell.isLive`)."""
    by_marker, by_cell = write(1, 0, 5), write(2, 0, 5, v="x")
    by_marker["marker"] |= {"ttl": 10, "expiry": 2000}
    by_cell |= {"marker": None, "v": by_cell["v"] | {"ttl": 10, "deletion_time": 2000}}
    assert live_rows(merge([batch([by_marker, by_cell])], SCHEMA), SCHEMA, as_of)["id"].to_pylist() == there
