"""Controls of queues over HTTP, a part of the ingress: states of items, cancels, pauses of queues, schedules.

A call may wait until an item is finished. It then costs a read of the database each second.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from uuid import UUID

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.core.setting_types import YEAR_SECONDS
from writetime.http import bodies
from writetime.http.bodies import Disconnected, RefusedCall
from writetime.http.protocol import Gate
from writetime.http.work_items import RETRY_AFTER, Connected, ItemsEndpoint, max_item_bytes
from writetime.workqueue.controls import ItemState, ScheduleState, UnknownItem
from writetime.workqueue.dead_items import redrive_letters
from writetime.workqueue.enqueue import MAX_KEY_BYTES, InvalidItem, TooLarge
from writetime.workqueue.queue_tables import UnknownQueue
from writetime.workqueue.recurrence import Schedule

# Load balancers end connections that are silent for longer.
MAX_WAIT_SECONDS = 60.0
_FIELDS = frozenset({"cron", "zone", "payload", "key", "timeLimitSeconds"})


class ControlsEndpoint:
    """Answers calls about queues and single items, over the connection of `items`."""

    def __init__(self, items: ItemsEndpoint, settings: Settings, gate: Gate) -> None:
        self._items = items
        self._gate = gate
        self._settings = settings
        self._most_asking = settings.ingest.max_pending_events
        self._asking = 0
        self.routes = [
            Route("/queues/{queue:path}/items/{item_id}", self._item, methods=["GET", "DELETE"]),
            Route("/queues/{queue:path}/items/{item_id}/events/{name}", self._send_event, methods=["PUT"]),
            Route("/queues/{queue:path}/pause", self._pause, methods=["PUT", "DELETE"]),
            Route("/queues/{queue:path}/items", self._cancel_all, methods=["DELETE"]),
            Route("/queues/{queue:path}/redrive", self._redrive, methods=["POST"]),
            Route("/queues/{queue:path}/schedules/{name}", self._schedule, methods=["PUT", "DELETE"]),
            Route("/queues/{queue:path}/schedules", self._schedules, methods=["GET"]),
        ]

    async def _item(self, request: Request) -> Response:
        async def ask(connected: Connected) -> dict[str, Any]:
            queue, key, seconds = (
                request.path_params["queue"],
                key_of(request, "wait"),
                seconds_of(request, "wait", MAX_WAIT_SECONDS),
            )
            item_id = _item_id(request)
            controls = connected.controls
            act = controls.cancel if request.method == "DELETE" else controls.item
            return _described(await act(queue, item_id, key=key, wait_seconds=seconds))

        return await self.answer(ask)

    async def _pause(self, request: Request) -> Response:
        async def ask(connected: Connected) -> dict[str, Any]:
            paused = request.method == "PUT"
            act = connected.controls.pause if paused else connected.controls.resume
            return {"paused": paused, "changed": await act(request.path_params["queue"], key_of(request))}

        return await self.answer(ask)

    async def _cancel_all(self, request: Request) -> Response:
        async def ask(connected: Connected) -> dict[str, Any]:
            key, age, query = key_of(request, "olderThanSeconds", "all"), None, request.query_params
            if "olderThanSeconds" in query:
                age = seconds_of(request, "olderThanSeconds", YEAR_SECONDS)
            if key is None and age is None and query.get("all") != "true":
                raise RefusedCall(400, "name the items to cancel: key, olderThanSeconds, or all=true")
            queue = request.path_params["queue"]
            return {"cancelling": await connected.controls.cancel_all(queue, key=key, older_than_seconds=age)}

        return await self.answer(ask)

    async def _redrive(self, request: Request) -> Response:
        async def ask(connected: Connected) -> dict[str, Any]:
            tables, queue, error = connected.tables, request.path_params["queue"], request.query_params.get("error")
            key = key_of(request, "error")
            return {"redriven": await redrive_letters(tables, self._settings, queue, key=key, error=error)}

        return await self.answer(ask)

    async def _send_event(self, request: Request) -> Response:
        async def ask(connected: Connected) -> dict[str, Any]:
            queue, item_id, name = request.path_params["queue"], _item_id(request), request.path_params["name"]
            controls, key = connected.controls, key_of(request)
            async with self._body(request) as payload:
                with _rules_named():
                    return {"sent": await controls.send_event(queue, item_id, name, payload, key=key)}

        return await self.answer(ask)

    async def _schedule(self, request: Request) -> Response:
        async def ask(connected: Connected) -> dict[str, Any]:
            queue, name = request.path_params["queue"], request.path_params["name"]
            if request.method == "DELETE":
                return {"scheduled": False, "changed": await connected.controls.unschedule(queue, name)}
            async with self._body(request) as value:
                with _rules_named():
                    changed = await connected.controls.schedule(queue, _schedule_of(name, value))
                    return {"scheduled": True, "changed": changed}

        return await self.answer(ask)

    async def _schedules(self, request: Request) -> Response:
        async def ask(connected: Connected) -> dict[str, Any]:
            states = await connected.controls.schedules(request.path_params["queue"])
            return {"schedules": [_described_schedule(state) for state in states]}

        return await self.answer(ask)

    @asynccontextmanager
    async def _body(self, request: Request) -> AsyncIterator[Any]:
        """Yield the JSON value of a call's body."""
        most = max_item_bytes(self._settings)
        body = await bodies.read(request.receive, most, most)
        with self._gate.admitted(len(body)):
            yield bodies.parse(body)

    async def answer(self, ask: Callable[[Connected], Awaitable[dict[str, Any]]]) -> Response:
        """Return what `ask` returns as JSON, or its fault."""
        status, headers = 200, {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        try:
            if self._asking >= self._most_asking:
                raise RefusedCall(429, "too many calls ask for items; repeat the call later")
            self._asking += 1
            try:
                answer = await ask(await self._items.connected())
            finally:
                self._asking -= 1
        except Disconnected:
            return Response(status_code=400)
        except RefusedCall as e:
            status, answer = e.status, e.body
        except (WritetimeError, TimeoutError) as e:
            status = 404 if isinstance(e, UnknownItem | UnknownQueue) else 503
            answer = {"status": "error", "reason": str(e) or "the database does not answer; repeat the call later"}
        if status in (429, 503):
            headers |= RETRY_AFTER
        self._items.requests.labels(status).inc()
        return Response(orjson.dumps(answer), status, headers, "application/json")


def _described(state: ItemState) -> dict[str, Any]:
    answer = {"itemId": str(state.item_id), "status": state.status, "attempts": state.attempts}
    if state.error is not None:
        answer["error"] = state.error
    return answer | ({"result": state.result} if state.status == "completed" else {})


@contextmanager
def _rules_named() -> Iterator[None]:
    """Refuse a call whose schedule or event breaks a rule."""
    try:
        yield
    except InvalidItem as e:
        raise RefusedCall(413 if isinstance(e, TooLarge) else 400, str(e)) from None


def _item_id(request: Request) -> UUID:
    try:
        return UUID(request.path_params["item_id"])
    except ValueError:
        raise RefusedCall(400, "the item id is not a UUID") from None


def _schedule_of(name: str, value: Any) -> Schedule:
    if not isinstance(value, dict) or not isinstance(value.get("cron"), str):
        raise RefusedCall(400, "a schedule must be a JSON object with cron, a string")
    if unknown := value.keys() - _FIELDS:
        raise RefusedCall(400, f"unknown field {min(unknown)!r}; known are {', '.join(sorted(_FIELDS))}")
    zone, key, limit = value.get("zone", "UTC"), value.get("key"), value.get("timeLimitSeconds")
    if not isinstance(zone, str) or not isinstance(key, str | None):
        raise RefusedCall(400, "zone and key must be strings")
    if limit is not None and (not isinstance(limit, int | float) or isinstance(limit, bool)):
        raise RefusedCall(400, "timeLimitSeconds must be a number")
    return Schedule(name, value["cron"], value.get("payload", {}), zone, key, limit)


def _described_schedule(state: ScheduleState) -> dict[str, Any]:
    s = state.schedule
    found = {"name": s.name, "cron": s.cron, "zone": s.zone, "payload": s.payload, "key": s.key}
    found |= {"timeLimitSeconds": s.time_limit_seconds, "nextSlot": state.next_slot}
    return {name: value for name, value in found.items() if value is not None}


def key_of(request: Request, *others: str) -> str | None:
    """Return the key that a call names. Raise `RefusedCall` if no item can have it, or the call has other parameters
    than this one and those that are given: a misspelt one would widen what the call changes.
    """
    if unknown := request.query_params.keys() - {"key", *others}:
        known = ", ".join(sorted({"key", *others}))
        raise RefusedCall(400, f"unknown parameter {min(unknown)!r}; known are {known}")
    key = request.query_params.get("key")
    if key is not None and not 0 < len(key.encode()) <= MAX_KEY_BYTES:
        raise RefusedCall(400, f"a key must have 1 to {MAX_KEY_BYTES} bytes")
    return key


def seconds_of(request: Request, name: str, most: float) -> float:
    """Return a number of seconds that a call names, by default 0. Raises `RefusedCall`: it is no such number."""
    try:
        seconds = float(request.query_params.get(name, "0"))
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= most:
        raise RefusedCall(400, f"{name} must be a number of seconds from 0 to {most:g}")
    return seconds
