"""Recurring items: schedules, and their slots, which are the times of a cron expression in a time zone.

The item of a slot is a unique item, whose name has the schedule and the slot. So each slot has one item, whoever
enqueues it, and however often. The owner of a shard, which the schedule's name determines, does this for all workers,
by the database's clock. At a fault, a second worker may do the same, for a while.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from writetime.clients.prepared_statements import UnknownWrite
from writetime.core.json_texts import from_json, to_json
from writetime.workqueue.context import QueueContext, wait_for_event
from writetime.workqueue.enqueue import AsyncEnqueuer, EnqueueUnknown, InvalidItem, NewItem, payload_of
from writetime.workqueue.items import LAST_ID, shard_of
from writetime.workqueue.queue_tables import Pauses, ScheduleRow

log = logging.getLogger(__name__)

MAX_NAME_CHARACTERS = 200
# The field of a payload that has the time of its slot.
SLOT = "slot"
# A slot that was missed for longer has no item. Names of items are unique for a year at most.
_MOST_MISSED = timedelta(days=180)
# How long the name of a slot's item is kept after the next slot. Then no worker is still at the old slot.
_KEPT_SECONDS = 86_400.0
# How far the searches for the newest slot go back, until one finds a slot.
_BACK = (timedelta(minutes=2), timedelta(hours=2), timedelta(days=2), timedelta(days=32), _MOST_MISSED)
# Clocks change by less than this. Within a change, cronsim may begin with a slot before its start, or miss one.
_CLOCK_CHANGE = timedelta(hours=3)
_NEVER = 2**63 - 1
_LEAST_SECONDS = 0.05


class InvalidSchedule(InvalidItem):
    """A schedule breaks a rule; the text describes it. It is not stored."""


@dataclass(frozen=True)
class Schedule:
    """A recurring item. `cron` has five fields as in Debian's cron, or six with seconds first; `zone` is a name of the
    time zone database. The payload is an object, and each item has the time of its slot in `slot`, too. `key` and
    `time_limit_seconds` are those of `NewItem`.
    """

    name: str
    cron: str
    payload: dict[str, Any] = field(default_factory=dict)
    zone: str = "UTC"
    key: str | None = None
    time_limit_seconds: float | None = None


class Slots:
    """The slots of a cron expression, in milliseconds since 1970. As in Debian's cron, one in an hour that the clock
    skips comes at the end of it, and one in an hour that the clock repeats comes in the first of both. But if the
    minutes or hours begin with `*`, or there are seconds, slots are in the hours as they pass.
    """

    def __init__(self, cron: str, zone: str) -> None:
        """Raises `InvalidSchedule`."""
        self._cron = cron
        try:
            self.zone = ZoneInfo(zone)
        except (ValueError, KeyError, OSError):
            raise InvalidSchedule(f"the time zone {zone!r} is not in the time zone database") from None
        try:
            first = CronSim(cron, datetime(2000, 1, 1, tzinfo=self.zone))
        except (CronSimError, ValueError, AssertionError) as e:
            raise InvalidSchedule(f"the cron expression {cron!r} is wrong: {e}") from None
        # cronsim then counts local times, and converts them at the end.
        self._margin = timedelta() if first.fixup_tz is None else _CLOCK_CHANGE

    def next(self, after: int) -> int | None:
        """Return the first slot after a time; None if there is none in 50 years."""
        start = datetime.fromtimestamp(after / 1000, UTC)
        return next((slot for slot in self._from(start) if slot > after), None)

    def newest(self, until: int) -> int | None:
        """Return the last slot up to a time; None if there is none in 180 days."""
        end = datetime.fromtimestamp(until / 1000, UTC)
        for back in _BACK:
            found = None
            for slot in self._from(end - back):
                if slot > until:
                    break
                found = slot
            if found is not None:
                return found
        return None

    def text(self, slot: int) -> str:
        """Return a slot as local time with its offset from UTC."""
        return datetime.fromtimestamp(slot / 1000, self.zone).isoformat()

    def _from(self, start: datetime) -> Iterator[int]:
        for slot in CronSim(self._cron, (start - self._margin).astimezone(self.zone)):
            yield round(slot.timestamp() * 1000)


def row_of(schedule: Schedule, most_bytes: int) -> ScheduleRow:
    """Return a schedule as it is stored. Raises `InvalidItem` if it, or an item of it, breaks a rule."""
    s = schedule
    if not 0 < len(s.name) <= MAX_NAME_CHARACTERS or not s.name.isprintable():
        raise InvalidSchedule(f"a schedule's name must have 1 to {MAX_NAME_CHARACTERS} printable characters")
    slots = Slots(s.cron, s.zone)
    if (first := slots.next(0)) is None:
        raise InvalidSchedule(f"the cron expression {s.cron!r} has no time")
    if not isinstance(s.payload, dict) or SLOT in s.payload:
        raise InvalidSchedule(f"the payload of a schedule must be an object without {SLOT!r}, which its items have")
    row = ScheduleRow(s.name, s.cron, s.zone, s.key, "{}", s.time_limit_seconds)
    payload_of(_item(row, slots, first, s.payload), most_bytes)
    return row._replace(payload=to_json(s.payload))


def _item(row: ScheduleRow, slots: Slots, slot: int, payload: dict[str, Any]) -> NewItem:
    """Return the item of a slot."""
    following = slots.next(slot)
    most = _MOST_MISSED.total_seconds()
    seconds = most if following is None else min(most, (following - slot) / 1000)
    return NewItem(
        {**payload, SLOT: slots.text(slot)},
        row.key,
        time_limit_seconds=row.time_limit_seconds,
        # The name of a schedule has no line break.
        unique_name=f"{row.name}\n{slot}",
        unique_seconds=seconds + _KEPT_SECONDS,
    )


class _Own(NamedTuple):
    """A schedule that this worker looks after: the slot that it has enqueued last, and when to look again."""

    slot: int | None
    due: int


class Recurrence:
    """Enqueues the items of one queue's schedules whose shards this worker owns."""

    def __init__(self, context: QueueContext, enqueuer: AsyncEnqueuer, owns: Callable[[int], bool]) -> None:
        self._context = context
        self._enqueuer = enqueuer
        self._owns = owns
        self._schedules: list[ScheduleRow] = []
        self._pauses = Pauses(None, {})
        self._own: dict[str, _Own] = {}
        self._news = asyncio.Event()

    def renew(self, schedules: list[ScheduleRow], pauses: Pauses) -> None:
        """Follow these schedules. One that is paused, as its queue or key, misses its slots."""
        changed = {*self._schedules} ^ {*schedules}
        self._own = {name: own for name, own in self._own.items() if name not in {s.name for s in changed}}
        self._schedules, self._pauses = schedules, pauses
        self._news.set()

    @property
    def settled(self) -> bool:
        """Whether no slot is due."""
        now = self._context.clock.now()
        return all(s.name in self._own and self._own[s.name].due > now for s in self._mine())

    async def keep(self) -> None:
        """Enqueue the items of slots, until cancelled."""
        while True:
            self._news.clear()
            mine = self._mine()
            # A shard that comes back may have missed slots.
            self._own = {s.name: self._own[s.name] for s in mine if s.name in self._own}
            for schedule in mine:
                await self._look(schedule)
            now, due = self._context.clock.now(), [own.due for own in self._own.values()]
            pause = self._context.settings.idle_poll_seconds
            # The clock of another node may not have come to the slot yet.
            await wait_for_event(self._news, min([pause, *(max(_LEAST_SECONDS, (at - now) / 1000) for at in due)]))

    def _mine(self) -> list[ScheduleRow]:
        if self._pauses.queue is not None:
            return []
        shards = self._context.shards
        own = [s for s in self._schedules if s.key is None or s.key not in self._pauses.keys]
        return [s for s in own if self._owns(shard_of(s.name, LAST_ID, shards))]

    async def _look(self, schedule: ScheduleRow) -> None:
        """Enqueue the item of the newest slot, if the time has come."""
        own = self._own.get(schedule.name, _Own(None, 0))
        now = self._context.clock.now()
        if now < own.due:
            return
        try:
            # Our clock stands still while the machine sleeps.
            now = await self._context.tables.now()
            slots = Slots(schedule.cron, schedule.zone)
            slot = slots.newest(now)
            if slot is not None and slot > schedule.since and slot != own.slot:
                item = _item(schedule, slots, slot, from_json(schedule.payload))
                await self._enqueuer.enqueue(self._context.queue, [item])
            due = slots.next(now)
            looked = _Own(slot, _NEVER if due is None else due)
        except (UnknownWrite, EnqueueUnknown) as e:
            log.warning("queue %s, schedule %s: %s", self._context.queue, schedule.name, e)
            return
        except Exception as e:
            pause = self._context.faults.note(self._context.queue, f"schedule {schedule.name}", e)
            looked = own._replace(due=now + round(pause * 1000))
        if schedule in self._schedules:
            self._own[schedule.name] = looked
