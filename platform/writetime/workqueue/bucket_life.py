"""The life of a bucket. Its shard's owner opens it, closes it after a grace period and a full reconciliation, and drops
it.

A closed bucket is not read until it is dropped. Then all its items are compared with all states again, and an item that
came after the grace period reopens the bucket. Dropping deletes whole partitions, with a write time at which the bucket
was already closed and had no writers. A TTL would lose an item that waits longer. Time windows as a compaction strategy
would not work either, because a deletion in another window is never compacted with the data that it deletes.
"""

from collections.abc import Awaitable, Callable, Mapping
from uuid import UUID

from writetime.clients.prepared_statements import UnknownWrite
from writetime.workqueue.context import QueueContext
from writetime.workqueue.items import Entry, ItemPartition
from writetime.workqueue.partition import Partition, ShardFenced
from writetime.workqueue.reader import ItemReader


class Buckets:
    """The open buckets of one shard, used by its owner. Its methods raise `ShardFenced` if the shard has another owner,
    and `UnknownWrite` if the database does not answer.
    """

    def __init__(self, context: QueueContext, shard: int, epoch: int, on_late: Callable[[list[Entry]], object]) -> None:
        """Store the parts of the worker. `on_late` receives late items."""
        self._context = context
        self._tables = context.tables
        self._clock = context.clock
        self._settings = context.settings
        self._shard = shard
        self._epoch = epoch
        self._on_late = on_late
        # When each was closed.
        self._known: dict[int, int | None] = {}
        self.readers: dict[int, ItemReader] = {}

    def offer(self, buckets: Mapping[int, int | None]) -> bool:
        """Record buckets, and when each was closed; return whether there is a new one."""
        new = not buckets.keys() <= self._known.keys()
        self._known |= buckets
        return new

    @property
    def behind(self) -> bool:
        """Whether there are more items to read."""
        return any(reader.behind for reader in self.readers.values())

    @property
    def oldest(self) -> UUID | None:
        """The first known item that is not finished."""
        found = (reader.partition.oldest for _, reader in sorted(self.readers.items()))
        return next((item_id for item_id in found if item_id is not None), None)

    async def open_new(self) -> None:
        """Open the buckets that are not closed and have begun."""
        ahead = self._clock.now() + round(self._settings.clock_tolerance_seconds * 1000)
        for bucket in sorted(b for b, closed in self._known.items() if closed is None and b <= ahead):
            if bucket in self.readers:
                continue
            reader = await self._open(bucket)
            if (closed := reader.partition.closed) is None:
                await reader.load()
                self.readers[bucket] = reader
            else:
                # The last owner ended after it closed the bucket, and before it recorded this.
                await self._tables.mark_bucket(reader.partition.place, closed, before=None)
                self._known[bucket] = closed

    def partition(self, entry: Entry) -> Partition:
        """Return the partition of an item."""
        return self.readers[entry.place.bucket].partition

    async def close_finished(self) -> None:
        """Close the buckets whose items are all done, some time after their end, unless late items came."""
        grace = (self._context.bucket_seconds + self._settings.close_after_seconds) * 1000
        for bucket, reader in list(self.readers.items()):
            if bucket + grace <= self._clock.now() and reader.closable:
                await self._apart(bucket, self._close(bucket, reader))

    async def _close(self, bucket: int, reader: ItemReader) -> None:
        now = self._clock.now()
        if missed := await reader.reconcile():
            self._on_late(missed)
            return
        await reader.partition.close(now)
        await self._tables.mark_bucket(reader.partition.place, now, before=None)
        self._known[bucket] = now
        del self.readers[bucket]

    async def drop_old(self) -> None:
        """Drop the buckets that were closed long ago; reopen one that has unfinished items."""
        keep = round(self._settings.keep_closed_hours * 3_600_000)
        for bucket, closed in list(self._known.items()):
            if closed is not None and self._clock.now() >= closed + keep:
                await self._apart(bucket, self._drop(bucket, closed, keep))

    async def _drop(self, bucket: int, closed: int, keep: int) -> None:
        reader = await self._open(bucket)
        partition = reader.partition
        if late := await reader.reconcile():
            await self._tables.mark_bucket(partition.place, None, before=closed)
            await partition.close(None)
            await reader.load()
            self.readers[bucket] = reader
            self._known[bucket] = None
            self._on_late(late)
        else:
            await self._tables.drop(partition.place, closed + keep // 2, self._epoch)
            del self._known[bucket]

    async def _apart(self, bucket: int, work: Awaitable[None]) -> None:
        """Do work that may wait. A fault of one bucket is recorded, and does not stop other buckets or the shard."""
        try:
            await work
        except (ShardFenced, UnknownWrite):
            raise
        except Exception as e:
            self._context.faults.note(self._context.queue, f"shard {self._shard}, bucket {bucket}", e)

    async def stop(self) -> None:
        """Stop all work in flight."""
        for reader in self.readers.values():
            await reader.partition.stop()

    async def _open(self, bucket: int) -> ItemReader:
        place = ItemPartition(self._context.queue, self._shard, bucket)
        partition = await Partition.open(self._tables, place, self._epoch, self._settings.batch_rows)
        return ItemReader(self._context, partition)
