"""Buckets of delayed items, which may be thousands, cost nothing before their time; on tables in memory."""

import asyncio
import random
from collections import Counter
from uuid import UUID

from tests.workqueue.conftest import with_queue
from tests.workqueue.memory import MemoryDatabase, MemoryTables, memory_enqueuer, run_virtually
from writetime.core.config import Settings
from writetime.workqueue.enqueue import NewItem
from writetime.workqueue.inspect import QueueInspector
from writetime.workqueue.items import LAST_ID, Item, ItemPartition
from writetime.workqueue.queue_tables import END_OF_TIME, StateRow, Statics
from writetime.workqueue.worker_loop import WorkerLoop

QUEUE = "q"
BUCKET_SECONDS = 10
# Twice as many buckets as a worker may list: with the next ones it lists those of the last two minutes.
LATER = 60


def settings() -> Settings:
    return with_queue(
        Settings(),
        QUEUE,
        {"shards": 2},
        bucket_seconds=BUCKET_SECONDS,
        clock_tolerance_seconds=1.0,
        keep_closed_hours=0.01,
        # Each look takes CPU in time that is not real, too.
        idle_poll_seconds=0.4,
    )


class Counting(MemoryTables):
    """Tables that count their reads, and how many of them run at once."""

    def __init__(self, database: MemoryDatabase) -> None:
        super().__init__(database)
        self.reads: Counter[str] = Counter()
        self.listed: list[int] = []
        self.most_at_once = 0
        self._at_once = 0

    async def statics(self, place: ItemPartition) -> Statics:
        self.reads["statics"] += 1
        return await super().statics(place)

    async def states(self, place: ItemPartition, after: UUID, until: UUID = LAST_ID) -> dict[UUID, StateRow]:
        self.reads["states"] += 1
        return await super().states(place, after, until)

    async def item_ids(self, place: ItemPartition, after: UUID, before: UUID, most: int = END_OF_TIME) -> list[UUID]:
        self.reads["item_ids"] += 1
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            ids = await super().item_ids(place, after, before, most)
            self.reads["ids"] += len(ids)
            return ids
        finally:
            self._at_once -= 1

    async def buckets(self, queue: str, since: int = 0, until: int = END_OF_TIME) -> dict[ItemPartition, int | None]:
        rows = await super().buckets(queue, since, until)
        self.listed.append(len(rows))
        return rows

    async def known_queue(self, name: str) -> tuple[int, int]:
        own = settings().workqueue
        return own.queue(name).shards, own.bucket_seconds

    # The other tables that a worker reads when it looks for items.

    async def letters(self, queue: str, shard: int) -> dict[UUID, UUID | None]:
        return {}


async def fill(database: MemoryDatabase) -> None:
    enqueuer = memory_enqueuer(MemoryTables(database), settings())
    items = [NewItem("now") for _ in range(20)]
    items += [NewItem("later", delay_seconds=(n + 3) * BUCKET_SECONDS) for n in range(LATER)]
    await enqueuer.enqueue(QUEUE, items)


def test_a_look_reads_the_buckets_that_have_begun_some_at_once() -> None:
    database = MemoryDatabase(random.Random(1), 1_700_000_000_000)
    asyncio.run(fill(database))
    begun = len({place for place, items in database.items.items() if any(not e.delayed for e in items.values())})
    tables = Counting(database)
    assert 0 < QueueInspector(tables, settings()).oldest_seconds(QUEUE) < 60
    assert tables.reads == {"statics": begun, "item_ids": begun, "ids": 20}
    assert tables.listed == [begun]
    # All of them: one statement for each bucket that has not begun.
    tables = Counting(database)
    state = QueueInspector(tables, settings()).state(QUEUE)
    assert (state.depth, state.delayed, state.open_buckets) == (20 + LATER, LATER, begun + LATER)
    assert tables.reads == {"statics": begun, "states": begun, "item_ids": begun + LATER, "ids": 20 + LATER}
    assert 1 < tables.most_at_once <= 8


def test_a_worker_lists_no_buckets_that_begin_much_later_and_is_never_late() -> None:
    database = MemoryDatabase(random.Random(1), 1_700_000_000_000)
    tables = Counting(database)
    late: dict[UUID, float] = {}

    async def handle(item: Item) -> None:
        if item.payload == "later":
            due = (item.item_id.int >> 80) / 1000
            late[item.item_id] = database.start / 1000 + asyncio.get_running_loop().time() - due

    async def work() -> None:
        await fill(database)
        ended = asyncio.Event()
        serving = asyncio.create_task(
            WorkerLoop(
                tables, settings().workqueue, {QUEUE: handle}, "w", coroutine_loop=asyncio.get_running_loop()
            ).serve(ended, until_idle=False)
        )
        while len(late) < LATER:
            await asyncio.sleep(1)
        ended.set()
        await serving

    run_virtually(work())
    assert len(tables.listed) > LATER
    # The next ones, and those of the last two minutes, which are not dropped yet.
    assert max(tables.listed) < 30
    assert max(map(abs, late.values())) < 1
