"""Kafka Connect: the Connect schema of every CQL type, and Arrow columns as the JSON that Connect's converter reads.

Types and semantic names are those of Debezium's connector for Cassandra ("Data types" of its documentation, with
`decimal.handling.mode` and `varint.handling.mode` set to `string`) wherever these lose nothing. A duration has its
three parts, and a tuple is a struct. A map is one of Connect's only if its keys are text. Any other is an array of
structs, as in ScyllaDB's connector, because such keys may be null.

The JSON is that of `org.apache.kafka.connect.json.JsonConverter`: bytes in base64, maps with keys of text as objects.
It is made column by column, as Avro is (`schema.avro`), so no row is handled in Python.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from writetime.core.arrow import numbers, pc
from writetime.schema.mapping import DURATION, NATIVES
from writetime.schema.types import Collection, CqlType, Native, Tuple, Udt, Vector

Schema = dict[str, Any]

_TEXT = pa.large_string()
# Text with one of these needs an escape in JSON.
_ESCAPED = r'[\x00-\x1f"\\]'
_WHOLE_NUMBER = "^-?[0-9]+$"


def connect_type(cql_type: CqlType) -> Schema:
    """Return the Connect schema of a value, as JSON with Connect's schemas has it. Every value may be null."""
    match cql_type:
        case Native("duration"):
            # Connect's names of integers are Arrow's.
            return struct([plain(str(field.type)) | {"field": field.name} for field in DURATION])
        case Native(name):
            forms = NATIVES[name]
            return plain(forms.connect) | ({"name": forms.semantic, "version": 1} if forms.semantic else {})
        case Collection("map", (key, value)) if _is_text(key):
            return plain("map") | {"keys": plain("string") | {"optional": False}, "values": connect_type(value)}
        case Collection("map", (key, value)):
            entry = struct([connect_type(t) | {"field": name} for name, t in (("key", key), ("value", value))])
            return plain("array") | {"items": entry}
        case Collection(_, (element,)) | Vector(element, _):
            return plain("array") | {"items": connect_type(element)}
        case Tuple() | Udt():
            return struct([connect_type(t) | {"field": name} for name, t in _fields(cql_type)])
    raise AssertionError(cql_type)


def connect_name(cql_type: CqlType) -> str:
    """Return the name of a type for readers: Connect's, and the semantic one without its package."""
    schema = connect_type(cql_type)
    return schema["type"] + (f" ({schema['name'].rsplit('.', 1)[1]})" if "name" in schema else "")


def plain(kind: str) -> Schema:
    """Return the Connect schema of a value that may be null."""
    return {"type": kind, "optional": True}


def struct(fields: Sequence[Schema], **more: Any) -> Schema:
    """Return the Connect schema of a struct that may be null."""
    return {"type": "struct", "fields": list(fields), "optional": True, **more}


@dataclass(frozen=True)
class JsonEncoder:
    """Makes JSON of Arrow columns in the row form (`mapping.arrow_type`).

    Attributes:
        with_schema: the JSON is read with its Connect schema. JSON has no numbers that are not finite. They are the
            texts `NaN`, `Infinity` and `-Infinity`; with a schema they are null, because Connect's converter reads text
            as 0 where the schema has a number.
        canonical: equal decimals have one form, without trailing zeros.
    """

    with_schema: bool
    canonical: bool = False

    def encode(self, values: pa.Array, cql_type: CqlType) -> pa.Array:
        """Return the JSON of each value."""
        return self._present(values, cql_type).fill_null("null")

    def _present(self, values: pa.Array, cql_type: CqlType) -> pa.Array:
        """Return the JSON of each value, null where it is null."""
        match cql_type:
            case Native("duration"):
                parts = [part.cast(_TEXT).fill_null("null") for part in values.flatten()]
                return _where(values, json_object([field.name for field in DURATION], parts))
            case Native("text" | "ascii"):
                return json_texts(values)
            case Native("blob" | "empty"):
                return json_bytes(values)
            case Native("float" | "double"):
                return self._floats(values)
            case Native("timestamp"):
                return pc.divide(values.view(pa.int64()), 1000).cast(_TEXT)
            case Native("date"):
                return values.view(pa.int32()).cast(_TEXT)
            case Native("decimal") if self.canonical:
                return json_quoted(pa.array([_canonical(text) for text in values.to_pylist()], _TEXT))
            case Native(name):
                return json_quoted(values) if NATIVES[name].connect == "string" else values.cast(_TEXT)
            case Collection("map", (key, value)):
                return self._map(values, key, value)
            case Collection(_, (element,)) | Vector(element, _):
                return _list(values, self.encode(values.flatten(), element))
            case Tuple() | Udt():
                fields = _fields(cql_type)
                parts = [self.encode(part, t) for part, (_, t) in zip(values.flatten(), fields, strict=True)]
                return _where(values, json_object([name for name, _ in fields], parts))
        raise AssertionError(cql_type)

    def _map(self, maps: pa.Array, key: CqlType, value: CqlType) -> pa.Array:
        if pa.types.is_map(maps.type):
            maps = maps.cast(pa.list_(pa.struct([("key", maps.type.key_type), ("value", maps.type.item_type)])))
        keys, items = (self.encode(p, t) for p, t in zip(maps.flatten().flatten(), (key, value), strict=True))
        if _is_text(key):
            return _list(maps, _join(keys, ":", items), "{}")
        return _list(maps, json_object(["key", "value"], [keys, items]))

    def _floats(self, values: pa.Array) -> pa.Array:
        texts = values.cast(_TEXT)
        # A reader without a schema would see an integer.
        texts = pc.if_else(pc.match_substring_regex(texts, _WHOLE_NUMBER), _join(texts, ".0"), texts)
        finite = pc.is_finite(values)
        if pc.all(finite).as_py() in (True, None):
            return texts
        named = (
            [_scalar(None)] * 3 if self.with_schema else [_scalar(f'"{n}"') for n in ("NaN", "Infinity", "-Infinity")]
        )
        nan, positive, negative = named
        other = pc.if_else(pc.is_nan(values), nan, pc.if_else(pc.greater(values, 0), positive, negative))
        return pc.if_else(finite, texts, other)


def json_object(names: Sequence[str], values: Sequence[pa.Array | str]) -> pa.Array:
    """Return JSON objects of these fields, from the JSON of their values: arrays (at least one), and text that is the
    same in all objects.
    """
    parts: list[pa.Array | str] = []
    constant = "{"
    for name, value in zip(names, values, strict=True):
        constant += json_text(name) + ":"
        if isinstance(value, str):
            constant += value + ","
        else:
            parts += [constant, value]
            constant = ","
    return _join(*parts, constant.removesuffix(",") + "}")


def json_text(text: str) -> str:
    """Return text as JSON."""
    return orjson.dumps(text).decode()


def json_texts(values: pa.Array) -> pa.Array:
    """Return text as JSON; null where it is null."""
    texts = values.cast(_TEXT)
    special = pc.match_substring_regex(texts, _ESCAPED).fill_null(False)
    if special.true_count:
        escaped = [json_text(text)[1:-1] for text in texts.filter(special).to_pylist()]
        texts = pc.replace_with_mask(texts, special, pa.array(escaped, _TEXT))
    return json_quoted(texts)


def json_bytes(values: pa.Array) -> pa.Array:
    """Return bytes as JSON, in base64; null where they are null."""
    return pa.array([None if v is None else f'"{base64.b64encode(v).decode()}"' for v in values.to_pylist()], _TEXT)


def _canonical(text: str | None) -> str | None:
    if text is None:
        return None
    sign, digits, exponent = Decimal(text).as_tuple()
    assert isinstance(exponent, int)
    shown = "".join(map(str, digits)).lstrip("0").rstrip("0")
    if not shown:
        return "0"
    exponent += len(digits) - len("".join(map(str, digits)).rstrip("0"))
    return str(Decimal((sign, tuple(map(int, shown)), exponent)))


def _scalar(text: str | None) -> pa.Scalar:
    """Return a text as Arrow has it. The first scalar imports pandas, which not every command needs."""
    return pa.scalar(text, _TEXT)


def _list(lists: pa.Array, elements: pa.Array, brackets: str = "[]") -> pa.Array:
    """Return JSON arrays of elements in order, or with other brackets; null where a list is null."""
    ends = np.cumsum(numbers(pc.list_value_length(lists)), dtype=np.int64)
    offsets = pa.array(np.concatenate([[0], ends]))
    joined = pc.binary_join(pa.LargeListArray.from_arrays(offsets, elements), _scalar(","))
    return _where(lists, _join(brackets[0], joined, brackets[1]))


def json_quoted(texts: pa.Array) -> pa.Array:
    """Return text that needs no escape as JSON; null where it is null."""
    return _join('"', texts.cast(_TEXT), '"')


def _join(*parts: pa.Array | str) -> pa.Array:
    """Return texts joined row by row; null where one is null."""
    texts = [_scalar(part) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*texts, _scalar(""))


def _where(values: pa.Array, texts: pa.Array) -> pa.Array:
    return pc.if_else(values.is_valid(), texts, _scalar(None)) if values.null_count else texts


def _fields(cql_type: Tuple | Udt) -> Sequence[tuple[str, CqlType]]:
    return cql_type.fields if isinstance(cql_type, Udt) else cql_type.distinct_fields


def _is_text(cql_type: CqlType) -> bool:
    return cql_type in (Native("text"), Native("ascii"))
