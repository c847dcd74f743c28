"""Recurring items: their slots, and one item per slot on tables in memory, in simulated time.

Oracle: each minute of the local clock compared with the fields of the expression, by the rules of Debian's cron(8); and
the items that the tables have.
"""

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workqueue.memory import MemoryTables
from tests.workqueue.world import QUEUE, ROUND_SECONDS, World, run
from writetime.workqueue.enqueue import InvalidItem, TooLarge
from writetime.workqueue.items import Entry, Item
from writetime.workqueue.queue_tables import ScheduleRow
from writetime.workqueue.recurrence import InvalidSchedule, Schedule, Slots

MINUTE = timedelta(minutes=1)
# Around a change of the clock: forward, back, back at midnight, and none.
CHANGES = [
    ("Europe/Berlin", datetime(2026, 3, 29, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 10, 25, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 3, 8, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 11, 1, tzinfo=UTC)),
    ("America/Havana", datetime(2026, 11, 1, tzinfo=UTC)),
    ("Asia/Kolkata", datetime(2026, 3, 29, tzinfo=UTC)),
]


def expected(minutes: set[int], hours: set[int], zone: str, start: datetime, *, fixed: bool) -> Iterator[int]:
    """Yield the slots of two days, minute by minute."""
    before = start.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    for n in range(1, 2 * 1440):
        local = (start + n * MINUTE).astimezone(ZoneInfo(zone))
        naive = local.replace(tzinfo=None, fold=0)
        # Those that the clock skips, and this one.
        candidates = [naive]
        if fixed and naive - before < timedelta(hours=3):
            candidates += [before + k * MINUTE for k in range(1, (naive - before) // MINUTE)]
        matches = any(c.minute in minutes and c.hour in hours for c in candidates)
        if matches and not (fixed and local.fold):
            yield round(local.timestamp() * 1000)
        before = naive


@given(
    st.sampled_from(CHANGES),
    st.sets(st.integers(0, 59), min_size=1, max_size=3),
    st.one_of(st.none(), st.sets(st.integers(0, 4), min_size=1, max_size=4)),
    st.integers(0, 1439),
)
def test_slots_are_those_of_cron(
    change: tuple[str, datetime], minutes: set[int], hours: set[int] | None, offset: int
) -> None:
    """Wherever the search begins."""
    zone, day = change
    start = day - timedelta(days=1) + offset * MINUTE
    slots = Slots(f"{','.join(map(str, minutes))} {'*' if hours is None else ','.join(map(str, hours))} * * *", zone)
    wanted = list(expected(minutes, hours or set(range(24)), zone, start, fixed=hours is not None))
    found, at = [], round(start.timestamp() * 1000)
    end = at + 2 * 86_400_000 - 60_000
    while (slot := slots.next(at)) is not None and slot < end:
        found.append(slot)
        assert slots.newest(slot) == slot
        assert slots.newest((slots.next(slot) or 0) - 1) == slot
        at = slot
    assert found == [slot for slot in wanted if slot < end]


def test_the_slots_of_hours_that_are_skipped_and_repeated() -> None:
    """The examples of the document."""

    def of(cron: str, *day: int) -> list[str]:
        slots, at = Slots(cron, "Europe/Berlin"), round(datetime(*day, tzinfo=UTC).timestamp() * 1000)
        found = []
        while (slot := slots.next(at)) and slot - day_of(*day) < 4 * 3_600_000:
            found.append(slots.text(slot)[11:22])
            at = slot
        return found

    def day_of(*day: int) -> int:
        return round(datetime(*day, tzinfo=UTC).timestamp() * 1000)

    assert of("30 2 * * *", 2026, 3, 29) == ["03:00:00+02"]
    assert of("30 2 * * *", 2026, 10, 25) == ["02:30:00+02"]
    assert of("30 * * * *", 2026, 10, 25) == [f"0{h}:30:00+0{o}" for h, o in ((2, 2), (2, 1), (3, 1), (4, 1))]
    assert of("30 * * * *", 2026, 3, 29) == [f"0{h}:30:00+0{o}" for h, o in ((1, 1), (3, 2), (4, 2), (5, 2))]


def test_old_and_impossible_slots() -> None:
    leap = Slots("0 0 29 2 *", "UTC")
    slot = round(datetime(2028, 2, 29, tzinfo=UTC).timestamp() * 1000)
    assert leap.next(slot - 1) == leap.newest(slot) == leap.newest(slot + 100 * 86_400_000) == slot
    assert leap.newest(slot + 300 * 86_400_000) is None
    every_second = Slots("* * * * * *", "Europe/Berlin")
    assert every_second.newest(slot + 999) == slot == every_second.next(slot - 1)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"cron": "* * * *"}, "the cron expression"),
        ({"cron": "61 * * * *"}, "the cron expression"),
        ({"cron": "0 0 30 2 *"}, "the cron expression"),
        ({"cron": "* * */20 * 1L"}, "has no time"),
        ({"cron": "1/2/3 x * * *"}, "the cron expression"),
        ({"zone": "Europe/Atlantis"}, "the time zone"),
        ({"zone": "../etc/passwd"}, "the time zone"),
        ({"zone": ""}, "the time zone"),
        ({"name": ""}, "name must have"),
        ({"name": "a\nb"}, "name must have"),
        ({"payload": {"slot": 1}}, "the payload of a schedule"),
        ({"payload": [1]}, "the payload of a schedule"),
        ({"payload": {"a": float("nan")}}, "cannot be JSON"),
        ({"key": ""}, "a key must have"),
        ({"time_limit_seconds": 0.0}, "a time limit must"),
    ],
)
def test_a_wrong_schedule_is_refused(wrong: dict[str, Any], error: str) -> None:
    async def work(world: World) -> None:
        with pytest.raises(InvalidItem, match=error):
            await world.controls.schedule(QUEUE, Schedule(**{"name": "a", "cron": "* * * * *", **wrong}))
        with pytest.raises(TooLarge):
            await world.controls.schedule(QUEUE, Schedule("a", "* * * * *", {"a": "x" * 300_000}))
        assert await world.controls.schedules(QUEUE) == []

    run(work, nothing)
    assert issubclass(InvalidSchedule, InvalidItem)


async def nothing(item: Item) -> Any:
    return item.payload


def slots_of(world: World) -> list[str]:
    """The slots of all items, as minute and second, in the order of the items."""
    entries = sorted((i, e) for rows in world.database.items.values() for i, e in rows.items())
    return [json.loads(entry.payload)["slot"][14:19] for _, entry in entries]


# The database's clock begins at 22:13:20.
def test_each_slot_has_one_item_although_workers_come_and_go() -> None:
    async def work(world: World) -> None:
        assert await world.controls.schedule(QUEUE, Schedule("a", "* * * * *", {"n": 1}, key="k"))
        assert not await world.controls.schedule(QUEUE, Schedule("a", "* * * * *", {"n": 1}, key="k"))
        [state] = await world.controls.schedules(QUEUE)
        assert (state.schedule.payload, state.next_slot) == ({"n": 1}, "2023-11-14T22:14:00+00:00")
        for _ in range(4):
            async with world:
                await asyncio.sleep(90)
        assert slots_of(world) == [f"{m}:00" for m in range(14, 20)]
        assert world.begun == [{"n": 1, "slot": f"2023-11-14T22:{m}:00+00:00"} for m in range(14, 20)]

    run(work, nothing, workers=3)


def test_of_missed_slots_only_the_newest_has_an_item() -> None:
    async def work(world: World) -> None:
        await world.controls.schedule(QUEUE, Schedule("a", "* * * * *"))
        await asyncio.sleep(600)
        async with world:
            await asyncio.sleep(60)
            assert slots_of(world) == ["23:00", "24:00"]
            await world.controls.pause(QUEUE)
            await asyncio.sleep(600)
            await world.controls.resume(QUEUE)
            await asyncio.sleep(ROUND_SECONDS)
        assert slots_of(world) == ["23:00", "24:00", "34:00"]

    run(work, nothing)


def test_a_paused_key_misses_its_slots_and_others_do_not() -> None:
    async def work(world: World) -> None:
        await world.controls.pause(QUEUE, "k")
        await world.controls.schedule(QUEUE, Schedule("a", "* * * * *", key="k"))
        await world.controls.schedule(QUEUE, Schedule("b", "30 * * * * *"))
        async with world:
            await asyncio.sleep(120)
        assert slots_of(world) == ["13:30", "14:30"]

    run(work, nothing)


def test_a_schedule_is_replaced_and_deleted() -> None:
    async def work(world: World) -> None:
        async with world:
            await world.controls.schedule(QUEUE, Schedule("a", "* * * * *", key="k"))
            await asyncio.sleep(60)
            assert await world.controls.schedule(QUEUE, Schedule("a", "30 * * * * *"))
            await asyncio.sleep(60)
            assert await world.controls.unschedule(QUEUE, "a")
            assert not await world.controls.unschedule(QUEUE, "a")
            await asyncio.sleep(120)
        assert slots_of(world) == ["14:00", "14:30"]
        assert await world.controls.schedules(QUEUE) == []

    run(work, nothing)


class Ending(MemoryTables):
    """The worker ends after it has the name of a slot's item, before it inserts the item."""

    async def insert_new(self, entries: Any) -> list[Entry]:
        return await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("pause", [0.0, 700.0], ids=["soon", "after its bucket may be closed"])
def test_the_item_of_a_worker_that_was_killed_is_inserted_by_another_one(pause: float) -> None:
    async def work(world: World) -> None:
        await world.controls.schedule(QUEUE, Schedule("a", "15 * * * *"))
        killed = asyncio.create_task(world.serve("killed", asyncio.Event(), Ending(world.database)))
        await asyncio.sleep(105)
        killed.cancel()
        assert (slots_of(world), [*world.database.names]) == ([], ["a\n1700000100000"])
        await asyncio.sleep(pause)
        async with world:
            await asyncio.sleep(120)
        assert slots_of(world) == ["15:00"]
        assert world.begun == [{"slot": "2023-11-14T22:15:00+00:00"}]

    run(work, nothing)


def test_a_worker_ends_when_idle_after_it_has_made_up_for_a_slot() -> None:
    async def work(world: World) -> None:
        await world.controls.schedule(QUEUE, Schedule("a", "*/5 * * * *"))
        for _ in range(2):
            await asyncio.sleep(600)
            await world.serve("w", asyncio.Event(), until_idle=True)
        assert slots_of(world) == ["20:00", "30:00"]
        assert len(world.begun) == 2

    run(work, nothing)


def test_a_schedule_that_cannot_be_read_stops_no_other_one() -> None:
    async def work(world: World) -> None:
        for name, row in {
            "a": ScheduleRow("a", "* * * * *", "Europe/Atlantis", None, "{}", None),
            "b": ScheduleRow("b", "* * * * *", "UTC", None, "[1]", None),
            "c": ScheduleRow("c", "* * * * *", "UTC", None, "{}", None),
        }.items():
            world.database.schedules[name] = row
        await world.controls.schedule(QUEUE, Schedule("d", "30 * * * * *"))
        async with world:
            await asyncio.sleep(60)
        assert slots_of(world) == ["13:00", "13:30", "14:00"]
        assert {place for _, place, _, _ in world.database.faults} == {"schedule a", "schedule b"}

    run(work, nothing)
