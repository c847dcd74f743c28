"""Kafka for assets and sensors."""

from dataclasses import dataclass

from writetime.clients import kafka
from writetime_dagster.resources.base import WritetimeResource


@dataclass(frozen=True)
class TopicProgress:
    """The end offsets of a topic's partitions, and the messages that a consumer group has not read."""

    ends: dict[int, int]
    lag: dict[int, int]

    @property
    def total_lag(self) -> int:
        """Unread messages over all partitions (offset gaps count as messages)."""
        return sum(self.lag.values())


class KafkaResource(WritetimeResource):
    """The brokers of the settings."""

    def progress(self, topic: str, group: str) -> TopicProgress:
        """Return the topic's current end offsets and the group's lag; nothing is consumed."""
        settings = self.settings
        ends = kafka.end_offsets(settings, topic)
        first = kafka.beginning_offsets(settings, topic)
        committed = kafka.committed_offsets(settings, topic, group)
        lag = {p: end - max(first[p], committed[p] or 0) for p, end in ends.items()}
        return TopicProgress(ends, lag)

    def group_is_live(self, group: str) -> bool:
        """Return whether a consumer group has members."""
        return kafka.group_is_live(self.settings, group)
