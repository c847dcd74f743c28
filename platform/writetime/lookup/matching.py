"""The keys of a look-up as columns of a view, and the rows that have one of them."""

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from writetime.core.errors import WritetimeError
from writetime.lookup.keys import label
from writetime.schema.mapping import arrow_type
from writetime.schema.names import TakenNames, candidates
from writetime.schema.serialise import serialiser
from writetime.schema.table import TableSchema
from writetime.schema.types import Collection, CqlType, Native, Tuple, Udt, Vector
from writetime.schema.values import decoder

# Types whose values have one text in views, but may have others elsewhere, such as one in capitals.
_OF_SEVERAL_TEXTS = ("uuid", "timeuuid", "inet")
# Types of numbers that are texts in views.
_OF_NUMBERS = ("decimal", "varint")


def keys_table(keys: Sequence[Mapping[str, Any]], schema: TableSchema) -> pa.Table:
    """Return keys, of which there is at least one, as columns of a view. Raises `WritetimeError` if the keys name other
    columns than the table has, or not all the same; a value has another type than its column; or they are a single key,
    and not a sequence of keys.
    """
    if isinstance(keys, Mapping):
        raise WritetimeError(f"{schema.full_name}: the keys are one key; give a list of keys, such as [{keys!r}]")
    types = {label(column): column.type for column in schema.columns}
    names = list(keys[0])
    if not names:
        raise WritetimeError(f"{schema.full_name}: a key names no column; known are {', '.join(types)}")
    for name in names:
        if name not in types:
            raise WritetimeError(f"{schema.full_name} has no column {name!r}; known are {', '.join(types)}")
    if any(key.keys() != keys[0].keys() for key in keys):
        raise WritetimeError(
            f"{schema.full_name}: all keys must have the same columns as the first key: {', '.join(names)}"
        )
    return pa.table([_column(name, types[name], [key[name] for key in keys]) for name in names], names)


def matching(rows: pa.Table, keys: pa.Table, schema: TableSchema) -> pa.Array:
    """Return the numbers of the rows that have one of some keys, in order."""
    types = {label(column): column.type for column in schema.columns}
    asked = [keys[name] for name in keys.column_names]
    present = [rows[name] for name in keys.column_names]
    for i, name in enumerate(keys.column_names):
        # Arrow cannot join by a column of nested values. Python gives each of these a number to join by.
        if pa.types.is_nested(keys[name].type):
            numbers: dict[Hashable, int] = {}
            asked[i], present[i] = (_numbered(values, types[name], numbers) for values in (keys[name], rows[name]))
    taken = TakenNames(keys.column_names)
    number = next(name for name in candidates("number") if name not in taken)
    # Joined without the other columns, whose values may be nested, too.
    numbered = pa.table([*present, pa.array(range(rows.num_rows), pa.int64())], [*keys.column_names, number])
    wanted = pa.table(asked, keys.column_names)
    found = numbered.join(wanted, keys.column_names, join_type="left semi", use_threads=False)[number]
    return found.combine_chunks().sort()


def _column(name: str, cql_type: CqlType, values: list[Any]) -> pa.Array:
    # Most types have one form only, and there may be many keys.
    is_plain = isinstance(cql_type, Native) and cql_type.name not in _OF_SEVERAL_TEXTS + _OF_NUMBERS
    try:
        own = values if is_plain else [_as_in_view(value, cql_type) for value in values]
        return pa.array(own, arrow_type(cql_type))
    except (pa.ArrowException, OverflowError, TypeError, ValueError, LookupError, AttributeError) as e:
        raise WritetimeError(f"a value of the column {name} is not a valid {cql_type}: {e}") from None


def _as_in_view(value: Any, cql_type: CqlType) -> Any:
    """Return a value in a form that Arrow accepts. CQL's sets, maps and tuples may be Python's, or as `to_pylist`
    returns them.
    """
    if value is None:
        return None
    match cql_type:
        case Native(name) if name in _OF_SEVERAL_TEXTS:
            decode, serialise = _coders(cql_type)
            with suppress(ValueError):
                return decode(serialise(str(value)))
            return str(value)
        case Native(name) if name in _OF_NUMBERS:
            return str(value)
        case Native():
            return value
        case Collection("map", (key, mapped)):
            pairs = value.items() if isinstance(value, Mapping) else map(_pair, value)
            own = [(_as_in_view(k, key), _as_in_view(v, mapped)) for k, v in pairs]
            return own if pa.types.is_map(arrow_type(cql_type)) else [{"key": k, "value": v} for k, v in own]
        case Collection(_, (element,)) | Vector(element, _):
            return [_as_in_view(each, element) for each in value]
        case Tuple(types):
            parts = list(value.values()) if isinstance(value, Mapping) else list(value)
            return {f"_{i}": _as_in_view(part, t) for i, (part, t) in enumerate(zip(parts, types, strict=True), 1)}
        case Udt():
            types = dict(cql_type.distinct_fields)
            return {name: _as_in_view(part, types[name]) for name, part in value.items()}


@functools.cache
def _coders(cql_type: Native) -> tuple[Callable[[bytes], Any], Callable[[Any], bytes]]:
    return decoder(cql_type), serialiser(cql_type)


def _pair(entry: Any) -> tuple[Any, Any]:
    return (entry["key"], entry["value"]) if isinstance(entry, Mapping) else tuple(entry)


def _numbered(column: pa.ChunkedArray, cql_type: CqlType, numbers: dict[Hashable, int]) -> pa.Array:
    """Return a number for each value, the same for equal ones; null for null."""
    values = [_comparable(value, cql_type) for value in column]
    found = [None if value is None else numbers.setdefault(value, len(numbers)) for value in values]
    return pa.array(found, pa.int64())


def _comparable(value: Any, cql_type: CqlType) -> Hashable:
    """Return a form of Arrow's value that is equal for equal values of CQL. Sets and maps may have any order."""
    if not value.is_valid:
        return None
    match cql_type:
        case Native():
            # The number, because a date may be beyond Python's range. A NaN differs from itself, and -0.0 equals 0.0.
            found = value.value if pa.types.is_temporal(value.type) else value.as_py()
            if isinstance(found, dict):
                return tuple(found.values())
            return found.hex() if isinstance(found, float) else found
        case Collection("map", types):
            pairs = ((entry["key"], entry["value"]) for entry in value.values)
            return frozenset(tuple(map(_comparable, pair, types)) for pair in pairs)
        case Collection(kind, (element,)):
            elements = [_comparable(each, element) for each in value.values]
            return frozenset(elements) if kind == "set" else tuple(elements)
        case Vector(element, _):
            return tuple(_comparable(each, element) for each in value.values)
        case Tuple(types):
            return tuple(_comparable(value[i], t) for i, t in enumerate(types))
        case Udt():
            return tuple(_comparable(value[i], t) for i, (_, t) in enumerate(cql_type.distinct_fields))
    raise AssertionError(cql_type)
