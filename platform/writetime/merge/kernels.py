"""The loops of the merge, compiled by numba: the order of items, the latest of each group, and range tombstones.

An item is a change, or the end of a range tombstone. Bytes have Arrow's form: offsets, and the data that they divide.
Repeating values are codes in the order of the values.
"""

# ruff: noqa: PLR0917 (numba has no keyword-only arguments)

import numpy as np

from writetime.core.compiled import kernel, njit
from writetime.storage.kernel.memory import compare_bytes, load8, load64, load_native32

_BLOCK = 16
_LONG = 8
_SIGN = -(1 << 63)


@njit
def _compare(key: tuple, i: int, j: int) -> int:
    codes, offsets, data = key
    if codes:
        return load_native32(codes + 4 * i) - load_native32(codes + 4 * j)
    return compare_bytes(offsets, data, i, offsets, data, j)


@njit
def _head(key: tuple, i: int) -> int:
    """Return a number that compares like the values, if two numbers differ or the number marks them as complete.

    For bytes, it has the first seven bytes, with zeros after the end of the value, and the length, or `_LONG` if there
    are more bytes. For a code, it is the code.
    """
    codes, offsets, data = key
    if codes:
        return load_native32(codes + 4 * i) << 8
    start = load_native32(offsets + 4 * i)
    p = data + start
    length = min(load_native32(offsets + 4 * i + 4) - start, _LONG)
    if length == _LONG:
        value = load64(p) & ~0xFF
    else:
        value = 0
        for k in range(7):
            value = (value | (load8(p + k) if k < length else 0)) << 8
    return (value | length) ^ _SIGN


@kernel
def group_items(
    order: np.ndarray,
    first: np.ndarray,
    a_codes: np.ndarray,
    a_offsets: np.ndarray,
    a_data: np.ndarray,
    b_codes: np.ndarray,
    b_offsets: np.ndarray,
    b_data: np.ndarray,
) -> tuple:
    """Sort items, which are in the order of `first`, also by `a` and `b`, and give equal items one number.

    `a` and `b` are codes, or else bytes. Each run of items with equal `first` is sorted by a merge sort, which is
    faster on sorted parts. In most runs, `a` is equal, too. The heads of `b` are stored next to the order, because the
    bytes are far away in memory.

    Returns:
        The group of each item. For each group, one of its items, and the number of its `first` and `a`.
    """
    order = order.copy()
    count = len(order)
    # Addresses, because passing arrays costs more than comparing their contents.
    a = a_codes.ctypes.data if len(a_codes) else 0, a_offsets.ctypes.data, a_data.ctypes.data
    b = b_codes.ctypes.data if len(b_codes) else 0, b_offsets.ctypes.data, b_data.ctypes.data
    heads = np.empty(count, np.int64)
    scratch, head_scratch = np.empty(count, np.int64), np.empty(count, np.int64)
    group, head, outer = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    groups = outers = -1
    start = 0
    while start < count:
        end = start + 1
        several = False
        while end < count and first[order[end]] == first[order[start]]:
            several |= _compare(a, order[start], order[end]) != 0
            end += 1
        if end - start > 1:
            for k in range(start, end):
                heads[k] = _LONG if several else _head(b, order[k])
            _sort(order, heads, scratch, head_scratch, start, end, (a, b))
        for k in range(start, end):
            item = order[k]
            if k == start or (several and _compare(a, order[k - 1], item) != 0):
                outers += 1
                groups += 1
            elif _follows(item, heads[k], order[k - 1], heads[k - 1], (a, b)):
                groups += 1
            group[item] = groups
            head[groups] = item
            outer[groups] = outers
        start = end
    return group, head[: groups + 1].copy(), outer[: groups + 1].copy()


@njit
def _follows(i: int, i_head: int, j: int, j_head: int, keys: tuple) -> bool:
    """Return whether item `i` comes after item `j`."""
    if i_head != j_head:
        return i_head > j_head
    if i_head & 0xFF < _LONG:
        return False
    by_first = _compare(keys[0], i, j)
    return by_first > 0 if by_first != 0 else _compare(keys[1], i, j) > 0


@njit
def _sort(
    order: np.ndarray,
    heads: np.ndarray,
    scratch: np.ndarray,
    head_scratch: np.ndarray,
    start: int,
    end: int,
    keys: tuple,
) -> None:
    for block in range(start, end, _BLOCK):
        for k in range(block + 1, min(block + _BLOCK, end)):
            item, head = order[k], heads[k]
            at = k
            while at > block and _follows(order[at - 1], heads[at - 1], item, head, keys):
                order[at], heads[at] = order[at - 1], heads[at - 1]
                at -= 1
            order[at], heads[at] = item, head
    width = _BLOCK
    while width < end - start:
        for low in range(start, end - width, 2 * width):
            middle, high = low + width, min(low + 2 * width, end)
            if not _follows(order[middle - 1], heads[middle - 1], order[middle], heads[middle], keys):
                continue
            for k in range(low, middle):
                scratch[k], head_scratch[k] = order[k], heads[k]
            i, j, at = low, middle, low
            while i < middle:
                if j < high and _follows(scratch[i], head_scratch[i], order[j], heads[j], keys):
                    order[at], heads[at] = order[j], heads[j]
                    j += 1
                else:
                    order[at], heads[at] = scratch[i], head_scratch[i]
                    i += 1
                at += 1
        width *= 2


@kernel
def latest(
    group: np.ndarray,
    present: np.ndarray,
    write_time: np.ndarray,
    rank: np.ndarray,
    deletion_time: np.ndarray,
    ttl: np.ndarray,
    groups: int,
    decided: int,
) -> tuple:
    """Find the latest of each group: by write time, rank, deletion time, and the smaller TTL.

    Returns:
        The latest item of each group (-1 if none is present), and the items that are equal to it and need another
        criterion, because there are several with a rank below `decided`.
    """
    best = np.full(groups, -1, np.int64)
    equals = np.zeros(groups, np.uint8)
    for i in range(len(present)):
        if not present[i]:
            continue
        g = group[i]
        j = best[g]
        if j >= 0:
            order = _order(i, j, write_time, rank, deletion_time, ttl)
            if order == 0:
                equals[g] = 1
            if order <= 0:
                continue
            equals[g] = 0
        best[g] = i
    count = 0
    for i in range(len(present)):
        if present[i] and equals[group[i]] and rank[i] < decided:
            count += _order(i, best[group[i]], write_time, rank, deletion_time, ttl) == 0
    tied = np.empty(count, np.int64)
    at = 0
    for i in range(len(present) if count else 0):
        if (
            present[i]
            and equals[group[i]]
            and rank[i] < decided
            and _order(i, best[group[i]], write_time, rank, deletion_time, ttl) == 0
        ):
            tied[at] = i
            at += 1
    return best, tied


@njit
def _order(i: int, j: int, write_time: np.ndarray, rank: np.ndarray, deletion_time: np.ndarray, ttl: np.ndarray) -> int:
    """Return 1 if entry `i` wins over `j`, -1 if it loses, 0 at a tie, by the first criteria of `precedence`."""
    if write_time[i] != write_time[j]:
        return 1 if write_time[i] > write_time[j] else -1
    if rank[i] != rank[j]:
        return 1 if rank[i] > rank[j] else -1
    if deletion_time[i] != deletion_time[j]:
        return 1 if deletion_time[i] > deletion_time[j] else -1
    if ttl[i] != ttl[j]:
        return 1 if ttl[i] < ttl[j] else -1
    return 0


@kernel
def largest(
    group: np.ndarray, items: np.ndarray, offsets: np.ndarray, data: np.ndarray, best: np.ndarray
) -> np.ndarray:
    """Return the best item of each group. Among the named `items`, it is the one with the largest bytes. Value `k`
    belongs to `items[k]`.
    """
    best = best.copy()
    of_group = np.full(len(best), -1, np.int64)
    own = offsets.ctypes.data, data.ctypes.data
    for k in range(len(items)):
        g = group[items[k]]
        if of_group[g] < 0 or compare_bytes(own[0], own[1], k, own[0], own[1], of_group[g]) > 0:
            of_group[g] = k
            best[g] = items[k]
    return best


@kernel
def paint(starts: np.ndarray, ends: np.ndarray, groups: int) -> np.ndarray:
    """Return for each group the first interval that covers it, -1 if none does; `start <= group < end`."""
    covering = np.full(groups, -1, np.int64)
    # A lower bound of the next group that is not covered yet.
    following = np.arange(groups + 1)
    for k in range(len(starts)):
        g = starts[k]
        while g < ends[k]:
            root = g
            while following[root] != root:
                root = following[root]
            while following[g] != root:
                following[g], g = root, following[g]
            g = root
            if g < ends[k]:
                covering[g] = k
                following[g] = g + 1
                g += 1
    return covering
