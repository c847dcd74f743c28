"""The owners of shards: leases by compare-and-set that their owners renew, and fair shares among live workers.

Clocks are never compared. An owner's renewal increments `beat`. A worker that waits for the shard takes it over after
it has seen the same beat for a whole lease on its own monotonic clock. An owner stops by itself if its last confirmed
renewal was sent two thirds of a lease ago, which is before any other worker may take over. A paused owner cannot notice
this. So each write to states is fenced by the shard's epoch (`partition.Partition`), which each new owner raises.
"""

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from writetime.clients.prepared_statements import UnknownWrite
from writetime.core.errors import reason_of
from writetime.workqueue.context import QueueContext
from writetime.workqueue.queue_tables import ShardRow
from writetime.workqueue.statements import retry

log = logging.getLogger(__name__)

_RENEW_SHARE = 1 / 3
_STOP_SHARE = 2 / 3
_ANSWER_SHARE = 1 / 5
_ROUNDS_A_LEASE = 12
_LONGEST_ROUND_SECONDS = 2.0
# How long a release is repeated while the database does not answer. Then the lease ends it.
_RELEASE_SECONDS = 15.0


@dataclass(eq=False)
class ShardLease:
    """A shard that this worker owns. `confirmed` is when the last successful renewal was sent."""

    row: ShardRow
    confirmed: float
    lease_seconds: float
    monotonic: Callable[[], float]
    lost: bool = False
    leaving: bool = False

    @property
    def epoch(self) -> int:
        """The fence of this owner's writes."""
        return self.row.epoch or 0

    @property
    def valid(self) -> bool:
        """Whether items may be started: no other worker can own the shard yet."""
        return not self.lost and self.monotonic() < self.confirmed + self.lease_seconds * _STOP_SHARE


class ShardLeases:
    """Keeps this worker's fair share of one queue's shards. All times are of the event loop's monotonic clock."""

    def __init__(
        self,
        context: QueueContext,
        on_gain: Callable[[ShardLease], None],
        on_loss: Callable[[ShardLease], None],
        on_surplus: Callable[[ShardLease], Awaitable[None]],
        on_controls: Callable[[], None],
    ) -> None:
        """Take shards; `on_surplus` returns once no item of the shard runs. `on_controls` is called when `controls` has
        changed.
        """
        self.context = context
        self._tables = context.tables
        self._queue = context.queue
        self._worker = context.worker
        self._lease_seconds = context.settings.lease_seconds
        self._on_gain = on_gain
        self._on_loss = on_loss
        self._on_surplus = on_surplus
        self._on_controls = on_controls
        # The last change of what people ask of the workers, as far as it is known.
        self.controls: UUID | None = None
        # Shards with a fault, and the times until which they are not taken; those that wait after several attempts.
        self.aside: dict[int, float] = {}
        self.given_up: dict[int, str] = {}
        self._monotonic = asyncio.get_running_loop().time
        self._watched: dict[int, tuple[ShardRow, float]] = {}
        self._announced = -math.inf
        self._releases: set[asyncio.Task[None]] = set()
        self.held: dict[int, ShardLease] = {}
        self.stopping = False
        # Whether every shard had a live owner at the last look, and we have lost none since.
        self.complete = False

    async def keep(self) -> None:
        """Renew, take over and release shards, until cancelled. Renewals do not wait for anything else."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._repeat(self._renew))
            group.create_task(self._repeat(self._look))

    async def _repeat(self, act: Callable[[], Awaitable[None]]) -> None:
        pause = min(_LONGEST_ROUND_SECONDS, self._lease_seconds / _ROUNDS_A_LEASE)
        while True:
            try:
                # Even if the database does not answer, the worker must notice the end of its leases.
                async with asyncio.timeout(self._lease_seconds * _ANSWER_SHARE):
                    await act()
            except (UnknownWrite, TimeoutError) as e:
                log.warning("queue %s: leases cannot be renewed: %s", self._queue, e or "no answer in time")
            except Exception as e:
                self.context.faults.note(self._queue, "leases", e)
            for lease in [h for h in self.held.values() if not h.valid]:
                self.lose(lease)
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))

    def lose(self, lease: ShardLease) -> None:
        """Stop owning a shard, without a message to the others."""
        if not lease.lost:
            lease.lost = True
            self.complete = False
            self.held.pop(lease.row.shard, None)
            self._on_loss(lease)

    def set_aside(self, lease: ShardLease, error: BaseException) -> None:
        """Release a shard with a fault: it is taken again after a pause, by this worker or another one."""
        if lease.lost:
            return
        self.lose(lease)
        shard = lease.row.shard
        pause = self.context.faults.note(self._queue, f"shard {shard}", error)
        self.aside[shard] = self._monotonic() + pause
        if pause >= self.context.faults.rest_seconds:
            self.given_up[shard] = reason_of(error)
        self._background(self._free(lease.row))

    async def _free(self, row: ShardRow) -> None:
        await _for_a_while(lambda: self._tables.release(self._queue, row))

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._releases.add(task)
        task.add_done_callback(self._released)

    def _released(self, task: "asyncio.Task[None]") -> None:
        self._releases.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.context.faults.note(self._queue, "leases", error)

    async def release(self, lease: ShardLease) -> None:
        """Release a shard once none of its items runs, so that another worker may take it at once."""
        lease.leaving = True
        try:
            await self._on_surplus(lease)
        except Exception as e:
            self.set_aside(lease, e)
        await self.abandon(lease)

    async def abandon(self, lease: ShardLease) -> None:
        """Release a shard at once. Another worker repeats the items that still run, and the fence refuses their results
        of this one.
        """
        if not lease.lost:
            self.lose(lease)
            await self._free(lease.row)

    async def leave(self) -> None:
        """Sign off from the other workers, after the shards were released."""
        await _for_a_while(lambda: self._tables.leave(self._queue, self._worker))

    async def _look(self) -> None:
        """Read the other workers, and take or release shards."""
        now = self._monotonic()
        if now - self._announced > self._lease_seconds * _RENEW_SHARE:
            await self._tables.announce(self._queue, self._worker, max(1, math.ceil(self._lease_seconds)))
            self._announced = now
        rows, controls = await self._tables.shards(self._queue)
        if controls != self.controls:
            self.controls = controls
            self._on_controls()
        self._notice(rows)
        workers = sorted({*await self._tables.workers(self._queue), self._worker})
        # A shard with our name that we do not hold is still being released, or was taken without our knowledge.
        others = {*workers} - {self._worker}
        self.complete = all(
            shard in self.given_up or shard in self.held or (shard in rows and rows[shard].owner in others)
            for shard in range(self.context.shards)
        )
        if self.stopping:
            return
        base, rest = divmod(self.context.shards, len(workers))
        share = base + (workers.index(self._worker) < rest)
        staying = [h for h in self.held.values() if not h.leaving]
        for lease in staying[share:]:
            self._background(self.release(lease))
        if len(self.held) < share:
            await self._take(rows, share)

    async def _renew(self) -> None:
        """Renew all leases in one write. If it is not applied, one of the shards has changed."""
        held = list(self.held.values())
        sent = self._monotonic()
        if not any(sent - h.confirmed > self._lease_seconds * _RENEW_SHARE for h in held):
            return
        if not await self._tables.renew(self._queue, [h.row for h in held]):
            # Another owner, or an earlier renewal whose answer was lost: renew our remaining shards from their present
            # state.
            rows = (await self._tables.shards(self._queue, serial=True)).owners
            for lease in held:
                if (row := rows.get(lease.row.shard)) and row[:3] == lease.row[:3]:
                    lease.row = row
                else:
                    self.lose(lease)
            held = [h for h in held if not h.lost]
            sent = self._monotonic()
            if not held or not await self._tables.renew(self._queue, [h.row for h in held]):
                return
        for lease in held:
            lease.row = lease.row._replace(beat=(lease.row.beat or 0) + 1)
            lease.confirmed = sent

    def _notice(self, rows: dict[int, ShardRow]) -> None:
        now = self._monotonic()
        for shard, row in rows.items():
            lease = self.held.get(shard)
            if lease is not None and (row.epoch or 0) > lease.epoch:
                self.lose(lease)
            if shard not in self._watched or self._watched[shard][0] != row:
                self._watched[shard] = row, now

    async def _take(self, rows: dict[int, ShardRow], share: int) -> None:
        """Take shards that are free, or whose owner was silent for a lease."""
        now = self._monotonic()
        free = []
        for shard in range(self.context.shards):
            row = rows.get(shard, ShardRow(shard))
            # A shard with our name that we do not hold was taken by a write whose answer was lost.
            ownerless = row.owner is None or row.owner == self._worker
            silent = shard in self._watched and now - self._watched[shard][1] > self._lease_seconds
            if shard not in self.held and (ownerless or silent) and self.aside.get(shard, now) <= now:
                free.append(row)
        random.shuffle(free)
        for row in free[: share - len(self.held)]:
            sent = self._monotonic()
            if await self._tables.take(self._queue, row, self._worker):
                taken = ShardRow(row.shard, self._worker, (row.epoch or 0) + 1, 0)
                lease = ShardLease(taken, sent, self._lease_seconds, self._monotonic)
                self.held[row.shard] = lease
                self.aside.pop(row.shard, None)
                self.given_up.pop(row.shard, None)
                try:
                    self._on_gain(lease)
                except Exception as e:
                    self.set_aside(lease, e)


async def _for_a_while(release: Callable[[], Awaitable[None]]) -> None:
    """Repeat a release. If it is lost, other workers wait for a whole lease."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_RELEASE_SECONDS):
            await retry(release)
