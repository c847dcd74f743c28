"""Work items over HTTP: `POST /queues/<queue>/items`, a part of the ingress. `202` means that the database has them."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple
from uuid import UUID

import orjson
from prometheus_client import CollectorRegistry, Counter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from writetime.clients.database import DRIVER_FAULTS, DatabaseUnreachable, connect
from writetime.core.config import Settings
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError, reason_of
from writetime.http import bodies
from writetime.http.bodies import Disconnected, RefusedCall
from writetime.http.protocol import Gate
from writetime.workqueue.controls import AsyncControls
from writetime.workqueue.enqueue import (
    AsyncEnqueuer,
    EnqueueUnknown,
    InvalidItem,
    ItemConflict,
    NewItem,
    TooLarge,
)
from writetime.workqueue.queue_tables import QueueTables

log = logging.getLogger(__name__)

_FIELDS = frozenset({"payload", "key", "delaySeconds", "itemId", "timeLimitSeconds", "uniqueName", "uniqueSeconds"})
RETRY_AFTER = {"Retry-After": "1"}
# The largest number of bytes of an item outside of its payload.
_OVERHEAD_BYTES = 4096


def max_item_bytes(settings: Settings) -> int:
    """Return the largest number of bytes of a body with a single item."""
    return settings.workqueue.max_payload_bytes + _OVERHEAD_BYTES


class Connected(NamedTuple):
    """What uses the one connection to the database."""

    tables: QueueTables
    enqueuer: AsyncEnqueuer
    controls: AsyncControls


class ItemsEndpoint:
    """Accepts work items. It connects to the database at the first one, and retries until the database answers."""

    def __init__(
        self,
        settings: Settings,
        max_batch: int,
        gate: Gate,
        registry: CollectorRegistry,
        is_draining: Callable[[], bool] = lambda: False,
    ) -> None:
        self._settings = settings
        self._is_draining = is_draining
        self._limits = settings.ingest
        self._gate = gate
        self._max_batch = max_batch
        self.requests = Counter(
            "writetime_ingress_queue_requests", "Calls of /queues by status.", ["status"], registry=registry
        )
        self._enqueued = Counter(
            "writetime_ingress_items_enqueued", "Items written to the database.", registry=registry
        )
        self._resources = ExitStack()
        self._connecting: asyncio.Task[Connected] | None = None
        self._pending = 0
        self.route = Route("/queues/{queue:path}/items", self._post, methods=["POST"])

    async def close(self) -> None:
        """Wait for pending items, and disconnect."""
        while self._pending:
            await asyncio.sleep(0.01)
        if self._connecting is not None and not self._connecting.done():
            self._connecting.cancel()
        await asyncio.to_thread(self._resources.close)

    async def _post(self, request: Request) -> Response:
        headers: dict[str, str] = {}
        try:
            body = await bodies.read(request.receive, max_item_bytes(self._settings), self._limits.max_batch_bytes)
            with self._gate.admitted(len(body)):
                status, answer = 202, await self._enqueue(request.path_params["queue"], body)
        except RefusedCall as e:
            status, answer = e.status, e.body
            headers = RETRY_AFTER if status in (429, 503) else {}
        except Disconnected:
            return Response(status_code=400)
        self.requests.labels(status).inc()
        return Response(orjson.dumps(answer), status, headers, "application/json")

    async def _enqueue(self, queue: str, body: bytearray) -> dict[str, Any]:
        parsed = bodies.parse(body)
        is_batch = isinstance(parsed, list)
        items = [_item(value) for value in (parsed if is_batch else [parsed])]
        if not items:
            raise RefusedCall(400, "the batch is empty")
        if len(items) > self._max_batch:
            raise RefusedCall(413, f"the batch has more than {pluralize(self._max_batch, 'item')}")
        if self._pending + len(items) > self._limits.max_pending_events:
            raise RefusedCall(429, "too many items are waiting for the database; repeat the call later")
        self._pending += len(items)
        try:
            ids = await self._insert(queue, items)
        finally:
            self._pending -= len(items)
        self._enqueued.inc(len(ids))
        texts = [str(item_id) for item_id in ids]
        return {"status": "queued", "itemIds": texts} if is_batch else {"status": "queued", "itemId": texts[0]}

    async def _insert(self, queue: str, items: list[NewItem]) -> list[UUID]:
        try:
            return await (await self.connected()).enqueuer.enqueue(queue, items)
        except TooLarge as e:
            raise RefusedCall(413, str(e)) from None
        except InvalidItem as e:
            raise RefusedCall(400, str(e)) from None
        except ItemConflict as e:
            raise RefusedCall(409, str(e), itemIds=[str(item_id) for item_id in e.item_ids]) from None
        except EnqueueUnknown as e:
            raise RefusedCall(503, str(e), itemIds=[str(item_id) for item_id in e.item_ids]) from None
        except (WritetimeError, TimeoutError) as e:
            reason = str(e) or "the database does not answer"
            raise RefusedCall(503, f"nothing was enqueued, repeat the call later: {reason}", itemIds=[]) from None

    async def connected(self) -> Connected:
        """Return what uses the connection; calls that arrive meanwhile wait for the same one. Raises `WritetimeError`
        or `TimeoutError` if the database does not answer.
        """
        if self._connecting is None:
            self._connecting = asyncio.create_task(asyncio.to_thread(self._connect))
            self._connecting.add_done_callback(self._has_connected)
        async with asyncio.timeout(self._settings.workqueue.enqueue_timeout_seconds):
            return await asyncio.shield(self._connecting)

    def _has_connected(self, task: asyncio.Task[Connected]) -> None:
        """Let the next call connect again after a fault, also if each call that waited for it has given up."""
        if not task.cancelled() and task.exception() is not None:
            self._connecting = None

    def _connect(self) -> Connected:
        with ExitStack() as resources:
            try:
                session = resources.enter_context(connect(self._settings))
                tables = QueueTables(session, self._settings)
                controls = AsyncControls(tables, self._settings, self._is_draining)
                connected = Connected(tables, AsyncEnqueuer(tables, self._settings.workqueue), controls)
            except DRIVER_FAULTS as e:
                # The next call tries again.
                raise DatabaseUnreachable(f"the database cannot be used: {reason_of(e)}") from e
            except WritetimeError:
                raise
            except Exception as e:
                # No outage, so a caller need not repeat the call.
                log.exception("work items cannot be taken")
                raise RefusedCall(500, f"nothing was enqueued: {reason_of(e)}", itemIds=[]) from e
            self._resources.push(resources.pop_all())
        return connected


def _item(value: Any) -> NewItem:
    if not isinstance(value, dict) or "payload" not in value:
        raise RefusedCall(400, "an item must be a JSON object with a payload")
    if unknown := value.keys() - _FIELDS:
        raise RefusedCall(400, f"unknown field {min(unknown)!r}; known are {', '.join(sorted(_FIELDS))}")
    key, delay, item_id = value.get("key"), value.get("delaySeconds", 0), value.get("itemId")
    if key is not None and not isinstance(key, str):
        raise RefusedCall(400, "key must be a string")
    limit = value.get("timeLimitSeconds")
    name, seconds = value.get("uniqueName"), value.get("uniqueSeconds", NewItem(None).unique_seconds)
    if name is not None and not isinstance(name, str):
        raise RefusedCall(400, "uniqueName must be a string")
    if not _is_number(seconds):
        raise RefusedCall(400, "uniqueSeconds must be a number")
    if not _is_number(delay):
        raise RefusedCall(400, "delaySeconds must be a number")
    if limit is not None and not _is_number(limit):
        raise RefusedCall(400, "timeLimitSeconds must be a number")
    try:
        own_id = None if item_id is None else UUID(item_id)
    except (ValueError, AttributeError, TypeError):
        raise RefusedCall(400, "itemId is not a UUID") from None
    return NewItem(value["payload"], key, delay, own_id, limit, name, seconds)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
