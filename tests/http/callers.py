"""Clients of the ingress that send bytes as they are."""

import json
import re
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

POST = b"POST /events HTTP/1.1\r\nhost: test\r\n"
GET = b"GET /health HTTP/1.1\r\nhost: test\r\n\r\n"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: dict[str, Any]


class Caller:
    """A client that sends bytes as they are."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._received = b""

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *pieces: bytes, pause: float = 0.0) -> bool:
        """Send pieces one after the other; return whether the server took them all."""
        try:
            for piece in pieces:
                self.socket.sendall(piece)
                time.sleep(pause)
        except OSError:
            return False
        return True

    def answer(self) -> Answer | None:
        """Return the next answer; None if the connection was closed."""
        while (head := re.match(rb"HTTP/1\.1 (\d+) .*?\r\n\r\n", self._received, re.DOTALL)) is None:
            if not self._receive():
                return None
        headers = dict(line.decode().lower().split(": ", 1) for line in head[0].split(b"\r\n")[1:-2])
        end = head.end() + int(headers["content-length"])
        while len(self._received) < end:
            assert self._receive()
        body, self._received = self._received[head.end() : end], self._received[end:]
        return Answer(int(head[1]), headers, json.loads(body))

    def _receive(self) -> bool:
        try:
            data = self.socket.recv(65_536)
        except ConnectionResetError:
            return False
        self._received += data
        return bool(data)


def statuses(port: int, pieces: Iterable[bytes], pause: float = 0.0, expected: int = 1) -> list[int]:
    """Return the statuses of all answers on one connection until the server closes it, or sends nothing for half a
    second after the expected answers, which a busy machine or a broker may delay."""
    found = []
    with Caller(port) as caller:
        caller.send(*pieces, pause=pause)
        try:
            while (answer := caller.answer()) is not None:
                found.append(answer.status)
                if len(found) >= expected:
                    caller.socket.settimeout(0.5)
        except TimeoutError:
            pass
    return found


def chunked(*chunks: bytes, trailers: bytes = b"") -> bytes:
    framed = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return POST + b"transfer-encoding: chunked\r\n\r\n" + framed + b"0\r\n" + trailers + b"\r\n"


def post(body: bytes, headers: bytes = b"") -> bytes:
    return POST + headers + b"content-length: %d\r\n\r\n" % len(body) + body
