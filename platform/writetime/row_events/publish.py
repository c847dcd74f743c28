"""Publishes the stream of row events from the lake to the topic `row_events.<keyspace>.<table>`.

Events are published after their commit to the lake, so they never change. They are sent in Kafka transactions, each
with its position in the stream, as the offset of a consumer group. A killed publisher leaves a transaction that no
consumer reads, and the next one continues from the last committed position. Of two publishers at once, the broker
accepts only the later one. So a consumer with `isolation.level=read_committed` gets each event once, in order of each
row. If the broker drops the group (after an idle week, by its defaults), the lake's own record is at most one run
behind, and a repeated event has the same id.

A position also has the generation of the stream and a mark of its batch. So a stream that replaces a lost one is
published from its start, and a lake that was restored to an earlier state is detected. The lake's record is by the id
of the topic, so that a lost topic is detected, too.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from writetime.clients.consumer_groups import committed, note_of_topic, require_same_topic, topic_of_note
from writetime.clients.kafka import (
    TIMEOUT_SECONDS,
    client_config,
    end_offsets,
    ensure_topics,
    max_message_bytes,
    messages_between,
    partitions_of,
    topic_ids,
)
from writetime.clients.schema_registry import SchemaRefused
from writetime.clients.topic_options import Keeps, command_to_set, lossy_faults
from writetime.core.arrow import pc
from writetime.core.config import Settings
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError
from writetime.delta.bucketed_table import Conflict
from writetime.delta.buckets import buckets_of, partition_of_bucket
from writetime.delta.parquet import conform, open_file, read_file
from writetime.delta.storage import Storage
from writetime.delta.versions import TableVersion
from writetime.lake.projection import ROW_EVENTS
from writetime.lake.table import LakeTable
from writetime.row_events.events import ERASE, event_schema
from writetime.row_events.json_messages import JsonMessages, deletes
from writetime.row_events.messages import encode_events, event_avro, lacking_keys
from writetime.row_events.stream import has_other_table
from writetime.row_events.stream_files import FIRST, batch_files, merged_to, read_to
from writetime.schema.table import TableSchema
from writetime.wire.publishing import Sender, ensure_schemas_topic
from writetime.wire.topic_names import row_events_topic

log = logging.getLogger(__name__)

PUBLISHED = "row_events/published"
# A message is at most this large (bytes, not compressed): twice the largest change, as an UPDATE has two images.
MAX_MESSAGE_BYTES = 128 << 20
# Bytes of a message without its key and value: Kafka's overhead for a message that is alone in its batch, and a margin.
_ENVELOPE_BYTES = 1024
# Approximate number of events, and of their bytes, per transaction: it ends at the end of a part.
TRANSACTION_EVENTS = 50_000
_TRANSACTION_BYTES = 128 << 20
RECORD_SECONDS = 60.0
"""How often a running publisher records its position in the lake, in case the broker drops the group."""

# The errors of a producer after another one with its transactional id has started.
_FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})


class PublisherFenced(Conflict):
    """Another publisher of the table has started since. A new one continues from the last committed position."""


@dataclass(frozen=True)
class PartLimits:
    """The most events that are sent together, and the most bytes of several in Arrow."""

    events: int = 10_000
    size: int = 32 << 20


_LIMITS = PartLimits()


@dataclass(frozen=True, order=True)
class Reached:
    """A position in the stream: a batch, and the number of its events before the position."""

    sequence: int
    events: int


@dataclass(frozen=True)
class Published:
    """The published position in the stream of a generation. `mark` shows whether the lake has the same batch: it is the
    time of the batch (microseconds), or, within the base, the last batch of the base.
    """

    reached: Reached
    generation: int
    mark: int

    @classmethod
    def of_offset(cls, offset: TopicPartition, topic_id: int) -> "Published | None":
        """Read a position from the offset of the group; None if there is none of the topic with this id."""
        if offset.offset < 0:
            return None
        note, _, place = (offset.metadata or "0/0/0").rpartition(" ")
        if topic_of_note(note) not in (0, topic_id):
            return None
        events, generation, mark = map(int, place.split("/"))
        return cls(Reached(offset.offset, events), generation, mark)

    def offset(self, topic: str, topic_id: int) -> TopicPartition:
        """Return the position as an offset of the group, with the id of the topic that has the events."""
        place = f"{note_of_topic(topic_id)} {self.reached.events}/{self.generation}/{self.mark}"
        return TopicPartition(topic, 0, self.reached.sequence, place.strip())


ForNewTopic = Literal["all", "later"]
"""The events for a new topic, which is not the one that was published to before: all events in the lake, or only those
that are not published yet.
"""


def publish(settings: Settings, table: LakeTable, for_new_topic: ForNewTopic | None = None) -> int:
    """Publish the events of the stream that are not in Kafka yet; return how many they were.

    Raises:
        PublisherFenced: another publisher of the table has started since.
        WritetimeError: the broker refuses a request; an event is larger than the topic allows; the topic is not the one
            that was published to before, and `for_new_topic` is not given; or the topic has events of a batch that the
            stream does not have.
    """
    with EventPublisher(settings, table.name, for_new_topic) as publisher:
        return publisher.publish(table)


def published_since(settings: Settings, table: str, starts: Mapping[int, int], expected: int) -> int:
    """Count the events that a reader of committed messages gets from these offsets on (0 if none is given). Wait a
    short time for the expected number, because the broker confirms a transaction before readers see it.
    """
    topic, found, reached = row_events_topic(table), 0, dict(starts)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        ends = end_offsets(settings, topic)
        begins = {p: reached.get(p, 0) for p in ends}
        # A tombstone follows an event.
        found += sum(m.value() is not None for m in messages_between(settings, topic, begins, ends))
        if found >= expected or time.monotonic() > deadline:
            return found
        # Messages before a start may become readable later, so an end may be before it.
        reached = {p: max(begins[p], end) for p, end in ends.items()}
        time.sleep(0.1)


def not_published(table: LakeTable) -> int:
    """Count the events of the lake that it does not record as published."""
    stream = table.row_events.load()
    done = stream.transaction(PUBLISHED) or 0
    files = [file for last, file in batch_files(stream) if last > done]
    fields = pa.schema([("sequence", pa.int64())])
    found = [read_file(table.row_events.storage, file.path, fields)["sequence"] for file in files]
    return sum(pc.sum(pc.greater(numbers, done)).as_py() or 0 for numbers in found)


class EventPublisher(Sender):
    """Publishes the events of one table, on each call; a transaction is open from the first event to the commit."""

    def __init__(
        self, settings: Settings, table: str, for_new_topic: ForNewTopic | None = None, limits: PartLimits = _LIMITS
    ) -> None:
        """Take over from any other publisher of the table. `for_new_topic` is as in `publish`, and `limits` are the
        limits of the parts. If the broker refuses a request, a `WritetimeError` is raised.
        """
        self._settings = settings
        self._topic = row_events_topic(table)
        self._group = f"writetime-{self._topic}"
        self._what = f"row events cannot be published to {self._topic}"
        options = {"max.message.bytes": str(MAX_MESSAGE_BYTES)}
        ensure_topics(settings, {self._topic: options}, settings.row_events.partitions)
        if lossy := lossy_faults(settings, {self._topic: Keeps.CHOSEN}, log):
            raise WritetimeError("; ".join(map(str, lossy)))
        if settings.row_events.format == "avro":
            ensure_schemas_topic(settings)
        own: dict[str, Any] = {"transactional.id": self._group, "message.max.bytes": MAX_MESSAGE_BYTES}
        super().__init__(settings, self._what, **own)
        # It ends the open transaction of an earlier publisher, and fences that publisher.
        self.do(self._producer.init_transactions, TIMEOUT_SECONDS)
        self._partitions = len(partitions_of(settings, self._topic))
        # The lake's record of the events in this topic.
        self._topic_id = topic_ids(settings, [self._topic])[self._topic]
        self._record_name = f"{PUBLISHED}/{self._topic_id}"
        # Not known yet: the first event requests it.
        self._max_bytes = 0
        self._for_new_topic = for_new_topic
        self._limits = limits
        own = {"group.id": self._group, "enable.auto.commit": False, "isolation.level": "read_committed"}
        with closing(Consumer(client_config(settings, **own))) as consumer:
            # The position that the last committed transaction reached, if the broker knows it.
            (found,) = committed(settings, consumer, self._group, [TopicPartition(self._topic, 0)])
            self._member = consumer.consumer_group_metadata()
        self._published = Published.of_offset(found, self._topic_id)
        self._is_checked = self._published is None
        self._table: LakeTable | None = None
        self._recorded = time.monotonic()
        self._schema: TableSchema | None = None
        # The remaining events and their encoding, while a call has not published all.
        self._rest: Iterator[tuple[Reached, pa.RecordBatch]] | None = None
        self._read_to = 0
        self._base = 0
        # The starts of messages as Avro, by whether all their key columns are nullable, and whether all messages have
        # nullable ones.
        self._headers: dict[bool, bytes] = {}
        self._null_keys: bool | None = None
        self._json: JsonMessages | None = None
        self._is_open = False
        self._open = self._open_bytes = 0

    @property
    def has_more(self) -> bool:
        """Return whether the last call left events for the next one."""
        return self._rest is not None

    @property
    def is_record_due(self) -> bool:
        """Return whether the lake should record the published position by now. The next call does so, even if there is
        nothing else to publish.
        """
        return self._table is not None and time.monotonic() > self._recorded + RECORD_SECONDS

    def publish(self, table: LakeTable, most: int | None = None) -> int:
        """Publish the events of the stream that are not in Kafka yet; return their number. With `most`, the call ends
        soon after this number of events, and the next call continues. After an error, discard this publisher.

        Raises:
            PublisherFenced: another publisher of the table has started since.
            WritetimeError: the broker refuses a request, or an event is larger than the topic allows.
        """
        if has_other_table(table):
            # The next batch takes their place.
            self._rest = None
            return 0
        try:
            return self._publish(table, most)
        except BaseException:
            if self._is_open:
                # Otherwise the broker would end the transaction after its timeout, and readers would wait for that.
                with suppress(KafkaException):
                    self._producer.abort_transaction(TIMEOUT_SECONDS)
            raise

    def _publish(self, table: LakeTable, most: int | None) -> int:
        had_more = self.has_more
        if not had_more:
            stream, schema = table.row_events.load(), table.schema()
            if schema != self._schema:
                self._schema, self._headers, self._null_keys, self._json = schema, {}, None, None
            self._read_to, self._base = read_to(stream), merged_to(stream)
            start = self._start(table, stream)
            self._rest = _parts(stream, table.row_events.storage, schema, start, self._limits)
        assert self._rest is not None
        assert self._schema is not None
        count = 0
        for reached, part in self._rest:
            self._send(part, self._schema, table.buckets, reached)
            count += part.num_rows
            if most is not None and count >= most:
                break
        else:
            self._rest = None
        self._commit()
        if count or had_more:
            # The call before may have recorded its position, without the last batch, and left no event to this one.
            self._table = table
        if self.is_record_due or (had_more and not self.has_more):
            self.record()
        return count

    def __enter__(self) -> "EventPublisher":
        return self

    def __exit__(self, fault: type[BaseException] | None, *_: object) -> None:
        if fault is None:
            self.record()

    def _start(self, table: LakeTable, stream: TableVersion) -> Reached:
        """Return the position in the stream to continue from. Raise `WritetimeError` if the topic has batches that the
        stream does not have, or lacks batches that were published.
        """
        generation = stream.transaction(ROW_EVENTS.named("generation")) or 0
        was = self._published
        if was is None:
            return self._recorded_start(table, stream)
        if generation > was.generation:
            # All of it is new.
            return Reached(0, 0)
        if generation < was.generation or not (self._is_checked or _has_batch(table, stream, was)):
            raise WritetimeError(
                f"{self._topic} has events up to batch {was.reached.sequence}, which is not a batch of the lake's "
                "stream: the lake was lost, or is back at an earlier state. Begin the stream again with `writetime "
                f"rebuild {table.name} row_events`"
            )
        if not self._is_checked and (stream.transaction(self._record_name) or 0) < was.reached.sequence:
            # An earlier publisher was killed before it recorded this, and maybe nothing is left to publish.
            self._table = table
        self._is_checked = True
        # If the base is another one by now, it is published again.
        return was.reached if was.reached.sequence or was.mark == self._base else Reached(0, 0)

    def _recorded_start(self, table: LakeTable, stream: TableVersion) -> Reached:
        """Return the position in the lake's record, because the broker has none."""
        here, published = stream.transaction(self._record_name), stream.transaction(PUBLISHED) or 0
        if here is not None:
            return Reached(here + 1, 0)
        if published < (stream.transaction(FIRST) or 1):
            return Reached(0, 0)
        if self._for_new_topic is None:
            raise WritetimeError(
                f"{self._topic} is not the topic that has the events up to batch {published}: Kafka's data was lost, "
                f"or the topic was deleted. Publish all events that the lake has with `writetime publish {table.name} "
                "--new-topic all`, or only the later ones with `--new-topic later`"
            )
        # Recorded at once, so that another publisher continues even if this one publishes nothing. Events that a new
        # topic lacks no longer count as published, so that they are not merged before the topic has them (`trimming`).
        done = -1 if self._for_new_topic == "all" else published
        table.row_events.append([], self._record_name, done, {PUBLISHED: done})
        return Reached(done + 1, 0)

    def record(self) -> None:
        """Record in the lake the last batch that the topic has completely."""
        if self._table is not None:
            assert self._published is not None
            # While a call has left events, the last batch may have some of them.
            done, stream = self._published.reached.sequence - self.has_more, self._table.row_events
            most = max(done, stream.load().transaction(PUBLISHED) or 0)
            stream.append([], self._record_name, done, {PUBLISHED: most})
        self._table, self._recorded = None, time.monotonic()

    def _send(self, events: pa.RecordBatch, schema: TableSchema, buckets: int, reached: Reached) -> None:
        """Send events, after which the position in the stream is `reached`. Erased ones are left out."""
        is_erased = pc.equal(events["kind"], ERASE)
        # A copy of all would take time.
        left = events.filter(pc.invert(is_erased)) if pc.any(is_erased).as_py() else events
        if left.num_rows:
            self._send_left(left, schema, buckets)
        mark = events["as_of"].cast(pa.int64())[-1].as_py() if reached.sequence else self._base
        self._published = Published(reached, events["generation"][-1].as_py(), mark)
        if self._open >= TRANSACTION_EVENTS or self._open_bytes >= _TRANSACTION_BYTES:
            self._commit()

    def _send_left(self, events: pa.RecordBatch, schema: TableSchema, buckets: int) -> None:
        keys, values = self._encoded(events, schema)
        self._check_sizes(events, schema, keys, values)
        if not self._is_open:
            self.do(self._producer.begin_transaction)
            self._is_open = True
        partitions = partition_of_bucket(buckets_of(events["token"], buckets), buckets, self._partitions).tolist()
        with_tombstone = deletes(events) & self._settings.row_events.tombstones
        for key, value, partition, is_deleted in zip(keys, values, partitions, with_tombstone.tolist(), strict=True):
            self.produce(self._topic, value, key, partition)
            if is_deleted:
                self.produce(self._topic, None, key, partition)
        self._open += events.num_rows
        self._open_bytes += sum(map(len, values))

    def _check_sizes(
        self, events: pa.RecordBatch, schema: TableSchema, keys: Sequence[bytes], values: Sequence[bytes]
    ) -> None:
        """Raise a `WritetimeError` if a message of these events is larger than the topic allows."""
        if max(map(len, keys)) + max(map(len, values)) + _ENVELOPE_BYTES <= self._max_bytes:
            return
        # The limit may have been raised since.
        limit = max_message_bytes(self._settings, self._topic)
        self._max_bytes = min(limit, MAX_MESSAGE_BYTES)
        sizes = [len(key) + len(value) + _ENVELOPE_BYTES for key, value in zip(keys, values, strict=True)]
        largest = int(np.argmax(sizes))
        if sizes[largest] <= self._max_bytes:
            return
        row = JsonMessages(schema, flat=True, with_schema=False).keys(events.slice(largest, 1))[0]
        if limit < MAX_MESSAGE_BYTES:
            remedy = command_to_set(self._settings, self._topic, "max.message.bytes", str(MAX_MESSAGE_BYTES))
            remedy = f"raise its max.message.bytes, such as with {remedy}"
        else:
            remedy = (
                "make the row smaller or delete it, and when the lake has that, run `writetime rebuild "
                f"{schema.full_name} row_events`"
            )
        raise WritetimeError(
            f"{schema.full_name}: the event of the row {row} is a message of "
            f"{pluralize(sizes[largest], 'byte', ',')}, and {self._topic} takes {self._max_bytes:,}: {remedy}"
        )

    def _encoded(self, events: pa.RecordBatch, schema: TableSchema) -> tuple[list[bytes], list[bytes]]:
        """Return the keys and the values of messages."""
        wanted = self._settings.row_events
        if wanted.format == "avro":
            return events["key"].to_pylist(), self._avro(events, schema)
        if self._json is None:
            self._json = JsonMessages(schema, flat=wanted.format == "flat", with_schema=wanted.json_schemas)
        made = self._json.keys(events), self._json.values(events, self._read_to)
        keys, values = (texts.cast(pa.large_binary()).to_pylist() for texts in made)
        return keys, values

    def _avro(self, events: pa.RecordBatch, schema: TableSchema) -> list[bytes]:
        """Return the values of messages as Avro."""
        if self._null_keys is None:
            self._null_keys = not self._takes_required_keys(schema)
        lacking = lacking_keys(events, schema) | self._null_keys
        values = np.empty(len(events), object)
        for null_keys in np.unique(lacking).tolist():
            own = lacking == null_keys
            header = self._header(schema, null_keys=null_keys)
            encoded = encode_events(events.filter(pa.array(own)), schema, header, null_keys=null_keys)
            values[own] = encoded.to_pylist()
        return values.tolist()

    def _takes_required_keys(self, schema: TableSchema) -> bool:
        """Return whether a registry, if there is one, takes the schema with required keys. If the topic has an earlier
        schema with nullable keys, it only takes others with nullable keys.
        """
        try:
            self._header(schema, null_keys=False)
        except SchemaRefused:
            with suppress(SchemaRefused):
                self._header(schema, null_keys=True)
                return False
            raise
        return True

    def _header(self, schema: TableSchema, *, null_keys: bool) -> bytes:
        """Return the start of messages, after their schema was published."""
        if null_keys not in self._headers:
            # The topic of the schemas is shared by all tables. A schema in a transaction would hide all later
            # messages from readers, including those of other tables, until the transaction ends.
            # It gives up in time, as nothing else of the table goes on meanwhile, not even the end of the program.
            schemas = Sender(self._settings, self._what, **{"message.timeout.ms": round(TIMEOUT_SECONDS * 1000)})
            avro = event_avro(schema, null_keys=null_keys)
            self._headers[null_keys] = schemas.register(self._topic, avro, "BACKWARD_TRANSITIVE")
            schemas.flush()
        return self._headers[null_keys]

    def _refused(self, error: KafkaError, topic: str = "") -> WritetimeError:
        if error.code() == KafkaError._FATAL:
            # It hides the first error, which each later call about a transaction has.
            try:
                self._producer.begin_transaction()
            except KafkaException as e:
                error = e.args[0]
        if error.code() in _FENCED:
            return PublisherFenced(f"{self._what}: another publisher of the table has started since")
        return super()._refused(error, topic)

    def _commit(self) -> None:
        """End the open transaction, if there is one."""
        if not self._is_open:
            return
        assert self._published is not None
        require_same_topic(self._settings, self._topic, self._group, [self._topic_id])
        place = self._published.offset(self._topic, self._topic_id)
        self.do(self._producer.send_offsets_to_transaction, [place], self._member, TIMEOUT_SECONDS)
        self.do(self._producer.commit_transaction)
        self._is_open, self._open, self._open_bytes = False, 0, 0


def _parts(
    stream: TableVersion, storage: Storage, schema: TableSchema, start: Reached, limits: PartLimits = _LIMITS
) -> Iterator[tuple[Reached, pa.RecordBatch]]:
    """Yield the events of the stream from a position on, each part with the position after it. The base counts as the
    batch 0: its events are not in the order of their batches.
    """
    wanted = event_schema(schema)
    base = merged_to(stream)
    sequence = done = 0
    for last, file in batch_files(stream):
        number = 0 if last <= base else last
        if number < start.sequence:
            continue
        with open_file(storage, file.path) as opened:
            for own, part in _parts_of(opened, limits, own_batches=bool(number)):
                before = done if own == sequence else 0
                sequence, done = own, before + part.num_rows
                if Reached(sequence, done) <= start:
                    continue
                skipped = max(start.events - before, 0) if sequence == start.sequence else 0
                table = conform(pa.Table.from_batches([part.slice(skipped)]), wanted, file.path)
                yield Reached(sequence, done), table.combine_chunks().to_batches()[0]


def _parts_of(file: pq.ParquetFile, limits: PartLimits, *, own_batches: bool) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the events of a file in parts of one batch each, with its number; or of any batches, as those of 0."""
    for group in range(file.num_row_groups):
        found = file.metadata.row_group(group)
        rows = max(min(limits.events, limits.size * found.num_rows // max(found.total_byte_size, 1)), 1)
        for several in file.iter_batches(rows, row_groups=[group]):
            for number, part in _by_batch(several) if own_batches else [(0, several)]:
                for small in _bounded(part, limits.size):
                    yield number, small


def _bounded(events: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """Yield events in parts of at most `most` bytes, or of one event."""
    if events.nbytes <= most or events.num_rows == 1:
        yield events
        return
    half = events.num_rows // 2
    yield from _bounded(events.slice(0, half), most)
    yield from _bounded(events.slice(half), most)


def _has_batch(table: LakeTable, stream: TableVersion, published: Published) -> bool:
    """Return whether the stream has the batch of a position. The events of the base do not show that."""
    sequence = published.reached.sequence
    if sequence <= merged_to(stream):
        return True
    file = next((file for last, file in batch_files(stream) if last >= sequence), None)
    if file is None:
        return False
    fields = pa.schema([("sequence", pa.int64()), ("as_of", pa.timestamp("us", "UTC"))])
    found = read_file(table.row_events.storage, file.path, fields)
    times = found.filter(pc.equal(found["sequence"], sequence))["as_of"].cast(pa.int64())
    return bool(len(times)) and times[0].as_py() == published.mark


def _by_batch(events: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the events of each batch, with its number."""
    numbers = events["sequence"].to_numpy()
    starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist()]
    for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
        yield int(numbers[start]), events.slice(start, end - start)
