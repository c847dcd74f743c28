"""SSTables of a real ScyllaDB, against what it answered: formats `me` and `mt`, all compressors."""

import random
import struct
from pathlib import Path

import pytest

from tests.storage.expected import as_rows
from tests.storage.recordings import RecordedTable
from tests.storage.rewriting import copy
from writetime.errors import WritetimeError
from writetime.storage.sstable import SSTable

# Each has columns that are simple and such that are not, in an order of its own; rec103 is compacted.
TABLES = [
    *("rec101/Tab4", "rec101/t0", "rec102/x_1", "rec103/x_2", "rec103/x_3", "rec104/x_0", "rec104/x_1"),
    *("rec105/x_2", "rec105/x_4", "rec109/Tab4"),
]


@pytest.mark.parametrize("name", TABLES)
def test_recorded_tables(name: str) -> None:
    table = RecordedTable(*name.split("/"))
    state, answer = table.state(), table.answer()
    assert answer
    assert any(rows == answer for rows in table.live(state))
    times = table.state_write_times(state)
    answered = table.write_times()
    assert answered.keys() == times.keys()
    for column, found in answered.items():
        assert found <= times[column]


@pytest.mark.parametrize("name", [name for name in TABLES if name != "rec109/Tab4"])
def test_their_splits(name: str) -> None:
    """The indexes that ScyllaDB writes to `me`."""
    table = RecordedTable(*name.split("/"))
    for location in table.locations:
        sstable = SSTable(location, table.schema)
        splits = sstable.splits(1)
        assert len(splits) == len(sstable.index.positions)
        found = [row for split in splits for row in as_rows(sstable.scan(split=split))]
        assert sorted(found) == as_rows(sstable.scan())


@pytest.mark.parametrize("name", ["rec101/t0", "rec104/x_1", "rec105/x_2", "rec109/Tab4"])
def test_a_header_with_a_flipped_bit_is_no_crash(tmp_path: Path, name: str) -> None:
    """Statistics.db of these versions has no checksum: not every flip can be seen, and each fault has a file's name."""
    table = RecordedTable(*name.split("/"))
    here = copy(table.locations[0], tmp_path / "here")
    path = Path(here.path("Statistics.db"))
    sound = path.read_bytes()
    chooser = random.Random(4)
    refused = []
    for _ in range(150):
        broken = bytearray(sound)
        bit = chooser.randrange(8 * len(sound))
        broken[bit // 8] ^= 1 << bit % 8
        path.write_bytes(broken)
        for schema in (table.schema, None):
            try:
                assert list(SSTable(here, schema).scan(["token", "position"]))
            except WritetimeError as e:
                refused.append(str(e))
    assert len(refused) > 10
    assert all(here.folder in text for text in refused)


def test_they_are_of_all_kinds() -> None:
    """Not a test of the reader: it makes sure that the others read these."""
    kinds = set()
    for name in TABLES:
        for location in RecordedTable(*name.split("/")).locations:
            info = location.read("CompressionInfo.db") if location.exists("CompressionInfo.db") else b"\0\0"
            kinds.add((location.version, info[2 : 2 + struct.unpack_from(">H", info)[0]].decode()))
    assert kinds >= {("me", c) for c in ("", "LZ4Compressor", "SnappyCompressor", "ZstdCompressor")}
    assert ("mt", "LZ4Compressor") in kinds
