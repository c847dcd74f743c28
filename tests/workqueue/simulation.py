"""The real workers in a simulated world: `python -m tests.workqueue.simulation --runs N --seed S`.

The code of enqueuers and workers is real. The database is in memory, and time is that of the event loop, so minutes
take milliseconds. Requests are lost before, after and while they are applied. Workers are paused for longer than their
lease, killed and started. Handlers fail, items come late, and buckets end, close and are dropped. Someone pauses and
resumes the queue and its keys, and cancels items. A schedule has a slot every few seconds. Some handlers have steps,
sleep, and wait for events. Everything follows from a seed.
"""

import asyncio
import json
import logging
import math
import random
from collections import defaultdict
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import click

from tests.workqueue.memory import MemoryDatabase, MemoryTables, VirtualLoop, memory_enqueuer
from writetime.core.config import Queue, Settings, WorkQueue
from writetime.core.errors import WritetimeError
from writetime.workqueue.controls import AsyncControls
from writetime.workqueue.enqueue import EnqueueUnknown, NewItem
from writetime.workqueue.items import GiveUp, Item, Status
from writetime.workqueue.recurrence import Schedule
from writetime.workqueue.worker_loop import WorkerLoop

QUEUE = "q"
_START = 1_700_000_000_000
_LIMIT_SECONDS = 4000
_SKEW_MILLIS = 2000


class Simulation:
    """One seeded run."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        random.seed(seed)
        own = Queue(
            shards=rng.choice([1, 2, 3]),
            max_attempts=rng.choice([3, 30]),
            backoff_base_seconds=0.1,
            backoff_cap_seconds=2.0,
            concurrency=rng.choice([None, None, 3]),
        )
        self.settings = Settings().model_copy(
            update={
                "workqueue": WorkQueue(
                    queues={QUEUE: own},
                    lease_seconds=rng.choice([1.0, 5.0]),
                    threads=rng.choice([1, 4]),
                    batch_rows=rng.choice([2, 32]),
                    bucket_seconds=rng.choice([5, 3600]),
                    close_after_seconds=10.0,
                    enqueue_timeout_seconds=5.0,
                    keep_closed_hours=rng.choice([20 / 3600, 1.0]),
                    overlap_seconds=0.5,
                    rescan_seconds=3.0,
                    settle_seconds=3.0,
                    clock_tolerance_seconds=rng.choice([0.0, 5.0]),
                    drain_seconds=5.0,
                )
            }
        )
        self.database = MemoryDatabase(rng, _START)
        self.tables: list[MemoryTables] = []
        self.tasks: dict[asyncio.Task[Any], tuple[MemoryTables, asyncio.Event]] = {}
        self.acknowledged: dict[Any, tuple[str | None, int]] = {}
        self.unknown: set[Any] = set()
        self.begun: list[tuple[str | None, Any, str]] = []
        # When handlers began and their workers started, with their items; when cancels were acknowledged, with their
        # answers; and the times within which a key, or the queue (None), was paused.
        self.times: list[tuple[float, float, str | None, Any]] = []
        self.cancels: dict[Any, tuple[float, str]] = {}
        self.pauses: list[tuple[str | None, float, float]] = []
        # The ids of acknowledged items by their unique names.
        self.names: dict[str, set[Any]] = defaultdict(set)
        # The items of the schedule by their slots.
        self.slots: dict[str, set[Any]] = defaultdict(set)
        self.workers = 0
        self.fenced = 0
        self.step_runs = 0
        # The events that were sent, perhaps with an unknown outcome; and when items continued after a sleep.
        self.events: dict[UUID, list[int]] = defaultdict(list)
        self.woken: list[tuple[UUID, float]] = []

    async def run(self) -> None:
        """Do it all, then wait until nothing is left, and check."""
        rng = self.rng
        self.start_worker()
        gap = rng.choice([2, 7, 30])
        controls = AsyncControls(self.operator_tables(), self.settings)
        await controls.schedule(QUEUE, Schedule("s", f"*/{gap} * * * * *", key=rng.choice([None, "0a"])))
        senders = [asyncio.create_task(self.send(n)) for n in range(rng.randrange(1, 4))]
        senders.append(asyncio.create_task(self.meddle()))
        self.database.loss = rng.choice([0.0, 0.02, 0.15])
        for _ in range(rng.randrange(3, 15)):
            await asyncio.sleep(rng.uniform(0, 4))
            match rng.randrange(5):
                case 0:
                    self.start_worker()
                case 1 if self.tasks:
                    # As SIGKILL: sent messages may still arrive.
                    task = rng.choice(list(self.tasks))
                    del self.tasks[task]
                    task.cancel()
                case 2 if self.tasks:
                    tables, _ = rng.choice(list(self.tasks.values()))
                    tables.paused_until = asyncio.get_running_loop().time() + rng.uniform(0.5, 20)
                case 3 if self.tasks:
                    task = rng.choice(list(self.tasks))
                    self.tasks.pop(task)[1].set()
                case _:
                    self.database.loss = rng.choice([0.0, 0.02, 0.15, 0.5])
        await asyncio.gather(*senders)
        self.database.loss = rng.choice([0.0, 0.02])
        self.start_worker()
        await self.end_schedule(controls, gap)
        while self.unfinished():
            assert asyncio.get_running_loop().time() < _LIMIT_SECONDS, f"never finished: {self.unfinished()[:3]}"
            await asyncio.sleep(1)
        if rng.random() < 0.3:
            # Long enough for buckets to be closed and dropped; a bucket that is dropped unfinished is reported at once.
            await asyncio.sleep(120)
        for task, (tables, stop) in self.tasks.items():
            tables.paused_until = 0
            stop.set()
            self.check_ended(task)
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.check()

    def operator_tables(self) -> MemoryTables:
        """Return another way to the database."""
        own = self.settings.workqueue
        return MemoryTables(self.database, own.queue(QUEUE).shards, own.bucket_seconds)

    async def end_schedule(self, controls: AsyncControls, gap: int) -> None:
        """Wait until workers have the shards again, and for a slot; then delete the schedule."""
        await asyncio.sleep(90 + 2 * gap)
        self.note_slots()
        newest = max(map(datetime.fromisoformat, self.slots), default=datetime.min.replace(tzinfo=UTC))
        now = self.database.start / 1000 + asyncio.get_running_loop().time()
        assert newest.timestamp() > now - 2 * gap - 30, "no slot has an item any more"
        while self.database.schedules:
            with suppress(WritetimeError):
                await controls.unschedule(QUEUE, "s")

    def note_slots(self) -> None:
        """Note the slots of all items that are not dropped."""
        for entry in (entry for entries in self.database.items.values() for entry in entries.values()):
            if "slot" in entry.payload:
                self.slots[json.loads(entry.payload)["slot"]].add(entry.item_id)

    def start_worker(self) -> None:
        """Start one more worker."""
        self.workers += 1
        name = f"w{self.workers}"
        skew = (
            self.rng.choice([-_SKEW_MILLIS, 0, _SKEW_MILLIS]) if self.settings.workqueue.clock_tolerance_seconds else 0
        )
        tables, stop = MemoryTables(self.database, skew_millis=skew), asyncio.Event()
        now = asyncio.get_running_loop().time
        started = now()

        async def handle(item: Item) -> dict[str, Any]:
            self.times.append((now(), started, item.key, item.item_id))
            self.begun.append((item.key, item.item_id, f"{name}/{item.attempt}"))
            if isinstance(item.payload, dict):
                self.slots[item.payload["slot"]].add(item.item_id)
            await asyncio.sleep(self.rng.choice([0, 0.01, 0.2, 3.0]))
            steps = [await item.step(step, self.run_step) for step in steps_of(item.item_id)]
            if item.item_id.int % 11 == 0:
                await item.sleep("a while", 5)
                self.woken.append((item.item_id, now() * 1000))
            if item.item_id.int % 11 == 1:
                with suppress(TimeoutError):
                    steps.append(await item.wait_event("go", 30))
            if self.rng.random() < 0.1:
                raise ValueError("by chance")
            if isinstance(item.payload, int) and item.payload % 37 == 0:
                raise GiveUp
            return {"by": f"{name}/{item.attempt}", **({"steps": steps} if steps else {})}

        async def serve() -> None:
            running = WorkerLoop(
                tables, self.settings.workqueue, {QUEUE: handle}, name, coroutine_loop=asyncio.get_running_loop()
            )
            await running.serve(stop, until_idle=False)
            self.fenced += running.outcomes["fenced"]

        self.tasks[asyncio.create_task(serve())] = tables, stop

    async def run_step(self) -> int:
        """Return how many steps were run."""
        self.step_runs += 1
        run = self.step_runs
        await asyncio.sleep(self.rng.choice([0, 0.05, 2.0]))
        if self.rng.random() < 0.1:
            raise ValueError("by chance, in a step")
        return run

    def check_ended(self, task: "asyncio.Task[Any]") -> None:
        """A worker that ended by itself has failed."""
        if task.done() and not task.cancelled():
            task.result()

    async def send(self, number: int) -> None:
        """Enqueue items, some delayed, as one client would: the next one after the answer for the one before."""
        rng = self.rng
        tables = MemoryTables(self.database)
        enqueuer = memory_enqueuer(tables, self.settings)
        enqueuer._ids._random = rng
        for n in range(rng.randrange(5, 60)):
            key = rng.choice([None, f"{number}a", f"{number}b"])
            delay = rng.choice([0.0] * 8 + [2.0])
            payload = number * 1000 + n + 1
            try:
                item = NewItem(payload, None if delay else key, delay)
                if rng.random() < 0.1:
                    item = NewItem(payload, unique_name=rng.choice("mno"), unique_seconds=1e6)
                ids = await enqueuer.enqueue(QUEUE, [item])
            except EnqueueUnknown as e:
                self.unknown.update(e.item_ids)
            else:
                if item.unique_name is not None:
                    self.names[item.unique_name].update(ids)
                    self.acknowledged.setdefault(ids[0], (None, len(self.acknowledged)))
                    continue
                self.acknowledged[ids[0]] = (None if delay else key), len(self.acknowledged)
            if rng.random() < 0.2:
                await asyncio.sleep(rng.choice([0.05, 0.5, 6.0]))
            if rng.random() < 0.05:
                tables.paused_until = asyncio.get_running_loop().time() + rng.uniform(0, 2)

    async def meddle(self) -> None:
        """Pause, resume and cancel, as an operator would; in the end, nothing is paused."""
        rng, now = self.rng, asyncio.get_running_loop().time
        controls = AsyncControls(self.operator_tables(), self.settings)
        for _ in range(rng.randrange(6)):
            await asyncio.sleep(rng.uniform(0, 5))
            key = rng.choice([None, "0a", "0b", "1a"])
            with suppress(WritetimeError):
                for item_id in [i for i in self.acknowledged if i.int % 11 == 1 and rng.random() < 0.5]:
                    self.events[item_id].append(rng.randrange(1000))
                    await controls.send_event(QUEUE, item_id, "go", self.events[item_id][-1])
                if rng.random() < 0.5 and self.acknowledged:
                    item_id = rng.choice(list(self.acknowledged))
                    found = await controls.cancel(QUEUE, item_id, wait_seconds=rng.choice([0.0, 20.0]))
                    self.cancels.setdefault(item_id, (now(), found.status))
                else:
                    await controls.pause(QUEUE, key)
                    began = now()
                    await asyncio.sleep(rng.uniform(0, 20))
                    self.pauses.append((key, began, now()))
                    with suppress(WritetimeError):
                        await controls.resume(QUEUE, key)
        while self.database.paused:
            with suppress(WritetimeError):
                await controls.resume(QUEUE, next(iter(self.database.paused)) or None)

    def unfinished(self) -> list[Any]:
        """Acknowledged items that are neither completed nor dead nor cancelled."""
        final = {i for rows in self.database.rows.values() for i, c in rows.items() if c.status.final}
        done = {i for i, _ in self.database.completions}
        dead = self.database.letters.keys()
        gone = {i for i in self.acknowledged if self.database.dropped and i in done | dead | {*self.database.cancelled}}
        return [i for i in self.acknowledged if i not in final and i not in gone]

    def check(self) -> None:
        """Nothing lost, no completion twice, keys in order, and what people asked for done."""
        completed = [i for i, _ in self.database.completions]
        assert len(completed) == len(set(completed)), "an item was completed twice"
        self.note_slots()
        for slot, ids in self.slots.items():
            assert len(ids) == 1, f"the slot {slot} has several items"
        sent = self.acknowledged.keys() | self.unknown | {item_id for ids in self.slots.values() for item_id in ids}
        assert set(completed) <= sent, "an item was never sent"
        dead = {i for rows in self.database.rows.values() for i, c in rows.items() if c.status is Status.DEAD}
        assert not dead & set(completed), "an item is completed and dead"
        assert dead <= self.database.letters.keys(), "a dead item has no letter"
        self.check_controls(set(completed), dead)
        for name, ids in self.names.items():
            assert len(ids) == 1, f"the name {name} has several items"
        by_key: dict[str, list[int]] = defaultdict(list)
        for item_id in completed:
            key, order = self.acknowledged.get(item_id, (None, 0))
            if key is not None:
                by_key[key].append(order)
        for key, orders in by_key.items():
            assert orders == sorted(orders), f"items of {key} were completed in the order {orders}"
        steps = {
            (item_id, name): int(run) for item_id, name, run in self.database.steps if not name.startswith("event")
        }
        recorded = [(item_id, name) for item_id, name, _ in self.database.steps]
        assert len(recorded) == len(set(recorded)), "a step was recorded twice"
        for item_id, result in self.database.completions:
            returned, names = json.loads(result or "").get("steps", []), steps_of(item_id)
            own, events = returned[: len(names)], returned[len(names) :]
            assert own == [steps[item_id, name] for name in names], "a step has another result"
            assert set(events) <= {*self.events[item_id]}, "nobody has sent the event"
        for item_id, at in self.woken:
            until = steps[item_id, "sleep\na while"] - self.database.start
            assert at >= until - 2 * _SKEW_MILLIS, "an item has slept for too short a time"
        # What was begun for a completion that counts came after that of the item before it.
        results = dict(self.database.completions)
        by_whom = {i: json.loads(result or "")["by"] for i, result in results.items()}
        counted = [(k, i) for k, i, by in self.begun if k and by_whom.get(i) == by]
        for key in {k for k, _ in counted}:
            orders = [self.acknowledged[i][1] for k, i in counted if k == key and i in self.acknowledged]
            assert orders == sorted(orders), f"items of {key} were begun in the order {orders}"

    def check_controls(self, completed: set[Any], dead: set[Any]) -> None:
        """No item is cancelled that nobody cancelled, or in vain; workers that start later follow at once."""
        cancelled = self.database.cancelled
        assert len(cancelled) == len(set(cancelled)), "an item was cancelled twice"
        assert not set(cancelled) & (completed | dead), "an item is cancelled, and completed or dead"
        requested = {item_id for ids in self.database.cancels.values() for item_id in ids}
        assert set(cancelled) <= requested or self.database.dropped, "nobody has cancelled the item"
        for item_id, (_, answer) in self.cancels.items():
            assert answer != "cancelled" or item_id in cancelled, "an item was reported as cancelled, and is not"
        for at, started, key, item_id in self.times:
            asked, _ = self.cancels.get(item_id, (math.inf, ""))
            assert started < asked, "a worker began an item that was cancelled before the worker started"
            for paused, since, until in self.pauses:
                assert paused not in (None, key) or not since <= started <= at <= until, "a paused item was begun"


def steps_of(item_id: UUID) -> str:
    """Return the names of an item's steps; most items have none."""
    return "ab"[: max(0, item_id.int % 6 - 3)]


def simulate(seed: int) -> Simulation:
    """Run one simulation; what is wrong is an AssertionError."""
    loop = VirtualLoop()
    simulation = Simulation(seed)
    try:
        loop.run_until_complete(simulation.run())
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        with suppress(BaseException):
            loop.run_until_complete(asyncio.gather(*asyncio.all_tasks(loop), return_exceptions=True))
        loop.close()
    return simulation


@click.command()
@click.option("--runs", default=1000, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(runs: int, seed: int) -> None:
    """Run many simulations, one a seed."""
    logging.disable(logging.CRITICAL)
    items = fenced = workers = 0
    for number in range(seed, seed + runs):
        try:
            result = simulate(number)
        except BaseException:
            print(f"seed {number}")
            raise
        items, fenced, workers = items + len(result.acknowledged), fenced + result.fenced, workers + result.workers
    print(f"{runs} runs, {workers} workers, {items} items, {fenced} outcomes refused by the fence: no fault")


if __name__ == "__main__":
    main()
