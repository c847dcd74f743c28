"""Publishes changes to the topics `changes.<keyspace>.<table>`.

A message's key is the partition key as serialised, its Kafka partition the one of the key's bucket (as that of row
events), so a topic's partitions and the lake's buckets are the same ranges of tokens. The producer is idempotent: the
changes of one key stay in order.
"""

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import pyarrow as pa

from writetime.capture import watermarks
from writetime.capture.avro import ChangeEncoder, change_avro
from writetime.config import Settings
from writetime.errors import WritetimeError
from writetime.kafka import ensure_topics, max_message_bytes, partitions_of, topic_names
from writetime.lake.buckets import buckets_of, partition_of_bucket
from writetime.merge.arrow import pc
from writetime.publishing import Sender, ensure_schemas_topic
from writetime.registry import SchemaRefused
from writetime.schema.table import TableSchema

# A mutation is at most half of a segment, and Avro may take some more bytes for the same.
MAX_MESSAGE_BYTES = 64 << 20
# Of a message, beside its key and value: what Kafka puts around one that is alone in its batch, and some more.
_ENVELOPE_BYTES = 1024
_ASK_AGAIN_SECONDS = 60.0


class Unpublishable(WritetimeError):
    """A change that Kafka or the schema registry will not take, however often it is sent."""


@dataclass(frozen=True)
class Sent:
    """The changes that were handed over, and why the others of them were not, if there are others."""

    changes: pa.RecordBatch
    refused: str | None = None

    def all(self) -> int:
        """Return how many changes were handed over.

        Raises:
            Unpublishable: there are others.
        """
        if self.refused is not None:
            raise Unpublishable(self.refused)
        return self.changes.num_rows


@dataclass(frozen=True)
class _Topic:
    """Where the changes of one schema of a table go."""

    name: str
    partitions: int
    max_bytes: int
    encoder: ChangeEncoder


def topic_of(table: str) -> str:
    """Return the topic of the changes of `keyspace.table`."""
    return f"changes.{table}"


class ChangePublisher:
    """Sends changes; what was sent is safe once `flush` has returned True."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sender = Sender(
            settings,
            "changes cannot be published",
            **{
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.max.bytes": MAX_MESSAGE_BYTES,
                # What is not acknowledged yet is waited for as long as it takes, not given up.
                "message.timeout.ms": 0,
                "queue.buffering.max.messages": 10_000_000,
                "queue.buffering.max.kbytes": 1 << 20,
                # zstd takes more CPU than all the rest; the changes of one table are much alike.
                "compression.type": "lz4",
            },
        )
        self._topics: dict[TableSchema, _Topic] = {}
        # What the registry refused, and when it is asked again.
        self._refused: dict[TableSchema, tuple[SchemaRefused, float]] = {}
        self._marked = False

    def announce(self, schema: TableSchema) -> None:
        """Have the topic of a table, and its schema in the topic of the schemas, even if no change comes.

        Raises:
            SchemaRefused: the registry refuses the schema.
            WritetimeError: Kafka refuses it.
        """
        self._topic(schema)

    def announce_all(self, schemas: Iterable[TableSchema]) -> list[SchemaRefused]:
        """Announce captured tables; with `capture.snapshot = "never"` those only that have a topic, as others get
        theirs with the first change. Return why the registry refuses schemas, if it does.

        Raises:
            WritetimeError: Kafka refuses one.
        """
        there = set(topic_names(self._settings)) if self._settings.capture.snapshot == "never" else None
        refused = []
        for schema in schemas:
            if there is None or topic_of(schema.full_name) in there:
                try:
                    self.announce(schema)
                except SchemaRefused as e:
                    refused.append(e)
        return refused

    def send(self, schema: TableSchema, changes: pa.RecordBatch) -> Sent:
        """Hand over changes of a table, in order; return those that were, without any that are too large or of a schema
        that is refused.

        Raises:
            WritetimeError: Kafka refuses them, or something that was handed over before.
        """
        try:
            topic = self._topic(schema)
        except SchemaRefused as e:
            return Sent(changes.slice(0, 0), str(e))
        messages, refused = topic.encoder.encode(changes), None
        sizes = pc.add(pc.binary_length(messages), pc.binary_length(changes["key"]))
        largest = pc.max(sizes).as_py() or 0
        if largest > topic.max_bytes - _ENVELOPE_BYTES:
            # It may have been raised since.
            topic = self._topics[schema] = replace(topic, max_bytes=self._max_bytes(topic.name))
            fitting = pc.less_equal(sizes, topic.max_bytes - _ENVELOPE_BYTES)
            if not pc.all(fitting).as_py():
                refused = (
                    f"{schema.full_name}: a change of {largest} bytes is more than the {topic.max_bytes} bytes of a "
                    f"message that the topic {topic.name} takes (max.message.bytes)"
                )
                changes, messages = changes.filter(fitting), messages.filter(fitting)
        buckets = self._settings.lake.buckets
        chosen = partition_of_bucket(buckets_of(changes["token"], buckets), buckets, topic.partitions).tolist()
        self._sender.produce_all(topic.name, messages.to_pylist(), changes["key"].to_pylist(), chosen)
        return Sent(changes, refused)

    def mark(self, source: str, marks: watermarks.SourceMarks) -> None:
        """Say how far a source is published, in the topic of the watermarks.

        Raises:
            WritetimeError: Kafka refuses it, or something that was handed over before.
        """
        if not self._marked:
            watermarks.ensure_watermarks_topic(self._settings)
            self._marked = True
        watermarks.send(self._sender, source, marks)

    def flush(self, stop: threading.Event | None = None) -> bool:
        """Wait until all is acknowledged; return whether it is, False only if it is to stop."""
        return self._sender.flush(stop)

    def _topic(self, schema: TableSchema) -> _Topic:
        found = self._topics.get(schema)
        if found is None:
            refused, until = self._refused.get(schema, (None, 0.0))
            if refused is not None and time.monotonic() < until:
                raise refused
            name = topic_of(schema.full_name)
            ensure_schemas_topic(self._settings)
            options = {"max.message.bytes": str(MAX_MESSAGE_BYTES)}
            ensure_topics(self._settings, {name: options}, self._settings.capture.partitions)
            try:
                header = self._sender.register(name, change_avro(schema), "FULL_TRANSITIVE")
            except SchemaRefused as e:
                self._refused[schema] = e, time.monotonic() + _ASK_AGAIN_SECONDS
                raise
            # A message must not be there before the schema that it names.
            if not self._sender.flush():
                raise WritetimeError(f"the schema of {schema.full_name} was not acknowledged")
            partitions = len(partitions_of(self._settings, name))
            found = _Topic(name, partitions, self._max_bytes(name), ChangeEncoder(schema, header))
            self._topics[schema] = found
        return found

    def _max_bytes(self, topic: str) -> int:
        return min(max_message_bytes(self._settings, topic), MAX_MESSAGE_BYTES)
