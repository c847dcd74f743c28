"""Few rows become one file of all buckets. Read by bucket, it has the same rows as files of the buckets."""

import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.lake_answers import view_rows
from tests.support.made import SCHEMA, add, batch, new_table, write
from tests.support.view_readers import by_duckdb
from writetime.delta import buckets
from writetime.delta.buckets import ALL
from writetime.delta.parquet import WrittenFile
from writetime.delta.versions import DataFile
from writetime.files.merging import Source, merge_files
from writetime.lake import retention, state, views
from writetime.lake.changes import ChangeWriter

pytestmark = pytest.mark.slow


def rows_of(chooser: random.Random, count: int, at: int = 5) -> list[dict[str, Any]]:
    """Rows with different keys."""
    return [write(id_, 0, at, v=f"{at}") for id_ in chooser.sample(range(10_000), count)]


@pytest.mark.parametrize("row_group", [1 << 16, 7])
def test_a_file_of_all_buckets_by_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row_group: int) -> None:
    table = new_table(tmp_path, buckets=16)
    chooser = random.Random(1)
    for count in (1, 2, 40, 300):
        changes = batch(rows_of(chooser, count))
        [shared] = ChangeWriter.of(table, SCHEMA).write([changes])
        path = f"{table.changes.storage.address}/{shared.path}"
        pq.write_table(pq.ParquetFile(path).read(), path, row_group_size=row_group)
        with monkeypatch.context() as patched:
            patched.setattr(buckets, "FEW_ROWS", 0)
            split = {file.bucket: file for file in ChangeWriter.of(table, SCHEMA).write([changes])}
        assert shared.bucket == (ALL if len(split) > 1 else next(iter(split)))
        for bucket in range(16):
            source = Source.of_bucket(
                table.changes.storage, [_file(shared)] if shared.bucket == ALL else [], bucket, 16
            )
            found = merge_files([source], SCHEMA)["key"].to_pylist()
            own = split.get(bucket)
            if shared.bucket == ALL and own is not None:
                assert found == pq.ParquetFile(f"{table.changes.storage.address}/{own.path}").read()["key"].to_pylist()
            else:
                assert not found


def _file(file: WrittenFile) -> DataFile:
    return DataFile(file.path, file.bucket, file.rows, file.size, 0)


def test_one_file_for_a_small_batch(tmp_path: Path) -> None:
    table = new_table(tmp_path, buckets=16)
    chooser = random.Random(2)
    for number in range(3):
        add(table, rows_of(chooser, 100, number), number)
    assert [file.bucket for file in table.changes.load().files] == [ALL] * 3
    assert state.fold(table) == 3
    assert [file.bucket for file in table.state.load().files] == [ALL]
    # Another engine reads them without knowing of buckets.
    rows = [row for part in views.virtual(table) for row in part["id"].to_pylist()]
    counts = by_duckdb(table.changes.storage.address, "count(*) AS changes, count(DISTINCT token) AS tokens")
    assert counts.to_pylist() == [{"changes": 300, "tokens": len(rows)}]


def test_many_rows_are_split_when_they_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(tmp_path, buckets=4)
    monkeypatch.setattr(buckets, "FEW_ROWS", 50)
    chooser = random.Random(3)
    for number in range(4):
        add(table, rows_of(chooser, 100, number), number)
        state.fold(table)
    before = view_rows(views.virtual(table))
    assert [file.bucket for file in table.state.load().files] == [ALL] * 4
    assert state.compact(table) == 1
    assert sorted(file.bucket for file in table.state.load().files) == [0, 1, 2, 3]
    assert retention.trim_history(table, views.time_now()) == 4
    assert sorted(file.bucket for file in table.changes.load().files) == [0, 1, 2, 3]
    assert view_rows(views.virtual(table)) == before == view_rows(views.virtual(table, views.time_now()))


@pytest.mark.parametrize("few", [0, 13, 4096])
def test_tombstones_are_dropped_with_files_of_all_buckets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    table = new_table(tmp_path, buckets=4)
    monkeypatch.setattr(buckets, "FEW_ROWS", few)
    add(table, rows_of(random.Random(4), 50), 1)
    deletion = {**write(1, 0, 3), "marker": None, "tombstone": {"write_time": 3, "deletion_time": 0}}
    add(table, [deletion], 2)
    state.fold(table)
    monkeypatch.setattr(buckets, "FEW_ROWS", 4096)
    add(table, [write(id_, 0, 4, v="x") for id_ in range(20_000, 20_009)], 3)
    state.fold(table)
    assert table.state.load().files[0].bucket == ALL
    monkeypatch.setattr(buckets, "FEW_ROWS", few)
    before = view_rows(views.virtual(table))
    assert state.drop_tombstones(table, 4) == {0: 1, 13: 4, 4096: 1}[few]
    assert state.count_tombstones(table, table.state.load()) == 0
    assert view_rows(views.virtual(table)) == before
    # A late write that the dropped tombstone covered does not reappear, and rows of other buckets are not affected.
    add(table, [write(1, 0, 2, v="zombie"), write(30_000, 0, 2, v="late")], 4)
    found = view_rows(views.virtual(table))
    assert len(found) == len(before) + 1
    assert not any(row["v"] == "zombie" for row in found)
    state.fold(table)
    assert view_rows(views.virtual(table)) == found
