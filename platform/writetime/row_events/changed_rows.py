"""Finds the rows that a batch of changes affects, and computes each before and after the batch.

The stream of row events and the view follow the changes of a table: a batch leads from one version of `changes`, as of
one time, to the next. It reads only the rows that the new changes touch and those where data expires, from a version of
`state` that holds no more than that version of `changes`, and from its dropped entries since that time.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from writetime.changes.position import STATIC_POSITION
from writetime.core.arrow import pc
from writetime.delta import buckets
from writetime.delta.buckets import ALL, are_few, bucket_of_part, buckets_of, token_range
from writetime.delta.versions import TableVersion, by_part
from writetime.files.cache import Cache
from writetime.files.key_ranges import KeyRanges, joined, keys_of_whole, partitions, places_of
from writetime.files.merging import Source
from writetime.files.point_reads import anything_expires, expiring_places, first_places, size_at
from writetime.lake.bucket_contents import BucketContents, PendingChanges, StateFiles
from writetime.lake.projection import EventBatch, Position, TooLate, read_again, require_same_changes
from writetime.lake.state import contents, files_since, folded_version, parts_of, unfolded
from writetime.lake.table import LakeTable
from writetime.merge import merge
from writetime.row_events.compare import OrderedRows
from writetime.row_events.events import fitted_rows, row_events
from writetime.schema.table import TableSchema

FIRST_ROWS = 16
"""The number of rows of a partition that are read first to find a live one."""

GROWTH = 16
"""The factor by which each later read is larger."""

EVENTS, BEFORE, AFTER = "events", "live rows before", "live rows after"
"""The names of the numbers that `ChangedRows.found` counts."""


@dataclass(frozen=True)
class ChangedRows:
    """The rows of one bucket, or of several (`ALL`), that a batch changes. It can be sent to a task.

    `old` is their content before the batch (None: nothing), `new` the additions of the batch. `all_partitions`: compare
    all rows, and not only the changed ones, which are read through the cache. `write_times`: events have write times.
    """

    bucket: int
    buckets: int
    old: BucketContents | None
    new: BucketContents | PendingChanges
    schema_before: TableSchema
    schema: TableSchema
    as_of_before: int
    batch: EventBatch
    all_partitions: bool
    cache: Cache
    write_times: bool = False

    def found(self, unfit: Counter[str], counts: Counter[str]) -> Iterator[tuple[int, pa.Table]]:
        """Compute the events: one table per bucket with events, or tables of several buckets (`ALL`).

        `unfit` is as in `row_form.fit`, for the rows after the batch. `counts` gets as `EVENTS` the number of events,
        and as `BEFORE` and `AFTER` those of the state's live rows at the places of the batch, before and after it.
        """
        added = self.new.merged(self.schema)
        places = None if self.all_partitions else self._places(added)
        if self.bucket == ALL and places is not None and (parts := self._count_parts(places)) > 1:
            # One part at a time bounds the memory.
            tables = self._by_part(added, places, parts, unfit, counts)
        else:
            tables = iter([(self.bucket, self.events(added, places, unfit, counts))])
        for bucket, events in tables:
            counts[EVENTS] += events.num_rows
            if events.num_rows:
                yield bucket, events

    def _count_parts(self, places: KeyRanges) -> int:
        """Return the number of equal parts of the token range for the data at places: one per bucket if there are many
        places, or the least number of parts that are small enough. Few changes can have much data, too: those of large
        rows, or of partitions, such as their deletions and their static columns.
        """
        if not are_few(len(places.tokens), self.buckets):
            return self.buckets
        size = size_at(self._old_sources, places, self.cache)
        parts = 1
        while parts < self.buckets and size * _largest_share(places, parts) > buckets.MOST_ROW_BYTES:
            parts *= 2
        return parts

    def _by_part(
        self, added: pa.Table, places: KeyRanges, parts: int, unfit: Counter[str], counts: Counter[str]
    ) -> Iterator[tuple[int, pa.Table]]:
        # They are in the order of their tokens.
        ends = np.searchsorted(buckets_of(added["token"], parts), np.arange(parts + 1))
        for part in range(parts):
            own = places.within(token_range(part, parts))
            if len(own.tokens):
                first, end = ends[part : part + 2].tolist()
                rows = replace(self, old=self.old and self.old.of_part(part, parts))
                events = rows.events(added.slice(first, end - first), own, unfit, counts)
                yield bucket_of_part(part, parts, self.buckets), events

    def events(self, added: pa.Table, places: KeyRanges | None, unfit: Counter[str], counts: Counter[str]) -> pa.Table:
        """Compute the events of changes (merged) at some places, or at all. `unfit` and `counts` are as in `found`."""
        counted: Counter[str] = Counter()
        before, after, state = self._rows(added, places, counted)
        if places is not None:
            count = FIRST_ROWS
            # Static cells alone are a row only if no other row of the partition is live. Mostly, a first row is live.
            while len((alone := _static_rows_alone([before, after], keys_of_whole(places))).tokens):
                places = joined([places, first_places(self._old_sources, alone, count, self.cache)])
                count *= GROWTH
                counted.clear()
                before, after, state = self._rows(added, places, counted)
        unfit.update(counted)
        counts.update({BEFORE: len(before.tokens), AFTER: len(after.tokens)})
        return row_events(before, after, self.schema, self.batch, state if self.write_times else None)

    def _rows(
        self, added: pa.Table, places: KeyRanges | None, unfit: Counter[str]
    ) -> tuple[OrderedRows, OrderedRows, pa.Table]:
        """Return the rows before and after the changes, and the state after them."""
        old = self._old(self.schema, places)
        was = old if self.schema == self.schema_before else self._old(self.schema_before, places)
        before = fitted_rows(was, self.schema_before, self.as_of_before)
        state = merge([old, added], self.schema)
        return before, fitted_rows(state, self.schema, self.batch.as_of, unfit), state

    def _old(self, schema: TableSchema, places: KeyRanges | None) -> pa.Table:
        return merge([], schema) if self.old is None else self.old.merged(schema, places)

    @property
    def anything_expires(self) -> bool:
        """Whether data expires between the last batch and this one."""
        return anything_expires(self._old_sources, *self._seconds, self.cache)

    @property
    def _old_sources(self) -> tuple[Source, ...]:
        return () if self.old is None else self.old.sources

    @property
    def _seconds(self) -> tuple[int, int]:
        # Data that expires between the two times also changes if the batch goes back to the earlier one.
        first, last = sorted((self.as_of_before // 1_000_000, self.batch.as_of // 1_000_000))
        return first, last

    def _places(self, added: pa.Table) -> KeyRanges:
        due = expiring_places(self._old_sources, *self._seconds, self.cache)
        return joined([places_of(added), due]) if len(due.tokens) else places_of(added)


def _largest_share(places: KeyRanges, parts: int) -> float:
    """Return the largest share of places that are in one of equal parts of the token range."""
    counts = np.bincount(buckets_of(pa.array(places.tokens), parts))
    return counts.max(initial=0) / max(counts.sum(), 1)


def _static_rows_alone(several: Iterable[OrderedRows], whole: pa.Array) -> KeyRanges:
    """Return the partitions with only a static row, without those (by their keys) that were read completely."""
    found = []
    for rows in several:
        alone = pc.and_not(pc.equal(rows.positions, STATIC_POSITION), pc.is_in(rows.keys, whole))
        found.append(partitions(rows.tokens.filter(alone), rows.keys.filter(alone)))
    return joined(found)


def first_rows(table: LakeTable, state: TableVersion, changes: TableVersion, batch: EventBatch) -> list[ChangedRows]:
    """Return the changes of a batch that begins with no rows, by bucket."""
    schema = table.schema(changes)
    return [
        ChangedRows(bucket, table.buckets, None, held, schema, schema, 0, batch, True, table.cache)
        for bucket, held in contents(table, state, changes).items()
    ]


def next_rows(
    table: LakeTable, last: Position, state: TableVersion, changes: TableVersion, batch: EventBatch
) -> list[ChangedRows]:
    """Return the changes of a batch, by bucket, or by larger parts of the token range if it has few changes. Without
    new changes, leave out those in which no data expires, so that a batch without work has no tasks.

    Raises:
        TooLate: see the class.
        Transient: the lake cannot be read now.
        WritetimeError: as `unfolded`.
    """
    require_same_changes(table, last, changes)
    # A state with more changes cannot be used.
    if (folded_version(state) or 0) > last.changes.version:
        state = read_again(table.state, last.state)
    known = read_again(table.changes, last.changes)
    if (folded_version(state) or 0) > last.changes.version:
        # The state was lost and created again, so its versions differ.
        raise TooLate(f"version {last.state.version} of the state is not the one of the last batch")
    schema_before, schema = table.schema(known), table.schema(changes)
    everything = reshaped(schema_before, schema)
    added = files_since(table, changes, last.changes.version)
    parts = table.buckets if everything else parts_of(table.changes.storage, added, table.buckets)
    # With the cells that lived at the last batch or live now, expired since, and were dropped.
    of_state = StateFiles(table, state, min(last.batch.as_of, batch.as_of), parts)
    waiting = by_part(unfolded(table, known, state), parts, table.buckets)
    new = by_part(added, parts, table.buckets)
    old = of_state.all_contents({part: waiting.get(part, []) for part in waiting.keys() | new.keys()})
    rows = [
        ChangedRows(
            bucket_of_part(part, parts, table.buckets),
            table.buckets,
            held,
            of_state.waiting(part, new.get(part, ())),
            schema_before,
            schema,
            last.batch.as_of,
            batch,
            everything,
            table.cache,
        )
        for part, held in old.items()
    ]
    return rows if added or everything else [each for each in rows if each.anything_expires]


def reshaped(before: TableSchema, after: TableSchema) -> bool:
    """Return whether a schema change alone may change rows: a column dropped, or another type."""
    types = {c.name: c.type for c in after.columns}
    return before.dropped != after.dropped or any(types.get(c.name) != c.type for c in before.columns)
