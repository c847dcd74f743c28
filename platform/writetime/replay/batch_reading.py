"""Reads batches again, from any number or time, without touching any cursor."""

import difflib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from writetime.clients.zookeeper import NoZooKeeper
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.replay.batches import Batch, Batches, DamagedBatch, Gone, NoBatch, Seal, open_batches
from writetime.replay.coordination import check_name, coordination

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BatchesReport:
    """The result of checking all batches: their number, their items, the damaged ones with reasons, and the batch up to
    which retention has deleted them.
    """

    batches: int
    items: int
    faults: list[str]
    gone: int


def require_queue(settings: Settings, queue: str) -> None:
    """Return if a batch was published to a queue, or the settings name it. A queue begins with its first batch, so any
    misspelt name is an empty queue: for such a name, this raises `WritetimeError`.
    """
    named = {*settings.replay.queues, *settings.replay.keep_days}
    if check_name(queue, "queue") in named:
        return
    with open_batches(settings) as batches:
        if batches.newest(queue):
            return
        similar = difflib.get_close_matches(queue, named | batches.queues(), n=1)
    hint = f"did you mean {similar[0]}?" if similar else f"`writetime replay publish {queue}` does this"
    raise WritetimeError(f"no batch was ever published to queue {queue}; {hint}")


def replay(settings: Settings, queue: str, first: int | None = None, last: int | None = None) -> Iterator[Batch]:
    """Yield batches in order, by default all present ones. Raises `NoBatch` if one was not published, `Gone` if
    retention has deleted one, and `DamagedBatch` if one differs from its seal.
    """
    with open_batches(settings) as batches:
        yield from batches.read_all(_seals(batches, queue, first, last))


def sealed(settings: Settings, queue: str, first: int, last: int) -> list[Seal]:
    """Return the seals from one batch to another, without the items. Raises `NoBatch` and `Gone` as `replay`."""
    with open_batches(settings) as batches:
        return list(_seals(batches, queue, first, last))


def _seals(batches: Batches, queue: str, first: int | None, last: int | None) -> Iterator[Seal]:
    newest, gone = batches.newest(queue), batches.floor(queue).gone
    begin, end = gone + 1 if first is None else first, newest if last is None else last
    if gone and ((first or begin) <= gone or (last is not None and last <= gone)):
        raise Gone(queue, gone)
    if (first is not None and not 1 <= first <= newest) or end > newest:
        raise NoBatch(f"queue {queue} has the batches 1 to {newest}, not {begin} to {end}")
    return batches.between(queue, begin, end)


def extent(settings: Settings, queue: str) -> tuple[int, int]:
    """Return the numbers of the first and the newest existing batch, from the database, starting at ZooKeeper's number;
    1 and 0 if there are none. Raises `NoBatch` if ZooKeeper has a batch that the database does not have.
    """
    with open_batches(settings) as batches:
        try:
            with coordination(settings, queue) as zookeeper:
                hint = zookeeper.head()
        except NoZooKeeper as e:
            log.warning("queue %s: %s; the newest batch is read from the database", queue, e)
            hint = 0
        newest = batches.newest(queue, hint)
        return batches.floor(queue).gone + 1, newest


def find_time(batches: Batches, queue: str, newest: int, at: datetime) -> int:
    """Return the number of the first batch published at a time or later; that after the newest one if there is none.
    The time is by the database's clock.

    Times do not fall along the numbers, so a binary search finds it.
    """
    low, high = 1, newest + 1
    while low < high:
        middle = (low + high) // 2
        published_at = batches.published_at(queue, middle)
        if published_at is None:
            raise NoBatch(f"batch {queue}-{middle} was not published, and later ones were")
        if published_at < at:
            low = middle + 1
        else:
            high = middle
    return low


def check(settings: Settings, queue: str) -> BatchesReport:
    """Read all batches, and compare their numbers, items and hashes with the seals. For batches that retention has
    deleted, only numbers are compared.
    """
    faults: list[str] = []
    count = items = 0
    with open_batches(settings) as batches:
        newest, gone = batches.newest(queue), batches.floor(queue).gone
        try:
            for seal in batches.between(queue, 1, newest):
                if seal.n <= gone:
                    continue
                try:
                    items += len(batches.read(seal).items)
                    count += 1
                except Gone:
                    # Retention is at work.
                    gone = seal.n
                except DamagedBatch as e:
                    faults.append(str(e))
                    count += 1
        except NoBatch as e:
            faults.append(str(e))
    return BatchesReport(count, items, faults, gone)
