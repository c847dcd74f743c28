"""A table as it was before some of its columns were dropped, however the lake has rewritten its files since.

Oracle: the rows that each test wrote.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.lake_answers import view_rows
from tests.support.made import SCHEMA, add, cell, new_table, write
from writetime.changes.starts import Start, Truncation
from writetime.lake import packing, retention, state, views
from writetime.lake.generation import renew
from writetime.lake.labels import labelled
from writetime.lake.table import LakeTable
from writetime.lake.views import views_at
from writetime.restore.to_folder import restore
from writetime.schema.cql import parse_table
from writetime.schema.table import Column, DroppedColumn, TableSchema
from writetime.schema.types import Native, Tuple, Udt
from writetime.storage.locations import find_sstables
from writetime.storage.sstable import SSTable

INT = Native("int")
DROPPED_AT = 100


def without(schema: TableSchema, name: str, at: int, *, static: bool | None = False) -> TableSchema:
    """The schema after DROP of a column, as the database records it."""
    (gone,) = (c for c in schema.columns if c.name == name)
    left = {
        kind: tuple(c for c in columns if c.name != name)
        for kind, columns in (("static", schema.static), ("regular", schema.regular))
    }
    return replace(schema, **left, dropped=(*schema.dropped, DroppedColumn(name, gone.type, static, at)))


def rows_at(table: LakeTable, instant: int) -> list[dict[str, Any]]:
    return view_rows(view.rows() for view in views_at(table, instant))


def dropped(folder: Path, name: str = "w") -> LakeTable:
    """A table with a row from before a column was dropped, and one from after it."""
    table = new_table(folder)
    add(table, [write(1, 1, 50, v="a", w=10)], 1)
    after = without(SCHEMA, name, DROPPED_AT)
    table.follow(after)
    add(table, [write(1, 2, 150, v="b")], 2, after)
    return table


BEFORE = [{"id": 1, "n": 1, "v": "a", "w": 10}]


def test_a_column_that_was_dropped_since(tmp_path: Path) -> None:
    table = dropped(tmp_path / "lake")
    assert rows_at(table, 99) == BEFORE
    assert rows_at(table, 100) == view_rows(views.virtual(table, 99)) == [{"id": 1, "n": 1, "v": "a"}]
    assert rows_at(table, 150) == [{"id": 1, "n": 1, "v": "a"}, {"id": 1, "n": 2, "v": "b"}]
    out = tmp_path / "out"
    restore(table, str(out), 99)
    assert parse_table((out / "schema.cql").read_text()) == SCHEMA
    (written,) = (batch for location in find_sstables(str(out)) for batch in SSTable(location, SCHEMA).scan())
    assert written.column("w").to_pylist()[0]["value"] == 10


def test_a_column_that_was_dropped_and_added_again(tmp_path: Path) -> None:
    table = dropped(tmp_path)
    back = replace(SCHEMA, dropped=table.schema().dropped)
    table.follow(back)
    add(table, [write(1, 3, 250, w=30)], 3, back)
    assert rows_at(table, 99) == BEFORE
    assert [row["w"] for row in rows_at(table, 250)] == [None, None, 30]
    again = without(replace(back, dropped=()), "w", 300)
    table.follow(again)
    assert rows_at(table, 99) == BEFORE
    # The database knows only of the last drop.
    assert [row["w"] for row in rows_at(table, 299)] == [None, None, 30]
    assert "w" not in rows_at(table, 300)[0]


def test_a_column_that_the_lake_never_had(tmp_path: Path) -> None:
    schema = without(replace(SCHEMA, regular=(*SCHEMA.regular, Column("gone", INT))), "gone", DROPPED_AT)
    table = new_table(tmp_path, schema)
    add(table, [write(1, 1, 50, v="a", w=10)], 1)
    assert rows_at(table, 99) == BEFORE


STATIC = parse_table("CREATE TABLE shop.items (id int, n int, s int static, v text, PRIMARY KEY (id, n))")


@pytest.mark.parametrize("recorded", [True, None])
def test_a_static_column(tmp_path: Path, recorded: bool | None) -> None:
    """Also if the database does not record that it was one."""
    table = new_table(tmp_path, STATIC)
    row = write(1, 1, 50, v="a")
    static = {k: row[k] for k in ("id", "key", "token")} | {"kind": "static", "s": cell(5, 50)}
    add(table, [static | {"position": b""}, row], 1, STATIC)
    table.follow(without(STATIC, "s", DROPPED_AT, static=recorded))
    assert [column.name for column in views_at(table, 99)[0].schema.static] == ["s"]
    assert rows_at(table, 99) == [{"id": 1, "n": 1, "s": 5, "v": "a"}]


@pytest.mark.parametrize("frozen", [False, True])
def test_a_column_of_a_user_defined_type(tmp_path: Path, frozen: bool) -> None:
    """The database records a tuple without the names of the fields."""
    udt = Udt("shop", "u", (("a", INT), ("b", Native("text"))), frozen)
    schema = replace(SCHEMA, regular=(*SCHEMA.regular, Column("u", udt)))
    table = new_table(tmp_path, schema)
    value = {"a": 1, "b": "x"}
    u = cell(value, 50) if frozen else {"fields": {name: cell(each, 50) for name, each in value.items()}}
    add(table, [write(1, 1, 50, v="a") | {"u": u}], 1, schema)
    after = without(schema, "u", DROPPED_AT)
    recorded = replace(after.dropped[0], type=Tuple(udt.parts, frozen))
    table.follow(replace(after, dropped=(recorded,)))
    table.follow(schema)
    table.follow(replace(after, dropped=(recorded,)))
    assert rows_at(table, 99) == [{"id": 1, "n": 1, "u": [1, "x"], "v": "a", "w": None}]
    assert replace(views_at(table, 99)[0].schema, dropped=()) == labelled(
        schema, {c.name: c.name for c in schema.columns}
    )


def pack(table: LakeTable, _: int) -> object:
    return packing.pack_batches(table, table.changes.load(), most_new=0)


def trim(table: LakeTable, instant: int) -> object:
    state.fold(table)
    return retention.trim_history(table, instant)


def leave_out(table: LakeTable, instant: int) -> object:
    """Record a truncation before which one row of each file was logged."""
    return renew(table, {"a": Start(truncation=Truncation(instant, 1, 1))})


@pytest.mark.parametrize("rewrite", [pack, trim, leave_out])
def test_files_that_are_rewritten_after_the_drop(tmp_path: Path, rewrite: Callable[[LakeTable, int], object]) -> None:
    # Only files that came to the lake before are merged.
    start = views.time_now() + 3_600_000_000
    table = new_table(tmp_path)
    for number in range(16):
        origins = [{"source": "commitlog", "node": "a", "file": "CommitLog-7-1.log", "offset": n} for n in range(4)]
        rows = [write(n, number, start, v="a", w=number) | {"origin": origin} for n, origin in enumerate(origins)]
        add(table, rows, number)
    table.follow(without(SCHEMA, "w", start + 9))
    before = {file.path for file in table.changes.load().files}
    assert rewrite(table, start + 5)
    assert before - {file.path for file in table.changes.load().files}
    ids = range(rewrite is leave_out, 4)
    wanted = {(id_, n, n) for id_ in ids for n in range(16)}
    assert {(row["id"], row["n"], row["w"]) for row in rows_at(table, start + 8)} == wanted
    assert "w" not in rows_at(table, start + 9)[0]


def test_a_trim_after_the_drop_leaves_out_void_cells(tmp_path: Path) -> None:
    """Of a column that was added again, those from before it are void at all times that can be shown."""
    start = views.time_now() + 3_600_000_000
    table = new_table(tmp_path)
    for number in range(4):
        add(table, [write(1, number, start + number, w=number)], number)
    table.follow(without(SCHEMA, "w", start + 1))
    assert trim(table, start + 5)
    table.follow(replace(SCHEMA, dropped=table.schema().dropped))
    assert [row["w"] for row in rows_at(table, start + 5)] == [None, None, 2, 3]
