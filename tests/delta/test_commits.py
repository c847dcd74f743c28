"""Each batch counts once, even if it is retried, killed or run twice at the same time."""

import itertools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake import Schema as DeltaSchema
from deltalake.transaction import AddAction

from tests.support.lake_answers import view_rows
from tests.support.made import SCHEMA, add, batch, new_table, rewrite, settings_at, write
from writetime.delta import buckets, commits
from writetime.delta.bucketed_table import BucketedTable, Conflict
from writetime.delta.parquet import PARTITION, SORTED_BY, write_file
from writetime.delta.storage import Storage
from writetime.delta.table_changes import TableChange
from writetime.delta.versions import DataFile
from writetime.lake import retention, state, views
from writetime.lake.changes import ChangeWriter
from writetime.lake.state import FAN, levels_to_fold
from writetime.lake.table import LakeTable
from writetime.row_events import stream
from writetime.view.refreshing import refresh

pytestmark = pytest.mark.slow


def values(table: LakeTable) -> list[tuple[int, int, str]]:
    """The rows of the virtual view."""
    return sorted((row["id"], row["n"], row["v"]) for row in view_rows(views.virtual(table)))


def test_files_are_sorted_and_of_one_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "FEW_ROWS", 0)
    table = new_table(tmp_path)
    rows = [write(id_, n, 5, v="x") for n, id_ in itertools.product(range(3, 0, -1), range(50))]
    files = ChangeWriter.of(table, SCHEMA).write([batch(rows[:70]), batch(rows[70:]), batch([])])
    assert [f.bucket for f in files] == [0, 1, 2, 3]
    assert sum(f.rows for f in files) == len(rows)
    for file in files:
        path = f"{table.changes.storage.address}/{file.path}"
        found = pq.ParquetFile(path).read()
        keys = list(zip(*(found[name].to_pylist() for name in SORTED_BY), strict=True))
        assert keys == sorted(keys)
        assert (keys[0][0], keys[-1][0]) == (file.first_token, file.last_token)
        statistics = pq.read_metadata(path).row_group(0).column(found.column_names.index("token")).statistics
        assert (statistics.min, statistics.max) == (file.first_token, file.last_token)
    # With little memory there are more files, and the same rows.
    small = ChangeWriter(table.changes.storage, SCHEMA, 4, buffer_bytes=2000)
    again = small.write(batch(rows[i : i + 10]) for i in range(0, len(rows), 10))
    assert len(again) > 4
    assert sum(f.rows for f in again) == len(rows)


def test_a_batch_counts_once(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    assert add(table, [write(1, 1, 5, v="a")], 1)
    assert not add(table, [write(1, 1, 5, v="a")], 1)
    assert add(table, [write(2, 1, 5, v="b")], 2)
    assert not add(table, [write(3, 1, 5, v="late")], 1)
    assert len(table.changes.load().files) == 2
    assert values(table) == [(1, 1, "a"), (2, 1, "b")]
    assert state.fold(table) == 2
    assert state.fold(table) == 0
    assert values(table) == [(1, 1, "a"), (2, 1, "b")]


def test_one_of_many_at_once(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda i: add(deepcopy(table), [write(i % 4, 1, 5, v="a")], i // 4), range(16)))
    # Of the four that send one number, one wins at most; a number that comes after a higher one is old.
    assert 1 <= sum(done) <= 4
    assert len(table.changes.load().files) == sum(done)
    with ThreadPoolExecutor(4) as pool:
        folded = list(pool.map(lambda _: state.fold(deepcopy(table)), range(4)))
    assert sum(folded) == sum(done)
    assert len(table.state.load().files) == 1


def test_a_commit_whose_request_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client of a store repeats it if the answer is lost, and finds that the file is there."""
    table, put_new = new_table(tmp_path), commits.put_new

    def repeated(storage: Storage, path: str, data: bytes) -> bool:
        put_new(storage, path, data)
        return put_new(storage, path, data)

    monkeypatch.setattr(commits, "put_new", repeated)
    for number in (1, 2):
        assert add(table, [write(number, 1, 5, v="a")], number)
        assert state.fold(table) == 1
        assert stream.extend(table) == 1
        assert refresh(settings_at(tmp_path), table).written == 1
    assert values(table) == [(1, 1, "a"), (2, 1, "a")]


def test_files_without_a_commit_are_deleted(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    add(table, [write(1, 1, 5, v="a")], 1)
    lost = ChangeWriter.of(table, SCHEMA).write([batch([write(2, 1, 5, v="lost")])])
    assert values(table) == [(1, 1, "a")]
    gone = retention.vacuum(table, 0)
    assert gone == [f"{table.changes.storage.address}/{file.path}" for file in lost]
    assert values(table) == [(1, 1, "a")]


def test_rewrites_exclude_each_other(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    add(table, [write(i, 1, 5, v="a") for i in range(20)], 1)
    state.fold(table)
    before = table.view.load()
    rewrite(table)
    with pytest.raises(Conflict, match="run this again"):
        table.view.commit(before, TableChange(), {"view/sequence": 1})
    assert table.view.read([PARTITION]).num_rows == 20
    rewrite(table)
    assert table.view.read([PARTITION]).num_rows == 20


@pytest.mark.parametrize("is_followed", [False, True])
def test_files_of_another_program_with_escaped_names_are_removed(tmp_path: Path, *, is_followed: bool) -> None:
    """The log has the name as that program wrote it. Oracle: delta-rs, by the files that it lists afterwards."""
    storage = Storage(str(tmp_path))
    table, schema = BucketedTable(storage), pa.schema([("n", pa.int64())])
    table.create(schema, 1, {})
    written = write_file(storage, pa.table({"n": [1, 2]}), 0, None)
    spaced = tmp_path / "token_bucket=0" / "a file.parquet"
    (tmp_path / written.path).rename(spaced)
    if is_followed:
        table.load()
    add = AddAction("token_bucket=0/a file.parquet", written.size, {PARTITION: "0"}, 0, True, '{"numRecords": 2}')
    fields = DeltaSchema.from_arrow(pa.schema([(PARTITION, pa.int32()), *schema]))
    DeltaTable(storage.address).create_write_transaction([add], "append", fields, [PARTITION])
    now = table.load()
    assert [storage.filesystem().get_file_info(file.path).is_file for file in now.files] == [True]
    table.commit(now, TableChange(now.files))
    assert DeltaTable(storage.address).file_uris() == []
    assert BucketedTable(storage).load().files == table.load().files == []


def test_programs_that_have_read_end_well(tmp_path: Path, is_long: bool) -> None:
    count = 8 if is_long else 2
    table = new_table(tmp_path)
    add(table, [write(i, 1, 5, v="a") for i in range(20)], 1)
    state.fold(table)
    rewrite(table)
    reads = (
        "import sys; from writetime.delta.bucketed_table import BucketedTable; "
        "from writetime.delta.storage import Storage; "
        "assert BucketedTable(Storage(sys.argv[1])).read(['v']).num_rows == 20"
    )
    # Of those that aborted at their end, one in four did so on a busy machine.
    started = [subprocess.Popen([sys.executable, "-c", reads, table.view.storage.address]) for _ in range(count)]
    assert [program.wait() for program in started] == [0] * count


def test_levels_stay_few(tmp_path: Path) -> None:
    table = new_table(tmp_path, buckets=1)
    for number in range(30):
        add(table, [write(number % 7, number % 3, number, v=str(number))], number)
        state.fold(table)
        before = values(table)
        state.compact(table)
        assert values(table) == before
        assert len(table.state.load().files) < FAN
    latest = {(number % 7, number % 3): str(number) for number in range(30)}
    assert values(table) == sorted((*key, value) for key, value in latest.items())


def test_which_levels_are_folded() -> None:
    def folded(*sizes: int) -> list[int]:
        return [f.size for f in levels_to_fold([DataFile(str(i), 0, 1, size, 0) for i, size in enumerate(sizes)])]

    small, middle, large = 1 << 10, 200 << 10, 1 << 30
    assert folded() == folded(large) == folded(small, small, small, middle, large) == []
    assert folded(small, large, small, small, small) == [small] * 4
    assert folded(large, middle, small, middle, middle, middle) == [small, *[middle] * 4]
    # The file merged from the four small ones is the fourth of the next size.
    assert folded(60 << 10, 60 << 10, 60 << 10, 60 << 10, *[middle] * 3) == [60 << 10] * 4 + [middle] * 3
