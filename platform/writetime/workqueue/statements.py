"""The driver's statements on an event loop: their answers, repeats, serialised values, and combined rows."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from operator import attrgetter
from struct import Struct
from typing import Any, TypeVar

from cassandra.cluster import ResponseFuture
from cassandra.query import UNSET_VALUE, BatchStatement, BatchType, BoundStatement, PreparedStatement

from writetime.clients.prepared_statements import UnknownWrite, driver_faults_named

_T = TypeVar("_T")

_PAUSE_SECONDS = 0.05
_PAUSE_CAP_SECONDS = 2.0


async def answer_of(future: ResponseFuture, *, next_page: bool = False) -> Any:
    """Wait for a statement's rows, those of one page. Raises as `driver_faults_named`."""
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
    with driver_faults_named("the work queue"):
        return await answer


async def retry(act: Callable[[], Awaitable[_T]]) -> _T:
    """Repeat a repeatable statement, with growing pauses, until the database answers; the caller may set a deadline."""
    pause = _PAUSE_SECONDS
    while True:
        try:
            return await act()
        except UnknownWrite:
            await asyncio.sleep(random.uniform(0, pause))
            pause = min(_PAUSE_CAP_SECONDS, pause * 2)


def together(rows: list[BoundStatement]) -> BatchStatement | BoundStatement:
    """Return one statement for rows of one partition, which is one mutation and needs no batch log."""
    if len(rows) == 1:
        return rows[0]
    batch = BatchStatement(BatchType.UNLOGGED)
    batch.add_all(rows, [None] * len(rows))
    return batch


def text_of(stored: bytes | None) -> str | None:
    """Return a `text` that was read as bytes. Bytes that are not UTF-8 become surrogates, and `bound` converts them
    back.

    The driver decodes strictly, and fails for a whole page of rows.
    """
    return None if stored is None else stored.decode(errors="surrogateescape")


def unicode_of(text: str | None) -> str | None:
    """Return a text with bytes that are not UTF-8 as `\\xed`, for readers of valid Unicode: Arrow, the lake, JSON."""
    return None if text is None else text.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _text(value: str) -> bytes:
    return value.encode(errors="surrogateescape")


_SERIALISE: dict[str, Callable[[Any], bytes]] = {
    "varchar": _text,
    "uuid": attrgetter("bytes"),
    "int": Struct(">i").pack,
    "bigint": Struct(">q").pack,
    # In milliseconds since 1970.
    "timestamp": Struct(">q").pack,
    "double": Struct(">d").pack,
}


def bound(statement: PreparedStatement, *values: Any) -> BoundStatement:
    """Return a statement with serialised values: `bind` takes ten times as long. None leaves a column unchanged,
    because a null would be a tombstone.
    """
    whole = BoundStatement(statement)
    whole.values = [
        UNSET_VALUE if value is None else _SERIALISE[column.type.typename](value)
        for column, value in zip(statement.column_metadata or (), values, strict=True)
    ]
    return whole
