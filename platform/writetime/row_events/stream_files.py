"""The files of the stream, and the events in them, in order.

The name of a file begins with `batch-<number>-`. The file has the events of this batch, and, if batches were packed,
those of earlier ones. Each event has its own batch (`sequence`). A base (`trimming`) has the number of its last batch.
"""

from collections.abc import Iterator

import pyarrow as pa

from writetime.core.arrow import pc
from writetime.core.errors import WritetimeError
from writetime.delta.parquet import read_file
from writetime.delta.versions import DataFile, TableVersion
from writetime.lake.table import LakeTable
from writetime.row_events.events import event_schema

PREFIX = "batch-"
MERGED = "row_events/merged"
FIRST = "row_events/first"


def batch_files(stream: TableVersion) -> list[tuple[int, DataFile]]:
    """Return the files of the stream with the last batch of each, in order."""
    found = [(int(file.path.rsplit("/", 1)[-1].split("-")[1]), file) for file in stream.files]
    return sorted(found, key=lambda each: (each[0], each[1].bucket, each[1].path))


def merged_to(stream: TableVersion) -> int:
    """Return the last batch of the base; 0 if there is none."""
    return stream.transaction(MERGED) or 0


def read_to(stream: TableVersion) -> int:
    """Return the last batch whose events of kind CREATE are rows that existed before: the first one of the generation,
    or the last one of the base.
    """
    return max(stream.transaction(FIRST) or 1, merged_to(stream))


def events_since(table: LakeTable, first: int) -> Iterator[pa.Table]:
    """Yield the row events of the lake, from the batch `first` on, in order; all of the base, if `first` is in it.
    Raise `WritetimeError` if the table has no row events yet.
    """
    if not table.row_events.exists():
        raise WritetimeError(f"{table.name} has no row events yet: create them with `writetime publish {table.name}`")
    schema = event_schema(table.schema())
    stream = table.row_events.load()
    base = merged_to(stream)
    for last, file in batch_files(stream):
        if last >= first:
            events = read_file(table.row_events.storage, file.path, schema)
            yield events if last <= base else events.filter(pc.greater_equal(events["sequence"], first))
