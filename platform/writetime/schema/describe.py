"""A table's schema as CQL text that `parse_schemas` reads back, with the columns that were dropped."""

from dataclasses import replace

from writetime.schema.table import GC_GRACE_SECONDS, Column, TableSchema
from writetime.schema.types import quote_name


def to_cql(schema: TableSchema) -> str:
    """Return `create_statements` as one text."""
    return ";\n".join(create_statements(schema)) + ";\n"


def create_statements(schema: TableSchema) -> list[str]:
    """Return the statements that create a table, after those of the types that it uses.

    A dropped column is created and dropped, as in a snapshot's own `schema.cql`; as a regular one if it is not known
    whether it was static.
    """
    dropped = {d.name: d for d in schema.dropped}

    def first(columns: tuple[Column, ...], *, static: bool) -> tuple[Column, ...]:
        gone = [Column(d.name, d.type) for d in dropped.values() if bool(d.static) == static]
        return tuple(c for c in columns if c.name not in dropped) + tuple(gone)

    created = replace(
        schema, static=first(schema.static, static=True), regular=first(schema.regular, static=False), dropped=()
    )
    statements = []
    for udt in schema.udts(of_dropped=True):
        fields = ", ".join(f"{quote_name(name)} {cql_type}" for name, cql_type in udt.fields)
        statements.append(f"CREATE TYPE {quote_name(udt.keyspace)}.{quote_name(udt.name)} ({fields})")
    options = [f"ID = {schema.id}"] if schema.id else []
    if schema.gc_grace_seconds != GC_GRACE_SECONDS:
        options.append(f"gc_grace_seconds = {schema.gc_grace_seconds}")
    with_options = f" {'AND' if schema.clustering else 'WITH'} {' AND '.join(options)}" if options else ""
    statements.append(created.create_statement() + with_options)
    table = f"ALTER TABLE {quote_name(schema.keyspace)}.{quote_name(schema.name)}"
    for d in dropped.values():
        statements.append(f"{table} DROP {quote_name(d.name)} USING TIMESTAMP {d.dropped_at}")
    for column in schema.static + schema.regular:
        if column.name in dropped:
            static = " static" if column in schema.static else ""
            statements.append(f"{table} ADD {quote_name(column.name)} {column.type}{static}")
    return statements
