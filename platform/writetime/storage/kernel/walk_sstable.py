"""The walk over the partitions of an SSTable, window by window (`SSTableIdentityIterator`, `DeletionTime`)."""

# ruff: noqa: F403, F405, PLR0917, SIM102 (the layout is a list of names, all of them used here; numba
# has no keyword-only arguments, and compiles neither sets nor generators to fast code)

import numpy as np

from writetime.storage.kernel.layout import *
from writetime.storage.kernel.memory import (
    Lines,
    columns,
    compiled,
    copy,
    inlined,
    load8,
    load16,
    load32,
    load64,
    load_int32,
    numbers,
    tables,
)
from writetime.storage.kernel.primitives import read_vint, skip, token_at
from writetime.storage.kernel.rows import (
    begin_partition,
    partition_tombstone,
    read_clustering,
    read_static_row,
    read_unfiltered,
)


@inlined
def _unfiltered_end(W: Lines, T: Lines, C: Lines, p: int, end: int) -> int:
    """Return where an SSTable's row or bound ends, without reading it; beyond `end` if that is outside the window."""
    if p >= end:
        return end + 1
    flags = load8(p)
    p += 1
    if flags & END_OF_PARTITION != 0:
        return p
    if flags & EXTENDED != 0:
        p += 1
    count = T[W[TABLE], CLUSTERINGS]
    if flags & IS_MARKER != 0:
        if end - p < 3:
            return end + 1
        count = load16(p + 1)
        p += 3
    if not (flags & EXTENDED != 0 and flags & IS_MARKER == 0 and p <= end and load8(p - 1) & EXTENDED_STATIC != 0):
        p, _, error = read_clustering(T, C, W[TABLE], p, end, count, -1, 0)
        if error != 0:
            # If no more data follows, the reading reports an invalid row.
            return end + 1 if error == TRUNCATED else p
    size, p = read_vint(p, end)
    return skip(p, size, end)


@compiled
def _sstable_partition(W: Lines, T: Lines, C: Lines, header: Lines, present: np.ndarray, p: int, end: int) -> tuple:
    """Read a partition's key, deletion and static row; return the address after them, and 0, MORE or an error."""
    at = p
    if end - p < 2:
        return at, TRUNCATED
    length = load16(p)
    key = p + 2
    p = skip(key, length, end)
    if p >= end:
        return at, TRUNCATED
    deleted = True
    if W[COMPACT_PARTITION_DELETION] != 0 and load8(p) & 0x80 != 0:
        if load8(p) != 0x80:
            return p, BAD_DELETION
        deleted = False
        write_time = 0
        deletion_time = 0
        p += 1
    else:
        if end - p < 12:
            return at, TRUNCATED
        if W[COMPACT_PARTITION_DELETION] != 0:
            write_time = load64(p)
            deletion_time = load32(p + 8)
        else:
            deletion_time = load_int32(p)
            write_time = load64(p + 4)
            deleted = not (write_time == NO_TIME and deletion_time == 0x7FFFFFFF)
        p += 12
    static = p
    static_end = p
    flags = 0
    if W[STATICS] > 0:
        static_end = _unfiltered_end(W, T, C, p, end)
        if static_end > end:
            return at, TRUNCATED
        flags = load8(p)
        if flags & (END_OF_PARTITION | IS_MARKER) != 0 or flags & EXTENDED == 0:
            return p, BAD_FLAGS
        if load8(p + 1) & EXTENDED_STATIC == 0:
            return p, BAD_FLAGS
        if load8(p + 1) != EXTENDED_STATIC:
            return p, SHADOWABLE
        _, p = read_vint(p + 2, end)
        _, p = read_vint(p, end)
    token = token_at(key, length)
    if token < W[CURRENT_TOKEN]:
        return at, BAD_TOKEN_ORDER
    W[CURRENT_TOKEN] = token
    W[PARTITION_OFFSET] = W[FILE_OFFSET] + at - W[START]
    W[CURRENT_KEY_LENGTH] = length
    copy(W[CURRENT_KEY], key, length)
    W[IN_PARTITION] = 1
    W[PASS_OVER] = 1 if token < W[FIRST_TOKEN] or token > W[LAST_TOKEN] else 0
    if W[PASS_OVER] != 0:
        return static_end, 0
    error = begin_partition(W, T, C)
    if error != 0:
        return at, error
    if deleted:
        partition_tombstone(W, T, C, at, write_time, deletion_time)
    if W[STATICS] > 0:
        p, error = read_static_row(W, T, C, header, present, static, p, static_end, flags)
        if error != 0:
            # The end of the row, by its size, is not an end of the window.
            return p, BAD_ROW_SIZE if error == TRUNCATED else error
        if p != static_end:
            return p, BAD_ROW_SIZE
    return p, 0


@compiled
def _at_stop(W: Lines) -> int:
    """Return the result at the end of the split: MORE if a range tombstone that was opened in the split continues, an
    error if the place is not the expected one, else DONE.
    """
    if W[IN_PARTITION] == 0:
        return DONE if W[STOP_PARTITION] < 0 else BAD_CUT
    if W[STOP_PARTITION] != W[PARTITION_OFFSET]:
        return BAD_CUT
    if W[PASS_OVER] != 0:
        return DONE
    if (W[OPEN] != 0) != (W[STOP_OPEN] != 0):
        return BAD_CUT
    if W[OPEN] != 0:
        if W[OPEN_WRITE_TIME] != W[STOP_OPEN_WRITE_TIME] or W[OPEN_DELETION_TIME] != W[STOP_OPEN_DELETION_TIME]:
            return BAD_CUT
    if W[OPEN] != 1:
        return DONE
    W[READ_ON] = 1
    return MORE


@compiled
def walk_sstable(
    walk: np.ndarray, table_lines: np.ndarray, column_lines: np.ndarray, columns_there: np.ndarray, present: np.ndarray
) -> int:
    """Walk the window, beginning at POSITION. Return MORE, DONE or an error, with the place in POSITION."""
    W = numbers(walk)
    T = tables(table_lines)
    C = columns(column_lines)
    header = numbers(columns_there)
    p = W[POSITION]
    end = W[END]
    if W[IN_PARTITION] != 0 and W[PASS_OVER] == 0:
        error = begin_partition(W, T, C)
        if error != 0:
            return error
    while True:
        W[POSITION] = p
        if p == W[STOP] and W[READ_ON] == 0:
            return _at_stop(W)
        if W[IN_PARTITION] == 0:
            if p == end:
                return TRUNCATED if W[IS_LAST] != 0 else MORE
            p, error = _sstable_partition(W, T, C, header, present, p, end)
            if error == TRUNCATED and W[IS_LAST] == 0:
                return MORE
        else:
            after = _unfiltered_end(W, T, C, p, end)
            if after > end:
                return TRUNCATED if W[IS_LAST] != 0 else MORE
            if W[PASS_OVER] != 0:
                if load8(p) & END_OF_PARTITION != 0:
                    W[IN_PARTITION] = 0
                p = after
                continue
            if W[READ_ON] != 0 and load8(p) & (IS_MARKER | END_OF_PARTITION) == 0:
                p = after
                continue
            # The cells must not go beyond the end of the row, by its size.
            p, error = read_unfiltered(W, T, C, header, present, p, after)
            if error == 0 and p != after:
                error = BAD_ROW_SIZE
            if error == TRUNCATED:
                error = BAD_ROW_SIZE
            if error == 0 and W[READ_ON] != 0:
                return DONE
        if error != 0:
            W[POSITION] = min(p, end)
            return error
