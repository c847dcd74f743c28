"""SSTables of a real ScyllaDB, compared with its rows: formats `me` and `mt`, all compressors, with dictionaries."""

import random
import struct
from collections.abc import Callable
from pathlib import Path

import lz4.block
import numpy as np
import pyarrow as pa
import pytest
import zstandard

from tests.support.expected import as_rows
from tests.support.made import SCHEMA, batch, write
from tests.support.recordings import RecordedTable, dictionary_table, recorded
from tests.support.rewriting import PART, compression, copy, dictionary_of, parts, recompress, set_compression
from writetime.core.arrow import pc
from writetime.core.errors import WritetimeError
from writetime.schema.types import scylla_name
from writetime.schema.values import read_vint
from writetime.storage.batch_to_write import Arranged
from writetime.storage.compression import open_data
from writetime.storage.file_errors import CorruptFile, Unsupported
from writetime.storage.locations import Location
from writetime.storage.sstable import SSTable
from writetime.storage.sstable_writer import SSTableWriter

pytestmark = pytest.mark.slow

# Each has columns that are simple and such that are not, in an order of its own; rec103 is compacted.
TABLES = [
    *("rec101/Tab4", "rec101/t0", "rec102/x_1", "rec103/x_2", "rec103/x_3", "rec104/x_0", "rec104/x_1"),
    *("rec105/x_2", "rec105/x_4", "rec109/Tab4"),
]
ROWS = 60_000


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
def test_splits_of_recorded_tables(name: str) -> None:
    """The indexes that ScyllaDB writes to `me`."""
    table = RecordedTable(*name.split("/"))
    for location in table.locations:
        sstable = SSTable(location, table.schema)
        splits = sstable.splits(1)
        assert len(splits) == len(sstable.index.positions)
        found = [row for split in splits for row in as_rows(sstable.scan(split=split))]
        assert sorted(found) == as_rows(sstable.scan())


@pytest.mark.parametrize("name", ["rec101/t0", "rec104/x_1", "rec105/x_2", "rec109/Tab4"])
def test_a_header_with_a_flipped_bit_does_not_crash_the_reader(tmp_path: Path, name: str) -> None:
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


def test_recorded_tables_are_of_all_kinds() -> None:
    """Not a test of the reader: it makes sure that the others read these."""
    kinds = set()
    for name in TABLES:
        for location in RecordedTable(*name.split("/")).locations:
            info = location.read("CompressionInfo.db") if location.exists("CompressionInfo.db") else b"\0\0"
            kinds.add((location.version, info[2 : 2 + struct.unpack_from(">H", info)[0]].decode()))
    assert kinds >= {("me", c) for c in ("", "LZ4Compressor", "SnappyCompressor", "ZstdCompressor")}
    assert ("mt", "LZ4Compressor") in kinds


def features_of(location: Location) -> int:
    """Return the features that Scylla.db records of a file."""
    content = location.read("Scylla.db")
    (count,), at, found = struct.unpack_from(">I", content), 4, []
    for _ in range(count):
        kind, length = struct.unpack_from(">II", content, at)
        at += 8 + length
        found += struct.unpack_from(">Q", content, at - length) if kind == 2 else []
    assert at == len(content)
    (features,) = found
    return features


def test_features_as_scylladb_records_them(tmp_path: Path) -> None:
    """Without them it refuses counters. The last one says that the last block of a partition's row index ends before
    the end of the partition (1 byte). If it does not, a reader that skips the block goes on in the next partition.
    """
    table = RecordedTable("rec101", "t0")
    with SSTableWriter(str(tmp_path / "all"), table.schema, version="me") as writer:
        for some in table.state().to_batches():
            writer.write(some)
    assert "Scylla.db" in writer.location.read("TOC.txt").decode().split()
    assert {*map(features_of, table.locations)} == {features_of(writer.location) | 64}
    # It may not, if the last row is the last one of a block.
    assert any(is_end_in_last_block(tmp_path, n) for n in range(20, 24))


def is_end_in_last_block(folder: Path, rows: int) -> bool:
    """Write a partition with some rows."""
    with SSTableWriter(str(folder / str(rows)), SCHEMA, version="me", compressor=None, block_size=64) as writer:
        writer.write(batch([write(1, n, 5, v="v") for n in range(rows)]))
    index = writer.location.read("Index.db")
    # After a key of 4 bytes and the position 0. The offsets of the blocks are at the end, and a block begins with two
    # clusterings of 6 bytes each.
    size, at = read_vint(index, 7)
    assert at + size == len(index)
    count, first = read_vint(index, read_vint(index, at)[1] + 12)
    assert count > 2
    offset, p = read_vint(index, first + int.from_bytes(index[-4:], "big") + 12)
    width = read_vint(index, p)[0]
    end = offset + (width >> 1 ^ -(width & 1)) + (1 << 16)
    length = len(writer.location.read("Data.db"))
    assert end in (length - 1, length)
    return end == length


def test_types_as_scylladb_names_them() -> None:
    """Its reader compares them with those of the table, and a frozen type is not equal to one without the mark."""
    seen = set()
    for location in recorded("me"):
        content = location.read("Statistics.db")
        for column in SSTable(location).schema.columns:
            name = scylla_name(column.type)
            assert name.encode() in content
            seen.add(name)
    assert any("FrozenType" in name.partition("FrozenType")[2] for name in seen)
    assert any("), 3)" in name for name in seen)


# The files of these have rows without any content, which the reader leaves out, or tuples without their last elements.
NOT_THE_SAME = ("rec101/Tab2", "rec103/t5", "rec104/x_1")


def test_the_same_bytes_as_scylladb_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of files that ScyllaDB wrote in `me`: of all random tables but some whose columns Cassandra stores in another
    order, and some in the list above. Times are relative to the bases that the file has.
    """
    compared = 0
    for location in recorded("me"):
        sstable = SSTable(location)
        header, columns = sstable.header, sstable.schema.static + sstable.schema.regular
        batches = list(sstable.scan())
        if location.folder.removesuffix(".sstables").endswith(NOT_THE_SAME) or not batches:
            continue
        if not all(column.name[0].isascii() for column in columns):
            continue
        # Without TTLs, the base is the largest number.
        bases = header.min_write_time, header.min_deletion_time, min(header.min_ttl, 1 << 31)
        monkeypatch.setattr(Arranged, "minimums", lambda _, bases=bases: bases)
        changes = pa.Table.from_batches(batches)
        order = pc.sort_indices(changes, sort_keys=[(name, "ascending") for name in ("token", "key", "position")])
        with SSTableWriter(str(tmp_path / str(compared)), sstable.schema, version="me", compressor=None) as writer:
            for some in changes.take(order).to_batches():
                writer.write(some)
        assert uncompressed(writer.location) == uncompressed(location), location.path("Data.db")
        assert writer.location.read("Index.db") == location.read("Index.db")
        compared += 1
    assert compared > 40


def uncompressed(location: Location) -> bytes:
    """Return the content of Data.db."""
    data = open_data(location)
    count = -(-data.length // data.chunk_length)
    found = np.zeros(count * data.chunk_length, np.uint8)
    data.read(0, count, found)
    return found[: data.length].tobytes()


# --- dictionaries -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tl", "tz"])
def test_dictionaries(name: str) -> None:
    """All rows; their dictionaries come in two parts."""
    location = dictionary_table(name)
    assert location.read("CompressionInfo.db").count(b".dictionary.") == 2
    fields = ["kind", "key1", "clustering1", "a", "b", "z", "st", "marker"]
    found = pa.Table.from_batches(SSTable(location).scan(fields))
    rows = found.to_pylist()
    assert [row["st"]["tombstone"] for row in rows if row["kind"] == "static"] == 300 * [True]
    seen = set()
    for row in rows:
        if row["kind"] == "static":
            continue
        i = int(row["clustering1"].removeprefix("customer-"))
        seen.add(i)
        assert row["key1"] == i % 300
        assert row["b"]["value"] == f"The order number {i} was shipped to the customer"
        assert [e["path"] for e in row["a"]["elements"]] == ["blue", "green"]
        assert [(e["path"], e["value"]) for e in row["z"]["elements"]] == [("qty", i % 7)]
        assert row["b"]["write_time"] == row["marker"]["write_time"]
    assert (seen, len(rows)) == (set(range(ROWS)), ROWS + 300)


def test_every_part_of_the_file_by_itself() -> None:
    """Tokens are read from the middle on; splits are not there without an index."""
    for name in ("tl", "tz"):
        sstable = SSTable(dictionary_table(name))
        tokens = sorted(set(pa.Table.from_batches(sstable.scan(["token"]))["token"].to_pylist()))
        middle = tokens[150]
        found = pa.Table.from_batches(sstable.scan(["kind"], tokens=(middle, middle)))
        assert sorted(found["kind"].to_pylist()) == ROWS // 300 * ["row"] + ["static"]


def rows_of(location: Location) -> pa.Table:
    return pa.Table.from_batches(SSTable(location).scan(["token", "position", "a", "b", "z", "st"]))


@pytest.fixture(scope="module")
def wanted() -> dict[str, pa.Table]:
    return {name: rows_of(dictionary_table(name)) for name in ("tl", "tz")}


def test_parts_in_any_order(tmp_path: Path, wanted: dict[str, pa.Table]) -> None:
    for name in ("tl", "tz"):
        here = copy(dictionary_table(name), tmp_path / name)
        compressor, options, rest = compression(here)
        set_compression(here, compressor, options[::-1], rest)
        assert rows_of(here) == wanted[name]


def compressors(dictionary: bytes) -> dict[str, Callable[[bytes], bytes]]:
    """The writer of each compressor, like ScyllaDB's `lz4_processor` and `zstd_processor`."""
    zstd = zstandard.ZstdCompressor(dict_data=zstandard.ZstdCompressionDict(dictionary) if dictionary else None)
    options = {"dict": dictionary} if dictionary else {}
    return {
        "tl": lambda data: lz4.block.compress(data, store_size=True, **options),
        "tz": zstd.compress,
    }


@pytest.mark.parametrize("kind", ["none", "raw", "large"])
def test_dictionaries_of_all_kinds(tmp_path: Path, wanted: dict[str, pa.Table], kind: str) -> None:
    """None, as before one is trained for a table; one that is plain text, in many parts; one of a megabyte."""
    dictionary = {
        "none": b"",
        "raw": b"The order number 12345 was shipped to the customer customer-12345 blue green qty" * 9,
        "large": random.Random(1).randbytes(1 << 20) + b"The order number 17 was shipped to the customer",
    }[kind]
    for name in ("tl", "tz"):
        location = dictionary_table(name)
        compressor, _, _ = compression(location)
        options = parts(dictionary, 100 if kind == "raw" else 65_534)
        here = recompress(location, tmp_path / name, compressor, options, compressors(dictionary)[name])
        assert rows_of(here) == wanted[name]


@pytest.mark.parametrize("name", ["tl", "tz"])
def test_dictionaries_that_are_not_whole(tmp_path: Path, name: str) -> None:
    here = copy(dictionary_table(name), tmp_path / name)
    compressor, options, rest = compression(here)
    first, second, *others = options
    for broken, said in (
        ([second, *others], "part 0 of the dictionary is missing"),
        ([first, (PART + b"00000002", second[1]), *others], "part 1 of the dictionary is missing"),
        ([first, first, *others], "twice"),
        ([first, (PART + b"x", second[1])], "no part"),
        ([first, (PART + b"9" * 60_000, second[1])], "no part"),
        ([first, (PART, second[1])], "no part"),
    ):
        set_compression(here, compressor, broken, rest)
        with pytest.raises(CorruptFile, match=rf"CompressionInfo\.db.*{said}"):
            rows_of(here)


def test_a_dictionary_of_another_file(tmp_path: Path) -> None:
    """A trained dictionary has a number, which Zstandard stores in each chunk; LZ4 stores no such number."""
    here = copy(dictionary_table("tz"), tmp_path / "tz")
    compressor, options, rest = compression(here)
    first, *others = options
    for number, said in ((b"\1\2\3\4", "chunk 0"), (first[1][4:8], None)):
        set_compression(here, compressor, [(first[0], first[1][:4] + number + first[1][8:]), *others], rest)
        if said is None:
            assert rows_of(here).num_rows == ROWS + 300
            continue
        with pytest.raises(CorruptFile, match=rf"Data\.db.*{said}"):
            rows_of(here)
    broken = first[1][:8] + b"\xff" * 200
    set_compression(here, compressor, [(first[0], broken)], rest)
    with pytest.raises(CorruptFile):
        rows_of(here)


@pytest.mark.parametrize("name", ["tl", "tz"])
def test_chunks_that_differ_from_the_compressed_data(tmp_path: Path, name: str) -> None:
    """With right checksums: refused, and never more memory than a chunk has."""
    location = dictionary_table(name)
    compressor, options, _ = compression(location)
    compress = compressors(dictionary_of(options))[name]
    bomb = zstandard.compress(bytes(1 << 28))
    broken: dict[str, Callable[[bytes], bytes]] = {
        "longer": lambda data: compress(data + b"x"),
        "shorter": lambda data: compress(data[:-1]),
        "empty": lambda _: b"\0",
        "cut": lambda data: compress(data)[:-5],
        "more": lambda data: compress(data) + b"xxxxx",
        "bomb": lambda data: bomb if name == "tz" else b"\xff\xff\xff\x7f" + compress(data)[4:],
    }
    for kind, change in broken.items():
        here = recompress(location, tmp_path / kind, compressor, options, change)
        with pytest.raises(CorruptFile, match="chunk 0"):
            rows_of(here)


def test_a_compressor_that_is_unknown(tmp_path: Path) -> None:
    here = copy(dictionary_table("tl"), tmp_path / "tl")
    _, options, rest = compression(here)
    set_compression(here, "LZ5WithDictsCompressor", options, rest)
    with pytest.raises(Unsupported, match="LZ5WithDictsCompressor is not supported; LZ4Compressor, LZ4WithDicts"):
        rows_of(here)
