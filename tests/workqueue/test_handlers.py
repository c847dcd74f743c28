"""A handler that ends programs ends only its attempt, and a stop by a signal ends the worker; on tables in memory."""

import asyncio
import gc
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from tests.support.waiting import wait_for
from tests.workqueue.conftest import with_queue
from tests.workqueue.memory import MemoryDatabase, MemoryTables, memory_enqueuer
from writetime.core.config import Settings
from writetime.workqueue.attempts import Attempt, Attempts, Outcome
from writetime.workqueue.enqueue import NewItem
from writetime.workqueue.items import Entry, GiveUp, Item, ItemPartition, Status
from writetime.workqueue.worker_loop import WorkerLoop

QUEUE = "q"
ITEMS = 10
# Of handlers that have none.
NO_STEPS: Any = None


@pytest.fixture(scope="module", autouse=True)
def collected() -> Iterator[None]:
    """Let asyncio log the lost errors of tasks now. In a collection within `ast.parse` of a later test, their
    tracebacks would be parsed, too, and CPython 3.11 then raises SystemError.
    """
    yield
    gc.collect()


class Panic(BaseException):
    """As a library raises it that is not written in Python."""


async def drain(
    handler: Callable[[Item], Any], databases: list[MemoryDatabase] | None = None
) -> tuple[MemoryDatabase, Counter[str]]:
    """Enqueue items, and work until idle, in real time; the database is also added to `databases`."""
    own = {"shards": 1, "max_attempts": 2, "backoff_base_seconds": 0.01}
    settings = with_queue(Settings(), QUEUE, own, drain_seconds=1.0)
    database = MemoryDatabase(random.Random(1), 1_700_000_000_000)
    if databases is not None:
        databases.append(database)
    await memory_enqueuer(MemoryTables(database), settings).enqueue(QUEUE, [NewItem(n) for n in range(ITEMS)])
    running = WorkerLoop(MemoryTables(database), settings.workqueue, {QUEUE: handler}, "w")
    async with asyncio.timeout(30):
        return database, await running.serve(asyncio.Event(), until_idle=True)


class Shouting(str):
    """A text whose methods raise."""

    def encode(self, *_: object) -> bytes:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise StopIteration

    __contains__ = __getitem__ = __len__ = __format__ = encode  # pyright: ignore


def unreadable(of: type[BaseException], raised: BaseException | str) -> BaseException:
    """An error whose text cannot be read."""

    def text(_: object) -> str:
        if isinstance(raised, str):
            return raised
        raise raised

    return type(of.__name__, (of,), {"__str__": text, "__repr__": text, "__reduce__": text, "__format__": text})()


KINDS = (SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, StopAsyncIteration, asyncio.CancelledError)
ERRORS = [
    *(kind() for kind in (*KINDS, Panic, RecursionError, MemoryError, ValueError)),
    SystemExit(0),
    BaseExceptionGroup("several", [SystemExit(1), asyncio.CancelledError()]),
    *(unreadable(ValueError, kind()) for kind in (*KINDS, Panic, ValueError)),
    unreadable(Panic, StopIteration()),
    unreadable(ValueError, Shouting("loud")),
]


@pytest.mark.parametrize("kind", ["function", "coroutine"])
@pytest.mark.parametrize("error", ERRORS, ids=[f"{type(e).__name__}-{n}" for n, e in enumerate(ERRORS)])
def test_whatever_a_handler_raises_fails_only_its_attempt(error: BaseException, kind: str) -> None:
    def handle(item: Item) -> None:
        if item.payload == 3:
            raise error

    async def handle_later(item: Item) -> None:
        handle(item)

    assert_only_third_failed(handle if kind == "function" else handle_later, type(error).__name__)


@pytest.mark.parametrize("error", [unreadable(GiveUp, StopIteration()), unreadable(GiveUp, Shouting("loud"))])
def test_an_item_that_is_given_up_without_a_readable_text_is_dead(error: BaseException) -> None:
    def handle(item: Item) -> None:
        raise error

    assert asyncio.run(drain(handle))[1] == {"dead": ITEMS}


async def cancels_itself(item: Item) -> None:
    if item.payload == 3 and (task := asyncio.current_task()):
        task.cancel()
        await asyncio.sleep(0)


async def cancels_all(item: Item) -> None:
    if item.payload == 3:
        for task in asyncio.all_tasks():
            task.cancel()
        await asyncio.sleep(0)


def test_a_coroutine_that_cancels_its_task_fails_its_attempt() -> None:
    assert_only_third_failed(cancels_itself, "CancelledError")


def test_a_coroutine_that_cancels_all_tasks_stops_no_other_item() -> None:
    """Tasks that have not begun run none of their code."""
    _, outcomes = asyncio.run(drain(cancels_all))
    assert outcomes["completed"] + outcomes["dead"] == ITEMS
    assert outcomes["dead"] > 0


async def cancels_itself_and_returns(item: Item) -> None:
    if task := asyncio.current_task():
        task.cancel()


async def stops_the_loop(item: Item) -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.01)


async def starts_a_task_that_exits(item: Item) -> None:
    async def leave() -> None:
        sys.exit(item.payload)

    asyncio.get_running_loop().create_task(leave())
    await asyncio.sleep(0.01)


@pytest.mark.parametrize("handler", [cancels_itself_and_returns, stops_the_loop, starts_a_task_that_exits])
def test_a_coroutine_that_harms_its_loop_does_not_stop_the_worker(handler: Callable[[Item], Any]) -> None:
    assert asyncio.run(drain(handler))[1] == {"completed": ITEMS}


def assert_only_third_failed(handler: Callable[[Item], Any], reason: str) -> None:
    database, outcomes = asyncio.run(drain(handler))
    assert outcomes == {"completed": ITEMS - 1, "retry": 1, "dead": 1}
    [letter] = database.letters.values()
    assert letter.payload == "3"
    assert reason in letter.error
    # The worker has left: no shard waits for the end of a lease.
    assert [row.owner for row in database.shards.values()] == [None]
    assert not database.workers


def test_a_lane_that_ends_is_logged_and_its_shards_are_released(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def cancelled(*_: Any) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(WorkerLoop, "_process", cancelled)
    databases: list[MemoryDatabase] = []
    with pytest.raises(RuntimeError, match="a task of the worker was cancelled"):
        asyncio.run(drain(lambda item: None, databases))
    assert "the worker ends: RuntimeError: a task of the worker was cancelled" in caplog.text
    assert [row.owner for row in databases[0].shards.values()] == [None]


def interrupt(*_: object) -> None:
    """Answer Ctrl-C as pyspark does."""
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("answer", "presses"), [(signal.default_int_handler, 1), (signal.default_int_handler, 2), (interrupt, 1)]
)
def test_ctrl_c_while_a_coroutine_handler_runs_ends_the_worker(answer: Callable[..., Any], presses: int) -> None:
    begun: list[Any] = []

    async def handle(item: Item) -> None:
        begun.append(item.payload)
        for _ in range(presses if len(begun) == 1 else 0):
            os.kill(os.getpid(), signal.SIGINT)
            # A handler that does not wait: Python runs the signal's handler here.
            time.sleep(0.01)
        await asyncio.sleep(60)

    started, before = time.monotonic(), signal.signal(signal.SIGINT, answer)
    try:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(drain(handle))
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_handlers_run_one_after_the_other_while_the_worker_is_busy(kind: str) -> None:
    """The thread in which a handler ends begins the next one. At most as many run at once as there are lanes."""
    begun: list[int] = []
    running, most = Counter[str](), Counter[str]()

    def handle(item: Item) -> int:
        begun.append(item.payload)
        return item.payload

    async def handle_later(item: Item) -> int:
        running["now"] += 1
        most["at once"] = max(most["at once"], running["now"])
        await asyncio.sleep(0)
        running["now"] -= 1
        return handle(item)

    async def run() -> list[Outcome | None]:
        attempts = Attempts(2, lambda reason: None)
        entries = [Entry(ItemPartition(QUEUE, 0, 0), UUID(int=n), None, str(n)) for n in range(50)]
        handler = handle if kind == "function" else handle_later
        runs = [
            attempts.run(Attempt(handler, entry, 600.0, lambda: True, lambda: True, lambda: False, NO_STEPS))
            for entry in entries
        ]
        tasks = [asyncio.create_task(run) for run in runs]
        await asyncio.sleep(0)
        # The worker's loop does nothing until all have run.
        wait_for(lambda: len(begun) == 50)
        outcomes = await asyncio.gather(*tasks)
        await attempts.end()
        return outcomes

    found = asyncio.run(run())
    assert [outcome and outcome[:2] for outcome in found] == [(Status.COMPLETED, str(n)) for n in range(50)]
    assert most["at once"] <= 2
