"""The options of a table that users notice in its answers, and its indexes and materialized views.

Options of the storage, such as compaction and compression, are no part of this: each database has its own.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from writetime.schema.table import SchemaError
from writetime.schema.types import quote_table

_NAMES = ("default_time_to_live", "gc_grace_seconds", "comment")


@dataclass(frozen=True)
class TableOptions:
    """The id of a table, and the CQL texts of its options by their names."""

    id: UUID
    texts: Mapping[str, str]

    def other_than(self, other: "TableOptions") -> dict[str, str]:
        """Return the options that another table has not, or has with another value."""
        return {name: text for name, text in self.texts.items() if other.texts[name] != text}


def read_options(session: Any, table: str) -> TableOptions:
    """Read the options of `keyspace.table` through a session of the Cassandra driver. Raise `SchemaError` if the
    database does not have it, or an error of the driver.
    """
    query = f"SELECT id, {', '.join(_NAMES)} FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s"
    row = session.execute(query, tuple(table.split(".", 1))).one()
    if row is None:
        raise SchemaError(f"the database has no table {table}")
    return TableOptions(row.id, {name: _text(getattr(row, name)) for name in _NAMES})


def set_options(table: str, texts: Mapping[str, str]) -> str:
    """Return the statement that gives `keyspace.table` options, by the CQL texts of their values."""
    return f"ALTER TABLE {quote_table(table)} WITH " + " AND ".join(f"{name} = {text}" for name, text in texts.items())


def _text(value: int | str | None) -> str:
    """Return the CQL text of a value. An option that was never set is null in a table from before it existed."""
    if isinstance(value, int):
        return str(value)
    return "'" + (value or "").replace("'", "''") + "'"


@dataclass(frozen=True)
class Lookup:
    """An index or a materialized view of a table: its kind, its name, and the columns of an index, or the table's
    columns that select the rows of a view.
    """

    kind: str
    name: str
    of: str


def read_lookups(session: Any, table: str) -> list[Lookup]:
    """Read the indexes and materialized views of `keyspace.table` through a session of the Cassandra driver, by name.
    Raises an error of the driver.
    """
    return sorted(_lookups(session, *table.split(".", 1)), key=lambda each: (each.kind, each.name))


def _lookups(session: Any, keyspace: str, name: str) -> Iterator[Lookup]:
    indexes = session.execute(
        "SELECT index_name, options FROM system_schema.indexes WHERE keyspace_name = %s AND table_name = %s",
        (keyspace, name),
    )
    of_indexes = set()
    for row in indexes:
        # ScyllaDB has a view for each index.
        of_indexes.add(f"{row.index_name}_index")
        yield Lookup("index", row.index_name, _indexed(row.options.get("target", "")))
    views = session.execute(
        "SELECT view_name, base_table_name, where_clause FROM system_schema.views WHERE keyspace_name = %s", (keyspace,)
    )
    for row in views:
        if row.base_table_name == name and row.view_name not in of_indexes:
            yield Lookup("materialized view", row.view_name, row.where_clause)


def _indexed(target: str) -> str:
    """Return the columns of an index. ScyllaDB has JSON for those that are local to a partition."""
    try:
        found = json.loads(target)
    except ValueError:
        return target
    return f"({', '.join(found['pk'])}), {', '.join(found['ck'])}" if isinstance(found, dict) else target
