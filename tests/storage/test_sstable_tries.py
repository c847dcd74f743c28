"""Splits of ScyllaDB's `ms` and `mt`, whose indexes are tries: on a server's files, and on tries made from their data.

Few recorded files have partitions with several blocks. So these tests also make Rows.db, for blocks of any size.

Oracle: our own second path: the changes of a whole read, by an index that the test writes.
"""

import random
import struct
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.storage import tries
from tests.support.examples import is_long_run
from tests.support.expected import as_rows, plain_values
from tests.support.recordings import WIDE, recorded
from tests.support.rewriting import copy
from writetime.changes.model import change_schema
from writetime.schema.table import TableSchema
from writetime.storage.batch import Origin
from writetime.storage.file_errors import CorruptFile, StorageError
from writetime.storage.kernel.trie import trie_payloads
from writetime.storage.locations import Location
from writetime.storage.sstable import MAX_TOKEN, MIN_TOKEN, WINDOW, SSTable

pytestmark = pytest.mark.long

RECORDED = Path(__file__).parents[1] / "data" / "scylla"
# A short run tries a tenth of the flips, the plans of fewest pieces, and fewer ranges of tokens.
FLIPS = 60 if is_long_run() else 6
TARGETS = (1, 150, 5000, 100_000, 1 << 30) if is_long_run() else (1, 5000, 1 << 30)
PIECES = (200, 20, 3) if is_long_run() else (50, 3)
RANGES = 3 if is_long_run() else 1
WRONG_POSITIONS = 60 if is_long_run() else 5
# The size of pieces that are read by a wrong index.
SMALLEST = 1 if is_long_run() else 1000
EVERYTHING = (MIN_TOKEN, MAX_TOKEN)
ORIGIN = Origin("sstable", "", datetime.now(UTC))
Tokens = tuple[int, int]


def name_of(location: Location) -> str:
    return f"{Path(location.folder).parent.name}-{Path(location.folder).stem}-{location.id}"


TRIES = recorded("mt")
# One of each table; `tl` is the same as `tz` in another compression.
TABLES = [location for folder, location in {x.folder: x for x in TRIES}.items() if not folder.endswith("tl.sstables")]
# With partitions of several blocks.
BLOCKS = [location for location in TABLES if Path(location.folder).parent.name == "wide"]
SMALL = [location for location in TABLES if "rec" in location.folder]
by_file = pytest.mark.parametrize("location", TRIES, ids=name_of)
# Those that take most of the time.
LARGE = [location for location in TABLES if "dictionaries" in location.folder]
by_table = pytest.mark.parametrize("location", TABLES, ids=name_of)


def in_order(batches: Iterable[pa.RecordBatch], schema: TableSchema) -> pa.Table:
    """Return changes in the order of the file; pieces have range tombstones that a cut is inside of in another."""
    table = pa.Table.from_batches(batches, schema=change_schema(schema))
    offsets = table["origin"].combine_chunks().field("offset").to_numpy()
    return table.take(np.argsort(offsets, kind="stable"))


def by_splits(location: Location, target: int, tokens: Tokens = EVERYTHING, window: int = WINDOW) -> pa.Table:
    sstable = SSTable(location)
    splits = sstable.splits(target, tokens)
    assert all(a.end == b.start for a, b in pairwise(splits))
    scans = (sstable.scan(split=split, tokens=tokens, window=window, origin=ORIGIN) for split in splits)
    return in_order((batch for scan in scans for batch in scan), sstable.schema)


def whole(location: Location, tokens: Tokens = EVERYTHING) -> pa.Table:
    sstable = SSTable(location)
    return in_order(sstable.scan(tokens=tokens, origin=ORIGIN), sstable.schema)


def assert_same(found: pa.Table, wanted: pa.Table) -> None:
    """Compare changes; as texts where they are not equal, as not-a-number is not equal to itself."""
    assert found.num_rows == wanted.num_rows
    differing = [name for name in wanted.column_names if not found[name].equals(wanted[name])]
    if any(texts(found, name) != texts(wanted, name) for name in differing):
        # Pieces may have changes of one offset in another order.
        assert as_rows(found.to_batches()) == as_rows(wanted.to_batches())


def texts(changes: pa.Table, name: str) -> list[str]:
    return list(map(repr, plain_values(changes[name].combine_chunks())))


def copy_with_blocks(location: Location, folder: Path, block: int | None) -> tuple[Location, list[tries.Partition]]:
    here, found = copy(location, folder), tries.partitions(location)
    tries.index_again(here, block, found)
    return here, found


def test_there_are_files_of_every_kind() -> None:
    assert len(TRIES) >= 19
    assert {name_of(location).partition("-")[0] for location in TRIES} == {"rec109", "dictionaries", "wide"}


@pytest.mark.parametrize("location", [x for x in TRIES if x not in BLOCKS], ids=name_of)
def test_tries_written_here_are_those_that_scylladb_writes(location: Location, tmp_path: Path) -> None:
    """This does not test the reader: it shows that the cases of the other tests find faults."""
    here, _ = copy_with_blocks(location, tmp_path / "here", None)
    assert here.read("Partitions.db") == location.read("Partitions.db")
    assert here.read("Rows.db") == location.read("Rows.db")


@by_file
def test_splits_make_the_changes_of_the_whole(location: Location) -> None:
    wanted = whole(location)
    # Of targets that make the same pieces, one.
    for target in {len(SSTable(location).splits(target)): target for target in TARGETS}.values():
        assert_same(by_splits(location, target), wanted)
    starts = [split.start.offset for split in SSTable(location).splits(1) if split.start.partition is None]
    assert starts == [p.start for p in tries.partitions(location)]


@pytest.mark.parametrize("location", BLOCKS, ids=name_of)
def test_blocks_are_read_as_scylladb_writes_them(location: Location) -> None:
    sstable, found = SSTable(location), tries.partitions(location)
    blocks = [cut for p in found if (cut := tries.blocks_of(p, 1024)) is not None]
    wanted = [(cut.partition.start + start, is_open) for cut in blocks for start, is_open in cut.starts]
    assert [(s.start.offset, s.start.open) for s in sstable.splits(1) if s.start.partition is not None] == wanted
    assert any(is_open is not None for _, is_open in wanted)
    assert all(sstable.index.leads(i, p.key) for i, p in enumerate(found))


def with_block(location: Location, block: int) -> Any:
    """A case; short runs make no trie of each row of a large file."""
    marks = [pytest.mark.long_only("tens of thousands of nodes")] if location in LARGE and block == 1 else []
    return pytest.param(location, block, marks=marks, id=f"{name_of(location)}-{block}")


@pytest.mark.parametrize(("location", "block"), [with_block(location, n) for location in TABLES for n in (1, 400)])
def test_partitions_are_split_where_a_block_of_rows_starts(location: Location, tmp_path: Path, block: int) -> None:
    here, found = copy_with_blocks(location, tmp_path / "here", block)
    wanted = whole(location)
    for pieces in PIECES:
        assert_same(by_splits(here, SSTable(here).data.length // pieces), wanted)
    splits = SSTable(here).splits(1)
    blocks = [cut for p in found if (cut := tries.blocks_of(p, block)) is not None]
    assert len(splits) == len(found) + sum(len(cut.starts) for cut in blocks)
    assert [s.start.open for s in splits if s.start.partition is not None] == [o for b in blocks for _, o in b.starts]


def test_blocks_start_inside_range_tombstones(tmp_path: Path) -> None:
    here, _ = copy_with_blocks(WIDE, tmp_path / "here", 1000)
    splits = SSTable(here).splits(1)
    assert sum(split.start.open is not None for split in splits) > 50
    target = 1 if is_long_run() else 3000
    assert sum(split.start.open is not None for split in SSTable(here).splits(target)) > 10
    wanted = whole(WIDE)
    assert_same(by_splits(here, target), wanted)
    assert_same(by_splits(here, 10_000, window=1), wanted)


@by_table
def test_tokens_choose_partitions(location: Location, tmp_path: Path) -> None:
    # As many blocks as there are rows, in Python, take most of the time of a large file.
    here, found = copy_with_blocks(location, tmp_path / "here", 50 if is_long_run() or location not in LARGE else 1000)
    for tokens in ranges(found, random.Random(4)):
        wanted = whole(location, tokens)
        assert_same(by_splits(location, 10_000, tokens), wanted)
        assert_same(by_splits(here, 20_000, tokens), wanted)


def ranges(found: list[tries.Partition], r: random.Random) -> Iterator[tuple[int, int]]:
    tokens = [tries.token(p.key) for p in found]
    for token in r.sample(tokens, min(len(tokens), RANGES)):
        yield token, token
        yield token + 1, token + 1
        yield token - 1, token - 1
    bounds = [MIN_TOKEN, MAX_TOKEN, *tokens]
    for _ in range(2 * RANGES):
        first, last = sorted(r.choices(bounds, k=2))
        yield first, last


def test_splits_are_planned_without_reading_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, found = copy_with_blocks(WIDE, tmp_path / "here", 300)
    sstable = SSTable(here)
    read: list[int] = []
    chunks = sstable.data.read

    def counted(first: int, count: int, out: np.ndarray) -> int:
        read.append(count)
        return chunks(first, count, out)

    monkeypatch.setattr(sstable.data, "read", counted)
    assert len(sstable.splits(1)) > 1000
    assert not read
    token = tries.token(found[100].key)
    assert sstable.splits(1, (token, token + (1 << 60)))
    assert sum(read) < 30 < sstable.data.length // sstable.data.chunk_length


@pytest.mark.parametrize("location", [*SMALL, WIDE, *BLOCKS], ids=name_of)
def test_a_wrong_index_never_gives_a_wrong_answer(location: Location, tmp_path: Path) -> None:
    """Flipped bits, and files that were cut short, read whole and by tokens."""
    here, found = copy(location, tmp_path / "here"), tries.partitions(location)
    flips, target = (FLIPS, SMALLEST) if len(found) < 50 else (FLIPS // 4, 50_000)
    if location not in BLOCKS:
        tries.index_again(here, 200, found)
    r = random.Random(name_of(location))
    answers = {
        tokens: whole(location, tokens) for tokens in [EVERYTHING, *r.sample(list(ranges(found, r)), 2 * RANGES)]
    }
    outcomes = {"refused": 0, "same": 0}
    for component in ("Partitions.db", "Rows.db"):
        path = Path(here.path(component))
        sound = path.read_bytes()
        for broken in broken_copies(sound, flips, r):
            path.write_bytes(broken)
            for tokens, wanted in answers.items():
                try:
                    assert_same(by_splits(here, target, tokens), wanted)
                    outcomes["same"] += 1
                except StorageError:
                    outcomes["refused"] += 1
        path.write_bytes(sound)
    print(outcomes)
    assert outcomes["refused"] > 0


def broken_copies(sound: bytes, flips: int, r: random.Random) -> Iterator[bytes]:
    for _ in range(flips if sound else 0):
        bit = r.randrange(8 * len(sound))
        broken = bytearray(sound)
        broken[bit // 8] ^= 1 << bit % 8
        yield bytes(broken)
    for _ in range(flips // 3 if sound else 0):
        yield sound[: r.randrange(len(sound))]


def write_index(here: Location, keys: list[bytes], positions: list[int]) -> None:
    """Write an index without blocks, in the form of the SSTable's version."""
    if here.version == "me":
        entries = zip(keys, positions, strict=True)
        data = b"".join(struct.pack(">H", len(key)) + key + tries.write_vint(at) + b"\0" for key, at in entries)
        Path(here.path("Index.db")).write_bytes(data)
    else:
        Path(here.path("Partitions.db")).write_bytes(tries.write_partitions(keys, [~at for at in positions]))


by_index = pytest.mark.parametrize("location", SMALL + recorded("me")[::5], ids=name_of)


@by_index
def test_an_index_that_lacks_a_partition_hides_none(location: Location, tmp_path: Path) -> None:
    found = tries.partitions(location)
    here = copy(location, tmp_path / "here")
    everything = whole(location)
    for missing in range(1, min(len(found), 8)):
        rest = found[:missing] + found[missing + 1 :]
        write_index(here, [p.key for p in rest], [p.start for p in rest])
        assert_same(by_splits(here, 10_000), everything)
        token = tries.token(found[missing].key)
        for tokens in ((token, token), (token, MAX_TOKEN), (MIN_TOKEN, token), (token - 1, token + 1)):
            assert_same(by_splits(here, 1 << 30, tokens), whole(location, tokens))


@by_index
def test_an_index_with_a_wrong_position_hides_no_partition(location: Location, tmp_path: Path) -> None:
    """Bytes at another offset may look like a partition of another token."""
    found = tries.partitions(location)
    here = copy(location, tmp_path / "here")
    r = random.Random(9)
    for wrong in r.sample(range(1, len(found)), min(len(found) - 1, 4)):
        before, after = found[wrong - 1 : wrong + 1]
        answers = {token: whole(location, (token, token)) for token in (tries.token(p.key) for p in (before, after))}
        for at in r.sample(range(before.start + 1, after.end), min(WRONG_POSITIONS, after.end - before.start - 1)):
            write_index(here, [p.key for p in found], [at if p is after else p.start for p in found])
            for token, wanted in answers.items():
                try:
                    assert_same(by_splits(here, 1 << 30, (token, token)), wanted)
                except StorageError:
                    assert at != after.start


def ladder(levels: int, leaf: bytes) -> tuple[bytes, int]:
    """Return a trie of two ways from each level to the next: 2^levels paths through few nodes; and its root."""
    out = bytearray(leaf)
    below = 0
    for _ in range(levels):
        node = tries.encode_node(0, b"", {1: len(out) - below, 2: len(out) - below})
        below = len(out)
        out += node
    return bytes(out), below


@pytest.mark.parametrize("leaf", [b"\x00\x00", b"\x08\x00\xff"], ids=["without payload", "with payload"])
@pytest.mark.parametrize("component", ["Partitions.db", "Rows.db"])
def test_shared_nodes_take_no_exponential_time(component: str, leaf: bytes, tmp_path: Path) -> None:
    here, found = copy_with_blocks(WIDE, tmp_path / "here", 300)
    assert SSTable(here).splits(1)
    trie, root = ladder(36, leaf)
    path = Path(here.path(component))
    if component == "Partitions.db":
        path.write_bytes(trie + struct.pack(">QQQ", len(trie), 2, root))
    else:
        # The first entry comes first in the file, so that those of the others keep their places.
        sound = path.read_bytes()
        key = found[0].key
        first = next(i for i in range(len(sound)) if sound.startswith(struct.pack(">H", len(key)) + key, i))
        base = first + 2 + len(key)
        assert len(trie) < first
        distance = root - base
        entry = tries.write_vint(0) + tries.write_vint(distance << 1 ^ distance >> 63) + tries.write_vint(1) + b"\x80"
        path.write_bytes(trie + sound[len(trie) : base] + entry + sound[base + len(entry) :])
    # Of this process alone: other programs may have the cores for a second.
    began = time.process_time()
    with pytest.raises(CorruptFile, match=component):
        SSTable(here).splits(1)
    assert time.process_time() - began < 1


def test_every_kind_of_node_is_read() -> None:
    for distance in (3, 200, 4000, 60_000, 1 << 17, 1 << 26):
        for children in ([7], [7, 8, 9], [0, 255], list(range(256))):
            for bits in (0, 1, 15):
                out = bytearray()
                below = {}
                for byte in children:
                    below[byte] = len(out)
                    out += bytes([1, byte])
                out += bytes(distance)
                at = len(out)
                out += tries.encode_node(bits, b"payload", {b: at - p for b, p in below.items()})
                payloads = trie_payloads(np.frombuffer(bytes(out), np.uint8), at, len(children) + (bits > 0), "")
                assert payloads[0].tolist() == ([bits] if bits else []) + [1] * len(children)
                assert [out[p] for p in payloads[1, bits > 0 :]] == children
