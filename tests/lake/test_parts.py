"""The least possible number of tasks reads few large rows of all buckets, so that the cost depends on the change."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.event_replay import replayed
from tests.support.lake_answers import view_rows
from tests.support.made import add, batch, new_table, write
from writetime.delta import buckets
from writetime.delta.buckets import ALL, token_range
from writetime.delta.parquet import HOT_LAYOUT, sort, without_empty, write_file
from writetime.delta.storage import Storage
from writetime.files import change_files
from writetime.files.change_files import groups_between, open_changes
from writetime.lake import state, views
from writetime.row_events import stream
from writetime.row_events.publish import PUBLISHED
from writetime.row_events.trimming import merge_events


def large(number: int, rows: int = 8) -> list[dict[str, Any]]:
    """Rows of 64 KiB that do not compress well."""
    chooser = random.Random(number)
    return [write(100 * number + n, 1, number, v=chooser.randbytes(1 << 15).hex()) for n in range(rows)]


@pytest.mark.parametrize(("most", "levels"), [(256 << 20, [ALL]), (3 << 20, [ALL, ALL]), (1 << 20, [0, 1, 2, 3])])
def test_each_step_takes_few_large_rows_by_as_few_tasks_as_hold_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, levels: list[int]
) -> None:
    """Each task reads the files of all buckets again, so the cost follows the change only if the tasks are few."""
    monkeypatch.setattr(buckets, "MOST_ROW_BYTES", most)
    table = new_table(tmp_path)
    add(table, [write(n, 1, 0, v="small") for n in range(99)], 0)
    state.fold(table)
    stream.extend(table)
    assert [file.bucket for file in table.state.load().files] == [ALL]
    for number in range(1, 9):
        add(table, large(number), number)
    assert {file.bucket for file in table.changes.load().files} == {ALL}
    read = counted_reads(monkeypatch)
    before = {file.path for file in table.row_events.load().files}
    stream.extend(table)
    assert len(read) == 8 * len(levels)
    assert sorted(f.bucket for f in table.row_events.load().files if f.path not in before) == levels
    assert state.fold(table) == 8
    assert len(read) == 2 * 8 * len(levels)
    assert sorted(file.bucket for file in table.state.load().files) == [ALL, *levels]
    assert replayed(table) == view_rows(views.virtual(table))


def counted_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of the files of changes that are read from now on, one number for each time."""
    found: list[int] = []

    def counted(file: pq.ParquetFile, tokens: tuple[int, int] | None, names: Sequence[str]) -> pa.Table:
        found.append(file.metadata.num_rows)
        return read_tokens(file, tokens, names)

    read_tokens = change_files.read_tokens
    monkeypatch.setattr(change_files, "read_tokens", counted)
    return found


def test_row_events_of_large_rows_are_merged_by_as_few_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(tmp_path)
    for number in range(1, 5):
        add(table, large(number), number)
        stream.extend(table)
    table.row_events.append([], PUBLISHED, 4)
    before = replayed(table)
    monkeypatch.setattr(buckets, "MOST_ROW_BYTES", 7 << 18)
    assert merge_events(table, views.time_now()) == 0
    assert len(table.row_events.load().files) == 2
    assert replayed(table) == before


def test_a_bucket_reads_its_own_row_groups_of_a_file_of_large_rows(tmp_path: Path) -> None:
    storage, layout = Storage(str(tmp_path)), replace(HOT_LAYOUT, row_group_bytes=1 << 18)
    rows = without_empty(sort([pa.Table.from_batches([batch(large(1, 64))])]))
    file = write_file(storage, rows, ALL, rows["token"], layout=layout)
    with open_changes(storage, file.path) as opened:
        assert {opened.metadata.row_group(n).num_rows for n in range(opened.num_row_groups)} == {3, 1}
        groups = [groups_between(opened, *token_range(bucket, 4)) for bucket in range(4)]
    assert sum(map(len, groups)) <= opened.num_row_groups + 3
