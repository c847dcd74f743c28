"""The sink as a bounded PySpark op: the present messages of the topic, one task per Kafka partition, then one commit.

Nothing is committed until all tasks are done and the caller has checked the receipts. A task that is retried, or a run
that failed, reads its messages again and has the same outcomes: each row names the message that stored it.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from writetime.clients.consumer_groups import commit_offsets, committed_offsets, group_is_live, require_same_topic
from writetime.clients.database import connect
from writetime.clients.kafka import (
    TIMEOUT_SECONDS,
    beginning_offsets,
    client_config,
    end_offsets,
    messages_between,
    place_of,
    topic_ids,
)
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.ingest.event_pipeline import EventPipeline, Receipt
from writetime.ingest.sink import start_offset

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
_IDLE_SECONDS = 0.2
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
    rows = [(r.partition, r.start, r.end) for r in ranges]
    tasks = spark.createDataFrame(rows, "partition int, start long, end long").repartitionByRange(
        max(1, len(rows)), "partition"
    )

    def run_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                yield from store_range(settings, OffsetRange(**row))

    receipts = tasks.mapInArrow(run_task, from_arrow_schema(RECEIPT_SCHEMA))
    # A plain DataFrame would store the events again for each of its readers.
    return receipts.localCheckpoint(eager=True)


def commit(settings: Settings, ranges: list[OffsetRange]) -> None:
    """Commit the ends of the ranges.

    Raises:
        OtherTopic: the topic was deleted and created again since they were planned.
    """
    if ranges:
        ingest, topic_id = settings.ingest, ranges[0].topic_id
        require_same_topic(settings, ingest.topic, ingest.group, [topic_id])
        commit_offsets(settings, ingest.topic, ingest.group, {r.partition: r.end for r in ranges}, topic_id)


def count_messages(settings: Settings, ranges: list[OffsetRange]) -> int:
    """Count the messages of these ranges in the topic itself, with a separate consumer.

    Offsets alone are not enough: compaction and transactions leave gaps.

    Raises:
        WritetimeError: the topic cannot be read.
    """
    starts = {r.partition: r.start for r in ranges}
    ends = {r.partition: r.end for r in ranges}
    return sum(1 for _ in messages_between(settings, settings.ingest.topic, starts, ends))


def store_range(settings: Settings, offsets: OffsetRange, fetch_messages: int = 500) -> Iterator[pa.RecordBatch]:
    """Store the events of one range and yield the receipts in batches. At most `fetch_messages` are taken from the
    client at once.

    Raises:
        WritetimeError: Kafka or the database fails, with the last fault.
    """
    topic = settings.ingest.topic
    receipts: list[Receipt] = []
    own = {"group.id": f"{settings.ingest.group}.drain", "enable.auto.commit": False, "auto.offset.reset": "error"}
    consumer = Consumer(client_config(settings, **own, **{"enable.partition.eof": True}))
    try:
        with connect(settings) as session:
            pipeline = EventPipeline(settings, session, receipts.append)
            pipeline.assign(offsets.partition, offsets.start, "")
            # Without it the client looks for the partition's leader only in its next round, up to a second later.
            consumer.list_topics(topic, timeout=TIMEOUT_SECONDS)
            consumer.assign([TopicPartition(topic, offsets.partition, offsets.start)])
            watch = _StallWatch()
            progress = pipeline.progress[offsets.partition]
            while progress.floor < offsets.end:
                if pipeline.fill < 1:
                    room = settings.ingest.max_buffered_events - pipeline.unfinished
                    _read(topic, consumer, pipeline, offsets, min(fetch_messages, room))
                pipeline.step(_STEP_SECONDS)
                watch.check(topic, pipeline, offsets)
                if len(receipts) >= _RECEIPTS_PER_BATCH:
                    yield _to_arrow(receipts)
                    receipts.clear()
    finally:
        consumer.close()
    yield _to_arrow(receipts)


class _StallWatch:
    def __init__(self) -> None:
        self._floor = -1
        self._since = time.monotonic()

    def check(self, topic: str, pipeline: EventPipeline, offsets: OffsetRange) -> None:
        floor = pipeline.progress[offsets.partition].floor
        if floor != self._floor:
            self._floor, self._since = floor, time.monotonic()
        elif time.monotonic() - self._since > STALL_SECONDS:
            fault = pipeline.writer.last_error or pipeline.dead_letters.last_error or "Kafka sends no more messages"
            raise WritetimeError(
                f"{topic}/{offsets.partition}@{floor}: nothing done for {STALL_SECONDS:.0f} s: {fault}"
            )


def _read(topic: str, consumer: Consumer, pipeline: EventPipeline, offsets: OffsetRange, room: int) -> None:
    progress = pipeline.progress[offsets.partition]
    if progress.next_offset >= offsets.end:
        return
    for message in consumer.consume(room, 0 if pipeline.unfinished else _IDLE_SECONDS):
        error = message.error()
        if error is None or error.code() == KafkaError._PARTITION_EOF:
            _, offset = place_of(message)
            if error is not None or offset >= offsets.end:
                progress.reach(min(offset, offsets.end))
            else:
                pipeline.take(message)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET or error.fatal():
            raise WritetimeError(f"{topic}/{offsets.partition} cannot be read: {error.str()}")


def _to_arrow(receipts: list[Receipt]) -> pa.RecordBatch:
    columns = {name: [getattr(r, name) for r in receipts] for name in RECEIPT_SCHEMA.names}
    columns["event_id"] = [event_id and str(event_id) for event_id in columns["event_id"]]
    return pa.RecordBatch.from_pydict(columns, RECEIPT_SCHEMA)
