"""Reads cells, and columns of several cells, as `Cell.Serializer` and `UnfilteredSerializer` of Cassandra write them.

ScyllaDB writes the same format. `layout` defines the numbers that control the reading. numba compiles this module.
"""

# ruff: noqa: F403, F405, PLR0917, SIM102, SIM110 (the layout is a list of names, all of them used here; numba
# has no keyword-only arguments, and compiles neither sets nor generators to fast code)

from writetime.storage.kernel.layout import *
from writetime.storage.kernel.memory import (
    Lines,
    compiled,
    copy,
    inlined,
    load8,
    load16,
    load32,
    load64,
    load_int8,
    load_int16,
    load_int32,
    store8,
    store16,
    store32,
    store64,
)
from writetime.storage.kernel.primitives import read_vint, skip, write_uuid

# Flags of a cell on disk (Cell.Serializer).
_CELL_DELETED, _CELL_EXPIRING, _CELL_EMPTY, _CELL_ROW_TIMESTAMP, _CELL_ROW_TTL = 0x01, 0x02, 0x04, 0x08, 0x10


@inlined
def deletion_time_of(W: Lines, delta: int) -> int:
    """Return a deletion time. Newer versions write it unsigned, up to the year 2106; older versions write it signed."""
    value = (W[MIN_DELETION_TIME] + delta) & 0xFFFFFFFF
    if W[UNSIGNED_DELETION_TIME] == 0 and value >= 0x80000000:
        value -= 0x100000000
    return value


@inlined
def store_value(C: Lines, c: int, i: int, p: int, length: int) -> int:
    """Write value `i` of a column; return 0 or an error."""
    form = C[c, FORM]
    if form == BYTES:
        used = C[c, USED]
        copy(C[c, VALUES] + used, p, length)
        C[c, USED] = used + length
        return 0
    values = C[c, VALUES]
    if form == FIXED4:
        if length != 4:
            return BAD_LENGTH
        store32(values + 4 * i, load_int32(p))
    elif form == FIXED8:
        if length != 8:
            return BAD_LENGTH
        store64(values + 8 * i, load64(p))
    elif form == UUID_TEXT:
        if length != 16:
            return BAD_LENGTH
        write_uuid(p, values + C[c, USED])
        C[c, USED] += 36
    elif form == BOOLEAN:
        if length != 1:
            return BAD_LENGTH
        store8(values + i, 1 if load8(p) != 0 else 0)
    elif form == FIXED1:
        if length != 1:
            return BAD_LENGTH
        store8(values + i, load_int8(p))
    elif form == FIXED2:
        if length != 2:
            return BAD_LENGTH
        store16(values + 2 * i, load_int16(p))
    elif form == DATE:
        if length != 4:
            return BAD_LENGTH
        store32(values + 4 * i, load32(p) - 0x80000000)
    else:
        if not _is_counter(p, length):
            return BAD_COUNTER
        copy(values + C[c, USED], p, length)
        C[c, USED] += length
    return 0


@inlined
def store_part(C: Lines, c: int, i: int, p: int, length: int, is_value: bool) -> int:
    """Write entry `i` of a column without times: a value, or null. Return 0 or an error."""
    state = 0
    if is_value:
        error = store_value(C, c, i, p, length)
        if error != 0:
            return error
        state = HAS_VALUE
    store8(C[c, STATE] + i, state)
    if C[c, OFFSETS] != 0:
        store32(C[c, OFFSETS] + 4 * (i + 1), C[c, USED])
    return 0


@compiled
def _is_counter(p: int, length: int) -> bool:
    """Return whether a counter has only complete shards, and its header names only these (see `counter_contexts`)."""
    if length < 2:
        return False
    header = 2 + 2 * abs(load_int16(p))
    if header > length or (length - header) % 32 != 0:
        return False
    shards = (length - header) // 32
    for element in range(p + 2, p + header, 2):
        if load_int16(element) & 0x7FFF >= shards:
            return False
    return True


@inlined
def read_cell(
    W: Lines, C: Lines, c: int, i: int, shape: int, p: int, end: int, row_time: int, row_ttl: int, row_expiry: int
) -> tuple:
    """Read one cell of column `c` into entry `i`. A cell of a UDT goes to the entry of the field that its path names,
    and a cell of a collection becomes the next element.

    Return the address after the cell, whether it was kept, and 0 or an error.
    """
    if p >= end:
        return end + 1, 0, TRUNCATED
    flags = load8(p)
    at = p
    p += 1
    if flags > 0x1F:
        return at, 0, BAD_FLAGS
    write_time = row_time
    if flags & _CELL_ROW_TIMESTAMP == 0:
        delta, p = read_vint(p, end)
        write_time = W[MIN_WRITE_TIME] + delta
    state = IS_PRESENT
    ttl = 0
    deletion_time = 0
    if flags & _CELL_ROW_TTL != 0:
        ttl = row_ttl
        deletion_time = row_expiry
        state |= HAS_TTL | HAS_DELETION_TIME
    elif flags & 3 != 0:
        delta, p = read_vint(p, end)
        deletion_time = deletion_time_of(W, delta)
        state |= HAS_DELETION_TIME
        if flags & _CELL_EXPIRING != 0:
            delta, p = read_vint(p, end)
            ttl = W[MIN_TTL] + delta
            if ttl < 0 or ttl > 0x7FFFFFFF:
                return at, 0, BAD_TTL
            state |= HAS_TTL
    deleted = flags & _CELL_DELETED != 0
    if deleted and flags & _CELL_EXPIRING != 0:
        # Compactions of Cassandra 6.0 write tombstones so, with a TTL of 0 (`CursorCompactor.mergeCells`). For
        # Cassandra, the TTL decides (`AbstractCell.isTombstone`).
        deleted = ttl == 0
        if deleted:
            state &= ~HAS_TTL
    if deleted:
        state |= IS_TOMBSTONE
    path = 0
    path_length = 0
    if shape != SIMPLE:
        path_length, p = read_vint(p, end)
        path = p
        p = skip(p, path_length, end)
        if p > end:
            return p, 0, TRUNCATED
        if shape == UDT:
            field = load16(path) if path_length == 2 else 0x8000
            if field >= C[c, CHILDREN]:
                return at, 0, BAD_PATH
            c = C[c, CHILD] + field
        else:
            c = C[c, CHILD]
    length = 0
    value = p
    if flags & _CELL_EMPTY == 0:
        length = C[c, LENGTH]
        if length < 0:
            length, p = read_vint(p, end)
            value = p
        p = skip(p, length, end)
    if p > end:
        return p, 0, TRUNCATED
    if write_time <= C[c, DROPPED_AT]:
        return p, 0, 0
    if C[c, WANTED] == 0:
        return p, 1, 0 if C[c, FORMER] == 0 else FORMER_CELL
    if shape == COLLECTION:
        i = C[c, CHILDREN]
        error = _path(C, c + 1, i, path, path_length)
        if error != 0:
            return at, 0, error
        C[c, CHILDREN] = i + 1
    if length > 0 or (C[c, EMPTY_IS_VALUE] != 0 and not deleted):
        # A tombstone has no value. A counter's tombstone may have one, which does not count.
        if not deleted:
            error = store_value(C, c, i, value, length)
            if error != 0:
                return at, 0, error
            state |= HAS_VALUE
    store8(C[c, STATE] + i, state)
    store64(C[c, WRITE_TIME] + 8 * i, write_time)
    if state & HAS_DELETION_TIME != 0:
        store64(C[c, DELETION_TIME] + 8 * i, deletion_time)
        if state & HAS_TTL != 0:
            store32(C[c, TTL] + 4 * i, ttl)
    if C[c, OFFSETS] != 0:
        store32(C[c, OFFSETS] + 4 * (i + 1), C[c, USED])
    return p, 1, 0


@compiled
def _path(C: Lines, c: int, i: int, p: int, length: int) -> int:
    error = store_part(C, c, i, p, length, length > 0 or C[c, EMPTY_IS_VALUE] != 0)
    return BAD_PATH if error == BAD_LENGTH else error


@compiled
def read_complex(
    W: Lines,
    C: Lines,
    c: int,
    row: int,
    p: int,
    end: int,
    with_deletion: bool,
    row_time: int,
    row_ttl: int,
    row_expiry: int,
) -> tuple:
    """Read the column tombstone and the cells of a collection or UDT."""
    kept = 0
    state = 0
    wanted = C[c, WANTED] != 0
    if with_deletion:
        delta, p = read_vint(p, end)
        write_time = W[MIN_WRITE_TIME] + delta
        delta, p = read_vint(p, end)
        # If another column of the row has a tombstone, a column without one has the entry "never deleted".
        if write_time != NO_TIME and write_time > C[c, DROPPED_AT]:
            if C[c, FORMER] != 0:
                return p, 0, FORMER_CELL
            kept = 1
            if wanted:
                state = IS_PRESENT | IS_TOMBSTONE
                store64(C[c, WRITE_TIME] + 8 * row, write_time)
                store64(C[c, DELETION_TIME] + 8 * row, deletion_time_of(W, delta))
    count, p = read_vint(p, end)
    if p > end or count < 0 or count > end - p:
        return end + 1, 0, TRUNCATED
    shape = C[c, SHAPE]
    for _ in range(count):
        p, cell_kept, error = read_cell(W, C, c, row, shape, p, end, row_time, row_ttl, row_expiry)
        if error != 0:
            return p, 0, error
        if cell_kept != 0:
            kept = 1
            state |= IS_PRESENT
    if wanted:
        store8(C[c, STATE] + row, state)
        if shape == COLLECTION:
            store32(C[c, OFFSETS] + 4 * (row + 1), C[C[c, CHILD], CHILDREN])
    return p, kept, 0
