"""Bounded reads of the counts, items and dead letters of queues, on an event loop, for their page.

A call reads at most a number of items and letters, however many the queue has. So a count may be a lower bound, and a
list continues at a place, and both say so. Only the list of the queue's buckets, one small row per shard and hour, is
read whole.
"""

import asyncio
from collections import defaultdict
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from writetime.core.config import Settings
from writetime.workqueue.context import DatabaseClock
from writetime.workqueue.controls import AsyncControls, UnknownItem
from writetime.workqueue.dead_items import counting
from writetime.workqueue.inspect import Tally, Unfinished, status_of
from writetime.workqueue.items import (
    LAST_ID,
    NO_ID,
    Entry,
    ItemPartition,
    Status,
    bucket_of,
    first_id,
    shard_of,
)
from writetime.workqueue.queue_tables import DeadItem, LetterHead, Pauses, QueueTables, WholeState

_T = TypeVar("_T")

# Items of a queue that are read, at most, to count those that are not finished.
COUNTED_ITEMS = 10_000
# Items, letters or names of a list.
LISTED_ITEMS = 50
# The longest time over which a rate is measured.
_RATE_SECONDS = 60.0

UNFINISHED = frozenset({"waiting", "delayed"} | {status.lower() for status in Status if not status.final})
STATUSES = UNFINISHED | {status.lower() for status in Status}

# Items that are read for one part of a list; most of them may have other states than the list.
_READ_ITEMS = 2_000
_BUCKETS = 128
# A bucket costs two reads, as much as these items.
_COST_OF_BUCKET = 20
_NEWEST_LETTERS = 200
# Items that are counted for a rate, per bucket.
_DUE_ITEMS = 1_000
_READS_AT_ONCE = 8


@dataclass(frozen=True)
class QueueSummary:
    """A queue at a time. Times are in milliseconds since 1970, by the database's clock.

    The numbers of unfinished items are lower bounds unless `complete`. `oldest` is the first of them that is due.
    `due` items, or more unless `all_due`, became due between `since` and `at`. `dead_letters` counts those that were
    not redriven, of the newest ones; these are all of them if `all_letters`.
    """

    at: int
    unfinished: Unfinished
    complete: bool
    oldest: UUID | None
    since: int
    due: int
    all_due: bool
    dead_letters: int
    all_letters: bool
    shards: int
    owned: int
    workers: int
    pauses: Pauses


class ItemPlace(NamedTuple):
    """The place of an item in the order of a queue's lists."""

    bucket: int
    shard: int
    item_id: UUID


@dataclass(frozen=True)
class ListedItem:
    """An item of a list. `due` is the time of its next attempt, if it failed or sleeps. `cancelling`: it is to be
    cancelled.
    """

    item_id: UUID
    key: str | None
    status: str
    attempts: int
    due: int | None
    cancelling: bool = False


class ItemList(NamedTuple):
    """A part of a list of items: `read` items were read for it; the next part follows after `end`, if there is one."""

    items: list[ListedItem]
    read: int
    end: ItemPlace | None


class LetterList(NamedTuple):
    """A part of a list of dead letters; the next part begins with the item `start`, if there is one."""

    letters: list[LetterHead]
    start: UUID | None


class ItemHistory(NamedTuple):
    """What the database has of an item in a shard. The entry of a dropped item is missing; its letter is not."""

    shard: int
    status: str
    entry: Entry | None
    state: WholeState | None
    letter: DeadItem | None
    cancelling: bool


class QueueOverview:
    """Reads parts of queues. Methods raise `UnknownQueue`, and `UnknownWrite` if the database does not answer."""

    def __init__(self, tables: QueueTables, settings: Settings) -> None:
        self._tables = tables
        self._controls = AsyncControls(tables, settings)
        self._clock = DatabaseClock(tables)
        self._tolerance = round(settings.workqueue.clock_tolerance_seconds * 1000)

    async def queues(self, after: str = "") -> tuple[list[str], bool]:
        """Return the first names of queues after a name, and whether there are more. It reads all names."""
        names = [name for name in await self._tables.queues() if name > after]
        return names[:LISTED_ITEMS], len(names) > LISTED_ITEMS

    async def summary(self, queue: str, since: int = 0) -> QueueSummary:
        """Return the state of a queue, with the items that became due since a time (milliseconds), or in the last
        minute if that is later.
        """
        tables = self._tables
        shards, bucket_seconds = await tables.known_queue(queue)
        await self._clock.look()
        now = self._clock.now()
        since = min(now, max(since, now - round(_RATE_SECONDS * 1000)))
        buckets = await tables.buckets(queue)
        unfinished, oldest, complete = await self._count(queue, [p for p, closed in buckets.items() if closed is None])
        recent = [p for p in buckets if p.bucket <= now and p.bucket + bucket_seconds * 1000 > since]
        due = await _some_at_once(
            tables.item_ids(place, first_id(since), first_id(now), _DUE_ITEMS) for place in recent
        )
        dead = await _some_at_once(self._dead(queue, shard, shards, bucket_seconds) for shard in range(shards))
        owners = (await tables.shards(queue)).owners
        return QueueSummary(
            at=now,
            unfinished=unfinished,
            complete=complete,
            oldest=oldest,
            since=since,
            due=sum(map(len, due)),
            all_due=all(len(ids) < _DUE_ITEMS for ids in due),
            dead_letters=sum(count for count, _ in dead),
            all_letters=all(every for _, every in dead),
            shards=shards,
            owned=sum(row.owner is not None for row in owners.values()),
            workers=len(await tables.workers(queue)),
            pauses=await tables.pauses(queue),
        )

    async def _count(self, queue: str, places: Sequence[ItemPartition]) -> tuple[Unfinished, UUID | None, bool]:
        """Count unfinished items: return their numbers, the oldest, and whether all were read."""
        now = self._clock.now()
        tally = Tally(now)
        some = places[:_BUCKETS]
        most = COUNTED_ITEMS // max(1, len(some))

        async def read(place: ItemPartition) -> bool:
            floor, states = NO_ID, {}
            # No worker has opened a later one.
            if begun := place.bucket <= now + self._tolerance:
                floor = (await self._tables.statics(place)).floor or NO_ID
            ids = await self._tables.item_ids(place, floor, LAST_ID, most)
            if begun and ids:
                states = await self._tables.states(place, floor, ids[-1])
            tally.add(ids, states)
            return len(ids) < most

        whole = await _some_at_once(map(read, some))
        return tally.unfinished(queue), tally.oldest, all(whole) and len(some) == len(places)

    async def _dead(self, queue: str, shard: int, shards: int, bucket_seconds: int) -> tuple[int, bool]:
        """Count the newest letters of a shard that were not redriven; return whether these are all."""
        most = max(10, _NEWEST_LETTERS // shards)
        newest = await self._tables.newest_letters(queue, shard, LAST_ID, most)
        left = {letter.item_id: None for letter in newest if letter.redriven_as is None}
        return len(await counting(self._tables, queue, shard, bucket_seconds, left)), len(newest) < most

    async def items(
        self,
        queue: str,
        *,
        status: str | None = None,
        key: str | None = None,
        within_seconds: float | None = None,
        after: ItemPlace | None = None,
    ) -> ItemList:
        """Return the first items after a place, in the order of their buckets: those of a status, by default all
        unfinished ones; of a key; and whose time is at most some seconds ago.
        """
        wanted = UNFINISHED if status is None else {status}
        shards, bucket_seconds = await self._tables.known_queue(queue)
        await self._clock.look()
        first = NO_ID if within_seconds is None else first_id(self._clock.now() - round(within_seconds * 1000))
        start = after or ItemPlace(bucket_of(first, bucket_seconds), -1, NO_ID)
        found: list[tuple[ItemPartition, ListedItem]] = []
        budget, read = _READ_ITEMS, 0
        for place, closed in (await self._tables.buckets(queue, since=start.bucket)).items():
            if (place.bucket, place.shard) < start[:2] or (closed is not None and wanted <= UNFINISHED):
                continue
            if key is not None and place.shard != shard_of(key, LAST_ID, shards):
                continue
            begin = max(first, start.item_id) if (place.bucket, place.shard) == start[:2] else first
            part = await self._part(place, begin, budget)
            for item in part:
                read += 1
                if item.status in wanted and key in (None, item.key):
                    found.append((place, item))
                    if len(found) == LISTED_ITEMS:
                        return await self._list(found, read, ItemPlace(place.bucket, place.shard, item.item_id))
            budget -= len(part) + _COST_OF_BUCKET
            if budget <= 0:
                last = part[-1].item_id if part else begin
                return await self._list(found, read, ItemPlace(place.bucket, place.shard, last))
        return await self._list(found, read, None)

    async def _part(self, place: ItemPartition, begin: UUID, most: int) -> list[ListedItem]:
        """Return the first items of a partition beyond an id, whatever their states."""
        if not (keys := await self._tables.item_keys(place, begin, LAST_ID, most)):
            return []
        states, now = await self._tables.states(place, begin, next(reversed(keys))), self._clock.now()
        items = []
        for item_id, key in keys.items():
            state = states.get(item_id)
            attempts, due = (state.attempts, state.due) if state else (0, None)
            items.append(ListedItem(item_id, key, status_of(item_id, state, now), attempts, due))
        return items

    async def _list(
        self, found: Sequence[tuple[ItemPartition, ListedItem]], read: int, end: ItemPlace | None
    ) -> ItemList:
        """Return the list, with the requests to cancel its items."""
        unfinished: dict[ItemPartition, list[UUID]] = defaultdict(list)
        for place, item in found:
            if item.status in UNFINISHED:
                unfinished[place].append(item.item_id)
        asked = await _some_at_once(self._tables.cancels_of(place, ids) for place, ids in unfinished.items())
        to_cancel = dict(zip(unfinished, asked, strict=True))
        items = [replace(item, cancelling=item.item_id in to_cancel.get(place, ())) for place, item in found]
        return ItemList(items, read, end)

    async def letters(self, queue: str, start: UUID = LAST_ID) -> LetterList:
        """Return the last dead letters, of items up to an id, the newest item first."""
        shards, bucket_seconds = await self._tables.known_queue(queue)
        of_shards = await _some_at_once(
            self._tables.newest_letters(queue, shard, start, LISTED_ITEMS + 1) for shard in range(shards)
        )
        newest = sorted((letter for some in of_shards for letter in some), key=lambda each: each.item_id, reverse=True)
        rest = newest[LISTED_ITEMS:]
        named: dict[int, dict[UUID, UUID | None]] = defaultdict(dict)
        for letter in newest[:LISTED_ITEMS]:
            named[letter.shard][letter.item_id] = letter.redriven_as
        counted = await _some_at_once(
            counting(self._tables, queue, shard, bucket_seconds, some) for shard, some in named.items()
        )
        count = {(shard, item_id) for shard, ids in zip(named, counted, strict=True) for item_id in ids}
        letters = [letter for letter in newest[:LISTED_ITEMS] if letter[:2] in count]
        return LetterList(letters, rest[0].item_id if rest else None)

    async def history(self, queue: str, item_id: UUID, key: str | None = None) -> list[ItemHistory]:
        """Return what the database has of an item; with its `key`, only one shard is searched. There may be several
        histories if callers gave one id to items of several keys. Raises `UnknownItem`.
        """
        shards, _ = await self._tables.known_queue(queue)
        await self._clock.look()
        missing: UnknownItem | None = None
        try:
            places = {place.shard: place for place in await self._controls.places(queue, item_id, key)}
        except UnknownItem as e:
            missing, places = e, {}
        numbers = range(shards) if key is None else [shard_of(key, item_id, shards)]
        found = await _some_at_once(self._history(queue, shard, item_id, places.get(shard)) for shard in numbers)
        histories = [each for each in found if each is not None]
        if not histories and missing is not None:
            raise missing
        return histories

    async def _history(self, queue: str, shard: int, item_id: UUID, place: ItemPartition | None) -> ItemHistory | None:
        """Return what a shard has of an item; `place` is its partition, if it is not dropped."""
        letter = await self._tables.letter(queue, shard, item_id)
        if place is None:
            dead = Status.DEAD.lower()
            return None if letter is None else ItemHistory(shard, dead, None, None, letter, cancelling=False)
        entry, state = await self._tables.item(place, item_id), await self._tables.state(place, item_id)
        if letter is not None and (state is None or state.status is not Status.DEAD):
            # A worker that lost its shard left it, and another one continues.
            letter = None
        status = status_of(item_id, state, self._clock.now())
        cancelling = status in UNFINISHED and await self._tables.is_cancelled(place, item_id)
        return ItemHistory(shard, status, entry, state, letter, cancelling)


async def _some_at_once(work: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Return the results of coroutines, of which a few run at once."""
    turn = asyncio.Semaphore(_READS_AT_ONCE)

    async def run(each: Coroutine[Any, Any, _T]) -> _T:
        async with turn:
            return await each

    return await asyncio.gather(*map(run, work))
