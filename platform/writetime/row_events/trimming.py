"""Keeps the stream of row events small: old events are replaced by the resulting rows.

The batches up to one become a base: for each live row after them, its last event as a CREATE without a `before` image.
So the stream, replayed from its start, still gives the view. A reader that follows it from a batch within the base, and
not from the start, misses deletions. It must start again without rows (see `stream_files.merged_to`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from writetime.core.arrow import numbers, one_chunk, pc
from writetime.delta.buckets import ALL, bucket_of_part, buckets_of
from writetime.delta.parquet import WrittenFile, read_file, write_rows
from writetime.delta.storage import Storage
from writetime.delta.table_changes import TableChange
from writetime.delta.versions import DataFile
from writetime.files.merging import Runner, Source, portions
from writetime.lake.projection import ROW_EVENTS
from writetime.lake.state import in_parts
from writetime.lake.table import LakeTable
from writetime.merge.order import group_by
from writetime.row_events.events import CREATE, DELETE, ERASE, KINDS, event_schema
from writetime.row_events.publish import PUBLISHED
from writetime.row_events.stream import has_other_table
from writetime.row_events.stream_files import MERGED, PREFIX, batch_files, merged_to


def merge_events(table: LakeTable, instant: int, run: Runner = map) -> int:
    """Merge the batches that were added and published before a time (microseconds); return the number of removed
    events.

    Batches that are not in Kafka yet stay, at any age; so do all batches of a stream that was never published. Raise
    `Conflict` if the stream was rebuilt while this ran: run it again.
    """
    if not table.row_events.exists() or has_other_table(table):
        return 0
    stream = table.row_events.load()
    found = batch_files(stream)
    base = merged_to(stream)
    newer = [(number, file) for number, file in found if number > base]
    kept = min((number for number, file in newer if file.added_at >= instant), default=None)
    last = stream.transaction(PUBLISHED) or 0
    last = last if kept is None else min(last, kept - 1)
    if not any(number <= last for number, _ in newer):
        return 0
    old = [file for number, file in found if number <= last]
    schema = event_schema(table.schema())
    # Files of one bucket and of all buckets alternate in the stream, and the later event of a row counts.
    order = {file.path: i for i, file in enumerate(old)}
    storage = table.row_events.storage
    parts, files_of = in_parts(storage, old, table.buckets)
    tasks = [
        _Merge(
            part,
            parts,
            table.buckets,
            sorted(files, key=lambda file: order[file.path]),
            schema,
            last,
            storage,
        )
        for part, files in files_of.items()
    ]
    written = [file for files in run(_Merge.run, tasks) for file in files]
    ROW_EVENTS.commit(table, stream, TableChange(old, written, is_new_data=False), also={MERGED: last})
    return sum(file.rows for file in old) - sum(file.rows for file in written)


@dataclass(frozen=True)
class _Merge:
    """Merge the files of one of equal parts of the token range, in the order of the stream."""

    part: int
    parts: int
    buckets: int
    files: Sequence[DataFile]
    schema: pa.Schema
    last: int
    storage: Storage

    def run(self) -> list[WrittenFile]:
        base = self.schema.empty_table()
        # The cost is proportional to the rows of the base.
        source = Source.of_bucket(self.storage, self.files, self.part, self.parts)
        for portion in portions(self.files, source.size_of):
            base = _last_of_each(pa.concat_tables([base, *map(self._events, portion)]))
        base = base.filter(pc.not_equal(base["kind"], KINDS[DELETE]))
        created = {"kind": pa.repeat(KINDS[CREATE], len(base)), "before": pa.nulls(len(base), base["before"].type)}
        for name, values in created.items():
            base = base.set_column(base.schema.get_field_index(name), self.schema.field(name), values)
        bucket = bucket_of_part(self.part, self.parts, self.buckets)
        return write_rows(self.storage, base, bucket, self.buckets, f"{PREFIX}{self.last}-")

    def _events(self, file: DataFile) -> pa.Table:
        events = read_file(self.storage, file.path, self.schema)
        events = events.filter(pc.not_equal(events["kind"], ERASE))
        if file.bucket != ALL or self.parts == 1:
            return events
        return events.filter(pa.array(buckets_of(events["token"], self.parts) == self.part))


def _last_of_each(events: pa.Table) -> pa.Table:
    """Return the last event of each row, in the order of the database."""
    tokens, keys, positions = (one_chunk(events[name]) for name in ("token", "key", "position"))
    group, head, _ = group_by(numbers(tokens), keys, positions)
    last = np.zeros(len(head), np.int64)
    np.maximum.at(last, group, np.arange(len(events)))
    return events.take(pa.array(last))
