"""Shared by publishers: sending messages until the broker has them, and the topic of the Avro schemas that they need.

The compacted topic `writetime.schemas` has each schema by its fingerprint (16 hexadecimal digits). A message in Avro's
single-object encoding begins with that fingerprint, so a consumer can read it with this topic alone. If a schema
registry is configured, messages are in Confluent's wire format instead. The topic still has the schemas, and the id of
each in the registry: a message with the key `<fingerprint>:<id>`, whose value is the topic of the registered values. So
landing needs no registry, and none can mislead it.
"""

import functools
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from writetime.clients.kafka import (
    TIMEOUT_SECONDS,
    NoTopic,
    client_config,
    end_offsets,
    ensure_topics,
    messages_between,
    place_of,
    topic_ids,
)
from writetime.clients.kafka_errors import may_pass
from writetime.clients.schema_registry import Compatibility, registry_of, wire_header
from writetime.clients.topic_options import Keeps, lossy_faults
from writetime.core.config import Settings
from writetime.core.counts import pluralize
from writetime.core.errors import Transient, WritetimeError
from writetime.schema.fingerprints import fingerprint, single_object_header

log = logging.getLogger(__name__)

SCHEMAS_TOPIC = "writetime.schemas"
# One message has the progress of all tables of a source, or the schema of a table with all its types.
_LARGEST_BYTES = 64 << 20
# The topics whose options this process has checked, with their brokers.
_looked_at: set[tuple[str, str]] = set()
_KEY = re.compile(rb"([0-9a-f]{16})(?::(\d{1,10}))?")
# How often a topic without new messages is compared with the one that was read.
_ID_SECONDS = 10.0
# Characters of an error that are logged; it may quote the message.
_SHOWN = 300

T = TypeVar("T")


class RefusedMessage(WritetimeError):
    """Kafka refuses messages of a topic, and would refuse them again."""

    def __init__(self, message: str, topic: str) -> None:
        super().__init__(message)
        self.topic = topic


class Sender:
    """A producer. After a message is refused, each later call raises its error.

    `what` names the messages in errors; `own` are settings of the client.
    """

    def __init__(self, settings: Settings, what: str, **own: Any) -> None:
        self._what = what
        # Without a report for each acknowledged message: a flush shows that all were.
        shared = {"compression.type": "zstd", "linger.ms": 20, "acks": "all", "delivery.report.only.error": True}
        self._producer = Producer(client_config(settings, **shared | own))
        self._fault: tuple[KafkaError, str] | None = None
        self._registry = registry_of(settings)

    def produce(self, topic: str, value: bytes | None, key: bytes, partition: int) -> None:
        """Hand over a message; one without a value deletes the messages of its key in a compacted topic.

        Raises:
            Transient: the client's queue is full, and the broker acknowledges nothing for a while.
            WritetimeError: it is refused, or an earlier one was.
        """
        while True:
            try:
                self._producer.produce(topic, value, key, partition, on_delivery=self._delivered)
                break
            except BufferError:
                self._wait_for_room()
            except KafkaException as e:
                raise self._refused(e.args[0], topic) from None
        self.check()

    def produce_all(self, topic: str, values: list[bytes], keys: list[bytes], partitions: list[int]) -> None:
        """Hand over many messages, with the errors of `produce`. If the client's queue is full, some are sent twice,
        the second time in order.
        """
        messages: list[dict[str, Any]] = [
            {"value": value, "key": key, "partition": partition}
            for value, key, partition in zip(values, keys, partitions, strict=True)
        ]
        while messages:
            self._producer.produce_batch(topic, messages, on_delivery=self._delivered)
            errors = [message.pop("_error", None) for message in messages]
            for error in errors:
                if error is not None and error.code() != KafkaError._QUEUE_FULL:
                    raise self._refused(error, topic)
            self.check()
            first = next((i for i, error in enumerate(errors) if error is not None), len(messages))
            # The queue may have taken later, smaller messages.
            messages = messages[first:]
            if messages:
                self._wait_for_room()

    def register(self, topic: str, avro: Any, compatibility: Compatibility) -> bytes:
        """Hand over the schema of a topic's values to the registry, if there is one, and with its id there to the topic
        of the schemas, which must exist and keeps one per fingerprint; return the header of the schema's messages.

        Raises:
            SchemaRefused: the registry rejects the schema.
            Transient: the registry or the broker does not answer.
            WritetimeError: the registry refuses the call, or a message was refused.
        """
        schema_id = None if self._registry is None else self._registry.register(topic, avro, compatibility)
        name = fingerprint(avro)
        self.produce(SCHEMAS_TOPIC, json.dumps(avro).encode(), schema_key(name), 0)
        if schema_id is None:
            return single_object_header(avro)
        self.produce(SCHEMAS_TOPIC, topic.encode(), schema_key(name, schema_id), 0)
        return wire_header(schema_id)

    def flush(self, stop: threading.Event | None = None) -> bool:
        """Wait until the broker has all messages; False if the stop is requested and the broker is late.

        Raises:
            Transient: nothing can request a stop, and the broker acknowledges nothing for a while.
            WritetimeError: a message was refused.
        """
        before, deadline = len(self._producer), time.monotonic() + TIMEOUT_SECONDS
        while waiting := self._producer.flush(0.5):
            self.check()
            if waiting < before if stop is None else not stop.is_set():
                before, deadline = waiting, time.monotonic() + TIMEOUT_SECONDS
            elif time.monotonic() > deadline:
                if stop is not None:
                    return False
                raise Transient(
                    f"{self._what}: the broker has acknowledged none of {pluralize(waiting, 'message')} for "
                    f"{TIMEOUT_SECONDS:.0f} s"
                )
        self.check()
        return True

    def poll(self) -> None:
        """Look for refused messages, without waiting. Raise the error of one."""
        self._producer.poll(0)
        self.check()

    def _wait_for_room(self) -> None:
        """Wait until the broker has acknowledged half of the client's queue, with the errors of `produce`."""
        full = waiting = len(self._producer)
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while waiting > full // 2:
            self._producer.poll(0.1)
            self.check()
            before, waiting = waiting, len(self._producer)
            if waiting < before:
                deadline = time.monotonic() + TIMEOUT_SECONDS
            elif time.monotonic() > deadline:
                raise Transient(
                    f"{self._what}: the client's queue is full with {pluralize(waiting, 'message')}, and the broker "
                    f"has acknowledged none for {TIMEOUT_SECONDS:.0f} s"
                )

    def check(self) -> None:
        """Raise the error of a message that was refused, if there is one."""
        if self._fault is not None:
            raise self._refused(*self._fault)

    def do(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call a client's method, and raise its errors as those of this sender."""
        try:
            return call(*arguments)
        except KafkaException as e:
            raise self._refused(e.args[0]) from None

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._fault is None:
            self._fault = error, message.topic() or ""

    def _refused(self, error: KafkaError, topic: str = "") -> WritetimeError:
        text = f"{self._what}: {error.name()} {error.str()}"
        if may_pass(error):
            return Transient(text)
        return RefusedMessage(f"{text} (topic {topic})", topic) if topic else WritetimeError(text)


def ensure_schemas_topic(settings: Settings) -> None:
    """Create the topic of the schemas if it does not exist."""
    ensure_compacted(settings, SCHEMAS_TOPIC)


def ensure_compacted(settings: Settings, topic: str, **options: str) -> None:
    """Create a compacted topic of one partition if it does not exist. If one exists whose options are wrong, log that
    once: the messages of all tables depend on it.
    """
    own = {"cleanup.policy": "compact", "max.message.bytes": str(_LARGEST_BYTES), **options}
    if ensure_topics(settings, {topic: own}, 1):
        return
    known = settings.kafka.bootstrap_servers, topic
    if known not in _looked_at:
        # Publishing works if no answer comes now.
        with suppress(WritetimeError):
            for fault in lossy_faults(settings, {topic: Keeps.LATEST}, log):
                log.error("%s", fault)
            _looked_at.add(known)


class CompactedTopic(Generic[T]):
    """A topic of one partition, in which the last message of each key counts; each call continues reading it.

    `read` converts a message's key and value to the results of `read_on`; a value of None deletes the key's value. A
    message for which it raises is skipped, logged with its offset, and counted in `skipped`: a foreign message in the
    topic stops no reader. Between two compactions a topic has thousands of messages of a key, so those that are
    replaced by later ones are neither kept nor converted.
    """

    def __init__(self, settings: Settings, name: str, read: Callable[[bytes, bytes | None], T]) -> None:
        self._settings = settings
        self._name = name
        self._read = read
        self._next = 0
        self._topic_id = 0
        self._next_id = 0.0
        self.skipped = 0

    def read_on(self) -> list[tuple[int, T]]:
        """Return the last message of each key since the last call, in order, with their offsets; nothing if there is no
        such topic. Raise `WritetimeError` if it cannot be read.
        """
        try:
            end = end_offsets(self._settings, self._name, [0])[0]
        except NoTopic:
            return []
        found: list[tuple[int, T]] = []
        if end != self._next or time.monotonic() >= self._next_id:
            topic_id = topic_ids(self._settings, [self._name]).get(self._name, 0)
            self._next_id = time.monotonic() + _ID_SECONDS
            if end < self._next or topic_id != self._topic_id:
                # The topic was deleted and created again.
                self._next, self._topic_id = 0, topic_id
        if end > self._next:
            skipped = 0
            last: dict[bytes, tuple[int, bytes | None]] = {}
            for message in messages_between(self._settings, self._name, {0: self._next}, {0: end}):
                last[message.key() or b""] = place_of(message)[1], message.value()
            for key, (offset, value) in sorted(last.items(), key=lambda item: item[1][0]):
                try:
                    found.append((offset, self._read(key, value)))
                except Exception as e:
                    skipped += 1
                    log.warning(
                        "topic %s, partition 0, offset %d is skipped, because it cannot be read: %s: %s",
                        *(self._name, offset, type(e).__name__, " ".join(str(e).split())[:_SHOWN]),
                    )
            self._next = end
            self.skipped += skipped
        return found


@dataclass(frozen=True)
class RegisteredSchema:
    """An Avro schema in the topic of the schemas, with its offset there and its fingerprint."""

    offset: int
    fingerprint: int
    avro: Mapping[str, Any]


def schema_key(fingerprint: int, schema_id: int | None = None) -> bytes:
    """Return the key of a schema in the topic of the schemas, or of its id in a registry."""
    return b"%016x" % fingerprint if schema_id is None else b"%016x:%d" % (fingerprint, schema_id)


class SchemaTopic:
    """The schemas of `writetime.schemas`, by fingerprint and by namespace. If an unknown one is requested, the topic is
    read further.
    """

    def __init__(self, settings: Settings) -> None:
        self._topic = CompactedTopic(settings, SCHEMAS_TOPIC, _read_message)
        self._known: dict[int, RegisteredSchema] = {}
        self._by_namespace: dict[str, tuple[RegisteredSchema, ...]] = {}
        # The ids of schemas in registries, by fingerprint.
        self._ids: dict[int, set[int]] = {}
        # Tables that land at the same time share it.
        self._reading = threading.Lock()

    @property
    def skipped(self) -> int:
        """The number of messages that could not be read."""
        return self._topic.skipped

    def get(self, fingerprint: int) -> Any | None:
        """Return the Avro schema with a fingerprint; None if the topic has none."""
        if fingerprint not in self._known:
            self.read_on()
        found = self._known.get(fingerprint)
        return None if found is None else found.avro

    def read_on(self) -> None:
        """Read the messages since the last call, or raise `WritetimeError`. A message without a value deletes the
        schema or the id of its key.
        """
        with self._reading:
            for offset, (key, schema_id, avro) in self._topic.read_on():
                if schema_id is not None:
                    others = self._ids.get(key, set()) - {schema_id}
                    self._ids[key] = others if avro is None else others | {schema_id}
                    continue
                before = self._known.pop(key, None)
                if before is not None:
                    namespace = _namespace_of(before.avro)
                    self._by_namespace[namespace] = tuple(s for s in self._by_namespace[namespace] if s is not before)
                if avro is not None:
                    schema = self._known[key] = RegisteredSchema(offset, key, avro)
                    namespace = _namespace_of(avro)
                    self._by_namespace[namespace] = (*self._by_namespace.get(namespace, ()), schema)

    def of_namespace(self, namespace: str) -> tuple[RegisteredSchema, ...]:
        """Return the known schemas of a namespace, in the order in which they were last registered. It is the same
        object until one of them changes.

        A schema comes again with the same fingerprint if other data of its table changed, such as a dropped column.
        """
        return self._by_namespace.get(namespace, ())

    def ids_of_namespace(self, namespace: str) -> dict[int, list[int]]:
        """Return the fingerprints of a namespace's known schemas by their ids in a registry. An id has several schemas
        if the registry gave it twice: after it lost its data, or by a wrong answer.
        """
        found: dict[int, list[int]] = {}
        for schema in self.of_namespace(namespace):
            for schema_id in sorted(self._ids.get(schema.fingerprint, ())):
                found.setdefault(schema_id, []).append(schema.fingerprint)
        return found


def _namespace_of(avro: Mapping[str, Any]) -> str:
    """Return the namespace of a schema without the `writetime.` that older schemas of changes did not have."""
    return avro["namespace"].removeprefix("writetime.")


# An agent registers all of its schemas again at each start, so most messages are the same as earlier ones.
@functools.lru_cache(4096)
def _read_message(key: bytes, value: bytes | None) -> tuple[int, int | None, Mapping[str, Any] | None]:
    """Return a fingerprint, and its schema or one of its ids in a registry. If the last part is None, it is deleted."""
    found = _KEY.fullmatch(key)
    if found is None:
        raise ValueError(f"its key {key[:32]!r} is not a fingerprint of 16 hexadecimal digits")
    name, schema_id = int(found[1], 16), int(found[2]) if found[2] else None
    if value is None or schema_id is not None:
        return name, schema_id, None if value is None else {}
    avro = json.loads(value)
    if not isinstance(avro, dict) or not isinstance(avro.get("namespace"), str):
        raise ValueError("its value is not an Avro schema of a record with a namespace")
    if fingerprint(avro) != name:
        # Messages would be read with the columns of another schema, and values of one type would change places.
        raise ValueError(f"its key is not the fingerprint of its schema, which is {fingerprint(avro):016x}")
    return name, None, avro
