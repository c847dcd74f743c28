"""The starts of the row blocks of a large partition, at which it can be cut.

In Index.db (`RowIndexEntry`, `IndexInfo`), the row index follows its size:

| part | encoding |
| --- | --- |
| length of the partition's header | vint |
| the partition's deletion | 12 bytes; in newer versions 1 byte if there is none |
| number of blocks | vint |
| each block | see below |

| part of a block | encoding |
| --- | --- |
| first and last clustering key | two clustering prefixes |
| offset in the partition | vint |
| width | vint |
| a range tombstone is open at the end | 1 byte, 0 or 1 |
| its deletion | 12 bytes if the byte before is 1 |

In Rows.db (`TrieIndexEntry`, `RowIndexReader`, and sstables/trie/bti_row_index_writer.cc of ScyllaDB), the row index
follows the position:

| part | encoding |
| --- | --- |
| distance to the root of the trie | signed vint |
| number of blocks | vint |
| the partition's deletion | as above |

The trie has a payload for each block and for the end of the partition: the offset, and the deletion that is open there,
if there is one. The nodes of the trie are before this entry, and after the previous partition's entry. ScyllaDB's
deletion times in the trie are signed, and at most 2^31 - 2.
"""

from dataclasses import dataclass

import numpy as np

from writetime.schema.types import MarshalKey
from writetime.schema.values import read_vint
from writetime.storage.file_errors import CorruptFile
from writetime.storage.index import PartitionIndex, signed
from writetime.storage.kernel.allocate import room
from writetime.storage.kernel.memory import compiled, load8, load16, load32, load64, load_int32
from writetime.storage.kernel.primitives import read_vint as vint_at
from writetime.storage.kernel.primitives import skip
from writetime.storage.kernel.trie import trie_payloads
from writetime.storage.locations import Location

_CLUSTERING = 4
_OPEN = 8


@dataclass(frozen=True)
class Blocks:
    """The ascending offsets of a partition's blocks from its start, and the range tombstone that is open at each."""

    offsets: np.ndarray
    is_open: np.ndarray
    write_times: np.ndarray
    deletion_times: np.ndarray

    def open_at(self, block: int) -> tuple[int, int] | None:
        """Return write time and deletion time of the range tombstone that is open where a block starts."""
        return (int(self.write_times[block]), int(self.deletion_times[block])) if self.is_open[block] else None


def read_blocks(
    location: Location, clustering: tuple[MarshalKey, ...], index: PartitionIndex, partition: int
) -> Blocks | None:
    """Read the blocks of the partition with this number. Return None if it has no row index. Raise `CorruptFile` if the
    row index cannot be read, or its offsets do not increase.
    """
    at = int(index.row_indexes[partition])
    if at < 0:
        return None
    features = location.features
    rows, path = index.rows, index.rows_path
    address, length = rows.ctypes.data, len(rows)
    is_big = features.index == "Index.db"
    fault = CorruptFile(path, at, "an index of the rows of a partition was expected, with offsets that grow")
    # The numbers before the blocks have at most 39 bytes.
    head = rows[at : at + 39].tobytes()
    try:
        count, start, end = _big_head(head, features.compact_partition_deletion) if is_big else _bti_head(head)
    except IndexError:
        raise fault from None
    if is_big:
        if not start <= end <= length - at:
            raise fault
        # A block has at least 5 bytes: two clustering keys, an offset, a width, and a flag.
        blocks = min(count, length // 5)
        found = room(4 * blocks, np.int64).reshape(4, blocks)
        lengths = np.array([-1 if (n := k.components[0].fixed_length) is None else n for k in clustering], np.int64)
        first, last = address + at + start, address + at + end
        sound = _big_blocks(first, last, lengths, features.unsigned_deletion_time, found)
    else:
        # The trie also has the end of the partition. Its nodes are between the previous entry and this one, so reading
        # all tries takes no longer than reading the file.
        bounds = int(index.row_indexes[:partition].max(initial=0)), at
        payloads = trie_payloads(rows, at + start, count + 1, path, bounds)
        found = room(4 * payloads.shape[1], np.int64).reshape(4, payloads.shape[1])
        sound = _bti_blocks(address, length, payloads, features.unsigned_deletion_time, found)
        found = found[:, :-1]
    if not sound or not found.size or found[0, 0] <= 0 or (np.diff(found[0]) <= 0).any():
        raise fault
    return Blocks(found[0], found[1] != 0, found[2], found[3])


def _big_head(data: bytes, compact_deletion: bool) -> tuple[int, int, int]:
    """Return the number of blocks, and the offsets at which they start and end."""
    size, p = read_vint(data, 0)
    end = p + size
    _, p = read_vint(data, p)
    p += 1 if compact_deletion and data[p] == 0x80 else 12
    count, p = read_vint(data, p)
    return count, p, end


def _bti_head(data: bytes) -> tuple[int, int, int]:
    """Return the number of blocks, the offset of the root of their trie, and that of the partition's deletion."""
    _, p = read_vint(data, 0)
    distance, p = read_vint(data, p)
    count, p = read_vint(data, p)
    return count, (distance >> 1) ^ -(distance & 1), p


@compiled
def _skip_prefix(p: int, end: int, lengths: np.ndarray) -> int:
    """Skip a clustering key or a bound after its kind (`ClusteringPrefix.Serializer`)."""
    if end - p < 3:
        return end + 1
    count = len(lengths)
    kind = load8(p)
    p += 1
    if kind != _CLUSTERING:
        count = load16(p)
        p += 2
    if count > len(lengths):
        return end + 1
    header = 0
    for i in range(count):
        if i % 32 == 0:
            header, p = vint_at(p, end)
        if (header >> (2 * (i % 32))) & 3 == 0:
            length = lengths[i]
            if length < 0:
                length, p = vint_at(p, end)
            p = skip(p, length, end)
    return p


@compiled
def _big_blocks(p: int, end: int, lengths: np.ndarray, unsigned: bool, found: np.ndarray) -> bool:
    """Read all blocks into `found`; return whether they are valid."""
    is_open = 0
    for i in range(found.shape[1]):
        p = _skip_prefix(p, end, lengths)
        p = _skip_prefix(p, end, lengths)
        offset, p = vint_at(p, end)
        _, p = vint_at(p, end)
        if p >= end:
            return False
        found[0, i] = offset
        is_open = load8(p)
        p += 1
        # A tombstone that is open at the end of a block is also open at the start of the next.
        following = i + 1 < found.shape[1]
        if is_open > 1 or (is_open == 1 and end - p < 12):
            return False
        if is_open == 1:
            if following:
                found[1, i + 1] = 1
                found[2, i + 1] = load64(p) if unsigned else load64(p + 4)
                found[3, i + 1] = load32(p + 8) if unsigned else load_int32(p)
            p += 12
    return is_open == 0


@compiled
def _bti_blocks(address: int, length: int, payloads: np.ndarray, unsigned: bool, found: np.ndarray) -> bool:
    """Read all blocks into `found`; return whether they are valid."""
    for i in range(payloads.shape[1]):
        size = payloads[0, i] & 7
        is_open = payloads[0, i] & _OPEN != 0
        p = address + payloads[1, i]
        end = address + length
        if size < 1 or end - p < size + (12 if is_open else 0):
            return False
        found[0, i] = signed(p, size)
        if is_open:
            found[1, i] = 1
            found[2, i] = load64(p + size)
            found[3, i] = load32(p + size + 8) if unsigned else load_int32(p + size + 8)
    return True
