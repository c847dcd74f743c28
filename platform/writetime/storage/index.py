"""Where the partitions of an SSTable start, from its index: what splits large files and finds tokens in them.

Index.db of the `big` format (`RowIndexEntry`): for each partition its key after 2 bytes of length, its position in
Data.db as a vint, and an index of its rows after its size as a vint. Partitions.db of `bti` (`PartitionIndex`): a trie
of 4096-byte pages; a leaf holds the position in Data.db inverted, or a position in Rows.db, where the key (after 2
bytes of length) is followed by the position in Data.db as a vint.
"""

# ruff: noqa: PLR0917, PLR1714 (numba has no keyword-only arguments, and is slow with sets)

import numpy as np

from writetime.storage.errors import CorruptFile
from writetime.storage.files import Location
from writetime.storage.memory import compiled, load8, load16
from writetime.storage.primitives import read_vint, skip

_PAGE = 4096


def partition_positions(location: Location) -> np.ndarray:
    """Return the positions of all partitions in the uncompressed data, ascending; empty if there is no index to read.

    Raises:
        CorruptFile: the index cannot be read, or its positions do not grow.
    """
    component = location.features.index
    if not component or not location.exists(component):
        return np.empty(0, np.int64)
    path = location.path(component)
    data = np.frombuffer(location.read(component), np.uint8)
    if component == "Index.db":
        positions = np.empty(len(data) // 3 + 1, np.int64)
        found = _walk_index(data.ctypes.data, len(data), positions)
    else:
        rows = np.frombuffer(location.read("Rows.db"), np.uint8)
        if len(data) < 24:
            raise CorruptFile(path, 0, "a footer of 24 bytes was expected")
        # The footer: position of the first and last key, number of keys, position of the root.
        count, root = (int(n) for n in np.frombuffer(data[-16:].tobytes(), ">i8"))
        if not 0 <= root < len(data) or not 0 < count <= len(data):
            raise CorruptFile(path, len(data) - 16, f"{count} keys below a root at {root} cannot be")
        positions = np.empty(count, np.int64)
        rows_address = rows.ctypes.data if len(rows) else 0
        found = _walk_trie(
            data.ctypes.data, len(data), root, rows_address, len(rows), positions, np.empty((2, 70000), np.int64)
        )
        if found >= 0 and found != count:
            raise CorruptFile(path, root, f"{count} keys were expected, {found} found")
    if found < 0:
        raise CorruptFile(path, -found - 1, "an entry of the index was expected")
    positions = positions[:found]
    if (np.diff(positions) <= 0).any() or (found and positions[0] != 0):
        raise CorruptFile(path, None, "positions of partitions that start at 0 and grow were expected")
    return positions


@compiled
def _walk_index(address: int, length: int, positions: np.ndarray) -> int:
    """Return the number of entries, or minus the offset of a bad one, minus 1."""
    p = address
    end = address + length
    count = 0
    while p < end:
        at = p
        if end - p < 2 or load16(p) > end - p - 2:
            return -(at - address) - 1
        p += 2 + load16(p)
        position, p = read_vint(p, end)
        size, p = read_vint(p, end)
        p = skip(p, size, end)
        if p > end or count == len(positions):
            return -(at - address) - 1
        positions[count] = position
        count += 1
    return count


# TrieNode: bits of a pointer to a child, by the 4 high bits of a node's first byte; 0: no child.
_POINTER_BITS = np.array([0, 4, 8, 12, 16, 8, 12, 16, 24, 40, 12, 16, 24, 32, 40, 64], np.int64)
_SINGLE_WITHOUT_PAYLOAD_4, _SINGLE_8, _SINGLE_WITHOUT_PAYLOAD_12, _SINGLE_16 = 1, 2, 3, 4
_SPARSE_FIRST, _DENSE_FIRST = 5, 10


@compiled
def _bits(base: int, number: int, bits: int) -> int:
    """Read entry `number` of an array of big-endian numbers of 8 to 64 bits, or of 12 that follow each other packed."""
    if bits == 12:
        word = load16(base + (3 * number) // 2)
        return word & 0xFFF if number & 1 else word >> 4
    value = 0
    for i in range(bits // 8):
        value = (value << 8) | load8(base + number * (bits // 8) + i)
    return value


@compiled
def _walk_trie(
    address: int, length: int, root: int, rows: int, rows_length: int, positions: np.ndarray, path: np.ndarray
) -> int:
    """Walk the trie in order; return the number of leaves, or minus the offset of a bad node, minus 1.

    `path` is room for two numbers a node of the longest path.
    """
    # A node below another is written before it, so positions fall along a path, and no path is endless.
    nodes = path[0]
    children = path[1]
    depth = 0
    nodes[0] = root
    children[0] = -1
    count = 0
    while depth >= 0:
        node = nodes[depth]
        if node < 0 or length - node < 2:
            return -max(node, 0) - 1
        p = address + node
        kind = load8(p) >> 4
        bits = int(_POINTER_BITS[kind])
        entries = 0
        base = p + 1
        size = 1
        if kind == 0:
            pass
        elif kind == _SINGLE_WITHOUT_PAYLOAD_4:
            entries = 1
            size = 2
        elif kind == _SINGLE_WITHOUT_PAYLOAD_12:
            entries = 1
            size = 3
        elif kind < _SPARSE_FIRST:
            entries = 1
            base = p + 2
            size = 2 + bits // 8
        elif kind < _DENSE_FIRST:
            entries = load8(p + 1)
            base = p + 2 + entries
            size = 2 + entries + (entries * bits + 7) // 8
        else:
            if length - node < 3:
                return -node - 1
            entries = load8(p + 2) + 1
            base = p + 3
            size = 3 + (entries * bits + 7) // 8
        if size > length - node:
            return -node - 1
        if children[depth] < 0:
            payload = load8(p) & 0x0F
            if payload != 0 and kind != _SINGLE_WITHOUT_PAYLOAD_4 and kind != _SINGLE_WITHOUT_PAYLOAD_12:
                position = _leaf(p + size, payload, address + length, rows, rows_length)
                if position < 0 or count == len(positions):
                    return -node - 1
                positions[count] = position
                count += 1
            children[depth] = 0
        if children[depth] == entries:
            depth -= 1
            continue
        i = children[depth]
        children[depth] = i + 1
        if kind == _SINGLE_WITHOUT_PAYLOAD_4:
            delta = load8(p) & 0x0F
        elif kind == _SINGLE_WITHOUT_PAYLOAD_12:
            delta = load16(p) & 0x0FFF
        else:
            delta = _bits(base, i, bits)
        if delta == 0:
            continue  # a gap in a dense node
        if delta < 0 or delta > node or depth + 1 == len(nodes):
            return -node - 1
        depth += 1
        nodes[depth] = node - delta
        children[depth] = -1
    return count


@compiled
def _leaf(p: int, payload: int, end: int, rows: int, rows_length: int) -> int:
    """Read the position in Data.db of a leaf, -1 if it cannot be: a byte of the key's hash if flagged, then the
    number."""
    size = payload
    if payload >= 8:
        size = payload - 7
        p += 1
    if size > end - p or size < 1:
        return -1
    value = load8(p)
    if value >= 128:
        value -= 256
    for i in range(1, size):
        value = (value << 8) | load8(p + i)
    if value < 0:
        return ~value
    # A wide partition: its entry in Rows.db starts with the key.
    if value > rows_length - 2:
        return -1
    q = rows + value
    q = skip(q + 2, load16(q), rows + rows_length)
    position, q = read_vint(q, rows + rows_length)
    return position if q <= rows + rows_length else -1
