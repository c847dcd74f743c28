"""The Delta table `row_events` of a captured table: one commit per batch, each following from the one before.

A batch leads from one version of `changes`, as of one time, to the next. Its commit records both, the batch's number
and a version of `state` that holds no more than that version of `changes`, all as Delta transactions. So a batch that
was killed before its commit left nothing, and a repeated one counts once.

A batch reads only the rows that the new changes touch and those where cells expire, from the recorded version of the
state.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from writetime.changes.position import STATIC_POSITION
from writetime.core.arrow import pc
from writetime.core.errors import WritetimeError
from writetime.lake.buckets import ALL, are_few, buckets_of, token_range
from writetime.lake.cache import Cache
from writetime.lake.contents import Contents, StateFiles, Waiting
from writetime.lake.delta import BUCKETS, BucketedTable, Conflict, TableVersion, by_bucket
from writetime.lake.horizon import horizon_of
from writetime.lake.lake_storage import Storage
from writetime.lake.merging import Runner
from writetime.lake.packing import FAN
from writetime.lake.parquet import WrittenFile, write_rows
from writetime.lake.places import Places, joined, partitions, places_of
from writetime.lake.retention import ROWS_CHANGES, ROWS_STATE
from writetime.lake.state import (
    Staged,
    contents,
    distinct,
    files_since,
    folded_version,
    generation_of,
    pending,
)
from writetime.lake.table import CREATED, LakeTable, created_of
from writetime.lake.table import GENERATION as TABLE_GENERATION
from writetime.lake.touched import expiring_places
from writetime.lake.views import time_now
from writetime.merge import merge
from writetime.row_events.batches import PREFIX
from writetime.row_events.compare import Rows
from writetime.row_events.events import Batch, event_schema, fitted_rows, row_events
from writetime.row_events.packing import pack_events
from writetime.schema.table import TableSchema

SEQUENCE, GENERATION, AS_OF = (f"row_events/{name}" for name in ("sequence", "generation", "as_of"))


@dataclass(frozen=True)
class Position:
    """The position of the stream: its last batch, and the versions of `changes` and `state` up to which it goes."""

    batch: Batch
    changes: int
    state: int

    def numbers(self) -> dict[str, int]:
        """Return the numbers that a commit records, except for the batch's number."""
        return {
            GENERATION: self.batch.generation,
            ROWS_CHANGES: self.changes,
            ROWS_STATE: self.state,
            AS_OF: self.batch.as_of,
        }


@dataclass(frozen=True)
class RowTask:
    """Find the events of one bucket, or of all (`ALL`).

    `old` is what it held before the batch (None: nothing), `new` what the batch adds; `all_partitions` compares all
    rows and not only those that changed, which are read through the cache.
    """

    bucket: int
    buckets: int
    old: Contents | None
    new: Contents | Waiting
    schema_before: TableSchema
    schema: TableSchema
    as_of_before: int
    batch: Batch
    all_partitions: bool
    target: Storage
    cache: Cache

    def run(self) -> list[WrittenFile]:
        """Write the events; no file if there are none."""
        added = self.new.merged(self.schema)
        if self.all_partitions:
            return self._write(self.events(added, None), self.bucket)
        places = self._places(added)
        if self.bucket != ALL or are_few(len(places.tokens), self.buckets):
            return self._write(self.events(added, places), self.bucket)
        # Much expires at once: one bucket at a time bounds the memory.
        owners = buckets_of(added["token"], self.buckets)
        written = []
        for bucket in range(self.buckets):
            own = places.within(token_range(bucket, self.buckets))
            if len(own.tokens):
                events = self.events(added.filter(pa.array(owners == bucket)), own)
                written += self._write(events, bucket)
        return written

    def events(self, added: pa.Table, places: Places | None) -> pa.Table:
        """Compute the events of changes (merged) at some places, or at all."""
        before, after = self._rows(added, places)
        if places is not None and len((alone := _static_rows_alone([before, after])).tokens):
            # They are rows only if no other row of the partition lives.
            before, after = self._rows(added, joined([places, alone]))
        return row_events(before, after, self.schema, self.batch)

    def _rows(self, added: pa.Table, places: Places | None) -> tuple[Rows, Rows]:
        """Return the rows before and after the changes."""
        old = self._old(self.schema, places)
        was = old if self.schema == self.schema_before else self._old(self.schema_before, places)
        before = fitted_rows(was, self.schema_before, self.as_of_before)
        return before, fitted_rows(merge([old, added], self.schema), self.schema, self.batch.as_of)

    def _old(self, schema: TableSchema, places: Places | None) -> pa.Table:
        return merge([], schema) if self.old is None else self.old.merged(schema, places)

    def _write(self, events: pa.Table, bucket: int) -> list[WrittenFile]:
        return write_rows(self.target, events, bucket, self.buckets, f"{PREFIX}{self.batch.sequence}-")

    def _places(self, added: pa.Table) -> Places:
        seconds = self.as_of_before // 1_000_000, self.batch.as_of // 1_000_000
        due = expiring_places(() if self.old is None else self.old.sources, *seconds, self.cache)
        return joined([places_of(added), due]) if len(due.tokens) else places_of(added)


def _static_rows_alone(several: Iterable[Rows]) -> Places:
    """Return the partitions of rows that are static rows alone."""
    found = []
    for rows in several:
        alone = pc.equal(rows.positions, STATIC_POSITION)
        found.append(partitions(rows.tokens.filter(alone), rows.keys.filter(alone)))
    return joined(found)


def create_stream(table: LakeTable) -> BucketedTable:
    """Return the Delta table of the row events, created if it is new, with the fields of the table's present schema. It
    is empty if its events belong to an earlier table of the name.
    """
    delta = table.row_events
    changes = table.changes.load()
    schema = event_schema(table.schema(changes))
    delta.create(schema, table.buckets, {})
    if has_other_table(table):
        delta.replace(delta.load(), [], schema, {CREATED: created_of(changes)})
    delta.add_fields(schema)
    if (found := delta.load().properties[BUCKETS]) != str(table.buckets):
        raise WritetimeError(f"{delta.storage.address} has {found} buckets and the table {table.buckets}: restore it")
    return delta


def has_other_table(table: LakeTable) -> bool:
    """Return whether the row events belong to an earlier table of the name, which was dropped."""
    return created_of(table.row_events.load()) != created_of(table.changes.load())


def position_of(stream: TableVersion) -> Position | None:
    """Return the position of the stream; None before its first batch."""
    numbers = [stream.transaction(name) for name in (GENERATION, SEQUENCE, AS_OF, ROWS_CHANGES, ROWS_STATE)]
    if any(number is None for number in numbers):
        return None
    generation, sequence, as_of, changes, state = (number or 0 for number in numbers)
    return Position(Batch(generation, sequence, as_of), changes, state)


def extend(
    table: LakeTable,
    as_of: int | None = None,
    run: Runner = map,
    staged: Staged | None = None,
    *,
    rebuild: bool = False,
) -> int:
    """Add the next batch of events to the stream: all rows that changed, or expired, since the last one; return their
    number. Small batches are packed now and then.

    If the table began a generation since (`lake.generation`), or to `rebuild` the stream, the batch creates all present
    rows, and belongs to the stream's next generation. The batches before it leave the lake table; in Kafka it follows
    them.

    Args:
        table: the table.
        as_of: the time at which expiry is evaluated (microseconds), now by default; not before that of the last batch.
        run: runs the tasks, one per bucket.
        staged: is called with the new files before they are committed; if it raises, they are not committed.
        rebuild: rebuild the stream from the state.

    Raises:
        Conflict: another process rewrote the stream meanwhile: run it again.
        WritetimeError: the files with the earlier rows are gone, because the last batch was too long ago.
    """
    delta = create_stream(table)
    stream = delta.load()
    last = position_of(stream)
    # The state first: it never holds more than the changes that are read after it.
    state = table.state.load()
    changes = table.changes.load()
    generation = generation_of(changes)
    if generation_of(state) != generation:
        # Landing is about to rebuild the state.
        return 0
    instant = time_now() if as_of is None else as_of
    follows = last is not None and not rebuild and generation_of(stream) == generation
    if last is None:
        batch = Batch(0, 1, instant)
    else:
        number = last.batch.generation if follows else last.batch.generation + 1
        batch = Batch(number, last.batch.sequence + 1, max(instant, last.batch.as_of))
    if last is not None and follows:
        tasks = _next_tasks(table, last, state, changes, batch)
    else:
        tasks = _first_tasks(table, state, changes, batch)
    try:
        written = [file for files in run(RowTask.run, tasks) for file in files]
    except FileNotFoundError as e:
        raise _too_late(table, e) from None
    if last is not None and follows and not written and last.changes == changes.version:
        return 0
    if staged:
        staged(written)
    numbers = Position(batch, changes.version, state.version).numbers() | {TABLE_GENERATION: generation}
    new = True
    if last is None or follows:
        new = delta.append(written, SEQUENCE, batch.sequence, numbers)
    else:
        delta.rewrite(stream, stream.files, written, data_change=True, also=numbers | {SEQUENCE: batch.sequence})
    if batch.sequence % FAN == 0:
        # A conflict is no fault: the next batches try again.
        with suppress(Conflict):
            pack_events(table)
    return sum(file.rows for file in written) if new else 0


def _first_tasks(table: LakeTable, state: TableVersion, changes: TableVersion, batch: Batch) -> list[RowTask]:
    """Return the tasks of a batch that begins with no rows."""
    schema = table.schema(changes)
    return [
        RowTask(
            bucket,
            table.buckets,
            None,
            held,
            schema,
            schema,
            0,
            batch,
            True,
            table.row_events.storage,
            table.cache,
        )
        for bucket, held in contents(table, state, changes).items()
    ]


def _next_tasks(
    table: LakeTable, last: Position, state: TableVersion, changes: TableVersion, batch: Batch
) -> list[RowTask]:
    try:
        # Not a state that holds more, and not one that has dropped cells that lived at the last batch and expired
        # since.
        if (folded_version(state) or 0) > last.changes or horizon_of(state) >= last.batch.as_of:
            state = table.state.load(last.state)
        known = table.changes.load(last.changes)
    except WritetimeError as e:
        raise _too_late(table, e) from None
    of_state = StateFiles(table, state)
    waiting = pending(table, known, state)
    new = by_bucket(files_since(table, changes, last.changes), table.buckets)
    schema_before, schema = table.schema(known), table.schema(changes)
    everything = _reshaped(schema_before, schema)
    every = distinct(new)
    few = not everything and are_few(sum(file.rows for file in every), table.buckets)
    if few:
        # One task costs less than many.
        old, new = {ALL: of_state.contents(ALL, distinct(waiting))}, {ALL: every}
    else:
        old = of_state.all_contents({bucket: waiting.get(bucket, []) for bucket in waiting.keys() | new.keys()})
    return [
        RowTask(
            bucket,
            table.buckets,
            held,
            of_state.waiting(bucket, new.get(bucket, ())),
            schema_before,
            schema,
            last.batch.as_of,
            batch,
            everything,
            table.row_events.storage,
            table.cache,
        )
        for bucket, held in old.items()
    ]


def _reshaped(before: TableSchema, after: TableSchema) -> bool:
    """Return whether a schema change alone may change rows: a column dropped, or another type."""
    types = {c.name: c.type for c in after.columns}
    return before.dropped != after.dropped or any(types.get(c.name) != c.type for c in before.columns)


def _too_late(table: LakeTable, cause: Exception) -> WritetimeError:
    return WritetimeError(
        f"{table.name}: the rows as of the last batch of row events are gone ({cause}), because that was longer ago "
        f"than lake.vacuum_hours: rebuild them with `writetime rebuild {table.name} row_events`"
    )
