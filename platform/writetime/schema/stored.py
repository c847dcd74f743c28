"""The JSON form in which schemas are stored: in the lake, in Avro schemas of changes, and by agents.

It has the full schema of a table. Types are CQL texts, and `types` has the user-defined ones, each after those that it
uses. Columns are in the order of `TableSchema.columns`. CQL (`schema.describe`) is for people. It cannot express
everything, for example that it is unknown whether a dropped column was static.
"""

from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, ValidationError

from writetime.schema.table import Column, DroppedColumn, SchemaError, TableSchema
from writetime.schema.types import Udt, parse_cql

_KINDS = ("partition_key", "clustering", "static", "regular")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    type: str


class _Column(_Part):
    kind: Literal["partition_key", "clustering", "static", "regular"]
    reversed: bool = False


class _Dropped(_Part):
    static: bool | None
    dropped_at: int


class _Type(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    fields: list[_Part]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid")

    keyspace: str
    name: str
    id: UUID | None
    gc_grace_seconds: int
    types: list[_Type]
    columns: list[_Column]
    dropped: list[_Dropped]


def to_json(schema: TableSchema) -> dict[str, Any]:
    """Return a schema as a JSON object that `from_json` reads."""
    return {
        "keyspace": schema.keyspace,
        "name": schema.name,
        "id": str(schema.id) if schema.id else None,
        "gc_grace_seconds": schema.gc_grace_seconds,
        "types": [
            {"name": udt.name, "fields": [{"name": name, "type": str(t)} for name, t in udt.fields]}
            for udt in schema.udts(of_dropped=True)
        ],
        "columns": [
            {"name": c.name, "type": str(c.type), "kind": kind} | ({"reversed": True} if c.reversed else {})
            for kind in _KINDS
            for c in getattr(schema, kind)
        ],
        "dropped": [
            {"name": d.name, "type": str(d.type), "static": d.static, "dropped_at": d.dropped_at}
            for d in schema.dropped
        ],
    }


def from_json(stored: Any) -> TableSchema:
    """Return the schema that `to_json` stored. Any other object is a SchemaError, or a CqlTypeError."""
    try:
        table = _Table.model_validate(stored)
    except ValidationError as e:
        first = e.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise SchemaError(f"a stored schema cannot be read: {place}: {first['msg']}") from None
    udts: dict[str, Udt] = {}
    for found in table.types:
        fields = tuple((field.name, parse_cql(field.type, udts)) for field in found.fields)
        udts[found.name] = Udt(table.keyspace, found.name, fields)

    def of(kind: str) -> tuple[Column, ...]:
        return tuple(Column(c.name, parse_cql(c.type, udts), c.reversed) for c in table.columns if c.kind == kind)

    return TableSchema(
        table.keyspace,
        table.name,
        **{kind: of(kind) for kind in _KINDS},
        dropped=tuple(DroppedColumn(d.name, parse_cql(d.type, udts), d.static, d.dropped_at) for d in table.dropped),
        id=table.id,
        gc_grace_seconds=table.gc_grace_seconds,
    )
