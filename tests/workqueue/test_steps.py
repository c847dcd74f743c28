"""Steps of handlers, on tables in memory and in simulated time.

Oracle: the runs of the steps, and the steps that the tables have.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest

from tests.workqueue.memory import MemoryTables
from tests.workqueue.world import QUEUE, World, run
from writetime.workqueue import StepRefused
from writetime.workqueue.items import Item, ItemPartition
from writetime.workqueue.queue_tables import ItemUpdate


class Card:
    """What a step charges. It counts, and may wait."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.charges = 0
        self._seconds = seconds

    async def charge(self) -> dict[str, Any]:
        self.charges += 1
        charge = self.charges
        await asyncio.sleep(self._seconds)
        return {"charge": charge}


def test_a_finished_step_is_not_run_again_after_a_failure() -> None:
    card = Card()

    async def handle(item: Item) -> Any:
        assert await item.step("nothing", lambda: None) is None
        charged = await item.step("charge", card.charge)
        if item.attempt == 1:
            raise ValueError("the network")
        return [charged, await item.step("tuple", lambda: (1, 2)), await item.step("charge", card.charge)]

    async def work(world: World) -> None:
        [item_id] = await world.enqueue(1)
        async with world:
            found = await world.state(item_id, 60)
        assert (found.status, found.attempts) == ("completed", 2)
        assert found.result == [{"charge": 1}, [1, 2], {"charge": 1}]
        steps = [(item_id, "nothing", "null"), (item_id, "charge", '{"charge":1}'), (item_id, "tuple", "[1,2]")]
        assert (card.charges, world.database.steps) == (1, steps)

    run(work, handle)


def test_a_step_that_fails_is_run_again() -> None:
    card = Card()

    async def fail() -> None:
        await card.charge()
        raise ValueError("the network")

    async def handle(item: Item) -> Any:
        return await item.step("charge", fail if item.attempt == 1 else card.charge)

    async def work(world: World) -> None:
        [item_id] = await world.enqueue(1)
        async with world:
            assert (await world.state(item_id, 60)).result == {"charge": 2}

    run(work, handle)


def test_a_finished_step_survives_its_worker() -> None:
    card, killed = Card(), asyncio.Event()

    async def handle(item: Item) -> Any:
        charged = await item.step("charge", card.charge)
        if not killed.is_set():
            killed.set()
            await asyncio.sleep(600)
        return charged

    async def work(world: World) -> None:
        [item_id] = await world.enqueue(1)
        first = asyncio.create_task(world.serve("killed", asyncio.Event()))
        await killed.wait()
        first.cancel()
        async with world:
            found = await world.state(item_id, 120)
        assert (found.result, found.attempts, card.charges) == ({"charge": 1}, 2, 1)

    run(work, handle)


def test_a_worker_that_has_lost_its_shard_records_no_step() -> None:
    """The worker is paused for longer than its lease while a step runs."""
    card = Card(5.0)

    async def handle(item: Item) -> Any:
        return await item.step("charge", card.charge)

    async def work(world: World) -> None:
        [item_id] = await world.enqueue(1)
        tables, stop = MemoryTables(world.database), asyncio.Event()
        zombie = asyncio.create_task(world.serve("zombie", stop, tables))
        while not card.charges:
            await asyncio.sleep(0.1)
        tables.paused_until = asyncio.get_running_loop().time() + 60
        async with world:
            found = await world.state(item_id, 120)
            await asyncio.sleep(120)
        stop.set()
        await zombie
        assert (found.result, card.charges) == ({"charge": 2}, 2)
        assert world.database.steps == [(item_id, "charge", '{"charge":2}')]

    run(work, handle)


def test_an_attempt_that_was_to_end_records_no_step() -> None:
    refused: list[str] = []
    card = Card()

    async def handle(item: Item) -> Any:
        if item.attempt == 1:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(600)
            with pytest.raises(StepRefused) as error:
                await item.step("charge", card.charge)
            refused.append(str(error.value))
        return await item.step("charge", card.charge)

    async def work(world: World) -> None:
        [item_id] = await world.enqueue(1, time_limit_seconds=2.0)
        async with world:
            assert (await world.state(item_id, 60)).result == {"charge": 1}
        assert refused == ["the step 'charge' is refused: its attempt no longer owns the item"]

    run(work, handle)


def test_a_step_that_is_being_recorded_at_the_time_limit_is_known_to_the_next_attempt() -> None:
    """Its handler is cancelled, and the write goes on."""
    card = Card()

    class Slow(MemoryTables):
        async def write(
            self, place: ItemPartition, epoch: int, op: int, floor: UUID | None, changes: Sequence[ItemUpdate]
        ) -> bool:
            if any(change.step is not None for change in changes):
                await asyncio.sleep(3)
            return await super().write(place, epoch, op, floor, changes)

    async def handle(item: Item) -> Any:
        return await item.step("charge", card.charge)

    async def work(world: World) -> None:
        [item_id] = await world.enqueue(1, time_limit_seconds=1.0)
        stop = asyncio.Event()
        worker = asyncio.create_task(world.serve("w", stop, Slow(world.database)))
        found = await world.state(item_id, 60)
        stop.set()
        await worker
        assert (found.result, found.attempts, card.charges) == ({"charge": 1}, 2, 1)

    run(work, handle)


@pytest.mark.parametrize(
    ("name", "result", "error"),
    [
        ("a", {1, 2}, "a step's result cannot be JSON"),
        ("a", float("nan"), "a step's result cannot be JSON"),
        ("a", "\ud800", "surrogates not allowed"),
        ("a", "x" * 5_000_000, "a step's result has 5000002 bytes of JSON"),
        ("", 1, "the name of a step or event must be"),
        ("a\nb", 1, "the name of a step or event must be"),
        ("x" * 1025, 1, "the name of a step or event must be"),
    ],
)
def test_a_step_that_cannot_be_recorded_fails(name: str, result: Any, error: str) -> None:
    async def handle(item: Item) -> Any:
        return await item.step(name, lambda: result)

    async def work(world: World) -> None:
        [item_id] = await world.enqueue(1)
        async with world:
            found = await world.state(item_id, 60)
        assert (found.status, world.database.steps) == ("dead", [])
        assert error in (found.error or "")

    run(work, handle)


def test_an_item_without_a_worker_runs_each_step() -> None:
    card = Card()

    async def handle(item: Item) -> Any:
        return [await item.step("charge", card.charge), await item.step("one", lambda: 1)]

    assert asyncio.run(handle(Item(QUEUE, UUID(int=1), None, None, 1))) == [{"charge": 1}, 1]
