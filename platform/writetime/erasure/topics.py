"""What Kafka keeps of erased partitions: messages cannot be changed, and a topic has those of all partitions.

By default they go with the topic's retention. Or all records up to an offset are deleted, with those of other
partitions: of changes, those that have landed; of row events, all up to the end, also those that a consumer has not
read yet.
"""

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from writetime.clients.kafka import TIMEOUT_SECONDS, answer_of, ask_cluster, end_offsets, topic_names
from writetime.clients.topic_retention import longest_stay_seconds
from writetime.core.config import Settings
from writetime.core.errors import Transient
from writetime.core.instants import instant_text
from writetime.core.waiting import wait_until
from writetime.lake.table import LakeTable
from writetime.landing.landed_offsets import landed_by
from writetime.wire.topic_names import changes_topic, dead_changes_topic, row_events_topic

# How long a program that follows the table may take to land what was sent before.
_LANDING_SECONDS = 30.0
_READABLE = (
    "readable at most until then; a broker deletes the files some minutes later (log.retention.check.interval.ms, "
    "file.delete.delay.ms)"
)
_SEGMENTS = (
    "a broker deletes whole segment files: the newest one of a partition stays, unreadable, until a later message "
    "begins another (segment.bytes, segment.ms), and then some minutes (log.retention.check.interval.ms, "
    "file.delete.delay.ms)"
)


def topics_of(settings: Settings, table: LakeTable, *, delete_records: bool) -> list[dict[str, Any]]:
    """Return when each topic of a table has lost the messages that it has now. With `delete_records`, delete them.

    Raises:
        Transient: messages of changes have not landed, so they cannot be deleted yet.
        WritetimeError: Kafka does not answer, or refuses.
    """
    there = set(topic_names(settings))
    names = (changes_topic(table.name), dead_changes_topic(table.name), row_events_topic(table.name))
    found = []
    for topic in (name for name in names if name in there):
        ends = end_offsets(settings, topic)
        if delete_records:
            if topic == names[0]:
                _wait_until_landed(table, topic, ends)
            _delete_records(settings, topic, ends)
            entry: dict[str, Any] = {"by": "deletion of records", "before": _texts(ends), "note": _SEGMENTS}
        else:
            seconds = longest_stay_seconds(settings, topic)
            until = None if seconds is None else instant_text(round((time.time() + seconds) * 1e6))
            entry = {"by": "retention", "messages_until": _texts(ends), "gone_after": until}
            entry["note"] = "never: run this again with --delete-records" if until is None else _READABLE
        found.append({"topic": topic, **entry})
    return found


def _wait_until_landed(table: LakeTable, topic: str, ends: Mapping[int, int]) -> None:
    """Wait for a program that lands the messages up to these ends. Raise a `Transient` if none does."""

    def is_landed() -> bool:
        landed = landed_by(table.changes.load(), topic, ends)
        return all(landed[partition] >= end for partition, end in ends.items())

    if not wait_until(is_landed, _LANDING_SECONDS, 0.2):
        raise Transient(
            f"{topic} has messages that have not landed, so they are not deleted: run `writetime land {table.name}`, "
            "and this again"
        )


def _texts(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in sorted(offsets.items())}


def _delete_records(settings: Settings, topic: str, before: Mapping[int, int]) -> None:
    """Delete the records of a topic before an offset of each partition."""
    wanted = [TopicPartition(topic, partition, offset) for partition, offset in before.items() if offset > 0]

    def ask(admin: AdminClient) -> None:
        futures = admin.delete_records(wanted, request_timeout=TIMEOUT_SECONDS)
        for future in futures.values():
            answer_of(future)

    if wanted:
        ask_cluster(settings, f"records of {topic} cannot be deleted", ask)
