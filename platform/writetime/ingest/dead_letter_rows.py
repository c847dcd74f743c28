"""Dead letters as rows: a bounded PySpark op over the dead-letter topic, one task per Kafka partition.

Each row has the id of its topic: a topic of the same name that was created later has other letters at its offsets. So
has each number of the table, which is the offset up to which it has a partition.
"""

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from writetime.clients.kafka import beginning_offsets, end_offsets, topic_ids
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.ingest import dead_letter_topic
from writetime.ingest.drain import OffsetRange, of_ranges

SCHEMA = pa.schema(
    [
        pa.field("topic_id", pa.int64(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("dead_at", pa.string()),
    ]
)
_OF_LETTER = [name for name in SCHEMA.names if name != "topic_id"]
_ROWS_PER_BATCH = 1_000
BATCH_BYTES = 16 * 1024 * 1024


def topic_id(settings: Settings) -> int:
    """Return the id of the dead-letter topic."""
    topic = settings.ingest.dead_letter_topic
    return topic_ids(settings, [topic]).get(topic, 0)


def app_id(topic_id: int, partition: int) -> str:
    """Return the application whose number is the offset up to which the table has a partition of a topic."""
    return f"dead_letters/{topic_id}/{partition}"


def unread(settings: Settings, topic_id: int, table: deltalake.DeltaTable | None) -> list[OffsetRange]:
    """Return the topic's messages that the table lacks, by the numbers of its applications. Raise a `WritetimeError` if
    the topic ends before one of these, or the table has messages of a partition without its number.
    """
    topic = settings.ingest.dead_letter_topic
    first = beginning_offsets(settings, topic)
    # Only of these partitions: the topic may have been given another one meanwhile.
    ends = end_offsets(settings, topic, list(first))
    found = []
    for partition, end in ends.items():
        number = table.transaction_version(app_id(topic_id, partition)) if table else None
        start = max(first[partition], number or 0)
        if start > end:
            raise WritetimeError(
                f"{topic}/{partition} ends at {end}, but was read up to {start} before: the broker has lost messages; "
                "move the lake table of dead letters aside to start again"
            )
        if start < end:
            if table and number is None and _has(table, topic_id, partition):
                raise WritetimeError(
                    f"the lake table of dead letters has messages of {topic}/{partition}, but its log lacks the offset "
                    "up to which it has them, as after a copy of the rows alone; move it aside to start again"
                )
            found.append(OffsetRange(partition, start, end))
    return found


def _has(table: deltalake.DeltaTable, topic_id: int, partition: int) -> bool:
    rows = table.to_pyarrow_dataset()
    return rows.count_rows(filter=(pc.field("topic_id") == topic_id) & (pc.field("partition") == partition)) > 0


def read(spark: SparkSession, settings: Settings, topic_id: int, ranges: list[OffsetRange]) -> DataFrame:
    """Return the dead letters of these ranges of the dead-letter topic, one row each."""
    return of_ranges(spark, ranges, SCHEMA, partial(read_range, settings, topic_id))


def read_range(settings: Settings, topic_id: int, offsets: OffsetRange) -> Iterator[pa.RecordBatch]:
    """Yield the dead letters of one range in batches of rows, which end at a number of bytes of keys and values."""
    rows: list[dict[str, Any]] = []
    size = 0
    starts, ends = {offsets.partition: offsets.start}, {offsets.partition: offsets.end}
    with closing(dead_letter_topic.read(settings, starts, ends)) as letters:
        for letter in letters:
            rows.append({"topic_id": topic_id} | {name: getattr(letter, name) for name in _OF_LETTER})
            size += len(letter.key or b"") + len(letter.value or b"")
            if len(rows) >= _ROWS_PER_BATCH or size >= BATCH_BYTES:
                yield pa.RecordBatch.from_pylist(rows, SCHEMA)
                rows.clear()
                size = 0
    yield pa.RecordBatch.from_pylist(rows, SCHEMA)
