"""Events, bounded runs of the sink, and the stored rows."""

import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from confluent_kafka import Producer

from tests.support.waiting import PATIENCE_SECONDS
from writetime.clients.database import connect
from writetime.clients.kafka import beginning_offsets, client_config, end_offsets
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.ingest import dead_letter_topic, drain
from writetime.ingest.event import Event

AT = datetime(2013, 1, 1, 5, 15, 0, 123000, tzinfo=UTC)


def with_ingest(settings: Settings, **changes: Any) -> Settings:
    """Return the settings with some of `ingest` changed."""
    return settings.model_copy(update={"ingest": settings.ingest.model_copy(update=changes)})


def an_event(number: int, payload: str = '"first"', user: str = "u", at: datetime = AT) -> Event:
    """Return an event whose id is a number."""
    return Event(UUID(int=number), user, "click", at, payload)


def produce(
    settings: Settings, values: list[bytes], headers: list[tuple[str, str | bytes | None]] | None = None
) -> None:
    """Send values to partition 0, so that they keep their order, once all partitions have found their leaders."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        with suppress(WritetimeError):
            end_offsets(settings, settings.ingest.topic)
            break
        time.sleep(0.05)
    producer = Producer(client_config(settings, **{"message.max.bytes": 16 * 1024 * 1024}))
    for value in values:
        producer.produce(settings.ingest.topic, value=value, partition=0, headers=headers or [])
    assert producer.flush(PATIENCE_SECONDS) == 0


def run_once(settings: Settings, *, commit: bool = True) -> list[dict[str, Any]]:
    """Do the work of one bounded run; return the receipts in the order of their offsets."""
    ranges = drain.plan(settings)
    batches = [batch for r in ranges for batch in drain.store_range(settings, r)]
    receipts = [row for batch in batches for row in batch.to_pylist()]
    if commit:
        drain.commit(settings, ranges)
    return sorted(receipts, key=lambda row: (row["partition"], row["offset"]))


def dead_letters(settings: Settings) -> list[dead_letter_topic.DeadLetter]:
    """Return all dead letters."""
    topic = settings.ingest.dead_letter_topic
    return list(dead_letter_topic.read(settings, beginning_offsets(settings, topic), end_offsets(settings, topic)))


def rows(settings: Settings, columns: str = "event_id, payload") -> list[tuple[Any, ...]]:
    """Return the table's rows in the order of their ids."""
    with connect(settings) as session:
        found = session.execute(f"SELECT {columns} FROM {settings.cassandra.keyspace}.user_events")
        return sorted(tuple(row) for row in found)
