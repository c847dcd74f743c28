"""Enqueueing: an item is inserted, and acknowledged only after the database has it at the write consistency. An item
whose id the caller gives is inserted with a condition, because another item may have the id.
"""

import asyncio
import math
import threading
from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self
from uuid import UUID

from writetime.clients.database import connect
from writetime.core.config import Settings, WorkQueue
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError
from writetime.core.json_texts import same_json, to_json
from writetime.core.setting_types import YEAR_SECONDS
from writetime.workqueue.context import DatabaseClock
from writetime.workqueue.items import (
    Entry,
    IdMaker,
    ItemPartition,
    bucket_of,
    instant,
    is_time_limit,
    shard_of,
    time_of,
)
from writetime.workqueue.queue_tables import QueueTables
from writetime.workqueue.statements import retry

MAX_KEY_BYTES = 1024
MAX_QUEUE_CHARACTERS = 200
# A later item would have its own bucket for longer than workers watch it.
MAX_DELAY_SECONDS = 366 * 86_400
# The same depth as for an event's payload. Python reads and writes JSON about 1,000 levels deep, less on a deep stack.
MAX_PAYLOAD_LEVELS = 250
# Bytes of items in one insert: well below the database's limits for a mutation.
_BATCH_BYTES = 256 * 1024
_IN_FLIGHT = 32
_TOO_DEEP = f"the payload is nested more than {MAX_PAYLOAD_LEVELS} levels deep"


class InvalidItem(WritetimeError):
    """An item breaks a rule; the text describes it for the sender. Nothing of its call was enqueued."""


class TooLarge(InvalidItem):
    """A payload is larger than `workqueue.max_payload_bytes`."""


class EnqueueUnknown(WritetimeError):
    """The database has not acknowledged all items. Repeat the call with `item_ids`, and without delays, to enqueue each
    item at most once.

    If `item_ids` is empty, nothing was enqueued.
    """

    def __init__(self, text: str, item_ids: list[UUID]) -> None:
        super().__init__(text)
        self.item_ids = item_ids


class ItemConflict(WritetimeError):
    """Items with the ids of the call, `item_ids`, exist with another payload, key or time limit, and stay as they are.
    All other items of the call are enqueued, or none if two items of the call have one id.
    """

    def __init__(self, queue: str, item_ids: list[UUID]) -> None:
        super().__init__(
            f"queue {queue}: {pluralize(len(item_ids), 'item id')} belong to items with another payload, key or "
            f"time limit, which stay as they are: {', '.join(map(str, item_ids[:3]))}; use new ids for other items"
        )
        self.item_ids = item_ids


@dataclass(frozen=True, slots=True)
class NewItem:
    """An item to enqueue. `payload` is any JSON value, at most 250 levels deep. `delay_seconds`, at most 366 days, and
    `item_id` exclude each other.

    Items of a key run in order. `item_id` is a UUID of version 7, from a call with an unknown outcome. It has the time
    of the item. If that time is in the future, the item does not run before it, so a delayed item keeps its delay. The
    time may be at most half of `close_after_seconds` in the past, and 366 days in the future.

    `time_limit_seconds`, at most 366 days, is the time limit of one attempt, in place of that of the queue.

    With `unique_name`, a text of at most 1024 bytes, the queue takes one item of this name in `unique_seconds`: later
    calls return the id of the first one, whatever has become of it.
    """

    payload: Any
    key: str | None = None
    delay_seconds: float = 0.0
    item_id: UUID | None = None
    time_limit_seconds: float | None = None
    unique_name: str | None = None
    unique_seconds: float = 86_400.0


class AsyncEnqueuer:
    """Enqueues from an event loop."""

    def __init__(self, tables: QueueTables, settings: WorkQueue, clock: DatabaseClock | None = None) -> None:
        self._tables = tables
        self._settings = settings
        self._clock = clock or DatabaseClock(tables)
        self._ids = IdMaker()
        self._queues: dict[str, tuple[int, int]] = {}
        self._announced: set[ItemPartition] = set()
        # The slow calls per queue: the time of the acknowledgement, and the first item. Both increase, so the first
        # call has the first item of all.
        self._slow: dict[str, deque[tuple[int, UUID]]] = {}

    async def enqueue(self, queue: str, items: Sequence[NewItem]) -> list[UUID]:
        """Enqueue items, and return their ids once the database has them all.

        Raises:
            InvalidItem: an item breaks a rule.
            ItemConflict: an item has the id of another one.
            EnqueueUnknown: the database has not acknowledged all; some may be enqueued.
            WritetimeError: the database refuses a statement, before any item was sent.
        """
        # Names appear in logs and on terminals.
        if not 0 < len(queue) <= MAX_QUEUE_CHARACTERS or not queue.isprintable():
            raise InvalidItem(f"a queue's name must have 1 to {MAX_QUEUE_CHARACTERS} printable characters")
        payloads = [payload_of(item, self._settings.max_payload_bytes) for item in items]
        given = _given(queue, items, payloads)
        entries: list[Entry] = []
        seconds = self._settings.enqueue_timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                known = await retry(lambda: self._know(queue))
                after = self._first_slow(queue)
                both = zip(items, payloads, strict=True)
                entries = [self._entry(queue, item, payload, known, after) for item, payload in both]
                began = self._clock.micros()
                there: set[UUID] = set()
                for n in [n for n, item in enumerate(items) if item.unique_name is not None]:
                    entries[n], is_there = await self._first_of_name(items[n], entries[n], known)
                    (there if is_there else given).add(entries[n].item_id)
                new = [e for e in entries if e.item_id not in there] if there else entries
                conflicts = await self._insert(new, given)
                self._note_slow(queue, entries, began)
        except TimeoutError:
            what = f"the database has not acknowledged {pluralize(len(items), 'item')}"
            remedy = "repeat the call with the same item ids"
            if not entries:
                what, remedy = "nothing was enqueued, because the database has not answered", "repeat the call later"
            ids = [e.item_id for e in entries]
            raise EnqueueUnknown(f"queue {queue}: {what} in {seconds:g} s; {remedy}", ids) from None
        if conflicts:
            raise ItemConflict(queue, conflicts)
        return [e.item_id for e in entries]

    async def _know(self, queue: str) -> tuple[int, int]:
        """Return shards and bucket seconds of a queue; and read the clock."""
        await self._clock.look()
        if queue not in self._queues:
            own = self._settings.queue(queue)
            self._queues[queue] = await self._tables.queue(queue, own.shards, self._settings.bucket_seconds)
        return self._queues[queue]

    def _entry(self, queue: str, item: NewItem, payload: str, known: tuple[int, int], after: UUID | None) -> Entry:
        now = self._clock.now()
        delayed = item.delay_seconds > 0
        due = now + round(item.delay_seconds * 1000)
        if item.item_id is not None:
            self._check_id(item.item_id, now)
            item_id = item.item_id
            delayed, due = time_of(item_id) > now, max(now, time_of(item_id))
        elif delayed:
            item_id = self._ids.make_delayed(due)
        else:
            item_id = self._ids.make(self._clock.micros())
        shards, bucket_seconds = known
        place = ItemPartition(queue, shard_of(item.key, item_id, shards), bucket_of(item_id, bucket_seconds))
        after = None if item.key is None else after
        limit = item.time_limit_seconds
        return Entry(place, item_id, item.key, payload, delayed, due, after=after, time_limit_seconds=limit)

    async def _first_of_name(self, item: NewItem, entry: Entry, known: tuple[int, int]) -> tuple[Entry, bool]:
        """Return the item that has the name: this one, or an earlier one; and whether it must not be inserted any more.

        If an earlier caller has ended before it inserted the item, this one inserts it. If its bucket may be closed,
        which no worker reads, the item of this call replaces it.
        """
        name, seconds = item.unique_name or "", math.ceil(item.unique_seconds)
        while (first := await retry(partial(self._tables.claim_name, name, entry, seconds))) is not None:
            shards, bucket_seconds = known
            bucket, shard = bucket_of(first.item_id, bucket_seconds), shard_of(first.key, first.item_id, shards)
            place, at, now = ItemPartition(entry.place.queue, shard, bucket), time_of(first.item_id), self._clock.now()
            first = replace(first, place=place, delayed=at > now, due=max(at, now))
            if now - at <= self._settings.close_after_seconds * 500:
                return first, False
            kept_seconds = bucket_seconds + self._settings.close_after_seconds + self._settings.keep_closed_hours * 3600
            if now >= place.bucket + kept_seconds * 1000 or await retry(
                partial(self._tables.existing, place, [first.item_id])
            ):
                return first, True
            await retry(partial(self._tables.change_name, name, entry, seconds, before=first.item_id))
        return entry, False

    def _first_slow(self, queue: str) -> UUID | None:
        """Return the first item of the slow calls that rescans may not have found yet."""
        slow = self._slow.get(queue, deque())
        found = self._clock.micros() - round(2_000_000 * self._settings.rescan_seconds)
        while slow and slow[0][0] <= found:
            slow.popleft()
        if not slow:
            self._slow.pop(queue, None)
            return None
        return slow[0][1]

    def _note_slow(self, queue: str, entries: list[Entry], began: int) -> None:
        """Record a call that took so long that polls may have passed its items. The next items report it."""
        now = self._clock.micros()
        first = min((e.item_id for e in entries if e.key is not None), default=None)
        if first is None or now - began <= 500_000 * self._settings.overlap_seconds:
            return
        slow = self._slow.setdefault(queue, deque())
        while slow and slow[-1][1] >= first:
            slow.pop()
        slow.append((now, first))

    def _check_id(self, item_id: UUID, now: int) -> None:
        """Reject an id whose bucket may be closed, or would be watched for too long."""
        past = self._settings.close_after_seconds / 2
        # The delayed item with this id may have its time from the clock of another node.
        future = MAX_DELAY_SECONDS + self._settings.clock_tolerance_seconds
        if item_id.version != 7 or not -past <= (time_of(item_id) - now) / 1000 <= future:
            raise InvalidItem(
                f"the item id {item_id} must be a UUID of version 7 whose time is at most {past:g} s before the "
                f"database's ({instant(now):%Y-%m-%dT%H:%M:%SZ}) and at most 366 days after it"
            )

    async def _insert(self, entries: list[Entry], given: Collection[UUID]) -> list[UUID]:
        """Insert items; return those `given` ids that other items have."""
        by_place: dict[ItemPartition, list[Entry]] = defaultdict(list)
        for entry in {entry.item_id: entry for entry in entries}.values():
            by_place[entry.place].append(entry)
        for place in by_place.keys() - self._announced:
            await retry(partial(self._tables.insert_bucket, place))
            self._announced.add(place)
        if len(self._announced) > 10_000:
            self._announced = set(by_place)
        free = asyncio.Semaphore(_IN_FLIGHT)
        conflicts: list[UUID] = []

        # Batches of one partition follow each other, so that no item is visible before an earlier one of its key.
        async def insert_all(batches: list[list[Entry]]) -> None:
            for batch in batches:
                async with free:
                    if any(entry.item_id in given for entry in batch):
                        conflicts.extend(await self._insert_new(batch))
                    else:
                        await retry(partial(self._tables.insert_items, batch))

        rows = self._settings.batch_rows
        try:
            async with asyncio.TaskGroup() as group:
                for together in by_place.values():
                    group.create_task(insert_all(_split(together, rows)))
        except ExceptionGroup as e:
            refused = e.exceptions[0]
            if not isinstance(refused, WritetimeError):
                raise refused from None
            raise EnqueueUnknown(
                f"queue {entries[0].place.queue}: {refused}; of {pluralize(len(entries), 'item')} some may be "
                "enqueued: repeat the call with the same item ids",
                [entry.item_id for entry in entries],
            ) from None
        return conflicts

    async def _insert_new(self, entries: list[Entry]) -> list[UUID]:
        """Insert those items of one partition that do not exist; return those that exist with other content. The
        condition decides this also for calls at the same time, and for a repeat whose first answer was lost.
        """
        conflicts: list[UUID] = []
        while entries:
            existing = {e.item_id: e for e in await retry(partial(self._tables.insert_new, entries))}
            if not existing:
                break
            known = [e for e in entries if e.item_id in existing]
            conflicts += [e.item_id for e in known if not _is_same(e, existing[e.item_id])]
            entries = [e for e in entries if e.item_id not in existing]
        return conflicts


class Enqueuer:
    """Enqueues from synchronous code; a context manager. Threads may share one.

    Raises (when entered):
        DatabaseUnreachable: no contact point answers.
        WritetimeError: the tables are missing, or reads would not see acknowledged writes.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        session = self._resources.enter_context(connect(self._settings))
        self._async = AsyncEnqueuer(QueueTables(session, self._settings), self._settings.workqueue)
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="enqueuer")
        thread.start()
        self._resources.callback(self._loop.close)
        self._resources.callback(thread.join)
        self._resources.callback(self._loop.call_soon_threadsafe, self._loop.stop)
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def enqueue(
        self,
        queue: str,
        payload: Any,
        *,
        key: str | None = None,
        delay_seconds: float = 0.0,
        item_id: UUID | None = None,
        time_limit_seconds: float | None = None,
    ) -> UUID:
        """Enqueue one item and return its id, once the database has it. The arguments are those of `NewItem`.

        Raises:
            InvalidItem: it breaks a rule.
            ItemConflict: `item_id` is the id of an item with another payload, key or time limit.
            EnqueueUnknown: the database did not acknowledge the item, which may be enqueued. Repeat with the id of the
                exception.
            WritetimeError: the database refuses a statement, before the item was sent.
        """
        return self.enqueue_many(queue, [NewItem(payload, key, delay_seconds, item_id, time_limit_seconds)])[0]

    def enqueue_many(self, queue: str, items: Sequence[NewItem]) -> list[UUID]:
        """Enqueue items and return their ids, once the database has all.

        Raises:
            InvalidItem, ItemConflict, EnqueueUnknown, WritetimeError: as `enqueue`.
        """
        future = asyncio.run_coroutine_threadsafe(self._async.enqueue(queue, items), self._loop)
        try:
            return future.result()
        except (KeyboardInterrupt, FutureTimeout):
            future.cancel()
            raise


def payload_of(item: NewItem, most_bytes: int) -> str:
    """Return the payload of an item as JSON. Raises `InvalidItem` if the item breaks a rule."""
    require_key(item.key)
    if not 0 <= item.delay_seconds <= MAX_DELAY_SECONDS:
        raise InvalidItem(f"a delay must have 0 to {MAX_DELAY_SECONDS} seconds (366 days)")
    if item.delay_seconds and item.item_id is not None:
        raise InvalidItem("an item that already has an id cannot have a delay: its id has the time when it is due")
    if item.time_limit_seconds is not None and not is_time_limit(item.time_limit_seconds):
        raise InvalidItem(f"a time limit must have more than 0 and at most {YEAR_SECONDS} seconds (366 days)")
    if item.unique_name is not None:
        if not 0 < len(item.unique_name.encode()) <= MAX_KEY_BYTES:
            raise InvalidItem(f"a unique name must have 1 to {MAX_KEY_BYTES} bytes")
        if not is_time_limit(item.unique_seconds):
            raise InvalidItem(f"a name is unique for more than 0 and at most {YEAR_SECONDS} seconds (366 days)")
    try:
        payload = to_json(item.payload)
        size = len(payload.encode())
    except RecursionError:
        raise InvalidItem(_TOO_DEEP) from None
    except (TypeError, ValueError) as e:
        raise InvalidItem(f"the payload cannot be JSON: {e}") from None
    if payload.count("[") + payload.count("{") > MAX_PAYLOAD_LEVELS and _is_deeper(item.payload):
        raise InvalidItem(_TOO_DEEP)
    if size > most_bytes:
        raise TooLarge(f"the payload has {pluralize(size, 'byte')}, more than the {most_bytes} allowed")
    return payload


def require_key(key: str | None) -> None:
    """Raise `InvalidItem` if no item can have a key, such as an empty one."""
    if key is not None and not 0 < len(key.encode()) <= MAX_KEY_BYTES:
        raise InvalidItem(f"a key must have 1 to {MAX_KEY_BYTES} bytes")


def _is_deeper(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_PAYLOAD_LEVELS + 1):
        inner = (v.values() if isinstance(v, dict) else v for v in level if isinstance(v, dict | list | tuple))
        level = [child for children in inner for child in children]
        if not level:
            return False
    return True


def _given(queue: str, items: Sequence[NewItem], payloads: Sequence[str]) -> set[UUID]:
    """Return the ids that the caller gives. Raises `ItemConflict` if two items of the call have one id."""
    found: dict[UUID, tuple[str | None, float | None, str]] = {}
    for item, payload in zip(items, payloads, strict=True):
        if item.item_id is None:
            continue
        key, limit, first = found.setdefault(item.item_id, (item.key, item.time_limit_seconds, payload))
        if (key, limit) != (item.key, item.time_limit_seconds) or not same_json(first, payload):
            raise ItemConflict(queue, [item.item_id])
    return set(found)


def _is_same(one: Entry, other: Entry) -> bool:
    same = (one.key, one.time_limit_seconds) == (other.key, other.time_limit_seconds)
    return same and same_json(one.payload, other.payload)


def _split(entries: list[Entry], rows: int) -> list[list[Entry]]:
    batches: list[list[Entry]] = [[]]
    size = 0
    for entry in entries:
        size += len(entry.payload)
        if batches[-1] and (len(batches[-1]) >= rows or size > _BATCH_BYTES):
            batches.append([])
            size = len(entry.payload)
        batches[-1].append(entry)
    return batches
