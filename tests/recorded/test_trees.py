"""Trees of snapshots with the SSTables of a real ScyllaDB: their places, names and times."""

import json
import shutil
from pathlib import Path
from uuid import UUID, uuid1

import fsspec
import pytest

from tests.support.made import settings_at
from tests.support.recordings import RecordedTable
from writetime.core.errors import Transient
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
    return snapshot


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


def test_a_manifest_of_another_program(tmp_path: Path) -> None:
    """Such as that of Cassandra Medusa, which is a list: it does not count."""
    snapshot = tree(tmp_path / "node")
    for content in ([], [{"keyspace": "shop"}], "text", 1, None, {"files": []}):
        (snapshot / "manifest.json").write_text(json.dumps(content))
        assert len(found(tmp_path).files) == 1


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
        with pytest.raises(Transient, match=rf"{data_names[-1]} is missing or incomplete, .* run this again later"):
            found(*places)
    whole = next(snapshot.glob(f"{LOCATION.version}-{LOCATION.id}-*{gone}"))
    shutil.copy2(whole, snapshot / whole.name.replace(LOCATION.id, "other"))
    toc = next(snapshot.glob(f"*-{LOCATION.id}-*TOC.txt"))
    shutil.copy2(toc, snapshot / toc.name.replace(LOCATION.id, "other"))
    assert len(found(tmp_path).files) == len(found(snapshot).files) == 2


def test_a_node_with_two_data_folders(tmp_path: Path) -> None:
    """One of them has the manifest of both."""
    first, second = (tree(tmp_path / "node" / name) for name in ("data1", "data2"))
    for file in second.iterdir():
        file.rename(second / file.name.replace(LOCATION.id, "other"))
    names = [path.name for folder in (first, second) for path in folder.glob("*-Data.db")]
    (first / "manifest.json").write_text(json.dumps({"created_at": "2026-05-01T12:00:00Z", "files": names}))
    assert len(found(tmp_path).files) == len(found(first, second).files) == 2
    with pytest.raises(Transient, match="name all of them"):
        found(first)


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
