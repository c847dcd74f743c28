"""Files of all buckets may be as large as a task merges, so several are merged by parts of the token range."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.lake_answers import view_rows
from tests.support.made import add, add_large, new_table, settings_at, write
from tests.support.timed import deletion
from writetime.delta import buckets
from writetime.delta.buckets import ALL
from writetime.files import merging
from writetime.lake import retention, state, views
from writetime.lake.bucket_contents import dropped_of, levels_of
from writetime.lake.table import LakeTable, open_table

pytestmark = pytest.mark.long

LIMIT = 1 << 20


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How much each merge has read (bytes in memory)."""
    found: list[int] = []
    read_changes = merging.read_changes

    def noted(files: Any, schema: pa.Schema) -> list[pa.Table]:
        tables = read_changes(files, schema)
        found.append(sum(table.nbytes for table in tables))
        return tables

    monkeypatch.setattr(buckets, "MOST_ROW_BYTES", LIMIT)
    for module in (merging, retention):
        monkeypatch.setattr(module, "read_changes", noted)
    return found


def add_levels(table: LakeTable, numbers: range) -> None:
    """Add levels of about half the limit, each of all buckets."""
    for number in numbers:
        add_large(table, number)
        state.fold(table)


def test_levels_of_all_buckets_are_compacted_by_parts(tmp_path: Path, read: list[int]) -> None:
    table = new_table(tmp_path, buckets=16)
    add_levels(table, range(1, 13))
    assert {file.bucket for file in table.state.load().files} == {ALL}
    before = view_rows(views.virtual(table))
    read.clear()
    assert state.compact(table) == 1
    assert len(read) == 8
    assert max(read) < 2 * LIMIT
    # They are not levels of all buckets again, which would be merged for ever.
    assert ALL not in {file.bucket for file in table.state.load().files}
    assert state.compact(table) == 0
    assert view_rows(views.virtual(table)) == before


def test_history_of_all_buckets_is_merged_by_parts(tmp_path: Path, read: list[int]) -> None:
    """So is the history that a clock wrote that was ahead, which is not merged."""
    table = new_table(tmp_path, buckets=16)
    ahead = views.time_now() + 3_600_000_000
    for number in range(1, 13):
        at = ahead + number if number % 2 else number
        # Rows of 64 KiB, each written twice.
        add(table, [write(10 * (number % 6) + n, 1, at, v=f"{number}{n}" * (1 << 15)) for n in range(8)], number)
    state.fold(table)
    assert {file.bucket for file in table.changes.load().files} == {ALL}
    before = view_rows(views.virtual(table))
    read.clear()
    assert retention.trim_history(table, views.time_now()) == 12
    assert len(read) > 4
    assert max(read) < 2 * LIMIT
    found = table.changes.load().files
    assert ALL not in {file.bucket for file in found}
    assert sum(file.rows for file in found) == 6 * 8 + 6 * 8 // 2
    assert retention.trim_history(table, views.time_now()) == 0
    assert view_rows(views.virtual(table)) == before
    state.rebuild(table)
    assert view_rows(views.virtual(table)) == before


def test_files_of_dropped_entries_are_compacted_by_parts(tmp_path: Path, read: list[int]) -> None:
    table = new_table(tmp_path, buckets=16)
    for number in range(1, 5):
        # Cells that expired, with their values.
        gone = [write(100 * number + n, 1, number, v=f"{number}{n}" * (1 << 15)) for n in range(8)]
        for row in gone:
            row["v"] |= {"ttl": 1, "deletion_time": 0}
        add(table, gone, number)
        state.fold(table)
        state.drop_tombstones(table, 1000 + number)
    assert {file.bucket for file in dropped_of(table.state.load())} == {ALL}
    before = view_rows(views.virtual(table))
    read.clear()
    assert state.compact(table) == 1
    assert max(read) < 2 * LIMIT
    assert len(dropped_of(table.state.load())) > 4
    assert state.compact(table) == 0
    assert view_rows(views.virtual(table)) == before


def test_late_levels_of_all_buckets_are_merged_by_parts(tmp_path: Path, read: list[int]) -> None:
    table = new_table(tmp_path, buckets=16)
    add(table, [write(n, 1, 1, v="a") for n in range(20)], 1)
    add(table, [deletion(n, 1, 2) for n in range(5)], 2)
    state.fold(table)
    other = open_table(settings_at(tmp_path, buckets=16), table.name)

    def beside(function: Any, tasks: Any) -> Iterator[Any]:
        for task in tasks:
            yield function(task)
        add_levels(other, range(3, 11))
        # A late write of a row that was deleted.
        add(other, [write(3, 1, 1, v="zombie")], 11)
        state.fold(other)
        read.clear()

    assert state.drop_tombstones(table, 1_000_000, beside) == 1
    assert len(read) > 4
    assert max(read) < 2 * LIMIT
    assert state.count_tombstones(table, table.state.load()) == 0
    assert len(levels_of(table.state.load())) > 4
    rows = view_rows(views.virtual(table))
    assert sorted(row["id"] for row in rows) == [*range(5, 20), *(100 * b + n for b in range(3, 11) for n in range(8))]
