"""Reads table schemas from `system_schema`, as Apache Cassandra and ScyllaDB keep it.

ScyllaDB differs (2026.1): `clustering_order` is in capitals, and `dropped_columns` has no `kind` and counts
`dropped_time` in microseconds.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from writetime.core.errors import WritetimeError
from writetime.schema.table import GC_GRACE_SECONDS, Column, DroppedColumn, SchemaError, TableSchema, compact_storage
from writetime.schema.types import CqlTypeError, Udt, parse_cql

_ITSELF = "system_schema"
_NAMES = "keyspace_name, table_name"
# ScyllaDB refuses a query with more names (`max_partition_key_restrictions_per_query`, and that of clustering keys).
_MOST_NAMES = 100

Row = Mapping[str, Any]
# Of one table: its row of `tables`, and its rows of `columns`, `types` and `dropped_columns`.
TableRows = tuple[Row, Sequence[Row], Sequence[Row], Sequence[Row]]


def from_rows(
    table: Mapping[str, Any],
    columns: Iterable[Mapping[str, Any]],
    types: Iterable[Mapping[str, Any]] = (),
    dropped: Iterable[Mapping[str, Any]] = (),
) -> TableSchema:
    """Build a schema from rows of `system_schema.tables`, `columns`, `types` and `dropped_columns`.

    `dropped_time` is the bytes of the timestamp: of milliseconds in Cassandra, whose rows have a `kind`, and of
    microseconds in ScyllaDB, whose rows have none (`db/schema_tables.cc` there). A `kind` that is null is from before
    Cassandra 4.0, and counts as regular there (`SchemaKeyspace.createDroppedColumnFromRow`). Rows of other tables and
    keyspaces are ignored, so whole tables of `system_schema` may be passed.

    Raises:
        SchemaError, CqlTypeError: rows are missing or name an unknown type; or the table has compact storage, whose
            rows have columns that are not in these rows.
    """
    keyspace, name = table["keyspace_name"], table["table_name"]
    flags = table.get("flags")
    if flags is not None and ("compound" not in flags or "dense" in flags or "super" in flags):
        raise compact_storage(f"{keyspace}.{name}")
    udts = udts_from_rows([t for t in types if t["keyspace_name"] == keyspace])
    mine = [c for c in columns if _names(c) == (keyspace, name)]
    by_kind: dict[str, list[tuple[int, Column]]] = {}
    for c in mine:
        column = Column(c["column_name"], parse_cql(c["type"], udts), c["clustering_order"].lower() == "desc")
        by_kind.setdefault(c["kind"], []).append((c["position"], column))

    def of(kind: str) -> tuple[Column, ...]:
        return tuple(column for _, column in sorted(by_kind.get(kind, []), key=lambda p: (p[0], p[1].name)))

    return TableSchema(
        keyspace,
        name,
        of("partition_key"),
        of("clustering"),
        of("static"),
        of("regular"),
        tuple(_dropped_column(d, udts) for d in dropped if _names(d) == (keyspace, name)),
        table.get("id"),
        GC_GRACE_SECONDS if table.get("gc_grace_seconds") is None else table["gc_grace_seconds"],
    )


def _dropped_column(row: Mapping[str, Any], udts: Mapping[str, Udt]) -> DroppedColumn:
    time = int.from_bytes(row["dropped_time"], "big", signed=True)
    name, cql_type = row["column_name"], parse_cql(row["type"], udts)
    if "kind" not in row:
        return DroppedColumn(name, cql_type, None, time)
    return DroppedColumn(name, cql_type, row["kind"] == "static", min(time * 1000, (1 << 63) - 1))


def udts_from_rows(rows: Iterable[Mapping[str, Any]]) -> dict[str, Udt]:
    """Build one keyspace's user-defined types from rows of `system_schema.types`, in any order.

    A type that cannot be read is left out, so that only the tables that use it are rejected.
    """
    waiting = list(rows)
    udts: dict[str, Udt] = {}
    while waiting:
        left = []
        for row in waiting:
            try:
                fields = tuple(zip(row["field_names"], (parse_cql(t, udts) for t in row["field_types"]), strict=True))
            except CqlTypeError:
                left.append(row)
                continue
            udts[row["type_name"]] = Udt(row["keyspace_name"], row["type_name"], fields)
        if len(left) == len(waiting):
            break
        waiting = left
    return udts


def settled_rows(
    ask: Callable[[str], list[dict[str, Any]]],
    keyspaces: Iterable[str] | None = None,
    tables: Iterable[str] | None = None,
    **others: str,
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the tables of `system_schema` that schemas are built from, and the named columns of its tables
    `others`. `ask` returns the rows of a query. Only those of some keyspaces, and of tables with some names, are
    needed; None stands for all. There may be rows of others.

    They are read until two results in a row are equal. A schema change writes its tables one after the other, so a
    single read may mix two schemas, such as a column that is both live and dropped.
    """
    of_keyspaces = _where("keyspace_name", keyspaces)
    of_tables = of_keyspaces + _where("table_name", tables) if of_keyspaces else []

    def read(table: str, columns: str, conditions: list[str]) -> list[dict[str, Any]]:
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return ask(f"SELECT {columns} FROM {_ITSELF}.{table}{where}")

    of_drops = _where("keyspace_name", [_ITSELF]) + _where("table_name", ["dropped_columns"])
    described = read("columns", f"{_NAMES}, column_name", of_drops)
    has_kind = any((*_names(c), c["column_name"]) == (_ITSELF, "dropped_columns", "kind") for c in described)
    kind = ", kind" if has_kind else ""

    def read_all() -> dict[str, list[dict[str, Any]]]:
        return {
            "tables": read("tables", "*", of_tables),
            "columns": read("columns", "*", of_tables),
            "types": read("types", "*", of_keyspaces),
            **{table: read(table, columns, of_keyspaces) for table, columns in others.items()},
            # The driver cannot represent every drop time as a datetime, and ScyllaDB not every one as a Unix timestamp.
            "dropped_columns": read(
                "dropped_columns",
                f"{_NAMES}, column_name, type{kind}, timestampAsBlob(dropped_time) AS dropped_time",
                of_tables,
            ),
        }

    before, rows = None, read_all()
    while rows != before:
        before, rows = rows, read_all()
    return rows


def _where(column: str, names: Iterable[str] | None) -> list[str]:
    names = None if names is None else sorted(set(names))
    if names is None or len(names) > _MOST_NAMES:
        return []
    quoted = ", ".join("'" + name.replace("'", "''") + "'" for name in names)
    return [f"{column} IN ({quoted})"]


def _names(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["keyspace_name"], row["table_name"]


def schemas_of(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, TableSchema | WritetimeError]:
    """Return the schema of each table of `settled_rows` by its full name, or why it cannot be read."""
    found: dict[str, TableSchema | WritetimeError] = {}
    for of_table in rows_of_tables(rows):
        try:
            schema = from_rows(*of_table)
        except WritetimeError as e:
            schema = e
        found[".".join(_names(of_table[0]))] = schema
    return found


def rows_of_tables(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[TableRows]:
    """Yield the arguments of `from_rows` for each table of `settled_rows`, without the rows of others."""
    columns, dropped = (_grouped(rows[name], _names) for name in ("columns", "dropped_columns"))
    types = _grouped(rows["types"], itemgetter("keyspace_name"))
    for table in rows["tables"]:
        names = _names(table)
        yield table, columns.get(names, []), types.get(names[0], []), dropped.get(names, [])


def _grouped(rows: Iterable[Row], key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def read_schemas(
    session: Any, keyspaces: Iterable[str] | None = None, tables: Iterable[str] | None = None
) -> dict[str, TableSchema | WritetimeError]:
    """Read the schemas of all tables, or of those of some keyspaces and with some names, through a session of the
    Cassandra driver. Return by full name each table's schema, or why it cannot be read: one table does not hide the
    others.
    """
    keyspaces = None if keyspaces is None else set(keyspaces)
    rows = settled_rows(lambda query: [row._asdict() for row in session.execute(query)], keyspaces, tables)
    found = schemas_of(rows)
    return found if keyspaces is None else {n: s for n, s in found.items() if n.split(".")[0] in keyspaces}


def read_schema(session: Any, table: str) -> TableSchema:
    """Read the schema of `keyspace.table` through a session of the Cassandra driver. A missing table is a SchemaError,
    and one that cannot be read the WritetimeError that says why.
    """
    keyspace, _, name = table.partition(".")
    found = read_schemas(session, [keyspace], [name]).get(table)
    if found is None:
        raise SchemaError(f"the database has no table {table}")
    if isinstance(found, WritetimeError):
        raise found
    return found
