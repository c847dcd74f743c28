"""The one walk over partitions, rows, bounds and cells, for SSTables and commit logs alike, compiled by numba.

The format is that of `UnfilteredSerializer`, `ClusteringPrefix`, `Cell` and `DeletionTime` in
`org.apache.cassandra.db`, 3.0 and later; ScyllaDB writes the same. `layout` names the numbers that steer it.
"""

# ruff: noqa: F403, F405, PLR0917, PLR1714, SIM110, SIM102 (the layout is a list of names, all of them used here; numba
# has no keyword-only arguments, and compiles neither sets nor generators to fast code)

import numpy as np

from writetime.storage.layout import *
from writetime.storage.memory import (
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
from writetime.storage.primitives import encode_comparable, read_vint, skip, token_at, write_uuid

# UnfilteredSerializer's flags of a row, and Cell's of a cell.
_END_OF_PARTITION, _IS_MARKER, _HAS_TIMESTAMP, _HAS_TTL, _HAS_DELETION = 0x01, 0x02, 0x04, 0x08, 0x10
_HAS_ALL_COLUMNS, _HAS_COMPLEX_DELETION, _EXTENDED, _EXTENDED_STATIC = 0x20, 0x40, 0x80, 0x01
_CELL_DELETED, _CELL_EXPIRING, _CELL_EMPTY, _CELL_ROW_TIMESTAMP, _CELL_ROW_TTL = 0x01, 0x02, 0x04, 0x08, 0x10

_NO_TIME = -0x8000000000000000
_MAX_MILLIS = 0x7FFFFFFFFFFFFFFF // 1000


@inlined
def _deletion_time(W: np.ndarray, delta: int) -> int:
    """Versions with unsigned deletion times reach the year 2106; older ones are signed."""
    value = (W[MIN_DELETION_TIME] + delta) & 0xFFFFFFFF
    if W[UNSIGNED_DELETION_TIME] == 0 and value >= 0x80000000:
        value -= 0x100000000
    return value


@inlined
def _store_value(C: np.ndarray, c: int, i: int, p: int, length: int) -> int:
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
    elif form == TIMESTAMP:
        if length != 8:
            return BAD_LENGTH
        millis = load64(p)
        if millis > _MAX_MILLIS or millis < -_MAX_MILLIS:
            return BAD_TIMESTAMP
        store64(values + 8 * i, millis * 1000)
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
        return _store_counter(values + 8 * i, p, length)
    return 0


@compiled
def _store_counter(target: int, p: int, length: int) -> int:
    """Add up the shards of a counter (`CounterContext`): 2 bytes count the header's, of 2 each; shards have 32."""
    if length < 2:
        return BAD_COUNTER
    header = 2 + 2 * abs(load_int16(p))
    if header > length or (length - header) % 32 != 0:
        return BAD_COUNTER
    total = 0
    for shard in range(p + header, p + length, 32):
        total += load64(shard + 24)
    store64(target, total)
    return 0


@inlined
def _clear(T: np.ndarray, C: np.ndarray, t: int, row: int) -> None:
    """Mark every column of a new change as absent."""
    for c in range(T[t, FIRST], T[t, LAST]):
        if C[c, WANTED] != 0:
            store8(C[c, STATE] + row, 0)
            if C[c, SHAPE] == COLLECTION:
                store32(C[c, OFFSETS] + 4 * (row + 1), C[C[c, CHILD], CHILDREN])
            elif C[c, OFFSETS] != 0:
                store32(C[c, OFFSETS] + 4 * (row + 1), C[c, USED])


@compiled
def _clustering(T: np.ndarray, C: np.ndarray, t: int, p: int, end: int, count: int, row: int, out: int) -> tuple:
    """Read `count` clustering values, into their columns if `row` >= 0, and as a position at `out` if that is not 0.

    Return the address after them (in the input), the end of the position, and 0 or an error.
    """
    start = p
    encode = T[t, ENCODE_POSITION]
    header = 0
    first = T[t, CLUSTERING]
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
        if row >= 0 and C[c, WANTED] != 0 and (length > 0 or (state == 1 and C[c, EMPTY_IS_VALUE] != 0)):
            error = _store_value(C, c, row, p, length)
            if error != 0:
                return p, out, error
            store8(C[c, STATE] + row, HAS_VALUE)
            C[c, WITH_VALUE] += 1
            if C[c, OFFSETS] != 0:
                store32(C[c, OFFSETS] + 4 * (row + 1), C[c, USED])
        p += length
    if p > end:
        return p, out, TRUNCATED
    if out != 0 and encode == 0:
        copy(out, start, p - start)
        out += p - start
    return p, out, 0


@compiled
def _position_head(T: np.ndarray, t: int, out: int, terminator: int, count: int) -> int:
    """Before a clustering that is left to Python to encode go its terminator and the number of its values."""
    if T[t, ENCODE_POSITION] == 0:
        store8(out, terminator)
        store8(out + 1, count >> 8)
        store8(out + 2, count)
        return out + 3
    return out


@compiled
def _position_tail(T: np.ndarray, t: int, out: int, terminator: int) -> int:
    if T[t, ENCODE_POSITION] != 0:
        store8(out, terminator)
        return out + 1
    return out


@inlined
def _cell(
    W: np.ndarray,
    C: np.ndarray,
    c: int,
    i: int,
    shape: int,
    p: int,
    end: int,
    row_time: int,
    row_ttl: int,
    row_expiry: int,
) -> tuple:
    """Read one cell of column `c`: into entry `i`, or that of the field that the path names, or as the next element.

    Return the address after it, whether it was kept, and 0 or an error.
    """
    if p >= end:
        return end + 1, 0, TRUNCATED
    flags = load8(p)
    at = p
    p += 1
    if flags > 0x1F or flags & 3 == 3:
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
        deletion_time = _deletion_time(W, delta)
        state |= HAS_DELETION_TIME
        if flags & _CELL_EXPIRING != 0:
            delta, p = read_vint(p, end)
            ttl = W[MIN_TTL] + delta
            if ttl < 0 or ttl > 0x7FFFFFFF:
                return at, 0, BAD_TTL
            state |= HAS_TTL
    if flags & _CELL_DELETED != 0:
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
        return p, 1, 0
    if shape == COLLECTION:
        i = C[c, CHILDREN]
        error = _path(C, c + 1, i, path, path_length)
        if error != 0:
            return at, 0, error
        C[c, CHILDREN] = i + 1
    if length > 0 or (C[c, EMPTY_IS_VALUE] != 0 and flags & _CELL_DELETED == 0):
        # A tombstone has no value; a counter's may, and has nothing to add up.
        if flags & _CELL_DELETED == 0:
            error = _store_value(C, c, i, value, length)
            if error != 0:
                return at, 0, error
            state |= HAS_VALUE
            C[c, WITH_VALUE] += 1
    store8(C[c, STATE] + i, state)
    store64(C[c, WRITE_TIME] + 8 * i, write_time)
    C[c, PRESENT] += 1
    if state & HAS_DELETION_TIME != 0:
        store64(C[c, DELETION_TIME] + 8 * i, deletion_time)
        C[c, WITH_DELETION_TIME] += 1
        if state & HAS_TTL != 0:
            store32(C[c, TTL] + 4 * i, ttl)
            C[c, WITH_TTL] += 1
        if state & IS_TOMBSTONE != 0:
            C[c, WITH_TOMBSTONE] += 1
    if C[c, OFFSETS] != 0:
        store32(C[c, OFFSETS] + 4 * (i + 1), C[c, USED])
    return p, 1, 0


@compiled
def _path(C: np.ndarray, c: int, i: int, p: int, length: int) -> int:
    state = 0
    if length > 0 or C[c, EMPTY_IS_VALUE] != 0:
        error = _store_value(C, c, i, p, length)
        if error != 0:
            return BAD_PATH if error == BAD_LENGTH else error
        state = HAS_VALUE
        C[c, WITH_VALUE] += 1
    store8(C[c, STATE] + i, state)
    if C[c, OFFSETS] != 0:
        store32(C[c, OFFSETS] + 4 * (i + 1), C[c, USED])
    return 0


@compiled
def _complex(
    W: np.ndarray,
    C: np.ndarray,
    c: int,
    row: int,
    p: int,
    end: int,
    with_deletion: bool,
    row_time: int,
    row_ttl: int,
    row_expiry: int,
) -> tuple:
    """Read a collection or UDT: its column tombstone, and its cells."""
    kept = 0
    state = 0
    wanted = C[c, WANTED] != 0
    if with_deletion:
        delta, p = read_vint(p, end)
        write_time = W[MIN_WRITE_TIME] + delta
        delta, p = read_vint(p, end)
        # A column without a tombstone in a row that has one elsewhere says "never deleted".
        if write_time != _NO_TIME and write_time > C[c, DROPPED_AT]:
            kept = 1
            if wanted:
                state = IS_PRESENT | IS_TOMBSTONE
                store64(C[c, WRITE_TIME] + 8 * row, write_time)
                store64(C[c, DELETION_TIME] + 8 * row, _deletion_time(W, delta))
                C[c, WITH_TOMBSTONE] += 1
    count, p = read_vint(p, end)
    if p > end or count < 0 or count > end - p:
        return end + 1, 0, TRUNCATED
    shape = C[c, SHAPE]
    for _ in range(count):
        p, cell_kept, error = _cell(W, C, c, row, shape, p, end, row_time, row_ttl, row_expiry)
        if error != 0:
            return p, 0, error
        if cell_kept != 0:
            kept = 1
            state |= IS_PRESENT
    if wanted:
        store8(C[c, STATE] + row, state)
        if state != 0:
            C[c, PRESENT] += 1
        if shape == COLLECTION:
            store32(C[c, OFFSETS] + 4 * (row + 1), C[C[c, CHILD], CHILDREN])
    return p, kept, 0


@compiled
def _subset(present: np.ndarray, count: int, p: int, end: int) -> int:
    """Read which of the header's columns a row has (`Columns.deserializeSubset`); return the address after it, or
    -1."""
    encoded, p = read_vint(p, end)
    if encoded == 0:
        present[:count] = 1
    elif count < 64:
        if (encoded >> count) != 0:
            return -1
        for i in range(count):
            present[i] = 1 - ((encoded >> i) & 1)
    else:
        # From 64 columns on: how many are missing, then the numbers of those that are there or not, whichever are
        # fewer.
        if encoded < 0 or encoded > count:
            return -1
        there = count - encoded
        few = there < count // 2
        present[:count] = 0 if few else 1
        for _ in range(there if few else encoded):
            i, p = read_vint(p, end)
            if i < 0 or i >= count:
                return -1
            present[i] = 1 if few else 0
    return p


@compiled
def _body(
    W: np.ndarray,
    T: np.ndarray,
    C: np.ndarray,
    header: np.ndarray,
    present: np.ndarray,
    p: int,
    end: int,
    flags: int,
    static: bool,
) -> tuple:
    """Read a row after its clustering and size; return the address after it, whether it says anything, 0 or an
    error."""
    t = W[TABLE]
    row = T[t, ROWS]
    row_time = _NO_TIME
    row_ttl = 0
    row_expiry = 0
    marker = 0
    tombstone = 0
    if flags & _HAS_TIMESTAMP != 0:
        delta, p = read_vint(p, end)
        row_time = W[MIN_WRITE_TIME] + delta
        marker = IS_PRESENT
        if flags & _HAS_TTL != 0:
            delta, p = read_vint(p, end)
            row_ttl = W[MIN_TTL] + delta
            if row_ttl < 0 or row_ttl > 0x7FFFFFFF:
                return p, 0, BAD_TTL
            delta, p = read_vint(p, end)
            row_expiry = _deletion_time(W, delta)
            marker |= HAS_TTL
        store64(T[t, MARKER_WRITE_TIME] + 8 * row, row_time)
        store32(T[t, MARKER_TTL] + 4 * row, row_ttl)
        store64(T[t, MARKER_EXPIRY] + 8 * row, row_expiry)
    if flags & _HAS_DELETION != 0:
        delta, p = read_vint(p, end)
        store64(T[t, TOMBSTONE_WRITE_TIME] + 8 * row, W[MIN_WRITE_TIME] + delta)
        delta, p = read_vint(p, end)
        store64(T[t, TOMBSTONE_DELETION_TIME] + 8 * row, _deletion_time(W, delta))
        tombstone = IS_PRESENT
    store8(T[t, MARKER_STATE] + row, marker)
    store8(T[t, TOMBSTONE_STATE] + row, tombstone)
    count = W[STATICS] if static else W[REGULARS]
    base = 0 if static else W[STATICS]
    every = flags & _HAS_ALL_COLUMNS != 0
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
                p, kept, error = _cell(W, C, c, row, SIMPLE, p, end, row_time, row_ttl, row_expiry)
            else:
                with_deletion = flags & _HAS_COMPLEX_DELETION != 0
                p, kept, error = _complex(W, C, c, row, p, end, with_deletion, row_time, row_ttl, row_expiry)
            if error != 0:
                return p, 0, error
            says |= kept
    return p, says, 0


@compiled
def _commit(W: np.ndarray, T: np.ndarray, kind: int, at: int, position_end: int, range_end: int) -> None:
    """Make the change that was just written count."""
    t = W[TABLE]
    row = T[t, ROWS]
    store8(T[t, ROW_KIND] + row, kind)
    store32(T[t, ROW_PARTITION] + 4 * row, T[t, PARTITIONS] - 1)
    store64(T[t, ROW_OFFSET] + 8 * row, W[FILE_OFFSET] + at - W[START])
    T[t, POSITION_USED] = position_end - T[t, POSITION_BYTES]
    T[t, END_USED] = range_end - T[t, END_BYTES]
    store32(T[t, POSITION_OFFSETS] + 4 * (row + 1), T[t, POSITION_USED])
    store32(T[t, END_OFFSETS] + 4 * (row + 1), T[t, END_USED])
    T[t, ROWS] = row + 1


@compiled
def _begin_partition(W: np.ndarray, T: np.ndarray, C: np.ndarray) -> int:
    """Write the current key as a partition of the batch; return 0 or an error."""
    t = W[TABLE]
    i = T[t, PARTITIONS]
    key = W[CURRENT_KEY]
    length = W[CURRENT_KEY_LENGTH]
    copy(T[t, KEY_BYTES] + T[t, KEY_USED], key, length)
    T[t, KEY_USED] += length
    store32(T[t, KEY_OFFSETS] + 4 * (i + 1), T[t, KEY_USED])
    store64(T[t, TOKENS] + 8 * i, W[CURRENT_TOKEN])
    T[t, PARTITIONS] = i + 1
    p = key
    end = key + length
    for j in range(T[t, KEYS]):
        c = T[t, KEY] + j
        part = length
        if T[t, KEYS] > 1:
            # CompositeType: each component after its length (2 bytes) and followed by a zero.
            if end - p < 3:
                return BAD_KEY
            part = load16(p)
            p += 2
            if part > end - p - 1 or load8(p + part) != 0:
                return BAD_KEY
        if C[c, WANTED] != 0:
            state = 0
            if part > 0 or C[c, EMPTY_IS_VALUE] != 0:
                error = _store_value(C, c, i, p, part)
                if error != 0:
                    return BAD_KEY if error == BAD_LENGTH else error
                state = HAS_VALUE
                C[c, WITH_VALUE] += 1
            store8(C[c, STATE] + i, state)
            if C[c, OFFSETS] != 0:
                store32(C[c, OFFSETS] + 4 * (i + 1), C[c, USED])
        p += part + (1 if T[t, KEYS] > 1 else 0)
    return 0 if p == end else BAD_KEY


@compiled
def _deletion_change(W: np.ndarray, T: np.ndarray, C: np.ndarray, write_time: int, deletion_time: int) -> None:
    """Write what a range or partition tombstone has beside its position."""
    t = W[TABLE]
    row = T[t, ROWS]
    _clear(T, C, t, row)
    store8(T[t, MARKER_STATE] + row, 0)
    store8(T[t, TOMBSTONE_STATE] + row, IS_PRESENT)
    store64(T[t, TOMBSTONE_WRITE_TIME] + 8 * row, write_time)
    store64(T[t, TOMBSTONE_DELETION_TIME] + 8 * row, deletion_time)


@compiled
def _partition_tombstone(
    W: np.ndarray, T: np.ndarray, C: np.ndarray, at: int, write_time: int, deletion_time: int
) -> None:
    t = W[TABLE]
    _deletion_change(W, T, C, write_time, deletion_time)
    _commit(W, T, 3, at, T[t, POSITION_BYTES] + T[t, POSITION_USED], T[t, END_BYTES] + T[t, END_USED])


@compiled
def _static_row(
    W: np.ndarray,
    T: np.ndarray,
    C: np.ndarray,
    header: np.ndarray,
    present: np.ndarray,
    at: int,
    p: int,
    end: int,
    flags: int,
) -> tuple:
    """Read a static row's body; one that says nothing leaves no change."""
    t = W[TABLE]
    _clear(T, C, t, T[t, ROWS])
    p, says, error = _body(W, T, C, header, present, p, end, flags, True)
    if error == 0 and says != 0:
        out = T[t, POSITION_BYTES] + T[t, POSITION_USED]
        store8(out, 0x18)
        _commit(W, T, 1, at, out + 1, T[t, END_BYTES] + T[t, END_USED])
    return p, error


@compiled
def _row(
    W: np.ndarray,
    T: np.ndarray,
    C: np.ndarray,
    header: np.ndarray,
    present: np.ndarray,
    at: int,
    p: int,
    end: int,
    flags: int,
) -> tuple:
    """Read a row from its clustering on; `end` is the end of the data. Return the address after it, and 0 or an
    error."""
    t = W[TABLE]
    row = T[t, ROWS]
    _clear(T, C, t, row)
    out = T[t, POSITION_BYTES] + T[t, POSITION_USED]
    count = T[t, CLUSTERINGS]
    out = _position_head(T, t, out, 0x38, count)
    p, out, error = _clustering(T, C, t, p, end, count, row, out)
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
        _commit(W, T, 0, at, out, T[t, END_BYTES] + T[t, END_USED])
    return p, 0


@compiled
def _bound(W: np.ndarray, T: np.ndarray, C: np.ndarray, at: int, p: int, end: int) -> tuple:
    """Read a range tombstone's bound or boundary; what it closes becomes a change."""
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
    p, out, error = _clustering(T, C, t, p, end, count, -1, out)
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
        deletion_time = _deletion_time(W, delta)
        if p <= end:
            if write_time != W[OPEN_WRITE_TIME] or deletion_time != W[OPEN_DELETION_TIME]:
                return at, BAD_BOUND
            _deletion_change(W, T, C, write_time, deletion_time)
            position = T[t, POSITION_BYTES] + T[t, POSITION_USED]
            copy(position, W[OPEN_BYTES], W[OPEN_LENGTH])
            _commit(W, T, 2, at, position + W[OPEN_LENGTH], out)
            W[OPEN] = 0
    if opens:
        delta, p = read_vint(p, end)
        W[OPEN_WRITE_TIME] = W[MIN_WRITE_TIME] + delta
        delta, p = read_vint(p, end)
        W[OPEN_DELETION_TIME] = _deletion_time(W, delta)
        W[OPEN_LENGTH] = out - start
        copy(W[OPEN_BYTES], start, out - start)
        W[OPEN] = 1
    return p, 0 if p <= end else TRUNCATED


@compiled
def _unfiltered(
    W: np.ndarray, T: np.ndarray, C: np.ndarray, header: np.ndarray, present: np.ndarray, p: int, end: int
) -> tuple:
    """Read one row, bound, or the end of the partition; return the address after it, and 0 or an error."""
    at = p
    if p >= end:
        return end + 1, TRUNCATED
    flags = load8(p)
    p += 1
    if flags & _END_OF_PARTITION != 0:
        if W[OPEN] != 0:
            return at, BAD_BOUND
        W[IN_PARTITION] = 0
        return p, 0
    if flags & _EXTENDED != 0:
        if p >= end:
            return end + 1, TRUNCATED
        # A static row may only come first; what else is flagged here are shadowable deletions.
        return at, BAD_FLAGS if load8(p) & _EXTENDED_STATIC != 0 else SHADOWABLE
    if flags & _IS_MARKER != 0:
        return _bound(W, T, C, at, p, end)
    return _row(W, T, C, header, present, at, p, end, flags)


@compiled
def _unfiltered_end(W: np.ndarray, T: np.ndarray, C: np.ndarray, p: int, end: int) -> int:
    """Return where an SSTable's row or bound ends, without reading it; beyond `end` if that is not in the window."""
    if p >= end:
        return end + 1
    flags = load8(p)
    p += 1
    if flags & _END_OF_PARTITION != 0:
        return p
    if flags & _EXTENDED != 0:
        p += 1
    count = T[W[TABLE], CLUSTERINGS]
    if flags & _IS_MARKER != 0:
        if end - p < 3:
            return end + 1
        count = load16(p + 1)
        p += 3
    if not (flags & _EXTENDED != 0 and flags & _IS_MARKER == 0 and p <= end and load8(p - 1) & _EXTENDED_STATIC != 0):
        p, _, error = _clustering(T, C, W[TABLE], p, end, count, -1, 0)
        if error != 0:
            # What cannot be read is for the reading to report, if there is no more data to come.
            return end + 1 if error == TRUNCATED else p
    size, p = read_vint(p, end)
    return skip(p, size, end)


@compiled
def _sstable_partition(
    W: np.ndarray, T: np.ndarray, C: np.ndarray, header: np.ndarray, present: np.ndarray, p: int, end: int
) -> tuple:
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
            deleted = not (write_time == _NO_TIME and deletion_time == 0x7FFFFFFF)
        p += 12
    static = p
    static_end = p
    flags = 0
    if W[STATICS] > 0:
        static_end = _unfiltered_end(W, T, C, p, end)
        if static_end > end:
            return at, TRUNCATED
        flags = load8(p)
        if flags & (_END_OF_PARTITION | _IS_MARKER) != 0 or flags & _EXTENDED == 0:
            return p, BAD_FLAGS
        if load8(p + 1) & _EXTENDED_STATIC == 0:
            return p, BAD_FLAGS
        if load8(p + 1) != _EXTENDED_STATIC:
            return p, SHADOWABLE
        _, p = read_vint(p + 2, end)
        _, p = read_vint(p, end)
    token = token_at(key, length)
    if token < W[CURRENT_TOKEN]:
        return at, BAD_TOKEN_ORDER
    W[CURRENT_TOKEN] = token
    W[CURRENT_KEY_LENGTH] = length
    copy(W[CURRENT_KEY], key, length)
    W[IN_PARTITION] = 1
    W[PASS_OVER] = 1 if token < W[FIRST_TOKEN] or token > W[LAST_TOKEN] else 0
    if W[PASS_OVER] != 0:
        return static_end, 0
    error = _begin_partition(W, T, C)
    if error != 0:
        return at, error
    if deleted:
        _partition_tombstone(W, T, C, at, write_time, deletion_time)
    if W[STATICS] > 0:
        p, error = _static_row(W, T, C, header, present, static, p, static_end, flags)
        if error != 0:
            return p, error
        if p != static_end:
            return p, BAD_ROW_SIZE
    return p, 0


@compiled
def walk_sstable(W: np.ndarray, T: np.ndarray, C: np.ndarray, header: np.ndarray, present: np.ndarray) -> int:
    """Walk the window from POSITION on; return MORE, DONE or an error, with POSITION where that is."""
    p = W[POSITION]
    end = W[END]
    if W[IN_PARTITION] != 0 and W[PASS_OVER] == 0:
        error = _begin_partition(W, T, C)
        if error != 0:
            return error
    while True:
        W[POSITION] = p
        if W[IN_PARTITION] == 0:
            if p == end:
                return DONE if W[IS_LAST] != 0 else MORE
            p, error = _sstable_partition(W, T, C, header, present, p, end)
            if error == TRUNCATED and W[IS_LAST] == 0:
                return MORE
        else:
            after = _unfiltered_end(W, T, C, p, end)
            if after > end:
                return TRUNCATED if W[IS_LAST] != 0 else MORE
            if W[PASS_OVER] != 0:
                if load8(p) & _END_OF_PARTITION != 0:
                    W[IN_PARTITION] = 0
                p = after
                continue
            # What the row's own size ends, its cells must not pass.
            p, error = _unfiltered(W, T, C, header, present, p, after)
            if error == 0 and p != after:
                error = BAD_ROW_SIZE
            if error == TRUNCATED:
                error = BAD_ROW_SIZE
        if error != 0:
            W[POSITION] = min(p, end)
            return error


# --- commit logs
# --------------------------------------------------------------------------------------------------------

# UnfilteredRowIteratorSerializer's flags.
_IS_EMPTY, _IS_REVERSED, _HAS_PARTITION_DELETION, _HAS_STATIC_ROW, _HAS_ROW_ESTIMATE = 0x01, 0x02, 0x04, 0x08, 0x10
# EncodingStats: the three minimums count from 2015-09-22.
_TIMESTAMP_EPOCH, _DELETION_TIME_EPOCH = 1_442_880_000_000_000, 1_442_880_000


@compiled
def _same_bytes(p: int, q: int, length: int) -> bool:
    for i in range(length):
        if load8(p + i) != load8(q + i):
            return False
    return True


@compiled
def _names(
    T: np.ndarray, C: np.ndarray, t: int, static: bool, header: np.ndarray, base: int, p: int, end: int
) -> tuple:
    """Read an update's column names; return the address after them, their number, and 0 or an error."""
    count, p = read_vint(p, end)
    if count < 0 or count > T[t, LAST] - T[t, FIRST]:
        return p, 0, BAD_COLUMNS
    first = T[t, FIRST] + T[t, CLUSTERINGS]
    lines = T[t, LAST] - first
    # Names come in the order of the lines, so the search goes on where the last one was found.
    c = first
    for i in range(count):
        length, p = read_vint(p, end)
        name = p
        p = skip(p, length, end)
        if p > end:
            return p, 0, TRUNCATED
        found = False
        for _ in range(lines):
            same = C[c, NAME_LENGTH] == length and (C[c, IS_STATIC] != 0) == static
            if same and _same_bytes(C[c, NAME_ADDRESS], name, length):
                header[base + i] = c
                found = True
            c = c + 1 if c + 1 < T[t, LAST] else first
            if found:
                break
        if not found:
            return name, 0, UNKNOWN_COLUMN
    return p, count, 0


@compiled
def _find_table(T: np.ndarray, p: int, guess: int) -> int:
    high = load64(p)
    low = load64(p + 8)
    if T[guess, ID_HIGH] == high and T[guess, ID_LOW] == low:
        return guess
    for t in range(len(T)):
        if T[t, ID_HIGH] == high and T[t, ID_LOW] == low:
            return t
    return -1


@compiled
def _update(
    W: np.ndarray, T: np.ndarray, C: np.ndarray, header: np.ndarray, present: np.ndarray, p: int, end: int
) -> tuple:
    """Read one `PartitionUpdate`; return the address after it, and 0 or an error."""
    at = p
    if end - p < 16:
        return end + 1, TRUNCATED
    t = _find_table(T, p, W[TABLE])
    if t < 0:
        return p, UNKNOWN_TABLE
    W[TABLE] = t
    p += 16
    length, p = read_vint(p, end)
    key = p
    p = skip(p, length, end)
    if p >= end or length > 65535:
        return end + 1, TRUNCATED
    flags = load8(p)
    p += 1
    if flags & _IS_EMPTY != 0:
        return p, 0
    if flags & _IS_REVERSED != 0 or flags > 0x1F:
        return p - 1, BAD_FLAGS
    delta, p = read_vint(p, end)
    W[MIN_WRITE_TIME] = delta + _TIMESTAMP_EPOCH
    delta, p = read_vint(p, end)
    W[MIN_DELETION_TIME] = delta + _DELETION_TIME_EPOCH
    W[MIN_TTL], p = read_vint(p, end)
    W[STATICS] = 0
    if flags & _HAS_STATIC_ROW != 0:
        p, W[STATICS], error = _names(T, C, t, True, header, 0, p, end)
        if error != 0:
            return p, error
    p, W[REGULARS], error = _names(T, C, t, False, header, W[STATICS], p, end)
    if error != 0:
        return p, error
    W[CURRENT_KEY] = key
    W[CURRENT_KEY_LENGTH] = length
    W[CURRENT_TOKEN] = token_at(key, length)
    W[OPEN] = 0
    error = _begin_partition(W, T, C)
    if error != 0:
        return at, error
    if flags & _HAS_PARTITION_DELETION != 0:
        delta, p = read_vint(p, end)
        write_time = W[MIN_WRITE_TIME] + delta
        delta, p = read_vint(p, end)
        if p > end:
            return p, TRUNCATED
        _partition_tombstone(W, T, C, at, write_time, _deletion_time(W, delta))
    if flags & _HAS_STATIC_ROW != 0:
        if end - p < 2:
            return end + 1, TRUNCATED
        row_flags = load8(p)
        if (
            row_flags & (_END_OF_PARTITION | _IS_MARKER) != 0
            or row_flags & _EXTENDED == 0
            or load8(p + 1) != _EXTENDED_STATIC
        ):
            return p, BAD_FLAGS
        p, error = _static_row(W, T, C, header, present, p, p + 2, end, row_flags)
        if error != 0:
            return p, error
    if flags & _HAS_ROW_ESTIMATE != 0:
        _, p = read_vint(p, end)
    W[IN_PARTITION] = 1
    while W[IN_PARTITION] != 0:
        p, error = _unfiltered(W, T, C, header, present, p, end)
        if error != 0:
            return p, error
    return p, 0


@compiled
def walk_mutations(
    W: np.ndarray,
    T: np.ndarray,
    C: np.ndarray,
    header: np.ndarray,
    present: np.ndarray,
    address: int,
    mutations: np.ndarray,
    unread: np.ndarray,
) -> int:
    """Walk mutations, given by their start and end as offsets from `address`; return DONE or an error.

    A mutation with an update of a table that is not known cannot be read from there on: its number goes to `unread` as
    the address of that table's id, and what came before is kept.
    """
    for i in range(len(mutations)):
        p = address + mutations[i, 0]
        end = address + mutations[i, 1]
        count, p = read_vint(p, end)
        if count <= 0:
            W[POSITION] = min(p, end)
            return BAD_FLAGS
        for _ in range(count):
            p, error = _update(W, T, C, header, present, p, end)
            if error == UNKNOWN_TABLE:
                unread[i] = p
                p = end
                break
            if error != 0:
                W[POSITION] = min(p, end)
                return error
        if p != end:
            W[POSITION] = p
            return BAD_ROW_SIZE
    return DONE
