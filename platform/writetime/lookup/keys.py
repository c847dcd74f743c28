"""The places of the rows that a look-up or a condition requests.

The places may include more rows than requested: each row that is found is then checked against the values or the
condition.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from writetime.changes.position import AFTER, BEFORE, position_encoder
from writetime.core.arrow import numbers
from writetime.files.key_ranges import KeyRanges, TokenRange, in_order
from writetime.lookup.conditions import ColumnBounds, Conditions, Literal, evaluated
from writetime.schema.mapping import arrow_type, stored_type
from writetime.schema.names import fold
from writetime.schema.serialise import partition_key, serialiser
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Native
from writetime.storage.kernel.primitives import tokens

# Types whose values have one serialised form each, so that a value leads to its place. (A `varint`, for one, may have
# leading zeros.) With each, the DuckDB types of the literals that equal only its values.
_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT")
_TEXTS = ("VARCHAR",)
_ONE_FORM: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), _INTEGERS),
    **dict.fromkeys(("ascii", "text", "uuid", "timeuuid"), _TEXTS),
    "blob": (*_TEXTS, "BLOB"),
    "date": (*_TEXTS, "DATE"),
    "timestamp": (*_TEXTS, "DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE"),
    # DuckDB compares microseconds.
    "time": (),
}
# The expressions with which DuckDB converts a literal of these types to days or microseconds since 1970.
_READ = {
    "blob": "CAST({} AS BLOB)",
    "date": "CAST({} AS DATE) - DATE '1970-01-01'",
    "timestamp": "epoch_us(CAST({} AS TIMESTAMPTZ))",
}
# For these types, DuckDB has the database's order.
_SAME_ORDER = ("tinyint", "smallint", "int", "bigint", "ascii", "text", *_READ)
# If a condition allows more keys, the rows are not looked up by key.
_MOST = 10_000
ALL_TOKENS = TokenRange(-(1 << 63), (1 << 63) - 1)


def label(column: Column) -> str:
    """Return a column's name in views."""
    return column.label or column.name


def places_of_keys(keys: pa.Table, schema: TableSchema) -> KeyRanges | None:
    """Return the places of rows, by columns of a view: the partition key, and any prefix of the clustering key. None if
    the columns do not name partitions.
    """
    named = [column for column in schema.partition_key if _is_named(column, keys)]
    if len(named) < len(schema.partition_key):
        return None
    prefix = list(itertools.takewhile(lambda column: _is_named(column, keys), schema.clustering))
    return _places(keys, prefix, None, schema)


def places_of_condition(conditions: Conditions, schema: TableSchema) -> KeyRanges | TokenRange | None:
    """Return the places of all rows that a condition allows; None if it names neither partitions nor tokens."""
    allowed: dict[str, list[Any]] = {}
    for column in schema.partition_key:
        if (values := _allowed(conditions, column)) is None:
            return _range_of(conditions.tokens)
        allowed[label(column)] = values
    prefix: list[Column] = []
    for column in schema.clustering:
        values = _allowed(conditions, column)
        if values is None or math.prod(map(len, allowed.values())) * len(values) > _MOST:
            break
        allowed[label(column)] = values
        prefix.append(column)
    if math.prod(map(len, allowed.values())) > _MOST:
        return _range_of(conditions.tokens)
    rows = list(itertools.product(*allowed.values()))
    columns = [*schema.partition_key, *prefix]
    arrays = [pa.array([row[i] for row in rows], arrow_type(column.type)) for i, column in enumerate(columns)]
    following = schema.clustering[len(prefix) :]
    bounds = conditions.bounds.get(fold(label(following[0]))) if following else None
    return _places(pa.table(arrays, list(allowed)), prefix, bounds, schema)


def _range_of(bounds: ColumnBounds | None) -> TokenRange | None:
    if bounds is None:
        return None
    low, high = (b.value if b and b.kind in _INTEGERS else None for b in (bounds.low, bounds.high))
    return TokenRange(ALL_TOKENS.first if low is None else low, ALL_TOKENS.last if high is None else high)


def _is_named(column: Column, keys: pa.Table) -> bool:
    return label(column) in keys.column_names and _literals(column) is not None


def _allowed(conditions: Conditions, column: Column) -> list[Any] | None:
    """Return the values that a column may have, if the condition names them, and the column can hold them."""
    literals = conditions.allowed.get(fold(label(column)))
    return None if literals is None else _values(literals, column)


def _values(literals: Sequence[Literal], column: Column) -> list[Any] | None:
    """Return the values of literals, in any order; None if the column is compared with others, or cannot hold them."""
    kinds = _literals(column)
    if kinds is None or any(literal.kind not in kinds for literal in literals):
        return None
    read = _READ.get(column.type.name) if isinstance(column.type, Native) else None
    values = [each.value for each in literals] if read is None else evaluated(literals, read)
    try:
        pa.array(values or [], arrow_type(column.type))
    except (pa.ArrowInvalid, OverflowError):
        return None
    return values


def _literals(column: Column) -> tuple[str, ...] | None:
    """Return the types of literals that a column is compared with; None if its values have several forms."""
    return _ONE_FORM.get(column.type.name) if isinstance(column.type, Native) else None


def _places(keys: pa.Table, prefix: Sequence[Column], bounds: ColumnBounds | None, schema: TableSchema) -> KeyRanges:
    """Return the places of keys, each with a prefix of the clustering key, and with bounds of the column after it."""
    partition, clustering = (
        [_serialised(keys[label(column)].combine_chunks(), column) for column in columns]
        for columns in (schema.partition_key, prefix)
    )
    encode = position_encoder(schema.clustering)
    following = schema.clustering[len(prefix) :]
    low, high = _ends(bounds, following[0]) if following else ([], [])
    found: list[tuple[bytes, bytes, bytes]] = []
    for i in range(keys.num_rows):
        key, values = [values[i] for values in partition], [values[i] for values in clustering]
        if None in key or None in values:
            continue
        first = encode([*values, *low], BEFORE) if values or low else b""
        end = encode([*values, *high], AFTER) if values or high else b"\xff"
        found.append((partition_key(key), first, end))
    serialised = pa.array([key for key, _, _ in found], pa.binary())
    firsts, ends = (pa.array([each[i] for each in found], pa.binary()) for i in (1, 2))
    return in_order(tokens(serialised).to_numpy(), serialised, firsts, ends)


def _ends(bounds: ColumnBounds | None, column: Column) -> tuple[list[bytes], list[bytes]]:
    """Return the bytes of a clustering column's first and last value, in its order; nothing without a bound."""
    low, high = (_bound(bounds.low, column), _bound(bounds.high, column)) if bounds else ([], [])
    return (high, low) if column.reversed else (low, high)


def _bound(literal: Literal | None, column: Column) -> list[bytes]:
    if literal is None or not isinstance(column.type, Native) or column.type.name not in _SAME_ORDER:
        return []
    values = _values([literal], column)
    found = _serialised(pa.array(values, arrow_type(column.type)), column) if values else []
    return [each for each in found if each is not None]


def _serialised(values: pa.Array, column: Column) -> list[bytes | None]:
    """Return the values' bytes; None for a null, or for a value that is invalid for the type."""
    serialise = serialiser(column.type)
    stored = stored_type(column.type)
    if pa.types.is_timestamp(values.type):
        millis = pa.array(numbers(values.cast(pa.int64())) // 1000, stored, mask=values.is_null().to_numpy(False))
        plain = millis.to_pylist()
    else:
        plain = (values.cast(pa.int32()) if pa.types.is_date(values.type) else values).to_pylist()
    return [None if value is None else _or_none(serialise, value) for value in plain]


def _or_none(serialise: Callable[[Any], bytes], value: Any) -> bytes | None:
    try:
        return serialise(value)
    except ValueError:
        return None
