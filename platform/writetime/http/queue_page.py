"""The page `/queues`, and the calls that it makes, which are bounded reads. Its actions are those of `queue_controls`.

The page is one file for everyone, and has no data: its script makes the calls with the token that the user enters. The
script never writes HTML, and the browser enforces this, and that no other script runs and no other host is contacted
(Content Security Policy Level 3, 6.1 and 7.2; Trusted Types).
"""

import asyncio
import base64
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from writetime.core.config import Settings
from writetime.core.setting_types import YEAR_SECONDS
from writetime.http.bodies import RefusedCall
from writetime.http.queue_controls import ControlsEndpoint, key_of, seconds_of
from writetime.http.work_items import Connected
from writetime.workqueue.items import LAST_ID, time_of
from writetime.workqueue.overview import (
    COUNTED_ITEMS,
    STATUSES,
    ItemHistory,
    ItemPlace,
    ListedItem,
    QueueOverview,
    QueueSummary,
)
from writetime.workqueue.queue_tables import END_OF_TIME, LetterHead
from writetime.workqueue.statements import unicode_of

# Of a text that is shown, such as a payload.
_SHOWN_CHARACTERS = 10_000
_LISTED_CHARACTERS = 300
_PAUSED_KEYS = 100


def page() -> tuple[bytes, dict[str, str]]:
    """Return the page as HTML, and its headers."""
    folder = Path(__file__).parent
    html, style, script = ((folder / f"queue_page.{kind}").read_text() for kind in ("html", "css", "js"))
    policy = {
        "default-src": "'none'",
        "script-src": _hash(script),
        "style-src": _hash(style),
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    headers = {
        "Cache-Control": "no-cache",
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
    }
    return html.replace("{style}", style).replace("{script}", script).encode(), headers


def _hash(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


class QueuePage:
    """Serves the page and its data, over the connection of `controls`."""

    def __init__(self, controls: ControlsEndpoint, settings: Settings) -> None:
        self._controls = controls
        self._settings = settings
        self._html, self._headers = page()
        self.routes = [
            Route("/queues", self._page),
            Route("/queues/names", self._names),
            Route("/queues/{queue:path}/summary", self._summary),
            Route("/queues/{queue:path}/items", self._items, methods=["GET"]),
            Route("/queues/{queue:path}/items/{item_id}/history", self._history),
            Route("/queues/{queue:path}/dead-letters", self._letters),
        ]

    async def _page(self, _request: Request) -> Response:
        return Response(self._html, 200, self._headers, "text/html")

    async def _names(self, request: Request) -> Response:
        async def ask(overview: QueueOverview) -> dict[str, Any]:
            names, more = await overview.queues(request.query_params.get("after", ""))
            return {"queues": names, "more": more}

        return await self._answer(ask)

    async def _summary(self, request: Request) -> Response:
        async def ask(overview: QueueOverview) -> dict[str, Any]:
            since = _number(request.query_params.get("since", "0"))
            return _summarised(await overview.summary(request.path_params["queue"], since))

        return await self._answer(ask)

    async def _items(self, request: Request) -> Response:
        async def ask(overview: QueueOverview) -> dict[str, Any]:
            query, within = request.query_params, None
            if (status := query.get("status")) is not None and status not in STATUSES:
                raise RefusedCall(400, f"status must be one of {', '.join(sorted(STATUSES))}")
            if "withinSeconds" in query:
                within = seconds_of(request, "withinSeconds", YEAR_SECONDS)
            after = _place(query["after"]) if "after" in query else None
            key = key_of(request, "status", "withinSeconds", "after")
            found = await overview.items(
                request.path_params["queue"], status=status, key=key, within_seconds=within, after=after
            )
            end = None if found.end is None else "_".join(map(str, found.end))
            return {"items": [_listed(item) for item in found.items], "read": found.read, "after": end}

        return await self._answer(ask)

    async def _letters(self, request: Request) -> Response:
        async def ask(overview: QueueOverview) -> dict[str, Any]:
            start = _uuid(request.query_params["start"]) if "start" in request.query_params else LAST_ID
            letters, following = await overview.letters(request.path_params["queue"], start)
            return {"letters": [_lettered(each) for each in letters], "start": following and str(following)}

        return await self._answer(ask)

    async def _history(self, request: Request) -> Response:
        async def ask(overview: QueueOverview) -> dict[str, Any]:
            item_id = _uuid(request.path_params["item_id"])
            found = await overview.history(request.path_params["queue"], item_id, key_of(request))
            return {"itemId": str(item_id), "histories": [_history(each) for each in found]}

        return await self._answer(ask)

    async def _answer(self, ask: Callable[[QueueOverview], Awaitable[dict[str, Any]]]) -> Response:
        async def look(connected: Connected) -> dict[str, Any]:
            async with asyncio.timeout(self._settings.workqueue.enqueue_timeout_seconds):
                return await ask(QueueOverview(connected.tables, self._settings))

        return await self._controls.answer(look)


def _summarised(found: QueueSummary) -> dict[str, Any]:
    counts = found.unfinished
    return {
        "at": found.at,
        "waiting": counts.received - counts.delayed,
        "delayed": counts.delayed,
        "processing": counts.processing,
        "retry": counts.retry,
        "sleeping": counts.sleeping,
        "complete": found.complete,
        "mostCounted": COUNTED_ITEMS,
        "oldestSeconds": counts.oldest_seconds,
        "oldestItemId": found.oldest and str(found.oldest),
        "mostAttempts": counts.most_attempts,
        "since": found.since,
        "due": found.due,
        "allDue": found.all_due,
        "deadLetters": found.dead_letters,
        "allDeadLetters": found.all_letters,
        "shards": found.shards,
        "ownedShards": found.owned,
        "workers": found.workers,
        "pausedAt": found.pauses.queue,
        "pausedKeys": [unicode_of(key) for key in sorted(found.pauses.keys)[:_PAUSED_KEYS]],
        "pausedKeysCount": len(found.pauses.keys),
    }


def _listed(item: ListedItem) -> dict[str, Any]:
    return {
        "itemId": str(item.item_id),
        "at": time_of(item.item_id),
        "key": unicode_of(item.key),
        "status": item.status,
        "cancelling": item.cancelling,
        "attempts": item.attempts,
        "nextAttemptAt": item.due,
    }


def _lettered(letter: LetterHead) -> dict[str, Any]:
    return {
        "itemId": str(letter.item_id),
        "key": unicode_of(letter.key),
        "attempts": letter.attempts,
        "error": _shown(letter.error, _LISTED_CHARACTERS),
        "deadAt": letter.dead_at,
        "redrivenAs": letter.redriven_as and str(letter.redriven_as),
    }


def _history(found: ItemHistory) -> dict[str, Any]:
    entry, state, letter = found.entry, found.state, found.letter
    whole = entry or letter
    assert whole is not None
    last = state or letter
    return {
        "shard": found.shard,
        "status": found.status,
        "cancelling": found.cancelling,
        "at": time_of(whole.item_id),
        "delayed": entry is not None and entry.delayed,
        "key": unicode_of(whole.key),
        "payload": _shown(whole.payload),
        "timeLimitSeconds": whole.time_limit_seconds,
        "attempts": last.attempts if last else 0,
        "worker": unicode_of(state.worker) if state else None,
        "changedAt": state.at if state else None,
        "nextAttemptAt": state.due if state and found.status == "retry" else None,
        "error": _shown(last.error) if last else None,
        "result": _shown(state.result) if state else None,
        "deadAt": letter.dead_at if letter else None,
        "redrivenAs": str(letter.redriven_as) if letter and letter.redriven_as else None,
    }


def _shown(text: str | None, most: int = _SHOWN_CHARACTERS) -> dict[str, Any] | None:
    """Return the beginning of a text, and its length."""
    if text is None:
        return None
    return {"text": unicode_of(text[:most]), "characters": len(text), "whole": len(text) <= most}


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise RefusedCall(400, "since must be a number of milliseconds since 1970") from None


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise RefusedCall(400, "the item id is not a UUID") from None


def _place(text: str) -> ItemPlace:
    """Return a place as a list has named it."""
    try:
        bucket, shard, item_id = text.split("_")
        place = ItemPlace(int(bucket), int(shard), UUID(item_id))
    except ValueError:
        place = None
    if place is None or not 0 <= place.bucket <= END_OF_TIME:
        raise RefusedCall(400, "after must be that of the list before")
    return place
