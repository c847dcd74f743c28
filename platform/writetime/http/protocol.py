"""HTTP/1.1 with limits. uvicorn's protocol has none for headers, trailers, the time that a call takes to arrive, and
the bytes of unfinished bodies; and httptools drops the body of a call that requests another protocol.

A call that breaks a limit is answered in its turn, after the earlier calls of the same connection. Then the connection
is closed. An application that waits for the body of such a call gets a disconnect.

Rules of HTTP: RFC 9112, 2.3 (version), 3.2 (one Host), 5 and 7.1.2 (trailers are not headers); RFC 9110, 7.8 (a server
may ignore Upgrade), 15.5.6 (405 has Allow).
"""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import httptools
import orjson
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from writetime.core.config import Settings
from writetime.http.bodies import RefusedCall
from writetime.http.metrics import IngressMetrics

MAX_HEADERS = 100
MAX_HEADER_BYTES = 64 * 1024
# Calls of one connection that wait for earlier ones.
MAX_PIPELINED = 100
RETRY_AFTER_SECONDS = 1
# If a connection is closed while its client is still sending, TCP resets it, and the client may lose the answer.
_LINGER_SECONDS = 1.0
# The bytes of a header in addition to its name and value: a colon, a space and the end of the line.
_HEADER_OVERHEAD = 4
_VERSIONS = frozenset({"1.0", "1.1"})


class Gate:
    """Shared by the connections of one ingress: limits, metrics, and the bytes of bodies of unfinished calls, which are
    arriving or not answered yet.
    """

    def __init__(self, settings: Settings, largest_body: int, metrics: IngressMetrics) -> None:
        """Set the limits; one body of `largest_body` bytes always has room."""
        self.request_seconds = settings.ingest.request_seconds
        self.max_unfinished_bytes = max(settings.ingest.max_unfinished_bytes, largest_body)
        self.unfinished_bytes = 0
        self.refused = metrics.refused
        metrics.unfinished_bytes.set_function(lambda: self.unfinished_bytes)

    @contextmanager
    def admitted(self, size: int) -> Iterator[None]:
        """Count the bytes of a body that has arrived, until its call is answered. Raises RefusedCall: too many bytes
        are not answered.
        """
        if self.unfinished_bytes + size > self.max_unfinished_bytes:
            raise RefusedCall(429, "too many bytes of calls are not answered yet; repeat the call later")
        self.unfinished_bytes += size
        try:
            yield
        finally:
            self.unfinished_bytes -= size

    def protocol(self, **options: Any) -> asyncio.Protocol:
        """Return the protocol of a new connection; uvicorn passes the options."""
        return _LimitedProtocol(self, **options)


class _LimitedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, gate: Gate, **options: Any) -> None:
        super().__init__(**options)
        self._gate = gate
        # The scope of the last call that has arrived: while another one arrives, uvicorn has another scope.
        self._arrived: object = self.scope
        # Bytes received since a call began or ended, or a part of its body arrived.
        self._silent_bytes = 0
        # Bytes of the body of the arriving call, and those that the gate has counted.
        self._body_bytes = self._counted_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._fault: tuple[int, str] | None = None
        self._refusal: bytes | None = None
        # The call whose application runs. uvicorn keeps only the last call that arrived, which may wait for this one.
        self._running: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        # uvicorn waits for a first call without a limit.
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_call()
        self._unset_keepalive_if_required()
        if self._running is not None:
            _disconnect(self._running)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        self._silent_bytes += len(data)
        try:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as e:
                self._parse_without_upgrade(data[e.args[0] :])
        except httptools.HttpParserError as e:
            self._refuse(*(self._fault or (400, f"this is not HTTP/1.1: {e}")))
            return
        if self.scope is not self._arrived:
            self._wait()

    def _parse_without_upgrade(self, data: bytes) -> None:
        """Pass a call to another parser: after Upgrade, it reads no body. `data` follows the headers."""
        while True:
            version = self.parser.get_http_version().encode()
            head = [self.parser.get_method(), b" ", self.url, b" HTTP/", version, b"\r\n"]
            for name, value in self.headers:
                if name != b"upgrade":
                    head += [name, b": ", value, b"\r\n"]
            self.parser = httptools.HttpRequestParser(self)
            # As uvicorn sets it.
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            data = b"".join([*head, b"\r\n", data])
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as e:
                data = data[e.args[0] :]

    def _wait(self) -> None:
        """Wait for the rest of a call, unless it is too large."""
        self._unset_keepalive_if_required()
        gate = self._gate
        if not (in_head := self._in_head) and not self.cycle.response_complete:
            gate.unfinished_bytes += self._body_bytes - self._counted_bytes
            self._counted_bytes = self._body_bytes
        if self._silent_bytes > MAX_HEADER_BYTES or len(self.headers) > MAX_HEADERS:
            self._refuse(*_TOO_LARGE)
        elif gate.unfinished_bytes > gate.max_unfinished_bytes and self._counted_bytes:
            self._refuse(429, "too many bytes of calls are arriving or not answered yet; repeat the call later")
        elif in_head and self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            # uvicorn refuses it only at the end of the headers.
            self._refuse(503, "there are more than ingest.max_connections connections")
        elif self._timer is None:
            self._timer = self.loop.call_later(gate.request_seconds, self._too_late)

    @property
    def _in_head(self) -> bool:
        """Whether there is no call to answer yet: between two calls, or before the end of the headers."""
        return self.scope is self._arrived or self.cycle is None or self.cycle.scope is not self.scope

    # -- callbacks of the parser; an exception of one ends the parser, whose caller gets HttpParserError

    def on_headers_complete(self) -> None:
        size, hosts = len(self.url), 0
        for name, value in self.headers:
            size += len(name) + len(value) + _HEADER_OVERHEAD
            hosts += name == b"host"
        if size > MAX_HEADER_BYTES or len(self.headers) > MAX_HEADERS:
            self._stop(*_TOO_LARGE)
        version = self.parser.get_http_version()
        if version not in _VERSIONS:
            self._stop(505, f"HTTP/{version} is not supported; use HTTP/1.1")
        if hosts != 1 and (hosts or version == "1.1"):
            self._stop(400, f"a call must have one Host header; this one has {hosts}")
        if len(self.pipeline) >= MAX_PIPELINED:
            self._stop(429, f"more than {MAX_PIPELINED} calls wait on this connection; wait for their answers")
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                self._stop(405, "CONNECT is not supported")
            return
        self._unset_keepalive_if_required()
        super().on_headers_complete()
        # Trailers follow; the application keeps the list of the headers.
        self.headers = []

    def on_body(self, body: bytes) -> None:
        self._silent_bytes = 0
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        if self.headers and (len(self.headers) > MAX_HEADERS or _size(self.headers) > MAX_HEADER_BYTES):
            self._stop(*_TOO_LARGE)
        self._silent_bytes = self._body_bytes = 0
        if self._timer is not None:
            self._end_call()
        self._arrived = self.scope
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if self._refusal is not None and not self.pipeline:
            self._send_refusal()
        else:
            super().on_response_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _stop(self, status: int, reason: str) -> None:
        """End the parser with a refusal of its present call. Raises HttpParserError: always."""
        self._fault = status, reason
        raise httptools.HttpParserError(reason)

    # -- refusals

    def _too_late(self) -> None:
        self._timer = None
        if self.pipeline:
            # Nothing more is read before earlier calls are answered.
            self._timer = self.loop.call_later(self._gate.request_seconds, self._too_late)
        else:
            self._refuse(408, f"the call has not arrived in {self._gate.request_seconds:g} s")

    def _refuse(self, status: int, reason: str) -> None:
        """Answer the arriving call, or the invalid data, in its turn; then close the connection."""
        self._end_call()
        self._gate.refused.labels(status).inc()
        self._refusal = _answer(status, reason)
        cycle = self.cycle
        if self._in_head:
            if cycle is None or cycle.response_complete:
                self._send_refusal()
        elif self.pipeline and self.pipeline[0][0] is cycle:
            # Its application has not begun.
            self.pipeline.popleft()
        elif cycle.response_started:
            self.transport.close()
        else:
            _disconnect(cycle)
            self._send_refusal()

    def _send_refusal(self) -> None:
        assert self._refusal is not None
        if self.transport.is_closing():
            return
        self.transport.write(self._refusal)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._timer = self.loop.call_later(_LINGER_SECONDS, self.transport.close)

    def _end_call(self) -> None:
        """Reset the counts of the arriving call."""
        self._gate.unfinished_bytes -= self._counted_bytes
        self._body_bytes = self._counted_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _disconnect(cycle: RequestResponseCycle) -> None:
    """Signal a disconnect to the application of a call, and write nothing more."""
    cycle.disconnected = True
    cycle.waiting_for_100_continue = False
    cycle.message_event.set()


_TOO_LARGE = 431, f"a call may have at most {MAX_HEADERS} headers and trailers of {MAX_HEADER_BYTES} bytes together"


def _size(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Return the size of headers in bytes, as sent."""
    return sum(len(name) + len(value) + _HEADER_OVERHEAD for name, value in headers)


def _answer(status: int, reason: str) -> bytes:
    body = orjson.dumps({"status": "error", "reason": reason})
    headers = [b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n" % len(body)]
    if status in (429, 503):
        headers.append(b"retry-after: %d\r\n" % RETRY_AFTER_SECONDS)
    if status == 405:
        headers.append(b"allow: GET, POST\r\n")
    return b"".join([STATUS_LINE[status], *headers, b"\r\n", body])
