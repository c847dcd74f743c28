"""Dead letters: kept whole, listed, and sent once more."""

import pytest

from writetime.config import Settings
from writetime.ingest import deadletters, writer

from .test_sink import an_event, dead_letters, produce, rows, run_once


def test_a_dead_letter_is_the_whole_message_with_its_reason_and_origin(settings: Settings) -> None:
    produce(settings, [b"not JSON"], headers=[("trace", b"17")])
    assert [(r["outcome"], r["event_id"]) for r in run_once(settings)] == [("dead", None)]
    (letter,) = dead_letters(settings)
    assert (letter.value, letter.headers) == (b"not JSON", [("trace", b"17")])
    assert letter.reason.startswith("the value is not JSON")
    assert letter.origin == f"{settings.ingest.topic}/0@0"


def test_redrive_stores_what_has_become_possible(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    large = an_event(1, f'"{"x" * 500}"')
    produce(settings, [large.value(), an_event(2).value()])
    with monkeypatch.context() as small:
        small.setattr(writer, "MAX_PAYLOAD_BYTES", 100)
        assert [r["outcome"] for r in run_once(settings)] == ["dead", "stored"]
    assert deadletters.redrive(settings) == 1
    assert deadletters.redrive(settings) == 0
    assert [r["outcome"] for r in run_once(settings)] == ["stored"]
    assert [event_id for event_id, _ in rows(settings)] == [large.event_id, an_event(2).event_id]


def test_what_fails_again_is_a_dead_letter_again_and_its_rounds_are_counted(settings: Settings) -> None:
    produce(settings, [b"poison"])
    for _ in range(3):
        assert [r["outcome"] for r in run_once(settings)] == ["dead"]
        assert deadletters.redrive(settings) == 1
    letters = dead_letters(settings)
    assert len(letters) == 3
    assert {letter.value for letter in letters} == {b"poison"}
    assert sorted(letter.headers for letter in letters) == [[], [("redriven", b"1")], [("redriven", b"2")]]


def test_headers_that_look_like_our_own_do_no_harm(settings: Settings) -> None:
    produce(settings, [b"poison"], headers=[("redriven", b"often"), ("dead-letter.offset", b"\xff"), ("k", None)])
    run_once(settings)
    (letter,) = dead_letters(settings)
    assert letter.origin == f"{settings.ingest.topic}/0@0"
    assert deadletters.redrive(settings) == 1
    assert [r["outcome"] for r in run_once(settings)] == ["dead"]
