"""The sink as a bounded PySpark op: the present messages of the topic, one task per Kafka partition, then one commit.

Nothing is committed until all tasks are done and the caller has checked the receipts. A task that is retried, or a run
that failed, reads its messages again and has the same outcomes: each row names the message that stored it.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from writetime.clients.consumer_groups import commit_offsets, committed_offsets, group_is_live, require_same_topic
from writetime.clients.database import connect
from writetime.clients.kafka import beginning_offsets, end_offsets, messages_between, topic_ids
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.ingest.event_pipeline import FETCH_MESSAGES, EventPipeline
from writetime.ingest.event_sink import start_offset
from writetime.ingest.partition_progress import PartitionProgress
from writetime.ingest.writer import Receipt

RECEIPT_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("event_id", pa.string()),
        pa.field("user_id", pa.string()),
        pa.field("event_type", pa.string()),
        pa.field("event_timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
_RECEIPTS_PER_BATCH = 10_000
_STEP_SECONDS = 0.02
# A bounded run must end: if the lowest message stays unfinished for this time, it fails with the last fault.
STALL_SECONDS = 120.0


@dataclass(frozen=True)
class OffsetRange:
    """The messages of one Kafka partition from `start` up to, not including, `end`, and the id of their topic."""

    partition: int
    start: int
    end: int
    topic_id: int = 0


def plan(settings: Settings) -> list[OffsetRange]:
    """Return the messages that the group has not read, at most `ingest.max_events_per_run` offsets, spread over the
    partitions.

    Raises:
        WritetimeError: the topic is missing or was created again, retention has deleted unread messages, the broker has
            lost messages that were read, or a `writetime sink` is running.
    """
    ingest = settings.ingest
    if group_is_live(settings, ingest.group):
        raise WritetimeError(
            f"group {ingest.group} has live members: a `writetime sink` is storing these events already; stop it, or "
            "leave the work to it"
        )
    topic_id = topic_ids(settings, [ingest.topic]).get(ingest.topic, 0)
    committed = committed_offsets(settings, ingest.topic, ingest.group)
    first = beginning_offsets(settings, ingest.topic, list(committed))
    ends = end_offsets(settings, ingest.topic, list(committed))
    share = max(1, ingest.max_events_per_run // len(ends))
    ranges = []
    for partition, end in ends.items():
        start = start_offset(ingest.topic, partition, committed[partition], first[partition], end)
        if start < end:
            ranges.append(OffsetRange(partition, start, min(end, start + share), topic_id))
    return ranges


def drain(spark: SparkSession, settings: Settings, ranges: list[OffsetRange]) -> DataFrame:
    """Store the events of these ranges and return one receipt per message, as a DataFrame that is computed once."""
    # A plain DataFrame would store the events again for each of its readers.
    return of_ranges(spark, ranges, RECEIPT_SCHEMA, partial(store_range, settings)).localCheckpoint(eager=True)


def of_ranges(
    spark: SparkSession,
    ranges: list[OffsetRange],
    schema: pa.Schema,
    work: Callable[[OffsetRange], Iterator[pa.RecordBatch]],
) -> DataFrame:
    """Return the rows that `work` makes of each of these ranges, which is one task."""
    rows = [(r.partition, r.start, r.end) for r in ranges]
    tasks = spark.createDataFrame(rows, "partition int, start long, end long")

    def run_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                yield from work(OffsetRange(**row))

    return tasks.repartitionByRange(max(1, len(rows)), "partition").mapInArrow(run_task, from_arrow_schema(schema))


def commit(settings: Settings, ranges: list[OffsetRange]) -> None:
    """Commit the ends of the ranges. Raise `OtherTopic` if the topic was created again since they were planned."""
    if ranges:
        ingest, topic_id = settings.ingest, ranges[0].topic_id
        require_same_topic(settings, ingest.topic, ingest.group, [topic_id])
        commit_offsets(settings, ingest.topic, ingest.group, {r.partition: r.end for r in ranges}, topic_id)


def count_messages(settings: Settings, ranges: list[OffsetRange]) -> int:
    """Count the messages of these ranges in the topic itself, with a separate consumer. Offsets alone are not enough:
    compaction and transactions leave gaps.
    """
    starts = {r.partition: r.start for r in ranges}
    ends = {r.partition: r.end for r in ranges}
    return sum(1 for _ in messages_between(settings, settings.ingest.topic, starts, ends))


def store_range(settings: Settings, offsets: OffsetRange) -> Iterator[pa.RecordBatch]:
    """Store the events of one range and yield the receipts in batches. If Kafka or the database fails, a
    `WritetimeError` has the last fault.
    """
    # Not the receipts: they have whole events, with their payloads.
    rows: list[dict[str, Any]] = []
    partition, end = offsets.partition, offsets.end
    read = messages_between(settings, settings.ingest.topic, {partition: offsets.start}, {partition: end})
    with connect(settings) as session, closing(read) as messages:
        pipeline = EventPipeline(settings, session, lambda receipt: rows.append(_row(receipt)))
        progress = pipeline.progress[partition] = PartitionProgress(offsets.start)
        floor, since = -1, 0.0
        while progress.floor < end:
            if pipeline.fill < 1 and progress.next_offset < end:
                room = min(FETCH_MESSAGES, settings.ingest.max_buffered_events - pipeline.unfinished)
                taken = list(islice(messages, room))
                for message in taken:
                    pipeline.take(message)
                if len(taken) < room:
                    # The last offsets may have no message.
                    progress.reach(end)
            pipeline.step(_STEP_SECONDS)
            if progress.floor != floor:
                floor, since = progress.floor, time.monotonic()
            elif time.monotonic() - since > STALL_SECONDS:
                last = pipeline.writer.last_error or pipeline.dead_letters.last_error or "no fault is known"
                place = f"{settings.ingest.topic}/{partition}@{floor}"
                raise WritetimeError(f"{place}: nothing done for {STALL_SECONDS:.0f} s: {last}")
            if len(rows) >= _RECEIPTS_PER_BATCH:
                yield pa.RecordBatch.from_pylist(rows, RECEIPT_SCHEMA)
                rows.clear()
    yield pa.RecordBatch.from_pylist(rows, RECEIPT_SCHEMA)


def _row(receipt: Receipt) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(receipt, name) for name in ("partition", "offset", "outcome", "reason")}
    if (event := receipt.event) is not None:
        row |= {"event_id": str(event.event_id), "event_timestamp": event.timestamp}
        row |= {"user_id": event.user_id, "event_type": event.event_type}
    return row
