"""Runs the handler of one item, and returns the item's outcome."""

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any

from writetime.core.errors import reason_of
from writetime.workqueue.items import Entry, GiveUp, Item, Status
from writetime.workqueue.queue_tables import as_json

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
        payload = json.loads(entry.payload)
    except (ValueError, RecursionError) as e:
        # Any client that may write to the table can have inserted it.
        return Status.DEAD, f"the payload cannot be read as JSON: {e}"
    item = Item(entry.place.queue, entry.item_id, entry.key, payload, entry.attempts, held)
    try:
        if inspect.iscoroutinefunction(handler):
            result = await handler(item)
        else:
            result = await asyncio.get_running_loop().run_in_executor(threads, handler, item)
        return Status.COMPLETED, None if result is None else _result(result)
    except GiveUp as e:
        return Status.DEAD, str(e).encode(errors="backslashreplace").decode() or "given up by the handler"
    except asyncio.CancelledError as e:
        lane = asyncio.current_task()
        if lane is None or lane.cancelling():
            raise
        return Status.RETRY, f"{type(e).__name__}: {e}"
    except Exception as e:
        return Status.RETRY, reason_of(e)


def _result(value: Any) -> str:
    """Return a result as JSON.

    Raises:
        TypeError: it cannot be JSON.
        ValueError: the database cannot hold it: it has invalid Unicode, or is too large.
    """
    text = as_json(value)
    if (size := len(text.encode())) > MAX_RESULT_BYTES:
        raise ValueError(f"the handler's result has {size} bytes of JSON, more than {MAX_RESULT_BYTES}")
    return text
