"""A handler that ends programs ends only its attempt, and a stop by a signal ends the worker; on tables in memory."""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.workqueue.conftest import with_queue
from tests.workqueue.memory import MemoryDatabase, MemoryTables, memory_enqueuer
from writetime.core.config import Settings
from writetime.workqueue.enqueue import NewItem
from writetime.workqueue.items import Item
from writetime.workqueue.running import Running

QUEUE = "q"
ITEMS = 10


class Panic(BaseException):
    """As a library raises it that is not written in Python."""


async def drain(handler: Callable[[Item], Any]) -> tuple[MemoryDatabase, Counter[str]]:
    """Enqueue items, and work until idle, in real time."""
    settings = with_queue(Settings(), QUEUE, {"shards": 1, "max_attempts": 2, "backoff_base_seconds": 0.01})
    database = MemoryDatabase(random.Random(1), 1_700_000_000_000)
    await memory_enqueuer(MemoryTables(database), settings).enqueue(QUEUE, [NewItem(n) for n in range(ITEMS)])
    running = Running(MemoryTables(database), settings.workqueue, {QUEUE: handler}, "w")
    async with asyncio.timeout(30):
        return database, await running.serve(asyncio.Event(), until_idle=True)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        *(
            (error, "function")
            for error in (SystemExit(0), SystemExit(2), Panic("!"), StopIteration(), KeyboardInterrupt())
        ),
        *((error, "coroutine") for error in (SystemExit(0), SystemExit(2), Panic("!"), StopIteration())),
    ],
    ids=repr,
)
def test_a_handler_that_ends_programs_fails_only_its_attempt(error: BaseException, kind: str) -> None:
    def handle(item: Item) -> None:
        if item.payload == 3:
            raise error

    async def handle_later(item: Item) -> None:
        handle(item)

    database, outcomes = asyncio.run(drain(handle if kind == "function" else handle_later))
    assert outcomes == {"completed": ITEMS - 1, "retry": 1, "dead": 1}
    [letter] = database.letters.values()
    assert letter.payload == "3"
    assert type(error).__name__ in letter.error
    # The worker has left: no shard waits for the end of a lease.
    assert [row.owner for row in database.shards.values()] == [None]
    assert not database.workers


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
