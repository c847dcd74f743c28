"""The state of a queue: its waiting, running and dead items, their ages, and its workers."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError
from writetime.core.printing import printable
from writetime.workqueue.clock import DatabaseClock
from writetime.workqueue.dead_items import count_letters
from writetime.workqueue.items import ItemPartition, Status, time_of
from writetime.workqueue.partition import LAST_ID, NO_ID
from writetime.workqueue.queue_tables import BucketRow, QueueTables

# Buckets that are read at once. The ids of their items are in memory together.
_BUCKETS_AT_ONCE = 8
# Ids that are read at once in the search for the first unfinished item.
_IDS_AT_ONCE = 100


@dataclass(frozen=True)
class Unfinished:
    """The unfinished items of one queue. Ages are in seconds, by the database's clock.

    `received` items were not claimed yet, and `delayed` of them are not due. `retry` items wait for another attempt.
    """

    queue: str
    received: int
    delayed: int
    processing: int
    retry: int
    oldest_seconds: float
    most_attempts: int

    @property
    def depth(self) -> int:
        """The number of unfinished items."""
        return self.received + self.processing + self.retry


@dataclass(frozen=True)
class QueueState(Unfinished):
    """The state of one queue."""

    shards: int
    dead_letters: int
    redriven: int
    open_buckets: int
    closed_buckets: int
    owners: dict[int, str]
    workers: list[str]


class QueueInspector:
    """Reads the states of queues over one connection."""

    def __init__(self, tables: QueueTables, settings: Settings) -> None:
        self._tables = tables
        self._settings = settings
        self._clock = DatabaseClock(tables)

    def queues(self) -> list[str]:
        """Return the names of all queues that were ever used."""
        return asyncio.run(self._tables.queues())

    def state(self, queue: str) -> QueueState:
        """Return the state of a queue. It reads only the ids of unfinished items and dead letters.

        Raises:
            WritetimeError: no queue of that name was ever used, or has settings.
        """
        return asyncio.run(self._state(queue))

    def unfinished(self, queue: str) -> Unfinished:
        """Return the unfinished items of a queue."""
        return asyncio.run(self._unfinished(queue))

    def oldest_seconds(self, queue: str) -> float:
        """Return the age of the oldest unfinished item of a queue; 0 if none is due. In each bucket that has begun, it
        reads the ids up to the first unfinished item. Items that are delayed for long are in other buckets.
        """
        return asyncio.run(self._oldest_seconds(queue))

    async def _unfinished(self, queue: str) -> Unfinished:
        begun = await self._begun()
        return await self._count(queue, await self._tables.buckets(queue), begun)

    async def _oldest_seconds(self, queue: str) -> float:
        rows = await self._tables.buckets(queue, until=await self._begun())
        now = self._clock.now()
        turn = asyncio.Semaphore(_BUCKETS_AT_ONCE)

        async def first(place: ItemPartition) -> int:
            """Return the time of the first unfinished item of a bucket; now if there is none."""
            async with turn:
                after = (await self._tables.statics(place)).floor or NO_ID
                while ids := await self._tables.item_ids(place, after, LAST_ID, _IDS_AT_ONCE):
                    statuses = await self._tables.statuses(place, ids)
                    for item_id in ids:
                        if (status := statuses.get(item_id)) is None or not status.final:
                            return time_of(item_id)
                    after = ids[-1]
            return now

        found = await asyncio.gather(
            *(first(ItemPartition(queue, r.shard, r.bucket)) for r in rows if r.closed is None)
        )
        return max(0, now - min(found, default=now)) / 1000

    async def _state(self, queue: str) -> QueueState:
        tables = self._tables
        shards, bucket_seconds = await tables.known_queue(queue)
        begun = await self._begun()
        rows = await tables.buckets(queue)
        unfinished = await self._count(queue, rows, begun)
        dead, redriven = await count_letters(tables, queue, shards, bucket_seconds)
        owned = await tables.shards(queue)
        return QueueState(
            **vars(unfinished),
            shards=shards,
            dead_letters=dead,
            redriven=redriven,
            open_buckets=sum(row.closed is None for row in rows),
            closed_buckets=sum(row.closed is not None for row in rows),
            owners={shard: row.owner for shard, row in sorted(owned.items()) if row.owner is not None},
            workers=await tables.workers(queue),
        )

    async def _begun(self) -> int:
        """Return a time (milliseconds). A worker may have opened the buckets that begin before it."""
        await self._clock.look()
        return self._clock.now() + round(self._settings.workqueue.clock_tolerance_seconds * 1000)

    async def _count(self, queue: str, rows: Sequence[BucketRow], begun: int) -> Unfinished:
        """Count the unfinished items in the open ones of these buckets."""
        now = self._clock.now()
        counts: Counter[str] = Counter()
        oldest, most_attempts = now, 0
        turn = asyncio.Semaphore(_BUCKETS_AT_ONCE)

        async def read(row: BucketRow) -> None:
            nonlocal oldest, most_attempts
            place = ItemPartition(queue, row.shard, row.bucket)
            floor, states = NO_ID, {}
            async with turn:
                if opened := row.bucket <= begun:
                    floor = (await self._tables.statics(place)).floor or NO_ID
                ids = await self._tables.item_ids(place, floor, LAST_ID)
                if opened:
                    states = {s.item_id: s for s in await self._tables.states(place, floor)}
            for item_id in ids:
                state = states.get(item_id)
                if state is not None and state.status.final:
                    continue
                late = time_of(item_id) <= now
                counts["received" if state is None else state.status.lower()] += 1
                counts["delayed"] += state is None and not late
                if late:
                    oldest = min(oldest, time_of(item_id))
                most_attempts = max(most_attempts, 0 if state is None else state.attempts)

        await asyncio.gather(*(read(row) for row in rows if row.closed is None))
        return Unfinished(
            queue=queue,
            received=counts["received"],
            delayed=counts["delayed"],
            processing=counts[Status.PROCESSING.lower()],
            retry=counts[Status.RETRY.lower()],
            oldest_seconds=(now - oldest) / 1000,
            most_attempts=most_attempts,
        )


@contextmanager
def looking(settings: Settings) -> Iterator[QueueInspector]:
    """Connect, and inspect queues.

    Raises:
        DatabaseUnreachable: no contact point answers.
    """
    with connect(settings) as session:
        yield QueueInspector(QueueTables(session, settings), settings)


def inspect(settings: Settings, queue: str) -> QueueState:
    """Return the state of a queue, see `Look.state`.

    Raises:
        DatabaseUnreachable: no contact point answers.
        WritetimeError: no queue of that name was ever used, or has settings.
    """
    with looking(settings) as look:
        return look.state(queue)


def worker_faults(settings: Settings) -> list[Any]:
    """Return the faults of the last hour of all workers: queue, worker, place, at, times and reason."""
    with connect(settings) as session:
        return asyncio.run(QueueTables(session, settings).faults())


def status_lines(settings: Settings) -> Iterator[str]:
    """Yield the faults of workers for `writetime status`; nothing if no database answers, or it has no tables yet."""
    try:
        found = worker_faults(settings)
    except WritetimeError:
        return
    for row in found:
        at = f"{row.at:%Y-%m-%dT%H:%M:%SZ}"
        times = pluralize(row.times, "time")
        yield f"queue {row.queue}, {row.place}: failed {times}, last at {at}: {printable(row.reason)}"
