"""The database does not answer when a worker that ends releases its shards and signs off."""

import asyncio
from typing import Any

import pytest

from writetime.clients.prepared_statements import UnknownWrite
from writetime.core.config import Settings
from writetime.workqueue import Enqueuer, NewItem, Worker
from writetime.workqueue.inspect import inspecting
from writetime.workqueue.queue_tables import QueueTables


@pytest.mark.parametrize("is_applied", [False, True])
def test_they_are_repeated(
    queue_settings: Settings, jobs: str, monkeypatch: pytest.MonkeyPatch, *, is_applied: bool
) -> None:
    """Otherwise the next worker waits for a whole lease. A statement without an answer may have been applied."""
    lost: list[tuple[str, Any]] = []

    def lose_first(name: str) -> None:
        original = getattr(QueueTables, name)

        async def release(tables: QueueTables, queue: str, what: Any) -> None:
            if (name, what) in lost:
                return await original(tables, queue, what)
            lost.append((name, what))
            if is_applied:
                await original(tables, queue, what)
            raise UnknownWrite("OperationTimedOut")

        monkeypatch.setattr(QueueTables, name, release)

    lose_first("release")
    lose_first("leave")
    with Enqueuer(queue_settings) as enqueuer:
        enqueuer.enqueue_many(jobs, [NewItem(n) for n in range(20)])
    assert Worker(queue_settings, {jobs: lambda item: None}).run(until_idle=True) == {"completed": 20}
    with inspecting(queue_settings) as audit:
        shards = asyncio.run(audit._tables.shards(jobs)).owners
        assert [row.owner for row in shards.values()] == [None] * 4
        assert asyncio.run(audit._tables.workers(jobs)) == []
    assert [name for name, _ in lost] == ["release"] * 4 + ["leave"]
