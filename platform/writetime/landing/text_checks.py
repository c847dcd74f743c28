"""Checks decoded changes before they land: texts that stand for numbers, addresses and UUIDs must be valid, and so
must serialised values.

In Avro, `decimal`, `varint`, `inet`, `uuid` and `timeuuid` are strings. So a message may match its schema and have an
invalid text. The bytes that decoding loses (`path_bytes`, `value_bytes`) may be invalid, too. Once landed, it would
stop each merge of its table that compares it.
"""

from collections.abc import Iterator

import pyarrow as pa

from writetime.changes.model import element_types, field_name, udt_fields
from writetime.core.arrow import one_chunk, pc
from writetime.core.errors import WritetimeError
from writetime.schema.serialise import loses_parts, serialiser
from writetime.schema.table import TableSchema
from writetime.schema.types import Collection, CqlType, Native, Tuple, Udt, Vector, freeze, is_complex
from writetime.schema.values import decoder

_UUID = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
# Texts of these forms are valid. Each other text is checked separately.
_USUAL = {
    "decimal": r"^-?[0-9]+(\.[0-9]+)?(E[+-][0-9]{1,8})?$",
    "inet": rf"^({_OCTET}\.){{3}}{_OCTET}$",
    "timeuuid": _UUID,
    "uuid": _UUID,
    "varint": "^-?[0-9]+$",
}
# Python refuses to convert texts with more than 4,300 digits.
_USUAL_CHARACTERS = 4000
_SHOWN = 100


def check_texts(changes: pa.Table, schema: TableSchema) -> None:
    """Check the texts of changes.

    Args:
        changes: changes of a table.
        schema: the table.

    Raises:
        WritetimeError: a text is invalid for its type. The error names the column.
    """
    keys = schema.partition_key + schema.clustering
    for column in schema.columns:
        if _has_texts(column.type):
            values = one_chunk(changes[field_name(column)])
            for name, texts in _leaves(values, column.type) if column in keys else _cells(values, column.type):
                if (wrong := _first_wrong(texts, name)) is not None:
                    raise WritetimeError(f"column {column.name}: {wrong[:_SHOWN]!r} is not a valid {name}")
        if column not in keys:
            for cell_type, cells in _values_of_cells(one_chunk(changes[field_name(column)]), column.type):
                _check_bytes(cells, cell_type, column.name)


def _has_texts(cql_type: CqlType) -> bool:
    match cql_type:
        case Native(name):
            # A counter's shards name nodes.
            return name in _USUAL or name == "counter"
        case Collection(kind, arguments):
            return (kind == "list" and not cql_type.frozen) or any(map(_has_texts, arguments))
        case Vector(element, _):
            return _has_texts(element)
        case Tuple(arguments):
            return any(map(_has_texts, arguments))
        case Udt(_, _, fields):
            return any(_has_texts(t) for _, t in fields)
    raise AssertionError(cql_type)


def _cells(values: pa.Array, cql_type: CqlType) -> Iterator[tuple[str, pa.Array]]:
    """Yield the texts of a static or regular column, with the names of their types."""
    if not is_complex(cql_type):
        yield from _leaves(pc.struct_field(values, "value"), cql_type)
        if cql_type == Native("counter"):
            yield "uuid", pc.struct_field(pc.struct_field(values, "shards").flatten(), "id")
    elif isinstance(cql_type, Collection):
        elements = pc.struct_field(values, "elements").flatten()
        path = Native("timeuuid") if cql_type.kind == "list" else cql_type.arguments[0]
        yield from _leaves(pc.struct_field(elements, "path"), path)
        if cql_type.kind != "set":
            yield from _leaves(pc.struct_field(elements, "value"), cql_type.arguments[-1])
    else:
        fields = pc.struct_field(values, "fields")
        for name, field_type in udt_fields(cql_type):
            yield from _leaves(pc.struct_field(fields, [name, "value"]), field_type)


def _values_of_cells(values: pa.Array, cql_type: CqlType) -> Iterator[tuple[CqlType, pa.Array]]:
    """Yield the bytes that decoding loses of a static or regular column, with the types of the values."""
    if not is_complex(cql_type):
        parts = [("value", cql_type)]
        cells = values
    elif isinstance(cql_type, Collection):
        parts, cells = element_types(cql_type), pc.struct_field(values, "elements").flatten()
    else:
        for name, field_type in udt_fields(cql_type):
            yield from _values_of_cells(pc.struct_field(values, ["fields", name]), freeze(field_type))
        return
    for name, part_type in parts:
        if loses_parts(part_type):
            yield part_type, pc.struct_field(cells, f"{name}_bytes")


def _check_bytes(values: pa.Array, cql_type: CqlType, column: str) -> None:
    """Check serialised values; mostly there are none."""
    decode = decoder(cql_type)
    for data in values.drop_null().unique().to_pylist():
        try:
            decode(data)
        except Exception as e:
            # Each type raises its own errors.
            raise WritetimeError(f"column {column}: 0x{data[:_SHOWN].hex()} is not a valid {cql_type}: {e}") from None


def _leaves(values: pa.Array, cql_type: CqlType) -> Iterator[tuple[str, pa.Array]]:
    """Yield the texts of values, at any depth, with the names of their types."""
    match cql_type:
        case Native(name):
            if name in _USUAL:
                yield name, values
            return
        case Collection("map", types):
            is_map = pa.types.is_map(values.type)
            parts = [values.keys, values.items] if is_map else values.flatten().flatten()
        case Collection(_, (element,)) | Vector(element, _):
            types, parts = (element,), [values.flatten()]
        case _:
            types, parts = tuple(t for _, t in udt_fields(cql_type)), values.flatten()
    for part, part_type in zip(parts, types, strict=True):
        yield from _leaves(part, part_type)


def _first_wrong(texts: pa.Array, name: str) -> str | None:
    """Return the first text that is not a value of a type; None if there is none."""
    if texts.null_count == len(texts):
        return None
    usual = pc.and_(
        pc.match_substring_regex(texts, _USUAL[name]), pc.less_equal(pc.binary_length(texts), _USUAL_CHARACTERS)
    )
    others = texts.filter(pc.invert(usual)).unique()
    serialise, decode = serialiser(Native(name)), decoder(Native(name))
    for text in others.to_pylist():
        try:
            is_value = decode(serialise(text)) == text
        except Exception:
            # Each type raises its own errors.
            is_value = False
        if not is_value:
            return text
    return None
