"""Reads some rows of a table through the state and the changes that are not folded in yet."""

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from writetime.changes.position import STATIC_POSITION
from writetime.core.arrow import one_chunk, pc
from writetime.delta.bucketed_table import BucketedTable
from writetime.delta.buckets import buckets_of, token_range
from writetime.delta.versions import TableVersion
from writetime.files.key_ranges import KeyRanges, TokenRange, only_at
from writetime.files.row_form import to_micros
from writetime.lake.bucket_contents import At, BucketContents, combined
from writetime.lake.state import contents
from writetime.lake.table import LakeTable
from writetime.lake.views import time_now
from writetime.merge import merge
from writetime.merge.live import live
from writetime.schema.table import TableSchema


@dataclass(frozen=True)
class FoundRows:
    """Rows as a view has them, and the token of each."""

    values: pa.Table
    tokens: pa.Array


@dataclass(frozen=True)
class _Opened:
    """A table at its newest version, with the content of its buckets."""

    state: TableVersion
    changes: TableVersion
    schema: TableSchema
    contents: dict[int, BucketContents]


class RowReader:
    """Reads rows of one table, which stays open; each read checks for a newer version. Threads may share it."""

    def __init__(self, table: LakeTable) -> None:
        self._table = table
        self._state, self._changes = (BucketedTable(part.storage) for part in (table.state, table.changes))
        self._opened: _Opened | None = None
        self._lock = threading.Lock()

    @property
    def schema(self) -> TableSchema:
        """The table's schema at its newest version."""
        return self._newest().schema

    def at(self, places: KeyRanges, unfit: Counter[str] | None = None) -> FoundRows:
        """Return the rows that live now at some places, in the order of the database; `unfit` is as for
        `row_form.fit`. Static values alone make a row where a place is a whole partition only.
        """
        opened = self._newest()
        owners = np.unique(buckets_of(pa.array(places.tokens, pa.int64()), self._table.buckets)).tolist()
        return self._rows(opened, owners, places, unfit)

    def between(self, tokens: TokenRange, unfit: Counter[str] | None = None) -> Iterator[FoundRows]:
        """Yield the rows that live now in the partitions with tokens of a range, one bucket at a time, as `at` does."""
        opened = self._newest()
        for bucket in opened.contents:
            first, last = token_range(bucket, self._table.buckets)
            if tokens.first <= last and first <= tokens.last:
                within = TokenRange(max(first, tokens.first), min(last, tokens.last))
                yield self._rows(opened, [bucket], within, unfit)

    def _rows(self, opened: _Opened, buckets: list[int], at: At, unfit: Counter[str] | None) -> FoundRows:
        found = [opened.contents[bucket] for bucket in buckets if bucket in opened.contents]
        schema = opened.schema
        state = combined(found).merged(schema, at) if found else merge([], schema)
        if isinstance(at, KeyRanges):
            state = only_at(state, at)
        values, places = live(state, schema, time_now() // 1_000_000)
        index = pa.array(places)
        if isinstance(at, KeyRanges) and schema.clustering:
            # The other rows of a partition are not there, so static values may seem to be alone.
            positions = one_chunk(state["position"]).take(index)
            counts = pc.or_(pc.not_equal(positions, STATIC_POSITION), _of_whole_partitions(state, index, at))
            values, index = values.filter(counts), index.filter(counts)
        return FoundRows(to_micros(values, schema, unfit), one_chunk(state["token"]).take(index))

    def _newest(self) -> _Opened:
        with self._lock:
            # The state first: changes that are folded and then merged away in between are in files that name their
            # version.
            state, changes = self._state.load(), self._changes.load()
            opened = self._opened
            if opened is None or opened.state is not state or opened.changes is not changes:
                held = contents(self._table, state, changes)
                opened = _Opened(state, changes, self._table.schema(changes), held)
                self._opened = opened
            return opened


def _of_whole_partitions(state: pa.Table, rows: pa.Array, places: KeyRanges) -> pa.Array:
    """Return which rows are in partitions that a place covers as a whole."""
    whole = places.keys.filter(pc.and_(pc.equal(places.first, b""), pc.equal(places.end, b"\xff")))
    return pc.is_in(one_chunk(state["key"]).take(rows), whole)
