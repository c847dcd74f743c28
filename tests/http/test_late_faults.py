"""Faults of the connection to the database: late ones, and those that are no outage; no server is needed."""

import asyncio
import threading
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from writetime.clients.database import DatabaseUnreachable
from writetime.core import config
from writetime.http.bodies import RefusedCall
from writetime.http.work_items import Connected, ItemsEndpoint
from writetime.workqueue.enqueue import AsyncEnqueuer


class Enqueuer:
    """Takes any items."""

    async def enqueue(self, _queue: str, items: list[Any]) -> list[int]:
        return [*range(len(items))]


def test_the_next_call_does_not_get_the_fault_of_an_earlier_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else takes it: asyncio would log it with its traceback."""
    refused, unhandled = threading.Event(), list[dict[str, Any]]()

    def connect(_: ItemsEndpoint) -> Connected:
        if refused.is_set():
            return Connected(cast(Any, None), cast(AsyncEnqueuer, Enqueuer()), cast(Any, None))
        refused.wait(60)
        raise DatabaseUnreachable("no database answers")

    async def calls() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: unhandled.append(fault))
        settings = config.load(workqueue={"enqueue_timeout_seconds": 0.01})
        items = ItemsEndpoint(settings, 10, cast(Any, None), CollectorRegistry())
        with pytest.raises(RefusedCall, match="the database does not answer"):
            await items._insert("jobs", [cast(Any, "item")])
        refused.set()
        while items._connecting is not None and not items._connecting.done():
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        items._settings = config.load()
        assert await items._insert("jobs", [cast(Any, "item")]) == [0]

    monkeypatch.setattr(ItemsEndpoint, "_connect", connect)
    asyncio.run(calls())
    assert unhandled == []


def test_an_unknown_fault_is_not_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller would repeat the call for ever."""

    def connect(_: object) -> None:
        raise TypeError("nobody expects this")

    monkeypatch.setattr("writetime.http.work_items.connect", connect)

    async def call() -> None:
        items = ItemsEndpoint(config.load(), 10, cast(Any, None), CollectorRegistry())
        await items._insert("jobs", [cast(Any, "item")])

    with pytest.raises(RefusedCall, match="nobody expects this") as found:
        asyncio.run(call())
    assert found.value.status == 500
