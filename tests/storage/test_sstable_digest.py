"""Uncompressed files without CRC.db: only Digest.crc32 shows whether they are valid."""

import random
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.expected import as_rows
from tests.support.recordings import RecordedTable, dictionary_table
from tests.support.rewriting import copy, make_plain
from writetime.storage.file_errors import CorruptFile, MissingFile
from writetime.storage.locations import Location
from writetime.storage.sstable import ScanReport, SSTable


def rows_of(location: Location) -> list[str]:
    return as_rows(SSTable(location).scan())


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Location:
    """More than 6 MiB, of 300 partitions, without an index."""
    location = make_plain(dictionary_table("tl"), tmp_path_factory.mktemp("large") / "tl")
    Path(location.path("CRC.db")).unlink()
    return location


def small(folder: Path) -> tuple[Location, Location]:
    """Return an SSTable with CRC.db, as ScyllaDB wrote it, and a copy without."""
    (location,) = RecordedTable("rec104", "x_1").locations
    here = copy(location, folder)
    Path(here.path("CRC.db")).unlink()
    return location, here


def test_sound_files_are_read(large: Location, tmp_path: Path) -> None:
    assert SSTable(large).data.length > 6 << 20
    tables = [
        pa.Table.from_batches(SSTable(x).scan(["position", "a", "b", "z"])) for x in (large, dictionary_table("tl"))
    ]
    assert tables[0] == tables[1]
    recorded, here = small(tmp_path / "small")
    assert rows_of(here) == rows_of(recorded)


@pytest.mark.parametrize("seed", range(8))
def test_no_change_is_given_of_a_file_that_is_not_sound(large: Location, tmp_path: Path, seed: int) -> None:
    """Whatever bit is wrong, wherever it is read."""
    here = copy(large, tmp_path / "broken")
    path = Path(here.path("Data.db"))
    broken = bytearray(path.read_bytes())
    bit = random.Random(seed).choice([0, len(broken) * 8 - 1, random.Random(seed).randrange(8 * len(broken))])
    broken[bit // 8] ^= 1 << bit % 8
    path.write_bytes(broken)
    assert_nothing(here)


@pytest.mark.parametrize("text", ["", "x", "1", "-1", "2 3"])
def test_digests_of_other_files(tmp_path: Path, text: str) -> None:
    _, here = small(tmp_path / "small")
    Path(here.path("Digest.crc32")).write_text(text)
    assert_nothing(here)


def assert_nothing(location: Location) -> None:
    sstable = SSTable(location)
    for tokens in ((-(1 << 63), (1 << 63) - 1), (0, 1 << 62)):
        batches = []
        with pytest.raises(CorruptFile, match=r"Digest\.crc32"):
            batches.extend(SSTable(location).scan(tokens=tokens))
        assert batches == []
        for policy in ("skip-partition", "skip-file"):
            report = ScanReport()
            assert list(sstable.scan(tokens=tokens, on_corrupt=policy, report=report)) == []
            assert len(report.skipped) == 1
            assert "Digest.crc32" in report.skipped[0]
            assert report.skipped_bytes == sstable.data.length


def test_a_file_that_changes_after_it_was_compared(large: Location, tmp_path: Path) -> None:
    here = copy(large, tmp_path / "changing")
    path = Path(here.path("Data.db"))
    batches = SSTable(here).scan(["token"], window=1 << 17)
    next(batches)
    with path.open("r+b") as file:
        file.seek(-100, 2)
        file.write(b"changed")
    with pytest.raises(CorruptFile, match=r"Data\.db.*does not match its CRC32"):
        list(batches)


def test_no_checksum_at_all(tmp_path: Path) -> None:
    _, here = small(tmp_path / "small")
    Path(here.path("Digest.crc32")).unlink()
    with pytest.raises(MissingFile, match=r"Data\.db has neither CompressionInfo\.db nor CRC\.db nor Digest\.crc32"):
        rows_of(here)


def test_a_file_without_checksums_of_chunks_is_one_piece(tmp_path: Path) -> None:
    """As the reader of each piece has to compare all of the file; tokens still choose a part of it."""
    recorded, here = small(tmp_path / "small")
    assert len(SSTable(recorded).splits(1)) == 2
    (split,) = SSTable(here).splits(1)
    assert as_rows(SSTable(here).scan(split=split)) == rows_of(recorded)
    sstable = SSTable(recorded)
    tokens = sorted({t for batch in sstable.scan(["token"]) for t in batch["token"].to_pylist()})
    last = tokens[-1]
    (split,) = SSTable(here).splits(1, (last, last))
    assert split.start.offset > 0
    found = as_rows(SSTable(here).scan(split=split, tokens=(last, last)))
    assert found == as_rows(sstable.scan(tokens=(last, last)))
    assert 0 < len(found) < len(rows_of(recorded))
