"""SSTables of a node are imported: copies, faults, and the agent of a captured table. The node is a stand-in that moves
files; tests/restore/test_into.py imports into a real one.
"""

import errno
import os
import tempfile
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
from cassandra import OperationTimedOut, Unauthorized
from cassandra.cluster import Session

from tests.support.disks import fill, small_disk
from tests.support.made import SCHEMA, add, new_table, write
from writetime.bulk_load import import_folders, node_import
from writetime.bulk_load.node_import import import_here, import_node, is_imported
from writetime.bulk_load.sstables import RestoreManifest, Target, TargetNode, write_sstables
from writetime.capture.unlogged_files import Imports
from writetime.core.config import load
from writetime.core.errors import WritetimeError
from writetime.files.key_ranges import TokenRange
from writetime.lake.views import bucket_views
from writetime.storage.locations import resolve

HOST = "a-host"
NODES = {HOST: TargetNode("10.0.0.1", (TokenRange(-(1 << 63), (1 << 63) - 1),))}
TABLE = "shop.items"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder of the node, of which `nodetool import` moves files to the only table."""
    folder = tmp_path / "data"
    (folder / "shop" / f"items-{uuid4().hex}").mkdir(parents=True)

    def nodetool(_port: int, _command: str, keyspace: str, name: str, copies: str, **_: object) -> None:
        (own,) = (folder / keyspace).glob(f"{name}-*")
        # The node has another working folder.
        assert Path(copies).is_absolute()
        with (folder / "imports").open("a") as imports:
            imports.write(".")
        for file in Path(copies).iterdir():
            file.rename(own / file.name)

    monkeypatch.setattr(node_import, "nodetool", nodetool)
    monkeypatch.setattr(node_import, "local_node", lambda *_: ({"data_file_directories": f"[{folder}]"}, 7199))
    monkeypatch.setattr(node_import, "require_empty", lambda *_: None)
    return folder


def written(folder: str, home: Path, target: Target | None = None) -> RestoreManifest:
    """Write SSTables for the node."""
    table = new_table(home / "lake")
    add(table, [write(i, 0, i, v="v") for i in range(100)], 0)
    manifest = RestoreManifest(table.name, None, 0, "nb", "", target or Target(TABLE, "an id", False, NODES))
    return write_sstables(bucket_views(table), SCHEMA, folder, manifest)


def imported(folder: str, manifest: RestoreManifest) -> int:
    session: Any = None
    return import_node(session, folder, manifest, HOST)


def files_of(data: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in data.glob("*/*/*") if path.is_file()}


def test_an_agent_finds_each_import(data: Path, tmp_path: Path) -> None:
    """Even if the SSTables were written after its last look, and the restore keeps other links to them."""
    (own,) = data.glob("*/*")
    table: Any = type("Table", (), {"keyspace": "shop", "name": "items", "id": type("Id", (), {"hex": own.name[6:]})})
    imports = Imports()
    assert not list(imports.look([str(data)], [table], always=True))
    manifest = written(str(tmp_path / "out"), tmp_path)
    imported(str(tmp_path / "out"), manifest)
    ((found, path),) = imports.look([str(data)], [table], always=True)
    assert found is table
    assert Path(path).parent == own


@pytest.mark.parametrize("refused", ["link", "utime"])
def test_files_that_cannot_be_linked_are_copied(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    out = tmp_path / "out"
    manifest = written(str(out), tmp_path)
    genuine = os.utime

    def refuse(path: Any, *arguments: Any) -> None:
        if refused == "link" or Path(path).stat().st_nlink > 1:
            raise PermissionError(errno.EPERM, "Operation not permitted", str(path))
        genuine(path, *arguments)

    monkeypatch.setattr(os, refused, refuse)
    wanted = {path.name: path.read_bytes() for path in (out / HOST).iterdir()}
    assert imported(str(out), manifest) == len(manifest.sstables)
    assert files_of(data) == wanted
    assert sorted(path.name for path in (out / HOST).iterdir()) == sorted(wanted)
    assert manifest.target is not None
    assert is_imported(str(out), manifest, HOST)


def test_a_relative_folder(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    imported("out", written("out", tmp_path))
    assert files_of(data)


@pytest.mark.parametrize(("copied_bytes", "times"), [(1, 4), (1 << 30, 1)])
def test_copies_of_a_store_are_few_at_a_time(data: Path, tmp_path: Path, copied_bytes: int, times: int) -> None:
    url = f"memory://{tmp_path.name}"
    manifest = written(url, tmp_path)
    session: Any = None
    assert import_node(session, url, manifest, HOST, copied_bytes=copied_bytes) == len(manifest.sstables) == 4
    assert len(list(data.glob("*/*/*-Data.db"))) == 4
    assert (data / "imports").read_text() == "." * times


def test_a_full_disk_for_copies(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a store are copied to the folder for temporary files."""
    url = f"memory://{tmp_path.name}"
    manifest = written(url, tmp_path)
    with small_disk(tmp_path, 256) as disk:
        fill(disk, free=8192)
        monkeypatch.setattr(tempfile, "tempdir", str(disk))
        with pytest.raises(WritetimeError, match=rf"cannot be copied to {disk}/.*No space left.* TMPDIR, and run this"):
            imported(url, manifest)
    assert not files_of(data)
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert imported(url, manifest) == len(manifest.sstables)
    assert files_of(data)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (OperationTimedOut(), "the node 10.0.0.1 does not answer: start it, and run this again"),
        (Unauthorized("no SELECT on system_views"), "cannot be read .*no SELECT on system_views.*: grant the right"),
    ],
)
def test_a_node_that_is_down_and_a_missing_right(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception, text: str
) -> None:
    manifest = written(str(tmp_path / "out"), tmp_path)

    def refuse(*_: object) -> None:
        raise fault

    monkeypatch.setattr(node_import, "local_node", refuse)
    with pytest.raises(WritetimeError, match=text):
        imported(str(tmp_path / "out"), manifest)
    assert not files_of(data)


@pytest.mark.parametrize("is_down", [True, False])
def test_a_node_that_stops_during_the_import(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_down: bool
) -> None:
    """What nodetool reports names no node, and no remedy."""
    manifest = written(str(tmp_path / "out"), tmp_path)

    def refuse(*_: object) -> None:
        raise OperationTimedOut()

    def fail(*_: object, **__: object) -> None:
        if is_down:
            monkeypatch.setattr(node_import, "local_node", refuse)
        raise WritetimeError("nodetool import failed: Connection reset")

    monkeypatch.setattr(node_import, "nodetool", fail)
    wanted = r"the node 10\.0\.0\.1 stopped during the import: start it, and run this again \(nodetool import failed"
    with pytest.raises(WritetimeError, match=wanted if is_down else "^nodetool import failed: Connection reset$"):
        imported(str(tmp_path / "out"), manifest)
    assert manifest.target is not None
    assert not is_imported(str(tmp_path / "out"), manifest, HOST)
    assert not data.joinpath("imports").exists()


@pytest.mark.parametrize("components", ["Data.db", "TOC.txt", "*"])
def test_a_missing_sstable_is_named(data: Path, tmp_path: Path, components: str) -> None:
    manifest = written(str(tmp_path / "out"), tmp_path)
    for file in (tmp_path / "out").glob(manifest.sstables[-1].file.replace("Data.db", components)):
        file.unlink()
    with pytest.raises(
        WritetimeError, match=rf"out/{manifest.sstables[-1].file} is missing: restore into a new folder"
    ):
        imported(str(tmp_path / "out"), manifest)
    assert not files_of(data)


@pytest.mark.parametrize("merge", [False, True])
def test_the_table_is_empty_when_the_first_node_begins(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merge: bool
) -> None:
    """Another import may have ended, or others may have written, since the target was checked."""
    out = str(tmp_path / "out")
    manifest = written(out, tmp_path, Target(TABLE, "an id", merge, NODES))

    def refuse(_session: object, table: str) -> None:
        raise WritetimeError(f"{table} has rows")

    with monkeypatch.context() as patch:
        patch.setattr(node_import, "require_empty", refuse)
        if not merge:
            with pytest.raises(WritetimeError, match=r"shop\.items has rows"):
                imported(out, manifest)
            assert not files_of(data)
            (tmp_path / "out" / "importing-another").touch()
        # It has rows of this import.
        imported(out, manifest)
    assert files_of(data)


def test_a_node_of_another_user(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot move files of this program, so it needs a program of its own."""
    manifest, session = written(str(tmp_path / "out"), tmp_path), cast("Session", None)
    monkeypatch.setattr(node_import, "is_here", lambda _: True)
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: 4321)
        assert import_here(session, str(tmp_path / "out"), manifest) == ["10.0.0.1"]
    assert not files_of(data)
    assert import_here(session, str(tmp_path / "out"), manifest) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files to another user")
def test_root_gives_the_copies_to_the_user_of_the_node(data: Path, tmp_path: Path) -> None:
    os.chown(data, 4321, 4321)
    imported(str(tmp_path / "out"), written(str(tmp_path / "out"), tmp_path))
    assert {file.stat().st_uid for file in data.rglob("*Data.db")} == {4321}


def test_another_manifest_in_the_same_folder(data: Path, tmp_path: Path) -> None:
    """A slow node ends the import of the one before it."""
    first = written(str(tmp_path / "out"), tmp_path)
    imported(str(tmp_path / "out"), first)
    other = replace(first, lake_version=7)
    assert is_imported(str(tmp_path / "out"), first, HOST)
    assert not is_imported(str(tmp_path / "out"), other, HOST)
    assert files_of(data)


def test_transfers_are_imported_after_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that cannot be read for a moment does not end the program."""
    stop, looks = threading.Event(), []

    def read(_: object) -> None:
        looks.append(1)
        if len(looks) == 1:
            raise OSError("a blip")
        stop.set()

    (tmp_path / "shop.items" / "1").mkdir(parents=True)
    monkeypatch.setattr(import_folders, "resolve", lambda path: (read(path), resolve(path))[1])
    import_folders.import_transfers(load(), str(tmp_path), stop)
    assert len(looks) > 1


def test_a_transfer_that_fails_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of four tables: a manifest is damaged, the database does not answer once, it refuses, and nothing is wrong."""
    faults = {"shop.b": OperationTimedOut("no answer"), "shop.c": Unauthorized("no right")}
    for name in ("shop.a", "shop.b", "shop.c", "shop.d"):
        folder = str(tmp_path / "out" / name / "1")
        target = Target(name, "an id", True, NODES)
        write_sstables([], SCHEMA, folder, RestoreManifest(name, None, 0, "nb", "", target))
    (tmp_path / "out" / "shop.a" / "1" / "restore.json").write_text("{")
    stop, looks, done = threading.Event(), [], []

    def target_of(_: object, manifest: RestoreManifest, __: str) -> Target | None:
        if fault := faults.get(manifest.table):
            raise fault
        return manifest.target

    def import_one(_: object, __: str, manifest: RestoreManifest, ___: str) -> int:
        done.append(manifest.table)
        faults.pop("shop.b", None)
        return 1

    def connect(_: object) -> nullcontext[None]:
        looks.append(1)
        if len(looks) == 2:
            stop.set()
        return nullcontext()

    for name, stand_in in (("connect", connect), ("target_of", target_of), ("import_node", import_one)):
        monkeypatch.setattr(import_folders, name, stand_in)
    monkeypatch.setattr(import_folders, "node_of", lambda *_: SimpleNamespace(host_id=HOST))
    import_folders.import_transfers(load(), str(tmp_path / "out"), stop)
    assert done == ["shop.d", "shop.b"]
    assert all(text in caplog.text for text in ("restore.json is damaged", "no answer", "no right"))
