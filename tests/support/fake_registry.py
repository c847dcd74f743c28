"""A schema registry in this process that answers like Confluent's, or with answers that a test sets."""

import gzip
import json
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[["Handler"], None]


def answer(content: bytes, status: int = 200, **headers: str) -> Answer:
    """Answer with these bytes."""

    def act(handler: "Handler") -> None:
        handler.send_response(status)
        for name, value in ({"Content_Length": str(len(content))} | headers).items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(content)
        handler.close_connection = True

    return act


def error(status: int, code: int, message: str) -> Answer:
    """Answer with an error of Confluent's API."""
    return answer(json.dumps({"error_code": code, "message": message}).encode(), status)


def raw(content: bytes) -> Answer:
    """Answer with bytes that need not be HTTP, and end the connection."""

    def act(handler: "Handler") -> None:
        handler.wfile.write(content)
        handler.close_connection = True

    return act


def reset(handler: "Handler") -> None:
    """Reset the connection."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()
    handler.close_connection = True


def silence(handler: "Handler") -> None:
    """Say nothing, until the server ends."""
    handler.registry.ends.wait()
    handler.close_connection = True


def drip(handler: "Handler") -> None:
    """Say a byte now and then, for ever."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while not handler.registry.ends.wait(0.05):
        handler.wfile.write(b" ")


def flood(handler: "Handler") -> None:
    """Say as much as possible, for ever."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
    while not handler.registry.ends.is_set():
        handler.wfile.write(bytes(1 << 20))


def bomb(handler: "Handler") -> None:
    """Say 4 GB in compressed form."""
    one = gzip.compress(bytes(1 << 26))
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + 64 * one)
    handler.close_connection = True


def continues(handler: "Handler") -> None:
    """Announce an answer again and again."""
    while not handler.registry.ends.wait(0.05):
        handler.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")


class FakeRegistry(ThreadingHTTPServer):
    """Keeps schemas in memory. `instead` may have an answer of its own to a call's method and path."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.instead: Callable[[str, str], Answer | None] = lambda method, path: None
        self.calls: list[tuple[str, str]] = []
        self.schemas: list[str] = []
        self.subjects: dict[str, list[int]] = {}
        self.compatibility: dict[str, str] = {}
        self.ends = threading.Event()
        self.lock = threading.Lock()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report nothing if a client has disconnected."""

    def respond(self, method: str, path: str, content: Any) -> tuple[int, Any]:
        """Return the status and the answer to a call."""
        match method, path.split("?", maxsplit=1)[0].strip("/").split("/"):
            case "GET", ["subjects", subject, "versions"]:
                if subject not in self.subjects:
                    return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
                return 200, list(range(1, len(self.subjects[subject]) + 1))
            case "POST", ["subjects", subject, "versions"]:
                schema = content["schema"]
                if schema not in self.schemas:
                    self.schemas.append(schema)
                number = self.schemas.index(schema) + 1
                versions = self.subjects.setdefault(subject, [])
                versions += [number] if number not in versions else []
                return 200, {"id": number}
            case "PUT", ["config", subject]:
                self.compatibility[subject] = content["compatibility"]
                return 200, content
            case "GET", ["schemas", "ids", number] if re.fullmatch(r"\d+", number):
                if not 0 < int(number) <= len(self.schemas):
                    return 404, {"error_code": 40403, "message": "Schema not found"}
                return 200, {"schema": self.schemas[int(number) - 1]}
        return 405, {"error_code": 405, "message": "HTTP 405 Method Not Allowed"}


class Handler(BaseHTTPRequestHandler):
    """Answers one call."""

    @property
    def registry(self) -> FakeRegistry:
        """The registry that was called."""
        assert isinstance(self.server, FakeRegistry)
        return self.server

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.registry.calls.append((self.command, self.path))
        act = self.registry.instead(self.command, self.path)
        if act is None:
            with self.registry.lock:
                status, content = self.registry.respond(self.command, self.path, json.loads(body or "null"))
            act = answer(json.dumps(content).encode(), status)
        act(self)

    do_GET = do_POST = do_PUT = _answer

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def fake_registry() -> Iterator[FakeRegistry]:
    """A registry that runs."""
    server = FakeRegistry()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.ends.set()
        server.shutdown()
        thread.join()
        server.server_close()


BAD_ANSWERS: dict[str, Answer] = {
    "object": answer(b"{}"),
    "list": answer(b"[]"),
    "null": answer(b"null"),
    "number": answer(b"1"),
    "text": answer(b'"1"'),
    "nothing": answer(b""),
    "no-content": raw(b"HTTP/1.1 204 No Content\r\n\r\n"),
    "cut-body": answer(b'{"id": 1', Content_Length="100"),
    "cut-chunk": raw(b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n{"id": 1'),
    "cut-json": answer(b'{"id": 1'),
    "html": answer(b"<html>Welcome</html>", Content_Type="text/html"),
    "not-utf-8": answer(b'{"id": "\xff\xfe'),
    "flood": flood,
    "bomb": bomb,
    "continues": continues,
    "not-gzip": answer(b"plain", Content_Encoding="gzip"),
    "deep": answer(b"[" * 100_000),
    "id-null": answer(b'{"id": null, "schema": null}'),
    "id-text": answer(b'{"id": "7", "schema": 7}'),
    "id-true": answer(b'{"id": true, "schema": true}'),
    "id-fraction": answer(b'{"id": 1.5, "schema": "{"}'),
    "id-negative": answer(b'{"id": -1, "schema": ""}'),
    "id-large": answer(b'{"id": 4294967296, "schema": []}'),
    "type-list": answer(b'{"id": 1.0, "schema": "{", "schemaType": []}'),
    "408": answer(b"", 408),
    "429": error(429, 42901, "too many"),
    "500": error(500, 50001, "backend"),
    "500-list": answer(b"[]", 500),
    "502-html": answer(b"<html>", 502),
    "503": answer(b"", 503),
    "504": answer(b"null", 504),
    "no-http": raw(b"SSH-2.0-OpenSSH_9\r\n"),
    "no-answer": raw(b""),
    "half-header": raw(b"HTTP/1.1 200 OK\r\nContent-Le"),
    "reset": reset,
    "silence": silence,
    "drip": drip,
}
"""Answers of a registry that does not do its part now."""
JSON_ANSWERS = [
    *("object", "list", "null", "number", "text", "nothing", "no-content", "type-list"),
    *(name for name in BAD_ANSWERS if name.startswith("id-")),
]
"""Those of them that are sound as HTTP and JSON."""
