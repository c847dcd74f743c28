"""The schema of SSTables that come without one: from the `schema.cql` of their snapshot, else from their headers."""

import posixpath
import re
from collections.abc import Sequence
from uuid import UUID

from writetime.schema.cql import parse_schemas
from writetime.schema.table import Column, SchemaError, TableSchema
from writetime.schema.types import CqlType, CqlTypeError
from writetime.storage.errors import Missing
from writetime.storage.files import Location, read_file
from writetime.storage.statistics import Header, read_header

_TABLE_FOLDER = re.compile(r"(?P<name>\w+)-(?P<id>[0-9a-f]{32})$")


def infer_schema(locations: Sequence[Location]) -> TableSchema:
    """Return the schema of the SSTables of one table.

    A snapshot's `schema.cql` has it complete, but for the user-defined types that are used inside of other types only:
    Cassandra (5.0.9) leaves them out, and the headers have them. Headers know the columns that their file has, dropped
    ones included, and not the names of key columns: those are then called `key1`, `key2`, ... and `clustering1`, ....

    Raises:
        SchemaError: there is no SSTable, or they are of different tables.
        CqlTypeError: `schema.cql` uses a type that neither it nor a header has.
    """
    if not locations:
        raise SchemaError("there are no SSTables to infer a schema from")
    path = posixpath.join(locations[0].folder, "schema.cql")
    try:
        text = read_file(locations[0].filesystem, path).decode()
    except Missing:
        return schema_of_headers([(location, read_header(location)) for location in locations])
    try:
        schemas = parse_schemas(text)
    except CqlTypeError:
        types = schema_of_headers([(location, read_header(location)) for location in locations]).udts()
        try:
            schemas = parse_schemas(text, known=types)
        except CqlTypeError as e:
            raise CqlTypeError(
                f"{path}: {e}; Cassandra leaves out types that are used inside of others only, and none of the "
                "SSTables has a value of it: add its CREATE TYPE to that file, or name a complete schema"
            ) from None
    if len(schemas) != 1:
        raise SchemaError(f"{path}: one CREATE TABLE expected, found {len(schemas)}")
    return schemas[0]


def schema_of_headers(headers: Sequence[tuple[Location, Header]]) -> TableSchema:
    """Return the schema that the headers of a table's SSTables give together.

    Raises:
        SchemaError: they are of different tables.
    """
    location, first = headers[0]
    static: dict[str, CqlType] = {}
    regular: dict[str, CqlType] = {}
    for other, header in headers:
        if (header.partition_key, header.clustering) != (first.partition_key, first.clustering):
            raise SchemaError(f"{other.path('Data.db')} and {location.path('Data.db')} have different primary keys")
        # A later file knows a type that has grown.
        static |= dict(header.static)
        regular |= dict(header.regular)
    if both := sorted(set(static) & set(regular)):
        raise SchemaError(
            f"{location.folder}: column {both[0]} is static in some SSTables and not in others: name a schema"
        )
    keyspace, name, table_id = _table_of(location.folder)
    return TableSchema(
        keyspace,
        name,
        tuple(Column(f"key{i}", t) for i, t in enumerate(first.partition_key, 1)),
        tuple(Column(f"clustering{i}", k.components[0], k.reversed) for i, k in enumerate(first.clustering, 1)),
        tuple(Column(n, t) for n, t in static.items()),
        tuple(Column(n, t) for n, t in regular.items()),
        id=table_id,
    )


def _table_of(folder: str) -> tuple[str, str, UUID | None]:
    """Take keyspace, table and its id from `.../keyspace/table-id/snapshots/tag` and the like."""
    parts = folder.split("/")
    for i in range(len(parts) - 1, 0, -1):
        if match := _TABLE_FOLDER.fullmatch(parts[i]):
            return parts[i - 1], match["name"], UUID(match["id"])
    return "unknown", parts[-1] or "unknown", None
