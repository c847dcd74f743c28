"""A running worker: its shards, its claimed items, and their outcomes.

Items are claimed in groups, as many as fit into one write, and wait in memory until their handlers may run. No handler
waits until completions are written: these form the next write while the previous one is in flight.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, NamedTuple

from writetime.clients.prepared_statements import UnknownWrite
from writetime.core.config import WorkQueue
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError, reason_of
from writetime.workqueue.attempts import Attempt, Attempts, Handler
from writetime.workqueue.context import DatabaseClock, QueueContext, wait_for_event
from writetime.workqueue.enqueue import AsyncEnqueuer
from writetime.workqueue.faults import TRIES, Faults
from writetime.workqueue.items import Entry, Status, time_of
from writetime.workqueue.metrics import QueueMetrics, WorkerMetrics
from writetime.workqueue.partition import ShardFenced
from writetime.workqueue.queue_tables import QueueTables
from writetime.workqueue.recurrence import Recurrence
from writetime.workqueue.runner import Controls, ShardRunner
from writetime.workqueue.shard_leases import ShardLease, ShardLeases

log = logging.getLogger(__name__)

# The time for which claimed items wait for a thread. Claims are ahead of the work by this time.
_AHEAD_SECONDS = 0.1
_MOST_AHEAD = 4096
_REGISTRY_BUCKETS = 2
_IDLE_ROUNDS_SECONDS = 0.2
_OBSERVE_SECONDS = 5.0


class _Steps(NamedTuple):
    """The steps of an item of a runner."""

    runner: ShardRunner
    entry: Entry

    async def load(self) -> Mapping[str, str]:
        return await self.runner.steps(self.entry)

    async def record(self, name: str, result: str) -> None:
        await self.runner.record_step(self.entry, name, result)

    async def event(self, name: str) -> str | None:
        return await self.runner.event(self.entry, name)

    def now(self) -> int:
        return self.runner.now()


class WorkerLoop:
    """A running worker, on one event loop and one set of tables."""

    def __init__(
        self,
        tables: QueueTables,
        settings: WorkQueue,
        handlers: Mapping[str, Handler],
        name: str,
        *,
        metrics: WorkerMetrics | None = None,
        coroutine_loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Set up. `coroutine_loop` is as in `Attempts`."""
        self._tables = tables
        self._settings = settings
        self._handlers = dict(handlers)
        self._name = name
        self._metrics = {} if metrics is None else {queue: metrics.of(queue) for queue in handlers}
        self._monotonic = asyncio.get_running_loop().time
        self._clock = DatabaseClock(tables, self._monotonic)
        self._faults = Faults(tables, name, self._monotonic, self._metrics)
        self._enqueuer = AsyncEnqueuer(tables, settings, self._clock)
        self._leases: dict[str, ShardLeases] = {}
        self._recurrences: dict[str, Recurrence] = {}
        self._runners: dict[ShardLease, ShardRunner] = {}
        # Queues that cannot be opened, or whose buckets cannot be listed, with the database's reasons.
        self._unopened: dict[str, str] = {}
        self._unlisted: dict[str, str] = {}
        # Queues whose buckets could be listed at the last attempt.
        self._listed: set[str] = set()
        self._news: dict[str, asyncio.Event] = {queue: asyncio.Event() for queue in handlers}
        self._work = asyncio.Event()
        self._attempts = Attempts(settings.threads, self._exhausted, coroutine_loop)
        self._tasks: set[asyncio.Task[None]] = set()
        # Items that were taken and are not settled.
        self._claimed = 0
        self._handler_seconds = 1.0
        self._stopping = False
        self._over = False
        self._fault: BaseException | None = None
        self._ended = asyncio.Event()
        self.outcomes: Counter[str] = Counter()

    async def serve(self, ended: asyncio.Event, *, until_idle: bool) -> Counter[str]:
        """Process items until `ended` is set, or there is nothing to do."""
        self._ended = ended
        await self._begin()
        own = [self._dispatch(), *(self._work_on(queue) for queue in self._handlers)]
        if self._metrics:
            own.append(self._observe())
        if until_idle:
            own.append(self._end_when_idle())
        for work in own:
            self._start(work)
        try:
            await ended.wait()
            given_up = self._given_up()
            await self._leave()
        finally:
            self._over = True
            started, runners = list(self._tasks), list(self._runners.values())
            for task in [*started, *(runner.task for runner in runners)]:
                task.cancel()
            await asyncio.gather(*started, return_exceptions=True)
            for runner in runners:
                await runner.stop()
            await self._faults.end()
            await self._attempts.end()
        if self._fault is None and until_idle and given_up:
            raise WritetimeError(f"given up after {TRIES} tries, with unfinished items: {'; '.join(given_up)}")
        if self._fault is not None:
            raise self._fault
        return self.outcomes

    def hinted(self, queue: str) -> None:
        """Look for items of a queue at once."""
        if queue in self._news:
            self._news[queue].set()
            for runner in self._runners_of(queue):
                runner.poll_now()

    def _runners_of(self, queue: str) -> list[ShardRunner]:
        return [runner for runner in self._runners.values() if runner.queue == queue]

    async def _begin(self) -> None:
        """Open the queues; `_work_on` retries those that cannot be opened. Raises `WritetimeError` if the database
        refuses all of them.
        """
        refused: list[Exception] = []
        for queue in self._handlers:
            try:
                await self._open(queue)
            except Exception as e:
                self._not_opened(queue, e)
                if not isinstance(e, UnknownWrite):
                    refused.append(e)
        if len(refused) == len(self._handlers):
            await self._faults.end()
            raise refused[0]

    async def _open(self, queue: str) -> None:
        await self._clock.look()
        own = self._settings.queue(queue)
        shards, bucket_seconds = await self._tables.queue(queue, own.shards, self._settings.bucket_seconds)
        if not shards or shards < 1 or not bucket_seconds or bucket_seconds < 1:
            raise WritetimeError(
                f"queue {queue} has {pluralize(shards, 'shard')} and buckets of {bucket_seconds} s in the table "
                "queues; restore the values that it was created with"
            )
        if own.concurrency is not None and own.concurrency < shards:
            raise WritetimeError(
                f"queue {queue}: concurrency {own.concurrency} is less than its {pluralize(shards, 'shard')}, each of "
                "which runs at least one item"
            )
        context = QueueContext(
            self._tables, self._clock, self._faults, self._settings, queue, shards, bucket_seconds, self._name
        )
        self._leases[queue] = ShardLeases(
            context,
            partial(self._gain, context),
            self._lose,
            lambda lease: self._runners[lease].drained(),
            self._news[queue].set,
        )
        self._recurrences[queue] = Recurrence(context, self._enqueuer, partial(self._owns, queue))
        self._unopened.pop(queue, None)

    async def _work_on(self, queue: str) -> None:
        """Manage a queue, which is opened first if necessary."""
        while queue not in self._leases:
            refused = queue in self._unopened
            await asyncio.sleep(self._faults.rest_seconds if refused else self._settings.idle_poll_seconds)
            try:
                await self._open(queue)
            except Exception as e:
                self._not_opened(queue, e)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._leases[queue].keep())
            group.create_task(self._registry(queue))
            group.create_task(self._recurrences[queue].keep())

    def _owns(self, queue: str, shard: int) -> bool:
        """Return whether this worker starts items of a shard."""
        held = self._leases[queue].held.get(shard)
        return held is not None and held.valid and not held.leaving

    def _not_opened(self, queue: str, error: Exception) -> None:
        self._faults.note(queue, "opening", error)
        # A database that does not answer may do so soon.
        if not isinstance(error, UnknownWrite):
            self._unopened[queue] = reason_of(error)

    def _given_up(self) -> list[str]:
        """Return the queues and shards that are not processed because of faults."""
        queues = [*self._unopened.items(), *self._unlisted.items()]
        found = [f"queue {queue}: {reason}" for queue, reason in queues]
        for queue, leases in self._leases.items():
            found += [f"queue {queue}, shard {shard}: {reason}" for shard, reason in leases.given_up.items()]
        return found

    def _gain(self, context: QueueContext, lease: ShardLease) -> None:
        runner = ShardRunner(context, lease, self._work.set)
        runner.task.add_done_callback(partial(self._runner_ended, runner))
        self._runners[lease] = runner
        self._news[context.queue].set()
        log.info("queue %s, shard %d: taken with epoch %d", context.queue, lease.row.shard, lease.epoch)

    def _runner_ended(self, runner: ShardRunner, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, ShardFenced):
            self._fenced(runner)
        elif error is not None:
            self._set_aside(runner, error)

    def _set_aside(self, runner: ShardRunner, error: BaseException) -> None:
        self._leases[runner.queue].set_aside(runner.lease, error)

    def _fenced(self, runner: ShardRunner) -> None:
        self._leases[runner.queue].lose(runner.lease)

    def _lose(self, lease: ShardLease) -> None:
        if (runner := self._runners.pop(lease, None)) is None:
            # It could not be begun.
            return
        runner.task.cancel()
        self._start(runner.stop())
        log.info("queue %s, shard %d: given up, epoch %d", runner.queue, lease.row.shard, lease.epoch)

    def _note_fault(self, task: "asyncio.Task[None]") -> None:
        """End the worker if one of its own tasks has ended by an error. Nothing but the end cancels these tasks."""
        error = RuntimeError("a task of the worker was cancelled") if task.cancelled() else task.exception()
        if error is not None and not self._over:
            log.error("the worker ends: %s", reason_of(error), exc_info=error)
            self._fault = self._fault or error
            self._ended.set()

    def _exhausted(self, reason: str) -> None:
        """End the worker, because handlers have taken its threads; a new process has none of them."""
        if self._fault is None:
            self._fault = WritetimeError(f"the worker ends, and must be started again: {reason}")
        self._ended.set()

    async def _registry(self, queue: str) -> None:
        """Pass the existing buckets to the runners of a queue, some time before they begin.

        Delayed items may have thousands of later ones. Leaving these out changes no order: passed buckets are earlier.
        """
        around = _REGISTRY_BUCKETS * self._leases[queue].context.bucket_seconds * 1000
        ahead = around + round(self._settings.clock_tolerance_seconds * 1000)
        told: set[ShardRunner] = set()
        complete = self._monotonic()
        leases, news, controls = self._leases[queue], self._news[queue], Controls()
        while True:
            news.clear()
            try:
                await self._clock.look()
                # Before any shard is offered a bucket, so its owner knows what was asked for before it took the shard.
                if (change := leases.controls) != controls.change:
                    schedules = await self._tables.schedules(queue)
                    controls = Controls(change, await self._tables.pauses(queue))
                    self._recurrences[queue].renew(schedules, controls.pauses)
                runners = self._runners_of(queue)
                # List all buckets for a new shard and at intervals, otherwise only the new ones.
                began, now = self._monotonic(), self._clock.now()
                whole = {*runners} - told or began - complete > self._settings.rescan_seconds
                since = 0 if whole else now - around
                found = await self._tables.buckets(queue, since, now + ahead) if runners else {}
                complete = began if whole else complete
                for runner in runners:
                    shard = runner.lease.row.shard
                    try:
                        runner.control(controls)
                        runner.offer({place.bucket: closed for place, closed in found.items() if place.shard == shard})
                    except Exception as e:
                        self._set_aside(runner, e)
                told = set(runners)
                self._listed.add(queue)
                self._unlisted.pop(queue, None)
            except UnknownWrite as e:
                self._listed.discard(queue)
                log.warning("queue %s: buckets cannot be listed: %s", queue, e)
            except Exception as e:
                self._listed.discard(queue)
                if self._faults.note(queue, "buckets", e) >= self._faults.rest_seconds:
                    self._unlisted[queue] = reason_of(e)
            await wait_for_event(news, self._settings.idle_poll_seconds)

    async def _dispatch(self) -> None:
        """Claim the items that may run, queues of higher priority first, as far ahead as the handlers' speed allows."""
        turn = 0
        while True:
            self._work.clear()
            ahead = self._settings.threads * _AHEAD_SECONDS / max(self._handler_seconds, 1e-5)
            room = self._settings.threads + min(_MOST_AHEAD, round(ahead)) - self._claimed
            runners = list(self._runners.values())
            turn += 1
            if runners:
                runners = runners[turn % len(runners) :] + runners[: turn % len(runners)]
            runners.sort(key=lambda r: -r.own.priority)
            wait: float | None = None
            for runner in runners:
                if room <= 0 or self._stopping:
                    break
                try:
                    if entries := runner.take(min(room, self._settings.batch_rows)):
                        room -= len(entries)
                        self._claimed += len(entries)
                        self._start(self._claim(runner, entries))
                    due = runner.next_due()
                except Exception as e:
                    self._set_aside(runner, e)
                    continue
                wait = due if wait is None else wait if due is None else min(wait, due)
            if room <= 0 or self._stopping:
                wait = None
            await wait_for_event(self._work, None if wait is None else max(wait, 0.001))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._note_fault)

    async def _claim(self, runner: ShardRunner, entries: list[Entry]) -> None:
        fresh = []
        for entry in entries:
            if entry.attempts < runner.own.max_attempts:
                fresh.append(entry)
            else:
                # Each attempt ended with the end of its worker.
                error = f"no outcome of {pluralize(entry.attempts, 'attempt')}: their workers ended"
                self._fail(runner, entry, error, give_up=True)
        try:
            await runner.claim(fresh)
        except Exception as e:
            self._refused(runner, len(fresh), e)
        else:
            if metrics := self._metrics.get(runner.queue):
                metrics.claimed.inc(len(fresh))
            for entry in fresh:
                self._start(self._work_through(runner, entry))

    async def _work_through(self, runner: ShardRunner, entry: Entry) -> None:
        try:
            await self._process(runner, entry)
        except Exception as e:
            place = f"shard {entry.place.shard}, bucket {entry.place.bucket}, item {entry.item_id}"
            self._faults.note(runner.queue, place, e)
            entry.faults += 1
            self._fail(runner, entry, reason_of(e), give_up=entry.faults >= TRIES)

    async def _process(self, runner: ShardRunner, entry: Entry) -> None:
        lease = runner.lease
        attempt = Attempt(
            self._handlers[runner.queue],
            entry,
            runner.own.time_limit_seconds,
            lambda: lease.valid,
            lambda: lease.valid and not (self._stopping or lease.leaving or runner.withholds(entry)),
            partial(runner.is_cancelled, entry),
            _Steps(runner, entry),
        )
        outcome = await self._attempts.run(attempt)
        if outcome is None and lease.valid:
            self._start(self._settle(runner, partial(runner.give_back, entry)))
            return
        if outcome is None:
            # A renewal in flight must not make it valid again, because this item would then be forgotten.
            self._fenced(runner)
            self._settled(1)
            return
        if metrics := self._metrics.get(runner.queue):
            due = entry.due or time_of(entry.item_id)
            metrics.waited.observe(max(0.0, (self._clock.now() - due) / 1000 - outcome.seconds))
            metrics.ran.observe(outcome.seconds)
        self._handler_seconds += 0.05 * (outcome.seconds - self._handler_seconds)
        if outcome.status is Status.COMPLETED:
            runner.complete(entry, outcome.text).add_done_callback(partial(self._completed, runner, entry))
        elif outcome.asleep is not None:
            self._start(self._settle(runner, partial(runner.sleep, entry, outcome.asleep)))
        else:
            self._fail(runner, entry, outcome.text or "", give_up=outcome.status is Status.DEAD)

    def _completed(self, runner: ShardRunner, entry: Entry, written: "asyncio.Future[None]") -> None:
        if error := written.exception():
            self._refused(runner, 1, error)
        else:
            self._settled(1)
            self._count(runner, "completed")
            try:
                runner.release(entry)
            except Exception as e:
                self._set_aside(runner, e)

    def _fail(self, runner: ShardRunner, entry: Entry, error: str, *, give_up: bool) -> None:
        self._start(self._settle(runner, partial(runner.fail, entry, error, give_up=give_up)))

    async def _settle(self, runner: ShardRunner, write: Callable[[], Awaitable[Status | None]]) -> None:
        """Write the new state of an item that is not completed, and count it if this is the outcome of an attempt."""
        try:
            status = await write()
        except Exception as e:
            self._refused(runner, 1, e)
            return
        self._settled(1)
        if status is not None:
            self._count(runner, status.lower())

    def _refused(self, runner: ShardRunner, count: int, error: BaseException) -> None:
        """Record that the outcomes of items were not written."""
        self._settled(count)
        if self._over:
            return
        if not isinstance(error, ShardFenced):
            self._set_aside(runner, error)
            return
        self._count(runner, "fenced", count)
        log.warning("queue %s: %s: refused: %s", runner.queue, pluralize(count, "item"), error)
        self._fenced(runner)

    def _count(self, runner: ShardRunner, outcome: str, count: int = 1) -> None:
        self.outcomes[outcome] += count
        if metrics := self._metrics.get(runner.queue):
            metrics.outcomes[outcome].inc(count)

    def _settled(self, count: int) -> None:
        self._claimed -= count
        self._work.set()

    async def _observe(self) -> None:
        while True:
            for queue, metrics in self._metrics.items():
                try:
                    self._observe_queue(queue, metrics)
                except Exception as e:
                    self._faults.note(queue, "metrics", e)
            await asyncio.sleep(_OBSERVE_SECONDS)

    def _observe_queue(self, queue: str, metrics: QueueMetrics) -> None:
        now = self._clock.now()
        runners = self._runners_of(queue)
        oldest = [time_of(i) for runner in runners if (i := runner.buckets.oldest) is not None]
        values = {
            "shards": len(runners),
            "shards_set_aside": len(self._leases[queue].aside) if queue in self._leases else 0,
            "waiting_items": sum(runner.backlog.waiting for runner in runners),
            "running_items": sum(runner.backlog.running for runner in runners),
            "oldest_item_seconds": max([0.0, *((now - at) / 1000 for at in oldest)]),
        }
        for name, value in values.items():
            metrics.gauges[name].set(value)

    async def _end_when_idle(self) -> None:
        """End once every shard has an owner, and ours have had nothing to do for a while."""
        quiet = 0
        while quiet < 3:
            await asyncio.sleep(max(_IDLE_ROUNDS_SECONDS, self._settings.poll_seconds))
            idle = bool(self._runners or self._given_up()) and not self._claimed
            quiet = quiet + 1 if idle and all(self._idle(queue) for queue in self._handlers) else 0
        self._ended.set()

    def _idle(self, queue: str) -> bool:
        """Return whether we have nothing to do in a queue; shards that were given up are reported at the end."""
        if queue in self._unopened:
            return True
        unlisted = queue in self._unlisted
        if not (unlisted or queue in self._listed) or not self._leases[queue].complete:
            return False
        if not self._recurrences[queue].settled:
            return False
        return all(runner.quiet or (unlisted and not runner.offered) for runner in self._runners_of(queue))

    async def _leave(self) -> None:
        """Start nothing more, wait for running items, and release the shards."""
        self._stopping = True
        self._work.set()
        for leases in self._leases.values():
            leases.stopping = True
        releases = [s.release(h) for s in self._leases.values() for h in list(s.held.values())]
        try:
            async with asyncio.timeout(self._settings.drain_seconds):
                await asyncio.gather(*releases, return_exceptions=True)
        except TimeoutError:
            seconds = self._settings.drain_seconds
            log.warning(
                "%s not finished after %g s; other workers repeat the work", pluralize(self._claimed, "item"), seconds
            )
            held = [(s, h) for s in self._leases.values() for h in list(s.held.values())]
            await asyncio.gather(*(s.abandon(h) for s, h in held), return_exceptions=True)
        await asyncio.gather(*(s.leave() for s in self._leases.values()), return_exceptions=True)
