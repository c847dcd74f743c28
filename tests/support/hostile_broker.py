"""A broker whose defaults for topics lose messages, or refuse them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer

from tests.support.servers import START_SECONDS
from tests.support.waiting import wait_for
from writetime.clients.kafka import beginning_offsets, client_config, end_offsets, messages_between
from writetime.core import config
from writetime.core.config import Settings
from writetime.servers.kafka import KafkaServer
from writetime.servers.process import free_port

HOSTILE = {
    "log.cleanup.policy": "compact",
    "log.retention.ms": 1000,
    "log.retention.bytes": 1,
    "message.max.bytes": 20_000,
    "log.message.timestamp.before.max.ms": 1,
    "log.message.timestamp.after.max.ms": 1,
    "compression.type": "uncompressed",
    "min.insync.replicas": 2,
    "unclean.leader.election.enable": "true",
    "log.segment.bytes": 1 << 20,
    "log.cleaner.delete.retention.ms": 0,
    "auto.create.topics.enable": "true",
    # New segments, compaction and deletion come at once.
    "log.roll.ms": 500,
    "log.cleaner.backoff.ms": 100,
    "log.cleaner.min.cleanable.ratio": 0.0001,
    "log.retention.check.interval.ms": 500,
    "log.segment.delete.delay.ms": 0,
    "log.initial.task.delay.ms": 500,
    # Groups need it, and no program of ours creates their topic.
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


class HostileBroker(KafkaServer):
    """One broker with these defaults."""

    def configuration(self) -> dict[str, object]:
        """Return its `server.properties`."""
        return super().configuration() | HOSTILE


@contextmanager
def hostile_broker(home: Path) -> Iterator[Settings]:
    """Start one; yield its settings."""
    settings = config.load(
        kafka={"bootstrap_servers": f"127.0.0.1:{free_port()}"},
        embedded={
            "servers": ["kafka"],
            "home": home,
            "kafka_controller_port": free_port(),
            "kafka_heap_mb": 256,
            "start_timeout_seconds": START_SECONDS,
        },
    )
    broker = HostileBroker(settings)
    broker.start()
    try:
        yield settings
    finally:
        broker.stop()


def offsets_in(settings: Settings, topic: str) -> dict[int, list[int]]:
    """Return the offsets of the messages that each partition of a topic still has."""
    starts, ends = beginning_offsets(settings, topic), end_offsets(settings, topic)
    found: dict[int, list[int]] = {partition: [] for partition in ends}
    for message in messages_between(settings, topic, starts, ends):
        found[message.partition() or 0].append(message.offset() or 0)
    return found


def let_it_compact(settings: Settings, topic: str) -> None:
    """Put messages into a topic until the broker has compacted the earlier ones."""
    producer = Producer(client_config(settings))
    before = sum(end_offsets(settings, topic).values())

    def is_compacted() -> bool:
        # A segment ends with a later message.
        producer.produce(topic, b"later", b"later", 0)
        producer.flush(15)
        return sum(map(len, offsets_in(settings, topic).values())) < before

    wait_for(is_compacted)
