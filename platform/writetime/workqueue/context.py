"""The objects that the parts of a worker share for one queue."""

from dataclasses import dataclass

from writetime.core.config import Queue, WorkQueue
from writetime.workqueue.clock import DatabaseClock
from writetime.workqueue.items import ItemPartition
from writetime.workqueue.queue_tables import QueueTables


@dataclass(frozen=True)
class QueueContext:
    """One queue of one worker."""

    tables: QueueTables
    clock: DatabaseClock
    settings: WorkQueue
    queue: str
    shards: int
    bucket_seconds: int
    worker: str

    @property
    def own(self) -> Queue:
        """The settings of this queue."""
        return self.settings.queue(self.queue)

    def place(self, shard: int, bucket: int) -> ItemPartition:
        """Return a partition of the queue."""
        return ItemPartition(self.queue, shard, bucket)
