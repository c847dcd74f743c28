"""Runs the handler of one item, and returns the item's outcome."""

from collections.abc import Awaitable, Callable
from typing import Any, cast

from writetime.core.counts import counted
from writetime.core.errors import plain_text, reason_of
from writetime.core.json_texts import from_json, to_json
from writetime.workqueue.items import Entry, GiveUp, Item, Status

Handler = Callable[[Item], Any] | Callable[[Item], Awaitable[Any]]
# The item's next status, and its result as JSON, or the error.
Outcome = tuple[Status, str | None]

# The database answers a conditional write beyond its limit for a mutation with a timeout, each time. The limit is half
# a commit log segment: 4 MiB embedded.
MAX_RESULT_BYTES = 4 * 1024 * 1024 - 64 * 1024


def item_of(entry: Entry, held: Callable[[], bool]) -> Item:
    """Return the item that a handler receives.

    Raises:
        ValueError, RecursionError: the payload is not JSON.
    """
    entry.payload.encode()
    return Item(entry.place.queue, entry.item_id, entry.key, from_json(entry.payload), entry.attempts, held)


def run_function(handler: Handler, item: Item) -> Outcome:
    """Run an ordinary function; return the item's outcome. No exception leaves this, whatever the function raises."""
    try:
        return Status.COMPLETED, _result(handler(item))
    except BaseException as e:
        return _failure(e)


async def run_coroutine(handler: Handler, item: Item, deliver: Callable[[Outcome], None]) -> None:
    """Run a coroutine function, and deliver the item's outcome.

    The result of this coroutine's task would not do: a handler that has cancelled its own task would cancel it, too.
    """
    try:
        outcome = Status.COMPLETED, _result(await cast(Awaitable[Any], handler(item)))
    except BaseException as e:
        outcome = _failure(e)
    deliver(outcome)


def _failure(error: BaseException) -> Outcome:
    """Return the outcome of an attempt that raised."""
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
        raise ValueError(f"the handler's result has {counted(size, 'byte')} of JSON, more than {MAX_RESULT_BYTES}")
    return text
