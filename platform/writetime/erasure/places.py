"""The places that are erased: whole partitions, or rows of a partition whose first clustering values are the same."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from writetime.changes.position import AFTER, BEFORE
from writetime.core.arrow import decoded, mask_of, numbers, one_chunk, pc
from writetime.delta.buckets import ALL, buckets_of
from writetime.delta.parquet import PLACE, open_file
from writetime.delta.storage import Storage
from writetime.files.key_ranges import KeyRanges, in_order
from writetime.storage.kernel.primitives import tokens

_PARTS = ("key", "position", "end")

UNKNOWN = np.iinfo(np.int64).min
"""The time up to which a place is erased of which the changes have nothing."""


def place_of(key: bytes, position: bytes | None = None) -> tuple[bytes, bytes, bytes]:
    """Return a partition, by its serialised key, or the rows that begin with the clustering values of a position."""
    return (key, b"", b"\xff") if position is None else (key, position[:-1] + BEFORE, position[:-1] + AFTER)


def in_places(places: Sequence[tuple[bytes, bytes, bytes]]) -> KeyRanges:
    """Return results of `place_of` in the order of the database."""
    keys, first, end = (pa.array([place[i] for place in places], pa.binary()) for i in range(3))
    return in_order(tokens(keys).to_numpy(), keys, first, end)


@dataclass(frozen=True)
class ErasedPlaces:
    """Places, of which none is within another, and the write time (microseconds) up to which each is erased.

    `events_until` is that of events, which is later if static cells of the partition are newer: an event has the latest
    write time of both.
    """

    ranges: KeyRanges
    until: np.ndarray
    events_until: np.ndarray

    @property
    def tokens(self) -> np.ndarray:
        """The tokens of the partitions."""
        return self.ranges.tokens

    @cached_property
    def are_whole(self) -> np.ndarray:
        """Which places are whole partitions."""
        return pc.equal(self.ranges.first, b"").to_numpy(zero_copy_only=False)

    @cached_property
    def _keys(self) -> pa.Array:
        return pc.unique(self.ranges.keys)

    @cached_property
    def _of_keys(self) -> list[list[tuple[bytes, bytes, int]]]:
        """By key, the places in order: their first positions, ends and numbers."""
        found: list[list[tuple[bytes, bytes, int]]] = [[] for _ in self._keys]
        codes = pc.index_in(self.ranges.keys, value_set=self._keys).to_pylist()
        places = zip(codes, self.ranges.first.to_pylist(), self.ranges.end.to_pylist(), strict=True)
        for number, (code, first, end) in enumerate(places):
            found[code].append((first, end, number))
        return found

    def buckets(self, buckets: int) -> set[int]:
        """Return the buckets of files that may have rows of them."""
        return {ALL, *np.unique(buckets_of(pa.array(self.tokens), buckets)).tolist()}

    def index(self, rows: pa.Table) -> np.ndarray:
        """Return the number of the place that each row is in, -1 if it is in none. Rows have a key, which may be null,
        and a position. Those with an end are ranges, and in a place if they are as a whole.
        """
        codes = pc.index_in(_column(rows, "key"), value_set=self._keys)
        known = np.flatnonzero(mask_of(codes.is_valid()))
        codes = numbers(codes)
        number = np.array([places[0][2] for places in self._of_keys], np.int64)[codes[known]]
        found = np.full(len(rows), -1)
        found[known] = np.where(self.are_whole[number], number, -1)
        some = known[~self.are_whole[number]]
        for i, (_, position, end) in zip(some.tolist(), self._places(rows, some), strict=True):
            found[i] = self._number(self._of_keys[codes[i]], position, end)
        return found

    @staticmethod
    def _places(rows: pa.Table, some: np.ndarray) -> Iterator[tuple[bytes, bytes, bytes | None]]:
        names = [name for name in _PARTS if name in rows.column_names]
        for place in rows.select(names).take(some).to_pylist():
            yield place["key"], place["position"], place.get("end")

    @staticmethod
    def _number(places: list[tuple[bytes, bytes, int]], position: bytes, end: bytes | None) -> int:
        at = bisect_right(places, position, key=lambda place: place[0]) - 1
        if at < 0:
            return -1
        _, last, number = places[at]
        return number if (position < last if end is None else end <= last) else -1

    def around(self, key: bytes, position: bytes, end: bytes) -> list[int]:
        """Return the numbers of the places of a partition that a range of it covers."""
        code = self._keys.index(pa.scalar(key, pa.binary())).as_py()
        places = self._of_keys[code] if code >= 0 else []
        return [number for first, last, number in places if position <= first and last <= end]

    def is_bound_in(self, rows: pa.Table) -> bool:
        """Return whether a range that is not in a place begins or ends there, so that it has its clustering values."""
        if "end" not in rows.column_names or self.are_whole.all():
            return False
        ranges = rows.filter(rows["end"].is_valid())
        index = self.index(ranges)
        codes = numbers(pc.index_in(_column(ranges, "key"), value_set=self._keys).fill_null(-1))
        some = np.flatnonzero((index < 0) & (codes >= 0))
        return any(
            first <= bound <= last
            for i, (_, position, end) in zip(some.tolist(), self._places(ranges, some), strict=True)
            for first, last, _ in self._of_keys[codes[i]]
            for bound in (position, end)
            if bound is not None
        )

    def may_be_in(self, storage: Storage, path: str) -> bool:
        """Return whether a file has rows of them: of changes, of the state, events, or rows of a view with places."""
        found = self.placed(storage, path)
        return found is not None and bool((self.index(found) >= 0).any())

    def placed(self, storage: Storage, path: str) -> pa.Table | None:
        """Return the keys, positions and ends of a file, of those row groups that may have rows of the partitions; None
        if there are none.
        """
        with open_file(storage, path) as file:
            within = f"{PLACE}." if PLACE in file.schema_arrow.names else ""
            groups = self._groups(file, f"{within}token")
            if not groups:
                return None
            paths = {file.schema.column(i).path for i in range(len(file.schema))}
            found = file.read_row_groups(groups, [f"{within}{name}" for name in _PARTS if f"{within}{name}" in paths])
            return pa.Table.from_struct_array(one_chunk(found[PLACE])) if within else found

    def _groups(self, file: pq.ParquetFile, token: str) -> list[int]:
        """Return the row groups that may have a token of them, by their statistics."""
        paths = [file.schema.column(i).path for i in range(len(file.schema))]
        if token not in paths:
            return list(range(file.num_row_groups))
        found = []
        for group in range(file.num_row_groups):
            ends = file.metadata.row_group(group).column(paths.index(token)).statistics
            if ends is None or not ends.has_min_max or ((self.tokens >= ends.min) & (self.tokens <= ends.max)).any():
                found.append(group)
        return found


def _column(rows: pa.Table, name: str) -> pa.Array:
    return decoded(one_chunk(rows[name]))
