"""Small files of a stream are packed while the stream continues: no row is lost, and none counts twice.

Oracle: the values that the test wrote, and for events our own second path: `replayed(table) == view_rows(...)`.
"""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs

from tests.support.event_replay import replayed
from tests.support.examples import is_long_run
from tests.support.lake_answers import view_rows
from tests.support.made import SCHEMA, add, new_table, settings_at, write
from writetime.delta import buckets
from writetime.delta.bucketed_table import BucketedTable, Conflict
from writetime.delta.storage import Storage
from writetime.lake import packing, retention, state, views
from writetime.lake.projection import ROW_EVENTS
from writetime.lake.table import LakeTable, open_table
from writetime.row_events import stream
from writetime.schema.cql import parse_table
from writetime.view.refreshing import refresh

pytestmark = pytest.mark.long


def kept_rows(table: LakeTable) -> list[tuple[Any, ...]]:
    """The changes that the files hold, sorted."""
    files = [f"{table.changes.storage.address}/{file.path}" for file in table.changes.load().files]
    found = [row for path in files for row in pq.ParquetFile(path).read().to_pylist()]
    return sorted((row["id"], row["n"], row["marker"]["write_time"], row["v"]["value"]) for row in found)


def rows_of(number: int, count: int = 4) -> list[dict[str, Any]]:
    """Rows of a batch, which update those of earlier ones."""
    return [write(i, number % 3, number, v=f"{number}") for i in range(count)]


def pack(table: LakeTable, **limit: int) -> int:
    """Pack as landing does."""
    return packing.pack_batches(table, table.changes.load(), **limit)


def test_packed_changes_are_not_new(tmp_path: Path, is_long: bool) -> None:
    """Each batch reads its own rows, though files are packed between batch and fold, as landing does."""
    packs = 4 if is_long else 2
    count = 16 * packs + 6
    table, settings = new_table(tmp_path), settings_at(tmp_path)
    for number in range(count):
        add(table, rows_of(number), number)
        packed = number % 16 == 15 and pack(table)
        rows, changes = table.row_events.find(), table.changes.load()
        last = ROW_EVENTS.position(rows)
        for used in [last.changes.version, state.folded_version(table.state.load())] if last else []:
            assert sum(file.rows for file in state.files_since(table, changes, used)) == 4, packed
        state.fold(table)
        stream.extend(table, number)
        refresh(settings, table)
    packing.pack_folded(table)
    assert len(table.changes.load().files) < count - packs // 2 * 16
    assert replayed(table) == view_rows(views.virtual(table))


def test_many_new_files_are_packed_nevertheless(tmp_path: Path) -> None:
    """As where row events are no longer wanted."""
    table = new_table(tmp_path)
    for number in range(80):
        add(table, rows_of(number), number)
        if number == 0:
            state.fold(table)
            stream.extend(table, number)
        if number % 16 == 15:
            pack(table, most_new=packing.FAN)
    assert len(table.changes.load().files) < 3 * packing.FAN
    state.fold(table)
    stream.extend(table)
    assert replayed(table) == view_rows(views.virtual(table))


def test_files_of_buckets_are_packed_while_a_view_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "FEW_ROWS", 0)
    table = new_table(tmp_path, buckets=2)
    for number in range(60):
        add(table, rows_of(number), number)
        state.fold(table)
        if number == 0:
            refresh(settings_at(tmp_path), table)
        if number % 20 == 19:
            packing.pack_folded(table, most_new=packing.FAN)
    assert len(table.changes.load().files) < 2 * (packing.FAN + 16)
    assert len(view_rows(views.virtual(table))) == len({row[:2] for row in kept_rows(table)})


@pytest.mark.parametrize("few", [4096, 20])
def test_packed_files_hold_the_same_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr(buckets, "FEW_ROWS", few)
    table = new_table(tmp_path)
    stream.extend(table, 1)
    for number in range(70):
        add(table, rows_of(number), number)
        if number % 16 == 15:
            state.fold(table)
            stream.extend(table, number)
            before = kept_rows(table)
            assert pack(table) >= 16
            assert kept_rows(table) == before
    assert len(kept_rows(table)) == 280
    assert len(table.changes.load().files) < 70 - 2 * 16
    rows = view_rows(views.virtual(table))
    assert rows == view_rows(views.virtual(table, views.time_now()))
    assert state.fold(table) > 0
    assert view_rows(views.virtual(table)) == rows
    stream.extend(table)
    assert replayed(table) == rows
    # Files that the state has folded in when they are packed are not folded again.
    while pack(table) or packing.pack_folded(table):
        pass
    assert state.fold(table) == 0
    assert stream.extend(table) == 0


def test_packing_a_wide_table_reads_only_what_its_files_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the nulls of the other columns would take most of the memory."""
    names = [f"c{i}" for i in range(30)]
    columns = ", ".join(f"{name} int" for name in names)
    schema = parse_table(f"CREATE TABLE shop.wide (id int, n int, {columns}, PRIMARY KEY (id, n))")
    table = new_table(tmp_path, schema)
    for number in range(16):
        add(table, [write(i, 1, number, **{names[number % 2]: number}) for i in range(4)], number, schema)
    rows = view_rows(views.virtual(table))
    seen: list[str] = []
    packed = packing.without_empty

    def noted(rows: pa.Table) -> pa.Table:
        seen.extend(rows.column_names)
        return packed(rows)

    monkeypatch.setattr(packing, "without_empty", noted)
    assert pack(table) == 16
    assert [name for name in seen if name in names] == ["c0", "c1"]
    assert view_rows(views.virtual(table)) == rows


@given(st.lists(st.sampled_from(["add", "fold", "pack", "packed", "compact", "trim", "extend"]), max_size=40))
@settings(max_examples=8 if is_long_run() else 4)
def test_any_order_of_steps(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    table = new_table(tmp_path_factory.mktemp("lake"), buckets=2)
    latest: dict[tuple[int, int], str] = {}
    for number, step in enumerate([*steps, "add", "fold", "extend"], 1):
        if step == "add":
            for more in range(9):
                # Each is a batch.
                at = number * 10 + more
                add(table, rows_of(at), at)
                latest |= {(i, at % 3): f"{at}" for i in range(4)}
        else:
            {
                "fold": lambda: state.fold(table),
                "pack": lambda: pack(table),
                "packed": lambda: packing.pack_folded(table),
                "compact": lambda: state.compact(table),
                "trim": lambda: retention.trim_history(table, views.time_now()),
                "extend": lambda: stream.extend(table),
            }[step]()
        assert {(r["id"], r["n"]): r["v"] for r in view_rows(views.virtual(table))} == latest
    assert replayed(table) == view_rows(views.virtual(table))


def test_two_pack_at_once(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    for number in range(16):
        add(table, rows_of(number), number)
    before = kept_rows(table)

    def attempt(_: int) -> int:
        try:
            return pack(open_table(settings_at(tmp_path), "shop.items"))
        except Conflict:
            return 0

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(attempt, range(4)))
    assert sorted(done) == [0, 0, 0, 16]
    assert kept_rows(table) == before


def test_others_rewrite_other_files_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "FEW_ROWS", 10)
    table = new_table(tmp_path)
    for number in range(4):
        add(table, rows_of(number, 50), number)
    state.fold(table)
    old = table.changes.load()
    assert len(old.by_folder) == 4
    for number in range(4, 20):
        add(table, rows_of(number), number)
    before = kept_rows(table)

    def packed_meanwhile(function: Any, tasks: Any) -> list[Any]:
        done = list(map(function, tasks))
        # Those that the state does not have are packed, too.
        assert pack(table, most_new=0) == 16
        return done

    # Retention merges old files while landing packs new ones.
    assert retention.trim_history(table, old.files[0].added_at + 10**9, packed_meanwhile) >= 16
    assert {row[:2] for row in kept_rows(table)} == {row[:2] for row in before}
    assert len(view_rows(views.virtual(table))) == len({row[:2] for row in before})
    # One that replaces the same files fails.
    for number in range(20, 36):
        add(table, rows_of(number), number)
    stale = table.changes.load()
    pack(table, most_new=0)
    with pytest.raises(Conflict):
        packing.pack_batches(table, stale, most_new=0)


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_the_commit(tmp_path: Path, *, after: bool) -> None:
    table = new_table(tmp_path)
    for number in range(16):
        add(table, rows_of(number), number)
    before = kept_rows(table)
    command = [sys.executable, "-m", "tests.lake.test_packing", str(tmp_path), "after" if after else "before"]
    assert subprocess.run(command, check=False, timeout=120).returncode == -signal.SIGKILL
    assert kept_rows(table) == before
    assert pack(table) == (0 if after else 16)
    assert kept_rows(table) == before
    assert len(table.changes.load().files) == 1
    # The files of the killed one, and those that were packed, go.
    assert len(retention.vacuum(table, 0)) == 16 + (not after)
    assert kept_rows(table) == before


def test_files_that_packing_replaced_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "STREAM_HOURS", 0)
    table = new_table(tmp_path)
    for number in range(80):
        add(table, rows_of(number), number)
        if number % 16 == 15:
            pack(table)
        if number == 70:
            state.fold(table)
            stream.extend(table)
    folder = Path(table.changes.storage.address)
    before = kept_rows(table)
    assert len(list(folder.glob("token_bucket=*/*"))) == 80 + 4
    # The row events continue from an earlier version, whose files and log stay.
    retention.trim_stream(table, 100)
    assert len(list(folder.glob("token_bucket=*/*"))) == 80 + 4
    needed = table.row_events.load().transaction("row_events/changes")
    assert needed is not None
    assert 0 < len(table.changes.load(needed).files) < 71
    assert len(list(folder.glob("_delta_log/*.json"))) < 40
    state.fold(table)
    stream.extend(table)
    assert replayed(table) == view_rows(views.virtual(table))
    retention.trim_stream(table, 100)
    left = [file.path for file in table.changes.load().files]
    assert sorted(str(path.relative_to(folder)) for path in folder.glob("token_bucket=*/*")) == sorted(left)
    assert len(left) < 25
    assert kept_rows(table) == before
    add(table, rows_of(100), 100)
    state.fold(table)
    stream.extend(table)
    retention.trim_logs(table, 100)
    assert replayed(table) == view_rows(views.virtual(table))
    assert all(len(list(Path(part.storage.address).glob("_delta_log/*.json"))) < 45 for part in table.parts)


def test_a_log_without_followers_is_trimmed(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    state.fold(table)
    for number in range(60):
        add(table, rows_of(number), number)
    log = Path(table.changes.storage.address, "_delta_log")
    retention.trim_stream(table, 100)
    assert len(list(log.glob("*.json"))) == 61
    for file in log.iterdir():
        os.utime(file, (1, 1))
    retention.trim_stream(table, 0)
    assert len(list(log.glob("*.json"))) < 25
    assert len(table.changes.load().files) == 60
    assert state.fold(table) == 60


class Trimmed(fs.SubTreeFileSystem):
    """A folder of which another process deletes each file at the same time."""

    def delete_file(self, path: str) -> None:
        super().delete_file(path)
        super().delete_file(path)


def test_two_processes_trim_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(tmp_path)
    for number in range(60):
        add(table, rows_of(number), number)
    log = Path(table.changes.storage.address, "_delta_log")
    for file in log.iterdir():
        os.utime(file, (1, 1))
    monkeypatch.setattr(Storage, "filesystem", lambda storage: Trimmed(storage.address, fs.LocalFileSystem()))
    assert table.changes.trim_log(table.changes.load().version, 0, 0) > 0
    assert len(list(log.glob("*.json"))) < 25


def main(folder: Path, when: str) -> None:
    """Pack, and be killed at the commit: right before it, when the file is there, or right after it."""
    commit = BucketedTable._commit

    def killed(self: BucketedTable, *arguments: Any) -> None:
        if when == "after":
            commit(self, *arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(BucketedTable, "_commit", killed)  # noqa: B010 (its arguments do not matter here)
    pack(open_table(settings_at(folder), SCHEMA.full_name))


if __name__ == "__main__":
    pa.set_cpu_count(1)
    main(Path(sys.argv[1]), sys.argv[2])
