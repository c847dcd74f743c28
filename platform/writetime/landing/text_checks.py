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
    """Check the texts and serialised values of changes of a table. If one is invalid for its type, a `WritetimeError`
    names the column.
    """
    keys = schema.partition_key + schema.clustering
    for column in schema.columns:
        values = one_chunk(changes[field_name(column)])
        for cql_type, parts, lost in [(column.type, values, None)] if column in keys else _parts(values, column.type):
            for name, texts in _leaves(parts, cql_type):
                if (wrong := _first_wrong(texts, name)) is not None:
                    raise WritetimeError(f"column {column.name}: {wrong[:_SHOWN]!r} is not a valid {name}")
            if lost is not None:
                _check_bytes(lost, cql_type, column.name)


def _has_texts(cql_type: CqlType) -> bool:
    match cql_type:
        case Native(name):
            return name in _USUAL
        case Collection(_, types) | Tuple(types):
            return any(map(_has_texts, types))
        case Vector(element, _):
            return _has_texts(element)
        case Udt(_, _, fields):
            return any(_has_texts(t) for _, t in fields)
    raise AssertionError(cql_type)


def _parts(values: pa.Array, cql_type: CqlType) -> Iterator[tuple[CqlType, pa.Array, pa.Array | None]]:
    """Yield the parts of a static or regular column that are checked, such as its values or the paths of its elements,
    each with its type, and with the bytes that decoding loses, if it loses some.
    """
    if not is_complex(cql_type):
        parts, cells = [("value", cql_type)], values
        if cql_type == Native("counter"):
            # Its shards name nodes.
            yield Native("uuid"), pc.struct_field(pc.struct_field(values, "shards").flatten(), "id"), None
    elif isinstance(cql_type, Collection):
        parts, cells = element_types(cql_type), pc.struct_field(values, "elements").flatten()
    else:
        for name, field_type in udt_fields(cql_type):
            yield from _parts(pc.struct_field(values, ["fields", name]), freeze(field_type))
        return
    for name, part_type in parts:
        is_lossy = loses_parts(part_type)
        if is_lossy or _has_texts(part_type):
            lost = pc.struct_field(cells, f"{name}_bytes") if is_lossy else None
            yield part_type, pc.struct_field(cells, name), lost


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
