"""The driver's statements on an event loop: their answers, serialised values, and combined rows."""

import asyncio
from struct import Struct
from typing import Any

from cassandra.cluster import ResponseFuture
from cassandra.query import UNSET_VALUE, BatchStatement, BatchType, BoundStatement, PreparedStatement

from writetime.clients.database import DRIVER_FAULTS, is_without_answer
from writetime.core.errors import Transient, WritetimeError

integer = Struct(">i").pack
bigint = Struct(">q").pack
_double = Struct(">d").pack


class UnknownItemWrite(Transient):
    """The database did not answer in time, or not at all: a write may have been applied."""


async def answer_of(future: ResponseFuture, *, next_page: bool = False) -> Any:
    """Wait for a statement's rows, those of one page.

    Raises:
        UnknownItemWrite: no answer, or one that leaves open whether it was applied.
        WritetimeError: the database refuses the statement.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def deliver(put: Any, value: Any) -> None:
        def on_loop() -> None:
            if not answer.done():
                put(value)

        # A loop that has ended no longer waits.
        if not loop.is_closed():
            loop.call_soon_threadsafe(on_loop)

    if next_page:
        future.clear_callbacks()
        future.start_fetching_next_page()
    future.add_callbacks(lambda rows: deliver(answer.set_result, rows), lambda e: deliver(answer.set_exception, e))
    try:
        return await answer
    except DRIVER_FAULTS as e:
        if is_without_answer(e):
            # Timeouts, unavailable replicas, overload, lost connections.
            raise UnknownItemWrite(f"{type(e).__name__}: {e}") from None
        raise WritetimeError(f"the database refuses a statement of the work queue: {e}") from None


def together(rows: list[BoundStatement]) -> BatchStatement | BoundStatement:
    """Return one statement for rows of one partition, which is one mutation and needs no batch log."""
    if len(rows) == 1:
        return rows[0]
    batch = BatchStatement(BatchType.UNLOGGED)
    batch.add_all(rows, [None] * len(rows))
    return batch


def bound(statement: PreparedStatement, *values: Any) -> BoundStatement:
    """Return a statement with serialised values: `bind` takes ten times as long."""
    whole = BoundStatement(statement)
    whole.values = list(values)
    return whole


def text(value: str | None) -> Any:
    """Return a serialised `text`; None leaves the column unchanged, because a null would be a tombstone."""
    return UNSET_VALUE if value is None else value.encode(errors="surrogateescape")


def text_of(stored: bytes | None) -> str | None:
    """Return a `text` that was read as bytes. Bytes that are not UTF-8 become surrogates, and `text` converts them
    back.

    The driver decodes strictly, and fails for a whole page of rows.
    """
    return None if stored is None else stored.decode(errors="surrogateescape")


def double(value: float | None) -> Any:
    """Return a serialised `double`, likewise."""
    return UNSET_VALUE if value is None else _double(value)


def timestamp(at_millis: int | None) -> Any:
    """Return a serialised `timestamp`, likewise."""
    return UNSET_VALUE if at_millis is None else bigint(at_millis)
