"""The worker: keeps its share of the shards of its queues, and runs handlers for their items.

A handler takes an `Item`. What it returns, as JSON, is kept with the item's completion in one fenced write: exactly
once, whatever happens to workers. What else it does happens at least once: the item's id is its idempotency key. A
handler may be an ordinary function, which runs in one of the worker's threads, or a coroutine function, which runs on
the worker's event loop. An exception is a failed attempt; `GiveUp` makes the item a dead letter at once.
"""

import asyncio
import inspect
import json
import logging
import os
import platform
import secrets
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from writetime.config import Settings, WorkQueue
from writetime.database import connect
from writetime.errors import WritetimeError
from writetime.workqueue.clock import DatabaseClock
from writetime.workqueue.context import QueueContext
from writetime.workqueue.hints import Hint
from writetime.workqueue.items import Entry, GiveUp, Item, Status
from writetime.workqueue.partition import Fenced
from writetime.workqueue.runner import ShardRunner
from writetime.workqueue.shards import Hold, Shares
from writetime.workqueue.tables import Tables, Unknown, as_json

log = logging.getLogger(__name__)

Handler = Callable[[Item], Any] | Callable[[Item], Awaitable[Any]]

# Claimed items wait for a thread for about so long: claims go ahead of the work by it.
_AHEAD_SECONDS = 0.1
_MOST_AHEAD = 1024
_REGISTRY_BUCKETS = 2
_IDLE_ROUNDS_SECONDS = 0.2


class Worker:
    """Works on queues, each with a handler."""

    def __init__(self, settings: Settings, handlers: Mapping[str, Handler], hint: Hint | None = None) -> None:
        """Set a worker up; `run` starts it. `hint` wakes it up before it would look again by itself."""
        self.name = f"{platform.node()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._settings = settings
        self._own = settings.workqueue
        self._handlers = dict(handlers)
        self._hint = hint

    def run(self, stop: threading.Event | None = None, *, until_idle: bool = False) -> Counter[str]:
        """Work until `stop` is set, or until there is nothing to do; then end gracefully.

        Returns:
            How many attempts were completed, failed (`retry`), made an item `dead`, or were refused by the fence.

        Raises:
            DatabaseUnreachable: no contact point answers at the start.
            WritetimeError: the database refuses a statement.
        """
        with connect(self._settings) as session:
            session.use_client_timestamp = False
            tables = Tables(session, self._settings)
            return asyncio.run(self._run(tables, stop, until_idle=until_idle))

    async def _run(self, tables: Tables, stop: threading.Event | None, *, until_idle: bool) -> Counter[str]:
        ended = asyncio.Event()
        running = Running(tables, self._own, self._handlers, self.name)
        watcher = asyncio.create_task(_watch(stop, ended))
        if self._hint is not None:
            loop = asyncio.get_running_loop()
            self._hint.start(partial(loop.call_soon_threadsafe, running.hinted))
        try:
            return await running.serve(ended, until_idle=until_idle)
        finally:
            watcher.cancel()
            if self._hint is not None:
                self._hint.stop()


async def _watch(stop: threading.Event | None, ended: asyncio.Event) -> None:
    while stop is not None and not stop.is_set():
        await asyncio.sleep(0.05)
    if stop is not None:
        ended.set()


class Running:
    """A worker while it runs, on one event loop and one set of tables."""

    def __init__(self, tables: Tables, settings: WorkQueue, handlers: Mapping[str, Handler], name: str) -> None:
        self._tables = tables
        self._settings = settings
        self._handlers = handlers
        self._name = name
        self._monotonic = asyncio.get_running_loop().time
        self._clock = DatabaseClock(tables, self._monotonic)
        self._shares: dict[str, Shares] = {}
        self._runners: dict[Hold, tuple[ShardRunner, asyncio.Task[None]]] = {}
        self._contexts: dict[str, QueueContext] = {}
        self._news: dict[str, asyncio.Event] = {queue: asyncio.Event() for queue in handlers}
        self._work = asyncio.Event()
        self._slots = asyncio.Semaphore(settings.threads)
        self._threads = ThreadPoolExecutor(settings.threads, "handler")
        self._items: set[asyncio.Task[None]] = set()
        self._claimed = 0
        self._handler_seconds = 1.0
        self._stopping = False
        self._fault: BaseException | None = None
        self._ended = asyncio.Event()
        self.outcomes: Counter[str] = Counter()

    async def serve(self, ended: asyncio.Event, *, until_idle: bool) -> Counter[str]:
        """Work until `ended` is set, or there is nothing to do."""
        self._ended = ended
        await self._begin()
        tasks = [asyncio.create_task(self._dispatch())]
        for queue, shares in self._shares.items():
            tasks += [asyncio.create_task(shares.keep()), asyncio.create_task(self._registry(queue))]
        if until_idle:
            tasks.append(asyncio.create_task(self._end_when_idle()))
        for task in tasks:
            task.add_done_callback(self._note_fault)
        try:
            await ended.wait()
            if self._fault is None:
                await self._leave()
        finally:
            for task in [*tasks, *(task for _, task in self._runners.values()), *self._items]:
                task.cancel()
            await asyncio.gather(*tasks, *self._items, return_exceptions=True)
            for runner, _ in list(self._runners.values()):
                await runner.stop()
            self._threads.shutdown(wait=False, cancel_futures=True)
        if self._fault is not None:
            raise self._fault
        return self.outcomes

    def hinted(self, queue: str) -> None:
        """Look for items of a queue at once."""
        if queue in self._news:
            self._news[queue].set()
            for runner, _ in self._runners.values():
                if runner.queue == queue:
                    runner.poll_now()

    async def _begin(self) -> None:
        while True:
            try:
                await self._clock.look()
                for queue in self._handlers:
                    own = self._settings.queue(queue)
                    shards, bucket_seconds = await self._tables.queue(queue, own.shards, self._settings.bucket_seconds)
                    if own.concurrency is not None and own.concurrency < shards:
                        raise WritetimeError(
                            f"queue {queue}: concurrency {own.concurrency} is less than its {shards} shards, each of "
                            "which runs one item at least"
                        )
                    context = QueueContext(
                        self._tables, self._clock, self._settings, queue, shards, bucket_seconds, self._name
                    )
                    self._contexts[queue] = context
                    self._shares[queue] = Shares(context, partial(self._gain, context), self._lose, self._drain)
                return
            except Unknown as e:
                log.warning("the database cannot be asked yet: %s", e)
                await asyncio.sleep(self._settings.idle_poll_seconds)

    def _gain(self, context: QueueContext, hold: Hold) -> None:
        runner = ShardRunner(context, hold, self._work.set)
        task = asyncio.create_task(runner.run())
        task.add_done_callback(lambda task: self._runner_ended(hold, task))
        self._runners[hold] = runner, task
        self._news[context.queue].set()
        log.info("queue %s, shard %d: taken with epoch %d", context.queue, hold.row.shard, hold.epoch)

    def _runner_ended(self, hold: Hold, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Fenced):
            self._fenced(hold)
        elif error is not None:
            self._note_fault(task)

    def _fenced(self, hold: Hold) -> None:
        for shares in self._shares.values():
            if shares.held.get(hold.row.shard) is hold:
                shares.lose(hold)

    def _lose(self, hold: Hold) -> None:
        runner, task = self._runners.pop(hold)
        task.cancel()
        stopping = asyncio.create_task(runner.stop())
        self._items.add(stopping)
        stopping.add_done_callback(self._items.discard)
        log.info("queue %s, shard %d: given up, epoch %d", runner.queue, hold.row.shard, hold.epoch)

    async def _drain(self, hold: Hold) -> None:
        await self._runners[hold][0].drained()

    def _note_fault(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fault = self._fault or error
            self._ended.set()

    async def _registry(self, queue: str) -> None:
        """Tell the runners of a queue which buckets there are."""
        bucket_millis = self._contexts[queue].bucket_seconds * 1000
        told: set[Hold] = set()
        complete = self._monotonic()
        while True:
            news = self._news[queue]
            news.clear()
            try:
                await self._clock.look()
                runners = {h: r for h, (r, _) in self._runners.items() if r.queue == queue}
                # All buckets for a new shard and once in a while; else the new ones.
                if whole := (runners.keys() - told or self._monotonic() - complete > self._settings.rescan_seconds):
                    complete = self._monotonic()
                since = 0 if whole else self._clock.now() - _REGISTRY_BUCKETS * bucket_millis
                rows = await self._tables.buckets(queue, since) if runners else []
                for hold, runner in runners.items():
                    runner.offer([row for row in rows if row.shard == hold.row.shard])
                told = set(runners)
            except Unknown as e:
                log.warning("queue %s: buckets cannot be listed: %s", queue, e)
            try:
                async with asyncio.timeout(self._settings.idle_poll_seconds):
                    await news.wait()
            except TimeoutError:
                pass

    async def _dispatch(self) -> None:
        """Claim what may run, queues of higher priority first, and as far ahead as the handlers are fast."""
        turn = 0
        while True:
            self._work.clear()
            ahead = self._settings.threads * _AHEAD_SECONDS / max(self._handler_seconds, 1e-5)
            room = self._settings.threads + min(_MOST_AHEAD, round(ahead)) - self._claimed
            runners = [runner for runner, _ in self._runners.values()]
            turn += 1
            if runners:
                runners = runners[turn % len(runners) :] + runners[: turn % len(runners)]
            runners.sort(key=lambda r: -r.own.priority)
            wait: float | None = None
            for runner in runners:
                if room <= 0 or self._stopping:
                    break
                entries = runner.take(min(room, self._settings.batch_rows))
                room -= len(entries)
                for entry in entries:
                    self._claimed += 1
                    task = asyncio.create_task(self._process(runner, entry))
                    self._items.add(task)
                    task.add_done_callback(self._done)
                due = runner.next_due()
                wait = due if wait is None else wait if due is None else min(wait, due)
            try:
                if room <= 0 or self._stopping:
                    wait = None
                async with asyncio.timeout(None if wait is None else max(wait, 0.001)):
                    await self._work.wait()
            except TimeoutError:
                pass

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._items.discard(task)
        self._claimed -= 1
        self._work.set()
        self._note_fault(task)

    async def _process(self, runner: ShardRunner, entry: Entry) -> None:
        """Claim an item, run its handler, and write what became of it."""
        try:
            if entry.attempts >= runner.own.max_attempts:
                # Each attempt ended with the end of its worker.
                await runner.fail(entry, f"no outcome of {entry.attempts} attempts: their workers ended", give_up=True)
                self.outcomes["dead"] += 1
                return
            await runner.claim(entry)
            async with self._slots:
                if not runner.hold.valid:
                    # Nor may it become valid again by a renewal on its way: this item would be forgotten.
                    self._fenced(runner.hold)
                    return
                if self._stopping or runner.hold.leaving:
                    await runner.give_back(entry)
                    return
                outcome, text = await self._handle(runner, entry)
            await self._settle(runner, entry, outcome, text)
        except Fenced as e:
            self.outcomes["fenced"] += 1
            log.warning("%s %s: refused: %s", entry.place.queue, entry.item_id, e)
            self._fenced(runner.hold)

    async def _settle(self, runner: ShardRunner, entry: Entry, outcome: Status, text: str | None) -> None:
        if outcome is Status.COMPLETED:
            await runner.complete(entry, text)
            self.outcomes["completed"] += 1
            return
        status = await runner.fail(entry, text or "", give_up=outcome is Status.DEAD)
        self.outcomes[status.lower()] += 1
        log.warning("%s %s: attempt %d: %s", entry.place.queue, entry.item_id, entry.attempts, text)

    async def _handle(self, runner: ShardRunner, entry: Entry) -> tuple[Status, str | None]:
        """Run the handler; return what is to become of the item, and its result or error."""
        item = Item(
            entry.place.queue,
            entry.item_id,
            entry.key,
            json.loads(entry.payload),
            entry.attempts,
            lambda: runner.hold.valid,
        )
        handler = self._handlers[entry.place.queue]
        began = self._monotonic()
        try:
            if inspect.iscoroutinefunction(handler):
                result = await handler(item)
            else:
                result = await asyncio.get_running_loop().run_in_executor(self._threads, handler, item)
            return Status.COMPLETED, None if result is None else as_json(result)
        except GiveUp as e:
            return Status.DEAD, str(e) or "given up by the handler"
        except Exception as e:
            return Status.RETRY, f"{type(e).__name__}: {e}"
        finally:
            self._handler_seconds += 0.05 * (self._monotonic() - began - self._handler_seconds)

    async def _end_when_idle(self) -> None:
        """End once every shard is held, by whomever, and ours have shown nothing for a while."""
        quiet = 0
        while quiet < 3:
            await asyncio.sleep(max(_IDLE_ROUNDS_SECONDS, self._settings.poll_seconds))
            runners = [runner for runner, _ in self._runners.values()]
            idle = bool(runners) and not self._items and all(runner.quiet for runner in runners)
            quiet = quiet + 1 if idle and all(s.complete for s in self._shares.values()) else 0
        self._ended.set()

    async def _leave(self) -> None:
        """Begin nothing more, wait for what runs, and give the shards up."""
        self._stopping = True
        self._work.set()
        for shares in self._shares.values():
            shares.stopping = True
        releases = [s.release(h) for s in self._shares.values() for h in list(s.held.values())]
        try:
            async with asyncio.timeout(self._settings.drain_seconds):
                await asyncio.gather(*releases)
        except TimeoutError:
            seconds = self._settings.drain_seconds
            log.warning("%d items still run after %g s; other workers repeat them", self._claimed, seconds)
        await asyncio.gather(*(s.leave() for s in self._shares.values()))
