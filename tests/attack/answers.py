"""A connection to the ingress that sends arbitrary bytes, and parses answers strictly."""

import json
import re
import selectors
import socket
import time
import uuid
from dataclasses import dataclass, field
from typing import Any, Literal, Self

Ending = Literal["sentinel", "closed", "reset", "an answer that is cut off", "no answer"]
_HEAD = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n((?:[^\r\n]+\r\n)*)\r\n")
# A longer head is invalid.
_MAX_HEAD_BYTES = 10_000


@dataclass
class Answer:
    """One answer, the events or items that it acknowledges, and why it is invalid."""

    status: int
    body: bytes
    event_ids: list[str] = field(default_factory=list)
    item_ids: list[str] = field(default_factory=list)
    fault: str = ""


class Connection:
    """One connection."""

    def __init__(self, port: int, patience: float) -> None:
        """Connect; `patience` is in how many seconds something must come."""
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=patience)
        self._patience = patience
        self._received = bytearray()
        self._ending: Ending | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *pieces: tuple[bytes, float]) -> None:
        """Send pieces, and wait after each; answers are read meanwhile, so that neither side waits for the other."""
        self.socket.setblocking(False)
        with selectors.DefaultSelector() as selector:
            selector.register(self.socket, selectors.EVENT_READ | selectors.EVENT_WRITE)
            for data, pause in pieces:
                rest = memoryview(data)
                while rest and self._ending is None:
                    ready = selector.select(self._patience)
                    if not ready:
                        self._ending = "no answer"
                    for _, events in ready:
                        if events & selectors.EVENT_READ:
                            self._receive()
                        if events & selectors.EVENT_WRITE and self._ending is None:
                            rest = rest[self._send(rest) :]
                time.sleep(pause)
        self.socket.settimeout(self._patience)

    def _send(self, data: memoryview) -> int:
        try:
            return self.socket.send(data[:65_536])
        except BlockingIOError:
            return 0
        except OSError:
            # The answers that the server sent before may still be readable.
            while self._ending is None:
                self._receive()
            return 0

    def _receive(self) -> None:
        try:
            data = self.socket.recv(65_536)
        except BlockingIOError:
            return
        except TimeoutError:
            self._ending = "no answer"
            return
        except OSError:
            self._ending = "reset"
            return
        self._received += data
        if not data:
            self._ending = "closed"

    def answer(self) -> Answer | Ending:
        """Return the next answer, or how the connection ended before it."""
        while True:
            head = _HEAD.match(self._received)
            if head is not None:
                status, end_of_head = int(head[1]), head.end()
                if status < 200:
                    # Interim answers, such as 100 Continue.
                    del self._received[:end_of_head]
                    continue
                headers = [line.split(b":", 1) for line in head[2].lower().splitlines()]
                lengths = [line[1].strip() for line in headers if line[0] == b"content-length"]
                if len(lengths) != 1 or not lengths[0].isdigit():
                    return Answer(status, bytes(self._received[:500]), fault="no length")
                end = end_of_head + int(lengths[0])
                if len(self._received) >= end:
                    body = bytes(self._received[end_of_head:end])
                    del self._received[:end]
                    return _read(status, {line[0] for line in headers}, body)
            elif len(self._received) > _MAX_HEAD_BYTES:
                return Answer(0, bytes(self._received[:500]), fault="no head")
            if self._ending is not None:
                return "an answer that is cut off" if self._received and self._ending == "closed" else self._ending
            self._receive()

    def answers(self, name: str) -> tuple[list[Answer], Ending]:
        """Return the answers up to the one that names this, and how that ended."""
        found: list[Answer] = []
        while isinstance(answer := self.answer(), Answer):
            if answer.status == 400 and name.encode() in answer.body:
                return found, "sentinel"
            found.append(answer)
            if answer.fault:
                return found, "closed"
        return found, answer


_NAMED_HEADERS = {401: b"www-authenticate", 405: b"allow", 429: b"retry-after"}


def _read(status: int, headers: set[bytes], body: bytes) -> Answer:
    answer = Answer(status, body)
    wanted = _NAMED_HEADERS.get(status)
    if wanted is not None and wanted not in headers:
        answer.fault = f"no header {wanted.decode()}"
    if status == 200:
        return answer
    try:
        content: Any = json.loads(body)
        if not isinstance(content, dict):
            raise TypeError("no object")
        if status == 202:
            answer.event_ids, answer.item_ids = _ids(content, "event"), _ids(content, "item")
    except (ValueError, TypeError, AttributeError) as e:
        answer.fault = f"not what is documented: {e}"
        return answer
    if status == 202:
        sound = content.get("status") == "queued" and bool(answer.event_ids) != bool(answer.item_ids)
    else:
        sound = content.get("status") == "error" and isinstance(content.get("reason"), str) and content["reason"] != ""
    if not sound:
        answer.fault = "not what is documented"
    return answer


def _ids(content: dict[str, Any], what: str) -> list[str]:
    found = [content[f"{what}Id"]] if f"{what}Id" in content else content.get(f"{what}Ids", [])
    return [str(uuid.UUID(one)) for one in found]
