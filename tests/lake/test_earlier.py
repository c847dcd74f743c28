"""A table as it was before a TRUNCATE, or before DROP and CREATE of the same name.

Oracle: the rows that each test wrote.
"""

import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid1

import pytest

from tests.support.lake_answers import view_rows
from tests.support.made import SCHEMA, add, new_table, settings_at, write
from writetime.changes.starts import Start, Truncation
from writetime.core.errors import WritetimeError
from writetime.core.instants import instant_text
from writetime.delta import commits
from writetime.lake import retention, state, views
from writetime.lake.generation import renew
from writetime.lake.history import raise_history
from writetime.lake.horizon import register_source, watermark
from writetime.lake.table import LakeTable
from writetime.lake.views import views_at
from writetime.landing.schema_changes import LakeSchemas
from writetime.restore.to_folder import restore
from writetime.schema.cql import parse_table
from writetime.schema.table import Column, DroppedColumn
from writetime.schema.types import Native
from writetime.storage.locations import find_sstables
from writetime.storage.sstable import SSTable
from writetime.wire.change_messages import change_avro
from writetime.wire.publishing import RegisteredSchema

HOUR = 3_600_000_000


def rows_at(table: LakeTable, instant: int) -> list[dict[str, Any]]:
    return view_rows(view.rows() for view in views_at(table, instant))


def ids_at(table: LakeTable, instant: int) -> list[int]:
    return sorted(row["id"] for row in rows_at(table, instant))


def logged(id_: int, at: int, segment: int, **values: Any) -> dict[str, Any]:
    """A write of a node that was logged in a segment."""
    file = f"CommitLog-7-{segment}.log"
    return write(id_, 1, at, **values) | {"origin": {"source": "commitlog", "node": "a", "file": file, "offset": 0}}


def truncate(table: LakeTable, at: int, segment: int) -> None:
    """Let the lake record that the node discarded what it had logged before a segment."""
    assert renew(table, {"a": Start(truncation=Truncation(at, segment, 0))})


def with_truncation(folder: Path) -> LakeTable:
    table = new_table(folder)
    add(table, [logged(id_, 50 + id_, 1, v="old", w=id_) for id_ in range(10)], 1)
    truncate(table, 100, 2)
    add(table, [logged(20, 150, 2, v="new")], 2)
    return table


def refused(table: LakeTable, instant: int, message: str) -> None:
    with pytest.raises(WritetimeError, match=message):
        views_at(table, instant)


def test_a_truncation(tmp_path: Path) -> None:
    table = with_truncation(tmp_path / "lake")
    assert ids_at(table, 99) == list(range(10))
    assert ids_at(table, 53) == [0, 1, 2, 3]
    assert ids_at(table, 100) == []
    assert ids_at(table, 150) == [20]
    out = tmp_path / "out"
    restore(table, str(out), 99)
    found = [batch for location in find_sstables(str(out)) for batch in SSTable(location, SCHEMA).scan()]
    assert sum(batch.num_rows for batch in found) == 10
    # Views are only of the present generation.
    with pytest.raises(WritetimeError, match="the lake can show only"):
        views.bucket_views(table, 99)


def test_two_truncations_and_a_drop(tmp_path: Path) -> None:
    table = with_truncation(tmp_path)
    table.follow(replace(SCHEMA, regular=SCHEMA.regular[:1], dropped=(DroppedColumn("w", Native("int"), False, 90),)))
    truncate(table, 200, 3)
    add(table, [logged(30, 250, 3, v="newest")], 3, table.schema())
    assert sorted(row["w"] for row in rows_at(table, 89)) == list(range(10))
    assert {"id": 0, "n": 1, "v": "old"} in rows_at(table, 99)
    assert [ids_at(table, at) for at in (99, 149, 199, 200, 250)] == [list(range(10)), [], [20], [], [30]]


def create_again(table: LakeTable, columns: str) -> None:
    """Let the lake follow another table of the name, and finish this."""
    schema = replace(parse_table(f"CREATE TABLE shop.items {columns}"), id=uuid1())
    LakeSchemas(settings_at(Path(table.storage.address).parent), table).follow(
        [RegisteredSchema(0, 0, change_avro(schema))]
    )
    renew(table, {})


def test_tables_of_one_name_with_other_columns(tmp_path: Path) -> None:
    table = new_table(tmp_path / "lake", replace(SCHEMA, id=uuid1()))
    first = views.time_now()
    add(table, [write(1, 1, first, v="a", w=1)], 1)
    create_again(table, "(id int, n int, v int, x text, PRIMARY KEY (id, n))")
    second = views.time_now()
    add(table, [write(2, 1, second, v=5, x="x")], 2, table.schema())
    create_again(table, "(id int, n int, PRIMARY KEY (id, n))")
    third = views.time_now()
    assert rows_at(table, first) == [{"id": 1, "n": 1, "v": "a", "w": 1}]
    assert rows_at(table, second) == [{"id": 2, "n": 1, "v": 5, "x": "x"}]
    assert rows_at(table, third) == []
    out = tmp_path / "out"
    restore(table, str(out), first)
    assert parse_table((out / "schema.cql").read_text()) == SCHEMA
    # The table was there already, and the lake does not have its first changes.
    created = (table.schema().id or uuid1()).time // 10 - 12_219_292_800_000_000
    assert second < created < third
    refused(table, created, f"and from before that .* to before .*; .* to before .*{instant_text(first)[11:16]}")


def test_an_empty_table_has_its_columns(tmp_path: Path) -> None:
    table = new_table(tmp_path, replace(SCHEMA, id=uuid1()))
    before = views.time_now()
    create_again(table, "(id int, n int, x text, PRIMARY KEY (id, n))")
    (view,) = views_at(table, before)
    assert view.schema == SCHEMA
    assert view.state().num_rows == 0


@pytest.mark.parametrize("by", ["truncate", "create_again"])
def test_a_kill_before_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    """The record of a generation that has not ended does not count, nor does it after a later one of it."""

    def die(*_: object) -> None:
        raise RuntimeError("killed")

    table = new_table(tmp_path, replace(SCHEMA, id=uuid1()))
    start = views.time_now()
    add(table, [logged(1, start, 1, v="a")], 1)

    def end() -> None:
        if by == "truncate":
            truncate(table, views.time_now(), 2)
        else:
            create_again(table, "(id int, n int, x text, PRIMARY KEY (id, n))")

    with monkeypatch.context() as patch:
        patch.setattr(commits, "write_commit", die)
        with pytest.raises(RuntimeError, match="killed"):
            end()
    records = tmp_path / table.name / "earlier"
    assert len(list(records.iterdir())) == 1
    assert ids_at(table, start) == [1]
    later = views.time_now()
    add(table, [logged(2, later, 1, v="b")], 2)
    end()
    assert ids_at(table, start) == [1]
    assert ids_at(table, later) == [1, 2]
    assert ids_at(table, views.time_now()) == []
    assert len(list(records.iterdir())) == 2
    retention.vacuum(table, 0)
    assert not list(records.iterdir())


def test_history_that_was_merged_before_the_truncation(tmp_path: Path) -> None:
    table = new_table(tmp_path, buckets=1)
    start = views.time_now() + HOUR
    for number in range(4):
        add(table, [logged(number, start + number, 1, v="a")], number)
    state.fold(table)
    assert retention.trim_history(table, start + 2)
    truncate(table, start + 10, 2)
    shown = f"and from before that {instant_text(start + 2)} to before {instant_text(start + 10)}"
    refused(table, start + 1, re.escape(shown))
    assert ids_at(table, start + 2) == [0, 1, 2]


def test_writes_that_were_not_captured(tmp_path: Path) -> None:
    """Landing leaves out those that come after it knows of the truncation."""
    table = new_table(tmp_path)
    register_source(table, "a")
    table.changes.append([], "test", 0, watermark("a", 80))
    add(table, [logged(1, 50, 1, v="a"), logged(2, 85, 1, v="b")], 1)
    truncate(table, 100, 2)
    assert ids_at(table, 79) == [1]
    refused(table, 80, "and from before that any time to before 1970-01-01T00:00:00.000080")


def test_a_snapshot_after_a_truncation(tmp_path: Path) -> None:
    """It limits what the present generation can show, and not the earlier one."""
    table = with_truncation(tmp_path)
    raise_history(table, 1000)
    assert ids_at(table, 99) == list(range(10))
    refused(table, 999, "the lake can show only 1970-01-01T00:00:00.001000")


CLEAN_UP: list[Callable[[LakeTable, int], object]] = [retention.trim_stream, retention.vacuum]


@pytest.mark.parametrize("clean_up", CLEAN_UP)
def test_files_stay_for_some_hours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean_up: Callable[[LakeTable, int], object]
) -> None:
    with monkeypatch.context() as patch:
        # The files were replaced long ago, and the record is new.
        patch.setattr(commits, "millis", lambda _: (time.time_ns() // 1_000_000) - 200 * 3_600_000)
        table = with_truncation(tmp_path)
    clean_up(table, 168)
    assert ids_at(table, 99) == list(range(10))
    clean_up(table, 0)
    refused(table, 99, "the lake can show only" if clean_up is retention.vacuum else "were deleted.*lake.vacuum_hours")


@pytest.mark.parametrize("content", ["", "[]", '{"created": 0}', '{"files": 1}'])
def test_a_damaged_record_is_named(tmp_path: Path, content: str) -> None:
    """Cleaning up refuses, too: it does not know which files the record keeps."""
    table = with_truncation(tmp_path)
    (record,) = (Path(table.storage.address) / "earlier").iterdir()
    record.write_text(content)
    refused(table, 99, f"{record} is damaged: copy it from a backup of the lake, or delete it")
    with pytest.raises(WritetimeError, match="is damaged"):
        retention.vacuum(table, 1)
    assert ids_at(table, 150) == [20]
    record.unlink()
    refused(table, 99, "the lake can show only")


def test_other_replaced_files_go(tmp_path: Path) -> None:
    table = with_truncation(tmp_path)
    add(table, [logged(id_, 160, 2, v="new") for id_ in range(4)], 3)
    files = [Path(table.changes.storage.address, file.path) for file in table.changes.load().files]
    ended = set(Path(table.changes.storage.address).rglob("*.parquet")) - set(files)
    left = files[0].with_name("left-by-a-task.parquet")
    left.write_bytes(files[0].read_bytes())
    for each in (*ended, left):
        os.utime(each, (0, 0))
    assert retention.vacuum(table, 168) == [str(left)]
    assert ids_at(table, 99) == list(range(10))


def test_a_column_is_there_again_in_an_earlier_table(tmp_path: Path) -> None:
    schema = replace(SCHEMA, regular=(*SCHEMA.regular, Column("gone", Native("int"))), id=uuid1())
    table = new_table(tmp_path, schema)
    start = views.time_now()
    add(table, [write(1, 1, start, v="a", gone=7)], 1, schema)
    table.follow(replace(SCHEMA, dropped=(DroppedColumn("gone", Native("int"), False, start + 1),), id=schema.id))
    create_again(table, "(id int, n int, x text, PRIMARY KEY (id, n))")
    assert rows_at(table, start) == [{"gone": 7, "id": 1, "n": 1, "v": "a", "w": None}]
