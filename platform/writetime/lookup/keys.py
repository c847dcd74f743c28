"""Which partitions a look-up or a condition asks for.

The partitions may be too many: the values, or the condition, then decide about each row that was found.
"""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from writetime.core.arrow import numbers
from writetime.schema.mapping import arrow_type, stored_type
from writetime.schema.names import fold
from writetime.schema.serialise import partition_key, serialiser
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Native
from writetime.storage.kernel.primitives import tokens

# Types whose values have one serialised form each, so that a value leads to its partition. (A `varint`, for one, may
# have leading zeros.) With each, the DuckDB types of the literals that equal only its values.
_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT")
_TEXTS = ("VARCHAR",)
_ONE_FORM: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), _INTEGERS),
    **dict.fromkeys(("ascii", "text", "uuid", "timeuuid"), _TEXTS),
    **dict.fromkeys(("blob", "date", "time", "timestamp"), ()),
}
# A condition that allows more partitions reads all of them.
_MOST = 10_000


def label(column: Column) -> str:
    """Return a column's name in views."""
    return column.label or column.name


def tokens_of(keys: pa.Table, schema: TableSchema) -> np.ndarray | None:
    """Return the tokens of partitions (sorted, each once), by columns of a view; None if the columns do not say which
    partitions they are.
    """
    parts = []
    for column in schema.partition_key:
        if label(column) not in keys.column_names or _literals(column) is None:
            return None
        parts.append(_serialised(keys[label(column)].combine_chunks(), column))
    found = [partition_key(values) for values in zip(*parts, strict=True) if None not in values]
    return np.unique(tokens(pa.array(found, pa.binary())).to_numpy())


def keys_of(where: str, schema: TableSchema) -> pa.Table | None:
    """Return the keys of all partitions that a condition in DuckDB's SQL allows; None if it does not name them."""
    condition = _parsed(where)
    columns = {fold(label(c)): c for c in schema.partition_key}
    values: dict[str, list[Any]] = {}
    for part in _conjunction(condition) if condition else ():
        name, allowed = _allowed(part)
        kinds = _literals(columns[name]) if name in columns else None
        if kinds is not None and all(kind in kinds for kind, _ in allowed):
            values[name] = [value for _, value in allowed]
    if values.keys() != columns.keys():
        return None
    if np.prod([len(found) for found in values.values()]) > _MOST:
        return None
    rows = list(itertools.product(*(values[name] for name in columns)))
    try:
        arrays = [
            pa.array([row[i] for row in rows], arrow_type(column.type)) for i, column in enumerate(columns.values())
        ]
    except (pa.ArrowInvalid, OverflowError):
        # A number that the column cannot hold.
        return None
    return pa.table(arrays, [label(c) for c in columns.values()])


def _literals(column: Column) -> tuple[str, ...] | None:
    """Return the types of literals that a column is compared with; None if its values have several forms."""
    return _ONE_FORM.get(column.type.name) if isinstance(column.type, Native) else None


def _serialised(values: pa.Array, column: Column) -> list[bytes | None]:
    """Return the values' bytes; None where it is null, or no value of the type."""
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


def _parsed(where: str) -> Any:
    """Return DuckDB's syntax tree of a condition; None if it is not one, or more than one."""
    import duckdb

    found = duckdb.execute("SELECT json_serialize_sql(?)", [f"SELECT 1 WHERE {where}"]).fetchone()
    assert found
    tree = json.loads(found[0])
    if tree["error"] or len(tree["statements"]) != 1:
        return None
    node = tree["statements"][0]["node"]
    return node.get("where_clause") if node["type"] == "SELECT_NODE" and not node["modifiers"] else None


def _conjunction(condition: Any) -> list[Any]:
    if condition["type"] != "CONJUNCTION_AND":
        return [condition]
    return [part for child in condition["children"] for part in _conjunction(child)]


def _allowed(condition: Any) -> tuple[str, Sequence[tuple[str, Any]]]:
    """Return a column's name, folded, and the literals (DuckDB type, value) of which it must be one; else ""."""
    nothing = "", ()
    if condition["type"] == "COMPARE_EQUAL":
        sides = [condition["left"], condition["right"]]
        column, *literals = sides if sides[0]["class"] == "COLUMN_REF" else sides[::-1]
    elif condition["type"] == "COMPARE_IN":
        column, *literals = condition["children"]
    else:
        return nothing
    if column["class"] != "COLUMN_REF" or len(column["column_names"]) != 1:
        return nothing
    if any(each["class"] != "CONSTANT" or each["value"]["is_null"] for each in literals):
        return nothing
    values = [(each["value"]["type"]["id"], each["value"]["value"]) for each in literals]
    return fold(column["column_names"][0]), values
