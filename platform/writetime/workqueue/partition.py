"""One partition of a queue, used by its owner: fenced writes, finished items, and the floor.

A partition has at most one write in flight. Meanwhile, further changes form the next batch. So batches grow with the
load, and no two conditional writes contend. Each batch has a number (`op`), and requires the previous number and the
owner's epoch. If an answer is lost, the same batch is sent again. If the partition then has this number and the owner's
epoch, the batch was applied. If it has another epoch, the shard has another owner, and the batch was not and will not
be written.
"""

import asyncio
import bisect
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import takewhile
from typing import NamedTuple
from uuid import UUID

from writetime.core.errors import WritetimeError
from writetime.workqueue.items import NO_ID, ItemPartition, Status, time_of
from writetime.workqueue.queue_tables import ItemUpdate, QueueTables, Statics
from writetime.workqueue.statements import retry

# Bytes of results, errors and steps in one batch.
_BATCH_BYTES = 256 * 1024


class ShardFenced(WritetimeError):
    """The shard has another owner. The changes were not written, and will not be."""


class _Group(NamedTuple):
    """Changes that are written together, and their waiting callers."""

    changes: Sequence[ItemUpdate]
    written: "asyncio.Future[None]"


class Partition:
    """A partition that has our epoch. Writes raise `ShardFenced` if the shard has another owner."""

    def __init__(
        self, tables: QueueTables, place: ItemPartition, epoch: int, statics: Statics, batch_rows: int
    ) -> None:
        self.place = place
        self.closed = statics.closed
        self.floor = statics.floor or NO_ID
        self._tables = tables
        self._epoch = epoch
        # Zero if it was just stamped; more if this owner has closed it before.
        self._op = (statics.op or 0) if statics.epoch == epoch else 0
        self._batch_rows = batch_rows
        self._waiting: deque[_Group] = deque()
        self._flushing: asyncio.Task[None] | None = None
        self._fault: Exception | None = None
        # Ids beyond the floor: all known ones, in order, and the finished ones among them.
        self._seen: list[UUID] = []
        self._known: set[UUID] = set()
        self._finished: set[UUID] = set()
        self._sleeping: set[UUID] = set()

    @classmethod
    async def open(cls, tables: QueueTables, place: ItemPartition, epoch: int, batch_rows: int) -> "Partition":
        """Stamp a partition with an epoch, which ends the writes of any earlier owner, and return it. Raises
        `UnknownWrite` if the database did not answer; it may be retried.
        """
        while True:
            statics = await tables.statics(place)
            if statics.epoch is not None and statics.epoch > epoch:
                raise ShardFenced(f"{place} has epoch {statics.epoch}, later than {epoch}")
            # Also if an earlier attempt of ours has succeeded.
            if statics.epoch == epoch or await tables.stamp(place, epoch, before=statics.epoch):
                return cls(tables, place, epoch, statics, batch_rows)

    def see(self, item_id: UUID, *, finished: bool = False, sleeping: bool = False) -> bool:
        """Record an item; return whether it is new and unfinished."""
        if item_id in self._known:
            return False
        self._known.add(item_id)
        bisect.insort(self._seen, item_id)
        if finished:
            self._finished.add(item_id)
        if sleeping:
            self._sleeping.add(item_id)
        return not finished

    def knows(self, item_id: UUID) -> bool:
        """Return whether an item is known, and is not below the floor yet."""
        return item_id in self._known

    @property
    def unfinished(self) -> int:
        """The number of known items that are not finished."""
        return len(self._seen) - len(self._finished)

    @property
    def oldest(self) -> UUID | None:
        """The first known item that is not finished, and does not sleep."""
        return next((i for i in self._seen if i not in self._finished and i not in self._sleeping), None)

    def settle(self, before: int) -> None:
        """Raise the floor over finished items from before a time (milliseconds), if no earlier item can still come."""
        done = list(takewhile(lambda i: i in self._finished and time_of(i) < before, self._seen))
        if done:
            self.floor = max(self.floor, done[-1])
            self._finished.difference_update(done)
            self._known.difference_update(done)
            del self._seen[: len(done)]

    def write(self, changes: Sequence[ItemUpdate]) -> "asyncio.Future[None]":
        """Send changes together with the next batch. The future is done once they are applied, or raises `ShardFenced`.

        There may be at most as many changes as a batch has rows.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._fault is not None:
            future.set_exception(self._fault)
            return future
        self._waiting.append(_Group(changes, future))
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())
        return future

    async def close(self, closed: int | None) -> None:
        """Record in the database that the partition is closed since a time, or open again (None)."""
        while self._flushing is not None:
            await asyncio.wait([self._flushing])
        self._op += 1
        await self._insist(partial(self._tables.close, self.place, self._epoch, self._op, closed))
        self.closed = closed

    async def _flush(self) -> None:
        # One turn of the loop, in which all changes that are ready now are added.
        await asyncio.sleep(0)
        batch: list[_Group] = []
        try:
            while self._waiting:
                batch = self._next_batch()
                self._op += 1
                changes = [change for group in batch for change in group.changes]
                write = partial(self._tables.write, self.place, self._epoch, self._op, self.floor, changes)
                await self._insist(write)
                self._finished.update(change.item_id for change in changes if change.status.final)
                self._note_sleeping(changes)
                for _, future in batch:
                    if not future.done():
                        future.set_result(None)
                batch = []
        except (Exception, asyncio.CancelledError) as e:
            # The database may have applied the batch. Only a new owner may continue, because it reads the partition.
            self._refuse(e if isinstance(e, Exception) else ShardFenced(f"{self.place} was given up"), batch)
        finally:
            self._flushing = None

    def _note_sleeping(self, changes: Sequence[ItemUpdate]) -> None:
        if self._sleeping:
            self._sleeping.difference_update(change.item_id for change in changes)
        self._sleeping.update(change.item_id for change in changes if change.status is Status.SLEEPING)

    def _next_batch(self) -> list[_Group]:
        batch: list[_Group] = []
        rows = size = 0
        while self._waiting:
            changes = self._waiting[0].changes
            rows += len(changes)
            size += sum(len(c.result or "") + len(c.error or "") + len(c.step[1] if c.step else "") for c in changes)
            if batch and (rows > self._batch_rows or size > _BATCH_BYTES):
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _insist(self, send: Callable[[], Awaitable[bool]]) -> None:
        """Send a conditional write until it is known to be applied."""

        async def apply() -> None:
            if await send():
                return
            statics = await self._tables.statics(self.place)
            if (statics.epoch, statics.op) != (self._epoch, self._op):
                raise ShardFenced(f"{self.place}: epoch {statics.epoch} has followed {self._epoch}")

        await retry(apply)

    def _refuse(self, fault: Exception, batch: Sequence[_Group] = ()) -> None:
        """Refuse the changes of a batch and the waiting ones, and all later ones."""
        self._fault = fault
        for _, future in [*batch, *self._waiting]:
            if not future.done():
                future.set_exception(fault)
        self._waiting.clear()

    async def stop(self) -> None:
        """Stop the write in flight; further writes raise `ShardFenced`."""
        fault = self._fault = self._fault or ShardFenced(f"{self.place} was given up")
        if (task := self._flushing) is not None:
            task.cancel()
            await asyncio.wait([task])
        # A task that is cancelled before its first step runs none of its code.
        self._refuse(fault)
        self._flushing = None
