"""Items that sleep and wait for events, on tables in memory and in simulated time.

Oracle: the times at which handlers continued, and the rows that the workers wrote.
"""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from tests.workqueue.memory import MemoryTables
from tests.workqueue.world import QUEUE, ROUND_SECONDS, World, run
from writetime.workqueue.controls import UnknownItem
from writetime.workqueue.enqueue import InvalidItem, TooLarge
from writetime.workqueue.items import Item, ItemPartition


async def nap(item: Item) -> Any:
    """A handler that sleeps or waits for an event, as the payload asks for. It returns the time, or the event."""
    match item.payload:
        case float() | int():
            await item.sleep("nap", item.payload)
            return asyncio.get_running_loop().time()
        case str():
            return await item.wait_event(item.payload, 600)


def test_an_item_that_sleeps_holds_no_thread_and_blocks_its_key() -> None:
    async def work(world: World) -> None:
        now = asyncio.get_running_loop().time
        [slow, after] = await world.enqueue(60, 0, key="k")
        [other] = await world.enqueue(0)
        async with world:
            assert (await world.state(other, 10)).status == "completed"
            await asyncio.sleep(ROUND_SECONDS)
            found = await world.state(slow)
            assert (found.status, found.attempts, (await world.state(after)).status) == ("sleeping", 0, "waiting")
            found = await world.state(slow, 100)
            assert (found.status, found.attempts, 60 <= found.result < 62) == ("completed", 1, True)
            assert (await world.state(after, 10)).result >= found.result
            assert now() < 70
        assert world.outcomes == {"completed": 3}
        assert world.begun.count(60) == 2

    run(work, nap, threads=1)


def test_an_item_sleeps_once_whatever_worker_it_has() -> None:
    async def work(world: World) -> None:
        [item_id] = await world.enqueue(300)
        for _ in range(3):
            async with world:
                await asyncio.sleep(60)
        async with world:
            found = await world.state(item_id, 600)
        assert (found.attempts, 300 <= found.result < 305) == (1, True)
        assert len(world.database.steps) == 1

    run(work, nap)


@pytest.mark.parametrize("before", [True, False])
def test_an_event_is_returned_whether_it_comes_before_or_after_the_handler(before: bool) -> None:
    async def work(world: World) -> None:
        [item_id] = await world.enqueue("paid", key="k")
        if before:
            assert await world.controls.send_event(QUEUE, item_id, "paid", {"by": "ada"})
        async with world:
            await asyncio.sleep(60)
            if not before:
                assert (await world.state(item_id)).status == "sleeping"
                assert await world.controls.send_event(QUEUE, item_id, "other")
                # It wakes the item, which waits on.
                await asyncio.sleep(2 * ROUND_SECONDS)
                assert await world.controls.send_event(QUEUE, item_id, "paid", {"by": "ada"})
                assert not await world.controls.send_event(QUEUE, item_id, "paid", {"by": "bob"})
                assert await world.controls.send_event(QUEUE, item_id, "paid", {"by": "ada"})
            found = await world.state(item_id, ROUND_SECONDS)
            assert (found.status, found.result, found.attempts) == ("completed", {"by": "ada"}, 1)
            assert not await world.controls.send_event(QUEUE, item_id, "late")
        assert [name for _, name, _ in world.database.steps] == ["wait\npaid", "event\npaid"][before:]

    run(work, nap)


def test_an_event_that_comes_while_the_item_falls_asleep_is_not_missed() -> None:
    """It is sent after the handler has looked for it, and workers read it before they write that the item sleeps."""

    class Slow(MemoryTables):
        async def event(self, place: ItemPartition, item_id: UUID, name: str) -> str | None:
            found = await super().event(place, item_id, name)
            if found is None:
                await asyncio.sleep(20)
            return found

    async def work(world: World) -> None:
        [item_id] = await world.enqueue("paid")
        stop = asyncio.Event()
        worker = asyncio.create_task(world.serve("w", stop, Slow(world.database)))
        await asyncio.sleep(5)
        await world.controls.send_event(QUEUE, item_id, "paid", 1)
        found = await world.state(item_id, 60)
        stop.set()
        await worker
        assert (found.status, found.result) == ("completed", 1)

    run(work, nap)


def test_an_event_for_an_item_of_another_worker_is_read_by_the_next_one() -> None:
    async def work(world: World) -> None:
        [item_id] = await world.enqueue("paid")
        async with world:
            await asyncio.sleep(30)
        await world.controls.send_event(QUEUE, item_id, "paid", 1)
        async with world:
            assert (await world.state(item_id, 30)).result == 1

    run(work, nap)


def test_an_event_that_does_not_come_in_time_stays_missed() -> None:
    async def handle(item: Item) -> Any:
        try:
            return await item.wait_event("paid", 30)
        except TimeoutError as e:
            if item.attempt == 1:
                raise ValueError("once more") from None
            return str(e)

    async def work(world: World) -> None:
        [item_id] = await world.enqueue(1)
        async with world:
            await asyncio.sleep(35)
            await world.controls.send_event(QUEUE, item_id, "paid", 1)
            found = await world.state(item_id, 60)
        assert (found.result, found.attempts) == ("the event 'paid' was not sent in time", 2)

    run(work, handle, backoff=20.0)


def test_an_item_that_sleeps_is_cancelled_at_once() -> None:
    async def work(world: World) -> None:
        [item_id] = await world.enqueue(3600)
        async with world:
            await asyncio.sleep(10)
            found = await world.controls.cancel(QUEUE, item_id, wait_seconds=ROUND_SECONDS)
            assert (found.status, world.begun) == ("cancelled", [3600])

    run(work, nap)


def test_what_cannot_be_slept_or_sent_is_refused() -> None:
    async def work(world: World) -> None:
        [item_id, _] = await world.enqueue(-1, 1e9)
        with pytest.raises(InvalidItem, match="the name of a step or event"):
            await world.controls.send_event(QUEUE, item_id, "")
        with pytest.raises(TooLarge):
            await world.controls.send_event(QUEUE, item_id, "a", "x" * 300_000)
        with pytest.raises(UnknownItem):
            await world.controls.send_event(QUEUE, UUID(int=7 << 76), "a")
        async with world:
            found = await world.state(item_id, 60)
        assert (found.status, found.error) == (
            "dead",
            "ValueError: an item sleeps for 0 to 31622400 seconds (366 days)",
        )
        with pytest.raises(RuntimeError, match="without a worker"):
            await Item(QUEUE, item_id, None, None, 1).sleep("a", 1)

    run(work, nap)
