"""Dead letters are stored completely, listed, and sent again."""

import os
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError
from kafka import KafkaProducer

from tests.ingest.sinking import an_event, dead_letters, produce, rows, run_once
from tests.support.topics import alter_topic
from writetime.cli.main import main
from writetime.clients.kafka import end_offsets
from writetime.core.config import Settings, load
from writetime.core.errors import WritetimeError
from writetime.ingest import dead_letter_rows, dead_letter_topic, writer
from writetime.ingest.drain import OffsetRange
from writetime.ingest.event import InvalidEvent


class RawName(str):
    """A header name that a client sends as bytes that are not UTF-8, as clients in other languages can."""

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return b"trace-\xff\xfe"


def produce_raw_name(settings: Settings, topic: str, *values: bytes) -> None:
    producer = KafkaProducer(bootstrap_servers=settings.kafka.bootstrap_servers)
    try:
        for value in values:
            producer.send(topic, value, partition=0, headers=[("plain", b"1"), (RawName(), b"17")]).get(30)
    finally:
        producer.close()


def test_a_dead_letter_is_the_whole_message_with_its_reason_and_origin(settings: Settings) -> None:
    produce(settings, [b"not JSON"], headers=[("trace", b"17")])
    assert [(r["outcome"], r["event_id"]) for r in run_once(settings)] == [("dead", None)]
    (letter,) = dead_letters(settings)
    assert (letter.value, letter.headers) == (b"not JSON", [("trace", b"17")])
    assert letter.reason.startswith("the value is not JSON")
    assert letter.origin == f"{settings.ingest.topic}/0@0"


def test_redrive_stores_events_that_became_valid(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    large = an_event(1, f'"{"x" * 500}"')
    produce(settings, [large.value(), an_event(2).value()])
    with monkeypatch.context() as small:
        small.setattr(writer, "MAX_PAYLOAD_BYTES", 100)
        assert [r["outcome"] for r in run_once(settings)] == ["dead", "stored"]
    assert dead_letter_topic.redrive(settings).count == 1
    assert dead_letter_topic.redrive(settings).count == 0
    assert [r["outcome"] for r in run_once(settings)] == ["stored"]
    assert [event_id for event_id, _ in rows(settings)] == [large.event_id, an_event(2).event_id]


def test_a_redriven_event_that_fails_again_is_a_dead_letter_again_and_its_rounds_are_counted(
    settings: Settings,
) -> None:
    produce(settings, [b"poison"])
    for _ in range(3):
        assert list(dead_letter_topic.status_lines(settings)) == []
        assert [r["outcome"] for r in run_once(settings)] == ["dead"]
        (line,) = dead_letter_topic.status_lines(settings)
        assert line.split()[:4] == ["ingest", "1", "dead", "letter"]
        assert dead_letter_topic.redrive(settings).count == 1
    letters = dead_letters(settings)
    assert len(letters) == 3
    assert {letter.value for letter in letters} == {b"poison"}
    assert sorted(letter.headers for letter in letters) == [[], [("redriven", b"1")], [("redriven", b"2")]]


def test_letters_that_do_not_fit_into_the_clients_queue_together_are_redriven(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(dead_letter_topic.REDRIVE, "queue.buffering.max.kbytes", 50)
    produce(settings, [b"x" * 5_000] * 60)
    assert [r["outcome"] for r in run_once(settings)] == ["dead"] * 60
    assert dead_letter_topic.redrive(settings).count == 60
    assert [r["outcome"] for r in run_once(settings)] == ["dead"] * 60


def test_a_letter_that_is_too_large_now_is_a_dead_letter_again_and_does_not_stop_the_others(settings: Settings) -> None:
    large = os.urandom(10_000)
    produce(settings, [large, b"small"])
    assert [r["outcome"] for r in run_once(settings)] == ["dead"] * 2
    topic = settings.ingest.topic
    alter_topic(settings, topic, {"max.message.bytes": "5000"})
    output = CliRunner(catch_exceptions=False).invoke(main, ["dead-letters", "redrive"]).output
    assert output.startswith("1 redriven\n1 refused as too large: they are dead letters again; raise max.message.bytes")
    assert [r["outcome"] for r in run_once(settings)] == ["dead"]
    (refused,) = (letter for letter in dead_letters(settings) if letter.reason.startswith("redriven, but"))
    assert (refused.value, refused.origin, refused.headers) == (large, f"{topic}/0@0", [])
    assert refused.reason.endswith("raise its max.message.bytes")
    alter_topic(settings, topic, {"max.message.bytes": "1000000"})
    assert dead_letter_topic.redrive(settings).count == 2


class Failing:
    """In place of a producer: it refuses values of more than 9 bytes as too large, and others while `is_down`."""

    is_down = True
    produced: ClassVar[list[tuple[str, bytes]]] = []

    def __init__(self, _: object) -> None:
        self._waiting: list[tuple[Any, KafkaError | None]] = []

    def produce(self, topic: str, *, value: bytes, on_delivery: Any, **_: object) -> None:
        fault = None
        if topic != "user-events.dead":
            down = KafkaError._MSG_TIMED_OUT if self.is_down else None
            code = KafkaError.MSG_SIZE_TOO_LARGE if len(value) > 9 else down
            fault = None if code is None else KafkaError(code)
        if fault is None:
            self.produced.append((topic, value))
        self._waiting.append((on_delivery, fault))

    def flush(self) -> None:
        for on_delivery, fault in self._waiting:
            on_delivery(fault, None)
        self._waiting = []


def test_a_redrive_that_fails_makes_no_letter_a_dead_letter_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each attempt would double those that are too large."""
    letters = [dead_letter_topic.DeadLetter(0, i, None, value, [], {}) for i, value in enumerate([b"x" * 10, b"small"])]
    monkeypatch.setattr(dead_letter_topic, "Producer", Failing)
    monkeypatch.setattr(Failing, "produced", [])
    monkeypatch.setattr(dead_letter_topic, "topic_ids", lambda *_: {})
    monkeypatch.setattr(dead_letter_topic, "_not_redriven", lambda _: ({0: 0}, {0: 2}))
    monkeypatch.setattr(dead_letter_topic, "read", lambda *_: (letter for letter in letters))
    committed: list[object] = []
    monkeypatch.setattr(dead_letter_topic, "commit_offsets", lambda *_: committed.append(_))
    settings = load()
    for _ in range(2):
        with pytest.raises(WritetimeError, match="1 of 2 dead letters not redriven"):
            dead_letter_topic.redrive(settings)
    assert (Failing.produced, committed) == ([], [])
    monkeypatch.setattr(Failing, "is_down", False)
    assert dead_letter_topic.redrive(settings) == dead_letter_topic.Redriven(1, 1)
    assert Failing.produced == [("user-events", b"small"), ("user-events.dead", b"x" * 10)]
    assert len(committed) == 1


def test_large_letters_become_rows_in_small_batches(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letter_rows, "BATCH_BYTES", 12_000)
    produce(settings, [b"x" * 5_000] * 7)
    run_once(settings)
    topic = settings.ingest.dead_letter_topic
    ends = end_offsets(settings, topic)
    ranges = [OffsetRange(partition, 0, end) for partition, end in ends.items() if end]
    batches = [batch for r in ranges for batch in dead_letter_rows.read_range(settings, 1, r)]
    assert sum(batch.num_rows for batch in batches) == 7
    assert max(batch.num_rows for batch in batches) <= 3


def test_the_status_without_a_topic_or_kafka(settings: Settings) -> None:
    other = settings.ingest.model_copy(update={"dead_letter_topic": "nothing"})
    assert list(dead_letter_topic.status_lines(settings.model_copy(update={"ingest": other}))) == []
    away = settings.kafka.model_copy(update={"bootstrap_servers": "127.0.0.1:1"})
    assert list(dead_letter_topic.status_lines(settings.model_copy(update={"kafka": away}))) == []


def test_headers_that_look_like_our_own_are_harmless(settings: Settings) -> None:
    produce(settings, [b"poison"], headers=[("redriven", b"often"), ("dead-letter.offset", b"\xff"), ("k", None)])
    run_once(settings)
    (letter,) = dead_letters(settings)
    assert letter.origin == f"{settings.ingest.topic}/0@0"
    assert dead_letter_topic.redrive(settings).count == 1
    assert [r["outcome"] for r in run_once(settings)] == ["dead"]


def test_a_header_name_that_is_not_utf_8_is_a_dead_letter_and_does_not_stop_other_messages(settings: Settings) -> None:
    # Many, because Python checks the client's results in the first calls only.
    values = [an_event(n).value() for n in range(40)]
    produce_raw_name(settings, settings.ingest.topic, *values)
    produce(settings, [an_event(40).value()])
    assert [r["outcome"] for r in run_once(settings)] == ["dead"] * 40 + ["stored"]
    letters = sorted(dead_letters(settings), key=lambda letter: int(letter.origin.rpartition("@")[2]))
    assert [(letter.value, letter.headers) for letter in letters] == [(value, []) for value in values]
    assert {letter.reason for letter in letters} == {"the name of a header is not UTF-8; the headers are not kept"}
    assert letters[7].origin == f"{settings.ingest.topic}/0@7"
    assert dead_letter_topic.redrive(settings).count == 40
    assert [r["outcome"] for r in run_once(settings)] == ["stored"] * 40


def test_such_a_header_in_the_dead_letter_topic_is_harmless(settings: Settings) -> None:
    produce_raw_name(settings, settings.ingest.dead_letter_topic, b"foreign")
    produce(settings, [b"poison"])
    run_once(settings)
    assert {letter.value for letter in dead_letters(settings)} == {b"foreign", b"poison"}


def test_the_list_has_no_control_characters(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    # A command to the terminal in the value, and in a reason, which anybody who may write to the topic can set.
    def refuse(*_: object) -> None:
        raise InvalidEvent("\x1b[2J bad \r\n")

    produce(settings, [b"\x1b]0;owned\x07\tpoison\x9b2J\n\xe2\x80\xae"])
    with monkeypatch.context() as patch:
        patch.setattr("writetime.ingest.event_pipeline.decode", refuse)
        run_once(settings)
    (line,) = CliRunner(catch_exceptions=False).invoke(main, ["dead-letters", "list"]).output.splitlines()
    origin, reason, value = line.split("\t")
    assert origin == f"{settings.ingest.topic}/0@0"
    assert reason == r"\x1b[2J bad \r\n"
    assert value.startswith(r"\x1b]0;owned\x07\tpoison")
    assert all(c.isprintable() for c in origin + reason + value)
