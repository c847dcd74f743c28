"""Counts the waiting messages that the broker will soon delete, because of the topic's retention."""

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from writetime.clients import kafka
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError

# The share of the topic's retention after which the age of the oldest unfinished message causes a warning.
RETENTION_ALARM = 0.5


class UnknownRetention(WritetimeError):
    """The broker does not report the retention of a topic."""


def topic_retention_seconds(settings: Settings, topic: str) -> float | None:
    """Return the topic's retention time, None if it is unlimited. Its `retention.bytes` is not considered. Raises
    UnknownRetention: the broker does not report it.
    """
    return _seconds(_configuration(settings, topic))


def longest_stay_seconds(settings: Settings, topic: str) -> float | None:
    """Return how long a message of now may be read at most, None if there is no limit: a broker deletes a segment once
    its newest message is older than the retention time, and a segment takes messages for `segment.ms`. A compacted
    topic keeps the newest message of each key. Raises UnknownRetention: the broker does not report it.
    """
    answer = _configuration(settings, topic)
    retention = _seconds(answer)
    if retention is None or "delete" not in answer["cleanup.policy"].value:
        return None
    return retention + int(answer["segment.ms"].value) / 1000


def _seconds(answer: Mapping[str, Any]) -> float | None:
    milliseconds = int(answer["retention.ms"].value)
    return milliseconds / 1000 if milliseconds >= 0 else None


def _configuration(settings: Settings, topic: str) -> Mapping[str, Any]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = AdminClient(kafka.client_config(settings))
    try:
        futures = admin.describe_configs([resource], request_timeout=kafka.TIMEOUT_SECONDS)
        return kafka.answer_of(futures[resource])
    except KafkaException as e:
        raise UnknownRetention(
            f"the retention of topic {topic} cannot be read ({e.args[0].str()}); Writetime's user needs the "
            "right DescribeConfigs on it"
        ) from None


def waiting_too_long(settings: Settings, topic: str, done: Mapping[int, int | None]) -> dict[int, int]:
    """Count, by partition, the unfinished messages that have used up `RETENTION_ALARM` of the topic's retention. `done`
    has the offset up to which each partition is done; None if none of its messages is. Raises UnknownRetention: the
    broker does not report the topic's retention.
    """
    retention = topic_retention_seconds(settings, topic)
    if retention is None:
        return {}
    old = kafka.offsets_at(settings, topic, time.time() - retention * RETENTION_ALARM)
    first = kafka.beginning_offsets(settings, topic)
    waiting = {p: offset - max(first[p], done.get(p) or 0) for p, offset in old.items()}
    return {p: count for p, count in waiting.items() if count > 0}
