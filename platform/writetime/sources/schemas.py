"""What the data sources share: schemas and tokens from options, and Spark types."""

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyspark.sql.types import StructType

from writetime.changes import change_schema, field_name
from writetime.errors import WritetimeError
from writetime.schema.cql import parse_schemas
from writetime.schema.table import TableSchema
from writetime.schema.types import CqlType, Native
from writetime.storage.primitives import token
from writetime.storage.walker import MAX_TOKEN, MIN_TOKEN


def option_schemas(options: Mapping[str, str]) -> list[TableSchema]:
    """Return the tables of the option `schema`: CQL text, or the path of a file with it."""
    text = options["schema"]
    if "CREATE" not in text.upper():
        text = Path(text).read_text()
    return parse_schemas(text)


def spark_schema(schema: TableSchema, fields: Sequence[str] | None) -> StructType:
    """Return the Spark schema of a table's changes, of these fields only.

    Raises:
        WritetimeError: a field that changes of this table do not have.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    full = change_schema(schema)
    if unknown := [f for f in fields or () if f not in full.names]:
        raise WritetimeError(
            f"changes of {schema.full_name} have no field {unknown[0]}; they have {', '.join(full.names)}"
        )
    return from_arrow_schema(full if fields is None else pa.schema([full.field(f) for f in fields]))


def given_fields(schema: TableSchema, given: StructType) -> list[str]:
    """Return the fields that a schema given to Spark asks for.

    Raises:
        WritetimeError: changes of this table do not have such a field, or have it with another type.
    """
    for ours, theirs in zip(spark_schema(schema, given.names).fields, given.fields, strict=True):
        if ours.dataType.simpleString() != theirs.dataType.simpleString():
            raise WritetimeError(
                f"changes of {schema.full_name} have the field {ours.name} as {ours.dataType.simpleString()}; "
                f"the schema given to Spark has it as {theirs.dataType.simpleString()}"
            )
    return given.names


def option_fields(options: Mapping[str, str]) -> list[str] | None:
    """Return the fields of the option `fields`, separated by commas; None if it is not set."""
    text = options.get("fields")
    return None if text is None else [name.strip() for name in text.split(",")]


def option_tokens(options: Mapping[str, str], schema: TableSchema) -> tuple[int, int]:
    """Return the first and last token to read, by the options `first_token`, `last_token` and `partition_key`.

    These are options and not filters pushed down, as Spark 4.2 keeps what a reader made of the filters of one query for
    every later query of the same DataFrame, which then misses rows.

    Raises:
        WritetimeError: `partition_key` is not a JSON object with a value of each partition key column.
    """
    if "partition_key" in options:
        values = json.loads(options["partition_key"])
        names = [field_name(c) for c in schema.partition_key]
        if not isinstance(values, dict) or sorted(values) != sorted(names):
            raise WritetimeError(f"the option partition_key has to be a JSON object with {', '.join(names)}")
        parts = [_serialise(c.type, values[field_name(c)]) for c in schema.partition_key]
        composite = b"".join(len(part).to_bytes(2, "big") + part + b"\0" for part in parts)
        wanted = token(parts[0] if len(parts) == 1 else composite)
        return wanted, wanted
    return int(options.get("first_token", MIN_TOKEN)), int(options.get("last_token", MAX_TOKEN))


_PACKED = {"bigint": ">q", "int": ">i", "smallint": ">h", "tinyint": ">b", "boolean": ">?"}


def _serialise(cql_type: CqlType, value: Any) -> bytes:
    """Serialise a value of a partition key column as JSON gives it (a blob as hexadecimal text)."""
    match cql_type, value:
        case Native("uuid" | "timeuuid"), str():
            return UUID(value).bytes
        case Native("text" | "ascii"), str():
            return value.encode()
        case Native("blob"), str():
            return bytes.fromhex(value.removeprefix("0x"))
        case Native(name), int() if name in _PACKED:
            return struct.pack(_PACKED[name], value)
    raise WritetimeError(f"the option partition_key cannot take {value!r} for a column of type {cql_type}: use tokens")
