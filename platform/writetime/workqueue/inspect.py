"""The state of a queue: its waiting, running and dead items, their ages, and its workers."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.core.printing import printable
from writetime.workqueue.clock import DatabaseClock
from writetime.workqueue.dead_items import count_letters
from writetime.workqueue.items import Place, Status, time_of
from writetime.workqueue.partition import LAST_ID, NO_ID
from writetime.workqueue.queue_tables import Tables


@dataclass(frozen=True)
class QueueState:
    """The state of one queue. Ages are in seconds, by the database's clock.

    `received` items were not claimed yet, `delayed` of them are not due; `retry` wait for another attempt.
    """

    queue: str
    shards: int
    received: int
    delayed: int
    processing: int
    retry: int
    dead_letters: int
    redriven: int
    oldest_seconds: float
    most_attempts: int
    open_buckets: int
    closed_buckets: int
    owners: dict[int, str]
    workers: list[str]

    @property
    def depth(self) -> int:
        """The number of unfinished items."""
        return self.received + self.processing + self.retry


def inspect(settings: Settings, queue: str) -> QueueState:
    """Return the state of a queue. It reads the ids of all unfinished items and dead letters, and no other ones.

    Raises:
        DatabaseUnreachable: no contact point answers.
    """
    with connect(settings) as session:
        return asyncio.run(read_state(Tables(session, settings), settings, queue))


def queues(settings: Settings) -> list[str]:
    """Return the names of all queues that were ever used."""
    with connect(settings) as session:
        return asyncio.run(Tables(session, settings).queues())


async def read_state(tables: Tables, settings: Settings, queue: str) -> QueueState:
    """Return the state of a queue."""
    own = settings.workqueue
    shards, bucket_seconds = await tables.queue(queue, own.queue(queue).shards, own.bucket_seconds)
    clock = DatabaseClock(tables)
    await clock.look()
    now = clock.now()
    counts: Counter[str] = Counter()
    oldest = now
    most_attempts = 0
    rows = await tables.buckets(queue)
    for row in (row for row in rows if row.closed is None):
        place = Place(queue, row.shard, row.bucket)
        floor = (await tables.statics(place)).floor or NO_ID
        ids = await tables.item_ids(place, floor, LAST_ID)
        states = {s.item_id: s for s in await tables.states(place, floor)}
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
    dead, redriven = await count_letters(tables, queue, shards, bucket_seconds)
    owned = await tables.shards(queue)
    return QueueState(
        queue=queue,
        shards=shards,
        received=counts["received"],
        delayed=counts["delayed"],
        processing=counts[Status.PROCESSING.lower()],
        retry=counts[Status.RETRY.lower()],
        dead_letters=dead,
        redriven=redriven,
        oldest_seconds=(now - oldest) / 1000,
        most_attempts=most_attempts,
        open_buckets=sum(row.closed is None for row in rows),
        closed_buckets=sum(row.closed is not None for row in rows),
        owners={shard: row.owner for shard, row in sorted(owned.items()) if row.owner is not None},
        workers=await tables.workers(queue),
    )


def worker_faults(settings: Settings) -> list[Any]:
    """Return the faults of the last hour of all workers: queue, worker, place, at, times and reason."""
    with connect(settings) as session:
        return asyncio.run(Tables(session, settings).faults())


def status_lines(settings: Settings) -> Iterator[str]:
    """Yield the faults of workers for `writetime status`; nothing if no database answers, or it has no tables yet."""
    try:
        found = worker_faults(settings)
    except WritetimeError:
        return
    for row in found:
        at = f"{row.at:%Y-%m-%dT%H:%M:%SZ}"
        yield f"queue {row.queue}, {row.place}: failed {row.times} times, last at {at}: {printable(row.reason)}"
