"""The state of a queue: its waiting, running and dead items, their ages, and its workers; and the account of all its
items, each of which is open, completed, cancelled or a dead letter.
"""

import asyncio
import functools
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, ParamSpec, TypeVar
from uuid import UUID

from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError
from writetime.core.printing import printable
from writetime.workqueue.context import DatabaseClock
from writetime.workqueue.dead_items import count_letters
from writetime.workqueue.items import LAST_ID, NO_ID, ItemPartition, Status, time_of
from writetime.workqueue.queue_tables import END_OF_TIME, QueueTables, StateRow, WholeState

_P = ParamSpec("_P")
_T = TypeVar("_T")

# Buckets that are read at once. The ids of their items are in memory together.
_BUCKETS_AT_ONCE = 8
# Ids that are read at once in the search for the first unfinished item.
_IDS_AT_ONCE = 100


@dataclass(frozen=True)
class Unfinished:
    """The unfinished items of one queue. Ages are in seconds, by the database's clock.

    `received` items were not claimed yet, and `delayed` of them are not due. `retry` items wait for another attempt,
    `sleeping` ones for their time or an event; `oldest_seconds` is without the sleeping ones.
    """

    queue: str
    received: int
    delayed: int
    processing: int
    retry: int
    sleeping: int
    oldest_seconds: float
    most_attempts: int

    @property
    def depth(self) -> int:
        """The number of unfinished items."""
        return self.received + self.processing + self.retry + self.sleeping


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
    paused: bool
    paused_keys: list[str]


@dataclass(frozen=True)
class Account:
    """The items in the buckets that are not dropped yet. No worker would ever find the `lost` items."""

    items: int
    completed: int
    dead: int
    open: int
    lost: int
    dead_without_letter: int
    cancelled: int = 0


class InLake(NamedTuple):
    """The lake's items of one bucket: their number, and the time at which they were read (milliseconds)."""

    items: int
    read_at: int


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


def _blocking(work: Callable[_P, Coroutine[Any, Any, _T]]) -> Callable[_P, _T]:
    """Convert a coroutine function to an ordinary function, for callers without an event loop."""

    @functools.wraps(work)
    def run(*args: _P.args, **named: _P.kwargs) -> _T:
        return asyncio.run(work(*args, **named))

    return run


class QueueInspector:
    """Reads the items and states of queues over one connection."""

    def __init__(self, tables: QueueTables, settings: Settings) -> None:
        self._tables = tables
        self._settings = settings
        self._clock = DatabaseClock(tables)

    @_blocking
    async def queues(self) -> list[str]:
        """Return the names of all queues that were ever used."""
        return await self._tables.queues()

    @_blocking
    async def now(self) -> int:
        """Return the database's time in milliseconds since 1970."""
        return await self._tables.now()

    @_blocking
    async def buckets(self, queue: str, until: int = END_OF_TIME) -> dict[ItemPartition, int | None]:
        """Return the buckets of a queue that are not dropped, and begin up to a time (milliseconds since 1970), and
        when each was closed.
        """
        return await self._tables.buckets(queue, until=until)

    @_blocking
    async def state(self, queue: str) -> QueueState:
        """Return the state of a queue, from the ids of its unfinished items and dead letters. Raises as
        `QueueTables.known_queue`.
        """
        tables = self._tables
        shards, bucket_seconds = await tables.known_queue(queue)
        begun = await self._begun()
        buckets = await tables.buckets(queue)
        unfinished = await self._count(queue, buckets, begun)
        dead, redriven = await count_letters(tables, queue, shards, bucket_seconds)
        owned = (await tables.shards(queue)).owners
        pauses = await tables.pauses(queue)
        still_open = sum(closed is None for closed in buckets.values())
        return QueueState(
            **vars(unfinished),
            shards=shards,
            dead_letters=dead,
            redriven=redriven,
            open_buckets=still_open,
            closed_buckets=len(buckets) - still_open,
            owners={shard: row.owner for shard, row in sorted(owned.items()) if row.owner is not None},
            workers=await tables.workers(queue),
            paused=pauses.queue is not None,
            paused_keys=sorted(pauses.keys),
        )

    @_blocking
    async def unfinished(self, queue: str) -> Unfinished:
        """Return the unfinished items of a queue."""
        begun = await self._begun()
        return await self._count(queue, await self._tables.buckets(queue), begun)

    @_blocking
    async def oldest_seconds(self, queue: str) -> float:
        """Return the age of the oldest unfinished item of a queue; 0 if none is due. In each bucket that has begun, it
        reads the ids up to the first unfinished item. Items that are delayed for long are in other buckets.
        """
        buckets = await self._tables.buckets(queue, until=await self._begun())
        now = self._clock.now()
        turn = asyncio.Semaphore(_BUCKETS_AT_ONCE)

        async def first(place: ItemPartition) -> int:
            """Return the time of the first unfinished item of a bucket; now if there is none."""
            async with turn:
                after = (await self._tables.statics(place)).floor or NO_ID
                while ids := await self._tables.item_ids(place, after, LAST_ID, _IDS_AT_ONCE):
                    statuses = await self._tables.statuses(place, ids)
                    for item_id in ids:
                        if (status := statuses.get(item_id)) is None or not (status.final or status is Status.SLEEPING):
                            return time_of(item_id)
                    after = ids[-1]
            return now

        found = await asyncio.gather(*(first(place) for place, closed in buckets.items() if closed is None))
        return max(0, now - min(found, default=now)) / 1000

    @_blocking
    async def account(self, queue: str) -> Account:
        """Compare all items of a queue with all states."""
        tables = self._tables
        shards, _ = await tables.known_queue(queue)
        items = done = dead = cancelled = still_open = lost = 0
        given_up: set[UUID] = set()
        for place, closed in (await tables.buckets(queue)).items():
            # The items are read first: items that finish meanwhile have a state by then.
            ids = await tables.item_ids(place, NO_ID, LAST_ID)
            states = {i: state.status for i, state in (await tables.states(place, NO_ID)).items()}
            statuses = [states.get(item_id) for item_id in ids]
            unfinished = [item_id for item_id in ids if item_id not in states or not states[item_id].final]
            items += len(ids)
            done += statuses.count(Status.COMPLETED)
            dead += statuses.count(Status.DEAD)
            cancelled += statuses.count(Status.CANCELLED)
            if closed is None:
                still_open += len(unfinished)
            elif unfinished:
                # A bucket that is dropped meanwhile loses its items before their states.
                lost += len(await tables.existing(place, unfinished))
            given_up |= {item_id for item_id, status in states.items() if status is Status.DEAD}
        # Read last, because an item has its letter before it is dead.
        letters = {item_id for shard in range(shards) for item_id in await tables.letters(queue, shard)}
        return Account(items, done, dead, still_open, lost, len(given_up - letters), cancelled)

    @_blocking
    async def compare(self, queue: str, in_lake: Mapping[ItemPartition, InLake]) -> Brought:
        """Compare the lake's items of a queue, as read a moment ago, with the completed items by CQL."""
        completed = there = waiting = 0
        differing = []
        for place, closed in (await self._tables.buckets(queue)).items():
            states = await self._tables.states(place, NO_ID)
            done = sum(state.status is Status.COMPLETED for state in states.values())
            have = in_lake.get(place, InLake(0, 0))
            # The lake reads a bucket again until it has read it after it was closed.
            settled = closed is not None and have.read_at > closed
            differs = have.items > done or (settled and have.items < done)
            if differs and not await self._tables.item_ids(place, NO_ID, LAST_ID):
                # It is dropped meanwhile: its items go before their states.
                continue
            completed += done
            there += have.items
            if differs:
                differing.append(place)
            else:
                waiting += done - have.items
        return Brought(completed, there, waiting, differing)

    async def _begun(self) -> int:
        """Return a time (milliseconds). A worker may have opened the buckets that begin before it."""
        await self._clock.look()
        return self._clock.now() + round(self._settings.workqueue.clock_tolerance_seconds * 1000)

    async def _count(self, queue: str, buckets: Mapping[ItemPartition, int | None], begun: int) -> Unfinished:
        tally = Tally(self._clock.now())
        turn = asyncio.Semaphore(_BUCKETS_AT_ONCE)

        async def read(place: ItemPartition) -> None:
            floor, states = NO_ID, {}
            async with turn:
                if opened := place.bucket <= begun:
                    floor = (await self._tables.statics(place)).floor or NO_ID
                ids = await self._tables.item_ids(place, floor, LAST_ID)
                if opened:
                    states = await self._tables.states(place, floor)
            tally.add(ids, states)

        await asyncio.gather(*(read(place) for place, closed in buckets.items() if closed is None))
        return tally.unfinished(queue)


def status_of(item_id: UUID, state: StateRow | WholeState | None, now: int) -> str:
    """Return the status of an item at a time (milliseconds): waiting, delayed, or that of its state in lower case."""
    if state is not None:
        return state.status.lower()
    return "delayed" if time_of(item_id) > now else "waiting"


class Tally:
    """Counts the unfinished ones of items at a time (milliseconds). `oldest` is the first of them that is due."""

    def __init__(self, now: int) -> None:
        self._now = now
        self._counts: Counter[str] = Counter()
        self._most_attempts = 0
        self.oldest: UUID | None = None

    def add(self, item_ids: Iterable[UUID], states: Mapping[UUID, StateRow]) -> None:
        """Count those of some items that are not finished, by their states."""
        for item_id in item_ids:
            state = states.get(item_id)
            if state is not None and state.status.final:
                continue
            self._counts[status_of(item_id, state, self._now)] += 1
            is_due = time_of(item_id) <= self._now and (state is None or state.status is not Status.SLEEPING)
            if is_due and (self.oldest is None or item_id < self.oldest):
                self.oldest = item_id
            self._most_attempts = max(self._most_attempts, 0 if state is None else state.attempts)

    def unfinished(self, queue: str) -> Unfinished:
        """Return the counts."""
        counts = self._counts
        return Unfinished(
            queue=queue,
            received=counts["waiting"] + counts["delayed"],
            delayed=counts["delayed"],
            processing=counts[Status.PROCESSING.lower()],
            retry=counts[Status.RETRY.lower()],
            sleeping=counts[Status.SLEEPING.lower()],
            oldest_seconds=0.0 if self.oldest is None else (self._now - time_of(self.oldest)) / 1000,
            most_attempts=self._most_attempts,
        )


@contextmanager
def inspecting(settings: Settings) -> Iterator[QueueInspector]:
    """Connect, and inspect queues. Raises `DatabaseUnreachable` if no contact point answers."""
    with connect(settings) as session:
        yield QueueInspector(QueueTables(session, settings), settings)


def inspect(settings: Settings, queue: str) -> QueueState:
    """Return the state of a queue. Raises as `inspecting` and `QueueInspector.state`."""
    with inspecting(settings) as inspector:
        return inspector.state(queue)


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
