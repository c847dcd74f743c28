"""Large rows are written by bucket even if they are few, as a task and an Arrow array have a limited size."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.clocks import set_clock
from tests.support.event_replay import replayed
from tests.support.lake_answers import unordered, view_rows
from tests.support.made import add, add_large, new_table, settings_at, write
from tests.support.view_readers import by_query
from tests.support.written import SCHEMA, Write
from writetime.delta import buckets
from writetime.delta.buckets import ALL, buckets_of
from writetime.files.cache import Cache
from writetime.files.decoded import Decoded
from writetime.lake import packing, state, views
from writetime.lake.views import time_now
from writetime.row_events import changed_rows, stream
from writetime.view import packing as view_packing
from writetime.view.refreshing import refresh

pytestmark = pytest.mark.slow


def test_each_step_takes_few_large_rows_by_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "MOST_ROW_BYTES", 1 << 20)
    table = new_table(tmp_path)
    add(table, [write(n, 1, 0, v="small") for n in range(99)], 0)
    state.fold(table)
    stream.extend(table)
    assert {file.bucket for file in table.state.load().files} == {ALL}
    for number in range(1, 9):
        add_large(table, number)
    assert {file.bucket for file in table.changes.load().files} == {ALL}
    stream.extend(table)
    assert state.fold(table) == 8
    assert {file.bucket for file in table.state.load().files} == {ALL, 0, 1, 2, 3}
    assert {file.bucket for file in table.row_events.load().files} == {0, 1, 2, 3}
    assert replayed(table) == view_rows(views.virtual(table))


def test_large_rows_are_packed_by_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "MOST_ROW_BYTES", 4 << 20)
    monkeypatch.setattr(packing, "SORTED_AT_ONCE", 10 << 20)
    table = new_table(tmp_path)
    for number in range(1, 17):
        add_large(table, number)
    before = view_rows(views.virtual(table))
    assert packing.pack_batches(table, table.changes.load()) == 16
    files = table.changes.load().files
    assert {file.bucket for file in files} == {0, 1, 2, 3}
    assert max(file.size for file in files) < 4 << 20
    assert packing.pack_batches(table, table.changes.load()) == 0
    assert view_rows(views.virtual(table)) == before


def test_packing_holds_only_one_portion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many files are small in Parquet, as where a program packs again after a long time."""
    limit = 2 << 20
    monkeypatch.setattr(packing, "SORTED_AT_ONCE", limit)
    held: list[int] = []
    read_files = packing.read_files

    def noted(*given: Any) -> list[pa.Table]:
        tables = read_files(*given)
        held.append(sum(table.nbytes for table in tables))
        return tables

    monkeypatch.setattr(packing, "read_files", noted)
    table = new_table(tmp_path)
    for number in range(40):
        add(table, [write(10 * number + n, 1, number, v="x" * (12 << 10)) for n in range(8)], number)
    assert max(file.size for file in table.changes.load().files) < 1 << 16
    before = view_rows(views.virtual(table))
    assert packing.pack_batches(table, table.changes.load()) == 40
    assert max(held) <= limit
    assert len(held) == len(table.changes.load().files) < 4
    assert view_rows(views.virtual(table)) == before


def test_a_level_of_large_rows_is_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "MOST_ROW_BYTES", 1 << 20)
    table = new_table(tmp_path)
    for number in range(1, 5):
        add_large(table, number)
        state.fold(table)
    before = view_rows(views.virtual(table))
    assert {file.bucket for file in table.state.load().files} == {ALL}
    assert state.compact(table) == 1
    assert {file.bucket for file in table.state.load().files} == {0, 1, 2, 3}
    assert view_rows(views.virtual(table)) == before


def test_a_view_of_large_rows_is_packed_by_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "MOST_ROW_BYTES", 1 << 20)
    for module in (packing, view_packing):
        monkeypatch.setattr(module, "SORTED_AT_ONCE", view_packing.FAN << 20)
    settings, table = settings_at(tmp_path), new_table(tmp_path)
    for number in range(1, 10):
        add_large(table, number)
        refresh(settings, table)
    files = table.view.load().files
    assert {file.bucket for file in files} == {0, 1, 2, 3}
    assert max(file.size for file in files) < 2 << 20
    names = [column.label for column in table.schema().columns]
    assert unordered([by_query(table.view.storage.address).select(names)]) == unordered(views.virtual(table))


@pytest.mark.parametrize("kind", ["row", "static", "partition", "expiry"])
def test_few_changes_of_much_data_are_taken_by_parts(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their size does not show this: small changes of large rows, or of partitions with many rows."""
    most = 256 << 10
    monkeypatch.setattr(buckets, "MOST_ROW_BYTES", most)
    settings, table = settings_at(tmp_path), new_table(tmp_path, SCHEMA)
    expires = time_now() // 1_000_000 + 3600 if kind == "expiry" else None
    rows = [Write("insert", 1, i, n, 0, 0, expires).change for i in range(40) for n in range(12)]
    for row in rows:
        row["v"]["value"] = "x" * 1000
    add(table, rows, 1, SCHEMA)
    stream.extend(table)
    refresh(settings, table)
    held: list[int] = []
    row_events = changed_rows.row_events

    def noted(before: Any, *given: Any) -> pa.Table:
        held.append(before.values.nbytes)
        return row_events(before, *given)

    monkeypatch.setattr(changed_rows, "row_events", noted)
    if kind == "expiry":
        set_clock(monkeypatch, 7200)
    else:
        changes = [Write(kind, 2, i, n, 0, 0, None).change for i in range(40) for n in range(12)]
        add(table, changes if kind == "row" else changes[::12], 2, SCHEMA)
        assert {file.bucket for file in table.changes.load().files} >= {ALL}
    assert stream.extend(table) == 480
    assert refresh(settings, table).marked == 480
    assert max(held) <= most < sum(held) / 2
    assert replayed(table) == view_rows(views.virtual(table))
    names = [column.label for column in table.schema().columns]
    assert unordered([by_query(table.view.storage.address).select(names)]) == unordered(views.virtual(table))


def test_each_part_searches_its_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the cost grows with the square of the number of buckets."""
    settings, table = settings_at(tmp_path), new_table(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(buckets, "FEW_ROWS", 0)
        add(table, [write(n, 1, 1, v="a") for n in range(99)], 1)
        state.fold(table)
        refresh(settings, table)
    add(table, [write(n, 1, 2, v="b") for n in range(99)], 2)
    monkeypatch.setattr(changed_rows.ChangedRows, "_count_parts", lambda *_: 2)
    searched: list[tuple[int, set[int]]] = []
    files: list[int] = []
    read = Cache.read

    def reading(cache: Cache, storage: Any, file: Any, read_from: Any) -> Any:
        files.append(file.bucket)
        return read(cache, storage, file, read_from)

    monkeypatch.setattr(Cache, "read", reading)
    for name in ("rows", "numbers"):
        search = getattr(Decoded, name)

        def noted(decoded: Decoded, places: Any, search: Any = search) -> Any:
            searched.append((files[-1], set(buckets_of(pa.array(places.tokens), 4).tolist())))
            return search(decoded, places)

        monkeypatch.setattr(Decoded, name, noted)
    assert refresh(settings, table).marked == 99
    # A file of the state and one of the view.
    assert sorted(bucket for bucket, _ in searched) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert all(asked == {bucket // 2 * 2, bucket // 2 * 2 + 1} for bucket, asked in searched)
