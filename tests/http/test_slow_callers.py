"""Calls that arrive slowly, and connections without calls."""

import json
import time
from collections.abc import Iterator

import pytest

from tests.http.callers import GET, POST, Caller, post, statuses
from tests.http.serving import EVENT, Running, changed, running
from writetime.core.config import Settings


@pytest.fixture(scope="module")
def hasty(alone: Settings) -> Iterator[Running]:
    with running(changed(alone, request_seconds=0.4)) as ingress:
        yield ingress


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (POST, b""),
        (POST, b"a: 1\r\n"),
        (POST + b"content-length: 100\r\n\r\n", b""),
        (POST + b"content-length: 100\r\n\r\n", b"x"),
        (POST + b"transfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (POST.replace(b"events", b"queues/q/items") + b"content-length: 100\r\n\r\n", b"x"),
        (GET + POST, b"a"),
    ],
)
def test_a_call_that_does_not_come_in_time_is_answered_408(hasty: Running, begin: bytes, piece: bytes) -> None:
    with Caller(hasty.port) as caller:
        began = time.monotonic()
        caller.send(begin, *(30 * [piece] if piece else []), pause=0.05)
        if begin.startswith(GET):
            assert (answer := caller.answer()) is not None
            assert answer.status == 200
        assert (answer := caller.answer()) is not None
        assert answer.status == 408
        assert time.monotonic() - began < 10
        assert caller.answer() is None


def test_an_answered_call_may_not_continue_forever(hasty: Running) -> None:
    with Caller(hasty.port) as caller:
        caller.send(b"PUT" + POST[4:] + b"content-length: 100000\r\n\r\n")
        assert not caller.send(*[b"x"] * 100, pause=0.05)
        assert (answer := caller.answer()) is not None
        assert answer.status == 405
        assert caller.answer() is None


def test_a_connection_without_calls_is_closed(alone: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("writetime.http.ingress.KEEP_ALIVE_SECONDS", 0.3)
    with running(alone) as ingress:
        for begin in (b"", b"\r\n", GET, GET + b"\r\n"):
            for piece in (b"", b"\r\n"):
                with Caller(ingress.port) as caller:
                    caller.send(begin, *(30 * [piece] if piece else []), pause=0.05)
                    assert begin[:3] != b"GET" or caller.answer()
                    assert caller.answer() is None


def test_waiting_for_an_answer_is_not_a_delay_of_the_caller(alone: Settings) -> None:
    call = post(json.dumps(EVENT).encode())
    # A busy machine needs a part of the first for the rest of the second call.
    with running(changed(alone, request_seconds=0.8, ack_timeout_seconds=1.0)) as ingress:
        assert statuses(ingress.port, [call, call], expected=2) == [503, 503]
        # The second call is larger than the read-ahead limit.
        large = post(b" " * 200_000 + b"{}")
        assert statuses(ingress.port, [call, large], expected=2) == [503, 400]


def test_a_connection_may_be_idle(hasty: Running) -> None:
    with Caller(hasty.port) as caller:
        for _ in range(2):
            time.sleep(0.6)
            caller.send(GET)
            assert (answer := caller.answer()) is not None
            assert answer.status == 200
