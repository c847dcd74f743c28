"""Publishes changes to the topics `changes.<keyspace>.<table>`.

A message's key is the partition key as serialised, its Kafka partition the one of the key's bucket (as that of row
events), so a topic's partitions and the lake's buckets are the same ranges of tokens. The producer is idempotent: the
changes of one key stay in order.
"""

import threading

import pyarrow as pa

from writetime.capture import watermarks
from writetime.capture.avro import ChangeEncoder
from writetime.config import Settings
from writetime.errors import WritetimeError
from writetime.kafka import ensure_topics, partitions_of
from writetime.lake.buckets import buckets_of, partition_of_bucket
from writetime.publishing import Sender, ensure_schemas_topic
from writetime.schema.table import TableSchema

# A mutation is at most half of a segment, and Avro may take some more bytes for the same.
MAX_MESSAGE_BYTES = 64 << 20


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
        self._tables: dict[TableSchema, tuple[ChangeEncoder, str, int]] = {}
        self._marked = False

    def announce(self, schema: TableSchema) -> None:
        """Have the topic of a table, and its schema in the topic of the schemas, even if no change comes.

        Raises:
            WritetimeError: Kafka refuses it.
        """
        self._table(schema)

    def send(self, schema: TableSchema, changes: pa.RecordBatch) -> int:
        """Hand over changes of a table, in order; return how many messages they are.

        Raises:
            WritetimeError: Kafka refuses them, or something that was handed over before.
        """
        encoder, topic, partitions = self._table(schema)
        messages = encoder.encode(changes).to_pylist()
        buckets = self._settings.lake.buckets
        chosen = partition_of_bucket(buckets_of(changes["token"], buckets), buckets, partitions).tolist()
        return self._sender.produce_all(topic, messages, changes["key"].to_pylist(), chosen)

    def mark(self, node: str, marks: watermarks.NodeMarks) -> None:
        """Say how far a node is published, in the topic of the watermarks.

        Raises:
            WritetimeError: Kafka refuses it, or something that was handed over before.
        """
        if not self._marked:
            watermarks.ensure_watermarks_topic(self._settings)
            self._marked = True
        watermarks.send(self._sender, node, marks)

    def flush(self, stop: threading.Event | None = None) -> bool:
        """Wait until all is acknowledged; return whether it is, False only if it is to stop."""
        return self._sender.flush(stop)

    def _table(self, schema: TableSchema) -> tuple[ChangeEncoder, str, int]:
        found = self._tables.get(schema)
        if found is None:
            topic = topic_of(schema.full_name)
            ensure_schemas_topic(self._settings)
            options = {"max.message.bytes": str(MAX_MESSAGE_BYTES)}
            ensure_topics(self._settings, {topic: options}, self._settings.capture.partitions)
            encoder = ChangeEncoder(schema)
            self._sender.register(encoder.avro)
            # A message must not be there before the schema that it names.
            if not self._sender.flush():
                raise WritetimeError(f"the schema of {schema.full_name} was not acknowledged")
            found = encoder, topic, len(partitions_of(self._settings, topic))
            self._tables[schema] = found
        return found
