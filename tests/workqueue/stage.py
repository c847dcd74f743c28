"""The stage of a fault test: processes on a real database behind a proxy, and the checker at the end.

The checker reads the database and the processes' ledger, and never a worker's counters. Each acknowledged item must be
completed or dead, each recorded completion must be the one in the database, and items of a key must run in order. A
slot of a schedule must have one item. A step that was recorded must not run again, and has one result.
"""

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from cassandra.cluster import Session

from tests.support.proxy import Proxy
from tests.support.waiting import PATIENCE_SECONDS
from tests.workqueue.process import Task
from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.workqueue.controls import AsyncControls
from writetime.workqueue.queue_tables import QueueTables


class Worker:
    """A process of this stage."""

    def __init__(self, mode: str, task: Task, folder: Path) -> None:
        self.name = task.name
        self.log = folder / f"{task.name}.log"
        with self.log.open("wb") as log:
            command = [sys.executable, "-m", "tests.workqueue.process", mode, json.dumps(asdict(task))]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    @property
    def stopped(self) -> bool:
        """Whether it is stopped by a signal."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def end(self) -> None:
        """End it as an operator does; it must end well."""
        self.signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.log.read_text()


class Stage:
    """Everything of one test."""

    def __init__(self, settings: Settings, queue: str, rng: random.Random, folder: Path) -> None:
        self.settings = settings
        self.queue = queue
        self.rng = rng
        self.proxy = Proxy(settings.cassandra, rng)
        self._folder = folder
        self._ledger = folder / "ledger"
        self._ledger.touch()
        self.processes: list[Worker] = []

    def __enter__(self) -> Self:
        self.proxy.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes:
            if process.running:
                process.process.kill()
                process.process.wait()
            if error is not None:
                print(f"--- {process.log.name}\n{process.log.read_text()[-6000:]}")
        self.proxy.__exit__(kind, error, trace)

    def worker(self, **task: Any) -> Worker:
        """Start a worker that reaches the database through the proxy."""
        return self._start("work", f"worker-{len(self.processes)}", task)

    def enqueuer(self, count: int, **task: Any) -> Worker:
        """Start a process that enqueues items."""
        return self._start("enqueue", f"enqueuer-{len(self.processes)}", {"count": count, **task})

    def _start(self, mode: str, name: str, task: dict[str, Any]) -> Worker:
        changes = {"contact_points": ["127.0.0.1"], "port": self.proxy.port, "request_timeout_seconds": 2.0}
        own = self.settings.cassandra.model_copy(update=changes)
        settings = self.settings.model_copy(update={"cassandra": own}).model_dump(mode="json")
        whole = Task(settings=settings, queue=self.queue, ledger=str(self._ledger), name=name, **task)
        self.processes.append(Worker(mode, whole, self._folder))
        return self.processes[-1]

    def lines(self, *kinds: str) -> list[dict[str, Any]]:
        """Return the lines of the ledger of some kinds, in order."""
        read = [json.loads(line) for line in self._ledger.read_text().splitlines()]
        return [line for line in read if line["what"] in kinds]

    def wait_for(self, what: str, at_least: int = 1) -> None:
        """Wait until the ledger has so many lines of a kind."""
        until(lambda: len(self.lines(what)) >= at_least, f"{at_least} times {what}")

    def cancel(self, count: int) -> None:
        """Cancel some of the acknowledged items, finished or not."""
        with connect(self.settings) as session, self._ledger.open("a") as ledger:
            for line in self.rng.sample(self.lines("acknowledged"), count):
                ledger.write(json.dumps({"what": "cancel", "item": line["item"]}) + "\n")
                ledger.flush()
                controls = AsyncControls(QueueTables(session, self.settings), self.settings)
                asyncio.run(controls.cancel(self.queue, UUID(line["item"])))

    def send_events(self) -> None:
        """Send an event to all acknowledged items; the first one counts."""
        with connect(self.settings) as session:
            controls = AsyncControls(QueueTables(session, self.settings), self.settings)
            for line in self.lines("acknowledged"):
                asyncio.run(controls.send_event(self.queue, UUID(line["item"]), "go", line["item"]))

    def finish(self) -> str:
        """Wait until all that was acknowledged is finished, end the workers, and check; return what was counted."""
        for process in self.processes:
            if process.name.startswith("enqueuer"):
                assert process.process.wait(PATIENCE_SECONDS) == 0, process.log.read_text()
        acknowledged = {line["item"]: line for line in self.lines("acknowledged")}
        with connect(self.settings) as session:
            until(lambda: not acknowledged.keys() - self._finished(session).keys(), "all items are finished")
            for process in self.processes:
                if process.name.startswith("worker") and process.running:
                    process.end()
            found, slots = self._finished(session), self._slots(session)
        assert len(set(slots.values())) == len(slots), f"a slot has several items: {sorted(slots.values())}"
        counts = self._check(acknowledged, {item: state for item, state in found.items() if item not in slots})
        return f"{counts}, {len(slots)} slots"

    def _finished(self, session: Session) -> dict[str, Any]:
        rows = self._rows(session, "item_id, status, result", "queue_state")
        return {str(row.item_id): row for row in rows if row.status in ("COMPLETED", "DEAD", "CANCELLED")}

    def _slots(self, session: Session) -> dict[str, str]:
        """Return the items of schedules with their slots."""
        rows = [(str(r.item_id), json.loads(r.payload)) for r in self._rows(session, "item_id, payload", "queue_items")]
        return {item: payload["slot"] for item, payload in rows if isinstance(payload, dict)}

    def _rows(self, session: Session, columns: str, table: str) -> Iterator[Any]:
        keyspace = self.settings.cassandra.keyspace
        buckets = session.execute(f"SELECT bucket, shard FROM {keyspace}.queue_buckets WHERE queue = %s", [self.queue])
        for row in buckets:
            query = f"SELECT {columns} FROM {keyspace}.{table} WHERE queue = %s AND shard = %s AND bucket = %s"
            yield from session.execute(query, [self.queue, row.shard, row.bucket])

    def _check(self, acknowledged: dict[str, Any], found: dict[str, Any]) -> str:
        unknown = {item for line in self.lines("unknown") for item in line["items"]}
        invented = found.keys() - acknowledged.keys() - unknown
        assert not invented, f"{len(invented)} items were never enqueued"
        lost = acknowledged.keys() - found.keys()
        assert not lost, f"{len(lost)} acknowledged items are lost: {sorted(lost)[:3]}"
        completions: dict[str, set[tuple[str, int]]] = defaultdict(set)
        for line in self.lines("completed"):
            completions[line["item"]].add((line["by"], line["attempt"]))
        winners = {}
        for item, state in found.items():
            if state.status == "COMPLETED":
                result = json.loads(state.result)
                winners[item] = result["by"], result["attempt"]
                completions[item].add(winners[item])
        twice = {item: by for item, by in completions.items() if len(by) > 1}
        assert not twice, f"completed more than once: {twice}"
        cancelled = {item for item, state in found.items() if state.status == "CANCELLED"}
        assert not cancelled & completions.keys(), "items are completed and cancelled"
        assert cancelled <= {line["item"] for line in self.lines("cancel")}, "items are cancelled that nobody cancelled"
        self._check_order(acknowledged, winners)
        self._check_steps({i: json.loads(s.result) for i, s in found.items() if s.status == "COMPLETED"})
        counts = f"{len(winners)} completed, {len(cancelled)} cancelled, {len(self.lines('effect'))} effects"
        return f"{len(acknowledged)} acknowledged, {len(unknown)} unknown, {counts}"

    def _check_order(self, acknowledged: dict[str, Any], winners: dict[str, tuple[str, int]]) -> None:
        """Effects that count, in the order in which they began, are in the order in which the items were sent."""
        by_key: dict[str, list[int]] = defaultdict(list)
        for line in self.lines("effect"):
            if winners.get(line["item"]) == (line["by"], line["attempt"]) and line["item"] in acknowledged:
                by_key[line["key"]].append(acknowledged[line["item"]]["n"])
        for key, numbers in by_key.items():
            assert numbers == sorted(numbers), f"items of {key} had their effects in the order {numbers}"

    def _check_steps(self, results: dict[str, Any]) -> None:
        """The ledger's lines are in the order of time, and the result of an item has that of its step."""
        recorded: dict[str, str] = {}
        for line in self.lines("step", "recorded"):
            item = line["item"]
            if line["what"] == "step":
                assert item not in recorded, f"the step of {item} was run again, by {line['by']}"
            else:
                assert recorded.setdefault(item, line["step"]) == line["step"], f"the step of {item} has two results"
        for line in self.lines("event"):
            assert line["event"] == line["item"], "an item has the event of another one"
        for item, result in results.items():
            assert result.get("step") == recorded.get(item), f"the step of {item} has another result"


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds; a database that is away does not hold it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        began = time.monotonic()
        try:
            if condition():
                return
        except Exception as e:
            what = f"{what} ({type(e).__name__}: {e})" if "(" not in what else what
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS:.0f} s in vain: {what}"
        # As `wait_until`: a check that takes long would slow down what it waits for.
        time.sleep(max(0.05, 2 * (time.monotonic() - began)))
