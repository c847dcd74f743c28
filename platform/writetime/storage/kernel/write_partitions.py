"""Writes changes as partitions of an SSTable, with their entries of Index.db: the inverse of `walk_sstable`.

Sources: `UnfilteredSerializer`, `BigFormatPartitionWriter`, `RowIndexEntry`, `IndexInfo`, `MetadataCollector`.
"""

# ruff: noqa: F403, F405, PLR0917 (the layout is a list of names, all of them used here; numba has no
# keyword-only arguments, and compiles neither sets nor generators to fast code)

import numpy as np

from writetime.storage.kernel.layout import END_OF_PARTITION, IS_MARKER
from writetime.storage.kernel.memory import (
    compare,
    compiled,
    copy,
    inlined,
    load8,
    load_native32,
    load_native64,
    numbers,
    store8,
    store32,
    store64,
    store_big16,
    store_big32,
    store_big64,
    written_columns,
)
from writetime.storage.kernel.primitives import murmur
from writetime.storage.kernel.write_cells import (
    note_deletion_time,
    note_prefix,
    note_write_time,
    vint_size,
    write_deletion,
    write_row,
    write_vint,
)
from writetime.storage.kernel.write_layout import *

_NEVER = -(1 << 63)
# The index in `changes.model.KINDS`.
_ROW, _STATIC, _RANGE, _PARTITION = range(4)
# ClusteringPrefix.Kind
_EXCLUSIVE_END, _INCLUSIVE_START, _END_AND_INCLUSIVE_START, _CLUSTERING = 0, 1, 2, 4
_INCLUSIVE_END_AND_START, _INCLUSIVE_END, _EXCLUSIVE_START = 5, 6, 7
# The end of a position of a bound after its clustering (`changes.position.AFTER`).
_AFTER = 0x60
_WIDTH_BASE = 1 << 16


@compiled
def _write_whole_deletion(W: np.ndarray, out: int, write_time: int, deletion_time: int) -> int:
    """Write the times of a tombstone in the head of a partition or in an index (`DeletionTime.Serializer`)."""
    if write_time == _NEVER and W[UNSIGNED] != 0:
        store8(out, 0x80)
        return out + 1
    if W[UNSIGNED] != 0:
        store_big64(out, write_time)
        store_big32(out + 8, deletion_time)
    else:
        store_big32(out, 0x7FFFFFFF if write_time == _NEVER else deletion_time)
        store_big64(out + 4, write_time)
    return out + 12


@inlined
def _copy_prefix(out: int, at: int, length: int) -> int:
    """Write a clustering prefix with its kind. A row's length is negative, and its prefix has no kind."""
    if length < 0:
        store8(out, _CLUSTERING)
        out += 1
        length = -length - 1
    copy(out, at, length)
    return out + length


@compiled
def _add_block(W: np.ndarray, position: int) -> None:
    """Add the block of rows that ends at a position of the partition to its row index (`IndexInfo.Serializer`)."""
    start = W[BLOCKS] + W[BLOCKS_USED]
    store32(W[BLOCK_OFFSETS] + 4 * W[BLOCK_COUNT], W[BLOCKS_USED])
    out = _copy_prefix(start, W[FIRST], W[FIRST_LENGTH])
    out = _copy_prefix(out, W[LAST], W[LAST_LENGTH])
    out = write_vint(out, W[BLOCK_START])
    width = position - W[BLOCK_START] - _WIDTH_BASE
    out = write_vint(out, (width << 1) ^ (width >> 63))
    store8(out, W[OPEN])
    out += 1
    if W[OPEN] != 0:
        out = _write_whole_deletion(W, out, W[OPEN_WRITE_TIME], W[OPEN_DELETION_TIME])
    W[BLOCKS_USED] += out - start
    W[BLOCK_COUNT] += 1
    W[IN_BLOCK] = 0


@inlined
def _position(W: np.ndarray, out: int) -> int:
    """Return the offset of an address of the output from the start of the partition."""
    return W[DATA_POSITION] + out - W[OUT] - W[PARTITION_START]


@inlined
def _begin(W: np.ndarray, out: int) -> int:
    """Begin a row or bound. Return the size of the previous one."""
    position = _position(W, out)
    if W[IN_BLOCK] == 0:
        W[BLOCK_START] = position
    size = position - W[PREVIOUS]
    W[PREVIOUS] = position
    return size


@inlined
def _end(W: np.ndarray, out: int) -> None:
    position = _position(W, out)
    if position - W[BLOCK_START] >= W[BLOCK_SIZE]:
        _add_block(W, position)


@compiled
def _write_bound(W: np.ndarray, kind: int, bound: int, length: int, row: int, out: int) -> int:
    """Write a bound of a range tombstone, or the boundary of two that meet. `row` is the range that opens, or -1."""
    size = _begin(W, out)
    store8(out, IS_MARKER)
    store8(out + 1, kind)
    copy(out + 2, bound, length)
    note_prefix(W, out + 1, length + 1, False)
    out += 2 + length
    body = W[BODY]
    end = body
    if W[OPEN] != 0:
        end = write_deletion(W, end, W[OPEN_WRITE_TIME], W[OPEN_DELETION_TIME])
    W[OPEN] = 0
    if row >= 0:
        W[OPEN] = 1
        W[OPEN_WRITE_TIME] = load_native64(W[TOMBSTONE_TIMES] + 8 * row)
        W[OPEN_DELETION_TIME] = load_native64(W[TOMBSTONE_DELETION_TIMES] + 8 * row)
        start = load_native32(W[END_OFFSETS] + 4 * row)
        W[OPEN_END] = W[ENDS] + start
        W[OPEN_END_LENGTH] = load_native32(W[END_OFFSETS] + 4 * row + 4) - start
        start = load_native32(W[END_BOUND_OFFSETS] + 4 * row)
        W[OPEN_BOUND] = W[END_BOUNDS] + start
        W[OPEN_BOUND_LENGTH] = load_native32(W[END_BOUND_OFFSETS] + 4 * row + 4) - start
        end = write_deletion(W, end, W[OPEN_WRITE_TIME], W[OPEN_DELETION_TIME])
    out = write_vint(out, end - body + vint_size(size))
    out = write_vint(out, size)
    copy(out, body, end - body)
    out += end - body
    _end(W, out)
    return out


@compiled
def _close_range(W: np.ndarray, out: int) -> int:
    """Write the end of the open range tombstone."""
    end = load8(W[OPEN_END] + W[OPEN_END_LENGTH] - 1)
    kind = _INCLUSIVE_END if end == _AFTER else _EXCLUSIVE_END
    _note_position(W, W[OPEN_END], W[OPEN_END_LENGTH])
    return _write_bound(W, kind, W[OPEN_BOUND], W[OPEN_BOUND_LENGTH], -1, out)


@inlined
def _note_position(W: np.ndarray, position: int, length: int) -> None:
    W[LAST_POSITION] = position
    W[LAST_POSITION_LENGTH] = length


@inlined
def _kept(W: np.ndarray, number: int) -> int:
    return W[KEPT] + number * W[KEPT_ROOM]


@compiled
def _keep_minimum(W: np.ndarray, position: int, length: int) -> None:
    """Keep the clustering of the first row or bound of a partition if it is the smallest."""
    kept = _kept(W, KEPT_MIN_POSITION)
    if W[MIN_POSITION_LENGTH] < 0 or compare(position, length, kept, W[MIN_POSITION_LENGTH]) < 0:
        copy(kept, position, length)
        W[MIN_POSITION_LENGTH] = length
        prefix = _kept(W, KEPT_MIN_PREFIX)
        W[MIN_PREFIX_LENGTH] = _copy_prefix(prefix, W[FIRST], W[FIRST_LENGTH]) - prefix


@compiled
def _keep_maximum(W: np.ndarray) -> None:
    """Keep the clustering of the last row or bound of a partition if it is the largest."""
    kept = _kept(W, KEPT_MAX_POSITION)
    position, length = W[LAST_POSITION], W[LAST_POSITION_LENGTH]
    if W[MAX_POSITION_LENGTH] < 0 or compare(position, length, kept, W[MAX_POSITION_LENGTH]) > 0:
        copy(kept, position, length)
        W[MAX_POSITION_LENGTH] = length
        prefix = _kept(W, KEPT_MAX_PREFIX)
        W[MAX_PREFIX_LENGTH] = _copy_prefix(prefix, W[LAST], W[LAST_LENGTH]) - prefix


@compiled
def _start_partition(W: np.ndarray, row: int, out: int) -> int:
    start = load_native32(W[KEY_OFFSETS] + 4 * row)
    W[KEY] = W[KEYS] + start
    W[KEY_LENGTH] = load_native32(W[KEY_OFFSETS] + 4 * row + 4) - start
    W[TOKEN] = load_native64(W[TOKENS] + 8 * row)
    W[PARTITION_START] = W[DATA_POSITION] + out - W[OUT]
    W[DELETION_WRITE_TIME] = _NEVER
    W[DELETION_TIME] = 0
    if load8(W[KIND] + row) == _PARTITION:
        W[DELETION_WRITE_TIME] = load_native64(W[TOMBSTONE_TIMES] + 8 * row)
        W[DELETION_TIME] = load_native64(W[TOMBSTONE_DELETION_TIMES] + 8 * row)
        note_write_time(W, W[DELETION_WRITE_TIME])
        note_deletion_time(W, W[DELETION_TIME])
        W[PARTITION_DELETIONS] = 1
    store_big16(out, W[KEY_LENGTH])
    copy(out + 2, W[KEY], W[KEY_LENGTH])
    out = _write_whole_deletion(W, out + 2 + W[KEY_LENGTH], W[DELETION_WRITE_TIME], W[DELETION_TIME])
    W[IN_PARTITION] = 1
    W[NEEDS_STATIC] = 1 if W[STATICS] != 0 else 0
    W[HEADER_LENGTH] = _position(W, out)
    W[PREVIOUS] = 0
    W[IN_BLOCK] = 0
    W[HAS_ROWS] = 0
    W[BLOCKS_USED] = 0
    W[BLOCK_COUNT] = 0
    W[CELLS] = 0
    W[LAST_POSITION_LENGTH] = 0
    return out


@compiled
def _write_static(W: np.ndarray, C: np.ndarray, row: int, is_empty: bool, out: int) -> int:
    out = write_row(W, C, row, True, is_empty, 0, out)
    W[NEEDS_STATIC] = 0
    W[HEADER_LENGTH] = _position(W, out)
    return out


@inlined
def _little64(p: int, length: int) -> np.uint64:
    value = np.uint64(0)
    for i in range(length):
        value |= np.uint64(load8(p + i)) << np.uint64(8 * i)
    return value


@compiled
def _estimate_hash(p: int, length: int) -> np.int64:
    """Return `MurmurHash.hash2_64` of a key, by which Cassandra estimates the number of keys of several SSTables."""
    m = np.uint64(0xC6A4A7935BD1E995)
    r = np.uint64(47)
    h = m * np.uint64(length)
    whole = length >> 3
    for i in range(whole):
        k = _little64(p + 8 * i, 8) * m
        k ^= k >> r
        h = (h ^ (k * m)) * m
    if length & 7 != 0:
        h = (h ^ _little64(p + 8 * whole, length & 7)) * m
    h ^= h >> r
    h *= m
    return np.int64(h ^ (h >> r))


@compiled
def _end_partition(W: np.ndarray, C: np.ndarray, out: int) -> int:
    """Write the end of the partition, and its entry of Index.db."""
    if W[NEEDS_STATIC] != 0:
        out = _write_static(W, C, 0, True, out)
    if W[OPEN] != 0:
        out = _close_range(W, out)
    store8(out, END_OF_PARTITION)
    out += 1
    if W[HAS_ROWS] != 0:
        _keep_maximum(W)
    if W[IN_BLOCK] != 0:
        _add_block(W, _position(W, out))
    index = W[INDEX] + W[INDEX_USED]
    entry = W[FINISHED] + 8 * FINISHED_FIELDS * W[FINISHED_COUNT]
    store64(entry + 8 * PARTITION_BYTES, _position(W, out))
    store64(entry + 8 * PARTITION_CELLS, W[CELLS])
    store64(entry + 8 * ENTRY_POSITION, W[INDEX_POSITION] + W[INDEX_USED])
    store64(entry + 8 * ENTRY_AT, W[INDEX_USED])
    first, second = murmur(W[KEY], W[KEY_LENGTH])
    store64(entry + 8 * FILTER_BASE, np.int64(second))
    store64(entry + 8 * FILTER_STEP, np.int64(first))
    store64(entry + 8 * ESTIMATE_HASH, _estimate_hash(W[KEY], W[KEY_LENGTH]))
    W[FINISHED_COUNT] += 1
    store_big16(index, W[KEY_LENGTH])
    copy(index + 2, W[KEY], W[KEY_LENGTH])
    p = write_vint(index + 2 + W[KEY_LENGTH], W[PARTITION_START])
    if W[BLOCK_COUNT] <= 1:
        store8(p, 0)
        p += 1
    else:
        deletion = 1 if W[UNSIGNED] != 0 and W[DELETION_WRITE_TIME] == _NEVER else 12
        size = vint_size(W[HEADER_LENGTH]) + deletion + vint_size(W[BLOCK_COUNT])
        p = write_vint(p, size + W[BLOCKS_USED] + 4 * W[BLOCK_COUNT])
        p = write_vint(p, W[HEADER_LENGTH])
        p = _write_whole_deletion(W, p, W[DELETION_WRITE_TIME], W[DELETION_TIME])
        p = write_vint(p, W[BLOCK_COUNT])
        copy(p, W[BLOCKS], W[BLOCKS_USED])
        p += W[BLOCKS_USED]
        for i in range(W[BLOCK_COUNT]):
            store_big32(p, load_native32(W[BLOCK_OFFSETS] + 4 * i))
            p += 4
    W[INDEX_USED] += p - index
    W[IN_PARTITION] = 0
    return out


@compiled
def _check_place(W: np.ndarray, C: np.ndarray, row: int, kind: int, position: int, length: int) -> int:
    """Return an error if a row or a range has no place in the partition, or does not fit into the buffers of copies."""
    if kind != _RANGE:
        if kind != _ROW:
            return BAD_KIND
        for c in range(W[CLUSTERINGS]):
            offsets = C[c, WRITE_OFFSETS] + 4 * row
            if load_native32(offsets + 4) - load_native32(offsets) > LONGEST:
                return LONG_CLUSTERING
    else:
        start = load_native32(W[END_OFFSETS] + 4 * row)
        end_length = load_native32(W[END_OFFSETS] + 4 * row + 4) - start
        if compare(position, length, W[ENDS] + start, end_length) >= 0:
            return BAD_POSITION
        if end_length > W[KEPT_ROOM]:
            return LONG_CLUSTERING
    if length == 0:
        return BAD_POSITION
    return LONG_CLUSTERING if length > W[KEPT_ROOM] else 0


@compiled
def _write_change(W: np.ndarray, C: np.ndarray, row: int, out: int) -> tuple[int, int]:
    """Write one change of the current partition. Return the end of the output, and 0 or an error."""
    kind = load8(W[KIND] + row)
    position = W[POSITIONS] + load_native32(W[POSITION_OFFSETS] + 4 * row)
    length = W[POSITIONS] + load_native32(W[POSITION_OFFSETS] + 4 * row + 4) - position
    if kind == _PARTITION:
        return out, (0 if load8(W[STARTS] + row) != 0 else UNSORTED_POSITION)
    if kind == _STATIC:
        if W[NEEDS_STATIC] == 0:
            return out, UNSORTED_POSITION
        return _write_static(W, C, row, False, out), 0
    error = _check_place(W, C, row, kind, position, length)
    if error != 0:
        return out, error
    if W[NEEDS_STATIC] != 0:
        out = _write_static(W, C, row, True, out)
    if W[HAS_ROWS] != 0 and compare(position, length, W[LAST_POSITION], W[LAST_POSITION_LENGTH]) <= 0:
        return out, UNSORTED_POSITION
    meets = False
    if W[OPEN] != 0:
        order = compare(position, length, W[OPEN_END], W[OPEN_END_LENGTH])
        meets = order == 0
        if order > 0:
            out = _close_range(W, out)
        elif order < 0 and kind == _RANGE:
            return out, OVERLAP
    is_first = W[HAS_ROWS] == 0
    W[HAS_ROWS] = 1
    if kind == _RANGE:
        start = load_native32(W[START_BOUND_OFFSETS] + 4 * row)
        bound = W[START_BOUNDS] + start
        bound_length = load_native32(W[START_BOUND_OFFSETS] + 4 * row + 4) - start
        after = load8(position + length - 1) == _AFTER
        if meets:
            bound_kind = _INCLUSIVE_END_AND_START if after else _END_AND_INCLUSIVE_START
        else:
            bound_kind = _EXCLUSIVE_START if after else _INCLUSIVE_START
        # A block that ends with this bound forgets its first clustering.
        out = _write_bound(W, bound_kind, bound, bound_length, row, out)
        if is_first:
            W[FIRST], W[FIRST_LENGTH] = W[LAST], W[LAST_LENGTH]
    else:
        size = _begin(W, out)
        out = write_row(W, C, row, False, False, size, out)
        if is_first:
            W[FIRST], W[FIRST_LENGTH] = W[LAST], W[LAST_LENGTH]
        _end(W, out)
    if is_first:
        _keep_minimum(W, position, length)
    _note_position(W, position, length)
    return out, 0


@compiled
def _keep(W: np.ndarray, number: int, address: int, length: int) -> None:
    """Copy bytes of this batch for the next ones, unless they are a copy already."""
    kept = _kept(W, number)
    if W[address] != kept and W[length] != 0:
        size = W[length] if W[length] > 0 else -W[length] - 1
        copy(kept, W[address], size)
    W[address] = kept


@compiled
def write_changes(state: np.ndarray, column_lines: np.ndarray, count: int, is_last: bool) -> tuple[int, int]:
    """Write the changes of a batch. Return -1 and 0, or the number of the change that cannot be written and an error.

    After the last batch, with `is_last`, the last partition is ended.
    """
    W = numbers(state)
    C = written_columns(column_lines)
    out = W[OUT]
    for row in range(count):
        if load8(W[STARTS] + row) != 0:
            token = load_native64(W[TOKENS] + 8 * row)
            start = load_native32(W[KEY_OFFSETS] + 4 * row)
            length = load_native32(W[KEY_OFFSETS] + 4 * row + 4) - start
            if length == 0 or length > LONGEST:
                return row, BAD_KEY
            if W[KEY_LENGTH] >= 0 and (
                token < W[TOKEN] or (token == W[TOKEN] and compare(W[KEYS] + start, length, W[KEY], W[KEY_LENGTH]) <= 0)
            ):
                return row, UNSORTED_KEY
            if W[IN_PARTITION] != 0:
                out = _end_partition(W, C, out)
            out = _start_partition(W, row, out)
        out, error = _write_change(W, C, row, out)
        if error != 0:
            return row, error
    if is_last and W[IN_PARTITION] != 0:
        out = _end_partition(W, C, out)
    W[OUT_USED] = out - W[OUT]
    _keep(W, KEPT_KEY, KEY, KEY_LENGTH)
    _keep(W, KEPT_FIRST, FIRST, FIRST_LENGTH)
    _keep(W, KEPT_LAST, LAST, LAST_LENGTH)
    _keep(W, KEPT_POSITION, LAST_POSITION, LAST_POSITION_LENGTH)
    _keep(W, KEPT_END, OPEN_END, OPEN_END_LENGTH)
    _keep(W, KEPT_BOUND, OPEN_BOUND, OPEN_BOUND_LENGTH)
    return -1, 0
