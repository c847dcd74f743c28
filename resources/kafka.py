"""Kafka for assets and sensors."""

from dataclasses import dataclass

from pydantic import Field

from writetime.clients import consumer_groups, kafka
from writetime_dagster.resources.base import SAME, WritetimeResource


@dataclass(frozen=True)
class TopicProgress:
    """The end offsets of a topic's partitions, the messages that a consumer group has not read, and the partitions in
    which the group cannot continue because messages were lost.
    """

    ends: dict[int, int]
    lag: dict[int, int]
    faults: list[str]

    @property
    def total_lag(self) -> int:
        """Unread messages over all partitions (offset gaps count as messages)."""
        return sum(self.lag.values())


class KafkaResource(WritetimeResource):
    """The brokers. A field that is None has the value of the setting in the section `[kafka]`."""

    section = "kafka"

    bootstrap_servers: str | None = Field(default=None, description=SAME)
    client: dict[str, str] | None = Field(
        default=None,
        repr=False,
        description="Options of clients, which override those of the setting of this name, one by one. Name variables "
        "for secrets: `EnvVar`.",
    )

    def progress(self, topic: str, group: str) -> TopicProgress:
        """Return the topic's current end offsets and the group's lag; nothing is consumed."""
        settings = self.settings
        other: list[str] = []
        try:
            committed = consumer_groups.committed_offsets(settings, topic, group)
        except consumer_groups.OtherTopic as e:
            committed, other = dict.fromkeys(kafka.partitions_of(settings, topic)), [str(e)]
        first = kafka.beginning_offsets(settings, topic, list(committed))
        # The end offsets are read last, so no offset that is committed already is above them.
        ends = kafka.end_offsets(settings, topic, list(committed))
        lag = {p: max(end - max(first[p], committed[p] or 0), 0) for p, end in ends.items()}
        faults = [consumer_groups.offset_fault(topic, p, committed[p], first[p], end) for p, end in ends.items()]
        return TopicProgress(ends, lag, other + [fault for fault in faults if fault])

    def group_is_live(self, group: str) -> bool:
        """Return whether a consumer group has members."""
        return consumer_groups.group_is_live(self.settings, group)
