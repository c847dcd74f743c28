"""Values of each CQL type for Arrow, and their form in Connect's JSON according to its documentation."""

import base64
import math
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from tests.support.avro import numbers
from writetime.schema.mapping import arrow_type
from writetime.schema.types import Collection, CqlType, Native, Tuple, Udt, Vector

TEXT = st.text(st.characters(codec="utf-8"), max_size=5)
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "date": 32, "bigint": 64, "counter": 64, "time": 64}
_DECIMALS = st.decimals(allow_nan=False, allow_infinity=False)
_NATIVES: dict[str, st.SearchStrategy[Any]] = {
    "ascii": st.text(st.characters(codec="ascii"), max_size=5),
    "blob": st.binary(max_size=5),
    "boolean": st.booleans(),
    "decimal": st.sampled_from(["1.10", "0.00", "-1E+30", "1E-30"]) | _DECIMALS.map(str),
    "double": st.floats(),
    "empty": st.just(b""),
    "float": st.floats(width=32),
    "inet": st.ip_addresses().map(str),
    "text": TEXT,
    # Milliseconds that microseconds hold.
    "timestamp": st.integers(-(1 << 63) // 1000 + 1, (1 << 63) // 1000 - 1).map(lambda millis: millis * 1000),
    "timeuuid": st.integers(0, (1 << 128) - 1).map(lambda n: str(UUID(int=n))),
    "uuid": st.uuids().map(str),
    "varint": st.integers(-(1 << 200), 1 << 200).map(str),
    **{name: st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for name, bits in _BITS.items()},
}
_DURATIONS = st.fixed_dictionaries(
    {n: st.integers(-(1 << 31), (1 << 31) - 1) for n in ("months", "days", "nanoseconds")}
)


def values(cql_type: CqlType) -> st.SearchStrategy[Any]:
    """Make values: dates and times are numbers."""
    match cql_type:
        case Native("duration"):
            return _DURATIONS
        case Native(name):
            return _NATIVES[name]
        case Collection("map", (key, value)):
            entry = st.tuples(values(key), st.none() | values(value))
            if pa.types.is_map(arrow_type(cql_type)):
                return st.lists(entry, max_size=3, unique_by=lambda pair: repr(pair[0]))
            return st.lists(entry.map(lambda pair: dict(zip(("key", "value"), pair, strict=True))), max_size=3)
        case Collection(_, (element,)) | Vector(element, _):
            return st.lists(st.none() | values(element), max_size=3)
        case Tuple(types):
            fields = [(f"_{i}", t) for i, t in enumerate(types, 1)]
        case Udt():
            fields = cql_type.distinct_fields
        case _:
            raise AssertionError(cql_type)
    return st.fixed_dictionaries({name: st.none() | values(t) for name, t in fields})


def column(cql_type: CqlType, found: list[Any]) -> pa.Array:
    """Return values as a column, which is a part of a longer one."""
    arrow = arrow_type(cql_type)
    return pa.array([None, *found], numbers(arrow)).cast(arrow).slice(1)


def as_connect(value: Any, cql_type: CqlType, *, with_schema: bool) -> Any:
    """Return a value as a reader of Connect's JSON gets it."""

    def inner(part: Any, part_type: CqlType) -> Any:
        return as_connect(part, part_type, with_schema=with_schema)

    if value is None:
        return None
    match cql_type:
        case Native("timestamp"):
            return value // 1000
        case Native("blob" | "empty"):
            return base64.b64encode(value).decode()
        case Native("float" | "double") if not math.isfinite(value):
            name = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
            return None if with_schema else name
        case Native("float"):
            # The shortest digits that give this float.
            return float(str(np.float32(value)))
        case Native():
            return value
        case Collection("map", (key, item)):
            pairs = [(entry["key"], entry["value"]) if isinstance(entry, dict) else entry for entry in value]
            found = [(inner(k, key), inner(v, item)) for k, v in pairs]
            if key in (Native("text"), Native("ascii")):
                return dict(found)
            return [{"key": k, "value": v} for k, v in found]
        case Collection(_, (element,)) | Vector(element, _):
            return [inner(part, element) for part in value]
        case Tuple(types):
            return {f"_{i}": inner(value[f"_{i}"], t) for i, t in enumerate(types, 1)}
        case Udt(_, _, fields):
            labels = [label for label, _ in cql_type.distinct_fields]
            return {name: inner(value[label], t) for label, (name, t) in zip(labels, fields, strict=True)}
    raise AssertionError(cql_type)
