"""The table in the target: it is created if it is missing, and follows the columns of the source."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from cassandra.cluster import Session

from writetime.bulk_load.target import has_rows
from writetime.clients.database import DRIVER_FAULTS, driver_reason, is_without_answer, no_answer
from writetime.core.errors import Transient, WritetimeError
from writetime.lake.evolution import with_key_names
from writetime.schema.describe import create_statements
from writetime.schema.system import read_schema, read_schemas
from writetime.schema.table import Column, SchemaError, TableSchema
from writetime.schema.table_options import set_options
from writetime.schema.types import Collection, is_complex, quote_name, quote_table

_CLOCKS_DIFFER_SECONDS = 60
_KINDS = ("partition_key", "clustering", "static", "regular")


def is_list(column: Column) -> bool:
    """Return whether a column is a list that is not frozen."""
    return is_complex(column.type) and isinstance(column.type, Collection) and column.type.kind == "list"


def require_empty(session: Session, table: str, cluster: str) -> None:
    """Raise a WritetimeError if a table of the target has rows."""
    if has_rows(session, table):
        raise WritetimeError(
            f"{table} has rows in {cluster}, and some may have been deleted in the source long ago: TRUNCATE it in "
            f"{cluster}, and run this again"
        )


def is_table(session: Session, schema: TableSchema) -> bool:
    """Return whether a table still has its id: it was not dropped and created again. Raises an error of the driver."""
    of_table = "WHERE keyspace_name = %s AND table_name = %s"
    found = session.execute(f"SELECT id FROM system_schema.tables {of_table}", [schema.keyspace, schema.name]).one()
    return found is not None and found.id == schema.id


def require_same_clock(session: Session, cluster: str) -> None:
    """Raise a WritetimeError if the clock of this machine is another one than that of the target. By a wrong one, cells
    would expire early, and nothing could bring them back.
    """
    found = session.execute("SELECT toUnixTimestamp(now()) AS at FROM system.local").one().at / 1000
    if abs(time.time() - found) > _CLOCKS_DIFFER_SECONDS:
        raise WritetimeError(
            f"the clocks of this machine and of {cluster} differ by {abs(time.time() - found):.0f} s: set them right"
        )


def follow_schema(
    session: Session,
    schema: TableSchema,
    cluster: str,
    *,
    to_scylla: bool,
    options: Callable[[], Mapping[str, str]],
) -> TableSchema:
    """Create the table in the target, or give it the columns that it lacks, and drop those that the source has dropped.
    Return its schema there, whose key columns may have other names. A table that is created gets these `options`, the
    CQL texts of their values.

    Raises:
        Transient: the target does not answer.
        WritetimeError: it refuses a statement, or the table has other columns there.
    """
    found = _read(session, schema, cluster)
    if found is None:
        # With the drops, so that cells from before them do not count there either.
        statements = [_if_missing(each) for each in create_statements(replace(schema, id=None))]
        if to_scylla:
            # Other modes may drop deletions before `gc_grace_seconds`, on which late writes rely.
            statements.append(f"ALTER TABLE {quote_table(schema.full_name)} WITH tombstone_gc = {{'mode': 'timeout'}}")
        if texts := options():
            statements.append(set_options(schema.full_name, texts))
    else:
        statements = list(_changes(found, schema))
    for statement in statements:
        _execute(session, statement, schema.full_name, cluster)
    found = _read(session, schema, cluster)
    if found is None or not _fit(found, schema):
        texts = [", ".join(_columns(each).values()) for each in (found, schema) if each is not None]
        raise WritetimeError(
            f"{schema.full_name} has other columns in {cluster} ({texts[0]}) than in the source ({texts[-1]}): make "
            "them equal there"
        )
    return found


def follow_key_names(session: Session, source: TableSchema, cluster: str) -> list[str]:
    """Rename the key columns of the table in the target as in the source; return the statements that did it. The place
    of a column in the key identifies it, because the databases neither add nor drop key columns.

    Raises:
        Transient: the target does not answer.
        WritetimeError: it refuses a statement, or another column has the name.
    """
    found = _read(session, source, cluster)
    if found is None or len(found.clustering) != len(source.clustering):
        return []
    pairs = zip(found.partition_key + found.clustering, source.partition_key + source.clustering, strict=False)
    names = {one.name: other.name for one, other in pairs if one.name != other.name}
    if not names:
        return []
    statement = f"ALTER TABLE {quote_table(source.full_name)} RENAME " + " AND ".join(
        f"{quote_name(one)} TO {quote_name(other)}" for one, other in names.items()
    )
    if taken := {column.name for column in found.columns} & set(names.values()):
        raise WritetimeError(
            f"{source.full_name}: key columns were renamed in the source, and in {cluster} another column has the name "
            f"{min(taken)}: give the key column another name in the source, which no column had before"
        )
    _execute(session, statement, source.full_name, cluster)
    return [statement]


def with_names_of_keys(schema: TableSchema, found: TableSchema) -> TableSchema:
    """Return a schema whose key columns have the names that they have in the target. `follow_schema` has compared the
    two.
    """
    return with_key_names(replace(schema, id=found.id), found)


def _execute(session: Session, statement: str, table: str, cluster: str) -> None:
    try:
        session.execute(statement)
    except DRIVER_FAULTS as e:
        if is_without_answer(e):
            raise Transient(f"{cluster} does not answer ({no_answer(session, e)})") from None
        # Another table has the type, too, and was first.
        if "already exists" not in str(e):
            raise WritetimeError(
                f"{table} cannot follow in {cluster} ({driver_reason(e)}): grant the right that is missing, or run "
                f"this there: {statement}"
            ) from None


def _read(session: Session, schema: TableSchema, cluster: str) -> TableSchema | None:
    try:
        known = read_schemas(session, [schema.keyspace], [schema.name])
        return read_schema(session, schema.full_name) if schema.full_name in known else None
    except DRIVER_FAULTS as e:
        raise Transient(f"{cluster} does not answer ({no_answer(session, e)})") from None


def _if_missing(statement: str) -> str:
    kind = " ".join(statement.split()[:2])
    return statement.replace(kind, f"{kind} IF NOT EXISTS", 1) if kind.startswith("CREATE") else statement


def _changes(found: TableSchema, wanted: TableSchema) -> Iterator[str]:
    """Yield the statements that add what a table lacks, and drop what the other one has dropped."""
    types = {udt.name: dict(udt.fields) for udt in found.udts()}
    for udt in wanted.udts():
        if udt.name not in types:
            fields = ", ".join(f"{quote_name(name)} {cql_type}" for name, cql_type in udt.fields)
            yield f"CREATE TYPE IF NOT EXISTS {quote_name(udt.keyspace)}.{quote_name(udt.name)} ({fields})"
            continue
        for name, cql_type in udt.fields:
            if name not in types[udt.name]:
                yield f"ALTER TYPE {quote_name(udt.keyspace)}.{quote_name(udt.name)} ADD {quote_name(name)} {cql_type}"
    table = f"ALTER TABLE {quote_table(wanted.full_name)}"
    have, want = ({column.name: column for column in each.static + each.regular} for each in (found, wanted))
    dropped, known = ({each.name: each.dropped_at for each in table.dropped} for table in (wanted, found))
    # Cassandra records the milliseconds of a drop. A column may have been added again since.
    gone = [n for n, at in dropped.items() if n in have and (n not in known or at // 1000 > known[n] // 1000)]
    for name in gone:
        yield f"{table} DROP {quote_name(name)} USING TIMESTAMP {dropped[name]}"
    for name in sorted((want.keys() - have.keys()) | (want.keys() & gone)):
        static = " static" if want[name] in wanted.static else ""
        yield f"{table} ADD {quote_name(name)} {want[name].type}{static}"


def _fit(found: TableSchema, wanted: TableSchema) -> bool:
    """Return whether a table has the columns of another one. Its types may have more fields, for other tables, and its
    key columns new names, if they were renamed.
    """
    names = {column.name for column in wanted.columns}
    keys = zip(found.partition_key + found.clustering, wanted.partition_key + wanted.clustering, strict=False)
    # Names in another order are not renamed columns.
    if all(one.name == other.name or one.name not in names for one, other in keys):
        with suppress(SchemaError):
            found = with_key_names(replace(found, id=wanted.id), wanted)
    types = {udt.name: udt.fields for udt in wanted.udts()}
    same_types = all(udt.fields[: len(types.get(udt.name, ()))] == types.get(udt.name, ()) for udt in found.udts())
    return same_types and _columns(found) == _columns(wanted)


def _columns(schema: TableSchema) -> Mapping[str, str]:
    """Return each column as text, by its name."""
    found: dict[str, str] = {}
    for kind in _KINDS:
        for number, column in enumerate(getattr(schema, kind)):
            found[column.name] = _text(column, kind.replace("_", " "), number)
    return found


def _text(column: Column, kind: str, number: int) -> str:
    place = f" {number + 1}" if kind in ("partition key", "clustering") else ""
    return f"{column.name} {column.type} ({kind}{place}{' DESC' if column.reversed else ''})"
