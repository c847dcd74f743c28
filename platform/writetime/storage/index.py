"""The starts of an SSTable's partitions, from its index. They are used to split large files and to find tokens.

Index.db has one entry per partition (`RowIndexEntry`):

| part | encoding |
| --- | --- |
| key | 2 bytes of length, then the key |
| position in Data.db | vint |
| size of the row index | vint, 0 if there is none |
| row index | see `row_index` |

The versions `da`, `ms` and `mt` have Partitions.db instead (`PartitionIndex`, and
sstables/trie/bti_partition_index_writer.cc of ScyllaDB). It is a trie of 4096-byte pages with one leaf per partition.
The payload of a leaf is one byte of the key's hash, if flagged, and a signed number:

- A negative number is the position in Data.db with all bits inverted.
- Another number is a position in Rows.db. There is the key (2 bytes of length, then the key), the position in Data.db
  (vint), and the row index.

A footer of 24 bytes ends the file: the position of the first and last key, the number of keys, and the position of the
root (8 bytes each).
"""

# ruff: noqa: PLR0917 (numba has no keyword-only arguments)

from dataclasses import dataclass, field

import numpy as np

from writetime.storage.file_errors import CorruptFile
from writetime.storage.kernel.allocate import room
from writetime.storage.kernel.memory import compiled, load8, load16
from writetime.storage.kernel.primitives import filter_byte, read_vint, skip, token
from writetime.storage.kernel.trie import trie_leaf, trie_payloads
from writetime.storage.locations import Location

# The flag of a leaf whose payload has a byte of the key's hash before the position.
_HASHED = 8


@dataclass(frozen=True)
class PartitionIndex:
    """The start of each partition in the uncompressed data, ascending, and the place of its row index."""

    path: str
    file: np.ndarray
    # The offset of the trie's root in the file; -1 for an Index.db.
    root: int
    positions: np.ndarray
    # Offsets in the bytes of Index.db or Rows.db; -1 if a partition has no row index.
    row_indexes: np.ndarray
    rows: np.ndarray
    rows_path: str
    # The number and the offset of an entry of Index.db. A search for a later entry begins there.
    _place: list[int] = field(default_factory=lambda: [0, 0])

    def leads(self, partition: int, key: bytes) -> bool:
        """Return whether the index has this key for the partition with this number. An Index.db has the whole key. A
        trie has only a part of the token, and one byte of another hash. Raise `CorruptFile` if a node is invalid.
        """
        if self.root < 0:
            number, at = self._place if partition >= self._place[0] else (0, 0)
            at = int(_entry(self.file.ctypes.data, len(self.file), at, partition - number))
            self._place[:] = partition, at
            return self.file[at : at + 2 + len(key)].tobytes() == len(key).to_bytes(2, "big") + key
        # The byte-comparable token. Only keys with the same token differ in the bytes after it.
        comparable = b"\x40" + (token(key) + (1 << 63)).to_bytes(8, "big")
        leaf = trie_leaf(self.file, self.root, comparable, self.path)
        if leaf is None or leaf[0] == 0:
            return leaf is not None
        bits, offset = leaf
        entry = room(2, np.int64).reshape(2, 1)
        payload = np.array([[bits], [offset]], np.int64)
        bad = _leaves(self.file.ctypes.data, len(self.file), payload, self.rows.ctypes.data, len(self.rows), entry)
        found = bad < 0 and entry[0, 0] == self.positions[partition]
        return found and (bits < _HASHED or self.file[offset] == filter_byte(key))


def read_index(location: Location) -> PartitionIndex:
    """Read the index of an SSTable. If the SSTable has no index, return one without partitions. Raise `CorruptFile` if
    the index cannot be read, or its positions do not increase.
    """
    component = location.features.index
    path = location.path(component)
    none = np.empty(0, np.int64)
    if not location.exists(component):
        empty = np.empty(0, np.uint8)
        return PartitionIndex(path, empty, -1, none, none, empty, path)
    data = np.frombuffer(location.read(component), np.uint8)
    if component == "Index.db":
        most = len(data) // 4
        entries = room(2 * most, np.int64).reshape(2, most)
        found = _walk_index(data.ctypes.data, len(data), entries) if len(data) else 0
        if found < 0:
            raise CorruptFile(path, -found - 1, "an entry of the index was expected")
        index = PartitionIndex(path, data, -1, entries[0, :found].copy(), entries[1, :found].copy(), data, path)
    else:
        rows = np.frombuffer(location.read("Rows.db"), np.uint8)
        if len(data) < 24:
            raise CorruptFile(path, 0, "a footer of 24 bytes was expected")
        # The footer: position of the first and last key, number of keys, position of the root.
        count, root = (int(n) for n in np.frombuffer(data[-16:].tobytes(), ">i8"))
        payloads = trie_payloads(data, root, count, path)
        entries = room(2 * count, np.int64).reshape(2, count)
        bad = _leaves(data.ctypes.data, len(data), payloads, rows.ctypes.data, len(rows), entries)
        if bad >= 0:
            raise CorruptFile(path, bad, "the position of a partition was expected")
        index = PartitionIndex(path, data, root, entries[0], entries[1], rows, location.path("Rows.db"))
    positions = index.positions
    if (np.diff(positions) <= 0).any() or (len(positions) and positions[0] != 0):
        raise CorruptFile(path, None, "positions of partitions that start at 0 and grow were expected")
    return index


@compiled
def _walk_index(address: int, length: int, entries: np.ndarray) -> int:
    """Return the number of entries. At an invalid entry, return minus its offset, minus 1."""
    p = address
    end = address + length
    count = 0
    while p < end:
        at = p
        if end - p < 2 or load16(p) > end - p - 2:
            return -(at - address) - 1
        p += 2 + load16(p)
        position, p = read_vint(p, end)
        rows = p
        size, p = read_vint(p, end)
        p = skip(p, size, end)
        if p > end or count == entries.shape[1]:
            return -(at - address) - 1
        entries[0, count] = position
        entries[1, count] = rows - address if size > 0 else -1
        count += 1
    return count


@compiled
def _entry(address: int, length: int, start: int, number: int) -> int:
    """Return the offset of the entry of Index.db that is `number` entries after the one at `start`. `_walk_index` must
    have checked both.
    """
    p = address + start
    end = address + length
    for _ in range(number):
        _, p = read_vint(p + 2 + load16(p), end)
        size, p = read_vint(p, end)
        p += size
    return p - address


@compiled
def signed(p: int, size: int) -> int:
    """Read a big-endian number of up to 8 bytes (`SizedInts`)."""
    value = load8(p)
    if value >= 128:
        value -= 256
    for i in range(1, size):
        value = (value << 8) | load8(p + i)
    return value


@compiled
def _leaves(address: int, length: int, payloads: np.ndarray, rows: int, rows_length: int, entries: np.ndarray) -> int:
    """Read the position in the payload of each leaf. Return -1, or the offset of an invalid leaf."""
    before = -1
    for i in range(payloads.shape[1]):
        size = payloads[0, i]
        offset = payloads[1, i]
        if size >= _HASHED:
            size -= _HASHED - 1
            offset += 1
        if size > length - offset or size < 1:
            return payloads[1, i]
        value = signed(address + offset, size)
        if value < 0:
            entries[0, i] = ~value
            entries[1, i] = -1
            continue
        # The partition has several blocks. Its entry in Rows.db starts with the key. Entries are in the keys' order.
        if value > rows_length - 2 or value <= before:
            return payloads[1, i]
        before = value
        end = rows + rows_length
        q = skip(rows + value + 2, load16(rows + value), end)
        entries[1, i] = q - rows
        position, q = read_vint(q, end)
        if q > end:
            return payloads[1, i]
        entries[0, i] = position
    return -1
