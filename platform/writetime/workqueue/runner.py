"""Processes the items of one shard: it finds items, claims them, and writes their outcomes."""

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from writetime.clients.prepared_statements import UnknownWrite
from writetime.workqueue.backlog import Backlog, part
from writetime.workqueue.bucket_life import Buckets
from writetime.workqueue.context import QueueContext, wait_for_event
from writetime.workqueue.items import Entry, Status
from writetime.workqueue.partition import Partition
from writetime.workqueue.queue_tables import DeadItem, ItemUpdate, Pauses
from writetime.workqueue.reader import ItemReader
from writetime.workqueue.shard_leases import ShardLease
from writetime.workqueue.statements import retry
from writetime.workqueue.steps import Asleep

log = logging.getLogger(__name__)

# The items in memory: below the first number, more are read; up to the second number, if none of them may run.
_LOW = 500
_MOST_WAITING = 100_000
_MAX_ERROR_CHARACTERS = 4000
_SWEEPS_A_GRACE = 4
_LONGEST_SWEEP_SECONDS = 60.0


class Controls(NamedTuple):
    """The requests to the workers of a queue as of their last change."""

    change: UUID | None = None
    pauses: Pauses = Pauses(None, {})


class ShardRunner:
    """Processes the items of one shard until it is lost. `wake` is called when items may be taken. Its `task` finds
    items.
    """

    def __init__(self, context: QueueContext, lease: ShardLease, wake: Callable[[], None]) -> None:
        own, shard, shards = context.own, lease.row.shard, context.shards
        self.queue = context.queue
        self.own = own
        self.lease = lease
        self.backlog = Backlog(
            concurrency=part(own.concurrency, shard, shards),
            rate=own.rate and own.rate / shards,
            key_concurrency=own.key_concurrency,
            key_rate=own.key_rate,
        )
        self.buckets = Buckets(context, shard, lease.epoch, self._add)
        self.idle = asyncio.Event()
        self._context = context
        self._clock = context.clock
        self._settings = context.settings
        self._wake = wake
        self._news = asyncio.Event()
        self._sweep_seconds = min(_LONGEST_SWEEP_SECONDS, context.settings.close_after_seconds / _SWEEPS_A_GRACE)
        self._swept = 0
        self._pause = context.settings.poll_seconds
        self._controls = Controls()
        # Whether the requests about items are read, and items that are to be cancelled.
        self._requests_read = True
        self._withdrawn: list[Entry] = []
        # Whether the shard's buckets are known.
        self.offered = False
        # Whether a complete round has found nothing to do: the condition of `until idle`.
        self.quiet = False
        self.task = asyncio.create_task(self._run())

    def offer(self, buckets: Mapping[int, int | None]) -> None:
        """Pass the shard's buckets, and when each was closed; those of earlier calls may be left out."""
        new = self.buckets.offer(buckets)
        if new or not self.offered:
            self.offered, self.quiet = True, False
            self.poll_now()

    def control(self, controls: Controls) -> None:
        """Do what people ask for. Requests about items are read with the next look."""
        if controls.change == self._controls.change:
            return
        self._controls, self._requests_read = controls, False
        pauses = controls.pauses
        self.backlog.pause(pauses.keys, self._clock.now(), everything=pauses.queue is not None)
        self.quiet = False
        self.poll_now()
        self._wake()

    def withholds(self, entry: Entry) -> bool:
        """Return whether an item must not begin, because it is paused or cancelled; from any thread."""
        pauses = self._controls.pauses
        return pauses.queue is not None or entry.key in pauses.keys or self.is_cancelled(entry)

    def is_cancelled(self, entry: Entry) -> bool:
        """Return whether someone has cancelled an item; from any thread."""
        reader = self.buckets.readers.get(entry.place.bucket)
        return reader is not None and entry.item_id in reader.cancels

    def poll_now(self) -> None:
        """Look for items at once."""
        self._news.set()

    async def _run(self) -> None:
        """Find items, until cancelled. Raises `ShardFenced` if the shard has another owner."""
        while True:
            try:
                found = await self._look()
                # A bucket that was offered during the look was not read by it.
                complete = self.offered and not self._news.is_set() and not self.buckets.behind
            except UnknownWrite as e:
                log.warning("queue %s, shard %d: %s", self.queue, self.lease.row.shard, e)
                found = complete = False
            self.quiet = complete and not found and not self.backlog.waiting and not self.backlog.running
            own, busy = self._settings, found or not self._hungry()
            self._pause = own.poll_seconds if busy else min(own.idle_poll_seconds, self._pause * 2)
            if not (self.buckets.behind and self._hungry()):
                await wait_for_event(self._news, self._pause)

    def take(self, most: int) -> list[Entry]:
        """Return items that may be claimed now; settle each with one of the methods below, unless the shard is lost."""
        if self.lease.leaving or not self.lease.valid:
            return []
        taken = self.backlog.take(self._clock.now(), most)
        if self.backlog.waiting < _LOW and self.buckets.behind:
            self.poll_now()
        return taken

    def next_due(self) -> float | None:
        """Return the seconds until an item may be taken if no new one comes; None if there is no such item."""
        now = self._clock.now()
        due = None if self.lease.leaving or not self.lease.valid else self.backlog.next_due(now)
        return None if due is None else max(0, due - now) / 1000

    async def claim(self, entries: Sequence[Entry]) -> None:
        """Write that items are being processed, and their numbers of attempts. At most a batch of items is allowed."""
        now = self._clock.now()
        changes: dict[Partition, list[ItemUpdate]] = defaultdict(list)
        for entry in entries:
            entry.attempts += 1
            entry.asleep = False
            change = ItemUpdate(entry.item_id, Status.PROCESSING, now, entry.attempts, worker=self._context.worker)
            changes[self.buckets.partition(entry)].append(change)
        await asyncio.gather(*(partition.write(together) for partition, together in changes.items()))

    async def steps(self, entry: Entry) -> dict[str, str]:
        """Return the recorded steps of a claimed item, which earlier owners of the shard may have written."""
        if entry.steps is None:
            entry.steps = await retry(partial(self._context.tables.steps, entry.place, entry.item_id))
        return entry.steps

    async def record_step(self, entry: Entry, name: str, result: str) -> None:
        """Write that a step of a claimed item is finished, with its result."""
        known = await self.steps(entry)
        written = self._write(entry, Status.PROCESSING, step=(name, result))

        def note(done: "asyncio.Future[None]") -> None:
            if done.exception() is None:
                known[name] = result

        written.add_done_callback(note)
        # A handler that is cancelled meanwhile waits no more, but the write goes on.
        await asyncio.shield(written)

    async def event(self, entry: Entry, name: str) -> str | None:
        """Return the payload of an event of an item, as JSON; None if it was not sent."""
        return await retry(partial(self._context.tables.event, entry.place, entry.item_id, name))

    def now(self) -> int:
        """Return the present time in milliseconds."""
        return self._clock.now()

    def complete(self, entry: Entry, result: str | None) -> "asyncio.Future[None]":
        """Write that an item is done, with the handler's result, in one fenced write; then release it."""
        return self._write(entry, Status.COMPLETED, result=result)

    def release(self, entry: Entry) -> None:
        """Record that an item is settled: the next one of its key may run."""
        self.backlog.release(entry, self._clock.now())
        self.idle.set()
        self._wake()

    async def fail(self, entry: Entry, error: str, *, give_up: bool = False) -> Status:
        """Write that an attempt has failed: the item is due again later, is dead, or is cancelled if someone wants
        this.
        """
        # A handler's error may have invalid Unicode.
        error = error[:_MAX_ERROR_CHARACTERS].encode(errors="backslashreplace").decode()
        if self.is_cancelled(entry):
            await self._write(entry, Status.CANCELLED, error=error)
            self.release(entry)
            return Status.CANCELLED
        log.warning("%s %s: attempt %d: %s", self.queue, entry.item_id, entry.attempts, error)
        if give_up or entry.attempts >= self.own.max_attempts:
            await self._bury(entry, error)
            self.release(entry)
            return Status.DEAD
        ceiling = min(self.own.backoff_cap_seconds, self.own.backoff_base_seconds * 2 ** min(entry.attempts - 1, 32))
        entry.due = self._clock.now() + round(1000 * random.uniform(ceiling / 2, ceiling))
        await self._write(entry, Status.RETRY, due=entry.due, error=error)
        self.release(entry)
        self._add([entry])
        return Status.RETRY

    async def give_back(self, entry: Entry) -> Status | None:
        """Write that a claimed item was not started; return its status if it was cancelled."""
        if self.is_cancelled(entry):
            return await self.fail(entry, "cancelled before it was started")
        entry.attempts -= 1
        await self._write(entry, Status.RETRY, attempts=entry.attempts, due=entry.due or self._clock.now())
        self.release(entry)
        self._add([entry])
        return None

    async def sleep(self, entry: Entry, asleep: Asleep) -> Status | None:
        """Write that an item sleeps, which is no failed attempt; return its status if it was cancelled."""
        if self.is_cancelled(entry):
            return await self.fail(entry, "cancelled before it slept")
        known, until = await self.steps(entry), str(asleep.until)
        # An event of another name, or a new owner of the shard, may have woken it.
        step = None if asleep.step in known else (asleep.step, until)
        entry.attempts -= 1
        await self._write(entry, Status.SLEEPING, attempts=entry.attempts, due=asleep.until, step=step)
        known[asleep.step] = until
        entry.asleep, entry.due = True, asleep.until
        # The event may have come after the handler has looked for it.
        if (entry.item_id, asleep.event) in self.buckets.readers[entry.place.bucket].events:
            entry.due = self._clock.now()
        self.release(entry)
        self._add([entry])
        return None

    async def drained(self) -> None:
        """Wait until no taken item is open."""
        while self.backlog.running and not self.lease.lost:
            self.idle.clear()
            await self.idle.wait()

    async def stop(self) -> None:
        """Stop all work in flight."""
        self.idle.set()
        await self.buckets.stop()

    def _write(self, entry: Entry, status: Status, **values: Any) -> "asyncio.Future[None]":
        change = ItemUpdate(entry.item_id, status, self._clock.now(), **values)
        return self.buckets.partition(entry).write([change])

    async def _bury(self, entry: Entry, error: str) -> None:
        """Store a dead letter, and then mark the item as dead, so that no dead item is without its letter."""
        e, now = entry, self._clock.now()
        letter = DeadItem(*e.place[:2], e.item_id, e.key, e.payload, e.attempts, error, now, None, e.time_limit_seconds)
        await retry(partial(self._context.tables.insert_dead, letter))
        await self._write(entry, Status.DEAD, error=error)

    async def _look(self) -> bool:
        """Open new buckets, follow requests, read items, and manage old buckets; return whether new items were read."""
        self._news.clear()
        await self.buckets.open_new()
        await self._follow_requests()
        found = False
        for bucket, reader in sorted(self.buckets.readers.items()):
            if self._hungry():
                try:
                    found |= await self._read(reader)
                except Exception as e:
                    e.add_note(f"bucket {bucket}")
                    raise
        now = self._clock.now()
        if now - self._swept > self._sweep_seconds * 1000:
            self._swept = now
            await self.buckets.close_finished()
            await self.buckets.drop_old()
        return found

    async def _follow_requests(self) -> None:
        """Write that waiting items are cancelled, and wake those that have new events."""
        if not self._requests_read:
            self._requests_read = True
            try:
                for reader in self.buckets.readers.values():
                    if woken := await reader.load_requests():
                        self.backlog.wake(woken, self._clock.now())
                        self._wake()
            except BaseException:
                self._requests_read = False
                raise
            cancels = frozenset[UUID]().union(*(reader.cancels for reader in self.buckets.readers.values()))
            self._withdrawn += self.backlog.withdraw(cancels, self._clock.now()) if cancels else []
        withdrawn, self._withdrawn = self._withdrawn, []
        await asyncio.gather(*(self._write(entry, Status.CANCELLED) for entry in withdrawn))

    async def _read(self, reader: ItemReader) -> bool:
        new = await reader.poll()
        if (since := reader.earlier_bucket(new)) is not None:
            # They were recorded as known, so an error must not lose them.
            self._add(await retry(partial(self._late, reader, since)))
        return self._add(new)

    async def _late(self, reader: ItemReader, since: UUID) -> list[Entry]:
        """Return the items that came to the bucket before a reader's."""
        earlier = [b for b in self.buckets.readers if b < reader.partition.place.bucket]
        return await self.buckets.readers[max(earlier)].late(since) if earlier else []

    def _hungry(self) -> bool:
        waiting = self.backlog.waiting
        return waiting < _LOW or (waiting < _MOST_WAITING and self.next_due() != 0)

    def _add(self, entries: list[Entry]) -> bool:
        now = self._clock.now()
        for entry in entries:
            if self.is_cancelled(entry):
                self._withdrawn.append(entry)
                self.poll_now()
            else:
                self.backlog.add(entry, now)
        if entries:
            self._wake()
        return bool(entries)
