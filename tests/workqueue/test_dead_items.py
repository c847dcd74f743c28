"""Dead letters are redriven once, even by a redrive that is interrupted and continues much later."""

import asyncio
import time
from typing import Any

import pytest
from cassandra import ConsistencyLevel
from cassandra.cluster import ResponseFuture, Session
from cassandra.query import BoundStatement

from tests.workqueue.conftest import with_queue
from tests.workqueue.working import until, until_stored, working
from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.workqueue import Enqueuer, GiveUp, Item, NewItem, Worker, inspect, redrive
from writetime.workqueue.dead_items import dead_letters
from writetime.workqueue.inspect import inspecting
from writetime.workqueue.items import first_id, time_of
from writetime.workqueue.queue_tables import DeadItem, QueueTables

pytestmark = pytest.mark.long


class Killed(Exception):
    """The process is killed."""


def with_dead_items(settings: Settings, jobs: str, count: int, **workqueue: Any) -> Settings:
    """Make dead letters."""
    quick = with_queue(settings, jobs, {"shards": 1}, **workqueue)

    def give_up(item: Item) -> None:
        raise GiveUp("no")

    with Enqueuer(quick) as enqueuer:
        enqueuer.enqueue_many(jobs, [NewItem(n) for n in range(count)])
    assert Worker(quick, {jobs: give_up}).run(until_idle=True) == {"dead": count}
    return quick


def kill_redrive_before(step: str, settings: Settings, jobs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def die(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(QueueTables, step, die)
        with pytest.raises(Killed):
            redrive(settings, jobs)


@pytest.mark.parametrize("step", ["redriven_as", "insert_items"])
def test_a_redrive_that_continues_after_the_bucket_was_closed(
    queue_settings: Settings, jobs: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    short = {"bucket_seconds": 1, "close_after_seconds": 3.0, "enqueue_timeout_seconds": 1.5}
    settings = with_dead_items(queue_settings, jobs, 2, **short)
    kill_redrive_before(step, settings, jobs, monkeypatch)
    [named, other] = dead_letters(settings, jobs)
    assert named.redriven_as is not None
    assert other.redriven_as is None
    closed_at = time_of(named.redriven_as) + 4000
    done: list[Any] = []
    with working(settings, {jobs: lambda item: done.append(item.payload)}), inspecting(settings) as audit:
        until_stored(lambda: None not in audit.buckets(jobs).values())
        # The bucket of the new name does not exist, and the others may have been closed before the name was made.
        until(lambda: time.time() * 1000 > closed_at)
        assert redrive(settings, jobs) == 2
        until(lambda: len(done) == 2)
        assert redrive(settings, jobs) == 0
    assert sorted(done) == [0, 1]
    assert named.redriven_as not in {letter.redriven_as for letter in dead_letters(settings, jobs)}


def test_a_redrive_that_continues_soon_keeps_the_names(
    queue_settings: Settings, jobs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = with_dead_items(queue_settings, jobs, 1)
    kill_redrive_before("insert_items", settings, jobs, monkeypatch)
    [named] = dead_letters(settings, jobs)
    assert redrive(settings, jobs) == 0
    assert dead_letters(settings, jobs) == [named]
    assert Worker(settings, {jobs: lambda item: None}).run(until_idle=True) == {"completed": 1}


def test_a_redriven_item_keeps_its_time_limit(queue_settings: Settings, jobs: str) -> None:
    def give_up(item: Item) -> None:
        raise GiveUp("no")

    with Enqueuer(queue_settings) as enqueuer:
        enqueuer.enqueue(jobs, 1, time_limit_seconds=2.5)
        enqueuer.enqueue(jobs, 2)
    assert Worker(queue_settings, {jobs: give_up}).run(until_idle=True) == {"dead": 2}
    assert redrive(queue_settings, jobs) == 2
    query = f"SELECT payload, time_limit_seconds FROM {queue_settings.cassandra.keyspace}.queue_items "
    with connect(queue_settings) as session:
        rows = session.execute(f"{query} WHERE queue = %s ALLOW FILTERING", [jobs])
        assert sorted(rows, key=str) == [("1", 2.5), ("1", 2.5), ("2", None), ("2", None)]


def statements_of_inspect(settings: Settings, jobs: str) -> list[BoundStatement]:
    """Return the statements that `inspect` runs."""
    ran: list[BoundStatement] = []
    original = Session.execute_async

    def execute(self: Session, query: Any, *rest: Any, **named: Any) -> ResponseFuture:
        if isinstance(query, BoundStatement):
            ran.append(query)
        return original(self, query, *rest, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "execute_async", execute)
        inspect(settings, jobs)
    return ran


def test_the_statements_of_inspect_do_not_grow_with_dead_letters(queue_settings: Settings, jobs: str) -> None:
    # All items are in one bucket.
    settings = with_dead_items(queue_settings, jobs, 3, bucket_seconds=10**9)
    few = statements_of_inspect(settings, jobs)
    assert inspect(settings, jobs).dead_letters == 3
    with_dead_items(queue_settings, jobs, 20, bucket_seconds=10**9)
    assert len(statements_of_inspect(settings, jobs)) == len(few)
    assert redrive(settings, jobs) == 23
    assert Worker(settings, {jobs: lambda item: None}).run(until_idle=True) == {"completed": 23}
    ran = statements_of_inspect(settings, jobs)
    # The states of letters that were redriven are not read.
    assert len(ran) == len(few) - 1
    texts = [own.query_string for statement in ran if (own := statement.prepared_statement) is not None]
    assert not any("payload" in text for text in texts)
    serial = [text for statement, text in zip(ran, texts, strict=True) if _is_serial(statement.consistency_level)]
    assert len(serial) == 2
    assert not any("item_id" in text for text in serial)
    state = inspect(settings, jobs)
    assert (state.dead_letters, state.redriven, state.depth) == (23, 23, 0)


def _is_serial(level: int | None) -> bool:
    return level in (ConsistencyLevel.SERIAL, ConsistencyLevel.LOCAL_SERIAL)


def test_a_letter_counts_once_its_item_is_dead(queue_settings: Settings, jobs: str) -> None:
    """A worker lost its shard after it wrote the letter, and the next one completes the item."""
    # Several statements ask for the items, as ScyllaDB takes no more than 100 in one.
    settings = with_dead_items(queue_settings, jobs, 105)
    with Enqueuer(settings) as enqueuer:
        ids = [enqueuer.enqueue(jobs, n) for n in range(2)]

    async def write_letters(session: Session) -> None:
        tables = QueueTables(session, settings)
        for item_id in [*ids, first_id(1000)]:
            await tables.insert_dead(DeadItem(jobs, 0, item_id, None, "1", 1, "no", time_of(item_id)))

    with connect(settings) as session:
        asyncio.run(write_letters(session))
    # The bucket of the last one was dropped long ago.
    assert inspect(settings, jobs).dead_letters == len(dead_letters(settings, jobs)) == 106
    assert not {letter.item_id for letter in dead_letters(settings, jobs)} & {*ids}
    assert Worker(settings, {jobs: lambda item: None}).run(until_idle=True) == {"completed": 2}
    assert inspect(settings, jobs).dead_letters == 106
    assert redrive(settings, jobs) == 106
    with inspecting(settings) as audit:
        assert audit.account(jobs).dead_without_letter == 0
