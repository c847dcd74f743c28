"""Requests to the workers of a queue, to pause it or a key, to cancel items, and to enqueue recurring ones; and the
states of items.

A request is first written, and then a change of the queue is recorded next to the owners of its shards, which each
worker reads every few seconds anyway. So requests cost nothing while nobody makes one. A worker reads the requests
before it reads the buckets of a shard that it has taken. So it knows all requests from before it took the shard.

Only the owner of an item's shard changes the item's state, by a fenced write. So an item that is cancelled while its
handler runs is either completed or cancelled, once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from uuid import UUID, uuid4

from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.core.json_texts import from_json, same_json
from writetime.workqueue.enqueue import InvalidItem, NewItem, payload_of, require_key
from writetime.workqueue.items import LAST_ID, NO_ID, ItemPartition, Status, bucket_of, first_id, shard_of
from writetime.workqueue.queue_tables import QueueTables, ScheduleRow
from writetime.workqueue.recurrence import Schedule, Slots, row_of
from writetime.workqueue.statements import retry
from writetime.workqueue.steps import require_name

_T = TypeVar("_T")

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0
_SHARDS_AT_ONCE = 32
# Requests in one insert.
_ROWS_AT_ONCE = 100


class UnknownItem(WritetimeError):
    """The queue has no item with this id, or its bucket was dropped."""


@dataclass(frozen=True)
class ItemState:
    """The state of an item: `status` is waiting, processing, retry, sleeping, cancelling, or one of the final ones:
    completed (with the handler's `result`), dead, or cancelled. `error` is that of the last failed attempt.
    """

    queue: str
    item_id: UUID
    status: str
    attempts: int = 0
    result: Any = None
    error: str | None = None

    @property
    def final(self) -> bool:
        """Whether the item is finished."""
        return self.status in (Status.COMPLETED.lower(), Status.DEAD.lower(), Status.CANCELLED.lower())


@dataclass(frozen=True)
class ScheduleState:
    """A schedule of a queue, and its next slot, None if there is none; as local time."""

    queue: str
    schedule: Schedule
    next_slot: str | None


class AsyncControls:
    """Controls queues from an event loop. If the database does not answer in `workqueue.enqueue_timeout_seconds`, the
    methods raise `WritetimeError`, and may be repeated. For a queue that was never used, they raise `UnknownQueue`, and
    for a key that no item can have `InvalidItem`.
    """

    def __init__(self, tables: QueueTables, settings: Settings, is_ending: Callable[[], bool] = lambda: False) -> None:
        """Set up. Nothing waits for items any more once `is_ending`."""
        self._tables = tables
        self._is_ending = is_ending
        self._seconds = settings.workqueue.enqueue_timeout_seconds
        self._most_bytes = settings.workqueue.max_payload_bytes

    async def pause(self, queue: str, key: str | None = None) -> bool:
        """Start no more items of a queue, or of a key of it, until it is resumed; running ones end as usual. Return
        whether it was not paused. Workers follow within about two seconds.
        """
        require_key(key)
        return await self._change(queue, partial(self._tables.pause, queue, key))

    async def resume(self, queue: str, key: str | None = None) -> bool:
        """Start items of a queue, or of a key of it, again. A key of a paused queue stays paused with it. Return
        whether it was paused.
        """
        require_key(key)
        return await self._change(queue, partial(self._tables.resume, queue, key))

    async def schedule(self, queue: str, schedule: Schedule) -> bool:
        """Enqueue an item at each slot of a schedule from now on, in place of a schedule of the same name. Return
        whether it has changed. Raises `InvalidItem` if it, or an item of it, breaks a rule.
        """
        row = row_of(schedule, self._most_bytes)

        async def put() -> bool:
            there = await self._tables.schedules(queue)
            if row in [before._replace(since=0) for before in there]:
                return False
            await self._tables.put_schedule(queue, row)
            return True

        return await self._change(queue, put)

    async def unschedule(self, queue: str, name: str) -> bool:
        """Delete a schedule; return whether it was there. Items that it has enqueued stay."""
        return await self._change(queue, partial(self._tables.delete_schedule, queue, name))

    async def schedules(self, queue: str) -> list[ScheduleState]:
        """Return the schedules of a queue, in the order of their names."""

        async def read() -> tuple[list[ScheduleRow], int]:
            await self._tables.known_queue(queue)
            return await self._tables.schedules(queue), await self._tables.now()

        rows, now = await self._in_time(read)
        return [_schedule_state(queue, row, now) for row in rows]

    async def send_event(
        self, queue: str, item_id: UUID, name: str, payload: Any = None, *, key: str | None = None
    ) -> bool:
        """Send an event to an item, whose handler may wait for it, now or later. Return False if the item is finished,
        or has another event of this name, which stays. Raises `UnknownItem`, and `InvalidItem` if the name or the
        payload breaks a rule.
        """
        try:
            require_name(name)
        except ValueError as e:
            raise InvalidItem(str(e)) from None
        text = payload_of(NewItem(payload), self._most_bytes)
        places = await self._in_time(partial(self.places, queue, item_id, key))
        if (await self._state(places, item_id)).final:
            return False
        found = [await self._in_time(partial(self._tables.insert_event, p, item_id, name, text)) for p in places]
        await self._in_time(partial(self._announce, queue))
        return all(same_json(text, one) for one in found)

    async def cancel(
        self, queue: str, item_id: UUID, *, key: str | None = None, wait_seconds: float = 0.0
    ) -> ItemState:
        """Cancel an item, and return its state as `item` does. One that waits does not run any more. For one that runs,
        `Item.cancelled` is true; an async handler is cancelled. It is `cancelled` unless its handler returns a result
        within a few seconds. Without a worker, or before the bucket of a delayed item begins, it stays `cancelling`.
        Raises `UnknownItem`.
        """
        places = await self._in_time(partial(self.places, queue, item_id, key))
        if not (found := await self._state(places, item_id)).final:
            for place in places:
                await self._request(place, [item_id])
            await self._in_time(partial(self._announce, queue))
            found = await self._wait(places, item_id, wait_seconds)
        return found

    async def cancel_all(self, queue: str, *, key: str | None = None, older_than_seconds: float | None = None) -> int:
        """Cancel the unfinished items of a queue, of a key, or of a minimal age, as `cancel` does; return their number.
        It reads the keys of all unfinished items, and raises `UnknownWrite` if the database does not answer.
        """
        require_key(key)
        shards, _ = await self._in_time(partial(self._tables.known_queue, queue))
        before = LAST_ID
        if older_than_seconds is not None:
            before = first_id(await self._in_time(self._tables.now) - round(older_than_seconds * 1000))
        count = 0
        for place, closed in (await self._tables.buckets(queue)).items():
            if closed is None and (key is None or place.shard == shard_of(key, LAST_ID, shards)):
                ids = await self._unfinished(place, before, key)
                await self._request(place, ids)
                count += len(ids)
        if count:
            await self._in_time(partial(self._announce, queue))
        return count

    async def _unfinished(self, place: ItemPartition, before: UUID, key: str | None) -> list[UUID]:
        floor = (await self._tables.statics(place)).floor or NO_ID
        keys = await self._tables.item_keys(place, floor, before)
        states = await self._tables.states(place, floor)
        finished = {item_id for item_id, state in states.items() if state.status.final}
        return [item_id for item_id, own in keys.items() if item_id not in finished and key in (None, own)]

    async def _request(self, place: ItemPartition, item_ids: Sequence[UUID]) -> None:
        for start in range(0, len(item_ids), _ROWS_AT_ONCE):
            some = item_ids[start : start + _ROWS_AT_ONCE]
            await self._in_time(partial(self._tables.insert_cancels, place, some))

    async def item(self, queue: str, item_id: UUID, *, key: str | None = None, wait_seconds: float = 0.0) -> ItemState:
        """Return the state of an item once it is finished, or after some seconds. With its `key`, only one shard is
        searched. Raises `UnknownItem`.
        """
        return await self._wait(await self._in_time(partial(self.places, queue, item_id, key)), item_id, wait_seconds)

    async def _change(self, queue: str, write: Callable[[], Awaitable[bool]]) -> bool:
        async def change() -> bool:
            await self._tables.known_queue(queue)
            changed = await write()
            # Also if nothing has changed: an earlier call may have ended before this.
            await self._announce(queue)
            return changed

        return await self._in_time(change)

    async def _announce(self, queue: str) -> None:
        """Record a change, after its request was written. If another call does so first, workers read both."""
        await self._tables.change_controls(queue, uuid4(), before=await self._tables.controls(queue))

    async def places(self, queue: str, item_id: UUID, key: str | None) -> list[ItemPartition]:
        """Return the partitions with an item. There may be several if callers gave one id to items of several keys.
        With the item's `key`, only one shard is searched. Raises `UnknownItem`.
        """
        shards, bucket_seconds = await self._tables.known_queue(queue)
        bucket = bucket_of(item_id, bucket_seconds)
        free = asyncio.Semaphore(_SHARDS_AT_ONCE)

        async def has(place: ItemPartition) -> bool:
            async with free:
                return bool(await self._tables.existing(place, [item_id]))

        numbers = range(shards) if key is None else [shard_of(key, item_id, shards)]
        places = [ItemPartition(queue, shard, bucket) for shard in numbers]
        found = [p for p, there in zip(places, await asyncio.gather(*map(has, places)), strict=True) if there]
        if not found:
            raise UnknownItem(f"queue {queue} has no item {item_id}, or it was finished and dropped long ago")
        return found

    async def _wait(self, places: list[ItemPartition], item_id: UUID, seconds: float) -> ItemState:
        now = asyncio.get_running_loop().time
        until, pause = now() + seconds, _FIRST_PAUSE_SECONDS
        while True:
            found, left = await self._state(places, item_id), until - now()
            if found.final or left <= 0 or self._is_ending():
                return found
            await asyncio.sleep(min(pause, left))
            pause = min(_LONGEST_PAUSE_SECONDS, pause * 1.5)

    async def _state(self, places: list[ItemPartition], item_id: UUID) -> ItemState:
        """Return the state of an item; of several with one id, that of one that is not finished."""
        states = [await self._in_time(partial(self._state_at, place, item_id)) for place in places]
        return min(states, key=lambda state: state.final)

    async def _state_at(self, place: ItemPartition, item_id: UUID) -> ItemState:
        row = await self._tables.state(place, item_id)
        if row is not None and row.status.final:
            result = None if row.result is None else from_json(row.result)
            return ItemState(place.queue, item_id, row.status.lower(), row.attempts, result, row.error)
        status = "waiting" if row is None else row.status.lower()
        if await self._tables.is_cancelled(place, item_id):
            status = "cancelling"
        return ItemState(place.queue, item_id, status, row.attempts if row else 0, None, row.error if row else None)

    async def _in_time(self, work: Callable[[], Awaitable[_T]]) -> _T:
        try:
            async with asyncio.timeout(self._seconds):
                return await retry(work)
        except TimeoutError:
            raise WritetimeError(f"the database has not answered in {self._seconds:g} s; repeat the call") from None


def send_event(settings: Settings, queue: str, item_id: UUID, name: str, payload: Any = None) -> bool:
    """Do as `AsyncControls.send_event`."""
    return _run(settings, lambda controls: controls.send_event(queue, item_id, name, payload))


def _schedule_state(queue: str, row: ScheduleRow, now: int) -> ScheduleState:
    slots = Slots(row.cron, row.zone)
    slot = slots.next(now)
    schedule = Schedule(row.name, row.cron, from_json(row.payload), row.zone, row.key, row.time_limit_seconds)
    return ScheduleState(queue, schedule, None if slot is None else slots.text(slot))


def schedule(settings: Settings, queue: str, schedule: Schedule) -> bool:
    """Do as `AsyncControls.schedule`."""
    return _run(settings, lambda controls: controls.schedule(queue, schedule))


def unschedule(settings: Settings, queue: str, name: str) -> bool:
    """Do as `AsyncControls.unschedule`."""
    return _run(settings, lambda controls: controls.unschedule(queue, name))


def schedules(settings: Settings, queue: str) -> list[ScheduleState]:
    """Do as `AsyncControls.schedules`."""
    return _run(settings, lambda controls: controls.schedules(queue))


def pause(settings: Settings, queue: str, key: str | None = None) -> bool:
    """Do as `AsyncControls.pause`."""
    return _run(settings, lambda controls: controls.pause(queue, key))


def resume(settings: Settings, queue: str, key: str | None = None) -> bool:
    """Do as `AsyncControls.resume`."""
    return _run(settings, lambda controls: controls.resume(queue, key))


def cancel(settings: Settings, queue: str, item_id: UUID, *, wait_seconds: float = 10.0) -> ItemState:
    """Do as `AsyncControls.cancel`."""
    return _run(settings, lambda controls: controls.cancel(queue, item_id, wait_seconds=wait_seconds))


def cancel_all(
    settings: Settings, queue: str, *, key: str | None = None, older_than_seconds: float | None = None
) -> int:
    """Do as `AsyncControls.cancel_all`."""
    return _run(settings, lambda controls: controls.cancel_all(queue, key=key, older_than_seconds=older_than_seconds))


def item_state(settings: Settings, queue: str, item_id: UUID, *, wait_seconds: float = 0.0) -> ItemState:
    """Do as `AsyncControls.item`."""
    return _run(settings, lambda controls: controls.item(queue, item_id, wait_seconds=wait_seconds))


def _run(settings: Settings, work: Callable[[AsyncControls], Awaitable[_T]]) -> _T:
    with connect(settings) as session:

        async def run() -> _T:
            return await work(AsyncControls(QueueTables(session, settings), settings))

        return asyncio.run(run())
