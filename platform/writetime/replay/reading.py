"""Reads batches again, from any number or time, without touching any cursor."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from writetime.config import Settings
from writetime.database import connect
from writetime.replay.batches import Batch, Batches, Damaged, NoBatch


@dataclass(frozen=True)
class Checked:
    """What a check of all batches found: how many there are, with how many items, and which are damaged, and how."""

    batches: int
    items: int
    faults: list[str]


def replay(settings: Settings, queue: str, first: int = 1, last: int | None = None) -> Iterator[Batch]:
    """Yield batches in their order, by default all that are published now.

    Raises:
        NoBatch: one was not published.
        Damaged: one is not what was published.
    """
    with connect(settings) as session:
        batches = Batches(session, settings)
        head = batches.head(queue)
        newest = head.n if head else 0
        if first < 1 or (last or 0) > newest:
            raise NoBatch(f"queue {queue} has the batches 1 to {newest}, not {first} to {last or newest}")
        for seal in batches.between(queue, first, newest if last is None else last):
            yield batches.read(seal)


def find_time(batches: Batches, queue: str, at: datetime) -> int:
    """Return the number of the first batch published at a time or later; that of the next one if there is none yet.

    Times do not fall along the numbers, so it is found by halving.
    """
    head = batches.head(queue)
    low, high = 1, (head.n if head else 0) + 1
    while low < high:
        middle = (low + high) // 2
        seal = batches.get(queue, middle)
        if seal is None:
            raise NoBatch(f"batch {queue}-{middle} was not published, and later ones were")
        if seal.published_at < at:
            low = middle + 1
        else:
            high = middle
    return low


def check(settings: Settings, queue: str) -> Checked:
    """Read all batches, and compare their numbers, items and hashes with what was sealed."""
    faults: list[str] = []
    count = items = 0
    with connect(settings) as session:
        batches = Batches(session, settings)
        head = batches.head(queue)
        try:
            for seal in batches.between(queue, 1, head.n if head else 0):
                count += 1
                try:
                    items += len(batches.read(seal).items)
                except Damaged as e:
                    faults.append(str(e))
        except NoBatch as e:
            faults.append(str(e))
    return Checked(count, items, faults)
