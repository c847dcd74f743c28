"""The Delta table `row_events` of a captured table: one commit per batch, each following from the one before
(`lake.projection`).
"""

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pyarrow as pa

from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError
from writetime.delta.bucketed_table import Conflict
from writetime.delta.parquet import Unreadable, WrittenFile, write_rows
from writetime.delta.storage import Storage
from writetime.delta.table_changes import FORGET_REMOVED, TableChange
from writetime.delta.versions import BUCKETS, TableVersion
from writetime.files.merging import Runner
from writetime.lake.packing import FAN
from writetime.lake.projection import (
    ROW_EVENTS,
    EventBatch,
    OtherChanges,
    Position,
    TooLate,
    as_of_next,
    read_again,
    require_same_changes,
)
from writetime.lake.state import Staged, generation_of
from writetime.lake.table import CREATED, GENERATION, LakeTable, created_of
from writetime.lake.views import time_of_lake
from writetime.row_events.changed_rows import ChangedRows, first_rows, next_rows
from writetime.row_events.events import event_schema
from writetime.row_events.packing import pack_events
from writetime.row_events.stream_files import FIRST, PREFIX


def _write(rows: ChangedRows, target: Storage) -> tuple[list[WrittenFile], Counter[str]]:
    """Write the events of some rows; no file if there are none. Also return the counts of `ChangedRows.found`."""
    counts = Counter[str]()
    files = [
        file
        for bucket, events in rows.found(Counter(), counts)
        for file in write_rows(target, events, bucket, rows.buckets, f"{PREFIX}{rows.batch.sequence}-")
    ]
    return files, counts


def _created(table: LakeTable) -> tuple[TableVersion, pa.Schema | None]:
    """Return the row events, with the fields of the table's present schema. Create them if they do not exist. If they
    must begin again, also return these fields, as in `Projection.with_fields`.
    """
    delta, changes = table.row_events, table.changes.load()
    schema = event_schema(table.schema(changes))
    delta.create(schema, table.buckets, FORGET_REMOVED)
    stream, begins = ROW_EVENTS.with_fields(table, delta.load(), schema, created_of(changes))
    if (found := stream.properties[BUCKETS]) != str(table.buckets):
        raise WritetimeError(
            f"{delta.storage.address} has {pluralize(int(found), 'bucket')} and the table {table.buckets}: restore it"
        )
    # Streams that earlier releases created do not have it.
    for name, value in FORGET_REMOVED.items() - stream.properties.items():
        delta.set_property(name, value)
    return stream, begins


def has_other_table(table: LakeTable) -> bool:
    """Return whether the row events belong to an earlier table of the name, which was dropped."""
    return created_of(table.row_events.load()) != created_of(table.changes.load())


def extend(
    table: LakeTable,
    as_of: int | None = None,
    run: Runner = map,
    staged: Staged | None = None,
    counts: Counter[str] | None = None,
    *,
    rebuild: bool = False,
) -> int:
    """Add the next batch of events to the stream: all rows that have changed or expired since the last one. Return the
    number of events. (1) Open the versions, (2) choose the batch, (3) write its events, (4) let `staged` check the
    files, (5) commit, (6) pack small batches from time to time.

    If the table has begun a generation since (`lake.generation`), if a dropped column was added again, or to `rebuild`
    the stream, the batch creates all present rows, and belongs to the stream's next generation. Earlier batches are
    removed from the lake table. In Kafka, the new batch follows them.

    Args:
        table: the table.
        as_of: the time at which expiry is evaluated (microseconds), now by default; `projection.as_of_next` unless the
            stream begins again.
        run: runs the tasks, one per bucket.
        staged: is called with the new files before they are committed; if it raises, they are not committed.
        counts: gets the counts of `ChangedRows.found`. It is complete when `staged` is called.
        rebuild: rebuild the stream from the state.

    Raises:
        Conflict: another process added a batch, or rewrote the stream, meanwhile: run this again.
        WritetimeError: the files with the earlier rows no longer exist, because the last batch was too long ago.
    """
    stream, begins = _created(table)
    # The state first: it never holds more than the changes that are read after it.
    state = table.state.load()
    changes = table.changes.load()
    if generation_of(state) != generation_of(changes):
        # Landing is about to rebuild the state.
        return 0
    now, newest = time_of_lake(table), ROW_EVENTS.position(stream)
    try:
        last = None if rebuild or begins is not None else _followed(table, stream, changes)
        batch = _batch_after(last, newest, now, as_of)
        rows = next_rows(table, last, state, changes, batch) if last else first_rows(table, state, changes, batch)
        tasks = [replace(each, write_times=True) for each in rows]
        done = list(run(partial(_write, target=table.row_events.storage), tasks))
    except (Unreadable, FileNotFoundError, TooLate) as e:
        raise _cannot_continue(table, e) from None
    written = [file for files, _ in done for file in files]
    if counts is not None:
        counts.update(sum((each for _, each in done), Counter[str]()))
    if staged:
        staged(written)
    if last and not written and last.changes.version == changes.version and batch.as_of >= last.batch.as_of:
        # The program that committed the last batch may have been killed before it published it.
        ROW_EVENTS.publish(table)
        return 0
    change = TableChange([] if last else stream.files, written, fields=begins)
    also = {GENERATION: generation_of(changes)} | ({} if last else {FIRST: batch.sequence})
    if begins is not None:
        also[CREATED] = created_of(changes)
    ROW_EVENTS.commit(table, stream, change, Position(batch, changes.commit_id, state.commit_id), also)
    if batch.sequence % FAN == 0:
        # A conflict is no fault: the next batches try again.
        with suppress(Conflict):
            pack_events(table)
    return sum(file.rows for file in written)


def _followed(table: LakeTable, stream: TableVersion, changes: TableVersion) -> Position | None:
    """Return the position of the stream's last batch, or None if the next one does not follow it. Raise `OtherChanges`
    if the changes are others than those of the last batch.
    """
    last = ROW_EVENTS.position(stream)
    if last is None or generation_of(stream) != generation_of(changes):
        return None
    require_same_changes(table, last, changes)
    # Events from before the drop have values that the column no longer has.
    return None if _column_is_back(table, last, changes) else last


def _batch_after(last: Position | None, newest: Position | None, now: int, as_of: int | None) -> EventBatch:
    """Return the batch after `last`, or the first one of a generation after `newest`, the stream's last batch."""
    instant = now if as_of is None else as_of
    if last:
        return EventBatch(last.batch.generation, last.batch.sequence + 1, as_of_next(last, instant))
    # The time, so that it is larger than that of an earlier stream of the table even if the lake was lost meanwhile.
    number = now // 1_000_000
    if newest is None:
        return EventBatch(number, 1, instant)
    return EventBatch(max(number, newest.batch.generation + 1), newest.batch.sequence + 1, instant)


def require_stream(table: LakeTable) -> None:
    """Check that the changes of a table have those whose events the stream has. Raise `WritetimeError` if a commit of
    them is missing, or another one has its number.
    """
    stream, changes = table.row_events.find(), table.changes.load()
    last = ROW_EVENTS.position(stream)
    if stream and last and generation_of(stream) == generation_of(changes):
        try:
            require_same_changes(table, last, changes)
        except OtherChanges as e:
            raise _cannot_continue(table, e) from None


def _cannot_continue(table: LakeTable, met: Exception) -> TooLate:
    """Return the error if the stream cannot continue from its last batch."""
    if isinstance(met, OtherChanges):
        fault = f"are of other changes ({met})"
    elif isinstance(met, FileNotFoundError | TooLate):
        fault = f"are gone ({met}), because they are older than lake.vacuum_hours"
    else:
        fault = f"are damaged ({met})"
    return TooLate(
        f"{table.name}: the rows as of the last batch of row events {fault}: rebuild the events with `writetime "
        f"rebuild {table.name} row_events`"
    )


def _column_is_back(table: LakeTable, last: Position, changes: TableVersion) -> bool:
    """Return whether the table has a column that was dropped before the last batch, and was added again since."""
    schema = table.schema(changes)
    if not (again := {d.name for d in schema.dropped} & {c.name for c in schema.columns}):
        return False
    before = table.schema(read_again(table.changes, last.changes))
    return not again <= {c.name for c in before.columns}
