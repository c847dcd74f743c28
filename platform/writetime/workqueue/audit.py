"""The account of a queue, from the database: each item is open, completed or a dead letter."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

import pyarrow as pa
from deltalake import DeltaTable

from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.delta.bucketed_table import is_delta_table
from writetime.delta.storage import lake_storage
from writetime.workqueue.items import ItemPartition, Status
from writetime.workqueue.partition import LAST_ID, NO_ID
from writetime.workqueue.queue_tables import END_OF_TIME, BucketRow, QueueTables


@dataclass(frozen=True)
class Account:
    """The items in the buckets that are not dropped yet. No worker would ever find the `lost` items."""

    items: int
    completed: int
    dead: int
    open: int
    lost: int
    dead_without_letter: int


@dataclass(frozen=True)
class Brought:
    """The completed items of a queue in the lake, for the buckets that are not dropped yet.

    `waiting` is the number of items that are not in the lake yet. `differing` are the buckets of which the lake has too
    many items, or too few although it has read them after they were closed.
    """

    completed: int
    in_lake: int
    waiting: int
    differing: list[ItemPartition]


class InLake(NamedTuple):
    """The lake's items of one bucket: their number, and the time at which they were read (milliseconds)."""

    items: int
    read_at: int


class Audit:
    """Reads the items and states of queues over one connection."""

    def __init__(self, tables: QueueTables) -> None:
        self._tables = tables

    def queues(self) -> list[str]:
        """Return the names of all queues that were ever used."""
        return asyncio.run(self._tables.queues())

    def now(self) -> int:
        """Return the database's time in milliseconds since 1970."""
        return asyncio.run(self._tables.now())

    def account(self, queue: str) -> Account:
        """Compare all items of a queue with all states."""
        return asyncio.run(_account(self._tables, queue))

    def buckets(self, queue: str, until: int = END_OF_TIME) -> list[BucketRow]:
        """Return the buckets of a queue that are not dropped, and begin up to a time (milliseconds since 1970)."""
        return asyncio.run(self._tables.buckets(queue, until=until))

    def compare(self, queue: str, in_lake: Mapping[ItemPartition, InLake]) -> Brought:
        """Compare the lake's items of a queue, as read a moment ago, with the completed items by CQL."""
        return asyncio.run(_compare(self._tables, queue, in_lake))


@contextmanager
def auditing(settings: Settings) -> Iterator[Audit]:
    """Connect, and audit queues.

    Raises:
        DatabaseUnreachable: no contact point answers.
    """
    with connect(settings) as session:
        yield Audit(QueueTables(session, settings))


def in_lake(settings: Settings, table: str) -> dict[ItemPartition, InLake]:
    """Count the completed items of each bucket in a table of the lake; nothing if it does not exist yet."""
    storage = lake_storage(settings).folder(table)
    if not is_delta_table(storage):
        return {}
    names = [*ItemPartition._fields, "read_at"]
    found: dict[ItemPartition, InLake] = {}
    # Uses a file system that is not Python's, see `BucketedTable.read`.
    dataset = DeltaTable(storage.address, storage_options=dict(storage.options)).to_pyarrow_dataset(
        filesystem=storage.filesystem()
    )
    for batch in dataset.to_batches(columns=names):
        counted = pa.Table.from_batches([batch]).group_by(names).aggregate([([], "count_all")])
        for row in counted.to_pylist():
            place = ItemPartition(row["queue"], row["shard"], row["bucket"])
            before = found.get(place, InLake(0, row["read_at"]))
            found[place] = InLake(before.items + row["count_all"], min(before.read_at, row["read_at"]))
    return found


async def _account(tables: QueueTables, queue: str) -> Account:
    shards, _ = await tables.known_queue(queue)
    items = done = dead = still_open = lost = 0
    given_up: set[UUID] = set()
    for row in await tables.buckets(queue):
        place = ItemPartition(queue, row.shard, row.bucket)
        # The items are read first: items that finish meanwhile have a state by then.
        ids = await tables.item_ids(place, NO_ID, LAST_ID)
        states = {s.item_id: s.status for s in await tables.states(place, NO_ID)}
        statuses = [states.get(item_id) for item_id in ids]
        unfinished = [item_id for item_id in ids if item_id not in states or not states[item_id].final]
        items += len(ids)
        done += statuses.count(Status.COMPLETED)
        dead += statuses.count(Status.DEAD)
        if row.closed is None:
            still_open += len(unfinished)
        elif unfinished:
            # A bucket that is dropped meanwhile loses its items before their states.
            lost += len(await tables.existing(place, unfinished))
        given_up |= {item_id for item_id, status in states.items() if status is Status.DEAD}
    # Read last, because an item has its letter before it is dead.
    letters = {letter.item_id for shard in range(shards) for letter in await tables.letters(queue, shard)}
    return Account(items, done, dead, still_open, lost, len(given_up - letters))


async def _compare(tables: QueueTables, queue: str, in_lake: Mapping[ItemPartition, InLake]) -> Brought:
    completed = there = waiting = 0
    differing = []
    for row in await tables.buckets(queue):
        place = ItemPartition(queue, row.shard, row.bucket)
        states = await tables.states(place, NO_ID)
        done = sum(state.status is Status.COMPLETED for state in states)
        have = in_lake.get(place, InLake(0, 0))
        # The lake reads a bucket again until it has read it after it was closed.
        settled = row.closed is not None and have.read_at > row.closed
        differs = have.items > done or (settled and have.items < done)
        if differs and not await tables.item_ids(place, NO_ID, LAST_ID):
            # It is dropped meanwhile: its items go before their states.
            continue
        completed += done
        there += have.items
        if differs:
            differing.append(place)
        else:
            waiting += done - have.items
    return Brought(completed, there, waiting, differing)
