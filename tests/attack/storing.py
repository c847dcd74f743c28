"""Attacks the sink with messages of the topic of events, valid and hostile ones in any order.

Each valid event must be stored once. Each other message must be either a dead letter with its key and value, or a
stored event if it is a valid one. The sink must commit each offset, and end cleanly when it is stopped.
"""

import json
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Message, Producer

from tests.attack import hostile
from tests.attack.report import Report
from tests.support.sinks import SinkProcess
from tests.support.waiting import PATIENCE_SECONDS
from writetime.clients.consumer_groups import committed_offsets
from writetime.clients.database import connect
from writetime.clients.kafka import beginning_offsets, client_config, end_offsets, headers_of, messages_between
from writetime.core.config import Settings

_TARGET = "events of the sink"
Place = tuple[int, int]


@dataclass
class _Sent:
    """One message; `event_id` where it is a sound event."""

    number: int
    key: bytes | None
    value: bytes | None
    event_id: str | None
    place: Place = (0, -1)


def attack(settings: Settings, home: Path, seed: int, first: int, count: int, report: Report) -> None:
    """Send messages, let a sink store them, and compare the stored rows and the dead letters."""
    sent = _send(settings, seed, first, count)
    sink = SinkProcess(settings, home, first)
    topic, group = settings.ingest.topic, settings.ingest.group
    deadline = time.monotonic() + PATIENCE_SECONDS
    while {p: o or 0 for p, o in committed_offsets(settings, topic, group).items()} != end_offsets(settings, topic):
        if not sink.running or time.monotonic() > deadline:
            how = "has ended" if not sink.running else f"has not stored all in {PATIENCE_SECONDS:.0f} s"
            report.findings.append(f"the sink {how}: {sink.log.read_text()[-1500:]}")
            if sink.running:
                sink.kill()
            return
        time.sleep(0.1)
    try:
        sink.stop()
    except AssertionError as e:
        report.findings.append(f"the sink has not ended well: {str(e)[-1500:]}")
    _compare(settings, sent, report)


def _send(settings: Settings, seed: int, first: int, count: int) -> list[_Sent]:
    sent = []
    producer = Producer(client_config(settings))
    for number in range(first, first + count):
        r = random.Random(f"{seed}/sink/{number}")
        one, headers = _message(r, number)
        sent.append(one)
        partition = r.randrange(settings.ingest.partitions)
        producer.produce(settings.ingest.topic, one.value, one.key, partition, _noting(one), headers=headers)
        producer.poll(0)
    assert producer.flush(60) == 0
    return sent


def _noting(one: _Sent) -> Callable[[object, Message], None]:
    def delivered(error: object, message: Message) -> None:
        assert error is None, error
        one.place = message.partition() or 0, message.offset() or 0

    return delivered


def _message(r: random.Random, number: int) -> tuple[_Sent, list[tuple[str, Any]]]:
    user = f"user-{r.randrange(20)}"
    event = {
        "eventId": str(uuid.UUID(int=r.getrandbits(128), version=4)),
        "userId": user,
        "eventType": r.choice(["click", "é"]),
        "timestamp": f"2026-11-{r.randrange(1, 23):02}T05:15:00.{r.randrange(1000):03}Z",
        "payload": r.choice([None, 1, "x" * 500, {"a": [1.5, None]}]),
    }
    sound = json.dumps(event).encode()
    if r.random() < 0.4:
        return _Sent(number, user.encode(), sound, event["eventId"]), []
    if r.random() < 0.2:
        # The value is valid, but the document around it is not.
        headers = hostile.headers(r)
        is_readable = not any(isinstance(name, hostile.NotUtf8) for name, _ in headers)
        key = hostile.key(r, user.encode())
        return _Sent(number, key, sound, event["eventId"] if is_readable else None), headers
    _, value = hostile.json_text(r, event)
    return _Sent(number, hostile.key(r, user.encode()), value, None), hostile.headers(r)


def _compare(settings: Settings, sent: list[_Sent], report: Report) -> None:
    dead = _dead_letters(settings)
    with connect(settings) as session:
        table = f"{settings.cassandra.keyspace}.{settings.ingest.table}"
        stored = Counter(str(row.event_id) for row in session.execute(f"SELECT event_id FROM {table}"))
    for one in sent:
        event_id = one.event_id or _event_id(one.value)
        is_dead, times = one.place in dead, stored[event_id] if event_id else 0
        fault = ""
        if one.event_id is not None and (is_dead or times != 1):
            fault = f"a sound event is stored {times} times, and dead letter: {is_dead}"
        elif not is_dead and times != 1:
            fault = f"neither a dead letter nor stored once: {times} times"
        elif is_dead and dead[one.place] != (one.key, one.value):
            fault = "the dead letter has another key or value"
        outcome = "stored" if not is_dead else "dead letter"
        report.add(_TARGET if one.event_id is None else f"{_TARGET}, sound", outcome)
        if fault:
            report.findings.append(f"input {one.number}, sink, {one.place}: {fault}; {str(one.value)[:300]}")


def _dead_letters(settings: Settings) -> dict[Place, tuple[bytes | None, bytes | None]]:
    topic = settings.ingest.dead_letter_topic
    found = {}
    for message in messages_between(settings, topic, beginning_offsets(settings, topic), end_offsets(settings, topic)):
        headers = dict(headers_of(message))
        place = int(headers["dead-letter.partition"]), int(headers["dead-letter.offset"])
        found[place] = message.key(), message.value()
    return found


def _event_id(value: bytes | None) -> str | None:
    """The id of an event, as the database writes it."""
    try:
        return str(uuid.UUID(json.loads(value or b"")["eventId"]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
