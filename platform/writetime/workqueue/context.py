"""The clock of the work queue, which is the database's, and the objects that the parts of a worker share for one queue.

Ids, delays and backoff use the clock of the node that coordinates a request, continued between two reads with this
process's monotonic clock. So the wall clocks of enqueuers and workers do not matter.

The result differs from the node's clock by at most half of the time that its answer took, and by the drift of the
monotonic clock in a minute. Readers look back by `clock_tolerance_seconds` for items with earlier ids, and a rescan
finds items that were later than that. A bucket is closed and dropped only after a read of all of its items. So a wrong
time delays an item, and loses none.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from writetime.core.config import Queue, WorkQueue
from writetime.workqueue.faults import Faults
from writetime.workqueue.queue_tables import QueueTables

LOOK_SECONDS = 60.0


class DatabaseClock:
    """Milliseconds since 1970 by the database's clock. `monotonic` is in seconds."""

    def __init__(self, tables: QueueTables, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._tables = tables
        self._monotonic = monotonic
        self._offset = 0.0
        self._looked: float | None = None

    async def look(self) -> None:
        """Read the database's time, unless it was read recently. Raises `UnknownWrite` if it did not answer."""
        before = self._monotonic()
        if self._looked is not None and before - self._looked < LOOK_SECONDS:
            return
        now = await self._tables.now()
        after = self._monotonic()
        self._offset = now / 1000 - (before + after) / 2
        self._looked = after

    def micros(self) -> int:
        """Return the present time in microseconds."""
        return round((self._monotonic() + self._offset) * 1_000_000)

    def now(self) -> int:
        """Return the present time in milliseconds."""
        return self.micros() // 1000


@dataclass(frozen=True)
class QueueContext:
    """One queue of one worker."""

    tables: QueueTables
    clock: DatabaseClock
    faults: Faults
    settings: WorkQueue
    queue: str
    shards: int
    bucket_seconds: int
    worker: str

    @property
    def own(self) -> Queue:
        """The settings of this queue."""
        return self.settings.queue(self.queue)


async def wait_for_event(event: asyncio.Event, seconds: float | None) -> None:
    """Wait until an event is set, at most for some time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
