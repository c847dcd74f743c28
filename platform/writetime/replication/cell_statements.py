"""CQL statements that write single cells and deletions, each with a write time of its own.

A statement writes cells that have one write time and one TTL. It has a marker for each simple column of its kind, and
leaves the columns unset that it does not write, so that a table needs few statements.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cassandra.cluster import Session
from cassandra.query import UNSET_VALUE, BoundStatement

from writetime.schema.serialise import sequence
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Collection, CqlType, Udt, is_complex, quote_name, quote_table

TIME = struct.Struct(">q").pack
"""The bytes of a write time, in microseconds."""
_SECONDS = struct.Struct(">i").pack
NO_TTL = 0
"""The TTL of a cell that does not expire. A statement needs it, because a table may have another default."""


class CellStatements:
    """Prepares the statements of a table, and binds serialised values to them. Keys are those of a partition, of a
    prefix of the clustering columns, or of a row.
    """

    def __init__(self, session: Session, schema: TableSchema) -> None:
        self._session = session
        self._keys = schema.partition_key + schema.clustering
        self._simple = {
            is_static: [column for column in columns if not is_complex(column.type)]
            for is_static, columns in ((True, schema.static), (False, schema.regular))
        }
        self.table = quote_table(schema.full_name)
        self._prepared: dict[str, Any] = {}

    def insert(
        self, keys: Sequence[bytes | None], values: Mapping[str, bytes | None], write_time: int, ttl: int
    ) -> BoundStatement:
        """Write the marker of a row, and simple columns of it by name; None deletes one."""
        columns = self._simple[False]
        names = ", ".join(quote_name(column.name) for column in (*self._keys, *columns))
        marks = ", ".join("?" * (len(self._keys) + len(columns)))
        cql = f"INSERT INTO {self.table} ({names}) VALUES ({marks}) USING TIMESTAMP ? AND TTL ?"
        return self.bound(cql, [*keys, *_set(columns, values), TIME(write_time), _SECONDS(ttl)])

    def update(
        self,
        keys: Sequence[bytes | None],
        values: Mapping[str, bytes | None],
        write_time: int,
        ttl: int,
        *,
        static: bool,
    ) -> BoundStatement:
        """Write simple columns of a row by name, or static ones of a partition; None deletes one."""
        columns = self._simple[static]
        assigned = ", ".join(f"{quote_name(column.name)} = ?" for column in columns)
        return self._update(keys, assigned, _set(columns, values), write_time, ttl)

    def add_parts(
        self,
        column: Column,
        keys: Sequence[bytes | None],
        parts: Sequence[tuple[bytes, bytes | None]],
        write_time: int,
        ttl: int,
    ) -> BoundStatement:
        """Write elements of a set or map, or fields of a user-defined type, by their paths. None deletes a field."""
        name = quote_name(column.name)
        if isinstance(column.type, Collection):
            of_map = column.type.kind == "map"
            value = sequence([part for each in parts for part in (each if of_map else each[:1])], len(parts))
            return self._update(keys, f"{name} = {name} + ?", [value], write_time, ttl)
        fields = _fields(column.type)
        values: list[Any] = [UNSET_VALUE] * len(fields)
        for path, value in parts:
            values[int.from_bytes(path, "big")] = value
        assigned = ", ".join(f"{name}.{quote_name(field)} = ?" for field in fields)
        return self._update(keys, assigned, values, write_time, ttl)

    def write_list(
        self,
        column: Column,
        keys: Sequence[bytes | None],
        elements: bytes,
        write_time: int,
        ttl: int,
        *,
        appended: bool,
    ) -> BoundStatement:
        """Write a whole list, or append elements to it; the node that coordinates the request chooses their paths."""
        name = quote_name(column.name)
        return self._update(keys, f"{name} = {name} + ?" if appended else f"{name} = ?", [elements], write_time, ttl)

    def set_list_element(
        self,
        column: Column,
        keys: Sequence[bytes | None],
        part: tuple[bytes, bytes | None],
        write_time: int,
        ttl: int,
    ) -> BoundStatement:
        """Write an element of a list by its path, or delete it (None). Only ScyllaDB can do this: the function is
        described in `docs/dev/cql-extensions-internal.md` of its sources, and `sstableloader` uses it.
        """
        assigned = f"{quote_name(column.name)}[SCYLLA_TIMEUUID_LIST_INDEX(?)] = ?"
        return self._update(keys, assigned, part, write_time, ttl)

    def delete_elements(
        self, column: Column, keys: Sequence[bytes | None], paths: Sequence[bytes], write_time: int
    ) -> BoundStatement:
        """Delete elements of a set or map."""
        name = quote_name(column.name)
        return self._update(keys, f"{name} = {name} - ?", [sequence(paths, len(paths))], write_time, NO_TTL)

    def delete_column(self, column: Column, keys: Sequence[bytes | None], write_time: int) -> BoundStatement:
        """Delete all of a column."""
        cql = f"DELETE {quote_name(column.name)} FROM {self.table} USING TIMESTAMP ?{self._where(keys)}"
        return self.bound(cql, [TIME(write_time), *keys])

    def delete(self, keys: Sequence[bytes | None], write_time: int) -> BoundStatement:
        """Delete a row, or all rows with these keys."""
        return self.bound(f"DELETE FROM {self.table} USING TIMESTAMP ?{self._where(keys)}", [TIME(write_time), *keys])

    def delete_slice(
        self, keys: Sequence[bytes | None], bounds: Iterable[tuple[str, bytes | None]], write_time: int
    ) -> BoundStatement:
        """Delete the rows with these keys of which the next clustering column meets one or two bounds: `<`, `<=`, `>`
        or `>=`, and a value.
        """
        name, bounds = quote_name(self._keys[len(keys)].name), list(bounds)
        limits = "".join(f" AND {name} {operator} ?" for operator, _ in bounds)
        cql = f"DELETE FROM {self.table} USING TIMESTAMP ?{self._where(keys)}{limits}"
        return self.bound(cql, [TIME(write_time), *keys, *(value for _, value in bounds)])

    def bound(self, cql: str, values: Sequence[Any]) -> BoundStatement:
        """Return a statement with serialised values, which is prepared once."""
        prepared = self._prepared.get(cql)
        if prepared is None:
            prepared = self._prepared[cql] = self._session.prepare(cql)
        bound = BoundStatement(prepared)
        # They are serialised already: the driver's types do not hold all values.
        bound.values = list(values)
        return bound

    def _update(
        self, keys: Sequence[bytes | None], assigned: str, values: Sequence[Any], write_time: int, ttl: int
    ) -> BoundStatement:
        cql = f"UPDATE {self.table} USING TIMESTAMP ? AND TTL ? SET {assigned}{self._where(keys)}"
        return self.bound(cql, [TIME(write_time), _SECONDS(ttl), *values, *keys])

    def _where(self, keys: Sequence[bytes | None]) -> str:
        named = zip(self._keys, keys, strict=False)
        return " WHERE " + " AND ".join(f"{quote_name(column.name)} = ?" for column, _ in named)


def rest_of_ttl(expiry: int | None, now: int) -> int | None:
    """Return the rest of a TTL in seconds, `NO_TTL` if there is none; None if the cell has expired by now."""
    if expiry is None:
        return NO_TTL
    return expiry - now if expiry > now else None


def _set(columns: Sequence[Column], values: Mapping[str, bytes | None]) -> list[Any]:
    return [values.get(column.name, UNSET_VALUE) for column in columns]


def _fields(cql_type: CqlType) -> list[str]:
    assert isinstance(cql_type, Udt)
    return [name for name, _ in cql_type.fields]
