"""Pauses, cancels and the states of items, on tables in memory and in simulated time.

Oracle: the times at which handlers began, and the rows that the workers wrote.
"""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from tests.workqueue.world import QUEUE, ROUND_SECONDS, World, run
from writetime.workqueue.controls import UnknownItem
from writetime.workqueue.enqueue import InvalidItem
from writetime.workqueue.items import Item, first_id


async def nothing(item: Item) -> Any:
    return item.payload


async def slow(item: Item) -> None:
    """Run for a minute, and end when the item is cancelled."""
    await asyncio.sleep(60)


def test_a_paused_queue_starts_nothing_until_it_is_resumed() -> None:
    async def work(world: World) -> None:
        await world.enqueue(1)
        async with world:
            await asyncio.sleep(ROUND_SECONDS)
            assert await world.controls.pause(QUEUE)
            assert not await world.controls.pause(QUEUE)
            await asyncio.sleep(ROUND_SECONDS)
            [waiting] = await world.enqueue(2)
            await asyncio.sleep(60)
            assert (world.begun, (await world.state(waiting)).status) == ([1], "waiting")
            assert await world.controls.resume(QUEUE)
            assert not await world.controls.resume(QUEUE)
            assert (await world.state(waiting, 10)).result == 2

    run(work, nothing)


def test_a_paused_key_stops_no_other_one_also_not_for_a_new_worker() -> None:
    async def work(world: World) -> None:
        await world.controls.pause(QUEUE, "a")
        await world.enqueue(1, key="a")
        await world.enqueue(2, key="b")
        await world.enqueue(3)
        for _ in range(2):
            async with world:
                await asyncio.sleep(30)
            assert sorted(world.begun) == [2, 3]
        async with world:
            await world.controls.resume(QUEUE, "a")
            await asyncio.sleep(ROUND_SECONDS)
        assert sorted(world.begun) == [1, 2, 3]

    run(work, nothing)


def test_an_empty_key_is_not_the_whole_queue() -> None:
    """Such as that of a variable that is not set, in a script."""

    async def work(world: World) -> None:
        [item_id] = await world.enqueue(1)
        for call in (world.controls.pause, world.controls.resume):
            with pytest.raises(InvalidItem, match="a key must have 1 to 1024 bytes"):
                await call(QUEUE, "")
        with pytest.raises(InvalidItem):
            await world.controls.cancel_all(QUEUE, key="")
        async with world:
            assert (await world.state(item_id, 10)).result == 1

    run(work, nothing)


def test_claimed_items_that_have_not_begun_are_given_back_when_the_queue_is_paused() -> None:
    """A worker with 20 threads claims two more items than it has threads."""

    async def work(world: World) -> None:
        *_, cancelled, last = await world.enqueue(*range(22))
        async with world:
            await asyncio.sleep(ROUND_SECONDS)
            assert (await world.state(last)).status == "processing"
            await world.controls.pause(QUEUE)
            assert (await world.controls.cancel(QUEUE, cancelled, wait_seconds=120)).status == "cancelled"
            await asyncio.sleep(60)
            found = await world.state(last)
            assert (world.begun, found.status, found.attempts) == ([*range(20)], "retry", 0)
            await world.controls.resume(QUEUE)
            found = await world.state(last, 120)
            assert (world.begun, found.status, found.attempts) == ([*range(20), 21], "completed", 1)

    run(work, slow, threads=20)


@pytest.mark.parametrize("is_running", [False, True], ids=["before", "while"])
def test_a_waiting_item_that_is_cancelled_never_runs(is_running: bool) -> None:
    """It is cancelled before there is a worker, or while its worker waits for its time or for the item before it."""

    async def work(world: World) -> None:
        first, second, third = await world.enqueue(1, 2, 3, key="a")
        [later] = await world.enqueue(4, delay_seconds=30)
        if not is_running:
            assert (await world.controls.cancel(QUEUE, second, wait_seconds=5)).status == "cancelling"
            await world.controls.cancel(QUEUE, later, key=None)
        async with world:
            await asyncio.sleep(ROUND_SECONDS)
            for item_id in (second, later):
                found = await world.controls.cancel(QUEUE, item_id, wait_seconds=ROUND_SECONDS)
                assert found.status == ("cancelling" if item_id == later else "cancelled")
            assert (await world.state(first)).status == "processing"
            assert (await world.state(third, 200)).status == "completed"
            assert (await world.state(later, 60)).status == "cancelled"
            # They were not even claimed.
            assert [(await world.state(item_id)).attempts for item_id in (second, later)] == [0, 0]
        assert world.begun == [1, 3]
        assert world.database.cancelled == [second, later]

    run(work, slow)


def test_a_running_handler_is_cancelled_and_the_next_item_of_its_key_runs() -> None:
    seen: list[Any] = []

    async def handle(item: Item) -> None:
        if item.payload == 1:
            seen.append((item.held, item.cancelled))
            try:
                await asyncio.sleep(600)
            finally:
                seen.append((item.held, item.cancelled))

    async def work(world: World) -> None:
        first, second = await world.enqueue(1, 2, key="a")
        async with world:
            await asyncio.sleep(ROUND_SECONDS)
            found = await world.controls.cancel(QUEUE, first, wait_seconds=ROUND_SECONDS)
            assert (found.status, found.attempts) == ("cancelled", 1)
            assert (await world.state(second, 10)).status == "completed"
        assert world.outcomes == {"cancelled": 1, "completed": 1}
        assert (world.begun, seen) == ([1, 2], [(True, False), (False, True)])

    run(work, handle)


def test_a_handler_that_ends_with_a_result_although_it_is_cancelled_has_completed_its_item() -> None:
    async def handle(item: Item) -> str:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(600)
        return "done"

    async def work(world: World) -> None:
        [item_id] = await world.enqueue(1)
        async with world:
            await asyncio.sleep(ROUND_SECONDS)
            found = await world.controls.cancel(QUEUE, item_id, wait_seconds=ROUND_SECONDS)
            assert (found.status, found.result) == ("completed", "done")
            assert await world.controls.cancel(QUEUE, item_id) == found
        assert world.database.cancelled == []

    run(work, handle)


def test_a_handler_that_does_not_end_is_abandoned_and_its_late_result_discarded() -> None:
    async def handle(item: Item) -> str:
        for _ in range(20):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(1)
        return "late"

    async def work(world: World) -> None:
        first, second = await world.enqueue(1, 2, key="a")
        async with world:
            await asyncio.sleep(ROUND_SECONDS)
            found = await world.controls.cancel(QUEUE, first, wait_seconds=10)
            assert found.status == "cancelled"
            assert found.error == "the handler did not end within 5 s after its item was cancelled"
            await asyncio.sleep(60)
            assert (await world.state(first)).status == "cancelled"
            assert (await world.state(second)).status == "completed"

    run(work, handle)


def test_a_failed_item_that_is_cancelled_is_not_tried_again() -> None:
    async def handle(item: Item) -> None:
        raise ValueError("always")

    async def work(world: World) -> None:
        [item_id] = await world.enqueue(1)
        async with world:
            await asyncio.sleep(ROUND_SECONDS)
            found = await world.state(item_id)
            assert (found.status, found.error) == ("retry", "ValueError: always")
            assert (await world.controls.cancel(QUEUE, item_id, wait_seconds=ROUND_SECONDS)).status == "cancelled"
            await asyncio.sleep(100)
        assert world.begun == [1]

    run(work, handle, backoff=20.0)


def test_all_items_that_fit_are_cancelled() -> None:
    async def work(world: World) -> None:
        [running] = await world.enqueue(0)
        async with world:
            await asyncio.sleep(ROUND_SECONDS)
            await world.controls.pause(QUEUE)
            await asyncio.sleep(ROUND_SECONDS)
            for key in ("a", "b"):
                await world.enqueue(1, 2, key=key)
            assert await world.controls.cancel_all(QUEUE, key="c") == 0
            assert await world.controls.cancel_all(QUEUE, key="a") == 2
            assert await world.controls.cancel_all(QUEUE, older_than_seconds=1.0) == 1
            await asyncio.sleep(ROUND_SECONDS)
            assert len(world.database.cancelled) == 3
            assert running in world.database.cancelled
            await world.controls.resume(QUEUE)
            await asyncio.sleep(200)
            assert (world.begun, len(world.database.completions)) == ([0, 1, 2], 2)
            await world.enqueue(3, 4)
            assert await world.controls.cancel_all(QUEUE) == 2

    run(work, slow)


def test_the_state_of_an_item_is_awaited() -> None:
    async def handle(item: Item) -> Any:
        await asyncio.sleep(5)
        if item.payload == "bad":
            raise ValueError("bad")
        return {"of": item.payload}

    async def work(world: World) -> None:
        now = asyncio.get_running_loop().time
        good, bad = await world.enqueue("good", "bad")
        assert (await world.state(good, 2.0)).status == "waiting"
        async with world:
            began = now()
            found = await world.state(good, 60)
            assert (found.status, found.result, found.error, found.attempts) == ("completed", {"of": "good"}, None, 1)
            assert now() - began < 15
            found = await world.state(bad, 600)
            assert (found.status, found.error, found.attempts) == ("dead", "ValueError: bad", 3)
        with pytest.raises(UnknownItem, match="has no item"):
            await world.state(first_id(1_700_000_000_000))

    run(work, handle)
