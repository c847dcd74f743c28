"""Reads the tries of the indexes of `da`, `ms` and `mt`. A trie has nodes of a few kinds, some with a payload.

Sources: `io.tries.TrieNode` of Cassandra, sstables/trie/bti_node_type.hh and bti_node_reader.cc of ScyllaDB.
"""

# ruff: noqa: PLR0917, PLR1714 (numba has no keyword-only arguments, and is slow with sets)

import numpy as np

from writetime.core.counts import pluralize
from writetime.storage.file_errors import CorruptFile
from writetime.storage.kernel.allocate import room
from writetime.storage.kernel.memory import compiled, inlined, load8, load16

# No key is longer. The longest are clustering keys of many columns of 64 KiB each.
_LONGEST_PATH = 1 << 20


def trie_payloads(
    data: np.ndarray, root: int, count: int, path: str, bounds: tuple[int, int] | None = None
) -> np.ndarray:
    """Return the 4 bits (first row) and the offset (second row) of each payload below a root, in the order of the keys.

    `bounds` are the start and end of the part of the file (`path`) with the trie's nodes, by default the whole file.
    Time and memory are at most proportional to their distance. Raise `CorruptFile` if nodes are invalid, shared or
    outside the bounds, or there are not `count` payloads.
    """
    start, end = bounds or (0, len(data))
    if not start <= root < end or not 0 < count <= end - start:
        raise CorruptFile(
            path, None, f"{pluralize(count, 'key')} and their root at {root} were expected between {start} and {end}"
        )
    longest = min(_LONGEST_PATH, (end - start) // 2 + 2)
    payloads = room(2 * count, np.int64).reshape(2, count)
    nodes = room(2 * longest, np.int64).reshape(2, longest)
    found = _walk(data.ctypes.data, start, end, root, payloads, nodes)
    if found < 0:
        raise CorruptFile(path, -found - 1, "a node of the index was expected")
    if found != count:
        raise CorruptFile(path, root, f"{pluralize(count, 'key')} were expected, {found} found")
    return payloads


def trie_leaf(data: np.ndarray, root: int, key: bytes, path: str) -> tuple[int, int] | None:
    """Return the 4 bits and the offset of the payload that a key leads to; None if the trie has no path for the key.

    A leaf has only the bytes of its key that distinguish it from other keys. The bits are 0 if the key ends before a
    leaf. Raise `CorruptFile` for the file `path` if a node is invalid.
    """
    wanted = np.frombuffer(key, np.uint8)
    node = int(_leaf(data.ctypes.data, len(data), root, wanted))
    if node == _NO_WAY:
        return None
    if node < 0:
        raise CorruptFile(path, -node - 1, "a node of the index was expected")
    bits = int(data[node])
    return (bits, node + 1) if bits < 16 else (0, node)


# TrieNode: the number of bits of a pointer to a child, by the 4 high bits of a node's first byte; 0: no child.
_POINTER_BITS = np.array([0, 4, 8, 12, 16, 8, 12, 16, 24, 40, 12, 16, 24, 32, 40, 64], np.int64)
_SINGLE_WITHOUT_PAYLOAD_4, _SINGLE_8, _SINGLE_WITHOUT_PAYLOAD_12, _SINGLE_16 = 1, 2, 3, 4
_SPARSE_FIRST, _DENSE_FIRST = 5, 10
_NO_WAY = -(1 << 62)


@compiled
def _bits(base: int, number: int, bits: int) -> int:
    """Read entry `number` of an array of big-endian numbers of 8 to 64 bits, or of packed numbers of 12 bits."""
    if bits == 12:
        word = load16(base + (3 * number) // 2)
        return word & 0xFFF if number & 1 else word >> 4
    value = 0
    for i in range(bits // 8):
        value = (value << 8) | load8(base + number * (bits // 8) + i)
    return value


@inlined
def _measure(p: int, room: int) -> tuple[int, int, int]:
    """Return the number of the node's pointers, the address of the first, and the node's size without the payload. The
    size is -1 if the node does not fit.
    """
    if room < 2:
        return 0, p, -1
    kind = load8(p) >> 4
    bits = int(_POINTER_BITS[kind])
    pointers = 0
    base = p + 1
    size = 1
    if kind == 0:
        pass
    elif kind == _SINGLE_WITHOUT_PAYLOAD_4:
        pointers = 1
        size = 2
    elif kind == _SINGLE_WITHOUT_PAYLOAD_12:
        pointers = 1
        size = 3
    elif kind < _SPARSE_FIRST:
        pointers = 1
        base = p + 2
        size = 2 + bits // 8
    elif kind < _DENSE_FIRST:
        pointers = load8(p + 1)
        base = p + 2 + pointers
        size = 2 + pointers + (pointers * bits + 7) // 8
    else:
        if room < 3:
            return 0, p, -1
        pointers = load8(p + 2) + 1
        base = p + 3
        size = 3 + (pointers * bits + 7) // 8
    return pointers, base, size if size <= room else -1


@inlined
def _distance(p: int, base: int, number: int) -> int:
    """Return the distance back from the node to a child. It is 0 at a gap in a dense node, where there is no child."""
    kind = load8(p) >> 4
    if kind == _SINGLE_WITHOUT_PAYLOAD_4:
        return load8(p) & 0x0F
    if kind == _SINGLE_WITHOUT_PAYLOAD_12:
        return load16(p) & 0x0FFF
    return _bits(base, number, int(_POINTER_BITS[kind]))


@compiled
def _walk(address: int, first: int, length: int, root: int, payloads: np.ndarray, path: np.ndarray) -> int:
    """Walk the trie in order. Return the number of payloads. At an invalid node, return minus its offset, minus 1.

    The 4 bits and the offset of each payload are written to `payloads`. `path` has two numbers per node of the longest
    path.
    """
    # A child is written before its parent, so positions decrease along a path, and each path ends. Each node has one
    # parent, and nodes do not overlap, so together they are no longer than this part of the file. This bounds the walk
    # if nodes are shared.
    unused = length - first
    nodes = path[0]
    children = path[1]
    depth = 0
    nodes[0] = root
    children[0] = -1
    count = 0
    while depth >= 0:
        node = nodes[depth]
        p = address + node
        pointers, base, size = _measure(p, length - node)
        if size < 0:
            return -node - 1
        if children[depth] < 0:
            unused -= size
            if unused < 0:
                return -node - 1
            kind = load8(p) >> 4
            payload = load8(p) & 0x0F
            if payload != 0 and kind != _SINGLE_WITHOUT_PAYLOAD_4 and kind != _SINGLE_WITHOUT_PAYLOAD_12:
                if count == payloads.shape[1]:
                    return -node - 1
                payloads[0, count] = payload
                payloads[1, count] = node + size
                count += 1
            children[depth] = 0
        if children[depth] == pointers:
            depth -= 1
            continue
        delta = _distance(p, base, children[depth])
        children[depth] += 1
        if delta == 0:
            continue
        if delta < 0 or delta > node - first or depth + 1 == len(nodes):
            return -node - 1
        depth += 1
        nodes[depth] = node - delta
        children[depth] = -1
    return count


@compiled
def _child(p: int, pointers: int, byte: int) -> int:
    """Return the number of the pointer for a byte of the key, or -1 if there is none."""
    kind = load8(p) >> 4
    if kind < _SPARSE_FIRST:
        return 0 if load8(p + 2 if kind == _SINGLE_WITHOUT_PAYLOAD_12 else p + 1) == byte else -1
    if kind >= _DENSE_FIRST:
        number = byte - load8(p + 1)
        return number if 0 <= number < pointers else -1
    for number in range(pointers):
        if load8(p + 2 + number) == byte:
            return number
    return -1


@compiled
def _leaf(address: int, length: int, node: int, key: np.ndarray) -> int:
    """Return the leaf that a key leads to, or the node at which the key ends before a leaf. Return `_NO_WAY` if there
    is no path. At an invalid node, return minus its offset, minus 1.
    """
    for i in range(len(key) + 1):
        p = address + node
        pointers, base, size = _measure(p, length - node)
        if size < 0:
            return -node - 1
        if pointers == 0 or i == len(key):
            return node
        number = _child(p, pointers, key[i])
        delta = _distance(p, base, number) if number >= 0 else 0
        if delta == 0:
            return _NO_WAY
        if delta < 0 or delta > node:
            return -node - 1
        node -= delta
    return _NO_WAY
