"""Reads the elements of a partition in order: rows, and bounds of range tombstones (`UnfilteredSerializer`)."""

# ruff: noqa: F403, F405, PLR0917, PLR1714 (the layout is a list of names, all of them used here; numba
# has no keyword-only arguments, and compiles neither sets nor generators to fast code)

import numpy as np

from writetime.storage.kernel.cells import deletion_time_of
from writetime.storage.kernel.layout import *
from writetime.storage.kernel.memory import compiled, copy, inlined, load8, load16
from writetime.storage.kernel.primitives import read_vint, skip
from writetime.storage.kernel.rows import (
    commit_change,
    deletion_change,
    position_head,
    position_tail,
    read_clustering,
    read_row,
)


@compiled
def _bound(W: np.ndarray, T: np.ndarray, C: np.ndarray, at: int, p: int, end: int) -> tuple:
    """Read a range tombstone's bound or boundary. The range that it closes becomes a change."""
    t = W[TABLE]
    if end - p < 3:
        return end + 1, TRUNCATED
    kind = load8(p)
    count = load16(p + 1)
    p += 3
    # ClusteringPrefix.Kind: 0 excl. end, 1 incl. start, 2 boundary of those, 5 incl. end with excl. start, 6, 7 alone.
    if kind > 7 or kind == 3 or kind == 4:
        return at, BAD_BOUND
    closes = kind == 0 or kind == 2 or kind == 5 or kind == 6
    opens = kind == 1 or kind == 2 or kind == 5 or kind == 7
    terminator = 0x20 if kind < 3 else 0x60
    start = T[t, END_BYTES] + T[t, END_USED]
    out = position_head(T, t, start, terminator, count)
    p, out, error = read_clustering(T, C, t, p, end, count, -1, out)
    if error != 0:
        return p, error
    out = position_tail(T, t, out, terminator)
    if W[IS_SSTABLE] != 0:
        size, p = read_vint(p, end)
        body_end = skip(p, size, end)
        if body_end > end:
            return body_end, TRUNCATED
        _, p = read_vint(p, end)
    if closes != (W[OPEN] != 0):
        return at, BAD_BOUND
    if closes:
        delta, p = read_vint(p, end)
        write_time = W[MIN_WRITE_TIME] + delta
        delta, p = read_vint(p, end)
        deletion_time = deletion_time_of(W, delta)
        if p <= end:
            if write_time != W[OPEN_WRITE_TIME] or deletion_time != W[OPEN_DELETION_TIME]:
                return at, BAD_BOUND
            if W[OPEN] == 1:
                deletion_change(W, T, C, write_time, deletion_time)
                position = T[t, POSITION_BYTES] + T[t, POSITION_USED]
                copy(position, W[OPEN_BYTES], W[OPEN_LENGTH])
                commit_change(W, T, 2, at, position + W[OPEN_LENGTH], out)
            W[OPEN] = 0
    if opens:
        delta, p = read_vint(p, end)
        W[OPEN_WRITE_TIME] = W[MIN_WRITE_TIME] + delta
        delta, p = read_vint(p, end)
        W[OPEN_DELETION_TIME] = deletion_time_of(W, delta)
        W[OPEN_LENGTH] = out - start
        copy(W[OPEN_BYTES], start, out - start)
        W[OPEN] = 1
    return p, 0 if p <= end else TRUNCATED


@inlined
def read_unfiltered(
    W: np.ndarray, T: np.ndarray, C: np.ndarray, header: np.ndarray, present: np.ndarray, p: int, end: int
) -> tuple:
    """Read one row, bound, or the end of the partition; return the address after it, and 0 or an error."""
    at = p
    if p >= end:
        return end + 1, TRUNCATED
    flags = load8(p)
    p += 1
    if flags & END_OF_PARTITION != 0:
        if W[OPEN] != 0:
            return at, BAD_BOUND
        W[IN_PARTITION] = 0
        return p, 0
    if flags & EXTENDED != 0:
        if p >= end:
            return end + 1, TRUNCATED
        # A static row can only be the first row. Other flags here are those of shadowable deletions.
        return at, BAD_FLAGS if load8(p) & EXTENDED_STATIC != 0 else SHADOWABLE
    if flags & IS_MARKER != 0:
        return _bound(W, T, C, at, p, end)
    return read_row(W, T, C, header, present, at, p, end, flags)
