"""Table schemas: the columns of a table, its dropped columns, and how schemas of one table follow each other."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from writetime.core.errors import WritetimeError
from writetime.schema.compatible import is_readable
from writetime.schema.types import CqlType, Udt, is_complex, quote_name, with_parts

# The defaults of a table (`org.apache.cassandra.schema.TableParams`), as in ScyllaDB.
GC_GRACE_SECONDS = 864_000


class SchemaError(WritetimeError):
    """A schema that cannot be read, or that does not fit the data."""


@dataclass(frozen=True)
class Column:
    """One column. `reversed` is a clustering column's DESC.

    `label` is the column's name in a table of the lake (`lake.labels`); empty in other schemas.
    """

    name: str
    type: CqlType
    reversed: bool = False
    label: str = field(default="", compare=False)


@dataclass(frozen=True)
class DroppedColumn:
    """A column that was dropped, and possibly added again: its cells written at or before `dropped_at` no longer count.

    `static` is None if the database does not record it, as in ScyllaDB. `dropped_at` is a write time, in microseconds.
    """

    name: str
    type: CqlType
    static: bool | None
    dropped_at: int


@dataclass(frozen=True)
class TableSchema:
    """The columns of one table; static and regular ones sorted by name, as the database stores them.

    `gc_grace_seconds` is how long the database keeps a deletion at least.
    """

    keyspace: str
    name: str
    partition_key: tuple[Column, ...]
    clustering: tuple[Column, ...] = ()
    static: tuple[Column, ...] = ()
    regular: tuple[Column, ...] = ()
    dropped: tuple[DroppedColumn, ...] = ()
    id: UUID | None = field(default=None, compare=False)
    gc_grace_seconds: int = field(default=GC_GRACE_SECONDS, compare=False)

    def __post_init__(self) -> None:
        if not self.partition_key:
            raise SchemaError(f"table {self.full_name} has no partition key")
        for kind in ("static", "regular"):
            object.__setattr__(self, kind, tuple(sorted(getattr(self, kind), key=lambda c: c.name.encode())))

    @property
    def full_name(self) -> str:
        """`keyspace.table`."""
        return f"{self.keyspace}.{self.name}"

    @property
    def columns(self) -> tuple[Column, ...]:
        """All live columns: partition key, clustering, static, regular."""
        return self.partition_key + self.clustering + self.static + self.regular

    def create_statement(self) -> str:
        """Return a CREATE TABLE statement for the live columns (their user-defined types must exist)."""
        lines = [f"  {quote_name(c.name)} {c.type}{' STATIC' if c in self.static else ''}" for c in self.columns]
        key = ", ".join(quote_name(c.name) for c in self.partition_key)
        clustering = "".join(f", {quote_name(c.name)}" for c in self.clustering)
        order = ", ".join(f"{quote_name(c.name)} {'DESC' if c.reversed else 'ASC'}" for c in self.clustering)
        suffix = f" WITH CLUSTERING ORDER BY ({order})" if order else ""
        body = ",\n".join([*lines, f"  PRIMARY KEY (({key}){clustering})"])
        return f"CREATE TABLE {quote_name(self.keyspace)}.{quote_name(self.name)} (\n{body}\n){suffix}"

    def udts(self, *, of_dropped: bool = False) -> list[Udt]:
        """Return the user-defined types that the columns use, each after the types that it uses itself; with
        `of_dropped` also those of dropped columns.
        """
        found: dict[str, Udt] = {}
        for column in (*self.columns, *(self.dropped if of_dropped else ())):
            for cql_type in with_parts(column.type):
                if isinstance(cql_type, Udt):
                    found.setdefault(cql_type.name, replace(cql_type, frozen=False))
        return list(found.values())


def is_later(schema: TableSchema, other: TableSchema) -> bool:
    """Return whether a table was created later than another one of the same name. Databases derive ids from the time.
    If the ids differ and one has no time, because a user chose it, that is a SchemaError.
    """
    one, two = schema.id, other.id
    if one is None or two is None or one == two:
        return False
    if (one.version, two.version) != (1, 1):
        raise SchemaError(
            f"there were two tables {schema.full_name}, with the ids {two} and {one}. A user chose an id, so the ids "
            f"do not show which table is later: run `writetime forget {schema.full_name}`, and bring the table in again"
        )
    return one.time > two.time


def storage_order(columns: Iterable[Column]) -> list[Column]:
    """Sort columns as Cassandra's rows store them: simple before complex, each by the bytes of the name; names that do
    not begin in ASCII come first, as in the comparison of `ColumnMetadata`.
    """
    return sorted(columns, key=lambda c: (is_complex(c.type), c.name.encode()[:1] < b"\x80", c.name.encode()))


def compact_storage(table: str) -> SchemaError:
    """Return the error of a table from the time of Thrift."""
    return SchemaError(
        f"table {table} has COMPACT STORAGE, which is not supported; ALTER TABLE {table} DROP COMPACT STORAGE makes it "
        "supported"
    )


class SchemaHistory:
    """Every known schema of every table, by table id: commit logs hold writes made under older ones.

    A column that an older schema has and a newer one lacks is kept as dropped, so that its cells can still be skipped.
    """

    def __init__(self, schemas: Iterable[TableSchema] = ()) -> None:
        self._schemas: dict[UUID, TableSchema] = {}
        for schema in schemas:
            self.add(schema)

    def add(self, schema: TableSchema) -> None:
        """Add a newer schema of a table. It is a SchemaError if it has no table id, or if its primary key differs from
        the earlier one by more than fields of user-defined types that were added or renamed.
        """
        if schema.id is None:
            raise SchemaError(f"the schema of {schema.full_name} has no table id")
        table_id = schema.id
        old = self._schemas.get(table_id)
        if old is not None:
            before, now = ([c.type for c in (*s.partition_key, *s.clustering)] for s in (old, schema))
            if len(before) != len(now) or not all(map(is_readable, before, now)):
                raise SchemaError(
                    f"table {schema.id}: the primary key of {schema.full_name} differs from the one known"
                )
            known = {c.name for c in schema.columns} | {d.name for d in schema.dropped}
            gone = [
                DroppedColumn(c.name, c.type, c in old.static, (1 << 63) - 1)
                for c in old.static + old.regular
                if c.name not in known
            ] + [d for d in old.dropped if d.name not in {e.name for e in schema.dropped}]
            schema = replace(schema, dropped=schema.dropped + tuple(gone))
        self._schemas[table_id] = schema

    def get(self, table_id: UUID) -> TableSchema | None:
        """Return the newest schema of a table, with every dropped column known, or None."""
        return self._schemas.get(table_id)

    def __iter__(self) -> Any:
        return iter(self._schemas.values())
