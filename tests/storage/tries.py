"""Writes indexes like ScyllaDB's for `ms` and `mt`, and finds their content in the data without an index.

Sources: sstables/mx/writer.cc, sstables/trie/bti_node_sink.cc, bti_partition_index_writer.cc and
bti_row_index_writer.cc of ScyllaDB. Pages are left out: a reader does not need them.
"""

import functools
import random
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from writetime.schema.values import read_vint
from writetime.storage.kernel.primitives import filter_byte, token
from writetime.storage.locations import Location
from writetime.storage.sstable import SSTable
from writetime.storage.statistics import Header, wrap64

Deletion = tuple[int, int]  # write time, deletion time
NOT_DELETED = (-(1 << 63), 0x7FFFFFFF)

_SINGLE_4, _SINGLE_8, _SINGLE_12, _SINGLE_16 = 1, 2, 3, 4
_SPARSE = {8: 5, 12: 6, 16: 7, 24: 8, 40: 9}
_DENSE = {12: 10, 16: 11, 24: 12, 32: 13, 40: 14, 64: 15}
_END_OF_PARTITION, _IS_MARKER, _EXTENDED, _STATIC = 0x01, 0x02, 0x80, 0x01


@dataclass
class Trie:
    """A node with its subtree. `bits` are those of the payload; 0 means that it has none."""

    bits: int = 0
    payload: bytes = b""
    children: dict[int, "Trie"] = field(default_factory=dict)

    def add(self, key: bytes, bits: int, payload: bytes) -> None:
        """Add a key, which must be later than those before it."""
        node = self
        for byte in key:
            node = node.children.setdefault(byte, Trie())
        assert not node.bits
        assert not node.children
        node.bits, node.payload = bits, payload

    def write(self, out: bytearray) -> int:
        """Append the nodes to a file; return the position of the root."""
        return self._write(out, is_root=True)

    def _write(self, out: bytearray, *, is_root: bool) -> int:
        positions = {byte: child._write(out, is_root=False) for byte, child in self.children.items()}
        at = len(out)
        out += encode_node(self.bits, self.payload, {b: at - p for b, p in positions.items()}, is_chain=not is_root)
        return at


def encode_node(bits: int, payload: bytes, children: dict[int, int], *, is_chain: bool = True) -> bytes:
    """Return a node of the smallest kind. `children` are the distances to them, by their bytes in order."""
    if not children:
        return bytes([bits]) + payload
    farthest = max(children.values()).bit_length()
    first, *rest = children
    if not rest and farthest <= 16:
        (distance,) = children.values()
        if not bits and farthest <= 4:
            return bytes([_SINGLE_4 << 4 | distance, first])
        if not bits and farthest <= 12 and (is_chain or farthest > 8):
            return bytes([_SINGLE_12 << 4 | distance >> 8, distance & 0xFF, first])
        if farthest <= 8:
            return bytes([_SINGLE_8 << 4 | bits, first, distance]) + payload
        return bytes([_SINGLE_16 << 4 | bits, first]) + distance.to_bytes(2, "big") + payload
    last = rest[-1] if rest else first
    sparse = next((width for width in _SPARSE if width >= farthest), 0)
    dense = next(width for width in _DENSE if width >= farthest)
    sparse_size = 16 + -(-(sparse + 8) * len(children) // 8)
    dense_size = 24 + -(-dense * (last - first + 1) // 8)
    if rest and sparse and sparse_size < dense_size:
        node = bytes([_SPARSE[sparse] << 4 | bits, len(children), *children])
        return node + _pack(children.values(), sparse) + payload
    distances = [children.get(byte, 0) for byte in range(first, last + 1)]
    return bytes([_DENSE[dense] << 4 | bits, first, last - first]) + _pack(distances, dense) + payload


def _pack(distances: Iterable[int], width: int) -> bytes:
    digits = "".join(f"{d:0{width // 4}x}" for d in distances)
    return bytes.fromhex(digits + "0" * (len(digits) % 2))


@dataclass
class Partition:
    """A partition of a data file: its key, where it starts and ends, its deletion, and where it may be cut.

    `places` are the offsets in the file of its rows and bounds, each with the range tombstone that is open there.
    """

    key: bytes
    start: int
    end: int
    deletion: Deletion
    places: list[tuple[int, Deletion | None]]


@functools.lru_cache(64)
def partitions(location: Location) -> list[Partition]:
    """Find the partitions of a data file of the formats before `oa`, without an index."""
    sstable = SSTable(location)
    data = sstable.data
    chunks = -(-data.length // data.chunk_length)
    out = np.empty(chunks * data.chunk_length, np.uint8)
    size = data.read(0, chunks, out)
    return list(_walk(out[:size].tobytes(), sstable.header))


def _walk(data: bytes, header: Header) -> Iterator[Partition]:
    p = 0
    while p < len(data):
        start = p
        size = int.from_bytes(data[p : p + 2], "big")
        key = data[p + 2 : p + 2 + size]
        p += 2 + size
        deletion_time, write_time = struct.unpack_from(">iq", data, p)
        p += 12
        places: list[tuple[int, Deletion | None]] = []
        is_open: Deletion | None = None
        while not data[p] & _END_OF_PARTITION:
            at = p
            flags = data[p]
            p += 1
            is_static = bool(flags & _EXTENDED) and bool(data[p] & _STATIC)
            p += bool(flags & _EXTENDED)
            if not is_static:
                places.append((at, is_open))
            if flags & _IS_MARKER:
                kind, count = struct.unpack_from(">BH", data, p)
                p = _skip_clustering(data, p + 3, count, header)
                size, p = read_vint(data, p)
                is_open = _open_after(data, p, kind, header)
            else:
                p = _skip_clustering(data, p, 0 if is_static else len(header.clustering), header)
                size, p = read_vint(data, p)
            p += size
        p += 1
        yield Partition(key, start, p, (write_time, deletion_time), places)


def _skip_clustering(data: bytes, p: int, count: int, header: Header) -> int:
    states = 0
    for i in range(count):
        if i % 32 == 0:
            states, p = read_vint(data, p)
        if states >> 2 * (i % 32) & 3 == 0:
            length = header.clustering[i].components[0].fixed_length
            if length is None:
                length, p = read_vint(data, p)
            p += length
    return p


def _open_after(data: bytes, p: int, kind: int, header: Header) -> Deletion | None:
    # ClusteringPrefix.Kind: 0 and 6 close a range, 2 and 5 close one and open the next, 1 and 7 open one.
    if kind in (0, 6):
        return None
    _, p = read_vint(data, p)
    pairs = []
    for _ in range(2 if kind in (2, 5) else 1):
        write_time, p = read_vint(data, p)
        deletion_time, p = read_vint(data, p)
        pairs.append((wrap64(header.min_write_time + write_time), header.min_deletion_time + deletion_time))
    return pairs[-1]


@dataclass
class Blocks:
    """Where a partition's blocks of rows start, from its start, and which range tombstone is open there."""

    partition: Partition
    starts: list[tuple[int, Deletion | None]]


def blocks_of(partition: Partition, size: int) -> Blocks | None:
    """Cut a partition into blocks of `size` bytes or more, as ScyllaDB does; None if there are less than two."""
    starts: list[tuple[int, Deletion | None]] = []
    for offset, is_open in partition.places:
        if not starts or offset - partition.start >= starts[-1][0] + size:
            starts.append((offset - partition.start, is_open))
    return Blocks(partition, starts) if len(starts) > 1 else None


def write_vint(value: int) -> bytes:
    """Return an unsigned vint."""
    for extra in range(8):
        if value < 1 << 7 * (extra + 1):
            return (value | (0xFF00 >> extra & 0xFF) << 8 * extra).to_bytes(extra + 1, "big")
    return b"\xff" + value.to_bytes(8, "big")


def sized(value: int) -> bytes:
    """Return a signed number in as few bytes as hold it."""
    return value.to_bytes(((value if value >= 0 else ~value).bit_length() + 8) // 8, "big", signed=True)


def deletion_bytes(deletion: Deletion) -> bytes:
    """Return a partition's deletion as Rows.db has it: ScyllaDB marks negative write times."""
    if deletion == NOT_DELETED:
        return b"\x80"
    return (b"\xc0" if deletion[0] < 0 else b"") + struct.pack(">qi", *deletion)


def write_rows(blocks: Sequence[Blocks], seed: int = 1) -> tuple[bytes, dict[int, int]]:
    """Return a Rows.db, and the positions in it of the entries of partitions, by the partitions' offsets.

    The keys are random, as a reader of blocks does not use them; so there are nodes of many kinds.
    """
    r = random.Random(seed)
    out = bytearray()
    entries = {}
    for each in blocks:
        trie = row_trie(each, r)
        root = trie.write(out)
        entries[each.partition.start] = len(out)
        out += struct.pack(">H", len(each.partition.key)) + each.partition.key
        base = len(out)
        distance = root - base
        out += write_vint(each.partition.start) + write_vint(distance << 1 ^ distance >> 63)
        out += write_vint(len(each.starts)) + deletion_bytes(each.partition.deletion)
    return bytes(out), entries


def row_trie(blocks: Blocks, r: random.Random) -> Trie:
    """Return the trie of a partition's blocks: the first has the empty key, the last key stands for the end."""
    count = len(blocks.starts)
    keys: set[bytes] = set()
    letters = r.choice([range(256), range(0x40, 0x44), [0, 9, 200]])
    while len(keys) < count:
        keys.add(bytes(r.choice(letters) for _ in range(r.randint(1, 12))))
    end = blocks.partition.end - 1 - blocks.partition.start
    trie = Trie()
    for key, (offset, is_open) in zip([b"", *sorted(keys)], [*blocks.starts, (end, None)], strict=True):
        number = sized(offset)
        if is_open is None:
            trie.add(key, len(number), number)
        else:
            trie.add(key, 8 | len(number), number + struct.pack(">qi", *is_open))
    return trie


def write_partitions(keys: Sequence[bytes], positions: Sequence[int]) -> bytes:
    """Return a Partitions.db. A position is one in Rows.db, or the complement of one in Data.db."""
    full = [b"\x40" + ((token(key) + (1 << 63)) % (1 << 64)).to_bytes(8, "big") for key in keys]
    trie = Trie()
    for i, key in enumerate(full):
        needed = 1 + max((_common(key, other) for other in full[max(i - 1, 0) : i] + full[i + 1 : i + 2]), default=0)
        number = sized(positions[i])
        trie.add(key[:needed], 7 + len(number), bytes([filter_byte(keys[i])]) + number)
    out = bytearray()
    root = trie.write(out)
    footer = len(out)
    for key in (keys[0], keys[-1]):
        out += struct.pack(">H", len(key)) + key
    return bytes(out + struct.pack(">QQQ", footer, len(keys), root))


def index_again(location: Location, block: int | None, found: Sequence[Partition]) -> None:
    """Write an SSTable's Partitions.db and Rows.db again, with blocks of at least `block` bytes of rows."""
    blocks = [cut for p in found if block is not None and (cut := blocks_of(p, block)) is not None]
    rows, entries = write_rows(blocks)
    positions = [entries.get(p.start, ~p.start) for p in found]
    Path(location.path("Rows.db")).write_bytes(rows)
    Path(location.path("Partitions.db")).write_bytes(write_partitions([p.key for p in found], positions))


def _common(a: bytes, b: bytes) -> int:
    return next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
