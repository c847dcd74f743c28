"""The queue's tables: what the work queue reads and writes, without any decisions.

Buckets, dead letters, and items with new ids are inserted without conditions. Conditional writes decide ownership,
states, and which item has an id that a caller gives. If the answer of a conditional write is lost, it raises
`UnknownWrite`. Each one may be repeated unchanged: its condition names the values that it replaces, and its values are
this worker's alone, so a repeat shows whether it was applied.
"""

import difflib
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from cassandra.cluster import Session
from cassandra.query import BoundStatement, PreparedStatement

from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.core.printing import printable
from writetime.workqueue.items import LAST_ID, Entry, ItemPartition, Status
from writetime.workqueue.queue_statements import WHOLE_ROWS, QueueStatements
from writetime.workqueue.statements import answer_of, bound, text_of, together

log = logging.getLogger(__name__)

PAGE_ROWS = 1000
# The largest `LIMIT`.
_ALL_ROWS = 2**31 - 1
# ScyllaDB allows no more in one statement (max_clustering_key_restrictions_per_query).
_ITEMS_AT_ONCE = 100
# The latest `timestamp`.
END_OF_TIME = 2**63 - 1
# Cassandra accepts no smaller write time.
_FIRST_WRITE_TIME = -(2**63) + 1


class ShardRow(NamedTuple):
    """The owner of a shard; all None if it never had one."""

    shard: int
    owner: str | None = None
    epoch: int | None = None
    beat: int | None = None


class ShardRows(NamedTuple):
    """The owners of the shards that ever had one, and the last change of what people ask of the queue's workers."""

    owners: dict[int, ShardRow]
    controls: UUID | None


class Pauses(NamedTuple):
    """The time since when a queue is paused (milliseconds; None if it is not), and those of its paused keys."""

    queue: int | None
    keys: dict[str, int]


class ScheduleRow(NamedTuple):
    """A schedule of recurring items, its payload as JSON. Times up to `since` do not count (milliseconds)."""

    name: str
    cron: str
    zone: str
    key: str | None
    payload: str
    time_limit_seconds: float | None
    since: int = 0


class Statics(NamedTuple):
    """The fence of a partition, and its progress."""

    epoch: int | None = None
    op: int | None = None
    floor: UUID | None = None
    closed: int | None = None


@dataclass(slots=True)
class ItemUpdate:
    """A new state of one item; None leaves a value unchanged. Times are in milliseconds."""

    item_id: UUID
    status: Status
    at: int
    attempts: int | None = None
    due: int | None = None
    worker: str | None = None
    error: str | None = None
    result: str | None = None
    # A finished step: its name, and its result as JSON.
    step: tuple[str, str] | None = None


class StateRow(NamedTuple):
    """The state of an item that was claimed."""

    status: Status
    attempts: int
    due: int | None


class WholeState(NamedTuple):
    """The state of an item that was claimed, since `at`, with its last error and its result as JSON. `due` is the time
    of its next attempt, `worker` the one that began the last attempt. Times are in milliseconds.
    """

    status: Status
    attempts: int
    at: int
    error: str | None
    result: str | None
    due: int | None = None
    worker: str | None = None


class CompletedItem(NamedTuple):
    """A completed item; `at` in milliseconds."""

    item_id: UUID
    key: str | None
    payload: str
    result: str | None
    attempts: int
    worker: str | None
    at: int


@dataclass(frozen=True, slots=True)
class DeadItem:
    """An item that was given up; `dead_at` in milliseconds, `redriven_as` the id of the item that replaced it."""

    queue: str
    shard: int
    item_id: UUID
    key: str | None
    payload: str
    attempts: int
    error: str
    dead_at: int
    redriven_as: UUID | None = None
    time_limit_seconds: float | None = None


class LetterHead(NamedTuple):
    """A dead letter without its payload; `dead_at` in milliseconds."""

    shard: int
    item_id: UUID
    key: str | None
    attempts: int
    error: str
    dead_at: int
    redriven_as: UUID | None


class UnknownQueue(WritetimeError):
    """No queue of this name was ever used or has settings."""


class QueueTables:
    """The statements, for one event loop."""

    def __init__(self, session: Session, settings: Settings) -> None:
        """Prepare the statements. Raises as `Statements` does."""
        self._session = session
        self._own = settings.workqueue
        self._cql = QueueStatements(session, settings)

    # -- queues, clock

    async def queue(self, name: str, shards: int, bucket_seconds: int) -> tuple[int, int]:
        """Return the number of shards and the seconds of a bucket of a queue, which is created with these."""
        while not (rows := await self._run(self._cql.queue, (name,))):
            await self._run(self._cql.make_queue, (name, shards, bucket_seconds))
        return rows[0].shards, rows[0].bucket_seconds

    async def known_queue(self, name: str) -> tuple[int, int]:
        """Return the number of shards and the seconds of a bucket of a queue that was used before or has settings.
        Raises `UnknownQueue` if it is neither, such as a misspelt one.
        """
        if rows := await self._run(self._cql.queue, (name,)):
            return rows[0].shards, rows[0].bucket_seconds
        if (own := self._own.queues.get(name)) is not None:
            return own.shards, self._own.bucket_seconds
        similar = next(map(printable, difflib.get_close_matches(name, await self.queues(), n=1)), None)
        hint = f"did you mean {similar}?" if similar else "`writetime queue inspect` lists those that were used"
        raise UnknownQueue(f"no queue {printable(name)} was ever used; {hint}")

    async def queues(self) -> list[str]:
        """Return the names of all queues that were ever used."""
        return sorted([row.queue async for row in self._pages(self._cql.all_queues, ())])

    async def now(self) -> int:
        """Return the coordinator's clock in milliseconds since 1970."""
        return (await self._run(self._cql.now, ()))[0].now

    # -- items

    async def insert_items(self, entries: Sequence[Entry]) -> None:
        """Insert items of one partition, all or none."""
        await self._run(together([_item_row(self._cql.insert_item, entry) for entry in entries]))

    async def insert_new(self, entries: Sequence[Entry]) -> list[Entry]:
        """Insert items of one partition, if none of them exists. Return the existing ones, with key, payload
        and time limit.
        """
        rows = await self._run(together([_item_row(self._cql.insert_new_item, entry) for entry in entries]))
        if rows[0].applied:
            return []
        place = entries[0].place
        return [
            Entry(place, r.item_id, r.key, r.payload or "", time_limit_seconds=r.time_limit_seconds)
            for r in rows
            if r.item_id is not None
        ]

    async def claim_name(self, name: str, entry: Entry, seconds: int) -> Entry | None:
        """Make an item the only one of its name for some time; return the item that has the name already."""
        e = entry
        values = e.place.queue, name, e.item_id, e.key, e.payload, e.time_limit_seconds, seconds
        [row] = await self._run(bound(self._cql.claim_name, *values))
        if row.applied:
            return None
        # Its place follows from its key and id.
        return Entry(e.place, row.item_id, row.key, row.payload, time_limit_seconds=row.time_limit_seconds)

    async def change_name(self, name: str, entry: Entry, seconds: int, *, before: UUID) -> None:
        """Make an item the only one of its name, in place of `before`; if another one was quicker, that one stays."""
        e = entry
        values = seconds, e.item_id, e.key, e.payload, e.time_limit_seconds, e.place.queue, name, before
        await self._run(self._cql.change_name, values)

    async def insert_bucket(self, place: ItemPartition) -> None:
        """Record that a partition has items."""
        await self._run(self._cql.insert_bucket, (place.queue, place.bucket, place.shard))

    async def items(self, place: ItemPartition, after: UUID, before: UUID, most: int = PAGE_ROWS) -> list[Entry]:
        """Return the first items between two ids."""
        return [_entry(place, row) async for row in self._pages(self._cql.items, (*place, after, before, most))]

    async def item_ids(self, place: ItemPartition, after: UUID, before: UUID, most: int = _ALL_ROWS) -> list[UUID]:
        """Return the ids of the first items between two ids, by default of all."""
        return [row.item_id async for row in self._pages(self._cql.item_ids, (*place, after, before, most))]

    async def item_keys(
        self, place: ItemPartition, after: UUID, before: UUID, most: int = _ALL_ROWS
    ) -> dict[UUID, str | None]:
        """Return the first items between two ids with their keys, by default all."""
        rows = self._pages(self._cql.item_keys, (*place, after, before, most))
        return {row.item_id: text_of(row.key) async for row in rows}

    async def item(self, place: ItemPartition, item_id: UUID) -> Entry:
        """Return one item that is known to exist."""
        return _entry(place, (await self._run(self._cql.item, (*place, item_id)))[0])

    async def existing(self, place: ItemPartition, item_ids: Sequence[UUID]) -> set[UUID]:
        """Return which of these items exist."""
        return {row.item_id async for row in self._of_items(self._cql.existing, place, item_ids)}

    # -- buckets

    async def buckets(self, queue: str, since: int = 0, until: int = END_OF_TIME) -> dict[ItemPartition, int | None]:
        """Return the buckets with items of all shards that begin between two times (milliseconds), oldest first, and
        when each was closed (milliseconds).
        """
        rows = self._pages(self._cql.buckets, (queue, since, until))
        return {ItemPartition(queue, r.shard, _millis(r.bucket)): r.closed and _millis(r.closed) async for r in rows}

    async def mark_bucket(self, place: ItemPartition, closed: int | None, *, before: int | None) -> None:
        """Record that a bucket is closed, or open again. If its state is no longer `before`, this has no effect."""
        await self._run(self._cql.mark_bucket, (closed, place.queue, place.bucket, place.shard, before))

    async def drop(self, place: ItemPartition, before: int, epoch: int) -> None:
        """Delete a closed bucket: all data written before a time (milliseconds), and a later fence.

        The registry is written last. While it has the bucket, the other deletions are repeated.
        """
        at = max(before * 1000, _FIRST_WRITE_TIME)
        await self._run(self._cql.drop_items, (at, *place))
        await self._run(self._cql.drop_state, (at, *place))
        await self._run(self._cql.drop_cancels, (at, *place))
        await self._run(self._cql.drop_events, (at, *place))
        await self._run(self._cql.drop_fence, (*place, epoch))
        await self._run(self._cql.drop_buckets, (at, *place))

    # -- states

    async def statics(self, place: ItemPartition) -> Statics:
        """Return the fence of a partition, by a serial read, which also completes unfinished writes."""
        if not (rows := await self._run(self._cql.statics, place)):
            return Statics()
        return Statics(rows[0].epoch, rows[0].op, rows[0].floor, rows[0].closed and _millis(rows[0].closed))

    async def stamp(self, place: ItemPartition, epoch: int, *, before: int | None) -> bool:
        """Set a new epoch on a partition that has the epoch `before`."""
        return await self._applied(self._cql.stamp, (epoch, *place, before))

    async def write(
        self, place: ItemPartition, epoch: int, op: int, floor: UUID | None, changes: Sequence[ItemUpdate]
    ) -> bool:
        """Write states of items if the epoch is still this one and `op` is the next; return whether it was written."""
        rows = [bound(self._cql.fence, op, floor, *place, epoch, op - 1)]
        for c in changes:
            values = c.status, c.at, c.attempts, c.due, c.worker, c.error, c.result
            rows.append(bound(self._cql.change, *values, *place, c.item_id))
            if c.step is not None:
                rows.append(bound(self._cql.record_step, *c.step, *place, c.item_id))
        return await self._applied(together(rows))

    async def close(self, place: ItemPartition, epoch: int, op: int, closed: int | None) -> bool:
        """Close a partition, or open it again, if the epoch is still this one and `op` is the next."""
        return await self._applied(self._cql.close, (op, closed, *place, epoch, op - 1))

    async def states(self, place: ItemPartition, after: UUID, until: UUID = LAST_ID) -> dict[UUID, StateRow]:
        """Return the states of the claimed items beyond an id, up to another one."""
        rows = self._pages(self._cql.states, (*place, after, until))
        return {
            r.item_id: StateRow(_status(place, r.item_id, r.status), r.attempts or 0, r.due and _millis(r.due))
            async for r in rows
            if r.status is not None
        }

    async def steps(self, place: ItemPartition, item_id: UUID) -> dict[str, str]:
        """Return the results of an item's recorded steps, as JSON by their names."""
        rows = await self._run(self._cql.steps, (*place, item_id))
        return dict(rows[0].steps or {}) if rows else {}

    async def completed(self, place: ItemPartition) -> AsyncIterator[CompletedItem]:
        """Yield the completed items of a partition."""
        states: dict[UUID, Any] = {}
        async for row in self._pages(self._cql.whole_states, place):
            if row.status == Status.COMPLETED.encode():
                states[row.item_id] = row
            if len(states) == WHOLE_ROWS:
                async for found in self._with_items(place, states):
                    yield found
                states = {}
        async for found in self._with_items(place, states):
            yield found

    async def _with_items(self, place: ItemPartition, states: dict[UUID, Any]) -> AsyncIterator[CompletedItem]:
        """Yield the items of states, which are in the order of the database."""
        if not states:
            return
        first, last = next(iter(states)), next(reversed(states))
        async for row in self._pages(self._cql.items_from_to, (*place, first, last)):
            if (s := states.get(row.item_id)) is not None:
                e = _entry(place, row)
                result, worker, at = text_of(s.result), text_of(s.worker), _millis(s.at or b"")
                yield CompletedItem(row.item_id, e.key, e.payload, result, s.attempts or 0, worker, at)

    async def statuses(self, place: ItemPartition, item_ids: Sequence[UUID]) -> dict[UUID, Status]:
        """Return the states of those of these items that were claimed."""
        rows = self._of_items(self._cql.statuses, place, item_ids)
        return {r.item_id: _status(place, r.item_id, r.status) async for r in rows if r.status}

    async def state(self, place: ItemPartition, item_id: UUID) -> WholeState | None:
        """Return the state of an item; None if it was not claimed."""
        rows = await self._run(self._cql.state, (*place, item_id))
        if not rows or rows[0].status is None:
            return None
        [r] = rows
        at = 0 if r.at is None else _millis(r.at)
        error, result, due, worker = text_of(r.error), text_of(r.result), r.due and _millis(r.due), text_of(r.worker)
        return WholeState(_status(place, item_id, r.status), r.attempts or 0, at, error, result, due, worker)

    # -- shards and workers

    async def shards(self, queue: str, *, serial: bool = False) -> ShardRows:
        """Return the owners of the shards. A read that is not serial may be a little old."""
        rows = [row async for row in self._pages(self._cql.shards_serial if serial else self._cql.shards, (queue,))]
        # A queue that was controlled before it had a worker has a row without a shard.
        owners = {row.shard: ShardRow(*row[:4]) for row in rows if row.shard is not None}
        return ShardRows(owners, rows[0].controls if rows else None)

    async def take(self, queue: str, old: ShardRow, owner: str) -> bool:
        """Make `owner` the owner of a shard, with the next epoch, if it is unchanged since it was read."""
        values = (owner, (old.epoch or 0) + 1, queue, old.shard, old.epoch, old.beat, old.owner)
        return await self._applied(self._cql.take, values)

    async def renew(self, queue: str, held: Sequence[ShardRow]) -> bool:
        """Renew the leases of shards, all or none; `held` has them as they were after the last renewal."""
        rows = [self._cql.renew.bind(((s.beat or 0) + 1, queue, s.shard, s.owner, s.epoch, s.beat)) for s in held]
        return await self._applied(together(rows))

    async def release(self, queue: str, held: ShardRow) -> None:
        """Release a shard."""
        await self._run(self._cql.release, (queue, held.shard, held.owner, held.epoch))

    async def announce(self, queue: str, worker: str, seconds: int) -> None:
        """Announce that a worker is alive, for this many seconds."""
        await self._run(self._cql.announce, (queue, worker, seconds))

    async def leave(self, queue: str, worker: str) -> None:
        """Record that a worker has ended."""
        await self._run(self._cql.leave, (queue, worker))

    async def workers(self, queue: str) -> list[str]:
        """Return the live workers, in the order of their names."""
        return sorted([row.worker async for row in self._pages(self._cql.workers, (queue,))])

    # -- what people ask of the workers

    async def pauses(self, queue: str) -> Pauses:
        """Return what is paused of a queue."""
        rows = self._pages(self._cql.pauses, (queue,))
        since = {text_of(row.key) or "": _millis(row.since) async for row in rows if row.since}
        return Pauses(since.pop("", None), since)

    async def pause(self, queue: str, key: str | None) -> bool:
        """Record that a queue, or a key of it, is paused; return whether it was not."""
        return await self._applied(bound(self._cql.pause, queue, key or ""))

    async def resume(self, queue: str, key: str | None) -> bool:
        """Remove the record that a queue, or a key of it, is paused; return whether it was."""
        return await self._applied(bound(self._cql.resume, queue, key or ""))

    async def schedules(self, queue: str) -> list[ScheduleRow]:
        """Return the schedules of a queue, in the order of their names."""
        return [
            ScheduleRow(
                r.name,
                text_of(r.cron) or "",
                text_of(r.zone) or "",
                text_of(r.key),
                text_of(r.payload) or "",
                r.time_limit_seconds,
                _millis(r.since),
            )
            async for r in self._pages(self._cql.schedules, (queue,))
            if r.since is not None
        ]

    async def put_schedule(self, queue: str, schedule: ScheduleRow) -> None:
        """Store a schedule, in place of one of its name; its times count from now on."""
        s = schedule
        values = s.cron, s.zone, s.key, s.payload, s.time_limit_seconds
        while not await self._applied(self._cql.replace_schedule, (*values, queue, s.name)):
            if await self._applied(self._cql.insert_schedule, (*values, queue, s.name)):
                return

    async def delete_schedule(self, queue: str, name: str) -> bool:
        """Delete a schedule; return whether it was there."""
        return await self._applied(self._cql.delete_schedule, (queue, name))

    async def cancels(self, place: ItemPartition) -> set[UUID]:
        """Return the items of a partition that are to be cancelled."""
        return {row.item_id async for row in self._pages(self._cql.cancels, place)}

    async def cancels_of(self, place: ItemPartition, item_ids: Sequence[UUID]) -> set[UUID]:
        """Return which of these items of a partition are to be cancelled, or are."""
        return {row.item_id async for row in self._of_items(self._cql.cancels_of, place, item_ids)}

    async def is_cancelled(self, place: ItemPartition, item_id: UUID) -> bool:
        """Return whether an item is to be cancelled, or is."""
        return bool(await self._run(self._cql.is_cancelled, (*place, item_id)))

    async def insert_cancels(self, place: ItemPartition, item_ids: Sequence[UUID]) -> None:
        """Record that items of one partition are to be cancelled."""
        await self._run(together([bound(self._cql.insert_cancel, *place, item_id) for item_id in item_ids]))

    async def events(self, place: ItemPartition, after: UUID) -> set[tuple[UUID, str]]:
        """Return the names of the events that were sent to the items of a partition beyond an id."""
        rows = self._pages(self._cql.events, (*place, after))
        return {(row.item_id, text_of(row.name) or "") async for row in rows}

    async def event(self, place: ItemPartition, item_id: UUID, name: str) -> str | None:
        """Return the payload of an event as JSON; None if it was not sent."""
        rows = await self._run(bound(self._cql.event, *place, item_id, name))
        return text_of(rows[0].payload) if rows else None

    async def insert_event(self, place: ItemPartition, item_id: UUID, name: str, payload: str) -> str:
        """Store an event, unless the item has one of this name; return the payload of the one that it has."""
        [row] = await self._run(bound(self._cql.insert_event, *place, item_id, name, payload))
        return payload if row.applied else row.payload

    async def controls(self, queue: str) -> UUID | None:
        """Return the last change of what people ask of a queue's workers."""
        rows = await self._run(self._cql.controls, (queue,))
        return rows[0].controls if rows else None

    async def change_controls(self, queue: str, after: UUID, *, before: UUID | None) -> bool:
        """Record a change of what people ask of a queue's workers, if `before` is the last one."""
        return await self._applied(self._cql.change_controls, (after, queue, before))

    # -- faults

    async def report_fault(self, queue: str, worker: str, place: str, times: int, reason: str) -> None:
        """Keep a worker's fault for an hour; a later one at the same place replaces it."""
        reason = reason.encode(errors="backslashreplace").decode()
        await self._run(bound(self._cql.report_fault, queue, worker, place, times, reason))

    async def faults(self) -> list[Any]:
        """Return the faults of the last hour of all workers: queue, worker, place, at, times and reason."""
        return sorted([row async for row in self._pages(self._cql.faults, ())], key=lambda row: row[:3])

    # -- dead letters

    async def insert_dead(self, letter: DeadItem) -> None:
        """Store an item that is given up."""
        d = letter
        values = d.key, d.payload, d.attempts, d.error, d.dead_at, d.time_limit_seconds
        await self._run(bound(self._cql.insert_dead, d.queue, d.shard, d.item_id, *values))

    async def dead_letters(self, queue: str, shard: int) -> list[DeadItem]:
        """Return the dead letters of a shard. A letter counts only once the item's state is DEAD."""
        rows = self._pages(self._cql.dead, (queue, shard))
        return [_letter(queue, shard, r) async for r in rows if r.dead_at is not None]

    async def letter(self, queue: str, shard: int, item_id: UUID) -> DeadItem | None:
        """Return the dead letter of an item, if it has one."""
        rows = await self._run(self._cql.letter, (queue, shard, item_id))
        return _letter(queue, shard, rows[0]) if rows and rows[0].dead_at is not None else None

    async def newest_letters(self, queue: str, shard: int, until: UUID, most: int) -> list[LetterHead]:
        """Return the last dead letters of a shard, of items up to an id, the newest item first."""
        rows = self._pages(self._cql.newest_letters, (queue, shard, until, most))
        return [
            LetterHead(
                shard, r.item_id, text_of(r.key), r.attempts, text_of(r.error) or "", _millis(r.dead_at), r.redriven_as
            )
            async for r in rows
            if r.dead_at is not None
        ]

    async def letters(self, queue: str, shard: int) -> dict[UUID, UUID | None]:
        """Return the items that have a dead letter in a shard, and those that replaced them."""
        rows = self._pages(self._cql.letters, (queue, shard))
        return {r.item_id: r.redriven_as async for r in rows if r.dead_at is not None}

    async def mark_redriven(self, letter: DeadItem, as_id: UUID, *, before: UUID | None) -> bool:
        """Record the item that replaces a dead letter, unless it is no longer `before`."""
        values = (as_id, letter.queue, letter.shard, letter.item_id, before)
        return await self._applied(self._cql.mark_redriven, values)

    async def redriven_as(self, letter: DeadItem) -> UUID:
        """Return the item that replaces a redriven letter, by a serial read."""
        return (await self._run(self._cql.redriven_as, (letter.queue, letter.shard, letter.item_id)))[0].redriven_as

    # -- running statements

    async def _run(self, statement: Any, values: Sequence[Any] | None = None) -> list[Any]:
        """Run a statement that changes data or returns one row at most; return its rows."""
        if values is not None:
            statement = statement.bind(values)
        return list(await answer_of(self._session.execute_async(statement)) or ())

    async def _applied(self, statement: Any, values: Sequence[Any] | None = None) -> bool:
        """Run a conditional statement; return whether its condition was true."""
        return bool((await self._run(statement, values))[0].applied)

    async def _pages(self, statement: PreparedStatement, values: Sequence[Any]) -> AsyncIterator[Any]:
        """Run a statement and yield the rows of all pages. ScyllaDB ends a page after 1 MiB or 10,000 deleted rows."""
        future = self._session.execute_async(statement.bind(values))
        for row in await answer_of(future) or ():
            yield row
        while future.has_more_pages:
            for row in await answer_of(future, next_page=True) or ():
                yield row

    async def _of_items(
        self, statement: PreparedStatement, place: ItemPartition, item_ids: Sequence[UUID]
    ) -> AsyncIterator[Any]:
        for start in range(0, len(item_ids), _ITEMS_AT_ONCE):
            async for row in self._pages(statement, (*place, list(item_ids[start : start + _ITEMS_AT_ONCE]))):
                yield row


def _item_row(statement: PreparedStatement, e: Entry) -> BoundStatement:
    not_before = e.due if e.delayed else None
    return bound(statement, *e.place, e.item_id, e.key, e.payload, not_before, e.after, e.time_limit_seconds)


def _millis(timestamp: bytes) -> int:
    """Return a `timestamp` of the database in milliseconds since 1970."""
    return int.from_bytes(timestamp, "big", signed=True)


def _entry(place: ItemPartition, row: Any) -> Entry:
    delayed = row.not_before is not None
    due = _millis(row.not_before) if delayed else 0
    key, payload, limit = text_of(row.key), text_of(row.payload) or "", row.time_limit_seconds
    return Entry(place, row.item_id, key, payload, delayed, due, after=row.after, time_limit_seconds=limit)


def _letter(queue: str, shard: int, r: Any) -> DeadItem:
    key, payload, error = text_of(r.key), text_of(r.payload) or "", text_of(r.error) or ""
    at, limit = _millis(r.dead_at), r.time_limit_seconds
    return DeadItem(queue, shard, r.item_id, key, payload, r.attempts, error, at, r.redriven_as, limit)


def _status(place: ItemPartition, item_id: UUID, stored: bytes) -> Status:
    """Return a stored status. One that no worker writes counts as RETRY, because it does not show that the item is
    finished.
    """
    status = stored.decode(errors="replace")
    try:
        return Status(status)
    except ValueError:
        log.warning(
            "%s: item %s has the status %r, which no worker writes; it is started again", place, item_id, status
        )
        return Status.RETRY
