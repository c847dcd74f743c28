"""Dead letters: items that were given up, and sending them again.

A letter counts once its item's state is DEAD. A worker that lost its shard between the two writes leaves the letter of
an item that another worker continues. Such a letter is skipped. A letter that was redriven has counted before, and DEAD
is final, so its state is not read again. The other states are read without serial consistency, many per statement. A
state that is not visible yet counts the next time.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from uuid import UUID

from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.workqueue.context import DatabaseClock
from writetime.workqueue.enqueue import require_key
from writetime.workqueue.items import Entry, IdMaker, ItemPartition, Status, bucket_of, shard_of, time_of
from writetime.workqueue.queue_tables import DeadItem, QueueTables
from writetime.workqueue.statements import retry


def dead_letters(settings: Settings, queue: str) -> list[DeadItem]:
    """Return the dead letters of a queue, oldest first. Raises `WritetimeError` as `QueueTables.known_queue`."""
    with connect(settings) as session:
        return asyncio.run(read_letters(QueueTables(session, settings), queue))


def redrive(settings: Settings, queue: str, *, key: str | None = None, error: str | None = None) -> int:
    """Enqueue each dead letter that was not redriven yet as a new item, with its key, payload and time limit; with
    `key` or `error`, only those of a key, or whose error contains a text. Return the number of letters.

    A letter names its new item before that item is inserted, and both writes may be repeated. So a redrive that was
    interrupted, or two at once, create one new item. If the named item is missing and its bucket may be closed, the
    letter names a new one. Raises `InvalidItem` for a key that no item can have, and `WritetimeError` as
    `QueueTables.known_queue`, and if the database does not acknowledge an item: then the next call continues.
    """
    with connect(settings) as session:
        return asyncio.run(redrive_letters(QueueTables(session, settings), settings, queue, key=key, error=error))


async def read_letters(tables: QueueTables, queue: str) -> list[DeadItem]:
    """Return the dead letters of a queue, oldest first."""
    shards, bucket_seconds = await tables.known_queue(queue)
    found: list[DeadItem] = []
    for shard in range(shards):
        letters = {letter.item_id: letter for letter in await tables.dead_letters(queue, shard)}
        redriven = {item_id: letter.redriven_as for item_id, letter in letters.items()}
        found += [letters[item_id] for item_id in await counting(tables, queue, shard, bucket_seconds, redriven)]
    return sorted(found, key=lambda letter: letter.item_id.int)


async def count_letters(tables: QueueTables, queue: str, shards: int, bucket_seconds: int) -> tuple[int, int]:
    """Return the number of dead letters of a queue, and how many of them were redriven."""
    dead = redriven = 0
    for shard in range(shards):
        letters = await tables.letters(queue, shard)
        dead += len(await counting(tables, queue, shard, bucket_seconds, letters))
        redriven += sum(named is not None for named in letters.values())
    return dead, redriven


async def counting(
    tables: QueueTables, queue: str, shard: int, bucket_seconds: int, letters: Mapping[UUID, UUID | None]
) -> set[UUID]:
    """Return the items of those letters of one shard that count. `letters` has the items that replaced them."""
    found = {item_id for item_id, named in letters.items() if named is not None}
    unsure: dict[ItemPartition, list[UUID]] = defaultdict(list)
    for item_id in letters.keys() - found:
        unsure[ItemPartition(queue, shard, bucket_of(item_id, bucket_seconds))].append(item_id)
    for place, ids in unsure.items():
        statuses = await tables.statuses(place, ids)
        found |= {item_id for item_id, status in statuses.items() if status is Status.DEAD}
        # If its bucket was dropped, only the letter remains, and the item was dead before.
        if unclaimed := [item_id for item_id in ids if item_id not in statuses]:
            found |= {*unclaimed} - await tables.existing(place, unclaimed)
    return found


async def redrive_letters(
    tables: QueueTables, settings: Settings, queue: str, *, key: str | None = None, error: str | None = None
) -> int:
    """Do as `redrive`."""
    require_key(key)
    own = settings.workqueue
    clock, ids = DatabaseClock(tables), IdMaker()
    shards, bucket_seconds = await tables.known_queue(queue)
    count = 0
    for letter in await retry(partial(read_letters, tables, queue)):
        if key not in (None, letter.key) or (error or "") not in letter.error:
            continue
        named, made = letter.redriven_as, None
        while True:
            await retry(clock.look)
            if named is not None:
                place = ItemPartition(queue, shard_of(letter.key, named, shards), bucket_of(named, bucket_seconds))
                kept_seconds = bucket_seconds + own.close_after_seconds + own.keep_closed_hours * 3600
                # Its bucket was dropped, perhaps with the item, or the item is there.
                if clock.now() >= place.bucket + kept_seconds * 1000 or await retry(
                    partial(tables.existing, place, [named])
                ):
                    break
                # Later, its bucket may be closed, where no worker looks.
                if clock.now() - time_of(named) <= own.close_after_seconds * 500:
                    limit = letter.time_limit_seconds
                    item = Entry(place, named, letter.key, letter.payload, time_limit_seconds=limit)
                    await _insert(tables, item, own.enqueue_timeout_seconds)
                    break
            made = ids.make(clock.micros())
            await retry(partial(tables.mark_redriven, letter, made, before=named))
            # The first write counts, which may be that of another redrive, or of this one with a lost answer.
            named = await retry(partial(tables.redriven_as, letter))
        count += named == made
    return count


async def _insert(tables: QueueTables, entry: Entry, seconds: float) -> None:
    """Insert an item; give up before its bucket may be closed."""
    try:
        async with asyncio.timeout(seconds):
            await retry(partial(tables.insert_bucket, entry.place))
            await retry(partial(tables.insert_items, [entry]))
    except TimeoutError:
        raise WritetimeError(
            f"queue {entry.place.queue}: the database has not acknowledged a redriven item in {seconds:g} s; run the "
            "redrive again"
        ) from None
