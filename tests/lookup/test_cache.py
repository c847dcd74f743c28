"""The cache changes no result, even if it is deleted, full, damaged, or shared.

Oracle: our own second path: the same look-up without the cache.
"""

import multiprocessing
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tests.lookup.conftest import PARTITIONS
from tests.support.disks import largest_file
from tests.support.examples import rounds
from tests.support.look_ups import partitions_of
from writetime.delta.storage import Storage
from writetime.files.cache import Cache, OpenFiles, open_files
from writetime.files.decoded import in_memory
from writetime.files.key_ranges import KeyRanges, joined
from writetime.lake import state, views
from writetime.lake.table import LakeTable
from writetime.lookup.reading import RowReader

pytestmark = pytest.mark.slow


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", 1 << 30, smallest=0)


def expected(table: LakeTable) -> pa.Table:
    rows = pa.concat_tables(views.virtual(table))
    assert rows.num_rows == 3 * PARTITIONS - 3
    return rows


def every(table: LakeTable) -> KeyRanges:
    return joined(partitions_of(table))


def assert_right(table: LakeTable, cache: Cache) -> None:
    """Look all rows up."""
    assert opened(table, cache).at(every(table)).values.equals(expected(table))


def opened(table: LakeTable, cache: Cache) -> RowReader:
    """A reader of a process that has opened nothing yet."""
    open_files.close_all()
    table.cache = cache
    return RowReader(table)


def files_of(cache: Cache) -> list[Path]:
    return sorted(cache.folder.iterdir())


def test_files_are_decoded_once(table: LakeTable, cache: Cache) -> None:
    assert_right(table, cache)
    before = [(path, path.stat().st_ino) for path in files_of(cache)]
    now = table.state.load()
    waiting = state.unfolded(table, table.changes.load(), now)
    assert len(before) == len(now.files) + len(waiting)
    assert_right(table, cache)
    assert [(path, path.stat().st_ino) for path in files_of(cache)] == before


def test_the_size_of_the_cache_is_that_of_its_files(table: LakeTable, cache: Cache) -> None:
    assert cache.size() == 0
    assert_right(table, cache)
    assert cache.size() == sum(path.stat().st_size for path in files_of(cache)) > 0


def test_a_look_up_decodes_files_of_its_bucket_only(table: LakeTable, cache: Cache) -> None:
    opened(table, cache).at(partitions_of(table)[0])
    first = [len(files) for bucket, files in table.state.load().by_bucket.items() if bucket == 0]
    assert 0 < len(files_of(cache)) <= first[0] + 1


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "folder", "unreadable"])
def test_damaged_files_are_made_again(table: LakeTable, cache: Cache, damage: str) -> None:
    assert_right(table, cache)
    for path in files_of(cache):
        data = path.read_bytes()
        if damage == "cut":
            path.write_bytes(data[: len(data) // 2])
        elif damage == "changed":
            path.write_bytes(data[: len(data) // 3] + b"\xff" * 64 + data[len(data) // 3 + 64 :])
        elif damage == "empty":
            path.write_bytes(b"")
        elif damage == "folder":
            path.unlink()
            path.mkdir()
        else:
            path.chmod(0)
    assert_right(table, cache)
    assert_right(table, cache)


def test_a_cache_that_is_deleted_while_in_use(table: LakeTable, cache: Cache) -> None:
    reader = opened(table, cache)
    wanted = expected(table)
    for part in partitions_of(table)[::4]:
        reader.at(part)
        # No file is new where all are mapped.
        shutil.rmtree(cache.folder, ignore_errors=True)
    assert reader.at(every(table)).values.equals(wanted)


def test_the_cache_keeps_to_its_limit(table: LakeTable, cache: Cache) -> None:
    assert_right(table, cache)
    sizes = [path.stat().st_size for path in files_of(cache)]
    small = replace(cache, limit=sum(sizes) // 2)
    shutil.rmtree(cache.folder)
    for _ in range(2):
        assert_right(table, small)
        assert 0 < sum(path.stat().st_size for path in files_of(cache)) <= small.limit


def test_the_longest_unused_file_is_deleted(table: LakeTable, cache: Cache) -> None:
    assert_right(table, cache)
    first, *files, last = files_of(cache)
    for age, path in enumerate([last, first, *files]):
        os.utime(path, (1_000_000 + age, 1_000_000 + age))
    file = table.state.load().files[0]
    total = sum(path.stat().st_size for path in files_of(cache))
    elsewhere = Storage(table.state.storage.address + "/../state")
    replace(cache, limit=total + 3 * file.size - 1).read(elsewhere, file, lambda decoded: decoded.between(0, 0))
    assert not last.exists()
    assert {first, *files} < set(files_of(cache))


def test_without_room_nothing_is_kept(table: LakeTable, cache: Cache) -> None:
    assert_right(table, replace(cache, limit=0))
    assert not cache.folder.exists()


def test_a_folder_that_cannot_be_one(table: LakeTable, cache: Cache) -> None:
    cache.folder.write_text("not a folder")
    assert_right(table, cache)


@pytest.mark.parametrize("size", [0, 100, 2000])
def test_a_full_disk(table: LakeTable, cache: Cache, size: int) -> None:
    wanted = expected(table)
    found = opened(table, cache)
    all_places = every(table)
    with largest_file(size):
        assert found.at(all_places).values.equals(wanted)
    assert files_of(cache) == []
    assert_right(table, cache)


# A process that has done the imports, which take a second, forks the readers.
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload([__name__])


def _read_often(table: LakeTable, cache: Cache, times: int) -> None:
    for _ in range(times):
        assert_right(table, cache)


def test_files_stay_open(table: LakeTable, cache: Cache) -> None:
    reader = opened(table, cache)
    wanted = reader.at(every(table)).values
    for path in files_of(cache):
        path.unlink()
    assert RowReader(table).at(every(table)).values.equals(wanted)
    assert files_of(cache) == []


def test_few_files_stay_open() -> None:
    rows = in_memory([pa.record_batch({"token": [1, 2]})])
    files = OpenFiles(most_files=2, most_bytes=10 * rows.memory)
    names = ["a", "b", "c"]
    for name in names:
        files.keep(name, rows)
        assert files.find(names[0])
    assert [name for name in names if files.find(name)] == [names[0], names[2]]
    small = OpenFiles(most_files=10, most_bytes=2 * rows.memory)
    for name in [*names, *names]:
        small.keep(name, rows)
    assert [name for name in names if small.find(name)] == names[1:]
    small.close(names[1])
    small.keep(names[0], rows)
    assert [name for name in names if small.find(name)] == [names[0], names[2]]


def test_two_processes_at_once(table: LakeTable, cache: Cache) -> None:
    readers = [FORKED.Process(target=_read_often, args=(table, cache, rounds(20))) for _ in range(2)]
    for reader in readers:
        reader.start()
    while any(reader.is_alive() for reader in readers):
        for path in [*cache.folder.glob("*.decoded")][:2]:
            path.unlink(missing_ok=True)
        readers[0].join(0.01)
    assert [reader.exitcode for reader in readers] == [0, 0]


def test_a_process_that_is_killed_leaves_nothing_that_counts(table: LakeTable, cache: Cache) -> None:
    for _ in range(3):
        reader = FORKED.Process(target=_read_often, args=(table, cache, 1000))
        reader.start()
        while not any(cache.folder.glob("*")):
            reader.join(0.01)
            assert reader.is_alive()
        reader.kill()
        reader.join()
        assert_right(table, cache)
        shutil.rmtree(cache.folder)
