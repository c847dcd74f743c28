"""Places in the order of the database, and a search for them in the rows of a decoded file.

Files are in the order of token, key and position, so each place costs a few binary searches, regardless of the number
of rows in the file or in a partition.
"""

# ruff: noqa: PLR0913, PLR0917 (numba has no keyword-only arguments, and a call costs time)

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from writetime.changes.model import RANGE_TOMBSTONE, ROW
from writetime.changes.position import STATIC_POSITION
from writetime.core.arrow import bytes_of, decoded, one_chunk, pc, take, valid
from writetime.core.compiled import kernel, njit
from writetime.merge.order import kind_codes
from writetime.storage.kernel.memory import compare_bytes, load8, load_native32

_STATIC = STATIC_POSITION[0]
_FIRST, _BEHIND = b"", b"\xff"
"""The positions before and after all others of a partition."""


@dataclass(frozen=True)
class KeyRanges:
    """Ranges of positions, each in one partition: `first` <= position < `end`. They have the order of the database. A
    range may include later ranges.
    """

    tokens: np.ndarray
    keys: pa.Array
    first: pa.Array
    end: pa.Array

    def within(self, tokens: tuple[int, int] | None) -> "KeyRanges":
        """Return the places with tokens from a first one to a last one; None for all."""
        if tokens is None:
            return self
        start = int(np.searchsorted(self.tokens, tokens[0]))
        part = slice(start, int(np.searchsorted(self.tokens, tokens[1], "right")))
        return KeyRanges(self.tokens[part], self.keys[part], self.first[part], self.end[part])


@dataclass(frozen=True)
class TokenRange:
    """The partitions with tokens from a first one to a last one."""

    first: int
    last: int


def only_at(state: pa.Table, places: KeyRanges) -> pa.Table:
    """Return the rows of merged changes at some places, with the static rows and deletions of their partitions. This
    removes the parts of other rows that a merge at these places may have.
    """
    fields = {name: decoded(one_chunk(state[name])) for name in ("token", "key", "position", "end")}
    return state.take(pa.array(SortedBatch(pa.record_batch(fields)).rows(places)))


def places_of(changes: pa.Table) -> KeyRanges:
    """Return the places that changes touch. A change of a static row, or the deletion of a partition, touches the
    partition. The changes are in the order of the database.
    """
    kinds = kind_codes(one_chunk(changes["kind"]))
    positions, ends = (decoded(one_chunk(changes[name])) for name in ("position", "end"))
    is_range, is_row = pa.array(kinds == RANGE_TOMBSTONE), pa.array(kinds == ROW)
    first = pc.if_else(pc.or_(is_range, is_row), positions, pa.scalar(_FIRST, pa.binary()))
    end = pc.if_else(is_row, _next(positions), pc.if_else(is_range, ends, pa.scalar(_BEHIND, pa.binary())))
    return KeyRanges(one_chunk(changes["token"]).to_numpy(), decoded(one_chunk(changes["key"])), first, end)


def rows_at(tokens: pa.Array, keys: pa.Array, positions: pa.Array) -> KeyRanges:
    """Return the places of some rows, which are in order."""
    return KeyRanges(tokens.to_numpy(), keys, positions, _next(positions))


def are_rows(places: KeyRanges) -> bool:
    """Return whether each place is that of one row."""
    return pc.all(pc.equal(places.end, _next(places.first))).as_py()


def _next(positions: pa.Array) -> pa.Array:
    """Return the next position after each: the same bytes and a zero."""
    return pc.binary_join_element_wise(positions, pa.scalar(b"\0"), pa.scalar(b""))


def joined(several: list[KeyRanges]) -> KeyRanges:
    """Return the places of several, in order."""
    if not several:
        return KeyRanges(np.empty(0, np.int64), *(pa.array([], pa.binary()) for _ in range(3)))
    if len(several) == 1:
        return several[0]
    tokens = np.concatenate([each.tokens for each in several])
    return in_order(
        tokens, *(pa.concat_arrays([getattr(each, name) for each in several]) for name in ("keys", "first", "end"))
    )


def in_order(tokens: np.ndarray, keys: pa.Array, first: pa.Array, end: pa.Array) -> KeyRanges:
    """Return places in the order of the database."""
    table = pa.table([pa.array(tokens), keys, first, end], ["token", "key", "first", "end"])
    sorted_by = [(name, "ascending") for name in ("token", "key", "first")] + [("end", "descending")]
    table = table.take(pc.sort_indices(table, sort_keys=sorted_by))
    return KeyRanges(table["token"].to_numpy(), *(one_chunk(table[name]) for name in ("key", "first", "end")))


def partitions(tokens: pa.Array, keys: pa.Array) -> KeyRanges:
    """Return whole partitions, which are in order."""
    count = len(tokens)
    first, end = (pa.repeat(pa.scalar(value, pa.binary()), count) for value in (_FIRST, _BEHIND))
    return KeyRanges(tokens.to_numpy(), keys, first, end)


def keys_of_whole(places: KeyRanges) -> pa.Array:
    """Return the keys of the places that are whole partitions."""
    return places.keys.filter(pc.and_(pc.equal(places.first, _FIRST), pc.equal(places.end, _BEHIND)))


class SortedBatch:
    """The rows of one batch of a decoded file, to be searched for places."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._tokens = batch.column("token").to_numpy()
        self._positions = batch.column("position")
        # The arrays are kept, because their addresses are used.
        self._placed = [bytes_of(batch.column(name)) for name in ("key", "position")]
        self._own = _addresses(*self._placed)
        self._ranges = np.empty(0, np.int64)
        # Only files with range tombstones have the field.
        if "end" in batch.schema.names:
            ends = batch.column("end")
            self._ranges = np.flatnonzero(valid(ends))
            self._ends = bytes_of(ends)
            self._reach = _reach(self._ranges, self._tokens, *self._own[:2], *_addresses(self._ends))

    def rows(self, places: KeyRanges) -> np.ndarray:
        """Return the indices of all rows, in order, that a merge at these places needs: the entries there, the
        tombstone and the static row of each partition, and range tombstones that begin before and cover a place.
        """
        asked = [bytes_of(each) for each in (places.keys, places.first, places.end)]
        wanted = _addresses(*asked)
        starts, stops, partition = _find(self._tokens, *self._own, places.tokens, *wanted)
        lengths = stops - starts
        found = np.repeat(starts - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
        if len(self._ranges):
            ends = _addresses(self._ends)
            covering = _covering(self._ranges, self._reach, *self._own[2:], *ends, partition, *wanted[2:])
            found = np.union1d(found, covering)
        return found

    def narrowed(self, places: KeyRanges, count: int) -> KeyRanges:
        """Return whole partitions, each narrowed to its first `count` rows here if it has more."""
        asked = [bytes_of(each) for each in (places.keys, places.first, places.end)]
        _, _, partition = _find(self._tokens, *self._own, places.tokens, *_addresses(*asked))
        behind, last = partition[:, 0] + count, partition[:, 1]
        ends = take(self._positions, np.where(behind < last, behind, -1))
        return replace(places, end=pc.if_else(pc.less(ends, places.end).fill_null(False), ends, places.end))


def _addresses(*arrays: tuple[np.ndarray, np.ndarray]) -> tuple[int, ...]:
    """Return the addresses of offsets and data. Passing arrays to compiled code costs more than a search."""
    return tuple(part.ctypes.data for offsets_and_data in arrays for part in offsets_and_data)


@njit
def _token_place(tokens: np.ndarray, low: int, high: int, token: int, past: int) -> int:
    """Return the first row with a token that is not less than this one, or is greater if `past` is 1."""
    while low < high:
        middle = (low + high) >> 1
        if tokens[middle] < token or (past and tokens[middle] == token):
            low = middle + 1
        else:
            high = middle
    return low


@njit
def _place(offsets: int, data: int, low: int, high: int, other_offsets: int, other_data: int, j: int, past: int) -> int:
    """Return the first row whose value is not less than value `j` of the others, or is greater if `past` is 1. The
    rows are in order.
    """
    while low < high:
        middle = (low + high) >> 1
        if compare_bytes(offsets, data, middle, other_offsets, other_data, j) < past:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _find(
    tokens: np.ndarray,
    keys: int,
    key_data: int,
    positions: int,
    position_data: int,
    wanted_tokens: np.ndarray,
    wanted_keys: int,
    wanted_key_data: int,
    firsts: int,
    first_data: int,
    ends: int,
    end_data: int,
) -> tuple:
    """Find the ranges of rows of places, in order and without overlap, two per place, and the partition of each place.

    The first range of a place has the tombstone and the static row of its partition, unless an earlier place has them.
    """
    count = len(wanted_tokens)
    found, found_ends = np.zeros(2 * count, np.int64), np.zeros(2 * count, np.int64)
    partition = np.zeros((count, 2), np.int64)
    rows = len(tokens)
    start = behind = 0
    for i in range(count):
        token = wanted_tokens[i]
        start = _token_place(tokens, start, rows, token, 0)
        if start == rows:
            break
        if tokens[start] != token:
            continue
        # Most tokens have few rows.
        step = 1
        while start + step < rows and tokens[start + step] == token:
            step *= 2
        last = _token_place(tokens, start + step // 2, min(start + step, rows), token, 1)
        first = _place(keys, key_data, start, last, wanted_keys, wanted_key_data, i, 0)
        if first == last or compare_bytes(keys, key_data, first, wanted_keys, wanted_key_data, i) != 0:
            continue
        if compare_bytes(keys, key_data, last - 1, wanted_keys, wanted_key_data, i) != 0:
            last = _place(keys, key_data, first, last, wanted_keys, wanted_key_data, i, 1)
        partition[i, 0], partition[i, 1] = first, last
        head = first
        while head < last:
            at, length = load_native32(positions + 4 * head), load_native32(positions + 4 * head + 4)
            if length > at and load8(position_data + at) > _STATIC:
                break
            head += 1
        found[2 * i], found_ends[2 * i] = max(first, behind), max(head, behind)
        behind = max(head, behind)
        begin = _place(positions, position_data, first, last, firsts, first_data, i, 0)
        end = _place(positions, position_data, begin, last, ends, end_data, i, 0)
        found[2 * i + 1], found_ends[2 * i + 1] = max(begin, behind), max(end, behind)
        behind = max(end, behind)
    return found, found_ends, partition


@kernel
def _reach(ranges: np.ndarray, tokens: np.ndarray, keys: int, key_data: int, ends: int, end_data: int) -> np.ndarray:
    """Return for each range tombstone the row of the tombstone that ends last, among it and the earlier ones of its
    partition.
    """
    reach = ranges.copy()
    for k in range(1, len(ranges)):
        row, before = ranges[k], reach[k - 1]
        if (
            tokens[row] == tokens[before]
            and compare_bytes(keys, key_data, row, keys, key_data, before) == 0
            and compare_bytes(ends, end_data, before, ends, end_data, row) > 0
        ):
            reach[k] = before
    return reach


@kernel
def _covering(
    ranges: np.ndarray,
    reach: np.ndarray,
    positions: int,
    position_data: int,
    range_ends: int,
    range_end_data: int,
    partition: np.ndarray,
    firsts: int,
    first_data: int,
    ends: int,
    end_data: int,
) -> np.ndarray:
    """Return the rows of the range tombstones that cover a part of a place."""
    found = np.empty(16, np.int64)
    count = 0
    for i in range(len(partition)):
        low, high = np.searchsorted(ranges, partition[i, 0]), np.searchsorted(ranges, partition[i, 1])
        last = high
        # The first range tombstone that reaches the place, or that an earlier one reaching the place precedes.
        while low < high:
            middle = (low + high) >> 1
            if compare_bytes(range_ends, range_end_data, reach[middle], firsts, first_data, i) <= 0:
                low = middle + 1
            else:
                high = middle
        for k in range(low, last):
            row = ranges[k]
            if compare_bytes(positions, position_data, row, ends, end_data, i) >= 0:
                break
            if compare_bytes(range_ends, range_end_data, row, firsts, first_data, i) > 0:
                if count == len(found):
                    larger = np.empty(2 * count, np.int64)
                    larger[:count] = found
                    found = larger
                found[count] = row
                count += 1
    return found[:count]
