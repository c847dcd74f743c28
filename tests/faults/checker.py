"""The checker at the end of each fault test. It reads Kafka and the database, and never the sink's own counters."""

from collections.abc import Iterable
from uuid import UUID

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.faults.ledger import Fate, Ledger, Place
from tests.faults.watch import Watch
from writetime.clients.kafka import client_config, place_of
from writetime.core.config import Settings
from writetime.ingest.event import InvalidEvent, decode


def check(settings: Settings, watch: Watch, *ledgers: Ledger) -> None:
    """Assert that nothing acknowledged is lost, nothing is stored twice, and no commit was ahead of its work."""
    watch.sample_when_reachable()
    sent = [s for ledger in ledgers for s in ledger.sent]
    acknowledged = [s for s in sent if s.fate is Fate.OK]
    possible = {s.event_id for s in sent if s.fate is not Fate.FAILED}

    lost = [s for s in acknowledged if s.event_id not in watch.rows and s.place not in watch.dead_seen]
    assert not lost, f"{len(lost)} of {len(acknowledged)} acknowledged messages are lost: {lost[:3]}"
    wrongly_dead = [s for s in acknowledged if (s.event_id is None) != (s.place in watch.dead_seen)]
    assert not wrongly_dead, f"stored and dead letters are mixed up: {wrongly_dead[:3]}"
    twice = [event_id for event_id, count in watch.rows.items() if count > 1]
    assert not twice, f"{len(twice)} events are stored twice: {twice[:3]}"
    invented = watch.rows.keys() - possible
    assert not invented, f"{len(invented)} rows are of events that were never sent or were aborted"

    _check_commits(watch, read_topic(settings))
    fates = ", ".join(f"{sum(s.fate is fate for s in sent)} {fate}" for fate in Fate)
    print(f"checked: {fates}; {len(watch.rows)} rows, {len(watch.dead_seen)} dead, {len(watch.commits)} samples")


def _check_commits(watch: Watch, messages: Iterable[tuple[Place, UUID | None]]) -> None:
    """Assert that committed offsets never went back, and that all rows below them were stored at that moment."""
    for earlier, later in zip(watch.commits, watch.commits[1:], strict=False):
        back = {p: (earlier[p], later[p]) for p in earlier if later[p] < earlier[p]}
        assert not back, f"committed offsets went back: {back}"
    for (partition, offset), event_id in messages:
        passed = next((n for n, committed in enumerate(watch.commits) if committed[partition] > offset), None)
        assert passed is not None, f"{partition}@{offset} is not committed at the end"
        seen = watch.row_seen.get(event_id) if event_id else watch.dead_seen.get((partition, offset))
        if seen is None:
            seen = watch.dead_seen.get((partition, offset))
        assert seen is not None, f"{partition}@{offset} is committed and neither stored nor a dead letter"
        assert seen <= passed, f"{partition}@{offset} was committed in sample {passed} and there only in sample {seen}"


def read_topic(settings: Settings) -> list[tuple[Place, UUID | None]]:
    """Return place and event id of every message that the events' topic has, None for poison."""
    topic = settings.ingest.topic
    own = {"group.id": "checker", "enable.partition.eof": True, "auto.offset.reset": "earliest"}
    consumer = Consumer(client_config(settings, **own))
    unread = set(range(settings.ingest.partitions))
    found: list[tuple[Place, UUID | None]] = []
    try:
        consumer.assign([TopicPartition(topic, p, 0) for p in unread])
        while unread:
            for message in consumer.consume(500, 1.0):
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(place_of(message)[0])
                elif error is None:
                    found.append((place_of(message), _event_id(message.value())))
    finally:
        consumer.close()
    return found


def _event_id(value: bytes | None) -> UUID | None:
    try:
        return decode(value).event_id
    except (InvalidEvent, TypeError):
        return None
