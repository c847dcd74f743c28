"""Trees of snapshots with the SSTables of a real ScyllaDB: their places, names and times."""

import json
import shutil
from pathlib import Path
from uuid import uuid1

import fsspec
import pytest

from tests.support.made import settings_at
from tests.support.recordings import RecordedTable
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


def test_a_digest_that_is_no_number(tmp_path: Path) -> None:
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
