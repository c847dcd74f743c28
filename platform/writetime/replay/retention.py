"""Deletes the oldest batches of a queue, but none that a known processor has not done.

Retention is off unless `replay.keep_days` names the queue. It deletes the items and keeps the seals, so numbers never
start again, and repeated publishing is always recognised. First it announces that batches up to a number are gone. Then
it reads the cursors again, because `seek` reads the announcement after it has moved one. Then it deletes items up to
the slowest cursor, and records this. After an interruption, the next call continues.
"""

from dataclasses import dataclass
from datetime import timedelta
from itertools import islice

from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.replay.batch_reading import find_time
from writetime.replay.batches import Batches, open_batches
from writetime.replay.coordination import Coordination, coordination

_AT_ONCE = 100


@dataclass(frozen=True)
class Trimmed:
    """The result of retention: the batch up to which all are deleted, the number of batches deleted now, the batch up
    to which they are old enough, and the processor that retention waits for, if there is one.
    """

    gone: int
    deleted: int
    due: int
    waits_for: str | None


def trim(settings: Settings, queue: str) -> Trimmed:
    """Delete the items of batches that all processors have done and that are older than the queue's `replay.keep_days`.
    Raises `WritetimeError` if all batches of this queue are kept, `NoZooKeeper` if the cursors of the processors cannot
    be read, and `NoBatch` if ZooKeeper has a batch that the database does not have.
    """
    days = settings.replay.keep_days.get(queue)
    if days is None:
        raise WritetimeError(
            f"all batches of queue {queue} are kept; to delete old ones, name it in writetime.toml: "
            f"[replay.keep_days] {queue} = <days>"
        )
    with open_batches(settings) as batches, coordination(settings, queue) as zookeeper:
        # A search from the first batch on reads a row per `ERA` batches.
        newest = batches.newest(queue, zookeeper.head())
        due = find_time(batches, queue, newest, batches.now() - timedelta(days=days)) - 1
        floor = batches.floor(queue)
        gone = max(floor.gone, min(due, _slowest(batches, zookeeper, queue, due)[0]))
        if gone > floor.gone:
            batches.announce(queue, gone)
        end, _ = _slowest(batches, zookeeper, queue, gone)
        found = batches.between(queue, floor.deleted + 1, end)
        while some := list(islice(found, _AT_ONCE)):
            batches.delete_blocks(some)
            batches.say_deleted(queue, some[-1].n)
        waits_for = _slowest(batches, zookeeper, queue, due)[1]
        return Trimmed(gone, max(0, end - floor.deleted), due, waits_for)


def _slowest(batches: Batches, zookeeper: Coordination, queue: str, most: int) -> tuple[int, str | None]:
    """Return the lowest cursor below a number, and its processor; that number if there is none."""
    zookeeper.synchronise()
    cursors = [(n, name) for name, n in batches.cursors(queue).items()]
    cursors += [(cursor.n, name) for name, cursor in zookeeper.cursors().items()]
    n, name = min(cursors, default=(most, None))
    return (n, name) if n < most else (most, None)
