"""The loops of the merge, compiled by numba: the order of items, the latest of each group, and range tombstones.

An item is a change, or the end of a range tombstone. Bytes come as Arrow has them: offsets, and the data between them.
All of the compiled code is in this module, as numba keeps what it compiled until the file changes.
"""

# ruff: noqa: PLR0917 (numba has no keyword-only arguments)

import functools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from writetime.storage.memory import load8, load32, load64

_njit: Any = numba.njit(cache=True, nogil=True)
_BLOCK = 16
_SIGN = -(1 << 63)


def _kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function of arrays that it only reads, once for those that may be written and those that may not."""
    compiled = _njit(function)

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        return compiled(*(_read_only(a) if isinstance(a, np.ndarray) else a for a in arguments))

    return call


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


@_njit
def _compare_bytes(offsets: np.ndarray, data: int, i: int, j: int) -> int:
    """Compare two values as unsigned bytes, eight at a time; a prefix comes first."""
    a, b = offsets[i], offsets[j]
    a_length, b_length = offsets[i + 1] - a, offsets[j + 1] - b
    a += data
    b += data
    end = a + min(a_length, b_length)
    while end - a >= 8:
        x, y = load64(a), load64(b)
        if x != y:
            return -1 if (x ^ _SIGN) < (y ^ _SIGN) else 1
        a += 8
        b += 8
    if end - a >= 4:
        x, y = load32(a), load32(b)
        if x != y:
            return -1 if x < y else 1
        a += 4
        b += 4
    while a < end:
        x, y = load8(a), load8(b)
        if x != y:
            return -1 if x < y else 1
        a += 1
        b += 1
    return a_length - b_length


@_kernel
def sort_runs(
    order: np.ndarray,
    first: np.ndarray,
    a_offsets: np.ndarray,
    a_data: np.ndarray,
    b_offsets: np.ndarray,
    b_data: np.ndarray,
) -> np.ndarray:
    """Sort each run of items that are equal in `first` by `a`, then `b`: a merge sort that gains by what is sorted."""
    order = order.copy()
    count = len(order)
    a_at, b_at = a_data.ctypes.data, b_data.ctypes.data
    scratch = np.empty(count, np.int64)
    start = 0
    while start < count:
        end = start + 1
        while end < count and first[order[end]] == first[order[start]]:
            end += 1
        if end - start > 1:
            _sort(order, scratch, start, end, a_offsets, a_at, b_offsets, b_at)
        start = end
    return order


@_njit
def _compare(i: int, j: int, a_offsets: np.ndarray, a_at: int, b_offsets: np.ndarray, b_at: int) -> int:
    by_first = _compare_bytes(a_offsets, a_at, i, j)
    return by_first if by_first != 0 else _compare_bytes(b_offsets, b_at, i, j)


@_njit
def _sort(
    order: np.ndarray,
    scratch: np.ndarray,
    start: int,
    end: int,
    a_offsets: np.ndarray,
    a_at: int,
    b_offsets: np.ndarray,
    b_at: int,
) -> None:
    for block in range(start, end, _BLOCK):
        for k in range(block + 1, min(block + _BLOCK, end)):
            item = order[k]
            at = k
            while at > block and _compare(order[at - 1], item, a_offsets, a_at, b_offsets, b_at) > 0:
                order[at] = order[at - 1]
                at -= 1
            order[at] = item
    width = _BLOCK
    while width < end - start:
        for low in range(start, end - width, 2 * width):
            middle, high = low + width, min(low + 2 * width, end)
            if _compare(order[middle - 1], order[middle], a_offsets, a_at, b_offsets, b_at) <= 0:
                continue
            for k in range(low, middle):
                scratch[k] = order[k]
            i, j, at = low, middle, low
            while i < middle:
                if j < high and _compare(scratch[i], order[j], a_offsets, a_at, b_offsets, b_at) > 0:
                    order[at] = order[j]
                    j += 1
                else:
                    order[at] = scratch[i]
                    i += 1
                at += 1
        width *= 2


@_kernel
def number_groups(
    order: np.ndarray,
    first: np.ndarray,
    a_offsets: np.ndarray,
    a_data: np.ndarray,
    b_offsets: np.ndarray,
    b_data: np.ndarray,
) -> tuple:
    """Number the groups of equal items in their order.

    Returns:
        The group of each item; of each group one item of it, and the number of its `first` and `a`.
    """
    count = len(order)
    group = np.empty(count, np.int64)
    head = np.empty(count, np.int64)
    outer = np.empty(count, np.int64)
    a_at, b_at = a_data.ctypes.data, b_data.ctypes.data
    groups = -1
    outers = -1
    for k in range(count):
        item = order[k]
        if k > 0:
            last = order[k - 1]
            if first[item] != first[last] or _compare_bytes(a_offsets, a_at, last, item) != 0:
                outers += 1
                groups += 1
            elif _compare_bytes(b_offsets, b_at, last, item) != 0:
                groups += 1
        else:
            outers = groups = 0
        group[item] = groups
        head[groups] = item
        outer[groups] = outers
    return group, head[: groups + 1].copy(), outer[: groups + 1].copy()


@_kernel
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
        The latest item of each group (-1 if none is present), and those that are equal to it and must be told apart by
        more: where there are several, of a rank below `decided`.
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


@_njit
def _order(i: int, j: int, write_time: np.ndarray, rank: np.ndarray, deletion_time: np.ndarray, ttl: np.ndarray) -> int:
    if write_time[i] != write_time[j]:
        return 1 if write_time[i] > write_time[j] else -1
    if rank[i] != rank[j]:
        return 1 if rank[i] > rank[j] else -1
    if deletion_time[i] != deletion_time[j]:
        return 1 if deletion_time[i] > deletion_time[j] else -1
    if ttl[i] != ttl[j]:
        return 1 if ttl[i] < ttl[j] else -1
    return 0


@_kernel
def largest(
    group: np.ndarray, items: np.ndarray, offsets: np.ndarray, data: np.ndarray, best: np.ndarray
) -> np.ndarray:
    """Return the best of each group, where items are named that with the largest bytes; value `k` is of `items[k]`."""
    best = best.copy()
    of_group = np.full(len(best), -1, np.int64)
    for k in range(len(items)):
        g = group[items[k]]
        if of_group[g] < 0 or _compare_bytes(offsets, data.ctypes.data, k, of_group[g]) > 0:
            of_group[g] = k
            best[g] = items[k]
    return best


@_kernel
def paint(starts: np.ndarray, ends: np.ndarray, groups: int) -> np.ndarray:
    """Return for each group the first interval that covers it, -1 if none does; `start <= group < end`."""
    covering = np.full(groups, -1, np.int64)
    # The next group that is not covered yet, as far as is known.
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
