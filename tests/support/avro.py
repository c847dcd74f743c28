"""Values and schemas in the form of another Avro library."""

import json
import random
from typing import Any

import pyarrow as pa

from writetime.schema.mapping import avro_name


def plain(schema: Any) -> Any:
    """A schema without logical types: their values in Python do not have the range of CQL's."""
    if isinstance(schema, dict):
        if "logicalType" in schema:
            return schema["type"]
        return {name: plain(part) for name, part in schema.items()}
    return [plain(part) for part in schema] if isinstance(schema, list) else schema


def as_avro(value: Any, arrow: pa.DataType) -> Any:
    """A value as an Avro library gives it."""
    if value is None:
        return None
    if pa.types.is_struct(arrow):
        return {avro_name(f.name): as_avro(value[f.name], f.type) for f in arrow}
    if pa.types.is_map(arrow):
        types = arrow.key_type, arrow.item_type
        return [dict(zip(("key", "value"), map(as_avro, pair, types), strict=True)) for pair in value]
    if pa.types.is_list(arrow):
        return [as_avro(v, arrow.value_type) for v in value]
    return value


def numbers(arrow: pa.DataType) -> pa.DataType:
    """The type with numbers for dates and times."""
    if pa.types.is_temporal(arrow):
        return pa.int32() if arrow.bit_width == 32 else pa.int64()
    if pa.types.is_struct(arrow):
        return pa.struct([(f.name, numbers(f.type)) for f in arrow])
    if pa.types.is_map(arrow):
        return pa.map_(numbers(arrow.key_type), numbers(arrow.item_type))
    if pa.types.is_list(arrow):
        return pa.list_(pa.field("element", numbers(arrow.value_type)))
    return arrow


# The fields that a struct of a change always has.
ALWAYS = {"write_time", "tombstone", "source", "elements", "fields"}


def made(r: random.Random, arrow: pa.DataType, *, name: str = "") -> Any:
    """A value of an Arrow type, of a change's field: dates and times are numbers."""
    if pa.types.is_struct(arrow):
        names = {f.name for f in arrow}
        always = ALWAYS & names if names & {"write_time", "elements", "fields", "source"} else set()
        if name in ("tombstone", "") and names == {"write_time", "deletion_time"}:
            always |= names
        if {"months", "days", "nanoseconds"} <= names:
            always |= names
        # In a column, `tombstone` is a deletion and may be null; in a cell it is a flag.
        return {
            f.name: made(r, f.type, name=f.name)
            if (f.name in always and not (f.name == "tombstone" and pa.types.is_struct(f.type))) or r.random() < 0.6
            else None
            for f in arrow
        }
    if pa.types.is_map(arrow):
        pairs = range(r.randrange(3))
        return [(made(r, arrow.key_type), None if r.random() < 0.2 else made(r, arrow.item_type)) for _ in pairs]
    if pa.types.is_list(arrow):
        # Neither the elements of a non-frozen collection are null, nor the entries of a map that Spark has as a list.
        entries = pa.types.is_struct(arrow.value_type) and arrow.value_type.names == ["key", "value"]
        optional = name != "elements" and not entries
        return [
            None if optional and r.random() < 0.2 else made(r, arrow.value_type)
            for _ in range(r.choice([0, 1, 2, 2, 70]) if r.random() < 0.1 else r.randrange(3))
        ]
    if pa.types.is_boolean(arrow):
        return r.random() < 0.5
    if pa.types.is_floating(arrow):
        return r.choice([0.0, -0.0, 1.5, -2.25, float("inf"), 2.0**-126])
    if pa.types.is_string(arrow):
        return "".join(r.choice(["a", "\0", "\u00e9", "\u4e2d"]) for _ in range(r.choice([0, 1, 5, 70])))
    if pa.types.is_binary(arrow):
        return r.randbytes(r.choice([0, 1, 5, 70]))
    edge = 1 << arrow.bit_width - 1
    return r.choice([-edge, edge - 1, 0, -1, 63, 64, -64, -65, r.randrange(-edge, edge)])


def before_milliseconds(avro: Any) -> Any:
    """A schema of changes as it was when timestamps were microseconds."""
    text = json.dumps(avro).replace("timestamp-millis", "timestamp-micros")
    return json.loads(text.replace('"writetime.changes.', '"changes.'))
