"""Reads the streams of a log over an interval of write times, several at once, and checks that no row is missing.

A cluster with vnodes has a stream per vnode and shard, which are thousands, and most of them have no new rows. So
streams with few rows share a query. For each page of such a query, ScyllaDB reads a page of each stream
(`storage_proxy::query_singular`), so streams with many rows have queries of their own.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import pyarrow as pa
from cassandra.query import PreparedStatement

from writetime.schema.columnar import decode, fixed_width
from writetime.schema.table import TableSchema
from writetime.schema.types import Native, quote_name
from writetime.scylla_cdc import log as L
from writetime.scylla_cdc.log import LogError
from writetime.scylla_cdc.pages import PAGE_ROWS, Pages, Reading

# A batch ends after about this many rows or bytes, at the end of a group.
BATCH_ROWS = 10_000
BATCH_BYTES = 32 << 20
# ScyllaDB accepts at most 100 by default (`max_partition_key_restrictions_per_query`).
STREAMS_PER_QUERY = 50
_STARTS = (L.START_INCLUSIVE, L.START_EXCLUSIVE)
_TIMES = f'"{L.TIME}" >= ? AND "{L.TIME}" < ?'


@dataclass(frozen=True)
class StreamPiece:
    """The rows of one stream with write times from `start` (included) to `end` (not included), in microseconds."""

    stream: bytes
    start: int
    end: int
    again: bool = False
    """Whether these were read before, and are read again for late rows."""
    closed_at: int | None = None
    """When the last set of streams with this stream ended; None if that is the newest known set."""

    @property
    def times(self) -> tuple[int, int]:
        """Start and end."""
        return self.start, self.end


class Converter(Protocol):
    """Converts the rows of the log of a table, from the log's columns that it needs."""

    table: TableSchema
    columns: list[str]

    def convert(self, page: pa.RecordBatch) -> pa.RecordBatch:
        """Convert complete groups of rows."""
        ...


# A function that takes the write times of some rows of a piece, in microseconds.
See = Callable[[StreamPiece, np.ndarray], None]


def read_pieces(
    pages: Pages, converter: Converter, pieces: Sequence[StreamPiece], streams_at_once: int, see: See | None = None
) -> Iterator[pa.RecordBatch]:
    """Read pieces of streams, in batches; `see` is called for all rows.

    Raises:
        LogError: rows of a group are missing, or ScyllaDB does not write such rows.
        WritetimeError: the database does not answer.
    """
    queries = _Queries(pages, converter, pieces)
    waiting: deque[tuple[Sequence[StreamPiece], Reading]] = deque()
    held: list[pa.RecordBatch] = []
    rows = size = 0
    while (more := queries.next() if len(waiting) < streams_at_once else None) or waiting:
        if more:
            waiting.append(more)
            continue
        for page in queries.pages(*waiting.popleft()):
            if see is not None:
                _see_streams(see, queries.of_stream, page)
            held.append(page)
            rows += page.num_rows
            size += page.nbytes
            # An unfinished group is kept in memory. It is one write, whose size ScyllaDB limits.
            if (rows >= BATCH_ROWS or size >= BATCH_BYTES) and len(ends := np.flatnonzero(_ends(page))):
                end = int(ends[-1]) + 1
                held[-1] = page.slice(0, end)
                yield converter.convert(pa.concat_batches(held))
                held[:] = [page.slice(end)]
                rows, size = held[0].num_rows, held[0].nbytes
    if rows:
        yield converter.convert(pa.concat_batches(held))


class _Queries:
    """The queries for pieces of streams: one per stream at first, then one for several if they have few rows."""

    def __init__(self, pages: Pages, converter: Converter, pieces: Sequence[StreamPiece]) -> None:
        self._table = converter.table.full_name
        self._pages = pages
        log = f"{quote_name(converter.table.keyspace)}.{quote_name(converter.table.name + L.SUFFIX)}"
        self._select = f"SELECT {', '.join(map(quote_name, converter.columns))} FROM {log}"
        self._pieces = deque(pieces)
        # Streams that shared a query, and have too many rows for that.
        self._alone: deque[StreamPiece] = deque()
        self._rows = self._streams = 0
        self.of_stream = {piece.stream: piece for piece in pieces}

    @cached_property
    def _one(self) -> PreparedStatement:
        return self._pages.prepare(f'{self._select} WHERE "{L.STREAM}" = ? AND {_TIMES}')

    @cached_property
    def _some(self) -> PreparedStatement:
        return self._pages.prepare(f'{self._select} WHERE "{L.STREAM}" IN ? AND {_TIMES}')

    def next(self) -> tuple[Sequence[StreamPiece], Reading] | None:
        """Send the next query; return None if there is none."""
        if self._alone:
            group = [self._alone.popleft()]
        elif self._pieces:
            group = [self._pieces.popleft()]
            most = self._streams_per_query()
            while self._pieces and len(group) < most and self._pieces[0].times == group[0].times:
                group.append(self._pieces.popleft())
        else:
            return None
        query, streams = (self._one, group[0].stream) if len(group) == 1 else (self._some, [p.stream for p in group])
        return group, self._pages.start(query, [streams, *map(L.first_uuid, group[0].times)])

    def _streams_per_query(self) -> int:
        """Return for how many streams half a page is enough, if they have as many rows as those that were read."""
        if not self._streams:
            return 1
        return min(STREAMS_PER_QUERY, PAGE_ROWS * self._streams // (2 * self._rows or 1))

    def pages(self, group: Sequence[StreamPiece], reading: Reading) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query."""
        if len(group) == 1:
            found = reading
        elif (page := reading.only_page()) is not None:
            found = [page]
        else:
            self._alone += group
            return
        self._streams += len(group)
        for page in _whole(found, self._table):
            self._rows += page.num_rows
            yield page


def _see_streams(see: See, of_stream: Mapping[bytes, StreamPiece], page: pa.RecordBatch) -> None:
    """Call `see` for the rows of each stream, which follow each other."""
    times, streams = L.times(page), page[L.STREAM].dictionary_encode()
    numbers = streams.indices.to_numpy()
    for rows in np.split(np.arange(len(numbers)), np.flatnonzero(np.diff(numbers)) + 1):
        if len(rows):
            see(of_stream[streams.dictionary[int(numbers[rows[0]])].as_py()], times[rows])


def _whole(reading: Iterable[pa.RecordBatch], table: str) -> Iterator[pa.RecordBatch]:
    """Yield the pages of streams, one after the other, cut so that both bounds of a range deletion are in one page.

    A group, the rows of one `cdc$time` of a stream, is counted from 0, and its last row is marked.
    """
    carried: pa.RecordBatch | None = None
    last: tuple[bytes, int, bool] | None = None
    for found in reading:
        if not found.num_rows:
            continue
        last = _check_groups(found, last, table)
        page = found if carried is None else pa.concat_batches([carried, found])
        carried = None
        if L.operations(page)[-1] in _STARTS:
            carried = page.slice(page.num_rows - 1)
            page = page.slice(0, page.num_rows - 1)
        operations = L.operations(page)
        starts, ends = np.isin(operations, _STARTS), np.isin(operations, (L.END_INCLUSIVE, L.END_EXCLUSIVE))
        if (ends[1:] != starts[:-1]).any() or ends[:1].any():
            raise _incomplete(table)
        yield page
    if carried is not None or (last is not None and not last[2]):
        raise _incomplete(table)


def _check_groups(page: pa.RecordBatch, last: tuple[bytes, int, bool] | None, table: str) -> tuple[bytes, int, bool]:
    streams = fixed_width(page[L.STREAM], 16, Native("blob"))[0]
    times = np.hstack([streams, fixed_width(page[L.TIME], 16, Native("timeuuid"))[0]])
    sequence = decode(page[L.SEQUENCE], Native("int")).to_numpy()
    ends = _ends(page)
    before_time = np.concatenate([np.frombuffer(last[0] if last else bytes(32), np.uint8)[None, :], times[:-1]])
    before_sequence = np.concatenate([[last[1] if last else -1], sequence[:-1]])
    before_ends = np.concatenate([[last[2] if last else True], ends[:-1]])
    same = (times == before_time).all(axis=1)
    if (sequence != np.where(same, before_sequence + 1, 0)).any() or (same == before_ends).any():
        raise _incomplete(table)
    return times[-1].tobytes(), int(sequence[-1]), bool(ends[-1])


def _ends(page: pa.RecordBatch) -> np.ndarray:
    """Return which rows are the last of their groups."""
    return L.flags(page[L.END_OF_BATCH])


def _incomplete(table: str) -> LogError:
    return LogError(
        f"the log of {table} lacks some rows of a group: rows were deleted from the log, or expired "
        "while it was read, or had not reached the replicas yet; read again with a longer confidence_seconds"
    )
