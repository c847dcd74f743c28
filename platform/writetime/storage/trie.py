"""Tries on disk, which the indexes of `bti` are: nodes of a few kinds, some with a payload (`io.tries.TrieNode`)."""

# ruff: noqa: PLR1714 (numba is slow with sets)

import numpy as np

from writetime.storage.errors import CorruptFile
from writetime.storage.memory import compiled, load8, load16

_LONGEST_PATH = 70000


def trie_payloads(data: np.ndarray, root: int, count: int, path: str) -> np.ndarray:
    """Return the 4 bits (first row) and the offset (second row) of each payload below a root, in the order of the keys.

    Raises:
        CorruptFile: nodes that cannot be, or not `count` payloads; `path` is the file's name.
    """
    if not 0 <= root < len(data) or not 0 < count <= len(data):
        raise CorruptFile(path, None, f"{count} keys below a root at {root} cannot be")
    payloads = np.empty((2, count), np.int64)
    found = _walk(data.ctypes.data, len(data), root, payloads, np.empty((2, _LONGEST_PATH), np.int64))
    if found < 0:
        raise CorruptFile(path, -found - 1, "a node of the index was expected")
    if found != count:
        raise CorruptFile(path, root, f"{count} keys were expected, {found} found")
    return payloads


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
def _walk(address: int, length: int, root: int, payloads: np.ndarray, path: np.ndarray) -> int:
    """Walk the trie in order; return the number of payloads, or minus the offset of a bad node, minus 1.

    Of each payload its 4 bits and its offset are written to `payloads`; `path` is room for two numbers a node of the
    longest path.
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
                if count == payloads.shape[1]:
                    return -node - 1
                payloads[0, count] = payload
                payloads[1, count] = node + size
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
