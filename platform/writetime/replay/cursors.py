"""Cursors of processors: reading them, moving them, and restoring a queue's nodes in ZooKeeper."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.replay.batch_reading import find_time
from writetime.replay.batches import Gone, NoBatch, open_batches
from writetime.replay.coordination import Moved, coordination


@dataclass(frozen=True)
class ProcessorLag:
    """The lag of a processor: the number of batches, and the seconds since its oldest remaining batch was published."""

    processor: str
    done: int
    batches: int
    seconds: float


def lag(settings: Settings, queue: str) -> list[ProcessorLag]:
    """Return the lag of each processor of a queue. Raises `NoBatch` if ZooKeeper has a batch that the database does not
    have.
    """
    with open_batches(settings) as batches, coordination(settings, queue) as zookeeper:
        # A search from the first batch on reads a row per `ERA` batches.
        newest = batches.newest(queue, zookeeper.head())
        found = []
        for name, cursor in zookeeper.cursors().items():
            behind = newest - cursor.n
            oldest = batches.get(queue, cursor.n + 1) if behind > 0 else None
            seconds = (batches.now() - oldest.published_at).total_seconds() if oldest else 0.0
            found.append(ProcessorLag(name, cursor.n, behind, max(0.0, seconds)))
        return found


def seek(settings: Settings, queue: str, processor: str, to: int | datetime) -> int:
    """Set the next batch of a processor: by its number, or the first batch published at a time or later. Return its
    number. The newest number plus one is the next batch to be published.

    An active instance continues from there. The cursor of a processor with `Effects` is in their table. Raises
    `NoBatch` if there is no such batch, and `Gone` if retention has deleted it.
    """
    with open_batches(settings) as batches, coordination(settings, queue) as zookeeper:
        newest = batches.newest(queue)
        n = find_time(batches, queue, newest, to) if isinstance(to, datetime) else to
        if not 1 <= n <= newest + 1:
            raise NoBatch(f"queue {queue} has the batches 1 to {newest}; the next may be 1 to {newest + 1}, not {n}")
        if n <= (gone := batches.floor(queue).gone):
            raise Gone(queue, gone)
        while True:
            at, before = batches.cursor_time(queue, processor), zookeeper.cursor(processor)
            with suppress(Moved):
                moved = zookeeper.move(processor, n - 1, before)
                break
        # Retention announces first and reads the cursors then, so one of the two sees the other.
        if n <= (gone := batches.floor(queue).gone):
            with suppress(Moved):
                zookeeper.move(processor, before.n, moved)
            raise Gone(queue, gone)
        batches.keep_cursor(queue, processor, n - 1, at)
    return n


def advance(settings: Settings, queue: str, processor: str, n: int) -> None:
    """Record that a processor that keeps its own position has done all batches up to a number. So its lag is visible,
    and retention waits for it. If more batches are recorded already, this has no effect.
    """
    with open_batches(settings) as batches, coordination(settings, queue) as zookeeper:
        while (before := zookeeper.cursor(processor)).n < n or before.version is None:
            at = batches.cursor_time(queue, processor)
            with suppress(Moved):
                zookeeper.move(processor, n, before)
                batches.keep_cursor(queue, processor, n, at)
                return


def forget(settings: Settings, queue: str, processor: str) -> None:
    """Delete the cursor of a processor that no longer exists, so that retention does not wait for it. Raises
    `WritetimeError` if there is no such processor, or an instance of it is at work.
    """
    with open_batches(settings) as batches, coordination(settings, queue) as zookeeper:
        known = {**batches.cursors(queue), **zookeeper.cursors()}
        if processor not in known:
            raise WritetimeError(
                f"queue {queue} has no processor {processor}; it has {', '.join(sorted(known)) or 'none'}"
            )
        zookeeper.forget(processor)
        batches.forget_cursor(queue, processor)


def rebuild(settings: Settings, queue: str) -> tuple[int, list[str]]:
    """Restore from the database the nodes of a queue that are missing or outdated in ZooKeeper. Return the newest
    batch, and the processors whose cursors were lost.
    """
    with open_batches(settings) as batches, coordination(settings, queue) as zookeeper:
        newest = batches.newest(queue)
        zookeeper.advance(newest)
        known = zookeeper.cursors()
        lost = {
            name: n for name, n in batches.cursors(queue).items() if n and not (name in known and known[name].known)
        }
        for name, n in lost.items():
            zookeeper.move(name, n, zookeeper.cursor(name))
        return newest, sorted(lost)
