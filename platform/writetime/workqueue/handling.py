"""Runs the handler of one item, and returns the item's outcome."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, cast

from writetime.core.counts import pluralize
from writetime.core.errors import plain_text, reason_of
from writetime.core.json_texts import from_json, to_json
from writetime.workqueue.items import Entry, GiveUp, Item, Status

Handler = Callable[[Item], Any] | Callable[[Item], Awaitable[Any]]

# The database answers a conditional write beyond its limit for a mutation with a timeout, each time. The limit is half
# a commit log segment: 4 MiB embedded.
MAX_RESULT_BYTES = 4 * 1024 * 1024 - 64 * 1024


class Outcome(NamedTuple):
    """The item's next status, its result as JSON or the error, and how long the handler ran.

    The handler's own thread measures the seconds, without the time for which the worker was busy with other items.
    """

    status: Status
    text: str | None
    seconds: float = 0.0


class _NoJson(Exception):
    """The payload is not JSON; any client with write access to the table may have inserted it."""


def _item_of(entry: Entry, held: Callable[[], bool]) -> Item:
    """Return the item that a handler receives.

    Raises:
        _NoJson: the payload is not JSON.
    """
    try:
        entry.payload.encode()
        payload = from_json(entry.payload)
    except (ValueError, RecursionError) as e:
        raise _NoJson(f"the payload cannot be read as JSON: {e}") from None
    return Item(entry.place.queue, entry.item_id, entry.key, payload, entry.attempts, held)


def run_function(handler: Handler, entry: Entry, held: Callable[[], bool]) -> Outcome:
    """Run an ordinary function; return the item's outcome. No exception leaves this, whatever the function raises."""
    began = time.monotonic()
    try:
        status, text = Status.COMPLETED, _result(handler(_item_of(entry, held)))
    except BaseException as e:
        status, text = _failure(e)
    return Outcome(status, text, time.monotonic() - began)


async def run_coroutine(
    handler: Handler, entry: Entry, held: Callable[[], bool], deliver: Callable[[Outcome], None]
) -> None:
    """Run a coroutine function, and deliver the item's outcome.

    The result of this coroutine's task would not do: a handler that has cancelled its own task would cancel it, too.
    """
    now = asyncio.get_running_loop().time
    began = now()
    try:
        status, text = Status.COMPLETED, _result(await cast(Awaitable[Any], handler(_item_of(entry, held))))
    except BaseException as e:
        status, text = _failure(e)
    deliver(Outcome(status, text, now() - began))


def _failure(error: BaseException) -> tuple[Status, str]:
    """Return the item's next status, and the error, after an attempt that raised."""
    if isinstance(error, _NoJson):
        return Status.DEAD, str(error)
    if issubclass(type(error), GiveUp):
        return Status.DEAD, plain_text(error).encode(errors="backslashreplace").decode() or "given up by the handler"
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
        raise ValueError(f"the handler's result has {pluralize(size, 'byte')} of JSON, more than {MAX_RESULT_BYTES}")
    return text
