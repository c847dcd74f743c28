"""Enqueueing when the database is slow, or its answers are lost, on tables in memory."""

import asyncio
import random
from collections.abc import Sequence
from uuid import UUID

from tests.workqueue.conftest import with_queue
from tests.workqueue.memory import MemoryDatabase, MemoryTables, memory_enqueuer, run_virtually
from writetime.core.config import Settings
from writetime.workqueue.enqueue import AsyncEnqueuer, NewItem
from writetime.workqueue.items import Entry

QUEUE = "q"
OTHER = "other"


class Slow(MemoryTables):
    """Tables whose inserts of items take a while."""

    def __init__(self, database: MemoryDatabase) -> None:
        super().__init__(database)
        self.seconds = 0.0

    async def insert_items(self, entries: Sequence[Entry]) -> None:
        await asyncio.sleep(self.seconds)
        await super().insert_items(entries)


def settings() -> Settings:
    return with_queue(Settings(), QUEUE, {"shards": 2}, overlap_seconds=2.0, rescan_seconds=10.0)


def memory() -> MemoryDatabase:
    return MemoryDatabase(random.Random(1), 1_700_000_000_000)


def entry_of(database: MemoryDatabase, item_id: UUID) -> Entry:
    return next(rows[item_id] for rows in database.items.values() if item_id in rows)


def test_a_slow_call_is_kept_once_and_named_by_the_next_items_of_its_queue() -> None:
    database = memory()
    tables = Slow(database)

    async def slowly(enqueuer: AsyncEnqueuer, count: int) -> list[UUID]:
        tables.seconds = 3.0
        ids = await enqueuer.enqueue(QUEUE, [NewItem(n, f"k{n}") for n in range(count)])
        tables.seconds = 0.0
        return ids

    async def after(enqueuer: AsyncEnqueuer, queue: str, key: str | None = "k") -> UUID | None:
        [item_id] = await enqueuer.enqueue(queue, [NewItem(1, key)])
        return entry_of(database, item_id).after

    async def work() -> None:
        enqueuer = memory_enqueuer(tables, settings())
        assert await after(enqueuer, QUEUE) is None
        first, *_ = await slowly(enqueuer, 400)
        await asyncio.sleep(8)
        second, *_ = await slowly(enqueuer, 100)
        assert [len(calls) for calls in enqueuer._slow.values()] == [2]
        assert await after(enqueuer, QUEUE) == first
        assert await after(enqueuer, QUEUE, None) is None
        assert await after(enqueuer, OTHER) is None
        await asyncio.sleep(12)
        assert await after(enqueuer, QUEUE) == second
        await asyncio.sleep(12)
        assert await after(enqueuer, QUEUE) is None
        assert not enqueuer._slow

    run_virtually(work())


def test_of_slow_calls_at_once_the_first_item_counts() -> None:
    database = memory()
    tables = Slow(database)

    async def work() -> None:
        enqueuer = memory_enqueuer(tables, settings())

        async def call(seconds: float) -> UUID:
            tables.seconds = seconds
            return (await enqueuer.enqueue(QUEUE, [NewItem(1, "k")]))[0]

        async with asyncio.TaskGroup() as group:
            earlier = group.create_task(call(5.0))
            await asyncio.sleep(0.1)
            later = group.create_task(call(3.0))
        assert earlier.result() < later.result()
        # The later one was acknowledged first.
        assert entry_of(database, await call(0.0)).after == earlier.result()

    run_virtually(work())
