"""Shared by the data sources: schemas, tokens and fields to read, from options or a schema given to Spark."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from writetime.changes.model import change_schema, field_name
from writetime.core.errors import WritetimeError
from writetime.lake.labels import newly_labelled
from writetime.schema.cql import parse_schemas
from writetime.schema.serialise import partition_key, serialiser
from writetime.schema.table import TableSchema
from writetime.schema.types import CqlType, Native
from writetime.storage.kernel.primitives import token
from writetime.storage.sstable import MAX_TOKEN, MIN_TOKEN

# The path of a file may have the word CREATE, too.
_CQL = re.compile(r"\bCREATE\s+(TABLE|TYPE)\b", re.IGNORECASE)


def option_schemas(options: Mapping[str, str]) -> list[TableSchema]:
    """Return the tables of the option `schema`: CQL text, or the path of a file with it.

    Spark does not distinguish upper and lower case, so columns have labels.
    """
    text = options["schema"]
    if not _CQL.search(text):
        text = Path(text).read_text()
    return [newly_labelled(schema) for schema in parse_schemas(text)]


@dataclass(frozen=True)
class Selection:
    """The part of a table's changes that is read: some fields, and of some of these only parts (`amount.value`)."""

    schema: pa.Schema

    @classmethod
    def of(cls, table: TableSchema, fields: Sequence[str] | None) -> "Selection":
        """Select fields and parts of fields by name; all fields by default. Another name is a WritetimeError."""
        full = change_schema(table)
        parts: dict[str, list[str] | None] = {}
        for name in full.names if fields is None else fields:
            if name in full.names:
                parts[name] = None
                continue
            field, _, part = name.rpartition(".")
            if field not in full.names or part not in _children(full.field(field).type):
                known = ", ".join(full.names)
                raise WritetimeError(f"changes of {table.full_name} have no field {name}; they have {known}")
            # The whole field is already selected, if it has no list of parts.
            if (chosen := parts.setdefault(field, [])) is not None:
                chosen.append(part)
        return cls(pa.schema([_part(full.field(name), chosen) for name, chosen in parts.items()]))

    @classmethod
    def given(cls, table: TableSchema, given: StructType) -> "Selection":
        """Select the fields of a schema given to Spark. One that changes of this table do not have, or have with
        another type, is a WritetimeError.
        """
        full = cls.of(table, None).spark()
        names: list[str] = []
        for field in given.fields:
            ours = full[field.name].dataType if field.name in full.names else None
            whole = ours is None or ours.simpleString() == field.dataType.simpleString()
            if isinstance(ours, StructType) and isinstance(field.dataType, StructType) and not whole:
                names += [f"{field.name}.{part}" for part in field.dataType.names]
            else:
                names.append(field.name)
        selection = cls.of(table, names)
        for ours, theirs in zip(selection.spark().fields, given.fields, strict=True):
            if ours.dataType.simpleString() != theirs.dataType.simpleString():
                raise WritetimeError(
                    f"changes of {table.full_name} have the field {ours.name} as {ours.dataType.simpleString()}; "
                    f"the schema given to Spark has it as {theirs.dataType.simpleString()}"
                )
        return selection

    def spark(self) -> StructType:
        """Return the selection as a Spark schema."""
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(self.schema)

    def cut(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return these parts of a batch with whole fields."""
        if batch.schema.types == self.schema.types:
            return batch
        return pa.RecordBatch.from_arrays(
            [_cut(column, field.type) for column, field in zip(batch.columns, self.schema, strict=True)],
            schema=self.schema,
        )


def check_changes(table: TableSchema, given: StructType) -> None:
    """Require the fields of a table's changes. Static and regular columns may be missing, and so may `origin`.

    Raises:
        WritetimeError: another field is missing, has another type, or is not one of such changes.
    """
    full = Selection.of(table, None).spark()
    optional = {"origin", *(field_name(c) for c in table.static + table.regular)}
    if missing := [name for name in full.names if name not in optional and name not in given.names]:
        raise WritetimeError(f"the DataFrame lacks {missing[0]}; changes of {table.full_name} have this field")
    for field in given.fields:
        if field.name not in full.names:
            raise WritetimeError(
                f"the DataFrame has the field {field.name}; changes of {table.full_name} have only "
                f"{', '.join(full.names)}: drop it, or correct the option schema"
            )
        wanted = full[field.name].dataType.simpleString()
        if field.name != "origin" and field.dataType.simpleString() != wanted:
            raise WritetimeError(
                f"the DataFrame has {field.name} as {field.dataType.simpleString()}; changes of {table.full_name} have "
                f"it as {wanted}: cast it, or correct the option schema"
            )


def _children(arrow: pa.DataType) -> list[str]:
    return [field.name for field in arrow] if pa.types.is_struct(arrow) else []


def _part(field: pa.Field, names: list[str] | None) -> pa.Field:
    return field if names is None else field.with_type(pa.struct([f for f in field.type if f.name in names]))


def _cut(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    if column.type == wanted:
        return column
    mask = column.is_null() if column.null_count else None
    return pa.StructArray.from_arrays([column.field(f.name) for f in wanted], fields=list(wanted), mask=mask)


def option_fields(options: Mapping[str, str]) -> list[str] | None:
    """Return the names in the option `fields`, separated by commas; None if it is not set."""
    text = options.get("fields")
    return None if text is None else [name.strip() for name in text.split(",")]


def option_choice(options: Mapping[str, str], name: str, choices: Sequence[str]) -> Any:
    """Return an option with a few possible values, the first of them by default. Another value is a WritetimeError."""
    value = options.get(name, choices[0])
    if value not in choices:
        raise WritetimeError(f"the option {name} is {value!r}; it must be one of {', '.join(choices)}")
    return value


def option_count(options: Mapping[str, str], name: str) -> int | None:
    """Return an option that is a positive number, or None if it is not set. Another value is a WritetimeError."""
    if (value := options.get(name)) is None:
        return None
    if not (value.isascii() and value.isdecimal()) or not int(value):
        raise WritetimeError(f"the option {name} is {value!r}; it must be a positive number")
    return int(value)


def option_tokens(options: Mapping[str, str], schema: TableSchema) -> tuple[int, int]:
    """Return the first and last token to read, by the options `first_token`, `last_token` and `partition_key`, a JSON
    object with a value for each partition key column; anything else is a WritetimeError.

    These are options and not filters that are pushed down. Spark 4.2 keeps a reader's result for the filters of one
    query for every later query of the same DataFrame, which then misses rows.
    """
    if "partition_key" in options:
        values = json.loads(options["partition_key"])
        names = [field_name(c) for c in schema.partition_key]
        if not isinstance(values, dict) or sorted(values) != sorted(names):
            raise WritetimeError(f"the option partition_key must be a JSON object with {', '.join(names)}")
        wanted = token(partition_key([_serialised(c.type, values[field_name(c)]) for c in schema.partition_key]))
        return wanted, wanted
    return int(options.get("first_token", MIN_TOKEN)), int(options.get("last_token", MAX_TOKEN))


def _serialised(cql_type: CqlType, value: Any) -> bytes:
    """Serialise a partition key value from JSON (a blob is hexadecimal text)."""
    match cql_type, value:
        case Native("blob"), str():
            return bytes.fromhex(value.removeprefix("0x"))
        case (Native("uuid" | "timeuuid" | "text" | "ascii"), str()) | (
            Native("bigint" | "int" | "smallint" | "tinyint" | "boolean"),
            int(),
        ):
            return serialiser(cql_type)(value)
    raise WritetimeError(f"the option partition_key cannot take {value!r} for a column of type {cql_type}: use tokens")
