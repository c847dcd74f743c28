"""Runs handlers apart from the worker's event loop and with a time limit, so that no handler can stop the worker.

An ordinary function runs in a daemon thread. Coroutine functions share one event loop in another daemon thread. When an
attempt has reached its time limit, or its item is cancelled, `Item.held` becomes false, and a coroutine is cancelled.
An attempt that still runs a few seconds later is abandoned, because nothing can end a thread of Python: it counts as
failed, and its late result is discarded.

Attempts wait for one of the worker's lanes. The thread in which a handler ends begins the next attempt, and passes
outcomes to the worker in groups. If each attempt waited for the worker's loop twice, busy threads would wait for
Python's interpreter lock most of the time.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from inspect import iscoroutinefunction
from queue import SimpleQueue
from typing import Any, NamedTuple, cast

from writetime.core.counts import pluralize
from writetime.core.errors import plain_text, reason_of
from writetime.core.json_texts import from_json, to_json
from writetime.workqueue.items import Entry, GiveUp, Item, Status, is_time_limit
from writetime.workqueue.steps import Asleep, AttemptSteps, StepStore

log = logging.getLogger(__name__)

Handler = Callable[[Item], Any] | Callable[[Item], Awaitable[Any]]

# The database answers a conditional write beyond its limit for a mutation with a timeout, each time. The limit is half
# a commit log segment: 4 MiB embedded.
MAX_RESULT_BYTES = 4 * 1024 * 1024 - 64 * 1024

# The time that a handler gets to end after its limit, and that coroutines get when the worker ends.
GRACE_SECONDS = 5.0
_END_SECONDS = 1.0
_LOOK_SECONDS = 0.02
# How often limits are checked. A timer per attempt costs more than most attempts.
_WATCH_SECONDS = 0.05


class Outcome(NamedTuple):
    """The item's next status, its result as JSON or the error, and how long the handler ran.

    The handler's own thread measures the seconds, without the time for which the worker was busy with other items.
    """

    status: Status
    text: str | None
    seconds: float = 0.0
    # Of an item that sleeps.
    asleep: Asleep | None = None


class _NoJson(Exception):
    """The payload is not JSON; any client with write access to the table may have inserted it."""


def _item_of(attempt: "Attempt") -> Item:
    """Return the item that a handler receives. Raises `_NoJson` if the payload is not JSON."""
    entry = attempt.entry
    try:
        entry.payload.encode()
        payload = from_json(entry.payload)
    except (ValueError, RecursionError) as e:
        raise _NoJson(f"the payload cannot be read as JSON: {e}") from None
    steps = AttemptSteps(attempt.steps, attempt.held, attempt.loop, partial(_result, of="a step"))
    return Item(
        entry.place.queue, entry.item_id, entry.key, payload, entry.attempts, attempt.held, attempt.is_cancelled, steps
    )


def _run_function(attempt: "Attempt") -> Outcome:
    """Run an ordinary function; return the item's outcome. No exception leaves this, whatever the function raises."""
    began = time.monotonic()
    try:
        status, text = Status.COMPLETED, _result(attempt.handler(_item_of(attempt)))
    except BaseException as e:
        status, text = _failure(e)
    return Outcome(status, text, time.monotonic() - began)


async def _run_coroutine(attempt: "Attempt", deliver: Callable[[Outcome], None]) -> None:
    """Run a coroutine function, and deliver the item's outcome.

    The result of this coroutine's task would not do: a handler that has cancelled its own task would cancel it, too.
    """
    now = asyncio.get_running_loop().time
    began, asleep = now(), None
    try:
        status, text = Status.COMPLETED, _result(await cast(Awaitable[Any], attempt.handler(_item_of(attempt))))
    except Asleep as e:
        status, text, asleep = Status.SLEEPING, None, e
    except BaseException as e:
        status, text = _failure(e)
    deliver(Outcome(status, text, now() - began, asleep))


def _failure(error: BaseException) -> tuple[Status, str]:
    if isinstance(error, _NoJson):
        return Status.DEAD, str(error)
    if issubclass(type(error), GiveUp):
        return Status.DEAD, plain_text(error).encode(errors="backslashreplace").decode() or "given up by the handler"
    return Status.RETRY, reason_of(error)


def _result(value: Any, of: str = "the handler") -> str | None:
    """Return a result as JSON, None if there is none. Raises `ValueError` if it cannot be JSON, it has invalid Unicode,
    or is too large for the database.
    """
    if value is None:
        return None
    try:
        text = to_json(value)
    except (TypeError, ValueError, RecursionError) as e:
        raise ValueError(f"{of}'s result cannot be JSON: {e}") from None
    if (size := len(text.encode())) > MAX_RESULT_BYTES:
        raise ValueError(f"{of}'s result has {pluralize(size, 'byte')} of JSON, more than {MAX_RESULT_BYTES}")
    return text


@dataclass(eq=False)
class Attempt:
    """One run of a handler. `answer` is the outcome of the item, None if it was not begun. The time limit is that of
    the item, or else of its queue.
    """

    handler: Handler
    entry: Entry
    queue_limit_seconds: float
    is_owned: Callable[[], bool]
    may_begin: Callable[[], bool]
    is_cancelled: Callable[[], bool]
    steps: StepStore
    # When it took a lane, by the clock of the worker's loop; and whether it still has the lane.
    began: float = 0.0
    has_lane: bool = False
    expired: bool = False
    # When it was asked to end, because of its limit or of a cancelled item.
    end_asked_at: float | None = None
    # Of a coroutine that has begun; and whether its loop has called `cancel`.
    task: "asyncio.Task[None] | None" = None
    cancelled: bool = False

    def __post_init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Outcome | None] = self.loop.create_future()
        self.coroutine = iscoroutinefunction(self.handler)
        own = self.entry.time_limit_seconds
        self.limit_seconds = self.queue_limit_seconds if own is None else own

    @property
    def name(self) -> str:
        """The name in messages."""
        return f"item {self.entry.item_id} of queue {self.entry.place.queue}"

    def held(self) -> bool:
        """Return whether the worker still owns the item, the limit is not reached, and the item is not cancelled."""
        return not self.expired and self.is_owned() and not self.is_cancelled()

    def cancel(self) -> None:
        """Cancel the coroutine, on its loop."""
        self.cancelled = True
        if self.task is not None:
            self.task.cancel()

    @property
    def overdue(self) -> Outcome:
        """The outcome of an attempt that has reached its limit, or has not ended after its item was cancelled."""
        if not self.expired:
            text = f"the handler did not end within {GRACE_SECONDS:g} s after its item was cancelled"
            return Outcome(Status.RETRY, text, GRACE_SECONDS)
        limit_of = "queue" if self.entry.time_limit_seconds is None else "item"
        text = f"the handler did not end within {self.limit_seconds:g} s, the time limit of its {limit_of}"
        return Outcome(Status.RETRY, text, self.limit_seconds)


class Attempts:
    """The handlers that a worker runs, and those that it has abandoned."""

    def __init__(
        self,
        lanes: int,
        on_exhausted: Callable[[str], None],
        coroutine_loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Set up. At most `lanes` handlers run at once, besides abandoned ones. `on_exhausted` receives the reason if
        the worker must end. `coroutine_loop` runs the coroutines, by default a new loop in its own thread.
        """
        self._loop = asyncio.get_running_loop()
        self._most_abandoned = lanes
        self._on_exhausted = on_exhausted
        self._coroutine_loop = coroutine_loop
        self._own_loop = False
        self._ending = threading.Event()
        self._watching = False
        # The threads of handlers also use these, under the lock. The collector may end a lost coroutine within it.
        self._lock = threading.RLock()
        self._free = lanes
        self._waiting: deque[Attempt] = deque()
        # The queues of calls of the threads that wait for one; None ends a thread.
        self._idle: deque[SimpleQueue[Attempt | None]] = deque()
        # Those that have begun and not ended, also the abandoned ones.
        self._running: set[Attempt] = set()
        self._abandoned: set[Attempt] = set()
        self._outcomes: deque[tuple[Attempt, Outcome | None]] = deque()
        self._collecting = False

    async def run(self, attempt: Attempt) -> Outcome | None:
        """Run a handler once a lane is free; return the item's outcome: a failure if the handler does not end within
        the limit of the item, or else of its queue. Return None if it may not begin any more when a lane is free.
        """
        if not is_time_limit(attempt.limit_seconds):
            # Any client with write access to the table may have inserted it.
            return Outcome(Status.DEAD, f"the item's time limit of {attempt.limit_seconds:g} s is invalid")
        if attempt.coroutine:
            self._coroutines()
        with self._lock:
            self._waiting.append(attempt)
        self._fill(on_coroutines=False)
        if not self._watching:
            self._watching = True
            self._loop.call_later(_WATCH_SECONDS, self._watch)
        return await attempt.answer

    async def end(self) -> None:
        """Cancel the coroutines, and end the threads. A handler that goes on keeps its thread, which is a daemon."""
        self._ending.set()
        with self._lock:
            self._waiting.clear()
            running, idle = list(self._running), list(self._idle)
            self._idle.clear()
        for calls in idle:
            calls.put(None)
        for attempt in running:
            attempt.expired = True
            if attempt.coroutine:
                self._coroutines().call_soon_threadsafe(attempt.cancel)
        began = self._loop.time()
        while any(a.task and not a.task.done() for a in running) and self._loop.time() < began + _END_SECONDS:
            await asyncio.sleep(_LOOK_SECONDS)
        if self._own_loop:
            loop = self._coroutines()
            loop.call_soon_threadsafe(loop.stop)

    def _fill(self, *, on_coroutines: bool) -> None:
        """Begin attempts while lanes are free; from any thread. `on_coroutines`: it is that of the coroutines."""
        while True:
            with self._lock:
                if not self._free or not self._waiting:
                    return
                attempt = self._waiting.popleft()
                begins = attempt.may_begin()
                if begins:
                    attempt.began, attempt.has_lane = self._loop.time(), True
                    self._free -= 1
                    self._running.add(attempt)
                calls = self._idle.pop() if begins and not attempt.coroutine and self._idle else None
            if not begins:
                self._pass_on(attempt, None)
                continue
            try:
                if not attempt.coroutine:
                    (calls or self._new_thread()).put(attempt)
                elif on_coroutines:
                    self._begin(attempt)
                else:
                    self._coroutines().call_soon_threadsafe(self._begin, attempt)
            except RuntimeError as e:
                # No thread can be started.
                self._pass_on(attempt, Outcome(Status.RETRY, reason_of(e)))
                self._release(attempt)

    def _begin(self, attempt: Attempt) -> None:
        work = _run_coroutine(attempt, partial(self._ended_coroutine, attempt))
        attempt.task = asyncio.get_running_loop().create_task(work)
        attempt.task.add_done_callback(partial(self._task_ended, attempt))

    def _task_ended(self, attempt: Attempt, task: "asyncio.Task[None]") -> None:
        # Another handler may have cancelled it before its first step, which then runs none of its code.
        if task.cancelled():
            outcome = Outcome(Status.RETRY, "CancelledError: the handler's task was cancelled")
            self._ended_coroutine(attempt, outcome)

    def _ended_coroutine(self, attempt: Attempt, outcome: Outcome) -> None:
        self._pass_on(attempt, outcome)
        self._release(attempt)
        self._fill(on_coroutines=True)

    def _new_thread(self) -> "SimpleQueue[Attempt | None]":
        calls: SimpleQueue[Attempt | None] = SimpleQueue()
        threading.Thread(target=self._serve, args=(calls,), name="handler", daemon=True).start()
        return calls

    def _serve(self, calls: "SimpleQueue[Attempt | None]") -> None:
        """Run one handler after the other, in a thread."""
        while (attempt := calls.get()) is not None:
            outcome = _run_function(attempt)
            if self._ending.is_set():
                break
            self._pass_on(attempt, outcome)
            with self._lock:
                self._idle.append(calls)
            self._release(attempt)
            self._fill(on_coroutines=False)

    def _release(self, attempt: Attempt) -> None:
        with self._lock:
            self._free += attempt.has_lane
            attempt.has_lane = False

    def _pass_on(self, attempt: Attempt, outcome: Outcome | None) -> None:
        """Pass an outcome to the worker, from any thread; a worker that has ended takes none."""
        self._outcomes.append((attempt, outcome))
        # The flag is set after the outcome, and reset before outcomes are read: none is left behind.
        if not self._collecting:
            self._collecting = True
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        self._collecting = False
        while self._outcomes:
            attempt, outcome = self._outcomes.popleft()
            with self._lock:
                self._running.discard(attempt)
            self._abandoned.discard(attempt)
            if not attempt.answer.done():
                cut_short = attempt.expired and outcome is not None and outcome.status is Status.RETRY
                attempt.answer.set_result(attempt.overdue if cut_short else outcome)

    def _watch(self) -> None:
        """Look for handlers that have to end, as long as there are attempts."""
        with self._lock:
            running = list(self._running)
            self._watching = bool(running or self._waiting)
        now = self._loop.time()
        for attempt in running:
            if attempt.end_asked_at is None:
                attempt.expired = now - attempt.began >= attempt.limit_seconds
                if attempt.expired or attempt.is_cancelled():
                    attempt.end_asked_at = now
                    if attempt.coroutine:
                        self._coroutines().call_soon_threadsafe(attempt.cancel)
            elif now - attempt.end_asked_at >= GRACE_SECONDS:
                self._abandon(attempt)
        if self._watching:
            self._loop.call_later(_WATCH_SECONDS, self._watch)

    def _abandon(self, attempt: Attempt) -> None:
        """Continue without a handler that does not end."""
        if attempt.answer.done():
            return
        self._abandoned.add(attempt)
        attempt.answer.set_result(attempt.overdue)
        self._release(attempt)
        self._fill(on_coroutines=False)
        abandoned = pluralize(len(self._abandoned), "handler")
        log.error(
            "%s: %s, and still runs; the worker continues without it (abandoned: %s; it ends with more than %d)",
            attempt.name,
            attempt.overdue.text,
            abandoned,
            self._most_abandoned,
        )
        if attempt.coroutine and not attempt.cancelled:
            present = asyncio.current_task(self._coroutines())
            with self._lock:
                running = list(self._running)
            blocking = next((a.name for a in running if present and a.task is present), attempt.name)
            self._on_exhausted(
                f"the event loop of all async handlers is blocked by that of {blocking}; let it await, or make "
                "it an ordinary function"
            )
        elif len(self._abandoned) > self._most_abandoned:
            self._on_exhausted(f"{abandoned} still run after they were to end; {attempt.name} is the last one")

    def _coroutines(self) -> asyncio.AbstractEventLoop:
        if self._coroutine_loop is None:
            self._coroutine_loop, self._own_loop = asyncio.new_event_loop(), True
            threading.Thread(target=self._keep, args=(self._coroutine_loop,), name="handlers", daemon=True).start()
        return self._coroutine_loop

    def _keep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the loop of coroutines. A task that a handler started may raise SystemExit, or stop the loop."""
        asyncio.set_event_loop(loop)
        while not self._ending.is_set():
            try:
                loop.run_forever()
            except BaseException as e:
                log.error("a task that a handler started raised %s; the worker continues", type(e).__name__)
        loop.close()
