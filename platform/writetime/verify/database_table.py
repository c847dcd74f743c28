"""Reads a table from the database by token ranges, with values in the form of the lake.

The driver's own types cannot hold all CQL values (dates beyond the year 9999, empty values). So rows are read as bytes,
and decoded like those of files.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from cassandra import InvalidRequest
from cassandra.cluster import Session

from writetime.changes.position import AT, STATIC_POSITION, position_encoder
from writetime.clients.database import DRIVER_FAULTS, nodes_agree
from writetime.clients.untyped_rows import UntypedProtocol
from writetime.core.errors import Transient, WritetimeError
from writetime.lake.evolution import with_key_names
from writetime.row_events.compare import Rows
from writetime.schema.mapping import stored_type
from writetime.schema.serialise import partition_key
from writetime.schema.system import read_schema
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import is_complex, quote_name
from writetime.schema.values import decoder
from writetime.storage.kernel.primitives import token
from writetime.verify.compared_rows import between
from writetime.verify.lag import NO_TIME

_PAGE_ROWS = 2000


class DatabaseTable:
    """A table of the database, read through its own session."""

    def __init__(self, session: Session, schema: TableSchema) -> None:
        """Read a table that has the columns of the lake's schema; its key columns may have other names now.

        Raises:
            Transient: the database does not answer.
            WritetimeError: it has no such table, or another one of that name.
        """
        try:
            known = read_schema(session, schema.full_name)
        except DRIVER_FAULTS as e:
            raise Transient(f"the schema of {schema.full_name} cannot be read from the database: {e}") from None
        if None not in (schema.id, known.id) and schema.id != known.id:
            raise WritetimeError(
                f"the table {schema.full_name} was dropped and created again: the lake has the table with the id "
                f"{schema.id}, and the database the one with the id {known.id}"
            )
        session.client_protocol_handler = UntypedProtocol
        session.default_fetch_size = _PAGE_ROWS
        self._session = session
        self._schema = schema
        self._named = with_key_names(schema, known)
        self._position = position_encoder(schema.clustering)

    def rows(self, first: int, last: int) -> Rows:
        """Return the rows whose tokens are in a range, both ends included, with their places."""
        return self._rows(self._select([], first, last))

    def first_rows(self, first: int, last: int, limit: int) -> tuple[Rows, int]:
        """Return the first rows of a range of tokens, and the token up to which these are all: at most `limit` rows, or
        one partition, which is never cut.
        """
        found = self._select([], first, last, limit)
        if len(found) < limit:
            return self._rows(found), last
        rows = self._rows(found)
        # The last partition may have more rows.
        end = rows.tokens[-1].as_py() - 1
        return (between(rows, first, end), end) if end >= first else (self.rows(first, first), first)

    def timed_rows(self, tokens: Sequence[int]) -> tuple[Rows, np.ndarray]:
        """Return the rows of some tokens, and the write times that the database reports of their cells: one line per
        row, one column per static and regular column, `NO_TIME` where it reports none (null, collections and UDTs).
        """
        columns = self._schema.static + self._schema.regular
        timed = [n for n, c in enumerate(columns) if not is_complex(c.type)]
        names = [f"writetime({quote_name(columns[n].name)})" for n in timed]
        found = [row for t in tokens for row in self._select(names, t, t)]
        skip = len(self._schema.columns)
        times = np.full((len(found), len(columns)), NO_TIME)
        for line, row in zip(times, found, strict=True):
            line[timed] = [int.from_bytes(time, "big", signed=True) if time else NO_TIME for time in row[skip:]]
        return self._rows(found), times

    def _select(
        self, more: Sequence[str], first: int, last: int, limit: int | None = None
    ) -> list[Sequence[bytes | None]]:
        schema = self._named
        names = ", ".join([*(quote_name(c.name) for c in schema.columns), *more])
        of = f"token({', '.join(quote_name(c.name) for c in schema.partition_key)})"
        table = f"{quote_name(schema.keyspace)}.{quote_name(schema.name)}"
        query = f"SELECT {names} FROM {table} WHERE {of} >= {first} AND {of} <= {last}"
        if limit is not None:
            query += f" LIMIT {limit}"
        try:
            return list(self._session.execute(query))
        except DRIVER_FAULTS as e:
            # A node that was down may not know a new column yet.
            refused = isinstance(e, InvalidRequest) and nodes_agree(self._session)
            kind = WritetimeError if refused else Transient
            raise kind(f"{schema.full_name} cannot be read from the database as the lake has it: {e}") from None

    def _rows(self, found: Sequence[Sequence[bytes | None]]) -> Rows:
        schema = self._schema
        arrays = [_decoded([row[i] for row in found], column) for i, column in enumerate(schema.columns)]
        partition, clustering = len(schema.partition_key), len(schema.clustering)
        keys = [partition_key(row[:partition]) for row in found]
        positions = [self._place(row[partition : partition + clustering]) for row in found]
        return Rows(
            pa.Table.from_arrays(arrays, [c.name for c in schema.columns]),
            pa.array([token(key) for key in keys], pa.int64()),
            pa.array(keys, pa.binary()),
            pa.array(positions, pa.binary()),
        )

    def _place(self, clustering: Sequence[bytes | None]) -> bytes:
        if clustering and all(value is None for value in clustering) and self._schema.static:
            return STATIC_POSITION
        return self._position(clustering, AT)


def _decoded(values: Sequence[bytes | None], column: Column) -> pa.Array:
    decode = decoder(column.type)
    return pa.array([None if value is None else decode(value) for value in values], stored_type(column.type))
