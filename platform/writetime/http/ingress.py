"""HTTP events -> Kafka: `202` means that the broker has the event. Work items have a separate path.

`POST /events` is a plain ASGI callable, for speed: Starlette would match a route and make a request and a response per
event. `bench/ingress.py` compares the whole with an ingress on Starlette and kafka-python. All other paths are
Starlette's. One process, one event loop.
"""

import math
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from types import FrameType
from typing import Any

import orjson
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from writetime.clients.tls import files_of, require_readable
from writetime.core.config import Settings
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError
from writetime.core.signals import handle_hangup
from writetime.http import bodies, openapi
from writetime.http.bodies import Disconnected, RefusedCall
from writetime.http.metrics import IngressMetrics
from writetime.http.outbox import BrokerUnreachableError, Outbox, SendFault, check
from writetime.http.protocol import RETRY_AFTER_SECONDS, Gate
from writetime.http.queue_controls import ControlsEndpoint
from writetime.http.queue_page import QueuePage
from writetime.http.tokens import Tokens
from writetime.http.work_items import ItemsEndpoint, max_item_bytes
from writetime.ingest.event import Event, InvalidEvent, accept

MAX_KEY_CHARACTERS = 255
# Longer than the idle time of common load balancers, so that the server never ends a connection just when a call
# arrives.
KEEP_ALIVE_SECONDS = 75


class Ingress:
    """The ASGI application. It needs lifespan events; the outbox lives between them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._limits = settings.ingest
        # A batch that could never fit among the pending events would be retried forever.
        self._max_batch_events = min(settings.ingest.max_batch_events, settings.ingest.max_pending_events)
        self._metrics = IngressMetrics()
        self._tokens = Tokens(settings.ingest.tokens)
        self._outbox: Outbox
        largest = max(self._limits.max_event_bytes, self._limits.max_batch_bytes, max_item_bytes(settings))
        self.gate = Gate(settings, largest, self._metrics)
        self._items = ItemsEndpoint(
            settings, self._max_batch_events, self.gate, self._metrics.registry, lambda: self.draining
        )
        self._controls = ControlsEndpoint(self._items, settings, self.gate)
        self._rest = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/ready", self._ready),
                Route("/metrics", self._show_metrics),
                Route("/openapi.json", self._show_openapi),
                self._items.route,
                *self._controls.routes,
                *QueuePage(self._controls, settings).routes,
            ],
            exception_handlers={HTTPException: _http_error},
            lifespan=self._lifespan,
        )
        # A redirect would contain the host that the caller has sent.
        self._rest.router.redirect_slashes = False
        self.draining = False
        # The reason why the ingress cannot continue, and the function that ends its server.
        self.fault: str | None = None
        self.stop: Callable[[], None] = lambda: None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        is_call = scope["type"] == "http"
        if is_call and scope["path"] not in openapi.OPEN_PATHS and not self._tokens.admit(scope["headers"]):
            self._metrics.unauthorized.inc()
            await _unauthorized(scope, receive, send)
        elif is_call and scope["path"] == "/events":
            await self._serve_events(scope, receive, send)
        else:
            await self._rest(scope, receive, send)

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        self._outbox = Outbox(self._settings, self._metrics, self._fail)
        yield
        await self._items.close()
        self._outbox.close()

    def _fail(self, reason: str) -> None:
        """End the server. Every supervisor restarts a process that has ended, but not every one checks `/health`."""
        self.fault = self.fault or reason
        self.draining = True
        self.stop()

    async def _serve_events(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"application/json")]
        try:
            if scope["method"] != "POST":
                headers.append((b"allow", b"POST"))
                raise RefusedCall(405, "only POST is allowed here")
            key = _idempotency_key(scope["headers"])
            body = await bodies.read(receive, self._limits.max_event_bytes, self._limits.max_batch_bytes)
            self._metrics.body_bytes.inc(len(body))
            with self.gate.admitted(len(body)):
                status, answer = 202, await self._queue(body, key)
        except RefusedCall as e:
            status, answer = e.status, e.body
            if status in (429, 503):
                headers.append((b"retry-after", b"%d" % RETRY_AFTER_SECONDS))
        except Disconnected:
            return
        self._metrics.requests.labels(status).inc()
        content = orjson.dumps(answer)
        headers.append((b"content-length", b"%d" % len(content)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    async def _queue(self, body: bytearray, key: str | None) -> dict[str, Any]:
        """Send the events of a body to the broker, wait until it has them, and return the answer."""
        parsed = bodies.parse(body)
        is_batch = isinstance(parsed, list)
        now = datetime.now(UTC)
        messages = self._accept_batch(parsed, key, now) if is_batch else [self._accept(parsed, key, now)]
        if self._outbox.pending + len(messages) > self._limits.max_pending_events:
            raise RefusedCall(429, "too many events are waiting for the broker; repeat the call later")
        faults = await self._outbox.deliver(messages)
        ids = [event.event_id for event, _ in messages]
        if missing := {index: fault for index, fault in enumerate(faults) if fault is not None}:
            acknowledged = [event_id for index, event_id in enumerate(ids) if index not in missing]
            raise await self._not_queued(missing, acknowledged, is_batch=is_batch)
        return {"status": "queued", "eventIds": ids} if is_batch else {"status": "queued", "eventId": ids[0]}

    async def _not_queued(
        self, missing: Mapping[int, SendFault], acknowledged: Sequence[Any], *, is_batch: bool
    ) -> RefusedCall:
        """Return the refusal of a call of which the broker has not acknowledged some events, by their places."""
        first, fault = next(iter(missing.items()))
        count = len(missing) + len(acknowledged)
        if not all(fault.is_too_large for fault in missing.values()):
            return RefusedCall(
                503,
                f"the broker has not acknowledged {len(missing)} of {pluralize(count, 'event')} ({fault.reason}); "
                "whether they are queued is unknown: repeat the call with the same Idempotency-Key",
                **({"acknowledged": acknowledged} if is_batch else {}),
            )
        limit = await self._outbox.largest()
        most = f"{pluralize(limit, 'byte')}, which is the largest message" if limit is not None else "any message"
        reason = f"the event is larger than {most} that the topic {self._limits.topic} takes (max.message.bytes)"
        if not is_batch:
            return RefusedCall(413, reason)
        queued = f"{len(acknowledged)} of {pluralize(count, 'event')} are queued"
        return RefusedCall(413, f"event {first}: {reason}; {queued}", index=first, acknowledged=acknowledged)

    def _accept_batch(self, parsed: list[Any], key: str | None, now: datetime) -> list[tuple[Event, bytes]]:
        if not parsed:
            raise RefusedCall(400, "the batch is empty")
        if len(parsed) > self._max_batch_events:
            raise RefusedCall(413, f"the batch has more than {pluralize(self._max_batch_events, 'event')}")
        messages = []
        for index, body in enumerate(parsed):
            try:
                # No header has a NUL, so no single call's key equals that of an event in a batch.
                messages.append(self._accept(body, None if key is None else f"{key}\0{index}", now))
            except RefusedCall as e:
                raise RefusedCall(e.status, f"event {index}: {e}", index=index) from None
        return messages

    def _accept(self, body: Any, key: str | None, now: datetime) -> tuple[Event, bytes]:
        """Return an event and its Kafka value."""
        try:
            event = accept(body, key, now)
        except InvalidEvent as e:
            raise RefusedCall(400, str(e)) from None
        value = event.value()
        if len(value) > self._limits.max_event_bytes:
            raise RefusedCall(
                413, f"the event is larger than {pluralize(self._limits.max_event_bytes, 'byte')} as it is queued"
            )
        return event, value

    async def _health(self, _request: Request) -> Response:
        return _json({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        reason = "the ingress is stopping" if self.draining else await self._outbox.fault()
        if reason is None:
            return _json({"status": "ready"})
        if not self._tokens.admit(request.scope["headers"]):
            # The full reason would name the brokers.
            reason = "shown only with a token"
        return _json({"status": "error", "reason": reason}, 503)

    async def _show_metrics(self, _request: Request) -> Response:
        return Response(generate_latest(self._metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def _show_openapi(self, _request: Request) -> Response:
        return _json(openapi.document(self._settings, self._max_batch_events))


def serve(settings: Settings) -> None:
    """Run the ingress until SIGTERM, SIGINT or SIGHUP, then finish the calls in flight and return.

    An unreachable broker is not an error: `/ready` reports it, and events are answered 503 until it is back. Raises
    WritetimeError: the address cannot be used, the topic is missing, a certificate or its key cannot be read, a setting
    of `kafka.client` is wrong, or the Kafka producer has failed for good.
    """
    try:
        check(settings)
    except BrokerUnreachableError as e:
        print(f"warning: {e}", file=sys.stderr, flush=True)
    app = Ingress(settings)
    config = server_config(app, settings)
    require_readable(files_of("ingest", settings.ingest))
    try:
        config.load()
    except OSError as e:
        raise WritetimeError(
            f"ingest.tls_certificate_file and tls_key_file cannot be used as PEM certificate and key: {e}"
        ) from None
    _Server(config, app).run([_listen(settings.ingest.host, settings.ingest.port)])
    if app.fault is not None:
        raise WritetimeError(f"{app.fault}; start the ingress again")


def server_config(app: Ingress, settings: Settings) -> uvicorn.Config:
    """Return uvicorn's configuration for the application."""
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=app.gate.protocol,  # pyright: ignore[reportArgumentType]
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        # The client's address is not used here.
        proxy_headers=False,
        ssl_certfile=settings.ingest.tls_certificate_file,
        ssl_keyfile=settings.ingest.tls_key_file,
        # uvicorn counts the new connection, too, and refuses from the limit on.
        limit_concurrency=settings.ingest.max_connections + 1,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        # Every acknowledgement or failure comes within ack_timeout_seconds; the rest is for bodies being sent.
        timeout_graceful_shutdown=math.ceil(
            max(settings.ingest.drain_seconds, settings.ingest.ack_timeout_seconds + 2)
        ),
    )


class _Server(uvicorn.Server):
    """A uvicorn server that prints its address, passes a stop to the application, and then ends normally."""

    def __init__(self, config: uvicorn.Config, app: Ingress) -> None:
        super().__init__(config)
        self._app = app
        app.stop = self._stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            host, port = listener.getsockname()[:2]
            scheme = "https" if self.config.is_ssl else "http"
            print(f"listening on {scheme}://{f'[{host}]' if ':' in host else host}:{port}", flush=True)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn does not handle SIGHUP.
        with super().capture_signals():
            handle_hangup(self.handle_exit)
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # uvicorn's own would raise the signal again after the drain, which would end the process.
        del sig, frame
        self._app.draining = True
        self._stop()

    def _stop(self) -> None:
        self.should_exit = True


async def _unauthorized(scope: Scope, receive: Receive, send: Send) -> None:
    body = {"status": "error", "reason": "this needs the header Authorization: Bearer, with a token of ingest.tokens"}
    await _json(body, 401, {"WWW-Authenticate": "Bearer"})(scope, receive, send)


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as e:
        raise WritetimeError(
            f"cannot listen on {host}:{port} ({e.strerror}); stop the program that uses it or set another ingest.port "
            "or host"
        ) from None


def _idempotency_key(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    for name, value in headers:
        if name == b"idempotency-key":
            key = value.decode("latin-1").strip()
            if not 0 < len(key) <= MAX_KEY_CHARACTERS:
                raise RefusedCall(400, f"Idempotency-Key must have 1 to {MAX_KEY_CHARACTERS} characters")
            return key
    return None


def _json(body: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(body), status, headers, "application/json")


def _http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers) if error.headers else None
    return _json({"status": "error", "reason": error.detail}, error.status_code, headers)
