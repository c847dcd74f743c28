"""The rows that the database returns for SELECT *, in the form of the lake's views."""

import ipaddress
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from cassandra.cluster import Session
from cassandra.util import Date, Duration, OrderedMap, SortedSet, Time

from writetime.schema.table import TableSchema
from writetime.schema.types import Collection, CqlType, Native, Tuple, Udt, Vector

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def cql_rows(session: Session, schema: TableSchema) -> list[dict[str, Any]]:
    """Return all rows, in the order of the database."""
    rows = session.execute(f"SELECT * FROM {schema.full_name}")
    return [{c.name: _value(getattr(row, c.name), c.type) for c in schema.columns} for row in rows]


def view_rows(tables: Iterable[pa.Table]) -> list[dict[str, Any]]:
    """Return the rows of a view, with days and microseconds for dates and timestamps."""
    return [
        dict(zip(table.column_names, row, strict=True))
        for table in tables
        for row in zip(*map(_column, table.columns), strict=True)
    ]


def unordered(tables: Iterable[pa.Table]) -> list[str]:
    """Return the rows of a view, which has no order."""
    return sorted(map(repr, view_rows(tables)))


def _column(values: pa.ChunkedArray) -> list[Any]:
    """The values of a column. Those of simple types are converted at once, which takes a thirtieth of the time."""
    kind = values.type
    is_simple = pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind)
    return values.to_pylist() if is_simple else [_plain(scalar) for scalar in values]


def _plain(scalar: Any) -> Any:
    if not scalar.is_valid:
        return None
    if pa.types.is_struct(scalar.type):
        return [_plain(scalar[i]) for i in range(scalar.type.num_fields)]
    if pa.types.is_map(scalar.type):
        return [[_plain(entry["key"]), _plain(entry["value"])] for entry in scalar.values]
    if pa.types.is_list(scalar.type):
        return [_plain(element) for element in scalar.values]
    return scalar.value if pa.types.is_temporal(scalar.type) else _number(scalar.as_py())


def _value(value: Any, cql_type: CqlType) -> Any:
    if value is None:
        return None
    match cql_type:
        case Collection("map", (key, item)):
            pairs = value.items() if isinstance(value, dict | OrderedMap) else value
            return [[_value(k, key), _value(v, item)] for k, v in pairs]
        case Collection(_, (element,)) | Vector(element, _):
            assert isinstance(value, list | SortedSet | tuple | set)
            return [_value(v, element) for v in value]
        case Tuple(arguments):
            return [_value(v, t) for v, t in zip(value, arguments, strict=True)]
        case Udt(_, _, fields):
            return [_value(v, t) for v, (_, t) in zip(value, fields, strict=False)]
        case Native("timestamp"):
            return round((value.replace(tzinfo=UTC) - _EPOCH).total_seconds() * 1000) * 1000
    match value:
        case Date():
            return value.days_from_epoch
        case Time():
            return value.nanosecond_time
        case Duration():
            return [value.months, value.days, value.nanoseconds]
        case uuid.UUID() | Decimal():
            return str(value)
    if cql_type == Native("varint"):
        return str(value)
    if cql_type == Native("inet"):
        address = ipaddress.ip_address(value)
        # Of mapped addresses, Python's own text depends on its version; the driver's does not.
        return value if address.version == 6 and address.ipv4_mapped else str(address)
    return _number(value)


def _number(value: Any) -> Any:
    """Make text of floating point numbers, as not-a-number equals itself then, and 0.0 not -0.0."""
    return value.hex() if isinstance(value, float) else value
