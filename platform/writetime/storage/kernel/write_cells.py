"""Writes rows of an SSTable, with their cells: the inverse of `rows` and `cells`.

Sources: `UnfilteredSerializer`, `Cell.Serializer`, `Columns.Serializer`, `MetadataCollector`.
"""

# ruff: noqa: F403, F405, PLR0917 (the layout is a list of names, all of them used here; numba has no
# keyword-only arguments, and compiles neither sets nor generators to fast code)

import numpy as np

from writetime.storage.kernel.layout import (
    COLLECTION,
    EXTENDED,
    EXTENDED_STATIC,
    HAS_ALL_COLUMNS,
    HAS_COMPLEX_DELETION,
    HAS_DELETION,
    HAS_TIMESTAMP,
    HAS_TTL,
    IS_TOMBSTONE,
    ROW_HAS_TTL,
    SIMPLE,
)
from writetime.storage.kernel.memory import (
    compiled,
    copy,
    inlined,
    load8,
    load_native32,
    load_native64,
    store8,
    store64,
    store_big16,
    store_big64,
)
from writetime.storage.kernel.write_layout import *

_NEVER = -(1 << 63)


@inlined
def write_vint(out: int, value: int) -> int:
    """Write an int64 as an unsigned vint (`utils.vint.VIntCoding`)."""
    if value >= 0 and value < 128:
        store8(out, value)
        return out + 1
    extra = 1
    if value < 0:
        extra = 8
    while extra < 8 and (value >> (7 * (extra + 1))) != 0:
        extra += 1
    if extra == 8:
        store8(out, 0xFF)
        store_big64(out + 1, value)
        return out + 9
    store8(out, ((0xFF00 >> extra) & 0xFF) | (value >> (8 * extra)))
    for i in range(extra):
        store8(out + 1 + i, value >> (8 * (extra - 1 - i)))
    return out + 1 + extra


@inlined
def vint_size(value: int) -> int:
    """Return the number of bytes of an unsigned vint."""
    if value < 0:
        return 9
    size = 1
    while size < 9 and (value >> (7 * size)) != 0:
        size += 1
    return size


@inlined
def note_write_time(W: np.ndarray, write_time: int) -> None:
    """Keep the smallest and the largest write time."""
    W[MIN_WRITE_TIME] = min(W[MIN_WRITE_TIME], write_time)
    W[MAX_WRITE_TIME] = max(W[MAX_WRITE_TIME], write_time)


@inlined
def note_deletion_time(W: np.ndarray, deletion_time: int) -> None:
    """Keep the smallest and the largest deletion time or expiry, and list all of them."""
    W[MIN_DELETION_TIME] = min(W[MIN_DELETION_TIME], deletion_time)
    W[MAX_DELETION_TIME] = max(W[MAX_DELETION_TIME], deletion_time)
    store64(W[DELETED] + 8 * W[DELETED_COUNT], deletion_time)
    W[DELETED_COUNT] += 1


@inlined
def _write_deletion_time(W: np.ndarray, out: int, deletion_time: int) -> int:
    delta = deletion_time - W[BASE_DELETION_TIME]
    if W[UNSIGNED] != 0:
        delta = ((delta + 0x80000000) & 0xFFFFFFFF) - 0x80000000
    return write_vint(out, delta)


@compiled
def write_deletion(W: np.ndarray, out: int, write_time: int, deletion_time: int) -> int:
    """Write the times of a tombstone within rows, as deltas."""
    note_write_time(W, write_time)
    note_deletion_time(W, deletion_time)
    W[MAX_TOMBSTONE_TIME] = max(W[MAX_TOMBSTONE_TIME], deletion_time)
    out = write_vint(out, write_time - W[BASE_WRITE_TIME])
    return _write_deletion_time(W, out, deletion_time)


@inlined
def _write_cell(
    W: np.ndarray, C: np.ndarray, c: int, i: int, field: int, out: int, row_time: int, row_ttl: int, row_expiry: int
) -> int:
    """Write a cell: of a simple column, of field number `field` of a UDT, or an element of a collection (-2)."""
    state = load8(C[c, WRITE_STATE] + i)
    write_time = load_native64(C[c, WRITE_TIMES] + 8 * i)
    is_tombstone = state & IS_TOMBSTONE != 0
    is_expiring = not is_tombstone and state & HAS_TTL != 0
    start = load_native32(C[c, WRITE_OFFSETS] + 4 * i)
    length = 0 if is_tombstone else load_native32(C[c, WRITE_OFFSETS] + 4 * i + 4) - start
    flags = 0x04 if length == 0 else 0
    deletion_time = 0
    ttl = 0
    if is_tombstone:
        flags |= 0x01
        deletion_time = load_native64(C[c, WRITE_DELETION_TIMES] + 8 * i)
    elif is_expiring:
        flags |= 0x02
        deletion_time = load_native64(C[c, WRITE_DELETION_TIMES] + 8 * i)
        ttl = load_native32(C[c, WRITE_TTLS] + 4 * i)
    own_time = row_time == _NEVER or write_time != row_time
    own_ttl = not is_expiring or row_ttl == 0 or ttl != row_ttl or deletion_time != row_expiry
    if not own_time:
        flags |= 0x08
    if not own_ttl:
        flags |= 0x10
    store8(out, flags)
    out += 1
    if own_time:
        note_write_time(W, write_time)
        out = write_vint(out, write_time - W[BASE_WRITE_TIME])
    if is_tombstone or is_expiring:
        note_deletion_time(W, deletion_time)
        if own_ttl:
            out = _write_deletion_time(W, out, deletion_time)
    else:
        W[SOME_LIVE] = 1
    W[MIN_TTL] = min(W[MIN_TTL], ttl)
    W[MAX_TTL] = max(W[MAX_TTL], ttl)
    if is_expiring and own_ttl:
        out = write_vint(out, ttl - W[BASE_TTL])
    if field == -2:
        path = load_native32(C[c, WRITE_PATH_OFFSETS] + 4 * i)
        path_length = load_native32(C[c, WRITE_PATH_OFFSETS] + 4 * i + 4) - path
        out = write_vint(out, path_length)
        copy(out, C[c, WRITE_PATHS] + path, path_length)
        out += path_length
    elif field >= 0:
        store8(out, 2)
        store_big16(out + 1, field)
        out += 3
    if length != 0:
        if C[c, WRITE_LENGTH] < 0:
            out = write_vint(out, length)
        copy(out, C[c, WRITE_VALUES] + start, length)
        out += length
    W[CELLS] += 1
    return out


@compiled
def _write_subset(C: np.ndarray, first: int, count: int, row: int, present: int, out: int) -> int:
    """Write which columns a row has (`Columns.Serializer.serializeSubset`)."""
    if count < 64:
        missing = 0
        for i in range(count):
            if load8(C[first + i, WRITE_STATE] + row) == 0:
                missing |= 1 << i
        return write_vint(out, missing)
    out = write_vint(out, count - present)
    listed = present < count // 2
    for i in range(count):
        if (load8(C[first + i, WRITE_STATE] + row) != 0) == listed:
            out = write_vint(out, i)
    return out


@compiled
def _write_complex(
    W: np.ndarray,
    C: np.ndarray,
    c: int,
    row: int,
    with_deletion: bool,
    out: int,
    row_time: int,
    row_ttl: int,
    row_expiry: int,
) -> int:
    """Write the column tombstone and the cells of a collection or UDT."""
    if with_deletion:
        if load8(C[c, WRITE_STATE] + row) & IS_TOMBSTONE != 0:
            write_time = load_native64(C[c, WRITE_TIMES] + 8 * row)
            out = write_deletion(W, out, write_time, load_native64(C[c, WRITE_DELETION_TIMES] + 8 * row))
        else:
            out = write_vint(out, _NEVER - W[BASE_WRITE_TIME])
            out = _write_deletion_time(W, out, W[LIVE_DELETION_TIME])
    child = C[c, WRITE_CHILD]
    before = W[CELLS]
    if C[c, WRITE_SHAPE] == COLLECTION:
        start = load_native32(C[c, WRITE_ELEMENTS] + 4 * row)
        end = load_native32(C[c, WRITE_ELEMENTS] + 4 * row + 4)
        out = write_vint(out, end - start)
        for i in range(start, end):
            out = _write_cell(W, C, child, i, -2, out, row_time, row_ttl, row_expiry)
    else:
        fields = 0
        for k in range(C[c, WRITE_CHILDREN]):
            if load8(C[child + k, WRITE_STATE] + row) != 0:
                fields += 1
        out = write_vint(out, fields)
        for k in range(C[c, WRITE_CHILDREN]):
            if load8(C[child + k, WRITE_STATE] + row) != 0:
                out = _write_cell(W, C, child + k, row, k, out, row_time, row_ttl, row_expiry)
    if W[CELLS] != before:
        W[COLUMN_COUNT] += 1
    return out


@inlined
def _write_clustering(W: np.ndarray, C: np.ndarray, row: int, out: int) -> int:
    """Write the clustering of a row (`ClusteringPrefix.Serializer.serializeValuesWithoutSize`)."""
    count = W[CLUSTERINGS]
    at = 0
    while at < count:
        limit = min(count, at + 32)
        header = 0
        for c in range(at, limit):
            offsets = C[c, WRITE_OFFSETS] + 4 * row
            if load8(C[c, WRITE_STATE] + row) == 0:
                header |= 2 << (2 * (c - at))
            elif load_native32(offsets) == load_native32(offsets + 4):
                header |= 1 << (2 * (c - at))
        out = write_vint(out, header)
        for c in range(at, limit):
            start = load_native32(C[c, WRITE_OFFSETS] + 4 * row)
            length = load_native32(C[c, WRITE_OFFSETS] + 4 * row + 4) - start
            if length != 0:
                if C[c, WRITE_LENGTH] < 0:
                    out = write_vint(out, length)
                copy(out, C[c, WRITE_VALUES] + start, length)
                out += length
        at = limit
    return out


@inlined
def note_prefix(W: np.ndarray, at: int, length: int, is_row: bool) -> None:
    """Remember the clustering of the row or bound that is being written. `_copy_prefix` reads it."""
    if W[IN_BLOCK] == 0:
        W[IN_BLOCK] = 1
        W[FIRST] = at
        W[FIRST_LENGTH] = -length - 1 if is_row else length
    W[LAST] = at
    W[LAST_LENGTH] = -length - 1 if is_row else length


@compiled
def write_row(W: np.ndarray, C: np.ndarray, row: int, is_static: bool, is_empty: bool, size: int, out: int) -> int:
    """Write the static row (`is_empty`: without cells) or another row. `size` is that of the previous row or bound."""
    first = W[CLUSTERINGS] if is_static else W[CLUSTERINGS] + W[STATICS]
    count = W[STATICS] if is_static else W[REGULARS]
    if is_empty:
        store8(out, EXTENDED)
        store8(out + 1, EXTENDED_STATIC)
        body = W[BODY]
        end = write_vint(body, (1 << count) - 1) if count < 64 else write_vint(body, count)
        out = write_vint(out + 2, end - body + 1)
        out = write_vint(out, 0)
        copy(out, body, end - body)
        return out + (end - body)
    flags = 0
    present = 0
    for c in range(first, first + count):
        state = load8(C[c, WRITE_STATE] + row)
        if state != 0:
            present += 1
            if C[c, WRITE_SHAPE] != SIMPLE and state & IS_TOMBSTONE != 0:
                flags |= HAS_COMPLEX_DELETION
    if present == count:
        flags |= HAS_ALL_COLUMNS
    body = W[BODY]
    end = body
    row_time = _NEVER
    row_ttl = 0
    row_expiry = 0
    marker = load8(W[MARKER_STATE] + row)
    if marker != 0:
        flags |= HAS_TIMESTAMP
        row_time = load_native64(W[MARKER_TIMES] + 8 * row)
        note_write_time(W, row_time)
        end = write_vint(end, row_time - W[BASE_WRITE_TIME])
        if marker & HAS_TTL != 0:
            flags |= ROW_HAS_TTL
            row_ttl = load_native32(W[MARKER_TTLS] + 4 * row)
            row_expiry = load_native64(W[MARKER_EXPIRIES] + 8 * row)
            end = write_vint(end, row_ttl - W[BASE_TTL])
            note_deletion_time(W, row_expiry)
            end = _write_deletion_time(W, end, row_expiry)
        else:
            W[SOME_LIVE] = 1
        W[MIN_TTL] = min(W[MIN_TTL], row_ttl)
        W[MAX_TTL] = max(W[MAX_TTL], row_ttl)
    if load8(W[TOMBSTONE_STATE] + row) != 0:
        flags |= HAS_DELETION
        write_time = load_native64(W[TOMBSTONE_TIMES] + 8 * row)
        end = write_deletion(W, end, write_time, load_native64(W[TOMBSTONE_DELETION_TIMES] + 8 * row))
    if present != count:
        end = _write_subset(C, first, count, row, present, end)
    for c in range(first, first + count):
        if load8(C[c, WRITE_STATE] + row) != 0:
            if C[c, WRITE_SHAPE] == SIMPLE:
                end = _write_cell(W, C, c, row, -1, end, row_time, row_ttl, row_expiry)
                W[COLUMN_COUNT] += 1
            else:
                with_deletion = flags & HAS_COMPLEX_DELETION != 0
                end = _write_complex(W, C, c, row, with_deletion, end, row_time, row_ttl, row_expiry)
    W[ROW_COUNT] += 1
    if is_static:
        store8(out, flags | EXTENDED)
        store8(out + 1, EXTENDED_STATIC)
        out += 2
    else:
        store8(out, flags)
        out += 1
        start = out
        out = _write_clustering(W, C, row, out)
        note_prefix(W, start, out - start, True)
    out = write_vint(out, end - body + vint_size(size))
    out = write_vint(out, size)
    copy(out, body, end - body)
    return out + (end - body)
