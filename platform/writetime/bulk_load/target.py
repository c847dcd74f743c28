"""The table to import into: it is created if it is missing, and refused if an import into it would not be right."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from cassandra.cluster import Session

from writetime.clients.database import DRIVER_FAULTS, driver_reason, is_without_answer, no_answer
from writetime.clients.untyped_rows import UntypedProtocol
from writetime.core.errors import Transient, WritetimeError
from writetime.schema.describe import create_statements, to_cql
from writetime.schema.system import read_schema, read_schemas
from writetime.schema.table import TableSchema
from writetime.schema.types import Collection, CqlType, Native, Tuple, Udt, Vector, quote_name, quote_table
from writetime.scylla_cdc.log import SUFFIX

Row = Mapping[str, Any]
"""A row of a system table."""

_KINDS = ("partition_key", "clustering", "static", "regular")
_TO_EMPTY = (
    "import into an empty table, by another name, or with --merge: then the newer of two writes to a cell counts"
)


def named(schema: TableSchema, table: str) -> TableSchema:
    """Return the schema of a table as one of another name, `keyspace.table`, without its id and dropped columns."""
    keyspace, _, name = table.partition(".")
    columns = {
        kind: tuple(replace(column, type=_in_keyspace(column.type, keyspace)) for column in getattr(schema, kind))
        for kind in _KINDS
    }
    return replace(schema, keyspace=keyspace, name=name, id=None, dropped=(), **columns)


def _in_keyspace(cql_type: CqlType, keyspace: str) -> CqlType:
    """Return a type whose user-defined types are those of a keyspace."""
    match cql_type:
        case Native():
            return cql_type
        case Vector():
            return replace(cql_type, element=_in_keyspace(cql_type.element, keyspace))
        case Collection() | Tuple():
            return replace(cql_type, arguments=tuple(_in_keyspace(t, keyspace) for t in cql_type.arguments))
        case Udt():
            fields = tuple((name, _in_keyspace(t, keyspace)) for name, t in cql_type.fields)
            return replace(cql_type, keyspace=keyspace, fields=fields)


def create(session: Session, schema: TableSchema) -> None:
    """Create the table and its types if they are missing. Raises WritetimeError: the login has no right to, or the
    table has other columns, or something that an import does not keep.
    """
    known = read_schemas(session, [schema.keyspace], [schema.name])
    if schema.full_name not in known:
        for statement in create_statements(schema):
            what = " ".join(statement.split()[:2])
            try:
                session.execute(statement.replace(what, f"{what} IF NOT EXISTS", 1))
            except DRIVER_FAULTS as e:
                if is_without_answer(e):
                    raise _unanswered(f"{schema.full_name} cannot be created", session, e) from None
                raise WritetimeError(
                    f"{schema.full_name} cannot be created ({driver_reason(e)}): grant the right that is missing, or "
                    f"run this yourself, and then this command again: {to_cql(schema)}"
                ) from None
    _require_same_columns(read_schema(session, schema.full_name), schema)


def _require_same_columns(found: TableSchema, wanted: TableSchema) -> None:
    ours = {udt.name: udt for udt in wanted.udts()}
    for udt in found.udts():
        # Columns of both are shown by the same names of types.
        if (other := ours.get(udt.name, udt)).fields != udt.fields:
            texts = [", ".join(f"{name} {cql_type}" for name, cql_type in each.fields) for each in (udt, other)]
            raise WritetimeError(
                f"the type {udt.keyspace}.{udt.name} has other fields ({texts[0]}) than the type of the table at that "
                f"instant ({texts[1]}): import into another keyspace"
            )
    for kind in _KINDS:
        ours, theirs = ([(c.name, c.type, c.reversed) for c in getattr(s, kind)] for s in (wanted, found))
        if ours != theirs:
            what = kind.replace("_", " ")
            texts = [", ".join(f"{name} {cql_type}" for name, cql_type, _ in each) or "none" for each in (theirs, ours)]
            raise WritetimeError(
                f"{found.full_name} has other {what} columns ({texts[0]}) than the table at that instant ({texts[1]}): "
                "import into a table of another name, which is then created"
            )


def table_id(session: Session, table: str) -> str:
    """Return the id of `keyspace.table` in the database."""
    return str(read_schema(session, table).id)


def system_rows(session: Session, schema: TableSchema) -> tuple[list[Row], list[Row], Row]:
    """Return the rows of the system tables that `require_importable` needs: the views of the keyspace, the indexes of
    the table, and the table.
    """
    table = [schema.keyspace, schema.name]
    of_table = "WHERE keyspace_name = %s AND table_name = %s"
    queries = [
        ("SELECT view_name, base_table_name FROM system_schema.views WHERE keyspace_name = %s", table[:1]),
        (f"SELECT index_name FROM system_schema.indexes {of_table}", table),
        (f"SELECT * FROM system_schema.tables {of_table}", table),
    ]
    views, indexes, tables = ([row._asdict() for row in session.execute(*query)] for query in queries)
    return views, indexes, tables[0]


def has_log(session: Session, schema: TableSchema) -> bool:
    """Return whether a table of ScyllaDB has a CDC log."""
    return bool(read_schemas(session, [schema.keyspace], [schema.name + SUFFIX]))


def require_importable(schema: TableSchema, views: Iterable[Row], indexes: Iterable[Row], table: Row) -> None:
    """Raise a WritetimeError if the table has a view, an index or transactions, which an import into Cassandra would
    not keep. ScyllaDB updates views and indexes when it loads SSTables.
    """
    found = [f"materialised view {row['view_name']}" for row in views if row["base_table_name"] == schema.name]
    found += [f"index {row['index_name']}" for row in indexes]
    if found:
        raise WritetimeError(
            f"{schema.full_name} has the {found[0]}, which would not get the rows: drop it, run this again, and create "
            "it again after the import"
        )
    # Of Cassandra 6.0.
    if table.get("transactional_mode") not in (None, "", "off"):
        raise WritetimeError(
            f"{schema.full_name} has transactions (Accord), and Cassandra cannot import into such a table: import into "
            "a table without them"
        )


def has_rows(session: Session, table: str) -> bool:
    """Return whether a table, `keyspace.table`, has a row. Raises an error of the driver."""
    assert session.cluster is not None
    # The driver cannot decode all values. Other threads may use the given session meanwhile.
    own = session.cluster.connect()
    own.client_protocol_handler = UntypedProtocol
    try:
        return own.execute(f"SELECT * FROM {quote_table(table)} LIMIT 1").one() is not None
    finally:
        own.shutdown()


def require_empty(session: Session, table: str) -> None:
    """Raise a WritetimeError if `keyspace.table` has a row."""
    name = ".".join(map(quote_name, table.split(".", 1)))
    try:
        is_filled = has_rows(session, table)
    except DRIVER_FAULTS as e:
        if is_without_answer(e):
            raise _unanswered(f"{table} cannot be read", session, e) from None
        raise WritetimeError(
            f"{table} cannot be read ({driver_reason(e)}): if a right is missing, GRANT SELECT ON TABLE {name} to the "
            "role in cassandra.username, and run this again"
        ) from None
    if is_filled:
        raise WritetimeError(
            f"{table} has rows. An import into it changes nothing where its own writes and deletions are newer: "
            f"{_TO_EMPTY}. To undo the writes of an interval, use `writetime undo`"
        )


def _unanswered(what: str, session: Session, fault: Exception) -> Transient:
    return Transient(f"{what} ({no_answer(session, fault)}): start the node, and run this again")


def require_merge(schema: TableSchema) -> None:
    """Raise a WritetimeError if an import into a table with rows is not right: one of counters.

    A counter is a sum of parts, one per node that counted, and a node would take a part of an earlier time for its own.
    """
    if any(column.type == Native("counter") for column in schema.static + schema.regular):
        raise WritetimeError(f"{schema.full_name} has counters, which can be imported into an empty table only")
