"""Messages that a topic should not have: duplicates, poison, oversized values and gaps between offsets."""

import json
import random
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from tests.faults.ledger import Fate, Ledger
from tests.faults.stage import Stage
from tests.support.metrics import scraped, used
from tests.support.topics import alter_topic
from writetime.clients.database import connect
from writetime.ingest.event import Event, accept
from writetime.servers.process import free_port

pytestmark = pytest.mark.long

GOOD = {"eventId": str(uuid.uuid4()), "userId": "u", "eventType": "t", "timestamp": "2013-01-01T05:15:00Z"}
POISON = [
    None,
    b"",
    b"not JSON",
    b"\xff\xfe\x00",
    b"[]",
    b"17",
    b"{}",
    json.dumps({**GOOD, "eventId": None}).encode(),
    json.dumps({k: v for k, v in GOOD.items() if k != "eventId"}).encode(),
    json.dumps({**GOOD, "eventId": 17}).encode(),
    json.dumps({**GOOD, "eventId": "not a UUID"}).encode(),
    json.dumps({**GOOD, "userId": ["u"]}).encode(),
    json.dumps({**GOOD, "userId": " "}).encode(),
    json.dumps({**GOOD, "userId": "u" * 70_000}).encode(),
    json.dumps({**GOOD, "eventType": {}}).encode(),
    json.dumps({**GOOD, "timestamp": 1357017300}).encode(),
    json.dumps({**GOOD, "timestamp": "yesterday"}).encode(),
    json.dumps({**GOOD, "timestamp": "2013-01-01T05:15:00"}).encode(),
    json.dumps({**GOOD, "timestamp": "9999-12-31T23:59:59-23:00"}).encode(),
    json.dumps({**GOOD, "userId": "\ud800"}).encode(),
    b'{"payload": ' + b"[" * 2000 + b"]" * 2000 + b"}",
    json.dumps(GOOD)[:-1].encode() + b', "payload": ' + b"[" * 300 + b"]" * 300 + b"}",
    b"{" + b"x" * 1_050_000,
]

# Beyond half a segment of the commit log the database takes no mutation; the least is beyond what a client sends by
# default.
SIZES = (1_050_000, 2_500_000, 4_193_800, 4_194_100, 4_300_000, 9_000_000)
LIMITS = (4_193_800, 4_194_100)


def test_poison_becomes_dead_letters_and_delays_nothing(stage: Callable[..., Stage]) -> None:
    port = free_port()
    s = stage(mode="lwt-batch", sink_metrics_port=port)
    for value in POISON:
        s.ledger.events(20, users=5)
        s.ledger.send_poison(value)
    with scraped([port]) as metrics:
        s.sink()
        s.finish()
    assert len(s.watch.dead_seen) == len(POISON)
    assert metrics >= used("sink")


@pytest.mark.parametrize("mode", ["lwt", "lwt-batch", "upsert"])
def test_oversized_events_are_stored_or_refused(stage: Callable[..., Stage], mode: str, is_long: bool) -> None:
    s = stage(mode=mode)
    for topic in (s.settings.ingest.topic, s.settings.ingest.dead_letter_topic):
        alter_topic(s.settings, topic, {"max.message.bytes": str(16 * 1024 * 1024)})
    for size in SIZES if is_long or mode == "lwt-batch" else LIMITS:
        s.ledger.events(20, users=1)
        sent = s.ledger.send(s.ledger.event("user-0", size))
        if size > 4_000_000:
            sent.event_id = None
    s.sink()
    s.finish()


@pytest.mark.parametrize(("mode", "bucket"), [("lwt", "none"), ("lwt-batch", "day"), ("upsert", "day")])
def test_a_retried_call_is_one_row_at_its_first_timestamp(
    stage: Callable[..., Stage], mode: str, bucket: str, is_long: bool
) -> None:
    s = stage(mode=mode, bucket=bucket)
    # In the order of the calls, and all of them, however slow the broker is.
    s.ledger = Ledger(s.settings, s.rng, **{"message.timeout.ms": 60_000, "enable.idempotence": True})
    midnight = datetime(2024, 3, 1, tzinfo=UTC)
    first: dict[uuid.UUID, datetime] = {}
    retries: list[Event] = []
    for number in range(150 if is_long else 50):
        user = f"user-{number % 7}"
        made = [_call(user, str(number), midnight + timedelta(seconds=s.rng.uniform(-2, 2) + 3 * n)) for n in range(3)]
        first[made[0].event_id] = made[0].timestamp
        s.ledger.send(made[0])
        retries += made[1:]
    s.rng.shuffle(retries)
    for event in retries:
        s.ledger.send(event)
    s.sink()
    s.finish()
    assert _timestamps(s) == first


def test_transactions_leave_gaps_and_no_lag(stage: Callable[..., Stage]) -> None:
    s = stage(mode="lwt-batch", partitions=4)
    transactional = Ledger(s.settings, s.rng, **{"transactional.id": s.settings.ingest.topic})
    transactional.producer.init_transactions()
    s.sink()
    for number in range(12):
        s.ledger.events(s.rng.randrange(10), users=20)
        s.ledger.flush()
        # The last one is committed, so that control records are the topic's end.
        _transaction(transactional, s.rng, commit=number % 2 == 1)
    s.finish(transactional)
    assert transactional.of(Fate.FAILED), "no transaction was aborted"


def _transaction(ledger: Ledger, rng: random.Random, *, commit: bool) -> None:
    ledger.producer.begin_transaction()
    before = len(ledger.sent)
    ledger.events(rng.randrange(1, 30), users=20)
    ledger.flush()
    if commit:
        ledger.producer.commit_transaction()
        return
    ledger.producer.abort_transaction()
    for sent in ledger.sent[before:]:
        sent.fate = Fate.FAILED


def _call(user: str, key: str, now: datetime) -> Event:
    return accept({"userId": user, "eventType": "click", "payload": 1}, key, now)


def _timestamps(s: Stage) -> dict[uuid.UUID, datetime]:
    table = "user_events_by_day" if s.settings.ingest.bucket == "day" else "user_events"
    with connect(s.settings) as session:
        rows = session.execute(f"SELECT event_id, event_timestamp FROM {s.settings.cassandra.keyspace}.{table}")
        return {row.event_id: row.event_timestamp.replace(tzinfo=UTC) for row in rows}
