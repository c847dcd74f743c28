"""Reads the streams of a log over an interval of write times, several at once, and checks that no row is missing."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

import numpy as np
import pyarrow as pa

from writetime.schema.columnar import decode, fixed_width
from writetime.schema.table import TableSchema
from writetime.schema.types import Native, quote_name
from writetime.scylla_cdc import log as L
from writetime.scylla_cdc.log import LogError
from writetime.scylla_cdc.pages import Pages, Reading

# A batch ends after about this many rows or bytes, at the end of a group.
BATCH_ROWS = 10_000
BATCH_BYTES = 32 << 20


@dataclass(frozen=True)
class Piece:
    """The rows of one stream with write times from `start` (included) to `end` (not included), in microseconds."""

    stream: bytes
    start: int
    end: int
    again: bool = False
    """Whether these were read before, and are read again for late rows."""
    closed_at: int | None = None
    """When the last set of streams with this stream ended; None if that is the newest known set."""


class Converter(Protocol):
    """Converts the log's rows."""

    @property
    def table(self) -> TableSchema:
        """The base table."""
        ...

    @property
    def columns(self) -> list[str]:
        """The log's columns that it needs."""
        ...

    def convert(self, page: pa.RecordBatch, captured_at: datetime) -> pa.RecordBatch:
        """Convert complete groups of rows."""
        ...


# A function that takes the write times of some rows of a piece, in microseconds.
See = Callable[[Piece, np.ndarray], None]


def read_pieces(
    pages: Pages, converter: Converter, pieces: Sequence[Piece], streams_at_once: int, see: See | None = None
) -> Iterator[pa.RecordBatch]:
    """Read pieces of streams, in batches; `see` is called for all rows.

    Raises:
        LogError: rows of a group are missing, or ScyllaDB does not write such rows.
        WritetimeError: the database does not answer.
    """
    table = converter.table
    log = f"{quote_name(table.keyspace)}.{quote_name(table.name + L.SUFFIX)}"
    query = pages.prepare(
        f"SELECT {', '.join(map(quote_name, converter.columns))} FROM {log} "
        f'WHERE "{L.STREAM}" = ? AND "{L.TIME}" >= ? AND "{L.TIME}" < ?'
    )
    captured_at = datetime.now(UTC)
    waiting: deque[tuple[Piece, Reading]] = deque()
    held: list[pa.RecordBatch] = []
    rows = size = 0

    def take() -> Iterator[pa.RecordBatch]:
        nonlocal rows, size
        piece, reading = waiting.popleft()
        for page in _whole(reading, table.full_name):
            if see is not None:
                see(piece, L.times(page))
            held.append(page)
            rows += page.num_rows
            size += page.nbytes
            # An unfinished group is kept in memory. It is one write, whose size ScyllaDB limits.
            if (rows >= BATCH_ROWS or size >= BATCH_BYTES) and (end := _end_of_groups(page)):
                held[-1] = page.slice(0, end)
                yield converter.convert(pa.concat_batches(held), captured_at)
                held[:] = [page.slice(end)]
                rows, size = held[0].num_rows, held[0].nbytes

    for piece in pieces:
        if len(waiting) == streams_at_once:
            yield from take()
        bounds = [L.first_uuid(piece.start), L.first_uuid(piece.end)]
        waiting.append((piece, pages.start(query, [piece.stream, *bounds])))
    while waiting:
        yield from take()
    if rows:
        yield converter.convert(pa.concat_batches(held), captured_at)


def _whole(reading: Reading, table: str) -> Iterator[pa.RecordBatch]:
    """Yield the pages of one stream, cut so that both bounds of a range deletion are in one page.

    A group, the rows of one `cdc$time`, is counted from 0, and its last row is marked.
    """
    carried: pa.RecordBatch | None = None
    last: tuple[bytes, int, bool] | None = None
    for found in reading:
        if not found.num_rows:
            continue
        last = _check_groups(found, last, table)
        page = found if carried is None else pa.concat_batches([carried, found])
        operation = int.from_bytes(page[L.OPERATION][page.num_rows - 1].as_py() or b"", "big")
        carried = None
        if operation in (L.START_INCLUSIVE, L.START_EXCLUSIVE):
            carried = page.slice(page.num_rows - 1)
            page = page.slice(0, page.num_rows - 1)
        _check_ranges(page, table)
        yield page
    if carried is not None or (last is not None and not last[2]):
        raise _incomplete(table)


def _check_groups(page: pa.RecordBatch, last: tuple[bytes, int, bool] | None, table: str) -> tuple[bytes, int, bool]:
    times = fixed_width(page[L.TIME], 16, Native("timeuuid"))[0]
    sequence = decode(page[L.SEQUENCE], Native("int")).to_numpy()
    ends = _ends(page)
    before_time = np.concatenate([np.frombuffer(last[0] if last else bytes(16), np.uint8)[None, :], times[:-1]])
    before_sequence = np.concatenate([[last[1] if last else -1], sequence[:-1]])
    before_ends = np.concatenate([[last[2] if last else True], ends[:-1]])
    same = (times == before_time).all(axis=1)
    if (sequence != np.where(same, before_sequence + 1, 0)).any() or (same == before_ends).any():
        raise _incomplete(table)
    return times[-1].tobytes(), int(sequence[-1]), bool(ends[-1])


def _ends(page: pa.RecordBatch) -> np.ndarray:
    """Return which rows are the last of their groups."""
    return decode(page[L.END_OF_BATCH], Native("boolean")).fill_null(False).to_numpy(zero_copy_only=False)


def _end_of_groups(page: pa.RecordBatch) -> int:
    """Return the number of rows up to the end of the last group that ends in a page; 0 if none does."""
    ends = np.flatnonzero(_ends(page))
    return int(ends[-1]) + 1 if len(ends) else 0


def _check_ranges(page: pa.RecordBatch, table: str) -> None:
    operations = L.operations(page)
    starts = np.isin(operations, (L.START_INCLUSIVE, L.START_EXCLUSIVE))
    ends = np.isin(operations, (L.END_INCLUSIVE, L.END_EXCLUSIVE))
    if (ends[1:] != starts[:-1]).any() or ends[:1].any():
        raise _incomplete(table)


def _incomplete(table: str) -> LogError:
    return LogError(
        f"the log of {table} lacks some rows of a group: rows were deleted from the log, or expired "
        "while it was read, or had not reached the replicas yet; read again with a longer confidence_seconds"
    )
