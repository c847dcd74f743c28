"""The walk over the mutations of a commit log (`Mutation`, `PartitionUpdate`, `UnfilteredRowIteratorSerializer`)."""

# ruff: noqa: F403, F405, PLR0917, SIM110 (the layout is a list of names, all of them used here; numba
# has no keyword-only arguments, and compiles neither sets nor generators to fast code)

import numpy as np

from writetime.storage.kernel.cells import deletion_time_of
from writetime.storage.kernel.layout import *
from writetime.storage.kernel.memory import Lines, columns, compiled, load8, load64, numbers, tables
from writetime.storage.kernel.primitives import read_vint, skip, token_at
from writetime.storage.kernel.rows import begin_partition, partition_tombstone, read_static_row, read_unfiltered

# UnfilteredRowIteratorSerializer's flags.
_IS_EMPTY, _IS_REVERSED, _HAS_PARTITION_DELETION, _HAS_STATIC_ROW, _HAS_ROW_ESTIMATE = 0x01, 0x02, 0x04, 0x08, 0x10
# Mutation's flags, of which there is one (`ALLOW_POTENTIAL_TRANSACTION_CONFLICTS`).
_MUTATION_FLAGS = 0x01
# EncodingStats: the three minimums count from 2015-09-22.
_TIMESTAMP_EPOCH, _DELETION_TIME_EPOCH = 1_442_880_000_000_000, 1_442_880_000


@compiled
def _same_bytes(p: int, q: int, length: int) -> bool:
    for i in range(length):
        if load8(p + i) != load8(q + i):
            return False
    return True


@compiled
def _names(W: Lines, T: Lines, C: Lines, t: int, static: bool, header: Lines, base: int, p: int, end: int) -> tuple:
    """Read an update's column names. Return the address after them, their number, and 0 or an error.

    The static and regular columns share the header. The regular ones begin at `base`.
    """
    count, p = read_vint(p, end)
    if count < 0 or count > W[HEADER_ROOM] - base:
        return p, 0, BAD_COLUMNS
    first = T[t, FIRST] + T[t, CLUSTERINGS]
    lines = T[t, LAST] - first
    # Names have the order of the lines, so each search continues after the last one.
    c = first
    for i in range(count):
        length, p = read_vint(p, end)
        name = p
        p = skip(p, length, end)
        if p > end:
            return p, 0, TRUNCATED
        found = False
        for _ in range(lines):
            # Fields of user-defined types have lines, but no names.
            same = C[c, NAME_ADDRESS] != 0 and C[c, NAME_LENGTH] == length and (C[c, IS_STATIC] != 0) == static
            if same and _same_bytes(C[c, NAME_ADDRESS], name, length):
                if C[c, NAMED] == W[UPDATE]:
                    return name, 0, REPEATED_COLUMN
                C[c, NAMED] = W[UPDATE]
                header[base + i] = c
                found = True
            c = c + 1 if c + 1 < T[t, LAST] else first
            if found:
                break
        if not found:
            return name, 0, UNKNOWN_COLUMN
    return p, count, 0


@compiled
def _find_table(T: Lines, count: int, p: int, guess: int) -> int:
    high = load64(p)
    low = load64(p + 8)
    if T[guess, ID_HIGH] == high and T[guess, ID_LOW] == low:
        return guess
    for t in range(count):
        if T[t, ID_HIGH] == high and T[t, ID_LOW] == low:
            return t
    return -1


@compiled
def _update(W: Lines, T: Lines, C: Lines, header: Lines, present: np.ndarray, p: int, end: int) -> tuple:
    """Read one `PartitionUpdate`; return the address after it, and 0 or an error."""
    at = p
    if end - p < 16:
        return end + 1, TRUNCATED
    t = _find_table(T, W[TABLES], p, W[TABLE])
    if t < 0:
        return p, UNKNOWN_TABLE
    W[TABLE] = t
    p += 16
    if W[HAS_EPOCH] != 0:
        _, p = read_vint(p, end)
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
    W[UPDATE] += 1
    W[STATICS] = 0
    if flags & _HAS_STATIC_ROW != 0:
        p, W[STATICS], error = _names(W, T, C, t, True, header, 0, p, end)
        if error != 0:
            return p, error
    p, W[REGULARS], error = _names(W, T, C, t, False, header, W[STATICS], p, end)
    if error != 0:
        return p, error
    W[CURRENT_KEY] = key
    W[CURRENT_KEY_LENGTH] = length
    W[CURRENT_TOKEN] = token_at(key, length)
    W[OPEN] = 0
    error = begin_partition(W, T, C)
    if error != 0:
        return at, error
    if flags & _HAS_PARTITION_DELETION != 0:
        delta, p = read_vint(p, end)
        write_time = W[MIN_WRITE_TIME] + delta
        delta, p = read_vint(p, end)
        if p > end:
            return p, TRUNCATED
        partition_tombstone(W, T, C, at, write_time, deletion_time_of(W, delta))
    if flags & _HAS_STATIC_ROW != 0:
        if end - p < 2:
            return end + 1, TRUNCATED
        row_flags = load8(p)
        if (
            row_flags & (END_OF_PARTITION | IS_MARKER) != 0
            or row_flags & EXTENDED == 0
            or load8(p + 1) != EXTENDED_STATIC
        ):
            return p, BAD_FLAGS
        p, error = read_static_row(W, T, C, header, present, p, p + 2, end, row_flags)
        if error != 0:
            return p, error
    if flags & _HAS_ROW_ESTIMATE != 0:
        _, p = read_vint(p, end)
    W[IN_PARTITION] = 1
    while W[IN_PARTITION] != 0:
        p, error = read_unfiltered(W, T, C, header, present, p, end)
        if error != 0:
            return p, error
    return p, 0


@compiled
def walk_mutations(
    walk: np.ndarray,
    table_lines: np.ndarray,
    column_lines: np.ndarray,
    columns_there: np.ndarray,
    present: np.ndarray,
    address: int,
    mutations: np.ndarray,
    unread: np.ndarray,
) -> int:
    """Walk mutations, given by their starts and ends as offsets from `address`. Return DONE or an error.

    A mutation cannot be read after an update of an unknown table. Its number is written to `unread`, with the address
    of that table's id, and its earlier updates are kept.
    """
    W = numbers(walk)
    T = tables(table_lines)
    C = columns(column_lines)
    header = numbers(columns_there)
    W[TABLES] = len(table_lines)
    W[HEADER_ROOM] = min(len(columns_there), len(present))
    for i in range(len(mutations)):
        p = address + mutations[i, 0]
        end = address + mutations[i, 1]
        if W[HAS_EPOCH] != 0:
            if p >= end or load8(p) > _MUTATION_FLAGS:
                W[POSITION] = p
                return BAD_FLAGS
            p += 1
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
