"""Reads the items of one partition as they come: polls look a little back, a rescan finds what came later than that.

Ids are times, and an insert may become visible after one with a later id. So a poll begins `overlap_seconds` before the
newest item, and a rescan begins at the floor. What comes after even that is found when the bucket is closed, or at the
latest before it is dropped (`buckets`).
"""

from uuid import UUID

from writetime.workqueue.context import QueueContext
from writetime.workqueue.items import Entry, first_id, time_of
from writetime.workqueue.partition import LAST_ID, NO_ID, Partition
from writetime.workqueue.tables import PAGE_ROWS, StateRow


class Reader:
    """The reading side of a partition that is ours."""

    def __init__(self, context: QueueContext, partition: Partition) -> None:
        settings = context.settings
        self.partition = partition
        self._tables = context.tables
        self._clock = context.clock
        self._overlap = round(settings.overlap_seconds * 1000)
        self._tolerance = round(settings.clock_tolerance_seconds * 1000)
        self._rescan = round(settings.rescan_seconds * 1000)
        self._settle = round(settings.settle_seconds * 1000)
        self._end = partition.place.bucket + context.bucket_seconds * 1000
        self._cursor = partition.floor
        self._newest = 0
        self._claimed: dict[UUID, StateRow] = {}
        self._rescanned = context.clock.now()
        self._polled = 0
        self.behind = True

    async def load(self) -> None:
        """Read what earlier owners have done beyond the floor."""
        for state in await self._tables.states(self.partition.place, self.partition.floor):
            if state.status.final:
                self.partition.see(state.item_id, finished=True)
            else:
                self._claimed[state.item_id] = state

    async def poll(self) -> list[Entry]:
        """Return items that were not seen before."""
        now = self._clock.now()
        past = now > self._end + self._tolerance + self._overlap
        if past and not self.behind and now - self._polled < self._rescan:
            return []
        self._polled = now
        before = first_id(now + self._tolerance)
        rows = await self._tables.items(self.partition.place, max(self._cursor, self.partition.floor), before)
        found = self._new(rows)
        self.behind = len(rows) >= PAGE_ROWS
        if self.behind:
            self._cursor = rows[-1].item_id
        else:
            self._newest = max([self._newest, *(time_of(e.item_id) for e in rows if not e.delayed)])
            recent = min(max(self._newest, now - self._tolerance) - self._overlap, now)
            self._cursor = max(self.partition.floor, first_id(recent))
        keyed = [e.item_id for e in found if e.key is not None]
        if keyed and time_of(keyed[-1]) > now - self._tolerance - self._overlap:
            found += await self._earlier(keyed[0], keyed[-1])
        if not self.behind and now - self._rescanned > self._rescan:
            self._rescanned = now
            found += await self.scan(self.partition.floor, before)
        self.partition.settle(now - self._settle)
        return found

    async def _earlier(self, first: UUID, last: UUID) -> list[Entry]:
        """Look once more for items that were acknowledged before those that were just found.

        A read of several replicas, or pages, is of no single instant: it may see an item and miss an earlier one.
        """
        after = max(self.partition.floor, first_id(time_of(first) - self._overlap))
        return await self.scan(after, last)

    async def scan(self, after: UUID, before: UUID = LAST_ID) -> list[Entry]:
        """Return the items between two ids that were not seen before."""
        ids = await self._tables.item_ids(self.partition.place, after, before)
        place = self.partition.place
        return self._new([await self._tables.item(place, i) for i in ids if not self.partition.knows(i)])

    async def reconcile(self) -> list[Entry]:
        """Compare all items of the partition with all states, and return those that were missed."""
        place = self.partition.place
        # The states are read last: what was finished meanwhile is not missed.
        ids = await self._tables.item_ids(place, NO_ID, LAST_ID)
        states = {s.item_id: s for s in await self._tables.states(place, NO_ID)}
        missed = [i for i in ids if not self.partition.knows(i) and not (i in states and states[i].status.final)]
        self._claimed.update({i: states[i] for i in missed if i in states})
        return self._new([await self._tables.item(place, item_id) for item_id in missed])

    @property
    def closable(self) -> bool:
        """Whether all that was seen is finished, and all that there is was seen."""
        return not self.behind and not self.partition.unfinished

    def _new(self, rows: list[Entry]) -> list[Entry]:
        found = []
        for entry in rows:
            if self.partition.see(entry.item_id):
                if state := self._claimed.pop(entry.item_id, None):
                    entry.attempts = state.attempts
                    entry.due = max(entry.due, state.due or 0)
                found.append(entry)
        return found
