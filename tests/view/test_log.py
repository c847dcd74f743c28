"""The log and the folder of a continuously refreshed view stay small."""

import time
import timeit
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyroaring
import pytest
from deltalake import DeltaTable

from tests.support.examples import is_long_run
from tests.support.made import add, new_table, settings_at, write
from tests.support.view_readers import by_query
from writetime.delta import commits
from writetime.delta.buckets import ALL
from writetime.delta.deletion_vectors import write_vectors
from writetime.delta.parquet import write_file
from writetime.delta.storage import Storage
from writetime.delta.table_changes import TableChange
from writetime.lake import packing, state, view_retention
from writetime.lake.packing import FAN
from writetime.view import refreshing
from writetime.view.refreshing import refresh

pytestmark = pytest.mark.long

# A short run trims four times as often: a quarter of the commits, and of what may be left, does as well.
_PART = 1 if is_long_run() else 4
_COUNT = 300 // _PART
# A day, at one commit per second.
_COMMITS, _COMMITS_LONG = 300, 86_400
# What an hour stands for: some commits are made within it.
_HOURS = 0.1 / 3600


@pytest.fixture(autouse=True)
def short_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (refreshing, view_retention):
        monkeypatch.setattr(module, "STREAM_HOURS", _HOURS)


def test_a_view_that_is_refreshed_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refreshing, "TRIM_EVERY", refreshing.TRIM_EVERY // _PART)
    settings, table = settings_at(tmp_path), new_table(tmp_path)
    for number in range(1, _COUNT + 1):
        add(table, [write(number % 50, 1, number, v=str(number))], number)
        assert refresh(settings, table).written == 1
        if number % FAN == 0:
            # As landing and publishing do.
            packing.pack_batches(table, table.changes.load())
            state.fold(table)
            state.compact(table)
    assert table.view.load().rows == 50
    assert len(table.view.load().files) < 40
    assert_small(Path(table.view.storage.address), _COUNT, _PART)
    assert by_query(table.view.storage.address).num_rows == 50


@pytest.mark.parametrize(
    "minutes",
    [3, pytest.param(16, marks=pytest.mark.long_only("20 is more than a quarter of an hour, too")), 20],
)
def test_a_view_that_is_refreshed_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: int) -> None:
    """All that it removes is deleted, once, an hour and a quarter later, or at the next refresh."""
    now, deleted, delete = time.time(), Counter[str](), view_retention.delete_files
    monkeypatch.setattr(view_retention, "time", SimpleNamespace(time=lambda: now))
    monkeypatch.setattr(commits, "millis", lambda _: int(now * 1000))
    for module in (refreshing, view_retention):
        monkeypatch.setattr(module, "STREAM_HOURS", 1)

    def count(storage: Storage, paths: set[str]) -> list[str]:
        assert all(now - unused[path] >= 3600 for path in paths)
        deleted.update(paths)
        return delete(storage, paths)

    monkeypatch.setattr(view_retention, "delete_files", count)
    settings, table = settings_at(tmp_path), new_table(tmp_path)
    folder = Path(table.view.storage.address)
    unused: dict[str, float] = {}
    # The first are deleted after an hour and a quarter.
    for number in range(1, max(600 // minutes // _PART, 30)):
        now += minutes * 60
        add(table, [write(number % 5, 1, number, v=str(number))], number)
        refresh(settings, table)
        live = table.view.load().files
        used = {each.path for each in live} | {each.vector.path for each in live if each.vector}
        files = {str(path.relative_to(folder)) for path in folder.rglob("*.parquet")}
        files |= {path.name for path in folder.glob("*.bin")}
        left = {path for path in files - used if not path.startswith("_delta_log")}
        unused = {path: unused.get(path, now) for path in left}
        ages = [(now - at) / 60 for at in unused.values()]
        assert max(ages, default=0) <= 60 + max(15, minutes)
    assert len(deleted) > 10
    assert set(deleted.values()) == {1}


def test_a_file_that_cannot_be_deleted_does_not_hold_the_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The others are deleted, and it is tried again a quarter of an hour later."""
    settings, table = settings_at(tmp_path), new_table(tmp_path)
    folder = Path(table.view.storage.address)

    def refreshed(number: int) -> set[str]:
        add(table, [write(1, 1, number, v=str(number))], number)
        assert refresh(settings, table).written == 1
        return {str(path.relative_to(folder)) for path in folder.rglob("*.parquet") if "_delta_log" not in path.parts}

    refreshed(1)
    refreshed(2)
    left = refreshed(3)
    monkeypatch.setattr(refreshing, "TRIM_EVERY", 1)
    blocked = next(iter(left - table.view.load().by_path.keys()))
    (folder / blocked).unlink()
    (folder / blocked).mkdir()
    time.sleep(_HOURS * 3600)
    left = refreshed(4)
    assert len(left) == 3
    assert blocked in left
    assert "what its view has replaced cannot be deleted" in caplog.text
    caplog.clear()
    refreshed(5)
    assert not caplog.text
    refreshing.TRIMS_AT.clear()
    refreshed(6)
    assert "what its view has replaced cannot be deleted" in caplog.text


def test_a_day_of_commits(tmp_path: Path, is_long: bool) -> None:
    """Each replaces a file and marks a row of another one, as a refresh does, and every 64th trims."""
    table = new_table(tmp_path)
    storage, view = table.view.storage, table.view
    rows = pa.table({"id": range(100)})
    large = write_file(storage, rows, ALL, None)
    view.commit(view.load(), TableChange(add=[large], vectors=True))
    count, trimmed = _COMMITS_LONG if is_long else _COMMITS, 0
    for number in range(1, count + 1):
        before = view.load()
        marked = before.by_path[large.path]
        small = [file for file in before.files if file is not marked]
        vectors = write_vectors(storage, {large.path: pyroaring.BitMap([number % 100])})
        change = TableChange(small, [write_file(storage, rows.slice(0, 1), ALL, None)], [(marked, vectors[large.path])])
        view.commit(before, change, {"view/sequence": number})
        if number % 64 == 0:
            trimmed = view_retention.trim_view(table, trimmed)
            table.view.trim_log(table.view.load().version, _HOURS, _HOURS)
    assert len(view.load().files) == 2
    assert_small(Path(storage.address), count)


def assert_small(folder: Path, commits: int, part: int = 1) -> None:
    log = [path.name for path in (folder / "_delta_log").iterdir()]
    assert any("checkpoint" in name for name in log)
    assert len(log) < 250 // part
    assert sum(1 for path in folder.rglob("*") if path.is_file() and "_delta_log" not in path.parts) < 400 // part
    seconds = min(timeit.repeat(lambda: DeltaTable(str(folder)), number=1, repeat=5))
    print(f"{commits} commits: {len(log)} files in the log, opened in {seconds * 1000:.0f} ms")
    assert DeltaTable(str(folder)).version() >= commits
