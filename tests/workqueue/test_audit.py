"""The account of a queue whose items die, and whose buckets are dropped, while it is read."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.workqueue.conftest import with_queue
from writetime.core.config import Settings
from writetime.workqueue import Enqueuer, GiveUp, Item, NewItem, Worker
from writetime.workqueue.inspect import Account, Brought, InLake, inspecting
from writetime.workqueue.items import ItemPartition
from writetime.workqueue.queue_tables import QueueTables

pytestmark = pytest.mark.long

_READS = ("letters", "buckets", "item_ids", "states")


def after(name: str, act: Callable[[QueueTables], Coroutine[Any, Any, None]], patch: pytest.MonkeyPatch) -> None:
    """Do something once, after the first answer to a statement of the account."""
    original, done = getattr(QueueTables, name), False

    async def read(tables: QueueTables, *arguments: Any) -> Any:
        nonlocal done
        answer = await original(tables, *arguments)
        if not done:
            done = True
            await act(tables)
        return answer

    patch.setattr(QueueTables, name, read)


def closed_bucket(settings: Settings, jobs: str) -> ItemPartition:
    """Return the closed bucket of a queue with three completed items."""
    own = with_queue(settings, jobs, bucket_seconds=10**9)
    with Enqueuer(own) as enqueuer:
        enqueuer.enqueue_many(jobs, [NewItem(n, key="k") for n in range(3)])
    assert Worker(own, {jobs: lambda item: None}).run(until_idle=True) == {"completed": 3}
    with inspecting(settings) as audit:
        [place] = audit.buckets(jobs)
        asyncio.run(audit._tables.mark_bucket(place, audit.now(), before=None))
    return place


async def drop(tables: QueueTables, place: ItemPartition, *, whole: bool) -> None:
    """Drop a bucket, or begin to: items and states go first."""
    until = round(time.time() * 1000) + 60_000
    cql = tables._cql
    for statement in [cql.drop_items, cql.drop_state] + [cql.drop_buckets] * whole:
        await tables._run(statement, (until * 1000, *place))


@pytest.mark.parametrize("read", _READS)
def test_an_item_that_dies_meanwhile_has_its_letter(
    queue_settings: Settings, jobs: str, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    def give_up(item: Item) -> None:
        raise GiveUp("no")

    async def die(_: QueueTables) -> None:
        assert await asyncio.to_thread(Worker(queue_settings, {jobs: give_up}).run, until_idle=True) == {"dead": 1}

    with Enqueuer(queue_settings) as enqueuer:
        enqueuer.enqueue(jobs, 1)
    with inspecting(queue_settings) as audit:
        with monkeypatch.context() as patch:
            after(read, die, patch)
            account = audit.account(jobs)
        assert (account.items, account.lost, account.dead_without_letter) == (1, 0, 0)
        assert audit.account(jobs) == Account(1, 0, 1, 0, 0, 0)


@pytest.mark.parametrize("whole", [True, False], ids=["dropped", "partly dropped"])
@pytest.mark.parametrize("read", _READS[1:])
def test_a_bucket_that_is_dropped_meanwhile_lacks_nothing(
    queue_settings: Settings, jobs: str, monkeypatch: pytest.MonkeyPatch, read: str, *, whole: bool
) -> None:
    place = closed_bucket(queue_settings, jobs)
    with inspecting(queue_settings) as audit:
        assert audit.account(jobs) == Account(3, 3, 0, 0, 0, 0)
        after(read, lambda tables: drop(tables, place, whole=whole), monkeypatch)
        found = audit.account(jobs)
        assert (found.lost, found.dead_without_letter) == (0, 0)


@pytest.mark.parametrize("whole", [True, False], ids=["dropped", "partly dropped"])
@pytest.mark.parametrize("read", ["buckets", "states"])
def test_a_bucket_that_is_dropped_meanwhile_does_not_differ_from_the_lake(
    queue_settings: Settings, jobs: str, monkeypatch: pytest.MonkeyPatch, read: str, *, whole: bool
) -> None:
    place = closed_bucket(queue_settings, jobs)
    with inspecting(queue_settings) as audit:
        have = {place: InLake(3, audit.now())}
        assert audit.compare(jobs, have) == Brought(3, 3, 0, [])
        assert audit.compare(jobs, {place: InLake(4, 0)}).differing == [place]
        after(read, lambda tables: drop(tables, place, whole=whole), monkeypatch)
        assert audit.compare(jobs, have).differing == []
        assert audit.compare(jobs, have) == Brought(0, 0, 0, [])
