"""Reads a table from the database by token ranges, with values in the form of the lake.

The driver's own types cannot hold all CQL values (dates beyond the year 9999, empty values). So rows are read as bytes,
and decoded like those of files.
"""

from collections.abc import Callable, Container, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from cassandra import InvalidRequest
from cassandra.cluster import ResultSet, Session

from writetime.changes.position import AT, STATIC_POSITION, position_encoder
from writetime.clients.database import DRIVER_FAULTS, nodes_agree
from writetime.clients.untyped_rows import UntypedProtocol
from writetime.core.errors import Transient, WritetimeError
from writetime.lake.evolution import with_key_names
from writetime.row_events.compare import OrderedRows
from writetime.schema.mapping import stored_type
from writetime.schema.serialise import partition_key
from writetime.schema.system import read_schema
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Native, is_complex, quote_name
from writetime.schema.values import decoder
from writetime.storage.kernel.primitives import token
from writetime.verify.compared_rows import between
from writetime.verify.lag import NO_TIME
from writetime.verify.lost_bytes import compared_columns, of_database
from writetime.verify.masked_columns import masking_fault

# The values of a row, in the order of the query.
_Row = Sequence[bytes | None]
_T = TypeVar("_T")


class DatabaseTable:
    """A table of the database, read through its own session."""

    def __init__(
        self, session: Session, schema: TableSchema, page_rows: int = 1999, *, with_times: bool = False
    ) -> None:
        """Read a table that has the columns of the lake's schema; its key columns may have other names now.

        Pages have a prime number of rows by default, so that they rarely end with a partition if all partitions have
        the same number of rows. Rows `with_times` have the columns of `timed_schema`.

        Raises:
            Transient: the database does not answer.
            WritetimeError: it has no such table, or another one of that name; or it masks values of it.
        """
        try:
            known = read_schema(session, schema.full_name)
            masked = masking_fault(session, schema.keyspace, schema.name)
        except DRIVER_FAULTS as e:
            raise Transient(f"the schema of {schema.full_name} cannot be read from the database: {e}") from None
        if None not in (schema.id, known.id) and schema.id != known.id:
            raise WritetimeError(
                f"the table {schema.full_name} was dropped and created again: the lake has the table with the id "
                f"{schema.id}, and the database the one with the id {known.id}"
            )
        if masked is not None:
            raise WritetimeError(masked)
        session.client_protocol_handler = UntypedProtocol
        session.default_fetch_size = page_rows
        self._session = session
        self._schema = schema
        self._named = with_key_names(schema, known)
        self._timed = timed_columns(schema) if with_times else []
        self._position = position_encoder(schema.clustering)

    def rows(self, first: int, last: int) -> OrderedRows:
        """Return the rows whose tokens are in a range, both ends included, with their places."""
        return self._rows(self._select([], first, last))

    def first_rows(self, first: int, last: int, limit: int) -> tuple[OrderedRows, int]:
        """Return the first rows of a range of tokens, and the token up to which these are all: at most `limit` rows, or
        one partition, which is never cut.
        """
        found: list[_Row] = []
        for page in self._pages([], first, last):
            found += page
            if len(found) >= limit:
                break
        else:
            return self._rows(self._real(found)), last
        rows = self._rows(self._real(found[:limit]))
        # The last partition may have more rows.
        end = rows.tokens[-1].as_py() - 1
        return (between(rows, first, end), end) if end >= first else (self.rows(first, first), first)

    def timed_rows(self, tokens: Sequence[int]) -> tuple[OrderedRows, np.ndarray]:
        """Return the rows of some tokens, and the write times that the database reports of their cells: one line per
        row, one column per static and regular column, `NO_TIME` where it reports none (null, collections and UDTs).
        """
        columns = self._schema.static + self._schema.regular
        timed = [n for n, c in enumerate(columns) if not is_complex(c.type)]
        names = [_time_of(columns[n]) for n in timed]
        found = [row for t in tokens for row in self._select(names, t, t)]
        skip = len(self._schema.columns)
        times = np.full((len(found), len(columns)), NO_TIME)
        for line, row in zip(times, found, strict=True):
            line[timed] = [NO_TIME if (time := _micros(data)) is None else time for data in row[skip:]]
        return self._rows(found), times

    def _select(self, more: Sequence[str], first: int, last: int) -> list[_Row]:
        return self._real(list(chain.from_iterable(self._pages(more, first, last))))

    def _pages(self, more: Sequence[str], first: int, last: int) -> Iterator[list[_Row]]:
        start: int | None = first
        while start is not None and start <= last:
            start = yield from self._pages_of_query(self._query(more, start, last))

    def _pages_of_query(self, query: str) -> Generator[list[_Row], None, int | None]:
        """Yield the pages of a query, and return the token at which another query has to begin; None if there is none.

        If a table has static columns, a page is used only if it begins with the partition with which the page before
        ended. Otherwise, rows of later partitions may be missing in it and after it: if only deleted rows follow in
        that partition, ScyllaDB 2026.1 counts its static columns as a row of the page, and does not return them.
        """
        found: ResultSet = self._fetched(lambda: self._session.execute(query))
        end: int | None = None
        while True:
            page: list[Any] = found.current_rows
            if page and end not in (None, self._token(page[0])):
                return end + 1
            if page and self._schema.static and found.has_more_pages:
                end = self._token(page[-1])
                if last := self._few_last(page, end):
                    yield page[:-last]
                    return end
            yield page
            if not found.has_more_pages:
                return None
            self._fetched(found.fetch_next_page)

    def _few_last(self, page: Sequence[_Row], end: int) -> int:
        """Return the number of rows of a page's last partition, or 0 if they are many.

        To read few rows again is cheaper than a next page that may have to be discarded. With many rows it is unlikely
        that a page ends with its partition.
        """
        count = 1
        while count * count < len(page):
            if self._token(page[-count - 1]) != end:
                return count
            count += 1
        return 0

    def _token(self, row: _Row) -> int:
        return token(partition_key(row[: len(self._schema.partition_key)]))

    def _real(self, found: list[_Row]) -> list[_Row]:
        """Leave out static columns alone if other rows of the partition follow. ScyllaDB returns them if a page ends
        within deleted rows.
        """
        if not self._schema.static:
            return found
        key = slice(len(self._schema.partition_key))
        pairs = zip_longest(found, found[1:], fillvalue=())
        return [row for row, after in pairs if row[key] != after[key] or not self._is_alone(row)]

    def _query(self, more: Sequence[str], first: int, last: int) -> str:
        schema = self._named
        times = [name for each in self._timed for name in (_time_of(each.column), _ttl_of(each.column))]
        names = ", ".join([*(quote_name(c.name) for c in schema.columns), *times, *more])
        of = f"token({', '.join(quote_name(c.name) for c in schema.partition_key)})"
        table = f"{quote_name(schema.keyspace)}.{quote_name(schema.name)}"
        return f"SELECT {names} FROM {table} WHERE {of} >= {first} AND {of} <= {last}"

    def _fetched(self, fetch: Callable[[], _T]) -> _T:
        try:
            return fetch()
        except DRIVER_FAULTS as e:
            # A node that was down may not know a new column yet.
            refused = isinstance(e, InvalidRequest) and nodes_agree(self._session)
            kind = WritetimeError if refused else Transient
            name = self._schema.full_name
            raise kind(f"{name} cannot be read from the database as the lake has it: {e}") from None

    def _rows(self, found: Sequence[Sequence[bytes | None]]) -> OrderedRows:
        schema = self._schema
        arrays = [_decoded([row[i] for row in found], column) for i, column in enumerate(schema.columns)]
        keys = [partition_key(row[: len(schema.partition_key)]) for row in found]
        positions = [STATIC_POSITION if self._is_alone(r) else self._position(self._clustering(r), AT) for r in found]
        lost = {c.name: i for i, c in enumerate(schema.columns) if c in compared_columns(schema)}
        names = [c.name for c in schema.columns]
        for place, timed in enumerate(self._timed):
            written, ttl = len(schema.columns) + 2 * place, len(schema.columns) + 2 * place + 1
            names += [timed.time, timed.ttl]
            arrays += [
                pa.array([_micros(row[written]) for row in found], pa.int64()),
                pa.array([row[ttl] is not None for row in found], pa.bool_()),
            ]
        return OrderedRows(
            pa.Table.from_arrays(arrays, names),
            pa.array([token(key) for key in keys], pa.int64()),
            pa.array(keys, pa.binary()),
            pa.array(positions, pa.binary()),
            {name: of_database([r[i] for r in found], arrays[i], schema.columns[i].type) for name, i in lost.items()},
        )

    def _is_alone(self, row: _Row) -> bool:
        """Return whether a row is static columns alone."""
        clustering = self._clustering(row)
        return bool(clustering and self._schema.static) and all(value is None for value in clustering)

    def _clustering(self, row: _Row) -> _Row:
        first = len(self._schema.partition_key)
        return row[first : first + len(self._schema.clustering)]


@dataclass(frozen=True)
class TimedColumn:
    """A column of whose cells CQL reports times. Rows have more columns with these names: the write time in
    microseconds, and whether there is a TTL.
    """

    column: Column
    time: str
    ttl: str


def timed_columns(schema: TableSchema) -> list[TimedColumn]:
    """Return the columns of whose cells CQL reports the write time and the TTL."""
    taken = {column.name for column in schema.columns}
    return [
        TimedColumn(column, _free_name(_time_of(column), taken), _free_name(_ttl_of(column), taken))
        for column in schema.static + schema.regular
        if not is_complex(column.type) and column.type != Native("counter")
    ]


def _free_name(name: str, taken: Container[str]) -> str:
    # A quoted name of a column may have any characters.
    return name if name not in taken else _free_name(f"{name}'", taken)


def timed_schema(schema: TableSchema) -> TableSchema:
    """Return a schema with the columns that rows with times have."""
    timed = timed_columns(schema)

    def with_times(columns: tuple[Column, ...]) -> tuple[Column, ...]:
        own = [each for each in timed if each.column in columns]
        times = [Column(each.time, Native("bigint")) for each in own]
        return (*columns, *times, *(Column(each.ttl, Native("boolean")) for each in own))

    return replace(schema, static=with_times(schema.static), regular=with_times(schema.regular))


def _time_of(column: Column) -> str:
    return f"writetime({quote_name(column.name)})"


def _ttl_of(column: Column) -> str:
    return f"ttl({quote_name(column.name)})"


def _micros(data: bytes | None) -> int | None:
    return int.from_bytes(data, "big", signed=True) if data else None


def _decoded(values: Sequence[bytes | None], column: Column) -> pa.Array:
    decode = decoder(column.type)
    return pa.array([None if value is None else decode(value) for value in values], stored_type(column.type))
