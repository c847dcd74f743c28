"""The tables of a queue in memory, with exact conditional writes, on an event loop with simulated time.

Each request takes some time, and is applied at a moment in that time. Its answer may be lost. Then the request was
applied before, is applied much later, or never. A paused worker sends and receives nothing until it continues.
"""

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar
from uuid import UUID

from writetime.clients.prepared_statements import UnknownWrite
from writetime.core.config import Settings
from writetime.workqueue.context import DatabaseClock
from writetime.workqueue.enqueue import AsyncEnqueuer
from writetime.workqueue.items import LAST_ID, Entry, ItemPartition, Status
from writetime.workqueue.queue_tables import (
    END_OF_TIME,
    PAGE_ROWS,
    DeadItem,
    ItemUpdate,
    LetterHead,
    Pauses,
    QueueTables,
    ScheduleRow,
    ShardRow,
    ShardRows,
    StateRow,
    Statics,
    WholeState,
)

_T = TypeVar("_T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that does not wait: when nothing is ready, its time jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__(_Jumping(self))
        self.virtual = 0.0

    def time(self) -> float:
        return self.virtual


class _Jumping(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "the simulation waits for nothing"
            self._loop.virtual += max(timeout, 1e-6)
        return ready


class MemoryDatabase:
    """The state that all workers of a simulation share."""

    def __init__(self, rng: random.Random, start_millis: int) -> None:
        self.rng = rng
        self.loss = 0.0
        self.start = start_millis
        self.items: dict[ItemPartition, dict[UUID, Entry]] = {}
        self.rows: dict[ItemPartition, dict[UUID, ItemUpdate]] = {}
        self.statics: dict[ItemPartition, Statics] = {}
        self.registry: dict[tuple[str, int, int], int | None] = {}
        self.shards: dict[int, ShardRow] = {}
        self.workers: dict[str, float] = {}
        self.letters: dict[UUID, DeadItem] = {}
        # Each completion that was applied: item, worker's result.
        self.completions: list[tuple[UUID, str | None]] = []
        self.cancelled: list[UUID] = []
        # Each step that was recorded: item, name, result.
        self.steps: list[tuple[UUID, str, str]] = []
        self.events: dict[ItemPartition, dict[tuple[UUID, str], str]] = {}
        self.dropped: set[ItemPartition] = set()
        self.paused: dict[str, int] = {}
        self.names: dict[str, tuple[float, Entry]] = {}
        self.cancels: dict[ItemPartition, set[UUID]] = {}
        self.controls: UUID | None = None
        self.schedules: dict[str, ScheduleRow] = {}
        self.faults: list[tuple[str, str, int, str]] = []


class MemoryTables(QueueTables):
    """One worker's way to the database in memory, to one queue. `paused_until` stops it, in the loop's time. The clock
    of its node is ahead by `skew_millis`.
    """

    def __init__(
        self, database: MemoryDatabase, shards: int = 1, bucket_seconds: int = 3600, skew_millis: int = 0
    ) -> None:
        self._db = database
        self._skew = skew_millis
        self._known = shards, bucket_seconds
        self.paused_until = 0.0
        self.lost = 0

    async def _ask(self, act: Callable[[], _T]) -> _T:
        loop, rng, db = asyncio.get_running_loop(), self._db.rng, self._db
        await self._travel()
        if rng.random() < db.loss:
            self.lost += 1
            kind = rng.randrange(3)
            if kind == 0:
                act()
            elif kind == 1:
                # The coordinator is still at it when the client has given up.
                loop.call_later(rng.uniform(0.01, 3), act)
            await asyncio.sleep(rng.uniform(0.05, 0.5))
            await self._travel()
            raise UnknownWrite("no answer")
        answer = act()
        await self._travel()
        return answer

    async def _travel(self) -> None:
        await asyncio.sleep(self._db.rng.uniform(0.0005, 0.005))
        while (pause := self.paused_until - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(pause)

    def _now(self) -> int:
        return self._db.start + self._skew + round(asyncio.get_running_loop().time() * 1000)

    async def queue(self, name: str, shards: int, bucket_seconds: int) -> tuple[int, int]:
        return shards, bucket_seconds

    async def known_queue(self, name: str) -> tuple[int, int]:
        return self._known

    async def queues(self) -> list[str]:
        return await self._ask(lambda: sorted({queue for queue, *_ in self._db.registry}))

    async def now(self) -> int:
        return await self._ask(self._now)

    async def insert_items(self, entries: Sequence[Entry]) -> None:
        def act() -> None:
            for e in entries:
                self._db.items.setdefault(e.place, {})[e.item_id] = e

        await self._ask(act)

    async def insert_new(self, entries: Sequence[Entry]) -> list[Entry]:
        def act() -> list[Entry]:
            there = self._db.items.setdefault(entries[0].place, {})
            if existing := [there[e.item_id] for e in entries if e.item_id in there]:
                return existing
            there.update((e.item_id, e) for e in entries)
            return []

        return await self._ask(act)

    async def claim_name(self, name: str, entry: Entry, seconds: int) -> Entry | None:
        def act() -> Entry | None:
            now = asyncio.get_running_loop().time()
            until, first = self._db.names.get(name, (0.0, entry))
            if until > now:
                return first
            self._db.names[name] = now + seconds, entry
            return None

        return await self._ask(act)

    async def change_name(self, name: str, entry: Entry, seconds: int, *, before: UUID) -> None:
        def act() -> None:
            now = asyncio.get_running_loop().time()
            until, first = self._db.names.get(name, (0.0, entry))
            if until > now and first.item_id == before:
                self._db.names[name] = now + seconds, entry

        await self._ask(act)

    async def insert_bucket(self, place: ItemPartition) -> None:
        await self._ask(lambda: self._db.registry.setdefault((place.queue, place.bucket, place.shard), None))

    async def items(self, place: ItemPartition, after: UUID, before: UUID, most: int = PAGE_ROWS) -> list[Entry]:
        def act() -> list[Entry]:
            found = self._between(place, after, before)[:most]
            return [_fresh(place, e) for _, e in found]

        return await self._ask(act)

    async def item_ids(self, place: ItemPartition, after: UUID, before: UUID, most: int = END_OF_TIME) -> list[UUID]:
        return await self._ask(lambda: [i for i, _ in self._between(place, after, before)][:most])

    async def item_keys(
        self, place: ItemPartition, after: UUID, before: UUID, most: int = END_OF_TIME
    ) -> dict[UUID, str | None]:
        return await self._ask(lambda: {i: e.key for i, e in self._between(place, after, before)[:most]})

    async def item(self, place: ItemPartition, item_id: UUID) -> Entry:
        return await self._ask(lambda: _fresh(place, self._db.items[place][item_id]))

    async def existing(self, place: ItemPartition, item_ids: Sequence[UUID]) -> set[UUID]:
        return await self._ask(lambda: self._db.items.get(place, {}).keys() & set(item_ids))

    def _between(self, place: ItemPartition, after: UUID, before: UUID) -> list[tuple[UUID, Entry]]:
        rows = self._db.items.get(place, {})
        return sorted((i, e) for i, e in rows.items() if after < i < before) if rows else []

    async def buckets(self, queue: str, since: int = 0, until: int = END_OF_TIME) -> dict[ItemPartition, int | None]:
        def act() -> dict[ItemPartition, int | None]:
            found = sorted(self._db.registry.items())
            return {ItemPartition(q, s, b): c for (q, b, s), c in found if q == queue and since <= b <= until}

        return await self._ask(act)

    async def mark_bucket(self, place: ItemPartition, closed: int | None, *, before: int | None) -> None:
        def act() -> None:
            name = place.queue, place.bucket, place.shard
            if self._db.registry.get(name) == before:
                self._db.registry[name] = closed

        await self._ask(act)

    async def drop(self, place: ItemPartition, before: int, epoch: int) -> None:
        def act() -> None:
            rows = self._db.rows.get(place, {})
            missing = [i for i in self._db.items.get(place, {}) if i not in rows or not rows[i].status.final]
            assert not missing, f"{missing} of {place} were dropped unfinished"
            self._db.items.pop(place, None)
            self._db.rows.pop(place, None)
            self._db.statics.pop(place, None)
            self._db.cancels.pop(place, None)
            self._db.events.pop(place, None)
            self._db.registry.pop((place.queue, place.bucket, place.shard), None)
            self._db.dropped.add(place)

        await self._ask(act)

    async def statics(self, place: ItemPartition) -> Statics:
        return await self._ask(lambda: self._db.statics.get(place, Statics()))

    async def stamp(self, place: ItemPartition, epoch: int, *, before: int | None) -> bool:
        def act() -> bool:
            old = self._db.statics.get(place, Statics())
            if old.epoch != before:
                return False
            self._db.statics[place] = old._replace(epoch=epoch, op=0)
            return True

        return await self._ask(act)

    async def write(
        self, place: ItemPartition, epoch: int, op: int, floor: UUID | None, changes: Sequence[ItemUpdate]
    ) -> bool:
        def act() -> bool:
            if not self._fence(place, epoch, op, floor=floor):
                return False
            rows = self._db.rows.setdefault(place, {})
            for change in changes:
                old = rows.get(change.item_id)
                kept = change.attempts if change.attempts is not None else old.attempts if old else None
                rows[change.item_id] = ItemUpdate(
                    change.item_id,
                    change.status,
                    change.at,
                    kept,
                    change.due,
                    worker=change.worker or (old.worker if old else None),
                    error=change.error,
                    result=change.result,
                )
                if change.status is Status.COMPLETED:
                    self._db.completions.append((change.item_id, change.result))
                if change.status is Status.CANCELLED:
                    self._db.cancelled.append(change.item_id)
                if change.step is not None:
                    self._db.steps.append((change.item_id, *change.step))
            return True

        return await self._ask(act)

    async def close(self, place: ItemPartition, epoch: int, op: int, closed: int | None) -> bool:
        def act() -> bool:
            if not self._fence(place, epoch, op):
                return False
            self._db.statics[place] = self._db.statics[place]._replace(closed=closed)
            return True

        return await self._ask(act)

    def _fence(self, place: ItemPartition, epoch: int, op: int, floor: UUID | None = None) -> bool:
        old = self._db.statics.get(place)
        if old is None or (old.epoch, old.op) != (epoch, op - 1):
            return False
        self._db.statics[place] = old._replace(op=op, floor=floor or old.floor)
        return True

    async def states(self, place: ItemPartition, after: UUID, until: UUID = LAST_ID) -> dict[UUID, StateRow]:
        def act() -> dict[UUID, StateRow]:
            rows = sorted(self._db.rows.get(place, {}).items())
            return {i: StateRow(c.status, c.attempts or 0, c.due) for i, c in rows if after < i <= until}

        return await self._ask(act)

    async def statuses(self, place: ItemPartition, item_ids: Sequence[UUID]) -> dict[UUID, Status]:
        def act() -> dict[UUID, Status]:
            rows = self._db.rows.get(place, {})
            return {i: rows[i].status for i in item_ids if i in rows}

        return await self._ask(act)

    async def steps(self, place: ItemPartition, item_id: UUID) -> dict[str, str]:
        return await self._ask(lambda: {name: result for i, name, result in self._db.steps if i == item_id})

    async def state(self, place: ItemPartition, item_id: UUID) -> WholeState | None:
        def act() -> WholeState | None:
            row = self._db.rows.get(place, {}).get(item_id)
            return row and WholeState(row.status, row.attempts or 0, row.at, row.error, row.result, row.due, row.worker)

        return await self._ask(act)

    async def pauses(self, queue: str) -> Pauses:
        def act() -> Pauses:
            keys = {key: at for key, at in self._db.paused.items() if key}
            return Pauses(self._db.paused.get(""), keys)

        return await self._ask(act)

    async def pause(self, queue: str, key: str | None) -> bool:
        now = self._now()
        return await self._ask(lambda: self._db.paused.setdefault(key or "", now) == now)

    async def resume(self, queue: str, key: str | None) -> bool:
        return await self._ask(lambda: self._db.paused.pop(key or "", None) is not None)

    async def schedules(self, queue: str) -> list[ScheduleRow]:
        return await self._ask(lambda: sorted(self._db.schedules.values()))

    async def put_schedule(self, queue: str, schedule: ScheduleRow) -> None:
        def act() -> None:
            self._db.schedules[schedule.name] = schedule._replace(since=self._now())

        await self._ask(act)

    async def delete_schedule(self, queue: str, name: str) -> bool:
        return await self._ask(lambda: self._db.schedules.pop(name, None) is not None)

    async def cancels(self, place: ItemPartition) -> set[UUID]:
        return await self._ask(lambda: set(self._db.cancels.get(place, ())))

    async def cancels_of(self, place: ItemPartition, item_ids: Sequence[UUID]) -> set[UUID]:
        return await self._ask(lambda: self._db.cancels.get(place, set()) & set(item_ids))

    async def is_cancelled(self, place: ItemPartition, item_id: UUID) -> bool:
        return await self._ask(lambda: item_id in self._db.cancels.get(place, ()))

    async def insert_cancels(self, place: ItemPartition, item_ids: Sequence[UUID]) -> None:
        await self._ask(lambda: self._db.cancels.setdefault(place, set()).update(item_ids))

    async def events(self, place: ItemPartition, after: UUID) -> set[tuple[UUID, str]]:
        return await self._ask(lambda: {event for event in self._db.events.get(place, ()) if event[0] > after})

    async def event(self, place: ItemPartition, item_id: UUID, name: str) -> str | None:
        return await self._ask(lambda: self._db.events.get(place, {}).get((item_id, name)))

    async def insert_event(self, place: ItemPartition, item_id: UUID, name: str, payload: str) -> str:
        return await self._ask(lambda: self._db.events.setdefault(place, {}).setdefault((item_id, name), payload))

    async def controls(self, queue: str) -> UUID | None:
        return await self._ask(lambda: self._db.controls)

    async def change_controls(self, queue: str, after: UUID, *, before: UUID | None) -> bool:
        def act() -> bool:
            if self._db.controls != before:
                return False
            self._db.controls = after
            return True

        return await self._ask(act)

    async def shards(self, queue: str, *, serial: bool = False) -> ShardRows:
        return await self._ask(lambda: ShardRows(dict(self._db.shards), self._db.controls))

    async def take(self, queue: str, old: ShardRow, owner: str) -> bool:
        def act() -> bool:
            if self._db.shards.get(old.shard, ShardRow(old.shard)) != old:
                return False
            self._db.shards[old.shard] = ShardRow(old.shard, owner, (old.epoch or 0) + 1, 0)
            return True

        return await self._ask(act)

    async def renew(self, queue: str, held: Sequence[ShardRow]) -> bool:
        held = list(held)

        def act() -> bool:
            if any(self._db.shards.get(s.shard) != s for s in held):
                return False
            for s in held:
                self._db.shards[s.shard] = s._replace(beat=(s.beat or 0) + 1)
            return True

        return await self._ask(act)

    async def release(self, queue: str, held: ShardRow) -> None:
        def act() -> None:
            row = self._db.shards[held.shard]
            if (row.owner, row.epoch) == (held.owner, held.epoch):
                self._db.shards[held.shard] = row._replace(owner=None)

        await self._ask(act)

    async def announce(self, queue: str, worker: str, seconds: int) -> None:
        def act() -> None:
            self._db.workers[worker] = asyncio.get_running_loop().time() + seconds

        await self._ask(act)

    async def leave(self, queue: str, worker: str) -> None:
        await self._ask(lambda: self._db.workers.pop(worker, None))

    async def workers(self, queue: str) -> list[str]:
        now = asyncio.get_running_loop().time()
        return await self._ask(lambda: sorted(w for w, until in self._db.workers.items() if until > now))

    async def report_fault(self, queue: str, worker: str, place: str, times: int, reason: str) -> None:
        await self._ask(lambda: self._db.faults.append((queue, place, times, reason)))

    async def insert_dead(self, letter: DeadItem) -> None:
        await self._ask(lambda: self._db.letters.setdefault(letter.item_id, letter))

    async def dead_letters(self, queue: str, shard: int) -> list[DeadItem]:
        return await self._ask(lambda: [d for d in self._db.letters.values() if (d.queue, d.shard) == (queue, shard)])

    async def letter(self, queue: str, shard: int, item_id: UUID) -> DeadItem | None:
        return next((d for d in await self.dead_letters(queue, shard) if d.item_id == item_id), None)

    async def newest_letters(self, queue: str, shard: int, until: UUID, most: int) -> list[LetterHead]:
        found = [d for d in await self.dead_letters(queue, shard) if d.item_id <= until]
        newest = sorted(found, key=lambda d: d.item_id, reverse=True)[:most]
        return [LetterHead(shard, d.item_id, d.key, d.attempts, d.error, d.dead_at, d.redriven_as) for d in newest]

    async def mark_redriven(self, letter: DeadItem, as_id: UUID, *, before: UUID | None) -> bool:
        def act() -> bool:
            found = self._db.letters[letter.item_id]
            if found.redriven_as == before:
                self._db.letters[letter.item_id] = replace(found, redriven_as=as_id)
            return found.redriven_as == before

        return await self._ask(act)

    async def redriven_as(self, letter: DeadItem) -> UUID:
        return await self._ask(lambda: self._db.letters[letter.item_id].redriven_as or letter.item_id)


def memory_enqueuer(tables: QueueTables, settings: Settings) -> AsyncEnqueuer:
    """Return an enqueuer whose clock is that of the loop."""
    clock = DatabaseClock(tables, asyncio.get_running_loop().time)
    return AsyncEnqueuer(tables, settings.workqueue, clock)


def run_virtually(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine on a loop whose time is not real."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


def _fresh(place: ItemPartition, e: Entry) -> Entry:
    due, limit = e.due if e.delayed else 0, e.time_limit_seconds
    return Entry(place, e.item_id, e.key, e.payload, e.delayed, due, after=e.after, time_limit_seconds=limit)
