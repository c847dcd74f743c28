"""Reads the elements of a partition in order, rows and bounds of range tombstones, and writes them as changes.

Source: `UnfilteredSerializer`, `ClusteringPrefix`, `Columns`.
"""

# ruff: noqa: F403, F405, PLR0917, PLR1714 (the layout is a list of names, all of them used here; numba
# has no keyword-only arguments, and compiles neither sets nor generators to fast code)

import numpy as np

from writetime.storage.kernel.cells import deletion_time_of, read_cell, read_complex, store_part
from writetime.storage.kernel.layout import *
from writetime.storage.kernel.memory import (
    Lines,
    compiled,
    copy,
    inlined,
    load8,
    load16,
    load_native32,
    store8,
    store32,
    store64,
)
from writetime.storage.kernel.primitives import encode_comparable, read_vint, skip


@inlined
def _clear(T: Lines, C: Lines, t: int, row: int) -> None:
    """Mark each column of a new change as missing."""
    for c in range(T[t, FIRST], T[t, LAST]):
        if C[c, WANTED] != 0:
            store8(C[c, STATE] + row, 0)
            if C[c, SHAPE] == COLLECTION:
                store32(C[c, OFFSETS] + 4 * (row + 1), C[C[c, CHILD], CHILDREN])
            elif C[c, OFFSETS] != 0:
                store32(C[c, OFFSETS] + 4 * (row + 1), C[c, USED])


@inlined
def read_clustering(T: Lines, C: Lines, t: int, p: int, end: int, count: int, row: int, out: int) -> tuple:
    """Read `count` clustering values. Write them to their columns if `row` >= 0, and as a position to `out` if that is
    not 0.

    Return the address after the values in the input, the end of the position, and 0 or an error.
    """
    start = p
    encode = T[t, ENCODE_POSITION]
    header = 0
    first = T[t, FIRST]
    if count > T[t, CLUSTERINGS]:
        return p, out, BAD_BOUND
    for i in range(count):
        if i % 32 == 0:
            header, p = read_vint(p, end)
        c = first + i
        state = (header >> (2 * (i % 32))) & 3
        length = 0
        if state == 0:
            length = C[c, LENGTH]
            if length < 0:
                length, p = read_vint(p, end)
            if length < 0 or length > end - p:
                return end + 1, out, TRUNCATED
        if out != 0 and encode != 0:
            if state & 2 != 0:
                store8(out, 0x3E)
                out += 1
            else:
                out = encode_comparable(C[c, COMPARE], C[c, REVERSE] != 0, p, length, out)
        if row >= 0 and C[c, WANTED] != 0:
            is_value = length > 0 or (state == 1 and C[c, EMPTY_IS_VALUE] != 0)
            error = store_part(C, c, row, p, length, is_value)
            if error != 0:
                return p, out, error
        p += length
    if p > end:
        return p, out, TRUNCATED
    if out != 0 and encode == 0:
        copy(out, start, p - start)
        out += p - start
    return p, out, 0


@compiled
def _forget_clustering(T: Lines, C: Lines, t: int, row: int) -> None:
    """Remove the clustering values of a row without effect (all of its cells are void)."""
    first = T[t, FIRST]
    for c in range(first, first + T[t, CLUSTERINGS]):
        if C[c, OFFSETS] != 0:
            C[c, USED] = load_native32(C[c, OFFSETS] + 4 * row)


@inlined
def _position_head(T: Lines, t: int, out: int, terminator: int, count: int) -> int:
    """Write the terminator and the number of values. A clustering key that Python encodes follows them."""
    if T[t, ENCODE_POSITION] == 0:
        store8(out, terminator)
        store8(out + 1, count >> 8)
        store8(out + 2, count)
        return out + 3
    return out


@inlined
def _position_tail(T: Lines, t: int, out: int, terminator: int) -> int:
    """Write the end of a position that the kernel encodes itself."""
    if T[t, ENCODE_POSITION] != 0:
        store8(out, terminator)
        return out + 1
    return out


@compiled
def _subset(present: np.ndarray, count: int, p: int, end: int) -> int:
    """Read the set of the header's columns that a row has (`Columns.deserializeSubset`). Return the address after it,
    or -1.
    """
    encoded, p = read_vint(p, end)
    if encoded == 0:
        present[:count] = 1
    elif count < 64:
        if (encoded >> count) != 0:
            return -1
        for i in range(count):
            present[i] = 1 - ((encoded >> i) & 1)
    else:
        # With 64 columns or more: the number of missing columns, then the numbers of the present columns or of the
        # missing ones, whichever are fewer, in order. Compactions of Cassandra 6.0-alpha2 leave out some
        # (`SSTableCursorWriter.encodeLargeColumnsSubset`), so the flags of a cell come where a number is expected.
        if encoded < 0 or encoded > count:
            return -1
        there = count - encoded
        few = there < count // 2
        present[:count] = 0 if few else 1
        before = -1
        for _ in range(there if few else encoded):
            i, p = read_vint(p, end)
            if i <= before or i >= count:
                return -1
            present[i] = 1 if few else 0
            before = i
    return p


@inlined
def _body(
    W: Lines, T: Lines, C: Lines, header: Lines, present: np.ndarray, p: int, end: int, flags: int, static: bool
) -> tuple:
    """Read a row after its clustering key and size. Return the address after it, whether it has any effect, and 0 or an
    error.
    """
    t = W[TABLE]
    row = T[t, ROWS]
    row_time = NO_TIME
    row_ttl = 0
    row_expiry = 0
    marker = 0
    tombstone = 0
    if flags & HAS_TIMESTAMP != 0:
        delta, p = read_vint(p, end)
        row_time = W[MIN_WRITE_TIME] + delta
        marker = IS_PRESENT
        if flags & ROW_HAS_TTL != 0:
            delta, p = read_vint(p, end)
            row_ttl = W[MIN_TTL] + delta
            if row_ttl < 0 or row_ttl > 0x7FFFFFFF:
                return p, 0, BAD_TTL
            delta, p = read_vint(p, end)
            row_expiry = deletion_time_of(W, delta)
            marker |= HAS_TTL
        store64(T[t, MARKER_WRITE_TIME] + 8 * row, row_time)
        store32(T[t, MARKER_TTL] + 4 * row, row_ttl)
        store64(T[t, MARKER_EXPIRY] + 8 * row, row_expiry)
    if flags & HAS_DELETION != 0:
        delta, p = read_vint(p, end)
        store64(T[t, TOMBSTONE_WRITE_TIME] + 8 * row, W[MIN_WRITE_TIME] + delta)
        delta, p = read_vint(p, end)
        store64(T[t, TOMBSTONE_DELETION_TIME] + 8 * row, deletion_time_of(W, delta))
        tombstone = IS_PRESENT
    store8(T[t, MARKER_STATE] + row, marker)
    store8(T[t, TOMBSTONE_STATE] + row, tombstone)
    count = W[STATICS] if static else W[REGULARS]
    base = 0 if static else W[STATICS]
    every = flags & HAS_ALL_COLUMNS != 0
    if not every:
        p = _subset(present, count, p, end)
        if p < 0:
            return p, 0, BAD_COLUMNS
    if p > end:
        return p, 0, TRUNCATED
    says = marker | tombstone
    for i in range(count):
        if every or present[i] != 0:
            c = header[base + i]
            if C[c, SHAPE] == SIMPLE:
                p, kept, error = read_cell(W, C, c, row, SIMPLE, p, end, row_time, row_ttl, row_expiry)
            else:
                with_deletion = flags & HAS_COMPLEX_DELETION != 0
                p, kept, error = read_complex(W, C, c, row, p, end, with_deletion, row_time, row_ttl, row_expiry)
            if error != 0:
                return p, 0, error
            says |= kept
    return p, says, 0


@inlined
def _commit_change(W: Lines, T: Lines, kind: int, at: int, position_end: int, range_end: int) -> None:
    """Count the change that was just written."""
    t = W[TABLE]
    row = T[t, ROWS]
    store8(T[t, ROW_KIND] + row, kind)
    store64(T[t, ROW_OFFSET] + 8 * row, W[FILE_OFFSET] + at - W[START])
    T[t, POSITION_USED] = position_end - T[t, POSITION_BYTES]
    T[t, END_USED] = range_end - T[t, END_BYTES]
    store32(T[t, POSITION_OFFSETS] + 4 * (row + 1), T[t, POSITION_USED])
    store32(T[t, END_OFFSETS] + 4 * (row + 1), T[t, END_USED])
    T[t, ROWS] = row + 1


@compiled
def begin_partition(W: Lines, T: Lines, C: Lines) -> int:
    """Write the current key as a partition of the batch; return 0 or an error."""
    t = W[TABLE]
    i = T[t, PARTITIONS]
    key = W[CURRENT_KEY]
    length = W[CURRENT_KEY_LENGTH]
    copy(T[t, KEY_BYTES] + T[t, KEY_USED], key, length)
    T[t, KEY_USED] += length
    store32(T[t, KEY_OFFSETS] + 4 * (i + 1), T[t, KEY_USED])
    store64(T[t, TOKENS] + 8 * i, W[CURRENT_TOKEN])
    store32(T[t, FIRST_ROW] + 4 * i, T[t, ROWS])
    p = key
    end = key + length
    for j in range(T[t, KEYS]):
        c = T[t, KEY] + j
        part = length
        if T[t, KEYS] > 1:
            # CompositeType: each component has its length (2 bytes) before it, and a zero after it.
            if end - p < 3:
                return BAD_KEY
            part = load16(p)
            p += 2
            if part > end - p - 1 or load8(p + part) != 0:
                return BAD_KEY
        if C[c, WANTED] != 0:
            error = store_part(C, c, i, p, part, part > 0 or C[c, EMPTY_IS_VALUE] != 0)
            if error != 0:
                return BAD_KEY if error == BAD_LENGTH else error
        p += part + (1 if T[t, KEYS] > 1 else 0)
    if p != end:
        return BAD_KEY
    # Counted only now, because a key that cannot be read does not have all values.
    T[t, PARTITIONS] = i + 1
    return 0


@compiled
def _deletion_change(W: Lines, T: Lines, C: Lines, write_time: int, deletion_time: int) -> None:
    """Write the fields of a range or partition tombstone, except its position."""
    t = W[TABLE]
    row = T[t, ROWS]
    _clear(T, C, t, row)
    store8(T[t, MARKER_STATE] + row, 0)
    store8(T[t, TOMBSTONE_STATE] + row, IS_PRESENT)
    store64(T[t, TOMBSTONE_WRITE_TIME] + 8 * row, write_time)
    store64(T[t, TOMBSTONE_DELETION_TIME] + 8 * row, deletion_time)


@compiled
def partition_tombstone(W: Lines, T: Lines, C: Lines, at: int, write_time: int, deletion_time: int) -> None:
    """Write a partition deletion as a change."""
    t = W[TABLE]
    _deletion_change(W, T, C, write_time, deletion_time)
    _commit_change(W, T, 3, at, T[t, POSITION_BYTES] + T[t, POSITION_USED], T[t, END_BYTES] + T[t, END_USED])


@compiled
def read_static_row(
    W: Lines, T: Lines, C: Lines, header: Lines, present: np.ndarray, at: int, p: int, end: int, flags: int
) -> tuple:
    """Read a static row's body. A row without effect becomes no change."""
    t = W[TABLE]
    _clear(T, C, t, T[t, ROWS])
    p, says, error = _body(W, T, C, header, present, p, end, flags, True)
    if error == 0 and says != 0:
        out = T[t, POSITION_BYTES] + T[t, POSITION_USED]
        store8(out, 0x18)
        _commit_change(W, T, 1, at, out + 1, T[t, END_BYTES] + T[t, END_USED])
    return p, error


@inlined
def _read_row(
    W: Lines, T: Lines, C: Lines, header: Lines, present: np.ndarray, at: int, p: int, end: int, flags: int
) -> tuple:
    """Read a row, beginning with its clustering key. `end` is the end of the data. Return the address after the row,
    and 0 or an error.
    """
    t = W[TABLE]
    row = T[t, ROWS]
    _clear(T, C, t, row)
    out = T[t, POSITION_BYTES] + T[t, POSITION_USED]
    count = T[t, CLUSTERINGS]
    out = _position_head(T, t, out, 0x38, count)
    p, out, error = read_clustering(T, C, t, p, end, count, row, out)
    if error != 0:
        return p, error
    out = _position_tail(T, t, out, 0x38)
    row_end = end
    if W[IS_SSTABLE] != 0:
        size, p = read_vint(p, end)
        row_end = skip(p, size, end)
        if row_end > end:
            return row_end, TRUNCATED
        _, p = read_vint(p, row_end)
    p, says, error = _body(W, T, C, header, present, p, row_end, flags, False)
    if error != 0:
        return p, error
    if W[IS_SSTABLE] != 0 and p != row_end:
        return p, BAD_ROW_SIZE
    if says != 0:
        _commit_change(W, T, 0, at, out, T[t, END_BYTES] + T[t, END_USED])
    else:
        _forget_clustering(T, C, t, row)
    return p, 0


@compiled
def _bound(W: Lines, T: Lines, C: Lines, at: int, p: int, end: int) -> tuple:
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
    out = _position_head(T, t, start, terminator, count)
    p, out, error = read_clustering(T, C, t, p, end, count, -1, out)
    if error != 0:
        return p, error
    out = _position_tail(T, t, out, terminator)
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
                _deletion_change(W, T, C, write_time, deletion_time)
                position = T[t, POSITION_BYTES] + T[t, POSITION_USED]
                copy(position, W[OPEN_BYTES], W[OPEN_LENGTH])
                _commit_change(W, T, 2, at, position + W[OPEN_LENGTH], out)
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
def read_unfiltered(W: Lines, T: Lines, C: Lines, header: Lines, present: np.ndarray, p: int, end: int) -> tuple:
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
    return _read_row(W, T, C, header, present, at, p, end, flags)
