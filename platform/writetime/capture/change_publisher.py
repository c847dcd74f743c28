"""Publishes changes to the topics `changes.<keyspace>.<table>`.

A message's key is the serialised partition key, and its Kafka partition is that of the key's bucket, as for row events.
So a topic's partitions and the lake's buckets are the same token ranges. The producer is idempotent: the changes of one
key stay in order.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

import pyarrow as pa

from writetime.capture.replicas import Message
from writetime.clients.kafka import ensure_topics, max_message_bytes, partitions_of, topic_names
from writetime.clients.schema_registry import SchemaRefused
from writetime.clients.topic_options import Keeps, lossy_faults
from writetime.core.arrow import pc
from writetime.core.config import Settings
from writetime.core.counts import pluralize
from writetime.core.errors import Transient, WritetimeError, reason_of
from writetime.delta.buckets import buckets_of, partition_of_bucket
from writetime.schema.table import TableSchema
from writetime.wire import watermarks
from writetime.wire.change_messages import ChangeEncoder, change_avro
from writetime.wire.publishing import RefusedMessage, Sender, ensure_schemas_topic
from writetime.wire.topic_names import changes_topic

log = logging.getLogger(__name__)

# A mutation has at most the size of half a segment, and its Avro form may need some more bytes.
MAX_MESSAGE_BYTES = 64 << 20
# Bytes of a message without its key and value: Kafka's overhead for a message that is alone in its batch, and a margin.
_ENVELOPE_BYTES = 1024
_ASK_AGAIN_SECONDS = 60.0
# The number of refusals of a topic before its changes are set aside, and Kafka's limit for the length of a topic name.
_REFUSALS = 3
_LONGEST_NAME = 249


_Choose = Callable[[pa.Array, Sequence[Message], Sequence[int]], list[Message]]
Choose = Callable[[TableSchema, pa.Array, Sequence[Message], Sequence[int]], list[Message]]
"""Chooses the messages of a table's changes that are sent now: see `Sharing.choose`."""


class Unpublishable(WritetimeError):
    """A change that Kafka or the schema registry always rejects."""


@dataclass(frozen=True)
class Sent:
    """The changes that were handed over. If others were not, the reason."""

    changes: pa.RecordBatch
    refused: str | None = None

    def all(self) -> int:
        """Return the number of changes if all were handed over; else raise Unpublishable."""
        if self.refused is not None:
            raise Unpublishable(self.refused)
        return self.changes.num_rows


@dataclass
class Refusals:
    """Refusals of a topic by Kafka: their number in a row, the reason, and the time of the next attempt."""

    count: int = 0
    reason: str = ""
    ask_again: float = 0.0

    def set_aside(self) -> str | None:
        """Return the reason if changes of the topic are not sent now; else None."""
        is_refused = self.count >= _REFUSALS and time.monotonic() < self.ask_again
        return self.reason if is_refused else None


_Announced = tuple[TableSchema, UUID | None, int]


def _announced(schema: TableSchema) -> _Announced:
    """Return the key of the announcement of a schema. Schemas with equal columns are equal. But a table that was
    dropped and created again with the same columns is another one for the lake, so the key also has the id.
    """
    return schema, schema.id, schema.gc_grace_seconds


@dataclass(frozen=True)
class Destination:
    """The destination of the changes of one schema of a table."""

    name: str
    partitions: int
    max_bytes: int
    encoder: ChangeEncoder


def check_publishable(schema: TableSchema) -> None:
    """Build the Avro schema of a table's changes, and check the name of their topic. Raise a WritetimeError if Kafka
    would reject the name, or the schema has another fault.
    """
    change_avro(schema)
    name = changes_topic(schema.full_name)
    if len(name) > _LONGEST_NAME:
        raise WritetimeError(
            f"the topic {name} would have a name of {len(name)} characters, and Kafka allows {_LONGEST_NAME}: its "
            "changes cannot be published under the names of its keyspace and table"
        )


class ChangePublisher:
    """Sends changes. Changes that were sent are safe once `flush` has returned True.

    `refusals` are those that an earlier publisher met. `before_schema` hands over the mark with the id of a schema's
    table. It is called before the schema is handed over, so both are in Kafka before a change with that schema. Landing
    discards changes of a source whose mark has the id of an earlier table. `stop` ends the wait for the acknowledgement
    of a schema. Without it, the wait ends once the broker has acknowledged nothing for a while.
    """

    def __init__(
        self,
        settings: Settings,
        refusals: dict[str, Refusals] | None = None,
        before_schema: Callable[[TableSchema], None] | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self._settings = settings
        self._stop = stop
        self._before_schema = before_schema
        # By topic. After a refusal of one topic, a new publisher tries again, so the refusal stops no other topic.
        self.refusals: dict[str, Refusals] = {} if refusals is None else refusals
        self._sent: set[str] = set()
        self._sender = Sender(
            settings,
            "changes cannot be published",
            **{
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.max.bytes": MAX_MESSAGE_BYTES,
                # The client does not give up a message; `flush` ends the wait for it.
                "message.timeout.ms": 0,
                "queue.buffering.max.messages": 10_000_000,
                "queue.buffering.max.kbytes": 1 << 20,
                # zstd takes more CPU than everything else, and the changes of one table are similar.
                "compression.type": "lz4",
            },
        )
        self._topics: dict[_Announced, Destination] = {}
        # Schemas that the registry refused, and the time of the next attempt.
        self._refused: dict[_Announced, tuple[SchemaRefused, float]] = {}
        self._marked = False

    def announce_all(self, schemas: Iterable[TableSchema], faults: Mapping[str, str]) -> list[str]:
        """Announce captured tables. With `capture.snapshot = "never"`, announce only those that have a topic, because
        others get theirs with the first change. Return the reasons why some cannot be announced, and the `faults` of
        tables that are not captured. Raise a WritetimeError if Kafka or the registry does not answer, or refuses
        changes that were handed over earlier.
        """
        there = set(topic_names(self._settings)) if self._settings.capture.snapshot == "never" else None
        refused: list[str] = []
        for schema in schemas:
            if there is None or changes_topic(schema.full_name) in there:
                try:
                    self.announce(schema)
                except (Transient, OSError, MemoryError):
                    raise
                except Exception as e:
                    # A fault of one table stops no other table.
                    refused.append(f"{schema.full_name} cannot be announced: {reason_of(e)}")
        return refused + [f"{table} is not captured: {fault}" for table, fault in faults.items()]

    def send(self, schema: TableSchema, changes: pa.RecordBatch, choose: Choose | None = None) -> Sent:
        """Hand over changes of a table, in order. Leave out those that are too large, cannot be encoded, or belong to a
        refused schema or topic. Return the changes that were handed over: with `choose`, to this function, and to
        Kafka those that it returns.

        Raises:
            RefusedMessage: Kafka or the registry refuses this topic, Kafka refuses a topic whose changes were handed
                over earlier, or this table has an unknown fault. Continue with `after`. After several refusals, its
                publisher hands over no changes of that topic for a while.
            WritetimeError: Kafka or the registry does not answer.
        """
        with _of_table(schema):
            topic, messages, sent = self._prepared(schema, changes)
            if topic is not None:
                self._produce(topic, messages, sent.changes, None if choose is None else partial(choose, schema))
            return sent

    def produce(self, messages: Iterable[Message]) -> None:
        """Hand over messages of changes, with the errors of `send`."""
        by_topic: dict[str, list[Message]] = {}
        for message in messages:
            by_topic.setdefault(message[0], []).append(message)
        for topic, found in by_topic.items():
            _, values, keys, partitions = zip(*found, strict=True)
            self._sender.produce_all(topic, list(values), list(keys), list(partitions))
            self._sent.add(topic)

    def check(self, schema: TableSchema, changes: pa.RecordBatch) -> None:
        """Raise Unpublishable if some changes could not be handed over, without doing so, or an error as `send`."""
        with _of_table(schema):
            _, _, sent = self._prepared(schema, changes)
        sent.all()

    def _prepared(self, schema: TableSchema, changes: pa.RecordBatch) -> tuple[Destination | None, pa.Array, Sent]:
        """Return the destination of changes (None if their topic or schema is refused), the messages of those that can
        be sent, and the result of `send`.
        """
        none = pa.array([], pa.binary())
        refusals = self.refusals.get(changes_topic(schema.full_name), Refusals())
        if (reason := refusals.set_aside()) is not None:
            return None, none, Sent(changes.slice(0, 0), reason)
        try:
            topic = self.announce(schema)
        except SchemaRefused as e:
            return None, none, Sent(changes.slice(0, 0), str(e))
        messages, changes, refused = _encoded(topic.encoder, schema, changes)
        sizes = pc.add(pc.binary_length(messages), pc.binary_length(changes["key"]))
        largest = pc.max(sizes).as_py() or 0
        if largest > topic.max_bytes - _ENVELOPE_BYTES:
            # The limit may have been raised since.
            with _of_topic(topic.name):
                topic = self._topics[_announced(schema)] = replace(topic, max_bytes=self._max_bytes(topic.name))
            fitting = pc.less_equal(sizes, topic.max_bytes - _ENVELOPE_BYTES)
            if not pc.all(fitting).as_py():
                refused = (
                    f"{schema.full_name}: a change has {pluralize(largest, 'byte')}, and the topic {topic.name} allows "
                    f"{topic.max_bytes} per message (max.message.bytes)"
                )
                changes, messages = changes.filter(fitting), messages.filter(fitting)
        return topic, messages, Sent(changes, refused)

    def _produce(self, topic: Destination, messages: pa.Array, changes: pa.RecordBatch, choose: _Choose | None) -> None:
        buckets = self._settings.lake.buckets
        chosen = partition_of_bucket(buckets_of(changes["token"], buckets), buckets, topic.partitions).tolist()
        values, keys = messages.to_pylist(), changes["key"].to_pylist()
        if choose is None:
            self._sender.produce_all(topic.name, values, keys, chosen)
            self._sent.add(topic.name)
        else:
            offered = [(topic.name, *message) for message in zip(values, keys, chosen, strict=True)]
            self.produce(choose(changes["token"], offered, topic.encoder.origin_sizes(changes)))

    def mark(self, source: str, marks: watermarks.SourceMarks) -> None:
        """Send the watermarks of a source to the topic of the watermarks. Raise a WritetimeError if Kafka refuses them,
        or changes that were handed over earlier.
        """
        if not self._marked:
            watermarks.ensure_watermarks_topic(self._settings)
            self._marked = True
        watermarks.send(self._sender, source, marks)

    def flush(self, stop: threading.Event | None = None) -> bool:
        """Wait until all changes are acknowledged. Return whether they are; False only if the program stops. Raise
        RefusedMessage if Kafka refuses a topic (see `send`), Transient if nothing can request a stop and the broker
        acknowledges nothing for a while, and another WritetimeError if Kafka refuses something else.
        """
        done = self._sender.flush(stop)
        if done:
            for topic in self._sent:
                self.refusals.pop(topic, None)
            self._sent.clear()
        return done

    def after(self, fault: Exception) -> "ChangePublisher":
        """Return a publisher to continue with after a fault. It knows the topics that Kafka refused."""
        if isinstance(fault, RefusedMessage):
            found = self.refusals.setdefault(fault.topic, Refusals())
            found.count += 1
            found.reason, found.ask_again = str(fault), time.monotonic() + _ASK_AGAIN_SECONDS
        return ChangePublisher(self._settings, self.refusals, self._before_schema, self._stop)

    def announce(self, schema: TableSchema) -> Destination:
        """Create the topic of a table, and its schema in the topic of the schemas, even without a change. Raise
        SchemaRefused if the registry refuses it, another WritetimeError if Kafka does, and Transient if one does not
        answer.
        """
        announced = _announced(schema)
        found = self._topics.get(announced)
        if found is None:
            refused, until = self._refused.get(announced, (None, 0.0))
            if refused is not None and time.monotonic() < until:
                raise refused
            name = changes_topic(schema.full_name)
            ensure_schemas_topic(self._settings)
            options = {"max.message.bytes": str(MAX_MESSAGE_BYTES)}
            try:
                with _of_topic(name):
                    ensure_topics(self._settings, {name: options}, self._settings.capture.partitions)
                    if self._before_schema is not None:
                        self._before_schema(schema)
                    header = self._sender.register(name, change_avro(schema), "FULL_TRANSITIVE")
            except SchemaRefused as e:
                self._refused[announced] = e, time.monotonic() + _ASK_AGAIN_SECONDS
                raise
            # A message must not arrive before the schema that it names.
            if not self._sender.flush(self._stop):
                raise Transient(f"Kafka has not acknowledged the schema of {schema.full_name}, and the program ends")
            with _of_topic(name):
                if lossy := lossy_faults(self._settings, {name: Keeps.UNREAD}, log):
                    raise RefusedMessage("; ".join(map(str, lossy)), name)
                partitions = len(partitions_of(self._settings, name))
                found = Destination(name, partitions, self._max_bytes(name), ChangeEncoder(schema, header))
            self._topics[announced] = found
        return found

    def _max_bytes(self, topic: str) -> int:
        return min(max_message_bytes(self._settings, topic), MAX_MESSAGE_BYTES)


@contextmanager
def _of_table(schema: TableSchema) -> Iterator[None]:
    """Turn an unknown fault into a refusal of the table's topic. It is retried like a refusal by Kafka, and then the
    changes are set aside, because the fault may belong to this table alone.
    """
    try:
        yield
    except (WritetimeError, OSError, MemoryError):
        raise
    except Exception as e:
        log.exception("changes of %s cannot be published", schema.full_name)
        raise RefusedMessage(
            f"{schema.full_name} cannot be published: {reason_of(e)}", changes_topic(schema.full_name)
        ) from e


@contextmanager
def _of_topic(name: str) -> Iterator[None]:
    """Turn a refusal by Kafka or the registry into a refusal of that topic."""
    try:
        yield
    except (Transient, RefusedMessage, SchemaRefused):
        # The refused message may belong to another topic, if it was handed over earlier.
        raise
    except WritetimeError as e:
        raise RefusedMessage(str(e), name) from None


def _encoded(
    encoder: ChangeEncoder, schema: TableSchema, changes: pa.RecordBatch
) -> tuple[pa.Array, pa.RecordBatch, str | None]:
    """Encode changes. Return the messages, their changes, and the reason if other changes cannot be encoded."""
    try:
        return encoder.encode(changes), changes, None
    except MemoryError:
        raise
    except Exception as e:
        if changes.num_rows == 1:
            offset = changes["origin"][0].as_py()["offset"]
            reason = f"{schema.full_name}: the change at offset {offset} cannot be encoded: {reason_of(e)}"
            return pa.array([], pa.binary()), changes.slice(0, 0), reason
    middle = changes.num_rows // 2
    halves = [_encoded(encoder, schema, half) for half in (changes.slice(0, middle), changes.slice(middle))]
    messages = pa.concat_arrays([found.cast(pa.binary()) for found, _, _ in halves])
    sent = pa.Table.from_batches([half for _, half, _ in halves]).combine_chunks().to_batches()
    reasons = [reason for _, _, reason in halves if reason is not None]
    return messages, sent[0] if sent else changes.slice(0, 0), next(iter(reasons), None)
