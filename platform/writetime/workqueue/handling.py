"""Runs the handler of one item, and returns the item's outcome."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any

from writetime.core.counts import counted
from writetime.core.errors import reason_of
from writetime.core.json_texts import from_json, to_json
from writetime.workqueue.items import Entry, GiveUp, Item, Status

Handler = Callable[[Item], Any] | Callable[[Item], Awaitable[Any]]

# The database answers a conditional write beyond its limit for a mutation with a timeout, each time. The limit is half
# a commit log segment: 4 MiB embedded.
MAX_RESULT_BYTES = 4 * 1024 * 1024 - 64 * 1024


async def handle(
    handler: Handler, entry: Entry, held: Callable[[], bool], threads: Executor
) -> tuple[Status, str | None]:
    """Run a handler; return the item's outcome, and its result as JSON, or the error."""
    try:
        entry.payload.encode()
        payload = from_json(entry.payload)
    except (ValueError, RecursionError) as e:
        # Any client with write access to the table may have inserted it.
        return Status.DEAD, f"the payload cannot be read as JSON: {e}"
    item = Item(entry.place.queue, entry.item_id, entry.key, payload, entry.attempts, held)
    if not inspect.iscoroutinefunction(handler):
        return await asyncio.get_running_loop().run_in_executor(threads, _run, handler, item)
    try:
        return Status.COMPLETED, _result(await handler(item))
    except asyncio.CancelledError as e:
        lane = asyncio.current_task()
        if lane is None or lane.cancelling():
            raise
        return _failure(e)
    except (GeneratorExit, KeyboardInterrupt):
        # The loop has ended; or this is Ctrl-C, as signals interrupt the loop's thread.
        raise
    except BaseException as e:
        # Also SystemExit, as argparse raises it.
        return _failure(e)


def _run(handler: Handler, item: Item) -> tuple[Status, str | None]:
    """Run an ordinary function in a thread, like `handle`.

    No exception leaves the thread: asyncio would end the worker with the status of a `SystemExit`, and would wait
    forever for the answer of a function that raises `StopIteration` (before Python 3.12).
    """
    try:
        return Status.COMPLETED, _result(handler(item))
    except BaseException as e:
        return _failure(e)


def _failure(error: BaseException) -> tuple[Status, str]:
    """Return the outcome of an attempt that raised."""
    if isinstance(error, GiveUp):
        return Status.DEAD, str(error).encode(errors="backslashreplace").decode() or "given up by the handler"
    return Status.RETRY, reason_of(error)


def _result(value: Any) -> str | None:
    """Return a result as JSON, None if there is none.

    Raises:
        ValueError: it cannot be JSON, it has invalid Unicode, or is too large for the database.
    """
    if value is None:
        return None
    try:
        text = to_json(value)
    except (TypeError, ValueError, RecursionError) as e:
        raise ValueError(f"the handler's result cannot be JSON: {e}") from None
    if (size := len(text.encode())) > MAX_RESULT_BYTES:
        raise ValueError(f"the handler's result has {counted(size, 'byte')} of JSON, more than {MAX_RESULT_BYTES}")
    return text
