"""A worker that runs until it is idle ends only once it knows that there is nothing to do; on tables in memory."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from tests.workqueue.conftest import with_queue
from tests.workqueue.memory import MemoryDatabase, MemoryTables, memory_enqueuer, run_virtually
from writetime.clients.prepared_statements import UnknownWrite
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.workqueue import faults
from writetime.workqueue.enqueue import NewItem
from writetime.workqueue.items import Item, ItemPartition
from writetime.workqueue.queue_tables import ItemUpdate
from writetime.workqueue.worker_loop import WorkerLoop

QUEUE = "q"
ITEMS = 30


class Failing(MemoryTables):
    """Tables of which one statement fails until a time of the loop, each time after a while."""

    def __init__(self, database: MemoryDatabase, name: str, error: Exception, until: float) -> None:
        super().__init__(database)
        original = getattr(self, name)
        self.failed = 0

        async def fail_first(*args: Any) -> Any:
            if asyncio.get_running_loop().time() < until:
                self.failed += 1
                await asyncio.sleep(0.7)
                raise error
            return await original(*args)

        setattr(self, name, fail_first)


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "RETRY_SECONDS", 0.1)


def settings(lease_seconds: float = 1.0) -> Settings:
    return with_queue(Settings(), QUEUE, {"shards": 2}, lease_seconds=lease_seconds)


async def handle(item: Item) -> None:
    await asyncio.sleep(0.01)


async def fill(database: MemoryDatabase) -> None:
    await memory_enqueuer(MemoryTables(database), settings()).enqueue(QUEUE, [NewItem(n) for n in range(ITEMS)])


async def drain(database: MemoryDatabase, tables: MemoryTables, lease_seconds: float = 1.0) -> Counter[str]:
    """Enqueue items, then work until idle."""
    await fill(database)
    own = settings(lease_seconds).workqueue
    running = WorkerLoop(tables, own, {QUEUE: handle}, "w", coroutine_loop=asyncio.get_running_loop())
    async with asyncio.timeout(300):
        return await running.serve(asyncio.Event(), until_idle=True)


@pytest.mark.parametrize("statement", ["items", "buckets", "statics", "queue", "now"])
def test_a_database_that_does_not_answer_for_a_while_hides_no_items(statement: str) -> None:
    database = MemoryDatabase(random.Random(1), 1_700_000_000_000)
    tables = Failing(database, statement, UnknownWrite("no answer"), until=3.0)
    assert run_virtually(drain(database, tables)) == {"completed": ITEMS}
    assert tables.failed > 1


def test_a_queue_without_an_answer_does_not_delay_the_others() -> None:
    database = MemoryDatabase(random.Random(1), 1_700_000_000_000)

    class Half(MemoryTables):
        silent = True

        async def queue(self, name: str, shards: int, bucket_seconds: int) -> tuple[int, int]:
            if name == "silent" and self.silent:
                raise UnknownWrite("no answer")
            return await super().queue(name, shards, bucket_seconds)

    async def work() -> int:
        await fill(database)
        ended = asyncio.Event()
        running = WorkerLoop(
            Half(database),
            settings().workqueue,
            {"silent": handle, QUEUE: handle},
            "w",
            coroutine_loop=asyncio.get_running_loop(),
        )
        serving = asyncio.create_task(running.serve(ended, until_idle=True))
        await asyncio.sleep(20)
        # The other queue is done, and this one may still have items.
        assert not serving.done()
        ended.set()
        return (await serving)["completed"]

    assert run_virtually(work()) == ITEMS
    assert any(queue == "silent" and place == "opening" for queue, place, *_ in database.faults)


def test_a_queue_whose_buckets_are_refused_is_not_done() -> None:
    database = MemoryDatabase(random.Random(1), 1_700_000_000_000)
    tables = Failing(database, "buckets", WritetimeError("no such table"), until=1e9)
    with pytest.raises(WritetimeError, match="queue q: no such table"):
        run_virtually(drain(database, tables))


@pytest.mark.parametrize("seed", range(5))
def test_a_shard_that_was_just_set_aside_is_not_done(seed: int) -> None:
    """The other shard has nothing to do, and the next look at all shards is still to come."""
    random.seed(seed)
    database = MemoryDatabase(random.Random(seed), 1_700_000_000_000)

    class Once(MemoryTables):
        broken = True

        async def write(
            self, place: ItemPartition, epoch: int, op: int, floor: UUID | None, changes: Sequence[ItemUpdate]
        ) -> bool:
            if place.shard == 0 and self.broken:
                self.broken = False
                await asyncio.sleep(5)
                raise WritetimeError("refused once")
            return await super().write(place, epoch, op, floor, changes)

    assert run_virtually(drain(database, Once(database), lease_seconds=30.0)) == {"completed": ITEMS}
