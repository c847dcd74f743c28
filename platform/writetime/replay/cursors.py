"""How far processors are, putting them elsewhere, and making what ZooKeeper has of a queue anew."""

from dataclasses import dataclass
from datetime import UTC, datetime

from writetime.config import Settings
from writetime.database import connect
from writetime.replay.batches import Batches, NoBatch
from writetime.replay.coordination import Moved, coordination
from writetime.replay.reading import find_time


@dataclass(frozen=True)
class Lag:
    """How far a processor is behind: batches, and seconds since the oldest one that it has not done was published."""

    processor: str
    done: int
    batches: int
    seconds: float


def lag(settings: Settings, queue: str) -> list[Lag]:
    """Return the lag of each processor of a queue."""
    with connect(settings) as session, coordination(settings, queue) as zookeeper:
        batches = Batches(session, settings)
        head = batches.head(queue)
        found = []
        for name, cursor in zookeeper.cursors().items():
            behind = (head.n if head else 0) - cursor.n
            oldest = batches.get(queue, cursor.n + 1) if behind > 0 else None
            seconds = (datetime.now(UTC) - oldest.published_at).total_seconds() if oldest else 0.0
            found.append(Lag(name, cursor.n, behind, max(0.0, seconds)))
        return found


def seek(settings: Settings, queue: str, processor: str, to: int | datetime) -> int:
    """Let a batch be the next that a processor does, by its number or as the first published at a time or later; return
    its number. The newest number and one is the next batch that is published.

    An instance that is at work goes on from there. The cursor of a processor with `Effects` is in their table.

    Raises:
        NoBatch: there is no such batch.
    """
    with connect(settings) as session, coordination(settings, queue) as zookeeper:
        batches = Batches(session, settings)
        head = batches.head(queue)
        newest = head.n if head else 0
        n = find_time(batches, queue, to) if isinstance(to, datetime) else to
        if not 1 <= n <= newest + 1:
            raise NoBatch(f"queue {queue} has the batches 1 to {newest}; the next may be 1 to {newest + 1}, not {n}")
        while True:
            try:
                zookeeper.move(processor, n - 1, zookeeper.cursor(processor))
                break
            except Moved:
                continue
        batches.keep_cursor(queue, processor, n - 1)
    return n


def rebuild(settings: Settings, queue: str) -> tuple[int, list[str]]:
    """Make the nodes of a queue that ZooKeeper lost, or has from an older time, anew from the database.

    Returns:
        The newest batch, and the processors whose cursors were lost.
    """
    with connect(settings) as session, coordination(settings, queue) as zookeeper:
        batches = Batches(session, settings)
        head = batches.head(queue)
        if head is not None:
            zookeeper.advance(head.n)
        known = zookeeper.cursors()
        lost = {name: n for name, n in batches.cursors(queue).items() if n and (name not in known or not known[name].n)}
        for name, n in lost.items():
            zookeeper.move(name, n, zookeeper.cursor(name))
        return (head.n if head else 0), sorted(lost)
