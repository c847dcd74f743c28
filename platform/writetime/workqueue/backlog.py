"""The unfinished items of one shard that its owner has read, and those of them that may run now.

Items of a key form a lane and run in the order of their ids; a failed item holds its lane until it is completed or
dead. An item without a key has its own lane. Times are milliseconds of the database's clock. A limit of a queue is
divided among its shards, each of which has one owner at a time.
"""

import heapq
import itertools
import math
from collections.abc import Collection
from dataclasses import dataclass, field
from uuid import UUID

from writetime.workqueue.items import Entry


class Rate:
    """Limits the number of items that start per second, and spaces them evenly.

    After a pause, at most the items of one second may start at once. `now` is in seconds of any clock that does not go
    back.
    """

    def __init__(self, per_second: float | None) -> None:
        self._gap = 0.0 if per_second is None else 1 / per_second
        self._burst = max(1.0, per_second or 1.0) * self._gap
        self._next: float | None = None

    def ready_at(self, now: float) -> float:
        """Return when the next one may start."""
        if not self._gap:
            return now
        if self._next is None:
            # A new owner does not know when the last one started items: no burst.
            self._next = now
        return max(now, self._next)

    def begin(self, now: float) -> None:
        """Count one start."""
        if self._gap:
            self._next = max(self._next if self._next is not None else now, now - self._burst + self._gap) + self._gap


def part(limit: int | None, shard: int, shards: int) -> int | None:
    """Return a shard's part of a number; the parts of all shards add up to it."""
    return None if limit is None else limit // shards + (shard < limit % shards)


@dataclass(slots=True)
class _Lane:
    rate: Rate
    waiting: list[tuple[int, Entry]] = field(default_factory=list)
    running: int = 0
    # Counts the places that the lane was given; older ones in the heaps no longer count.
    version: int = 0


class Backlog:
    """Takes entries, and returns those that may run."""

    def __init__(
        self,
        *,
        concurrency: int | None = None,
        rate: float | None = None,
        key_concurrency: int = 1,
        key_rate: float | None = None,
    ) -> None:
        self._concurrency = math.inf if concurrency is None else concurrency
        self._rate = Rate(rate)
        self._key_concurrency = key_concurrency
        self._key_rate = key_rate
        self._lanes: dict[str | UUID, _Lane] = {}
        self._ready: list[tuple[int, int, int, _Lane]] = []
        self._later: list[tuple[int, int, int, _Lane]] = []
        self._number = itertools.count()
        self._paused = False
        self._paused_keys: frozenset[str] = frozenset()
        self.waiting = 0
        self.running = 0

    def add(self, entry: Entry, now: int) -> None:
        """Take an entry: a new one, or one that failed and is due later."""
        lane = self._lanes.get(_name(entry))
        if lane is None:
            lane = self._lanes[_name(entry)] = _Lane(Rate(self._key_rate if entry.key is not None else None))
        heapq.heappush(lane.waiting, (entry.item_id.int, entry))
        self.waiting += 1
        self._put(lane, now)

    def take(self, now: int, most: int) -> list[Entry]:
        """Return at most this many entries that may run now; each runs until `release`."""
        taken: list[Entry] = []
        self._ripen(now)
        while self._ready and len(taken) < most and self.running < self._concurrency and not self._paused:
            if self._rate.ready_at(now / 1000) * 1000 > now:
                break
            _, _, version, lane = heapq.heappop(self._ready)
            if version != lane.version:
                continue
            entry = heapq.heappop(lane.waiting)[1]
            self._rate.begin(now / 1000)
            lane.rate.begin(now / 1000)
            lane.running += 1
            self.waiting -= 1
            self.running += 1
            taken.append(entry)
            self._put(lane, now)
        return taken

    def release(self, entry: Entry, now: int) -> None:
        """Record that an entry no longer runs."""
        lane = self._lanes[_name(entry)]
        lane.running -= 1
        self.running -= 1
        self._keep(_name(entry), lane, now)

    def pause(self, keys: Collection[str], now: int, *, everything: bool) -> None:
        """Return no more items of these keys, or none at all, until the next call."""
        self._paused = everything
        before, self._paused_keys = self._paused_keys, frozenset(keys)
        for key in before ^ self._paused_keys:
            if (lane := self._lanes.get(key)) is not None:
                self._put(lane, now)

    def withdraw(self, item_ids: Collection[UUID], now: int) -> list[Entry]:
        """Remove the waiting ones of these items, and return them."""
        found: list[Entry] = []
        for name, lane in list(self._lanes.items()):
            mine = [entry for _, entry in lane.waiting if entry.item_id in item_ids]
            if mine:
                lane.waiting = [each for each in lane.waiting if each[1].item_id not in item_ids]
                heapq.heapify(lane.waiting)
                self.waiting -= len(mine)
                found += mine
                self._keep(name, lane, now)
        return found

    def wake(self, item_ids: Collection[UUID], now: int) -> None:
        """Let those of these items that sleep run now."""
        for lane in self._lanes.values():
            mine = [entry for _, entry in lane.waiting if entry.asleep and entry.item_id in item_ids]
            for entry in mine:
                entry.due = min(entry.due, now)
            if mine:
                self._put(lane, now)

    def next_due(self, now: int) -> int | None:
        """Return the time at which an item may run if no new one comes; None if there is no such time."""
        if self._paused:
            return None
        self._ripen(now)
        while self._ready and self._ready[0][2] != self._ready[0][3].version:
            heapq.heappop(self._ready)
        if self._ready:
            if self.running >= self._concurrency:
                return None
            return max(now, round(self._rate.ready_at(now / 1000) * 1000))
        return self._later[0][0] if self._later else None

    def _keep(self, name: str | UUID, lane: _Lane, now: int) -> None:
        """Put a lane into its heap, or forget it. One with a rate is kept as long as its rate matters."""
        if lane.waiting or lane.running or lane.rate.ready_at(now / 1000) > now / 1000:
            self._put(lane, now)
        else:
            lane.version = -1
            del self._lanes[name]

    def _put(self, lane: _Lane, now: int) -> None:
        """Put a lane into the heap of lanes that may run now or later."""
        lane.version += 1
        if not lane.waiting or lane.running >= self._key_concurrency:
            return
        order, entry = lane.waiting[0]
        if entry.key in self._paused_keys:
            return
        due = max(entry.due, math.ceil(lane.rate.ready_at(now / 1000) * 1000))
        if due <= now:
            heapq.heappush(self._ready, (order, next(self._number), lane.version, lane))
        else:
            heapq.heappush(self._later, (due, next(self._number), lane.version, lane))

    def _ripen(self, now: int) -> None:
        while self._later and (self._later[0][0] <= now or self._later[0][2] != self._later[0][3].version):
            _, number, version, lane = heapq.heappop(self._later)
            if version == lane.version:
                heapq.heappush(self._ready, (lane.waiting[0][0], number, version, lane))


def _name(entry: Entry) -> str | UUID:
    return entry.item_id if entry.key is None else entry.key
