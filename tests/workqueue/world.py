"""A queue in memory, with workers and an operator, in simulated time."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from tests.workqueue.conftest import with_queue
from tests.workqueue.memory import MemoryDatabase, MemoryTables, memory_enqueuer, run_virtually
from writetime.core.config import Settings
from writetime.workqueue.controls import AsyncControls, ItemState
from writetime.workqueue.enqueue import NewItem
from writetime.workqueue.items import Item
from writetime.workqueue.worker_loop import WorkerLoop

QUEUE = "q"
# Longer than the longest round of leases, so workers know by then what was asked for.
ROUND_SECONDS = 3.0


class World:
    """A queue in memory, its workers, and an operator."""

    def __init__(
        self, handler: Callable[[Item], Awaitable[Any]], backoff: float = 0.05, workers: int = 1, **workqueue: Any
    ) -> None:
        own = {"shards": 1, "max_attempts": 3, "backoff_base_seconds": backoff}
        self.settings = with_queue(Settings(), QUEUE, own, drain_seconds=1.0, idle_poll_seconds=1.0, **workqueue)
        self.database = MemoryDatabase(random.Random(1), 1_700_000_000_000)
        self.controls = AsyncControls(MemoryTables(self.database), self.settings)
        self.begun: list[Any] = []
        self._handler = handler
        self._workers = workers
        self._enqueuer = memory_enqueuer(MemoryTables(self.database), self.settings)

    async def enqueue(
        self,
        *payloads: Any,
        key: str | None = None,
        delay_seconds: float = 0.0,
        time_limit_seconds: float | None = None,
    ) -> list[UUID]:
        items = [NewItem(p, key, delay_seconds, None, time_limit_seconds) for p in payloads]
        return await self._enqueuer.enqueue(QUEUE, items)

    async def __aenter__(self) -> "World":
        self._stop = asyncio.Event()
        self._serving = [asyncio.create_task(self.serve(f"w{n}", self._stop)) for n in range(self._workers)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        self.outcomes = sum(await asyncio.gather(*self._serving), Counter[str]())

    async def serve(
        self, name: str, stop: asyncio.Event, tables: MemoryTables | None = None, *, until_idle: bool = False
    ) -> Counter[str]:
        """Run one worker."""
        loop, own = asyncio.get_running_loop(), tables or MemoryTables(self.database)
        handlers = {QUEUE: self._handle}
        worker = WorkerLoop(own, self.settings.workqueue, handlers, name, coroutine_loop=loop)
        return await worker.serve(stop, until_idle=until_idle)

    async def _handle(self, item: Item) -> Any:
        self.begun.append(item.payload)
        return await self._handler(item)

    async def state(self, item_id: UUID, wait_seconds: float = 0.0) -> ItemState:
        return await self.controls.item(QUEUE, item_id, wait_seconds=wait_seconds)


def run(work: Callable[[World], Awaitable[None]], handler: Callable[[Item], Awaitable[Any]], **options: Any) -> None:
    async def with_world() -> None:
        await work(World(handler, **options))

    run_virtually(with_world())
