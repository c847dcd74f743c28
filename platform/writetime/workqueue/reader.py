"""Reads the items of one partition as they come. Polls read a short time back, and a rescan finds later items.

Ids are times, and an insert may become visible after one with a later id. So a poll begins `overlap_seconds` before the
newest item, if that does not take too long, and a rescan begins at the floor. Items that come even later are found when
the bucket is closed, or at the latest before it is dropped (`bucket_life`).
"""

from collections.abc import Sequence
from uuid import UUID

from writetime.workqueue.context import QueueContext
from writetime.workqueue.items import LAST_ID, NO_ID, Entry, Status, first_id, time_of
from writetime.workqueue.partition import Partition
from writetime.workqueue.queue_tables import PAGE_ROWS, StateRow

# After a look back, this many times its duration pass without another one.
_LOOK_BACK_PAUSES = 9


class ItemReader:
    """Reads a partition for its owner."""

    def __init__(self, context: QueueContext, partition: Partition) -> None:
        own = context.settings
        self.partition = partition
        self._tables = context.tables
        self._clock = context.clock
        self._overlap = round(own.overlap_seconds * 1000)
        self._tolerance = round(own.clock_tolerance_seconds * 1000)
        self._looks_back = self._overlap + self._tolerance
        self._rescan = round(own.rescan_seconds * 1000)
        self._settle = round(own.settle_seconds * 1000)
        self._end = partition.place.bucket + context.bucket_seconds * 1000
        # Behind: where the next page begins.
        self._cursor = partition.floor
        self._newest = partition.floor
        # Where a look back begins: items that come before that are late.
        self._unsure = partition.floor
        self._looks_back_at = 0
        now = context.clock.now()
        # The look back in progress, page by page: the time at which it began (milliseconds), and where the next one
        # begins.
        self._pass: tuple[int, UUID] | None = now, first_id(now - self._looks_back)
        self._claimed: dict[UUID, StateRow] = {}
        # Items that are to be cancelled. Handlers' threads read it, so it is replaced, never changed.
        self.cancels: frozenset[UUID] = frozenset()
        # The events that were sent to items, by their names.
        self.events: frozenset[tuple[UUID, str]] = frozenset()
        self._rescanned = now
        self._polled = 0
        self.behind = True

    async def load(self) -> None:
        """Read the states of earlier owners beyond the floor, and the requests about items."""
        for item_id, state in (await self._tables.states(self.partition.place, self.partition.floor)).items():
            if state.status.final:
                self.partition.see(item_id, finished=True)
            else:
                self._claimed[item_id] = state

        await self.load_requests()

    async def load_requests(self) -> set[UUID]:
        """Read the requests to cancel items, and the events that were sent to items; return the items with new ones."""
        self.cancels = frozenset(await self._tables.cancels(self.partition.place))
        events = await self._tables.events(self.partition.place, self.partition.floor)
        before, self.events = self.events, frozenset(events)
        return {item_id for item_id, _ in self.events - before}

    async def poll(self) -> list[Entry]:
        """Return items that were not known before."""
        now = self._clock.now()
        past = now > self._end + self._tolerance + self._overlap
        if past and not self.behind and now - self._polled < self._rescan:
            return []
        self._polled = now
        before = first_id(now + self._tolerance)
        # The readers of later buckets rely on the look back of the earlier ones.
        due = now >= self._looks_back_at or now + self._tolerance >= self._end
        looks_back = due and not self.behind
        start = self._cursor if self.behind else self._unsure if looks_back else self._newest
        rows = await self._tables.items(self.partition.place, max(start, self.partition.floor), before)
        new = [e for e in rows if not self.partition.knows(e.item_id)]
        behind = len(rows) >= PAGE_ROWS
        newest = max([self._newest, *(e.item_id for e in rows if not e.delayed)])
        in_order = not self.behind and not looks_back
        if earlier := self._earlier(new, now, in_order=in_order):
            new += await self._unknown(earlier, new[-1].item_id, besides=new)
        rescan = not behind and now - self._rescanned > self._rescan
        if rescan:
            new += await self._unknown(self.partition.floor, before, besides=new)
        # From here on nothing can fail: items recorded as known are returned.
        if looks_back or in_order:
            recent = min(max(time_of(newest), now - self._tolerance) - self._overlap, now)
            self._pass = (now, first_id(recent)) if looks_back else None
        self.behind, self._newest = behind, newest
        self._cursor = rows[-1].item_id if behind else newest
        if not behind and self._pass is not None:
            began, unsure = self._pass
            self._looks_back_at = now + min(self._rescan, _LOOK_BACK_PAUSES * (self._clock.now() - began))
            self._unsure, self._pass = max(self._unsure, unsure), None
        self._rescanned = now if rescan else self._rescanned
        found = self._note(new)
        self.partition.settle(now - self._settle)
        return found

    def _earlier(self, new: list[Entry], now: int, *, in_order: bool) -> UUID | None:
        """Return the id from which to look again for items that were acknowledged before those that were just found.

        A read of several replicas or pages has no single time: it may find an item and miss an earlier one. Also, a
        slow insert may have come to a place that was read before. The next items of its enqueuer report it.
        """
        keyed = [e for e in new if e.key is not None]
        starts = [_just_before(e.after) for e in keyed if e.after is not None]
        if keyed and time_of(keyed[-1].item_id) > now - self._looks_back:
            starts.append(first_id(time_of(keyed[0].item_id) - self._overlap))
        if keyed and in_order:
            starts.append(self._unsure)
        return max(self.partition.floor, min(starts)) if starts else None

    def earlier_bucket(self, found: list[Entry]) -> UUID | None:
        """Return the id from which earlier buckets must be read again before the items that were found here may run."""
        keyed = [e for e in found if e.key is not None]
        start = self.partition.place.bucket
        starts = [_just_before(e.after) for e in keyed if e.after is not None and time_of(e.after) < start]
        if any(time_of(e.item_id) < start + self._looks_back for e in keyed):
            starts.append(first_id(start - self._looks_back))
        return min(starts, default=None)

    async def late(self, since: UUID) -> list[Entry]:
        """Return items from an id on that were not known before."""
        return self._note(await self._unknown(max(self.partition.floor, since), LAST_ID))

    async def _unknown(self, after: UUID, before: UUID, besides: Sequence[Entry] = ()) -> list[Entry]:
        """Return items between two ids that were neither known before nor just read."""
        place, read = self.partition.place, {e.item_id for e in besides}
        ids = await self._tables.item_ids(place, after, before)
        return [await self._tables.item(place, i) for i in ids if not self.partition.knows(i) and i not in read]

    async def reconcile(self) -> list[Entry]:
        """Compare all items of the partition with all states, and return the missed ones."""
        place = self.partition.place
        # The states are read last: an item that finishes meanwhile is not missed.
        ids = await self._tables.item_ids(place, NO_ID, LAST_ID)
        states = await self._tables.states(place, NO_ID)
        missed = [i for i in ids if not self.partition.knows(i) and not (i in states and states[i].status.final)]
        entries = [await self._tables.item(place, item_id) for item_id in missed]
        self._claimed.update({i: states[i] for i in missed if i in states})
        return self._note(entries)

    @property
    def closable(self) -> bool:
        """Whether all known items are finished, and all existing items are known."""
        return not self.behind and not self.partition.unfinished

    def _note(self, rows: list[Entry]) -> list[Entry]:
        found = []
        for entry in rows:
            state = self._claimed.pop(entry.item_id, None)
            asleep = state is not None and state.status is Status.SLEEPING
            if self.partition.see(entry.item_id, sleeping=asleep):
                if state is not None:
                    entry.attempts, entry.asleep = state.attempts, asleep
                    # One that has an event may wait for it.
                    if not asleep or all(item_id != entry.item_id for item_id, _ in self.events):
                        entry.due = max(entry.due, state.due or 0)
                found.append(entry)
        return found


def _just_before(item_id: UUID) -> UUID:
    return UUID(int=item_id.int - 1)
