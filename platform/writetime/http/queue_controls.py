"""What callers ask of queues over HTTP, a part of the ingress: what became of an item, cancels, pauses of queues.

A call may wait until an item is finished. It then costs a read of the database each second.
"""

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.http.bodies import RefusedCall
from writetime.http.work_items import RETRY_AFTER, ItemsEndpoint
from writetime.workqueue.controls import AsyncControls, ItemState, UnknownItem
from writetime.workqueue.enqueue import MAX_KEY_BYTES
from writetime.workqueue.queue_tables import UnknownQueue

# Load balancers end connections that are silent for longer.
MAX_WAIT_SECONDS = 60.0


class ControlsEndpoint:
    """Answers calls about queues and single items, over the connection of `items`."""

    def __init__(self, items: ItemsEndpoint, settings: Settings) -> None:
        self._items = items
        self._most_asking = settings.ingest.max_pending_events
        self._asking = 0
        self.routes = [
            Route("/queues/{queue:path}/items/{item_id}", self._item, methods=["GET", "DELETE"]),
            Route("/queues/{queue:path}/pause", self._pause, methods=["PUT", "DELETE"]),
        ]

    async def _item(self, request: Request) -> Response:
        async def ask(controls: AsyncControls) -> dict[str, Any]:
            queue, key, seconds = request.path_params["queue"], _key(request), _wait(request)
            try:
                item_id = UUID(request.path_params["item_id"])
            except ValueError:
                raise RefusedCall(400, "the item id is not a UUID") from None
            act = controls.cancel if request.method == "DELETE" else controls.item
            return _described(await act(queue, item_id, key=key, wait_seconds=seconds))

        return await self._answer(ask)

    async def _pause(self, request: Request) -> Response:
        async def ask(controls: AsyncControls) -> dict[str, Any]:
            paused = request.method == "PUT"
            act = controls.pause if paused else controls.resume
            return {"paused": paused, "changed": await act(request.path_params["queue"], _key(request))}

        return await self._answer(ask)

    async def _answer(self, ask: Callable[[AsyncControls], Awaitable[dict[str, Any]]]) -> Response:
        status, headers = 200, {}
        try:
            if self._asking >= self._most_asking:
                raise RefusedCall(429, "too many calls ask for items; repeat the call later")
            self._asking += 1
            try:
                answer = await ask((await self._items.connected()).controls)
            finally:
                self._asking -= 1
        except RefusedCall as e:
            status, answer = e.status, e.body
        except (WritetimeError, TimeoutError) as e:
            status = 404 if isinstance(e, UnknownItem | UnknownQueue) else 503
            answer = {"status": "error", "reason": str(e) or "the database does not answer; repeat the call later"}
        if status in (429, 503):
            headers = RETRY_AFTER
        self._items.requests.labels(status).inc()
        return Response(orjson.dumps(answer), status, headers, "application/json")


def _described(state: ItemState) -> dict[str, Any]:
    answer = {"itemId": str(state.item_id), "status": state.status, "attempts": state.attempts}
    if state.error is not None:
        answer["error"] = state.error
    return answer | ({"result": state.result} if state.status == "completed" else {})


def _key(request: Request) -> str | None:
    key = request.query_params.get("key")
    if key is not None and not 0 < len(key.encode()) <= MAX_KEY_BYTES:
        raise RefusedCall(400, f"a key must have 1 to {MAX_KEY_BYTES} bytes")
    return key


def _wait(request: Request) -> float:
    try:
        seconds = float(request.query_params.get("wait", "0"))
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_WAIT_SECONDS:
        raise RefusedCall(400, f"wait must be a number of seconds from 0 to {MAX_WAIT_SECONDS:g}")
    return seconds
