"""Reads a table from the database by token ranges, with values in the form of the lake.

The driver's own types cannot hold all CQL values (dates beyond the year 9999, empty values). So rows are read as bytes,
page by page, and decoded column by column like those of files.
"""

import copy
import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from cassandra import InvalidRequest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Session

from writetime.changes.position import STATIC_POSITION
from writetime.clients.database import DRIVER_FAULTS, no_answer, nodes_agree
from writetime.clients.scylla_node import is_scylla
from writetime.clients.untyped_pages import PageProtocol, as_page
from writetime.core.arrow import mask_of, one_chunk, pc, valid
from writetime.core.errors import Transient, WritetimeError
from writetime.lake.evolution import with_key_names
from writetime.row_events.compare import OrderedRows
from writetime.schema.columnar import decode
from writetime.schema.serialise_arrays import partition_keys
from writetime.schema.system import read_schema
from writetime.schema.table import TableSchema
from writetime.schema.types import Native, is_complex, quote_name
from writetime.storage.kernel.primitives import tokens
from writetime.storage.positions import row_positions
from writetime.verify import cell_times
from writetime.verify.cell_times import TimedColumn, timed_columns
from writetime.verify.compared_rows import between
from writetime.verify.lag import NO_TIME
from writetime.verify.lost_bytes import compared_columns, of_database
from writetime.verify.masked_columns import masking_fault

# The major version of Cassandra.
_PARTS_SINCE = 5
_T = TypeVar("_T")


class DatabaseTable:
    """A table of the database, read through its own session."""

    def __init__(
        self, session: Session, schema: TableSchema, page_rows: int = 1999, *, with_times: bool = False
    ) -> None:
        """Read a table that has the columns of the lake's schema; its key columns may have other names now.

        Pages have a prime number of rows by default, so that they rarely end with a partition if all partitions have
        the same number of rows. Rows `with_times` have the columns of `timed`, too.

        Raises:
            Transient: the database does not answer.
            WritetimeError: it has no such table, or another one of that name; or it masks values of it.
        """
        try:
            known = read_schema(session, schema.full_name)
            masked = masking_fault(session, schema.keyspace, schema.name)
            mixes_keys = with_times and bool(schema.static) and is_scylla(session)
        except DRIVER_FAULTS as e:
            raise _unread(f"the schema of {schema.full_name}", session, e) from None
        if None not in (schema.id, known.id) and schema.id != known.id:
            raise WritetimeError(
                f"the table {schema.full_name} was dropped and created again: the lake has the table with the id "
                f"{schema.id}, and the database the one with the id {known.id}"
            )
        if masked is not None:
            raise WritetimeError(masked)
        session.client_protocol_handler = PageProtocol
        session.default_fetch_size = page_rows
        self._profile = session.execution_profile_clone_update(EXEC_PROFILE_DEFAULT, row_factory=as_page)
        self._session = session
        self._schema = schema
        self._named = with_key_names(schema, known)
        self.timed: Sequence[TimedColumn] = []
        """The columns of whose cells rows have times."""
        self._plain: DatabaseTable | None = None
        if with_times:
            if mixes_keys:
                self._plain = copy.copy(self)
            self.timed = timed_columns(schema, of_parts=_reports_parts(session))

    def rows(self, first: int, last: int) -> OrderedRows:
        """Return the rows whose tokens are in a range, both ends included, with their places."""
        return self._rows(self._select([], first, last))

    def first_rows(self, first: int, last: int, limit: int) -> tuple[OrderedRows, int]:
        """Return the first rows of a range of tokens, and the token up to which these are all: at most `limit` rows, or
        one partition, which is never cut.
        """
        found: list[pa.Table] = []
        for page in self._pages([], first, last):
            found.append(page)
            if sum(map(len, found)) >= limit:
                break
        else:
            return self._rows(self._real(pa.concat_tables(found))), last
        rows = self._rows(self._real(pa.concat_tables(found).slice(0, limit)))
        # The last partition may have more rows.
        end = rows.tokens[-1].as_py() - 1
        return (between(rows, first, end), end) if end >= first else (self.rows(first, first), first)

    def timed_rows(self, tokens: Sequence[int]) -> tuple[OrderedRows, np.ndarray]:
        """Return the rows of some tokens, at least one, and the write times that the database reports of their cells:
        one line per row, one column per static and regular column, `NO_TIME` where it reports none (null, collections
        and UDTs).
        """
        columns = self._schema.static + self._schema.regular
        timed = [n for n, c in enumerate(columns) if not is_complex(c.type)]
        names = [f"writetime({quote_name(columns[n].name)})" for n in timed]
        found = pa.concat_tables([self._select(names, t, t) for t in tokens])
        times = np.full((len(found), len(columns)), NO_TIME)
        first = len(self._schema.columns) + 2 * len(self.timed)
        for n, column in zip(timed, found.columns[first:], strict=False):
            times[:, n] = decode(one_chunk(column), Native("bigint")).fill_null(NO_TIME).to_numpy()
        return self._rows(found), times

    def _select(self, more: Sequence[str], first: int, last: int) -> pa.Table:
        return self._real(pa.concat_tables(self._pages(more, first, last)))

    def _pages(self, more: Sequence[str], first: int, last: int) -> Iterator[pa.Table]:
        start: int | None = first
        while start is not None and start <= last:
            start = yield from self._pages_of_query(self._query(more, start, last))

    def _pages_of_query(self, query: str) -> Generator[pa.Table, None, int | None]:
        """Yield the pages of a query, and return the token at which another query has to begin; None if there is none.
        The next page is requested while one is used. The last columns of a page are the times (seconds since 1970) of
        its request and of its answer.

        If a table has static columns, a page is used only if it begins with the partition with which the page before
        ended. Otherwise, rows of later partitions may be missing in it and after it: if only deleted rows follow in
        that partition, ScyllaDB 2026.1 counts its static columns as a row of the page, and does not return them.
        """
        asked = time.time()
        future: Any = self._fetched(lambda: self._session.execute_async(query, execution_profile=self._profile))
        end: int | None = None
        while True:
            (batch,) = self._fetched(future.result).current_rows
            page = _with_clock(pa.Table.from_batches([batch]), asked, time.time())
            if len(page) and end not in (None, self._tokens(page.slice(0, 1))[0]):
                return end + 1
            if len(page) and self._schema.static and future.has_more_pages:
                end = int(self._tokens(page.slice(len(page) - 1))[0])
                if last := self._few_last(page, end):
                    yield page.slice(0, len(page) - last)
                    return end
            if not future.has_more_pages:
                yield page
                return None
            asked = time.time()
            self._fetched(future.start_fetching_next_page)
            yield page

    def _few_last(self, page: pa.Table, end: int) -> int:
        """Return the number of rows of a page's last partition, or 0 if they are many.

        To read few rows again is cheaper than a next page that may have to be discarded. With many rows it is unlikely
        that a page ends with its partition.
        """
        most = math.isqrt(len(page) - 1)
        others = np.flatnonzero(self._tokens(page.slice(len(page) - most - 1)) != end)
        return most - int(others[-1]) if len(others) else 0

    def _real(self, found: pa.Table) -> pa.Table:
        """Leave out static columns alone if other rows of the partition follow. ScyllaDB returns them if a page ends
        within deleted rows.
        """
        if not self._schema.static:
            return found
        found = self._without_keys_of_others(found)
        keys = self._keys(found)
        followed = np.append(mask_of(pc.equal(keys[:-1], keys[1:])), np.zeros(min(len(found), 1), bool))
        return found.filter(pa.array(~(followed & self._are_alone(found))))

    def _without_keys_of_others(self, found: pa.Table) -> pa.Table:
        """Remove the clustering values of static columns alone. ScyllaDB 2026.1 answers a query for write times or TTLs
        with those of the row before, where it answers another query with nulls.
        """
        if self._plain is None:
            return found
        schema = self._schema
        regular = found.columns[len(schema.columns) - len(schema.regular) : len(schema.columns)]
        empty = ~np.any([valid(one_chunk(column)) for column in regular], axis=0) & np.ones(len(found), bool)
        if not empty.any():
            return found
        of_empty = self._tokens(found.filter(pa.array(empty)))
        rows = self._plain._select([], int(of_empty.min()), int(of_empty.max()))
        alone = pc.is_in(self._keys(found), self._keys(rows).filter(pa.array(self._plain._are_alone(rows))))
        mask = pc.and_(pa.array(empty), alone)
        first = len(schema.partition_key)
        for place in range(first, first + len(schema.clustering)):
            column = one_chunk(found.columns[place])
            nulls = pc.if_else(mask, pa.scalar(None, column.type), column)
            found = found.set_column(place, found.schema.names[place], nulls)
        return found

    def _query(self, more: Sequence[str], first: int, last: int) -> str:
        schema = self._named
        times = [selector for each in self.timed for selector in each.selectors]
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
            name = self._schema.full_name
            if refused:
                raise WritetimeError(f"{name} cannot be read from the database as the lake has it: {e}") from None
            raise _unread(name, self._session, e) from None

    def _rows(self, found: pa.Table) -> OrderedRows:
        schema = self._schema
        raw = [one_chunk(column) for column in found.columns]
        arrays = [decode(values, column.type) for values, column in zip(raw, schema.columns, strict=False)]
        keys = self._keys(found)
        positions = row_positions([one_chunk(each) for each in self._clustering(found)], len(found), schema)
        if (alone := self._are_alone(found)).any():
            positions = pc.if_else(pa.array(alone), pa.scalar(STATIC_POSITION, pa.binary()), positions)
        lost = {
            c.name: of_database(raw[i].to_pylist(), arrays[i], c.type)
            for i, c in enumerate(schema.columns)
            if c in compared_columns(schema)
        }
        names = [c.name for c in schema.columns]
        asked, answered = (column.to_numpy() for column in raw[-2:])
        for place, timed in enumerate(self.timed):
            times, ttls = raw[len(schema.columns) + 2 * place :][:2]
            names += [timed.time, timed.expiry]
            arrays += cell_times.of_database(timed, times, ttls, asked)
        within = int((answered - asked).max(initial=0)) + 1 + cell_times.CLOCKS_DIFFER_SECONDS
        return OrderedRows(
            pa.Table.from_arrays(arrays, names),
            tokens(keys),
            keys,
            positions,
            lost,
            {timed.expiry: within for timed in self.timed},
        )

    def _tokens(self, found: pa.Table) -> np.ndarray:
        return tokens(self._keys(found)).to_numpy()

    def _keys(self, found: pa.Table) -> pa.Array:
        return partition_keys([one_chunk(column) for column in found.columns[: len(self._schema.partition_key)]])

    def _clustering(self, found: pa.Table) -> list[pa.ChunkedArray]:
        first = len(self._schema.partition_key)
        return found.columns[first : first + len(self._schema.clustering)]

    def _are_alone(self, found: pa.Table) -> np.ndarray:
        """Return which rows are static columns alone."""
        if not self._schema.clustering or not self._schema.static:
            return np.zeros(len(found), bool)
        return ~np.any([valid(one_chunk(column)) for column in self._clustering(found)], axis=0)


def _reports_parts(session: Session) -> bool:
    """Return whether all nodes report the write times and TTLs of the parts of columns. ScyllaDB has the version of a
    Cassandra that does not.
    """
    assert session.cluster is not None
    versions = [str(host.release_version).partition(".")[0] for host in session.cluster.metadata.all_hosts()]
    return all(version.isdecimal() and int(version) >= _PARTS_SINCE for version in versions)


def _unread(what: str, session: Session, fault: Exception) -> Transient:
    return Transient(
        f"{what} cannot be read from the database ({no_answer(session, fault)}): start the nodes that do not answer, "
        "or grant the right that is missing, and run this again"
    )


def _with_clock(page: pa.Table, *times: float) -> pa.Table:
    for at in times:
        page = page.append_column("", pa.array(np.full(len(page), int(at))))
    return page
