"""Enqueueing when the database is slow, or its answers are lost, on tables in memory."""

import asyncio
import math
import random
from collections.abc import Sequence
from uuid import UUID

import pytest

from tests.workqueue.conftest import with_queue
from tests.workqueue.memory import MemoryDatabase, MemoryTables, memory_enqueuer, run_virtually
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.workqueue.enqueue import AsyncEnqueuer, EnqueueUnknown, InvalidItem, NewItem
from writetime.workqueue.items import Entry, Item, time_of
from writetime.workqueue.worker_loop import WorkerLoop

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


def test_the_first_item_of_concurrent_slow_calls_counts() -> None:
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


@pytest.mark.parametrize("fault", [WritetimeError("the database refuses a statement"), ValueError("a bug")])
def test_a_statement_that_fails_is_not_a_group_of_errors(fault: Exception) -> None:
    """The ids of all items are known, as some may be there."""

    class Refusing(MemoryTables):
        async def insert_items(self, entries: Sequence[Entry]) -> None:
            await super().insert_items(entries)
            raise fault

    database = memory()

    async def work() -> None:
        enqueuer = memory_enqueuer(Refusing(database), settings())
        await enqueuer.enqueue(QUEUE, [NewItem(n, f"k{n}") for n in range(40)])

    with pytest.raises(EnqueueUnknown if isinstance(fault, WritetimeError) else ValueError, match=str(fault)) as e:
        run_virtually(work())
    if isinstance(e.value, EnqueueUnknown):
        assert len(e.value.item_ids) == 40
        assert {i for rows in database.items.values() for i in rows} <= set(e.value.item_ids)


@pytest.mark.parametrize("arrives", [True, False])
def test_a_delayed_call_whose_answer_is_lost_is_repeated_with_its_ids(*, arrives: bool) -> None:
    """There is one item, and it is not early."""
    database = memory()
    begun: list[tuple[UUID, float]] = []

    class Silent(MemoryTables):
        async def insert_items(self, entries: Sequence[Entry]) -> None:
            if arrives:
                await super().insert_items(entries)
            await asyncio.sleep(1e6)

    async def handle(item: Item) -> None:
        begun.append((item.item_id, asyncio.get_running_loop().time()))

    async def work() -> list[UUID]:
        delayed = [NewItem(delay, "k", delay) for delay in (40.0, 60.0)]
        with pytest.raises(EnqueueUnknown) as unknown:
            await memory_enqueuer(Silent(database), settings()).enqueue(QUEUE, delayed)
        ids = unknown.value.item_ids
        again = [NewItem(item.payload, "k", item_id=i) for item, i in zip(delayed, ids, strict=True)]
        assert await memory_enqueuer(MemoryTables(database), settings()).enqueue(QUEUE, again) == ids
        ended = asyncio.Event()
        running = WorkerLoop(
            MemoryTables(database),
            settings().workqueue,
            {QUEUE: handle},
            "w",
            coroutine_loop=asyncio.get_running_loop(),
        )
        serving = asyncio.create_task(running.serve(ended, until_idle=False))
        await asyncio.sleep(45)
        ended.set()
        assert await serving == {"completed": 2}
        return ids

    ids = run_virtually(work())
    assert [item_id for item_id, _ in begun] == ids
    for (_, at), item_id in zip(begun, ids, strict=True):
        # The worker reads the clock with an error of half the time of an answer, which takes 10 ms at most.
        assert -0.005 <= 1_700_000_000 + at - time_of(item_id) / 1000 < 5


def test_a_name_has_one_item_in_its_time() -> None:
    database = memory()

    async def call(payload: int, name: str | None, seconds: float = 100.0) -> UUID:
        enqueuer = memory_enqueuer(MemoryTables(database), settings())
        [item_id] = await enqueuer.enqueue(QUEUE, [NewItem(payload, "k", unique_name=name, unique_seconds=seconds)])
        return item_id

    async def work() -> None:
        first, second, other, none = await asyncio.gather(call(1, "a"), call(2, "a"), call(3, "b"), call(4, None))
        assert first == second
        assert len({first, other, none}) == 3
        await asyncio.sleep(99)
        assert await call(5, "a") == first
        await asyncio.sleep(2)
        later = await call(6, "a")
        assert later not in {first, other, none}
        assert entry_of(database, first).payload in "12"
        assert sum(len(rows) for rows in database.items.values()) == 4

    run_virtually(work())


@pytest.mark.parametrize("seconds", [5.0, 400.0], ids=["soon", "late"])
@pytest.mark.parametrize("arrives", [True, False])
def test_a_name_whose_first_caller_has_ended_gets_an_item(seconds: float, *, arrives: bool) -> None:
    """The name was taken, and the item inserted or not, before the caller ended. Later, its bucket may be closed,
    so that another one replaces it, unless it is there.
    """
    database = memory()
    own = with_queue(Settings(), QUEUE, {"shards": 2}, enqueue_timeout_seconds=10.0)

    class Ending(MemoryTables):
        async def insert_new(self, entries: Sequence[Entry]) -> list[Entry]:
            if arrives:
                await super().insert_new(entries)
            await asyncio.sleep(1e6)
            return []

    async def work() -> None:
        item = NewItem(1, "k", unique_name="a", unique_seconds=1e4)
        with pytest.raises(EnqueueUnknown) as unknown:
            await memory_enqueuer(Ending(database), own).enqueue(QUEUE, [item])
        await asyncio.sleep(seconds)
        again = NewItem(2, unique_name="a", unique_seconds=1e4)
        enqueuers = [memory_enqueuer(MemoryTables(database), own) for _ in range(3)]
        found = {i for ids in await asyncio.gather(*(e.enqueue(QUEUE, [again]) for e in enqueuers)) for i in ids}
        assert len(found) == 1
        is_first = arrives or seconds == 5.0
        assert (found == set(unknown.value.item_ids)) == is_first
        [entry] = (e for rows in database.items.values() for e in rows.values())
        assert (entry.item_id, entry.payload, entry.key) == (*found, *(("1", "k") if is_first else ("2", None)))

    run_virtually(work())


@pytest.mark.parametrize(("name", "seconds"), [("", 1.0), ("a" * 1025, 1.0), ("a", 0.0), ("a", 4e7), ("a", math.nan)])
def test_a_name_and_its_time_are_checked(name: str, seconds: float) -> None:
    async def work() -> None:
        enqueuer = memory_enqueuer(MemoryTables(memory()), settings())
        await enqueuer.enqueue(QUEUE, [NewItem(1, unique_name=name, unique_seconds=seconds)])

    with pytest.raises(InvalidItem):
        run_virtually(work())
