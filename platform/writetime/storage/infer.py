"""Infers the schema of SSTables, from the `schema.cql` of their snapshot or else from their headers, and finds the
columns of a header that the table no longer has.
"""

import posixpath
import re
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from writetime.schema.compatible import is_readable
from writetime.schema.cql import parse_schemas
from writetime.schema.table import Column, DroppedColumn, SchemaError, TableSchema
from writetime.schema.types import CqlType, CqlTypeError, Native, is_complex
from writetime.storage.file_errors import MissingFile
from writetime.storage.locations import Location, read_file
from writetime.storage.statistics import Header, read_header

# No cell is older than the first time, and every cell is older than the second one.
NO_TIME, END_OF_TIME = -(1 << 63), (1 << 63) - 1
# The schema's type and that of a file: values of one are values of the other, in the same bytes
# (`AbstractType.isValueCompatibleWith`; `is_value_compatible_with` of ScyllaDB's types.cc).
_COMPATIBLE = {("text", "ascii"), ("uuid", "timeuuid"), ("timestamp", "bigint"), ("bigint", "timestamp")}
_TABLE_FOLDER = re.compile(r"(?P<name>\w+)-(?P<id>[0-9a-f]{32})$")


def infer_schema(locations: Sequence[Location]) -> TableSchema:
    """Return the schema of the SSTables of one table.

    A snapshot's `schema.cql` has the schema, but not always all of it:

    - Cassandra (5.0.9) leaves out user-defined types that are used only inside other types. ScyllaDB (2026.1) leaves
      out all user-defined types. The headers have them.
    - ScyllaDB leaves out dropped columns, too. So a column that only a header has was dropped. Only the database
      records when this was, and whether a column was dropped and added again.

    Without `schema.cql`, key columns are called `key1`, `key2`, ... and `clustering1`, ..., because headers do not have
    their names.

    Raises:
        SchemaError: there is no SSTable, or the SSTables are of different tables.
        CqlTypeError: `schema.cql` uses a type that neither it nor a header has.
    """
    if not locations:
        raise SchemaError("there are no SSTables to infer a schema from")
    path = posixpath.join(locations[0].folder, "schema.cql")
    try:
        text = read_file(locations[0].filesystem, path).decode()
    except MissingFile:
        return schema_of_headers([(location, read_header(location)) for location in locations])
    try:
        schemas = parse_schemas(text)
    except CqlTypeError:
        types = schema_of_headers([(location, read_header(location)) for location in locations]).udts()
        try:
            schemas = parse_schemas(text, known=types)
        except CqlTypeError as e:
            raise CqlTypeError(
                f"{path}: {e}; Cassandra leaves out types that are only used inside others, and none of the "
                "SSTables has a value of it: add its CREATE TYPE to that file, or name a complete schema"
            ) from None
    if len(schemas) != 1:
        raise SchemaError(f"{path}: one CREATE TABLE expected, found {len(schemas)}")
    return _with_dropped(schemas[0], [read_header(location) for location in locations])


def _with_dropped(schema: TableSchema, headers: Sequence[Header]) -> TableSchema:
    """Add the columns that only headers have, as dropped after all their cells were written."""
    known = {c.name for c in schema.columns} | {d.name for d in schema.dropped}
    dropped = {
        name: DroppedColumn(name, cql_type, static, END_OF_TIME)
        for header in headers
        for columns, static in ((header.static, True), (header.regular, False))
        for name, cql_type in columns
        if name not in known
    }
    return replace(schema, dropped=(*schema.dropped, *dropped.values()))


def schema_of_headers(headers: Sequence[tuple[Location, Header]]) -> TableSchema:
    """Return the schema from the headers of a table's SSTables together. Raise `SchemaError` if these are of different
    tables.
    """
    location, first = headers[0]
    static: dict[str, CqlType] = {}
    regular: dict[str, CqlType] = {}
    reverse = [k.reversed for k in first.clustering]
    key = _key(first)
    for other, header in headers:
        grown = _grown(key, _key(header))
        if grown is None or reverse != [k.reversed for k in header.clustering]:
            raise SchemaError(f"{other.path('Data.db')} and {location.path('Data.db')} have different primary keys")
        key = grown
        # A later file may have a type with more fields.
        static |= dict(header.static)
        regular |= dict(header.regular)
    if both := sorted(set(static) & set(regular)):
        raise SchemaError(
            f"{location.folder}: column {both[0]} is static in some SSTables and not in others: name a schema"
        )
    partition_key, clustering = key[: len(first.partition_key)], key[len(first.partition_key) :]
    keyspace, name, table_id = _table_of(location.folder)
    return TableSchema(
        keyspace,
        name,
        tuple(Column(f"key{i}", t) for i, t in enumerate(partition_key, 1)),
        tuple(Column(f"clustering{i}", t, r) for i, (t, r) in enumerate(zip(clustering, reverse, strict=True), 1)),
        tuple(Column(n, t) for n, t in static.items()),
        tuple(Column(n, t) for n, t in regular.items()),
        id=table_id,
    )


def _key(header: Header) -> list[CqlType]:
    return [*header.partition_key, *(k.components[0] for k in header.clustering)]


def _grown(known: list[CqlType], other: list[CqlType]) -> list[CqlType] | None:
    """Return for each pair of types the one that can read values of both; the second one if both can. Return None if
    neither can.
    """
    if len(known) != len(other):
        return None
    found = [b if is_readable(a, b) else a if is_readable(b, a) else None for a, b in zip(known, other, strict=True)]
    return None if None in found else [t for t in found if t is not None]


def _table_of(folder: str) -> tuple[str, str, UUID | None]:
    """Return keyspace, table and table id from `.../keyspace/table-id/snapshots/tag` and similar paths."""
    parts = folder.split("/")
    for i in range(len(parts) - 1, 0, -1):
        if match := _TABLE_FOLDER.fullmatch(parts[i]):
            return parts[i - 1], match["name"], UUID(match["id"])
    return "unknown", parts[-1] or "unknown", None


def last_drops(schema: TableSchema) -> dict[str, int]:
    """Return when each column was last dropped."""
    found: dict[str, int] = {}
    for d in schema.dropped:
        found[d.name] = max(d.dropped_at, found.get(d.name, NO_TIME))
    return found


def former_columns(file: str, header: Header, schema: TableSchema) -> tuple[DroppedColumn, ...]:
    """Return the columns of a file's header whose cells do not belong to a live column, with the types of the header:
    those that were dropped, and those that were added again with another type or kind. Their cells are skipped.

    All cells of a dropped column are void. In ScyllaDB, a column can be added again with another type, and a static
    column as a regular one. Then the cells up to the drop are void, and newer cells with the old type are not expected.
    ScyllaDB does not record whether a dropped column was static, so this is not compared.

    Raises:
        SchemaError: the schema lacks a column, or has it with another type but without a drop.
    """
    live = {True: {c.name: c.type for c in schema.static}, False: {c.name: c.type for c in schema.regular}}
    dropped_at = last_drops(schema)
    former = []
    for columns, static in ((header.static, True), (header.regular, False)):
        for name, stored in columns:
            known = live[static].get(name)
            if (
                known is not None
                and is_complex(stored) == is_complex(known)
                and is_readable(stored, known, _are_compatible)
            ):
                continue
            if name in dropped_at:
                again = name in live[True] or name in live[False]
                former.append(DroppedColumn(name, stored, static, dropped_at[name] if again else END_OF_TIME))
            elif known is None:
                kind = "static" if static else "regular"
                raise SchemaError(
                    f"{file}: {schema.full_name} has no {kind} column {name}, live or dropped: if it was dropped, the "
                    "schema must include the time of the drop"
                )
            else:
                fields = ", with other fields" if str(stored) == str(known) else ""
                raise SchemaError(f"{file}: column {name} is stored as {stored}, not as {known}{fields}")
    return tuple(former)


def _are_compatible(stored: Native, known: Native) -> bool:
    if known.name == "blob" and stored.fixed_length is None and stored.name != "counter":
        return True
    return stored == known or (known.name, stored.name) in _COMPATIBLE
