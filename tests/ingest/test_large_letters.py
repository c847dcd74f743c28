"""Messages that must become dead letters, and are larger than the topic of dead letters takes: it takes a part."""

import os
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from tests.ingest.sinking import an_event, dead_letters, run_once
from tests.support.topics import alter_topic
from tests.support.waiting import wait_for
from writetime.cli.main import main
from writetime.clients.kafka import client_config, delete_topics, max_message_bytes
from writetime.core.config import Settings
from writetime.ingest import dead_letter_topic
from writetime.ingest.topics import ensure_ingest_topics

pytestmark = pytest.mark.long

_MIB = 1024 * 1024
# Each is smaller in the topic of events, as its client has compressed it.
LARGE: dict[str, tuple[bytes | None, bytes, list[tuple[str, bytes]]]] = {
    "a text of 14 MB": (b"k", b"poison" * (14 * _MIB // 6), []),
    "zeros beyond the client's limit": (b"k", bytes(70 * _MIB), []),
    "a valid event beyond the limit of a row": (b"u", an_event(1, '"' + "x" * 5_600_000 + '"').value(), []),
    "bytes that no client can compress": (b"k", os.urandom(2 * _MIB), []),
    "a large key": (os.urandom(2 * _MIB), b"poison", []),
    "a large header": (None, b"poison", [("h", os.urandom(2 * _MIB))]),
    "all of them": (os.urandom(_MIB), os.urandom(_MIB), [("h", os.urandom(_MIB))] * 2),
}


def send(settings: Settings, *messages: tuple[bytes | None, bytes, Any]) -> None:
    alter_topic(settings, settings.ingest.topic, {"max.message.bytes": str(128 * _MIB)})
    wait_for(lambda: max_message_bytes(settings, settings.ingest.topic) == 128 * _MIB)
    own = {"message.max.bytes": 100 * _MIB, "compression.type": "zstd", "batch.num.messages": 1}
    producer = Producer(client_config(settings, **own))
    for key, value, headers in messages:
        producer.produce(settings.ingest.topic, value, key, 0, headers=headers)
    assert producer.flush(60) == 0


@pytest.mark.parametrize("message", LARGE.values(), ids=LARGE)
def test_a_dead_letter_always_fits(settings: Settings, message: tuple[bytes | None, bytes, Any]) -> None:
    """And messages before and after it are stored."""
    send(settings, (b"u", an_event(2).value(), []), message, (b"u", an_event(3).value(), []))
    assert [r["outcome"] for r in run_once(settings)] == ["stored", "dead", "stored"]
    (letter,) = dead_letters(settings)
    assert letter.origin == f"{settings.ingest.topic}/0@1"
    assert letter.reason
    key, value, headers = message
    if letter.is_shortened:
        assert (key or b"").startswith(letter.key or b"")
        assert value.startswith(letter.value or b"")
        assert f"value {len(value)} B" in letter.added["shortened"].decode()
    else:
        assert (letter.key, letter.value, letter.headers) == (key, value, headers)


@pytest.mark.parametrize("limit", [1_000, 5_000, 100_000, 2_000_000])
def test_the_limit_of_the_topic_does_not_matter(settings: Settings, limit: int) -> None:
    alter_topic(settings, settings.ingest.dead_letter_topic, {"max.message.bytes": str(limit)})
    wait_for(lambda: max_message_bytes(settings, settings.ingest.dead_letter_topic) == limit)
    sizes = (10, 1_000, 50_000, 90_000, 500_000)
    send(settings, *((b"k", os.urandom(size), []) for size in sizes))
    assert [r["outcome"] for r in run_once(settings)] == ["dead"] * 5
    letters = dead_letters(settings)
    assert sorted(int(letter.origin.split("@")[1]) for letter in letters) == list(range(5))
    assert sum(letter.is_shortened for letter in letters) == sum(size + 500 > limit for size in sizes)


def test_a_shortened_letter_is_redriven_whole(settings: Settings) -> None:
    """Its message is read at its origin, as long as that is there."""
    value = an_event(1, '"' + "x" * 2_500_000 + '"').value()
    alter_topic(settings, settings.ingest.dead_letter_topic, {"max.message.bytes": "1000"})
    wait_for(lambda: max_message_bytes(settings, settings.ingest.dead_letter_topic) == 1000)
    send(settings, (b"u", b"{" + value, [("h", b"1")]))
    run_once(settings)
    (letter,) = dead_letters(settings)
    assert letter.is_shortened
    assert dead_letter_topic.redrive(settings) == dead_letter_topic.Redriven(1, 0, 0)
    alter_topic(settings, settings.ingest.dead_letter_topic, {"max.message.bytes": str(8 * _MIB)})
    wait_for(lambda: max_message_bytes(settings, settings.ingest.dead_letter_topic) == 8 * _MIB)
    assert [r["outcome"] for r in run_once(settings)] == ["dead"]
    (again,) = [found for found in dead_letters(settings) if not found.is_shortened]
    assert (again.value, again.headers) == (b"{" + value, [("h", b"1"), ("redriven", b"1")])


def test_a_shortened_letter_without_its_message(settings: Settings) -> None:
    """It stays a dead letter, also when it was redriven twice, and names why."""
    alter_topic(settings, settings.ingest.dead_letter_topic, {"max.message.bytes": "1000"})
    wait_for(lambda: max_message_bytes(settings, settings.ingest.dead_letter_topic) == 1000)
    send(settings, (b"u", os.urandom(200_000), []))
    run_once(settings)
    delete_topics(settings, [settings.ingest.topic])
    ensure_ingest_topics(settings)
    send(settings, (b"u", b"another", []))
    for _ in range(2):
        answer = CliRunner(catch_exceptions=False).invoke(main, ["dead-letters", "redrive"])
        assert answer.stdout.startswith("1 shortened") or "\n1 shortened" in answer.stdout
        # The partition of a letter without a key is random.
        letter = max(dead_letters(settings), key=lambda letter: letter.reason.startswith("only"))
        assert letter.is_shortened
        assert letter.reason == f"only the beginning is left: {letter.origin} is gone"
        assert letter.added["shortened"].startswith(b"key 1 B, value 200000 B")
