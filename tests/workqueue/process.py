"""One worker or one enqueuer as a process of a fault test: `python -m tests.workqueue.process work|enqueue JSON`.

It records its actions in a ledger, line by line, each line in one write: acknowledged items, the begin and end of
handlers, and completions that are known to be applied. A trap ends or stops the process at an exact point of its work.
Its wall clock may be wrong by any number of seconds.
"""

import asyncio
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime as real_datetime
from functools import partial
from typing import Any
from uuid import UUID

from writetime.core.config import Settings
from writetime.workqueue import Enqueuer, EnqueueUnknown, Item, NewItem, Worker
from writetime.workqueue.items import Entry
from writetime.workqueue.queue_tables import QueueTables
from writetime.workqueue.runner import ShardRunner

POINTS = ("before claim", "after claim", "before effect", "after effect", "before completion", "after completion")


@dataclass
class Task:
    """The task of the process. At the `trap_at`th time that it reaches the point `trap`, it sends itself a signal."""

    settings: dict[str, Any]
    queue: str
    ledger: str
    name: str
    trap: str | None = None
    trap_at: int = 1
    trap_signal: int = signal.SIGKILL
    clock_offset: float = 0.0
    work_seconds: float = 0.0
    count: int = 0
    keys: int = 5
    pause: float = 0.0
    # The handler has a step, or also sleeps and waits for an event after it.
    steps: bool = False
    sleeps: bool = False
    failing: list[int] = field(default_factory=list)


class Process:
    """Does a task."""

    def __init__(self, task: Task) -> None:
        self._task = task
        # The secrets of a real installation are not in a test's settings.
        self._settings = Settings.model_validate(task.settings)
        self._ledger = os.open(task.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._passed = 0
        self._lock = threading.Lock()

    def note(self, **line: Any) -> None:
        """Append a line to the ledger."""
        os.write(self._ledger, json.dumps({"by": self._task.name, **line}).encode() + b"\n")

    def pass_point(self, point: str) -> None:
        """Be killed or stopped here, if this is where the trap is."""
        if point == self._task.trap:
            with self._lock:
                self._passed += 1
                sprung = self._passed == self._task.trap_at
            if sprung:
                self.note(what="trap", point=point)
                os.kill(os.getpid(), self._task.trap_signal)

    def work(self) -> None:
        """Run a worker until SIGTERM."""
        claim, complete, claim_name = ShardRunner.claim, ShardRunner.complete, QueueTables.claim_name
        process = self

        async def trapped_claim(self: ShardRunner, entries: Sequence[Entry]) -> None:
            for _ in entries:
                process.pass_point("before claim")
            await claim(self, entries)

        def trapped_complete(self: ShardRunner, entry: Entry, result: str | None) -> "asyncio.Future[None]":
            process.pass_point("before completion")
            written = complete(self, entry, result)
            written.add_done_callback(partial(note, entry.item_id, entry.attempts))
            return written

        async def trapped_claim_name(self: QueueTables, name: str, entry: Entry, seconds: int) -> Entry | None:
            first = await claim_name(self, name, entry, seconds)
            process.pass_point("after name")
            return first

        def note(item_id: UUID, attempt: int, written: "asyncio.Future[None]") -> None:
            if written.exception() is None:
                process.note(what="completed", item=str(item_id), attempt=attempt)
                process.pass_point("after completion")

        ShardRunner.claim = trapped_claim
        ShardRunner.complete = trapped_complete
        QueueTables.claim_name = trapped_claim_name
        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        handler = self.handle_with_step if self._task.steps else self.handle
        outcomes = Worker(self._settings, {self._task.queue: handler}).run(stop)
        self.note(what="ended", outcomes=dict(outcomes))

    def handle(self, item: Item) -> dict[str, Any]:
        """The effect: a line in the ledger, and the result that is fenced."""
        self.pass_point("after claim")
        self.pass_point("before effect")
        about = {"item": str(item.item_id), "attempt": item.attempt, "key": item.key}
        self.note(what="effect", **about)
        time.sleep(self._task.work_seconds)
        self.pass_point("after effect")
        if item.payload in self._task.failing:
            raise ValueError("as told")
        return {"by": self._task.name, "attempt": item.attempt}

    async def handle_with_step(self, item: Item) -> dict[str, Any]:
        """As `handle`, and the effect is in a step. The ledger has each run of the step, and each return of it."""

        async def run() -> str:
            self.note(what="step", item=str(item.item_id))
            await asyncio.sleep(self._task.work_seconds)
            self.pass_point("before record")
            return f"{self._task.name}/{item.attempt}"

        step = await item.step("effect", run)
        self.note(what="recorded", item=str(item.item_id), step=step)
        self.pass_point("after record")
        if self._task.sleeps:
            await item.sleep("nap", 0.5)
            self.note(what="event", item=str(item.item_id), event=await item.wait_event("go", 600))
        if self._fails_at_first(item):
            raise ValueError("as told")
        return {**self.handle(item), "step": step}

    @staticmethod
    def _fails_at_first(item: Item) -> bool:
        return item.attempt == 1 and item.payload % 5 == 0

    def enqueue(self) -> None:
        """Enqueue items of a few keys, each after the acknowledgement of the one before."""
        with Enqueuer(self._settings) as enqueuer:
            for n in range(self._task.count):
                key = f"{self._task.name}-{n % self._task.keys}"
                ids: list[UUID] = []
                try:
                    ids = enqueuer.enqueue_many(self._task.queue, [NewItem(n, key)])
                except EnqueueUnknown as e:
                    self.note(what="unknown", items=[str(i) for i in e.item_ids])
                for item_id in ids:
                    self.note(what="acknowledged", item=str(item_id), key=key, n=n)
                time.sleep(self._task.pause)


def set_clock_off(seconds: float) -> None:
    """Let this process's wall clock be wrong, as its libraries see it."""
    right = time.time, time.time_ns

    class ShiftedDatetime(real_datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.fromtimestamp(time.time(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return cls.utcfromtimestamp(time.time())

    time.time = lambda: right[0]() + seconds
    time.time_ns = lambda: right[1]() + int(seconds * 1e9)
    sys.modules["datetime"].datetime = ShiftedDatetime  # pyright: ignore[reportAttributeAccessIssue]


def main() -> None:
    """Do the work that the arguments name."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("cassandra").setLevel(logging.CRITICAL)
    task = Task(**json.loads(sys.argv[2]))
    if task.clock_offset:
        set_clock_off(task.clock_offset)
    process = Process(task)
    process.work() if sys.argv[1] == "work" else process.enqueue()


if __name__ == "__main__":
    main()
