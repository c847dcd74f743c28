"""What the search for the oldest unfinished item of a queue reads; on tables in memory."""

import random
from uuid import UUID

import pytest

from tests.workqueue.conftest import with_queue
from tests.workqueue.memory import MemoryDatabase, MemoryTables
from writetime.core.config import Settings
from writetime.workqueue.inspect import QueueInspector
from writetime.workqueue.items import Entry, IdMaker, ItemPartition, Status, first_id
from writetime.workqueue.queue_tables import END_OF_TIME, ItemUpdate, Statics

_SECOND = 1_000
_START = 1_700_000_000_000
# The n-th item of a bucket is so many seconds younger than the first one.
_APART = 100


class Tables(MemoryTables):
    """Tables that count the ids that they return, a million seconds after the start."""

    ids = 0

    async def now(self) -> int:
        return _START + 1_000_000 * _SECOND

    async def item_ids(self, place: ItemPartition, after: UUID, before: UUID, most: int = END_OF_TIME) -> list[UUID]:
        found = await super().item_ids(place, after, before, most)
        self.ids += len(found)
        return found


def fill(database: MemoryDatabase, shard: int, items: int, *finished: range) -> None:
    """Add a bucket, with the floor below its tenth item."""
    place, maker = ItemPartition("q", shard, _START), IdMaker()
    ids = [maker.make((_START + n * _APART * _SECOND) * 1_000) for n in range(items)]
    database.registry["q", _START, shard] = None
    database.items[place] = {i: Entry(place, i, None, "1") for i in ids}
    database.statics[place] = Statics(1, 1, first_id(_START + 10 * _APART * _SECOND - 1), None)
    done = [ids[n] for numbers in finished for n in numbers]
    database.rows[place] = {i: ItemUpdate(i, random.choice([Status.COMPLETED, Status.DEAD]), 0) for i in done}
    others = {i: ItemUpdate(i, Status.RETRY, 0) for i in ids[::3]}
    database.rows[place] = others | database.rows[place]


def oldest(database: MemoryDatabase) -> tuple[int, int]:
    """The age of the oldest item in hundreds of seconds, and the number of ids that were read."""
    tables = Tables(database)
    age = QueueInspector(tables, with_queue(Settings(), "q")).oldest_seconds("q")
    return round(age / _APART), tables.ids


@pytest.mark.parametrize("waiting", [1, 5_000])
def test_no_item_behind_the_oldest_one_is_read(waiting: int) -> None:
    database = MemoryDatabase(random.Random(1), _START)
    fill(database, 0, 160 + waiting, range(160))
    fill(database, 1, 500 + waiting, range(300), range(400, 450))
    age, ids = oldest(database)
    assert age == 10_000 - 160
    assert ids <= 200 + 400
    # That item was never claimed, and this one waits for a retry.
    assert oldest(only(database, 1))[0] == 10_000 - 300


def only(database: MemoryDatabase, shard: int) -> MemoryDatabase:
    """The database with the bucket of one shard."""
    database.registry = {name: closed for name, closed in database.registry.items() if name[2] == shard}
    return database


def test_a_queue_without_unfinished_items_has_no_age() -> None:
    database = MemoryDatabase(random.Random(1), _START)
    assert oldest(database) == (0, 0)
    fill(database, 0, 250, range(250))
    assert oldest(database) == (0, 240)
    # It is closed, so it has no unfinished item.
    fill(database, 1, 250, range(10))
    database.registry["q", _START, 1] = _START
    assert oldest(database) == (0, 240)
    # It is not due.
    fill(database, 2, 12_000, range(10, 10_001))
    assert oldest(only(database, 2))[0] == 0
