"""An SSTable of Cassandra 6.0 with a compression dictionary, whole and damaged. No server is needed.

Oracle: the statements that wrote the table (`tests.attack.record`).
"""

import struct
from pathlib import Path

import pytest

from tests.support.rewriting import copy
from writetime.storage.file_errors import CorruptFile, Unsupported
from writetime.storage.locations import Location, find_sstables
from writetime.storage.sstable import SSTable

RECORDED = Path(__file__).parents[1] / "data" / "cassandra"
ROWS = {k: f"order {k} of customer {k * k}" for k in range(60)}
by_version = pytest.mark.parametrize("version", ["pa", "ea"])


def read(location: Location) -> dict[int, str]:
    sstable = SSTable(location)
    rows = [row for batch in sstable.scan() for row in batch.to_pylist()]
    [key] = sstable.schema.partition_key
    return {row[key.name]: row["v"]["value"] for row in rows}


@pytest.fixture
def trained(version: str, tmp_path: Path) -> Location:
    """A copy of the SSTable that may be changed."""
    [location] = find_sstables(str(RECORDED / version / "trained"))
    return copy(location, tmp_path / "trained")


def section_of(location: Location) -> int:
    """Return where the dictionary's part of a CompressionInfo.db begins: after the offset of the only chunk."""
    info = Path(location.path("CompressionInfo.db")).read_bytes()
    name_length = int.from_bytes(info[:2], "big")
    at = 2 + name_length
    options = int.from_bytes(info[at : at + 4], "big")
    at += 4
    for _ in range(2 * options):
        at += 2 + int.from_bytes(info[at : at + 2], "big")
    (chunks,) = struct.unpack_from(">i", info, at + 16)
    return at + 20 + 8 * chunks


def crc32c(data: bytes) -> int:
    """Return the checksum bit by bit (RFC 3720, appendix B.4)."""
    crc = (1 << 32) - 1
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ (1 << 32) - 1


@by_version
def test_rows_are_read_with_the_dictionary(version: str, trained: Location) -> None:
    assert trained.version == version
    assert read(trained) == ROWS


@by_version
def test_each_damaged_byte_of_a_dictionary_is_an_error(trained: Location) -> None:
    path = Path(trained.path("CompressionInfo.db"))
    sound, start = path.read_bytes(), section_of(trained)
    assert len(sound) - start > 500
    for at in range(start, len(sound)):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 1 << at % 8]) + sound[at + 1 :])
        with pytest.raises(CorruptFile, match="dictionary"):
            read(trained)


@by_version
def test_a_dictionary_that_is_cut_off_is_an_error(trained: Location) -> None:
    path = Path(trained.path("CompressionInfo.db"))
    sound, start = path.read_bytes(), section_of(trained)
    for length in [*range(start, start + 20), len(sound) - 1]:
        path.write_bytes(sound[:length])
        with pytest.raises(CorruptFile):
            read(trained)
    path.write_bytes(sound + b"\0")
    with pytest.raises(CorruptFile, match="no dictionary"):
        read(trained)


@by_version
def test_a_dictionary_of_an_unknown_kind_is_refused_by_name(trained: Location) -> None:
    path = Path(trained.path("CompressionInfo.db"))
    sound, start = path.read_bytes(), section_of(trained)
    kind, number, length = struct.unpack_from(">bqi", sound, start)
    dictionary = sound[start + 13 : start + 13 + length]
    assert crc32c(struct.pack("<bq", kind, number) + dictionary) == int.from_bytes(sound[-4:], "big")
    other = struct.pack(">bqi", 1, number, length) + dictionary
    path.write_bytes(sound[:start] + other + struct.pack(">I", crc32c(struct.pack("<bq", 1, number) + dictionary)))
    with pytest.raises(Unsupported, match="dictionary of kind 1"):
        read(trained)


@by_version
def test_the_dictionary_counts_and_not_the_name_of_the_compressor(trained: Location) -> None:
    """As in Cassandra: the schema may have had another compressor when the file was written."""
    path = Path(trained.path("CompressionInfo.db"))
    sound = path.read_bytes()
    length = int.from_bytes(sound[:2], "big")
    path.write_bytes(struct.pack(">H", 13) + b"LZ4Compressor" + sound[2 + length :])
    assert read(trained) == ROWS
