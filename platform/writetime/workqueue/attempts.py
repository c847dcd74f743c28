"""Runs handlers apart from the worker's event loop and with a time limit, so that no handler can stop the worker.

An ordinary function runs in a daemon thread. Coroutine functions share one event loop in another daemon thread. When an
attempt has reached its time limit, `Item.held` becomes false, and a coroutine is cancelled. An attempt that still runs
a few seconds later is abandoned, because nothing can end a thread of Python: its item counts as failed, and its late
result is discarded.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from inspect import iscoroutinefunction
from queue import SimpleQueue

from writetime.core.counts import counted
from writetime.workqueue.handling import Handler, Outcome, item_of, run_coroutine, run_function
from writetime.workqueue.items import Entry, Item, Status, is_time_limit

log = logging.getLogger(__name__)

# The time that a handler gets to end after its limit, and that coroutines get when the worker ends.
GRACE_SECONDS = 5.0
_END_SECONDS = 1.0
_LOOK_SECONDS = 0.02


class Attempt:
    """One run of a handler. `answer` is the outcome of the item."""

    def __init__(self, entry: Entry, queue_limit_seconds: float, *, coroutine: bool) -> None:
        self.name = f"item {entry.item_id} of queue {entry.place.queue}"
        self.answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.coroutine = coroutine
        self.expired = False
        # Of a coroutine that has begun; and whether its loop has called `cancel`.
        self.task: asyncio.Task[None] | None = None
        self.cancelled = False
        own = entry.time_limit_seconds
        self.limit_seconds = queue_limit_seconds if own is None else own
        self._limit_of = "queue" if own is None else "item"

    def cancel(self) -> None:
        """Cancel the coroutine, on its loop."""
        self.cancelled = True
        if self.task is not None:
            self.task.cancel()

    @property
    def overdue(self) -> Outcome:
        """The outcome of an attempt that has reached its limit."""
        limit = f"{self.limit_seconds:g} s, the time limit of its {self._limit_of}"
        return Status.RETRY, f"the handler did not end within {limit}"


class Attempts:
    """The handlers that a worker runs, and those that it has abandoned."""

    def __init__(
        self,
        most_abandoned: int,
        on_exhausted: Callable[[str], None],
        *,
        coroutine_loop: asyncio.AbstractEventLoop | None = None,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        """Set up. `on_exhausted` receives the reason if the worker must end. `coroutine_loop` runs the coroutines, by
        default a new loop in its own thread.
        """
        self._loop = asyncio.get_running_loop()
        self._most_abandoned = most_abandoned
        self._on_exhausted = on_exhausted
        self._coroutine_loop = coroutine_loop
        self._grace_seconds = grace_seconds
        self._own_loop = False
        self._ending = threading.Event()
        self._idle: deque[_HandlerThread] = deque()
        self._running: set[Attempt] = set()
        self._abandoned: set[Attempt] = set()

    async def run(
        self, handler: Handler, entry: Entry, queue_limit_seconds: float, held: Callable[[], bool]
    ) -> Outcome:
        """Run a handler; return the item's outcome: a failure if the handler does not end within the limit of the item,
        or else of its queue.
        """
        attempt = Attempt(entry, queue_limit_seconds, coroutine=iscoroutinefunction(handler))
        try:
            item = item_of(entry, lambda: not attempt.expired and held())
        except (ValueError, RecursionError) as e:
            # Any client with write access to the table may have inserted it.
            return Status.DEAD, f"the payload cannot be read as JSON: {e}"
        if not is_time_limit(attempt.limit_seconds):
            return Status.DEAD, f"the item's time limit of {attempt.limit_seconds:g} s is invalid"
        if attempt.coroutine:
            self._coroutines().call_soon_threadsafe(self._begin, attempt, handler, item)
        else:
            thread = self._idle.pop() if self._idle else _HandlerThread(self._idle, self._ending)
            thread.call(handler, item, lambda outcome: self._deliver(attempt, outcome))
        self._running.add(attempt)
        timer = self._loop.call_later(attempt.limit_seconds, self._expire, attempt)
        try:
            return await attempt.answer
        finally:
            timer.cancel()

    async def end(self) -> None:
        """Cancel the coroutines, and end the threads. A handler that goes on keeps its thread, which is a daemon."""
        self._ending.set()
        while self._idle:
            self._idle.pop().end()
        for attempt in self._running:
            attempt.expired = True
            if attempt.coroutine:
                self._coroutines().call_soon_threadsafe(attempt.cancel)
        began = self._loop.time()
        while any(a.task and not a.task.done() for a in self._running) and self._loop.time() < began + _END_SECONDS:
            await asyncio.sleep(_LOOK_SECONDS)
        if self._own_loop:
            loop = self._coroutines()
            loop.call_soon_threadsafe(loop.stop)

    def _begin(self, attempt: Attempt, handler: Handler, item: Item) -> None:
        work = run_coroutine(handler, item, lambda outcome: self._deliver(attempt, outcome))
        attempt.task = asyncio.get_running_loop().create_task(work)
        attempt.task.add_done_callback(partial(self._task_ended, attempt))

    def _task_ended(self, attempt: Attempt, task: "asyncio.Task[None]") -> None:
        # Another handler may have cancelled it before its first step, which then runs none of its code.
        if task.cancelled():
            self._deliver(attempt, (Status.RETRY, "CancelledError: the handler's task was cancelled"))

    def _deliver(self, attempt: Attempt, outcome: Outcome) -> None:
        """Pass an outcome to the worker, from any thread; a worker that has ended takes none."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._ended, attempt, outcome)

    def _ended(self, attempt: Attempt, outcome: Outcome) -> None:
        self._running.discard(attempt)
        self._abandoned.discard(attempt)
        if not attempt.answer.done():
            cut_short = attempt.expired and outcome[0] is Status.RETRY
            attempt.answer.set_result(attempt.overdue if cut_short else outcome)

    def _expire(self, attempt: Attempt) -> None:
        """Ask a handler that has reached its limit to end."""
        attempt.expired = True
        if attempt.coroutine:
            self._coroutines().call_soon_threadsafe(attempt.cancel)
        self._loop.call_later(self._grace_seconds, self._abandon, attempt)

    def _abandon(self, attempt: Attempt) -> None:
        """Continue without a handler that does not end."""
        if attempt.answer.done():
            return
        self._abandoned.add(attempt)
        attempt.answer.set_result(attempt.overdue)
        abandoned = counted(len(self._abandoned), "handler")
        log.error(
            "%s: %s, and still runs; the worker continues without it (abandoned: %s; it ends with more than %d)",
            attempt.name,
            attempt.overdue[1],
            abandoned,
            self._most_abandoned,
        )
        if attempt.coroutine and not attempt.cancelled:
            present = asyncio.current_task(self._coroutines())
            blocking = next((a.name for a in self._running if present and a.task is present), attempt.name)
            self._on_exhausted(
                f"the event loop of all async handlers is blocked by that of {blocking}; let it await, or make "
                "it an ordinary function"
            )
        elif len(self._abandoned) > self._most_abandoned:
            self._on_exhausted(f"{abandoned} still run after their time limits; {attempt.name} is the last one")

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


class _HandlerThread:
    """A daemon thread that runs one handler after the other. It is in `idle` while it has none."""

    def __init__(self, idle: "deque[_HandlerThread]", ending: threading.Event) -> None:
        self._idle = idle
        self._ending = ending
        self._calls: SimpleQueue[tuple[Handler, Item, Callable[[Outcome], None]] | None] = SimpleQueue()
        threading.Thread(target=self._run, name="handler", daemon=True).start()

    def call(self, handler: Handler, item: Item, deliver: Callable[[Outcome], None]) -> None:
        """Run a handler, and deliver its outcome."""
        self._calls.put((handler, item, deliver))

    def end(self) -> None:
        """End the thread."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            handler, item, deliver = call
            outcome = run_function(handler, item)
            if self._ending.is_set():
                break
            # First idle: the worker may start the next handler as soon as it has the outcome.
            self._idle.append(self)
            deliver(outcome)
