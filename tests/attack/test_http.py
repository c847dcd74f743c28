"""A short attack on the ingress: it finds nothing, and it would find known faults."""

import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.attack.answers import Connection
from tests.attack.calls import Call, Input, framed
from tests.attack.http import Attack, attack
from writetime.core.config import Settings


@pytest.mark.usefixtures("queue_tables")
def test_no_call_harms_the_ingress(settings: Settings, tmp_path: Path) -> None:
    report = attack(settings, tmp_path, seed=1, rounds=300)
    print(report.text())
    assert report.tried == 300
    assert not report.findings, report.text()
    outcomes = {outcome for counts in report.counts.values() for outcome in counts}
    assert outcomes >= {"acknowledged", "refused", "left"}


@contextmanager
def answering(data: bytes, *, resets: bool = False) -> Iterator[int]:
    """A server that answers one connection with these bytes; yield its port."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(data)
            if resets:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def answer(status: int, body: bytes, headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d x\r\n%scontent-length: %d\r\n\r\n" % (status, headers, len(body)) + body


REFUSED = b'{"status":"error","reason":"x"}'
QUEUED = b'{"status":"queued","eventId":"0f0f0f0f-0f0f-4f0f-8f0f-0f0f0f0f0f0f"}'
SENTINEL = answer(400, b'{"status":"error","reason":"unknown field \'end\'"}')
SOUND = Call(framed(b"POST", b"/events", [], b"{}"), frozenset({202}))


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (answer(202, QUEUED) + SENTINEL, []),
        (answer(400, REFUSED) + SENTINEL, ["400, not one of"]),
        (answer(500, b"Internal Server Error") + SENTINEL, ["not documented", "500, not one of"]),
        (answer(503, REFUSED, b"retry-after: 1\r\n") + SENTINEL, ["not documented", "503, not one of"]),
        (answer(202, b"{}") + SENTINEL, ["not documented", "closed"]),
        (answer(202, b"[]") + SENTINEL, ["not documented", "closed"]),
        (answer(202, b'{"status":"queued","eventIds":["x"]}') + SENTINEL, ["not documented", "closed"]),
        (answer(202, QUEUED[:-1]) + SENTINEL, ["not documented", "closed"]),
        (answer(202, QUEUED) * 2 + SENTINEL, ["2 answers to 1 calls"]),
        (SENTINEL, ["0 answers to 1 calls"]),
        (answer(202, QUEUED), ["closed, though nothing was wrong"]),
        (answer(202, QUEUED)[:-1], ["an answer that is cut off", "0 answers to 1 calls"]),
        (b"HTTP/1.1 202 x\r\n\r\n" + QUEUED, ["not documented", "closed"]),
        (b"", ["0 answers to 1 calls"]),
    ],
)
def test_a_wrong_answer_is_found(data: bytes, found: list[str]) -> None:
    attack = object.__new__(Attack)
    attack._acknowledged, attack._items, attack._said = Counter(), set(), {}
    with answering(data) as port, Connection(port, 10.0) as connection:
        connection.send((SOUND.data, 0.0))
        answers, ending = connection.answers("end")
    faults = attack._judge(Input("calls", ((SOUND.data, 0.0),), (SOUND,)), answers, ending)
    assert len(faults) == len(found), faults
    assert all(part in fault for part, fault in zip(found, faults, strict=True)), faults


def test_a_reset_is_found() -> None:
    with answering(b"", resets=True) as port, Connection(port, 10.0) as connection:
        connection.send((SOUND.data, 0.0))
        assert connection.answers("end") == ([], "reset")
