"""Messages of Kafka topics, decoded by another library."""

import io
import json
from collections.abc import Mapping
from typing import Any

import fastavro
from confluent_kafka import Consumer, TopicPartition

from tests.support.avro import plain
from writetime.clients.kafka import client_config, end_offsets
from writetime.core.config import Settings
from writetime.wire.publishing import SCHEMAS_TOPIC


def messages(settings: Settings, topic: str, starts: Mapping[int, int] | None = None) -> list[tuple[int, bytes, bytes]]:
    """Partition, key and value of all messages that a reader of committed ones gets, in order of each partition; from
    the starts of partitions on, if they are given."""
    own = {"group.id": "test", "isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = Consumer(client_config(settings, **own))
    open_partitions = set(end_offsets(settings, topic))
    consumer.assign([TopicPartition(topic, p, (starts or {}).get(p, 0)) for p in open_partitions])
    found = []
    while open_partitions:
        message = consumer.poll(30)
        assert message is not None
        if message.error() is not None:
            open_partitions.discard(message.partition())
        else:
            found.append((message.partition(), message.key(), message.value()))
    consumer.close()
    return found


def decoded(settings: Settings, topic: str) -> list[dict[str, Any]]:
    """The events, by the schemas that the schema topic has."""
    # Only those that are asked for are parsed: other tests write garbage to the topic.
    texts = {key: value for _, key, value in messages(settings, SCHEMAS_TOPIC)}
    parsed: dict[bytes, Any] = {}
    found = []
    for partition, key, value in messages(settings, topic):
        assert value[:2] == b"\xc3\x01"
        name = value[2:10][::-1].hex().encode()
        if name not in parsed:
            parsed[name] = fastavro.parse_schema(plain(json.loads(texts[name])))
        event: Any = fastavro.schemaless_reader(io.BytesIO(value[10:]), parsed[name], None)
        assert event["key"] == key
        found.append(event | {"partition": partition})
    return found
