"""Trees of snapshots with the SSTables of a real ScyllaDB: their places, names and times."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import UUID, uuid1

import fsspec
import pytest

from tests.support.made import settings_at
from tests.support.recordings import RecordedTable
from writetime.core.errors import Transient, WritetimeError
from writetime.lake.backfill import SnapshotFiles, backfill, backup_names, find_snapshots, untaken
from writetime.lake.table import create_table
from writetime.storage.file_errors import CorruptFile

RECORDED = RecordedTable("rec104", "x_0")
NAME = RECORDED.schema.full_name
LOCATION = RECORDED.locations[0]
ID = uuid1().hex


def tree(data: Path) -> Path:
    """Add a snapshot of one SSTable to a data folder; return its folder."""
    snapshot = data / RECORDED.schema.keyspace / f"{RECORDED.schema.name}-{ID}" / "snapshots" / "night"
    snapshot.mkdir(parents=True)
    for file in Path(LOCATION.folder).glob(f"{LOCATION.version}-{LOCATION.id}-*"):
        shutil.copy2(file, snapshot)
    # As Cassandra 4.0 writes it, without the time.
    write_manifest(snapshot, f"{LOCATION.version}-{LOCATION.id}-big-Data.db")
    return snapshot


def write_manifest(snapshot: Path, *files: str, **more: object) -> None:
    (snapshot / "manifest.json").write_text(json.dumps({"files": files, **more}))


def found(*places: object) -> SnapshotFiles:
    return find_snapshots(list(map(str, places)), RECORDED.schema, NAME)


@pytest.mark.parametrize("keyspace", ["data", "cassandra", "node_1", "snapshots"])
def test_a_keyspace_with_the_name_of_a_folder_above_it(tmp_path: Path, keyspace: str) -> None:
    folder = tmp_path / "node_1" / "cassandra" / "data" / keyspace / f"items-{ID}" / "snapshots" / "night"
    folder.mkdir(parents=True)
    assert backup_names([str(tmp_path)], f"{keyspace}.items") == ["node_1/cassandra/data/snapshots/night"]


def test_nodes_of_several_places_with_one_name(tmp_path: Path) -> None:
    """Their files may have one name, size and time, too: a copy to a store gives all files of a second one time."""
    places = [tmp_path / name for name in ("of-node-1", "of-node-2")]
    tree(places[0] / "data")
    [digest] = tree(places[1] / "data").glob("*-Digest.crc32")
    table = create_table(settings_at(tmp_path / "lake", buckets=2), RECORDED.schema)
    list(backfill(table, found(places[0])))
    assert untaken(table, found(*places)) == []
    digest.write_text("17")
    assert len(untaken(table, found(*places))) == 1
    assert untaken(table, found(places[0])) == []


def test_a_store_without_times(tmp_path: Path) -> None:
    """A name that returns with another content of the same size is read."""
    filesystem = fsspec.filesystem("memory")
    place = f"/{tmp_path.name}"
    manifest = {"created_at": "2026-05-01T12:00:00Z", "files": [f"{LOCATION.version}-{LOCATION.id}-big-Data.db"]}
    (tree(tmp_path / "node") / "manifest.json").write_text(json.dumps(manifest))
    filesystem.put(str(tmp_path / "node"), f"{place}/node", recursive=True)
    table = create_table(settings_at(tmp_path / "lake", buckets=2), RECORDED.schema)
    assert len(untaken(table, found(f"memory:/{place}"))) == 1
    list(backfill(table, found(f"memory:/{place}")))
    assert untaken(table, found(f"memory:/{place}")) == []
    [digest] = filesystem.glob(f"{place}/**/*-Digest.crc32")
    filesystem.pipe(digest, b"17")
    assert len(untaken(table, found(f"memory:/{place}"))) == 1


def test_a_digest_that_is_not_a_number(tmp_path: Path) -> None:
    [digest] = tree(tmp_path / "node").glob("*-Digest.crc32")
    digest.write_text("")
    [file] = found(tmp_path).files
    with pytest.raises(CorruptFile, match=r"Digest\.crc32: a CRC32 in digits was expected"):
        assert file.digest


BROKEN: dict[str, bytes | None] = {
    "missing": None,
    "empty": b"",
    "truncated": b'{"files": ["me-1-big-Da',
    "garbage": bytes(range(256)),
    "nested": b"[" * 100_000,
    "of Medusa": b"[]",
    "text": b'"files"',
    "null": b"null",
    "without files": b"{}",
    "files that are no list": b'{"files": "me-1-big-Data.db"}',
    "files that are no texts": b'{"files": [{}]}',
    "of an empty table": b'{"files": []}',
    "without a time": b'{"files": [], "created_at": "yesterday"}',
    "of ScyllaDB, cut": b'{"snapshot": {"created_at": 1}}',
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_snapshot_without_a_whole_manifest_is_refused(tmp_path: Path, content: bytes | None) -> None:
    """Nothing else shows whether all of its SSTables are there."""
    snapshot = tree(tmp_path / "node")
    assert len(found(tmp_path).files) == 1
    manifest = snapshot / "manifest.json"
    manifest.unlink()
    if content is not None:
        manifest.write_bytes(content)
    for place in (tmp_path, snapshot):
        with pytest.raises(Transient, match=r"manifest.*if it is being copied, run this again later; .* copy the"):
            found(place)
    # As the message proposes for SSTables that are no snapshot.
    manifest.unlink(missing_ok=True)
    assert len(found(*snapshot.glob("*-Data.db")).files) == 1


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize("name", ["manifest.json", "TOC.txt"])
def test_a_named_pipe_or_a_folder_in_place_of_a_file_is_refused(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    snapshot = tree(tmp_path / "node")
    [file] = snapshot.glob(f"*{name}")
    file.unlink()
    make(file)
    for place in (tmp_path, snapshot):
        with pytest.raises(WritetimeError, match=file.name):
            found(place)


@pytest.mark.parametrize("content", [b"", b"Filter.db\nTOC", b"Data.d"])
def test_a_toc_that_is_cut_is_refused(tmp_path: Path, content: bytes) -> None:
    snapshot = tree(tmp_path / "node")
    [toc] = snapshot.glob("*-TOC.txt")
    toc.write_bytes(content)
    for place in (tmp_path, snapshot):
        with pytest.raises(Transient, match=rf"{toc.name} does not list Data.db, so it is empty or truncated"):
            found(place)


def test_sstables_of_two_snapshots_in_one_folder_are_refused(tmp_path: Path) -> None:
    """The older ones may have rows whose deletions are purged from the newer ones."""
    snapshot = tree(tmp_path / "node")
    for file in snapshot.glob(f"*-{LOCATION.id}-*"):
        shutil.copy2(file, snapshot / file.name.replace(LOCATION.id, "other"))
    with pytest.raises(Transient, match=r"other-big-Data\.db is in no manifest\.json"):
        found(tmp_path)


@pytest.mark.parametrize("named", ["by Cassandra", "by ScyllaDB"])
@pytest.mark.parametrize("gone", ["Data.db", "TOC.txt"])
def test_a_snapshot_that_is_copied_in_part(tmp_path: Path, named: str, gone: str) -> None:
    """It is refused until the copy is complete, and not taken for the whole table."""
    data = tmp_path / "node" / "data"
    snapshot = tree(data)
    names = [path.name for path in snapshot.glob("*-TOC.txt")] + [f"{LOCATION.version}-other-big-TOC.txt"]
    data_names = [name.replace("TOC.txt", "Data.db") for name in names]
    cassandra = {"created_at": "2026-05-01T12:00:00Z", "files": [*data_names, f".index/{data_names[0]}"]}
    table = {"table_id": str(UUID(ID))}
    scylla = {"snapshot": {"created_at": 1}, "table": table, "sstables": [{"toc_name": name} for name in names]}
    manifest = snapshot / "manifest.json"
    manifest.write_text(json.dumps(cassandra if named == "by Cassandra" else scylla))
    for file in snapshot.glob(f"{LOCATION.version}-{LOCATION.id}-*"):
        if not file.name.endswith(gone):
            shutil.copy2(file, snapshot / file.name.replace(LOCATION.id, "other"))
    if gone == "Data.db":
        (snapshot / names[-1]).unlink()
    for places in ([tmp_path], [snapshot]):
        with pytest.raises(Transient, match=rf"{names[-1]} is missing, .* run this again later"):
            found(*places)
    away = tmp_path / "away"
    away.mkdir()
    for file in snapshot.glob("*-other-*"):
        file.rename(away / file.name)
    for places in ([tmp_path], [snapshot]):
        with pytest.raises(Transient, match=rf"{data_names[-1]} is missing or incomplete, .* run this again later"):
            found(*places)
    for file in away.iterdir():
        file.rename(snapshot / file.name)
    whole = next(snapshot.glob(f"{LOCATION.version}-{LOCATION.id}-*{gone}"))
    shutil.copy2(whole, snapshot / whole.name.replace(LOCATION.id, "other"))
    toc = next(snapshot.glob(f"*-{LOCATION.id}-*TOC.txt"))
    shutil.copy2(toc, snapshot / toc.name.replace(LOCATION.id, "other"))
    assert len(found(tmp_path).files) == len(found(snapshot).files) == 2


def test_a_node_with_two_data_folders(tmp_path: Path) -> None:
    """One of them has the manifest of both."""
    first, second = (tree(tmp_path / "node" / name) for name in ("data1", "data2"))
    for file in second.glob("*-big-*"):
        file.rename(second / file.name.replace(LOCATION.id, "other"))
    names = [path.name for folder in (first, second) for path in folder.glob("*-Data.db")]
    write_manifest(first, *names, created_at="2026-05-01T12:00:00Z")
    (second / "manifest.json").unlink()
    assert len(found(tmp_path).files) == len(found(first, second).files) == 2
    for folder in (first, second):
        with pytest.raises(Transient, match="name all of them"):
            found(folder)
    # Another node has an SSTable of the same name, and lacks it.
    other = tree(tmp_path / "other" / "data")
    write_manifest(other, *names, created_at="2026-05-01T12:00:00Z")
    with pytest.raises(Transient, match=r"other-big-Data\.db is missing or incomplete"):
        found(tmp_path)


def test_an_incremental_backup_that_is_copied_in_part(tmp_path: Path) -> None:
    """It is new again with each component, as it counts only with the last one."""
    snapshot = tree(tmp_path / "node")
    increments = snapshot.parents[1] / "backups"
    increments.mkdir()
    seen = {tuple(backup_names([str(tmp_path)], NAME))}
    files = sorted(snapshot.glob(f"{LOCATION.version}-{LOCATION.id}-*"))
    for file in files:
        shutil.copy2(file, increments)
        seen.add(tuple(backup_names([str(tmp_path)], NAME)))
    assert len(seen) == 1 + len(files)
