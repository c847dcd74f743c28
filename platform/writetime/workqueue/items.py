"""Work items: their ids, which determine their time and place, and the handler's view of them.

An item's id is a UUID of version 7 (RFC 9562): its first 48 bits are milliseconds since 1970, by the database's clock.
The database orders such ids by time. The time is that of the enqueueing, or the end of the delay. It determines the
item's bucket. So an id alone finds its row, and a repeated insert writes the same row.
"""

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from inspect import isawaitable
from typing import Any, NamedTuple
from uuid import UUID

from writetime.core.setting_types import YEAR_SECONDS
from writetime.workqueue.steps import AttemptSteps

_RANDOM_BITS = 62
# RFC 9562, method 1 and 3 of 6.2: the twelve bits after the version are a fraction of the millisecond.
_FRACTIONS = 4096
# An id before all items, and one after them.
NO_ID = UUID(int=7 << 76 | 2 << 62)
LAST_ID = UUID(int=2**128 - 1)


class GiveUp(Exception):
    """Raised by a handler: the item becomes a dead letter at once, without further attempts."""


class Status(StrEnum):
    """The states of a claimed item. An item without a row in `queue_state` waits for its first claim."""

    PROCESSING = "PROCESSING"
    RETRY = "RETRY"
    SLEEPING = "SLEEPING"
    COMPLETED = "COMPLETED"
    DEAD = "DEAD"
    CANCELLED = "CANCELLED"

    @property
    def final(self) -> bool:
        """Whether the item is finished."""
        return self in (Status.COMPLETED, Status.DEAD, Status.CANCELLED)


class ItemPartition(NamedTuple):
    """One partition of items and of states. `bucket` is its first millisecond since 1970."""

    queue: str
    shard: int
    bucket: int


@dataclass(slots=True)
class Entry:
    """An item that its shard's owner has read. `due` is in milliseconds of the database's clock."""

    place: ItemPartition
    item_id: UUID
    key: str | None
    payload: str
    delayed: bool = False
    due: int = 0
    attempts: int = 0
    # The number of failures outside the handler.
    faults: int = 0
    # The oldest slow insert just before this one.
    after: UUID | None = None
    # Of one attempt; None: that of the queue.
    time_limit_seconds: float | None = None
    # The recorded steps, once they are read.
    steps: dict[str, str] | None = None
    # Whether its handler sleeps or waits for an event.
    asleep: bool = False


@dataclass(frozen=True, slots=True)
class Item:
    """The item that a handler receives. `item_id` is the idempotency key of effects outside the database."""

    queue: str
    item_id: UUID
    key: str | None
    payload: Any
    attempt: int
    _held: Callable[[], bool] = field(repr=False, default=lambda: True)
    _cancelled: Callable[[], bool] = field(repr=False, default=lambda: False)
    _steps: AttemptSteps | None = field(repr=False, default=None)

    @property
    def held(self) -> bool:
        """Whether this worker still owns the item, and may go on. A long handler should stop if not."""
        return self._held()

    @property
    def cancelled(self) -> bool:
        """Whether someone has cancelled the item. A handler that stops because of this raises an exception."""
        return self._cancelled()

    async def step(self, name: str, work: Callable[[], Any]) -> Any:
        """Run a part of an async handler, a function or coroutine function, and record its result; return it as JSON
        has it. If this or an earlier attempt has recorded a step of this name, return its result. A step whose worker
        ends before it is recorded is run again. An item without a worker, as in a test, runs each step.

        Raises:
            StepRefused, ShardFenced: this attempt no longer owns the item. Let them pass.
            ValueError: the result is not JSON, or too large.
        """
        if self._steps is not None:
            return await self._steps.run(name, work)
        value = work()
        return await value if isawaitable(value) else value

    async def sleep(self, name: str, seconds: float) -> None:
        """End the attempt of an async handler, and begin the handler again after some seconds, at most 366 days. Then
        this call returns. The time is that of the first call with this name. Meanwhile no worker is busy with the item,
        which blocks its key.

        Raises:
            Asleep: the attempt ends. It is no `Exception`; let it pass.
            StepRefused, ShardFenced: as `step`.
        """
        await self._own_steps().sleep(name, seconds)

    async def wait_event(self, name: str, timeout_seconds: float) -> Any:
        """Return the payload of an event that is sent to the item. If there is none, wait as `sleep` does, until it is
        sent, at most for some seconds.

        Raises:
            TimeoutError: there was no event in time; in each later attempt, too.
            Asleep, StepRefused, ShardFenced: as `sleep`.
        """
        return await self._own_steps().wait_event(name, timeout_seconds)

    def _own_steps(self) -> AttemptSteps:
        if self._steps is None:
            raise RuntimeError("an item without a worker cannot sleep, or wait for an event")
        return self._steps


class IdMaker:
    """Makes ids that strictly increase within this process, even if the clock does not."""

    def __init__(self) -> None:
        self._last = 0
        self._random: random.Random = random.SystemRandom()

    def make(self, at_micros: int) -> UUID:
        """Return an id for a time in microseconds since 1970, or for the next unused time."""
        milliseconds, micros = divmod(at_micros, 1000)
        tick = max(milliseconds * _FRACTIONS + micros * _FRACTIONS // 1000, self._last + 1)
        self._last = tick
        return self._id(tick)

    def make_delayed(self, at_millis: int) -> UUID:
        """Return an id for a later time; the order among items of the same millisecond is random."""
        return self._id(at_millis * _FRACTIONS + self._random.randrange(_FRACTIONS))

    def _id(self, tick: int) -> UUID:
        milliseconds, fraction = divmod(tick, _FRACTIONS)
        return _uuid(milliseconds, fraction, self._random.getrandbits(_RANDOM_BITS))


def first_id(at_millis: int) -> UUID:
    """Return the smallest id of a time."""
    return _uuid(max(0, at_millis), 0, 0)


def time_of(item_id: UUID) -> int:
    """Return an id's time in milliseconds since 1970."""
    return item_id.int >> 80


def bucket_of(item_id: UUID, bucket_seconds: int) -> int:
    """Return the bucket of an item."""
    length = bucket_seconds * 1000
    return time_of(item_id) // length * length


def shard_of(key: str | None, item_id: UUID, shards: int) -> int:
    """Return the shard of a key, or of an item without one. CRC-32 is unsigned, and the same in every language."""
    return zlib.crc32(item_id.bytes if key is None else key.encode(errors="surrogateescape")) % shards


def is_time_limit(seconds: float) -> bool:
    """Return whether an item may have this time limit: the same as for the setting of a queue."""
    return 0 < seconds <= YEAR_SECONDS


def instant(at_millis: int) -> datetime:
    """Return milliseconds since 1970 as a time in UTC."""
    return datetime.fromtimestamp(at_millis / 1000, UTC)


def _uuid(milliseconds: int, fraction: int, random_bits: int) -> UUID:
    return UUID(int=milliseconds << 80 | 7 << 76 | fraction << 64 | 2 << 62 | random_bits)
