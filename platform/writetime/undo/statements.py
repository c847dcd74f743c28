"""The CQL statements that undo damaged cells. Each has a write time, so all but those of lists may be repeated.

- A cell, an element of a set or map, or a field gets its value with the rest of its TTL, or a tombstone.
- A marker is an `INSERT` of the key alone. CQL cannot delete one without the row, so a marker that is too many is
  replaced by one that expires after a second.
- A list is written whole, which deletes its earlier elements. To repeat this would add its elements again, under other
  paths. So each attempt writes lists later than the one before it: whatever an earlier attempt wrote, even if it
  arrives later, is deleted. Elements with another TTL are added a microsecond later, because ScyllaDB makes paths from
  write times; and in one batch, because Cassandra makes them from the clock of the coordinator.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from cassandra.cluster import Session
from cassandra.query import BoundStatement

from writetime.core.errors import WritetimeError
from writetime.schema.serialise import sequence
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Collection, Udt, is_complex, quote_name
from writetime.undo.damage import ADDED, DELETED, OF_MARKER, OF_ROW
from writetime.undo.plan import ATTEMPT_MICROS, ATTEMPTS

_TIME = struct.Struct(">q").pack
_SECONDS = struct.Struct(">i").pack
_NO_TTL = 0
# A marker with this TTL stands for none.
_SHORT_TTL = 1
# The assignment of a list deletes what is earlier by a microsecond.
_MOST_PARTS = ATTEMPT_MICROS - 2


@dataclass(frozen=True)
class RowStatements:
    """The statements of one row: those that may run in any order, and those of each list."""

    plain: Sequence[BoundStatement]
    of_lists: Sequence[Sequence[BoundStatement]]


class UndoStatements:
    """Prepares the statements of a table, and binds them to damaged cells of a plan."""

    def __init__(self, session: Session, schema: TableSchema, write_time: int, attempt: int) -> None:
        """Make statements with a write time (microseconds); `attempt` counts from 1."""
        self._session, self._schema = session, schema
        self._time = _TIME(write_time)
        self._list_time = write_time - ATTEMPT_MICROS * (ATTEMPTS - attempt + 1) + 1
        self._table = f"{quote_name(schema.keyspace)}.{quote_name(schema.name)}"
        self._columns = {column.name: column for column in schema.static + schema.regular}
        self._static = {column.name for column in schema.static}
        self._prepared: dict[str, Any] = {}

    def of_row(self, cells: Sequence[dict[str, Any]], now: int) -> RowStatements:
        """Return the statements for the damaged cells of one row, at a time (seconds)."""
        plain: list[BoundStatement] = []
        of_lists: list[list[BoundStatement]] = []
        for cell in cells:
            if cell["column"] is not None and cell["column"] not in self._columns:
                raise WritetimeError(
                    f"{self._table} no longer has the column {cell['column']}: make a new plan, with --columns or "
                    "after the lake has learned of the drop"
                )
            if cell["elements"] is not None:
                of_lists.append(list(self._of_list(cell, now)))
            elif (statement := self._of_cell(cell, now)) is not None:
                plain.append(statement)
        return RowStatements(plain, of_lists)

    def _of_cell(self, cell: dict[str, Any], now: int) -> BoundStatement | None:
        keys = cell["key_values"]
        ttl = None if cell["kind"] == ADDED else _rest(cell["expiry"], now)
        if ttl is None and cell["kind"] == DELETED:
            # It would have expired by now.
            return None
        if cell["part"] == OF_ROW:
            return self._bound(f"DELETE FROM {self._table} USING TIMESTAMP ?{self._where(keys)}", [self._time, *keys])
        if cell["part"] == OF_MARKER:
            names = ", ".join(quote_name(c.name) for c in self._schema.partition_key + self._schema.clustering)
            marks = ", ".join("?" * len(keys))
            insert = f"INSERT INTO {self._table} ({names}) VALUES ({marks}) USING TIMESTAMP ? AND TTL ?"
            return self._bound(insert, [*keys, self._time, _SECONDS(_SHORT_TTL if ttl is None else ttl)])
        column = self._columns[cell["column"]]
        name, bound = _target(column, cell["path"])
        if ttl is None:
            delete = f"DELETE {name} FROM {self._table} USING TIMESTAMP ?{self._where(keys)}"
            return self._bound(delete, [*bound, self._time, *keys])
        if _is_set(column):
            assignment, values = f"{quote_name(column.name)} = {quote_name(column.name)} + ?", [sequence(bound, 1)]
        else:
            assignment, values = f"{name} = ?", [*bound, cell["value"]]
        update = f"UPDATE {self._table} USING TIMESTAMP ? AND TTL ? SET {assignment}{self._where(keys)}"
        return self._bound(update, [self._time, _SECONDS(ttl), *values, *keys])

    def _of_list(self, cell: dict[str, Any], now: int) -> Iterator[BoundStatement]:
        """Yield the assignment of a list's first elements with one TTL, and additions of the others."""
        keys, name = cell["key_values"], quote_name(cell["column"])
        rests = [(_rest(each["expiry"], now), each["value"]) for each in cell["elements"]]
        alike = [(ttl, [value for _, value in group]) for ttl, group in groupby(rests, lambda each: each[0])]
        parts = [(ttl, values) for ttl, values in alike if ttl is not None]
        if len(parts) > _MOST_PARTS:
            raise WritetimeError(
                f"a list {cell['column']} of {self._table} has more than {_MOST_PARTS} TTLs in turn: make a plan of "
                "the other columns, with --columns"
            )
        if not parts:
            delete = f"DELETE {name} FROM {self._table} USING TIMESTAMP ?{self._where(keys)}"
            yield self._bound(delete, [_TIME(self._list_time), *keys])
        for number, (ttl, values) in enumerate(parts):
            assigned = f"{name} = {name} + ?" if number else f"{name} = ?"
            update = f"UPDATE {self._table} USING TIMESTAMP ? AND TTL ? SET {assigned}{self._where(keys)}"
            written = _TIME(self._list_time + number), _SECONDS(ttl), sequence(values, len(values))
            yield self._bound(update, [*written, *keys])

    def _where(self, keys: Sequence[bytes | None]) -> str:
        columns = (self._schema.partition_key + self._schema.clustering)[: len(keys)]
        return " WHERE " + " AND ".join(f"{quote_name(column.name)} = ?" for column in columns)

    def _bound(self, cql: str, values: list[bytes | None]) -> BoundStatement:
        prepared = self._prepared.get(cql)
        if prepared is None:
            prepared = self._prepared[cql] = self._session.prepare(cql)
        bound = BoundStatement(prepared)
        # They are serialised already: the driver's types do not hold all values.
        bound.values = values
        return bound


def _target(column: Column, path: bytes | None) -> tuple[str, list[bytes | None]]:
    """Return how statements name a cell, and the values that this name needs."""
    name = quote_name(column.name)
    if not is_complex(column.type):
        return name, []
    if isinstance(column.type, Udt):
        assert path is not None
        field, _ = column.type.fields[int.from_bytes(path, "big")]
        return f"{name}.{quote_name(field)}", []
    return f"{name}[?]", [path]


def _is_set(column: Column) -> bool:
    return is_complex(column.type) and isinstance(column.type, Collection) and column.type.kind == "set"


def _rest(expiry: int | None, now: int) -> int | None:
    """Return the rest of a TTL in seconds, `_NO_TTL` if there is none; None if the cell has expired by now."""
    if expiry is None:
        return _NO_TTL
    return expiry - now if expiry > now else None
