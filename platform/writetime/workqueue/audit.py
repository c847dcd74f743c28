"""The account of a queue, by what the database has: each item is open, completed or a dead letter."""

import asyncio
from dataclasses import dataclass

from writetime.config import Settings
from writetime.database import connect
from writetime.workqueue.items import Place, Status
from writetime.workqueue.partition import LAST_ID, NO_ID
from writetime.workqueue.tables import BucketRow, Tables


@dataclass(frozen=True)
class Account:
    """What the buckets that are not dropped yet hold. `lost` is what no worker would ever look at again."""

    items: int
    completed: int
    dead: int
    open: int
    lost: int
    dead_without_letter: int


def audit(settings: Settings, queue: str) -> Account:
    """Compare all items of a queue with all states."""
    with connect(settings) as session:
        return asyncio.run(_audit(Tables(session, settings), settings, queue))


def buckets(settings: Settings, queue: str) -> list[BucketRow]:
    """Return the buckets of a queue that are not dropped."""
    with connect(settings) as session:
        return asyncio.run(Tables(session, settings).buckets(queue))


def database_time(settings: Settings) -> int:
    """Return the database's time in milliseconds since 1970."""
    with connect(settings) as session:
        return asyncio.run(Tables(session, settings).now())


async def _audit(tables: Tables, settings: Settings, queue: str) -> Account:
    own = settings.workqueue
    shards, _ = await tables.queue(queue, own.queue(queue).shards, own.bucket_seconds)
    letters = {letter.item_id for shard in range(shards) for letter in await tables.dead_letters(queue, shard)}
    items = done = dead = still_open = lost = unexplained = 0
    for row in await tables.buckets(queue):
        place = Place(queue, row.shard, row.bucket)
        # The items are read first: what is finished meanwhile has a state by then.
        ids = await tables.item_ids(place, NO_ID, LAST_ID)
        states = {s.item_id: s.status for s in await tables.states(place, NO_ID)}
        statuses = [states.get(item_id) for item_id in ids]
        final = sum(status is not None and status.final for status in statuses)
        items += len(ids)
        done += statuses.count(Status.COMPLETED)
        dead += statuses.count(Status.DEAD)
        still_open += len(ids) - final if row.closed is None else 0
        lost += len(ids) - final if row.closed is not None else 0
        unexplained += sum(status is Status.DEAD and i not in letters for i, status in states.items())
    return Account(items, done, dead, still_open, lost, unexplained)
