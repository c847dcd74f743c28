"""Files of other programs that are not regular files are refused by name, and never waited for or read without end."""

import os
import shutil
from pathlib import Path

import pytest
from pyarrow import fs

from tests.support.odd_files import ODD_FILES
from tests.support.recordings import SCYLLA
from writetime.backups.snapshot_folder import read_snapshot
from writetime.core.errors import WritetimeError
from writetime.storage.file_errors import MissingFile, StorageError
from writetime.storage.folders import Folder
from writetime.storage.infer import infer_schema
from writetime.storage.locations import find_sstables, open_file, read_file
from writetime.storage.regular_files import NotRegular, copy_regular, read_regular
from writetime.storage.segment import list_segments
from writetime.storage.sstable import SSTable

TABLE = SCYLLA / "rec102" / "x_4.sstables"


@pytest.mark.parametrize("kind", ODD_FILES)
def test_an_odd_file_is_refused(tmp_path: Path, kind: str) -> None:
    name, make = ODD_FILES[kind]
    path = tmp_path / "CommitLog-8-1.log"
    make(path)
    for read in (lambda: read_regular(path), lambda: read_file(fs.LocalFileSystem(), str(path))):
        with pytest.raises(NotRegular, match=f"{path.name} is {name}, not a regular file"):
            read()
    segments, refused = list_segments(str(tmp_path))
    assert not segments
    assert str(path) in refused


def test_a_device_is_refused(tmp_path: Path) -> None:
    for path in (Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(NotRegular, match="is a device"):
            read_regular(path)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "missing")
    with pytest.raises(MissingFile):
        read_file(fs.LocalFileSystem(), str(tmp_path / "missing"))


def test_hard_links_and_linked_folders_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "real"
    folder.mkdir()
    (folder / "file").write_bytes(b"content")
    (folder / "hard").hardlink_to(folder / "file")
    (tmp_path / "linked").symlink_to(folder)
    path = str(tmp_path / "linked" / "hard")
    assert read_regular(path) == read_file(fs.LocalFileSystem(), path) == b"content"
    with open_file(fs.LocalFileSystem(), path) as opened:
        assert opened.read_at(4, 3) == b"tent"


def test_a_copy_has_a_bound(tmp_path: Path) -> None:
    """The file grows as fast as it is copied, or becomes shorter."""
    source = tmp_path / "source"
    source.write_bytes(bytes(3_000_000))
    copied = bytearray()

    def grow(block: bytes) -> None:
        copied.extend(block)
        with source.open("ab") as file:
            file.write(block)

    assert copy_regular(source, grow) == len(copied) == 3_000_000
    with pytest.raises(StorageError, match=r"has 1048576 bytes now, and had 6000000"):
        copy_regular(source, lambda _: os.truncate(source, 1 << 20))


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    return shutil.copytree(TABLE, tmp_path / "snapshot")


def rows_of(folder: Path) -> int:
    """Read a snapshot's metadata, and all rows of its SSTables."""
    read_snapshot(Folder.at(str(folder)))
    locations = list(find_sstables(str(folder)))
    schema = infer_schema(locations)
    return sum(batch.num_rows for location in locations for batch in SSTable(location, schema).scan())


def refusal(folder: Path, wanted: int) -> str | None:
    """Return why a snapshot is refused; None if all of its rows are read."""
    try:
        assert rows_of(folder) == wanted
    except WritetimeError as e:
        return str(e)
    return None


@pytest.mark.parametrize("kind", ODD_FILES)
def test_a_snapshot_with_an_odd_file_is_read_or_refused(snapshot: Path, kind: str) -> None:
    """Each component, schema.cql and manifest.json. Rows are never missing without an error."""
    wanted = rows_of(snapshot)
    first = min(path.name.rpartition("-")[0] for path in snapshot.glob("*-Data.db"))
    paths = [*snapshot.glob(f"{first}-*"), snapshot / "schema.cql", snapshot / "manifest.json"]
    name, make = ODD_FILES[kind]
    refused = set()
    for path in paths:
        original = path.read_bytes() if path.exists() else None
        path.unlink(missing_ok=True)
        make(path)
        reason = refusal(snapshot, wanted)
        if reason is not None:
            refused.add(path.name.rpartition("-")[2])
            assert f"{path.name} is {name}" in reason
        shutil.rmtree(path) if kind == "folder" else path.unlink()
        if original is not None:
            path.write_bytes(original)
    assert {"Data.db", "Statistics.db", "TOC.txt", "schema.cql", "manifest.json"} <= refused
