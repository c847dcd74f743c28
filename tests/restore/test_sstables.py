"""A table of the lake, written as SSTables. Oracle: the lake's own state."""

import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import chdir
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.support.disks import fill, small_disk
from tests.support.made import SCHEMA, add, new_table, write
from writetime.bulk_load import sstables
from writetime.bulk_load.sstables import (
    MANIFEST,
    UNFINISHED,
    RestoreManifest,
    Target,
    TargetNode,
    read_manifest,
    write_sstables,
)
from writetime.core.errors import Transient, WritetimeError
from writetime.files.key_ranges import TokenRange
from writetime.files.merging import Runner
from writetime.lake.history import raise_history
from writetime.lake.table import LakeTable
from writetime.lake.views import bucket_views
from writetime.merge import merge
from writetime.restore.to_folder import restore
from writetime.storage.locations import find_sstables
from writetime.storage.sstable import SSTable

_REFUSED = r"another run has written into .*out since this one began"


def _filled(folder: Path) -> LakeTable:
    table = new_table(folder)
    add(table, [write(i, n, 10 * i + n, v=f"v{i}") for i in range(50) for n in range(2)], 0)
    return table


def test_the_lake_reads_the_same_state(tmp_path: Path) -> None:
    table, out = _filled(tmp_path / "lake"), tmp_path / "out"
    found = restore(table, str(out))
    assert read_manifest(str(out)) == found
    assert found.changes == sum(each.rows for each in found.sstables) == 100
    assert sorted(out.glob("*Data.db")) == sorted(out / each.file for each in found.sstables)
    for each in found.sstables:
        assert zlib.crc32((out / each.file).read_bytes()) == int(each.crc32)
    read = [batch for location in find_sstables(str(out)) for batch in SSTable(location, SCHEMA).scan()]
    assert merge(read, SCHEMA).equals(merge([view.state() for view in bucket_views(table)], SCHEMA))
    # The schema of the folder is read, too.
    assert SCHEMA.create_statement() in (out / "schema.cql").read_text()


def test_each_node_gets_the_tokens_of_its_ranges(tmp_path: Path) -> None:
    table, out = _filled(tmp_path / "lake"), tmp_path / "out"
    whole = merge([view.state() for view in bucket_views(table)], SCHEMA)
    cuts = [-(1 << 63), -(1 << 62) - 7, whole["token"][30].as_py(), 1 << 61, 1 << 63]
    ranges = [TokenRange(first, end - 1) for first, end in pairwise(cuts)]
    nodes = {"a": TargetNode("10.0.0.1", tuple(ranges[::2])), "b": TargetNode("10.0.0.2", tuple(ranges[1:]))}
    target = Target("shop.other", "id", False, nodes)
    found = write_sstables(
        bucket_views(table), SCHEMA, str(out), RestoreManifest(table.name, None, 0, "nb", "", target)
    )
    for host, node in nodes.items():
        read = [batch for location in find_sstables(str(out / host)) for batch in SSTable(location, SCHEMA).scan()]
        tokens = np.asarray(whole["token"])
        wanted = np.logical_or.reduce([(tokens >= each.first) & (tokens <= each.last) for each in node.ranges])
        assert 0 < wanted.sum() < len(whole)
        assert merge(read, SCHEMA).equals(whole.filter(pa.array(wanted)))
        assert sum(each.changes for each in found.sstables if each.node == host) == wanted.sum()


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    table, out = _filled(tmp_path / "lake"), tmp_path / "out"
    out.mkdir()
    (out / "nb-1-big-Data.db").write_bytes(b"of somebody")
    with pytest.raises(WritetimeError, match="out has files already: name a folder that is new or empty"):
        restore(table, str(out))
    assert (out / "nb-1-big-Data.db").read_bytes() == b"of somebody"
    restore(table, str(tmp_path / "other"))
    with pytest.raises(WritetimeError, match="other has files already"):
        restore(table, str(tmp_path / "other"))


def _killed_after(count: int) -> Runner:
    def run(function: Callable[[Any], Any], tasks: Iterable[Any], /) -> Iterator[Any]:
        for number, task in enumerate(tasks):
            if number == count:
                raise KeyboardInterrupt
            yield function(task)

    return run


def test_a_run_that_was_killed_is_repeated(tmp_path: Path) -> None:
    table, out = _filled(tmp_path / "lake"), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        restore(table, str(out), run=_killed_after(2))
    assert read_manifest(str(out)) is None
    (out / "nb-9-big-Data.db").write_bytes(b"a part of an SSTable")
    _assert_whole(table, out)


@pytest.mark.parametrize("torn", [b"", b'{"table": "sho'])
def test_a_run_that_was_killed_while_it_wrote_its_manifest_is_repeated(tmp_path: Path, torn: bytes) -> None:
    table, out = _filled(tmp_path / "lake"), tmp_path / "out"
    restore(table, str(out))
    (out / MANIFEST).write_bytes(torn)
    (out / UNFINISHED).write_text("7")
    _assert_whole(table, out)


def _assert_whole(table: LakeTable, out: Path) -> None:
    found = restore(table, str(out), 205)
    assert len(list(find_sstables(str(out)))) == len(found.sstables)
    assert found.changes == 42
    assert read_manifest(str(out)) == found
    assert not (out / UNFINISHED).exists()


def test_of_two_runs_at_once_the_first_is_refused(tmp_path: Path) -> None:
    table, out = _filled(tmp_path / "lake"), tmp_path / "out"

    def beside_another(function: Callable[[Any], Any], tasks: Iterable[Any], /) -> Iterator[Any]:
        listed = list(tasks)
        yield function(listed[0])
        _assert_whole(table, out)
        yield from map(function, listed[1:])

    with pytest.raises(WritetimeError, match=rf"{_REFUSED}: run this again, or name another folder if that run still"):
        restore(table, str(out), run=beside_another)
    found = read_manifest(str(out))
    assert found is not None
    assert found.changes == 42
    assert len(list(find_sstables(str(out)))) == len(found.sstables)


def test_a_run_that_was_killed_beside_another_blocks_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins while the first one removes the files of others, and leaves an SSTable."""
    table, out = _filled(tmp_path / "lake"), tmp_path / "out"
    remove = sstables._remove

    def and_begin_another(*arguments: Any, own: bool) -> None:
        remove(*arguments, own=own)
        if not own:
            with pytest.raises(KeyboardInterrupt):
                restore(table, str(out), run=_killed_after(1))

    with monkeypatch.context() as patched:
        patched.setattr(sstables, "_remove", and_begin_another)
        with pytest.raises(WritetimeError, match=_REFUSED):
            restore(table, str(out))
    assert read_manifest(str(out)) is None
    _assert_whole(table, out)


def test_sstables_that_another_machine_keeps_are_missed(tmp_path: Path) -> None:
    """Processes of Spark on several machines have a folder of this name each."""
    table, out = _filled(tmp_path / "lake"), tmp_path / "out"

    def elsewhere(function: Callable[[Any], Any], tasks: Iterable[Any], /) -> Iterator[Any]:
        yield from (function(replace(task, folder=str(tmp_path / "elsewhere"))) for task in tasks)

    with pytest.raises(WritetimeError, match=r"out/nb-\d+-big-Data.db was written and is not there"):
        restore(table, str(out), run=elsewhere)
    assert read_manifest(str(out)) is None


@pytest.mark.parametrize("folder", ["out", "./out/", "other/../out"])
def test_tasks_get_an_absolute_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    table = _filled(tmp_path / "lake")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)

    def elsewhere(function: Callable[[Any], Any], tasks: Iterable[Any], /) -> Iterator[Any]:
        listed = list(tasks)
        with chdir("/"):
            yield from map(function, listed)

    restore(table, folder, run=elsewhere)
    assert list(find_sstables(str(tmp_path / "out")))


@pytest.mark.parametrize("text", ["", "[]", '{"table": "shop.orders"}'])
def test_a_damaged_manifest_is_named(tmp_path: Path, text: str) -> None:
    restore(_filled(tmp_path / "lake"), str(tmp_path / "out"))
    (tmp_path / "out" / MANIFEST).write_text(text)
    with pytest.raises(WritetimeError, match=r"out/restore.json is damaged, so restore into a new folder"):
        read_manifest(str(tmp_path / "out"))


def test_an_instant_that_the_lake_cannot_show(tmp_path: Path) -> None:
    table = _filled(tmp_path / "lake")
    raise_history(table, 1000)
    with pytest.raises(WritetimeError, match=r"the lake can show only 1970-01-01T00:00:00.001000\+00:00 and later"):
        restore(table, str(tmp_path / "out"), 500)
    assert not (tmp_path / "out").exists()


def test_a_full_disk(tmp_path: Path) -> None:
    table = _filled(tmp_path / "lake")
    with small_disk(tmp_path, 256) as disk:
        filling = fill(disk, free=12288)
        with pytest.raises(Transient, match=rf"{disk}/out cannot be read or written .*No space left.*: free space or"):
            restore(table, str(disk / "out"))
        filling.unlink()
        _assert_whole(table, disk / "out")


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WritetimeError, match=rf"{tmp_path}/file/out cannot be read or written .*[Nn]ot a directory"):
        restore(_filled(tmp_path / "lake"), f"{tmp_path}/file/out")


def test_a_store_that_does_not_answer() -> None:
    """An error of pyarrow's client of S3 has no number."""
    options = "endpoint_override=127.0.0.1:1&scheme=http&region=r"
    with pytest.raises(Transient, match=r"s3://a@bucket/out cannot be read or written \(.*AWS Error"):
        read_manifest(f"s3://a:hush@bucket/out?{options}")


def test_a_table_without_changes(tmp_path: Path) -> None:
    table = new_table(tmp_path / "lake")
    for number, instant in enumerate((None, 100)):
        found = restore(table, str(tmp_path / f"out{number}"), instant)
        assert (found.changes, found.sstables) == (0, [])
        assert read_manifest(str(tmp_path / f"out{number}")) == found
