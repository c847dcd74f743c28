"""The CQL statements that undo damaged cells. Each has a write time, so all but those of lists may be repeated.

- A cell, an element of a set or map, or a field gets its value with the rest of its TTL, or a tombstone.
- A marker is an `INSERT` of the key alone. CQL cannot delete one without the row, so a marker that is too many is
  replaced by one that expires after a second.
- A list is written whole, which deletes its earlier elements. To repeat this would add its elements again, under other
  paths. So each attempt writes lists later than the one before it: whatever an earlier attempt wrote, even if it
  arrives later, is deleted. Elements with another TTL are added a microsecond later, because ScyllaDB makes paths from
  write times; and in one batch, because Cassandra makes them from the clock of the coordinator.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from cassandra.cluster import Session
from cassandra.query import BoundStatement

from writetime.core.errors import WritetimeError
from writetime.replication.cell_statements import NO_TTL, CellStatements, rest_of_ttl
from writetime.schema.serialise import sequence
from writetime.schema.table import TableSchema
from writetime.schema.types import Collection, is_complex
from writetime.undo.damage import ADDED, DELETED, OF_MARKER, OF_ROW
from writetime.undo.plan import ATTEMPT_MICROS, ATTEMPTS

# A marker with this TTL stands for none.
_SHORT_TTL = 1
# The assignment of a list deletes what is earlier by a microsecond.
_MOST_PARTS = ATTEMPT_MICROS - 2


@dataclass(frozen=True)
class RowStatements:
    """The statements of one row: those that may run in any order, and those of each list."""

    key: bytes
    plain: Sequence[BoundStatement]
    of_lists: Sequence[Sequence[BoundStatement]]


class UndoStatements:
    """Prepares the statements of a table, and binds them to damaged cells of a plan."""

    def __init__(self, session: Session, schema: TableSchema, write_time: int, attempt: int) -> None:
        """Make statements with a write time (microseconds); `attempt` counts from 1."""
        self._write = CellStatements(session, schema)
        self._time = write_time
        self._list_time = write_time - ATTEMPT_MICROS * (ATTEMPTS - attempt + 1) + 1
        self._columns = {column.name: column for column in schema.static + schema.regular}
        self._static = {column.name for column in schema.static}

    def of_row(self, cells: Sequence[dict[str, Any]], now: int) -> RowStatements:
        """Return the statements for the damaged cells of one row, at a time (seconds)."""
        plain: list[BoundStatement] = []
        of_lists: list[list[BoundStatement]] = []
        for cell in cells:
            if cell["column"] is not None and cell["column"] not in self._columns:
                raise WritetimeError(
                    f"{self._write.table} no longer has the column {cell['column']}: make a new plan, with --columns "
                    "or after the lake has learned of the drop"
                )
            if cell["elements"] is not None:
                of_lists.append(list(self._of_list(cell, now)))
            elif (statement := self._of_cell(cell, now)) is not None:
                plain.append(statement)
        return RowStatements(cells[0]["key"], plain, of_lists)

    def _of_cell(self, cell: dict[str, Any], now: int) -> BoundStatement | None:
        keys, path, write = cell["key_values"], cell["path"], self._write
        ttl = None if cell["kind"] == ADDED else rest_of_ttl(cell["expiry"], now)
        if ttl is None and cell["kind"] == DELETED:
            # It would have expired by now.
            return None
        if cell["part"] == OF_ROW:
            return write.delete(keys, self._time)
        if cell["part"] == OF_MARKER:
            return write.insert(keys, {}, self._time, _SHORT_TTL if ttl is None else ttl)
        column, value = self._columns[cell["column"]], None if ttl is None else cell["value"]
        if not is_complex(column.type):
            is_static = column.name in self._static
            return write.update(keys, {column.name: value}, self._time, ttl or NO_TTL, static=is_static)
        if ttl is None and isinstance(column.type, Collection):
            return write.delete_elements(column, keys, [path], self._time)
        return write.add_parts(column, keys, [(path, value)], self._time, ttl or NO_TTL)

    def _of_list(self, cell: dict[str, Any], now: int) -> Iterator[BoundStatement]:
        """Yield the assignment of a list's first elements with one TTL, and additions of the others."""
        keys, column, write = cell["key_values"], self._columns[cell["column"]], self._write
        rests = [(rest_of_ttl(each["expiry"], now), each["value"]) for each in cell["elements"]]
        alike = [(ttl, [value for _, value in group]) for ttl, group in groupby(rests, lambda each: each[0])]
        parts = [(ttl, values) for ttl, values in alike if ttl is not None]
        if len(parts) > _MOST_PARTS:
            raise WritetimeError(
                f"a list {column.name} of {write.table} has more than {_MOST_PARTS} TTLs in turn: make a plan of the "
                "other columns, with --columns"
            )
        if not parts:
            yield write.delete_column(column, keys, self._list_time)
        for number, (ttl, values) in enumerate(parts):
            elements = sequence(values, len(values))
            yield write.write_list(column, keys, elements, self._list_time + number, ttl, appended=number > 0)
