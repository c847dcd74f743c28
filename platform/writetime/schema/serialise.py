"""Serialises values: the inverse of `values.decoder`.

Decoding loses whether a part of a value was empty or null (null here), whether a tuple or user-defined type ended
before its last fields or had null for them (null here), and all of a map with an empty key (null here). Values of types
that may lose these (`loses_parts`) are kept with their bytes if serialising them again gives others (`other_bytes`),
unless only fields at the end are missing. The database refuses null elements, keys and values of lists, sets and maps,
so null is an empty value there.
"""

import ipaddress
import struct
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

from writetime.schema.text import bytes_of_text
from writetime.schema.types import NUMBERS, Collection, CqlType, Native, Tuple, Udt, Vector
from writetime.schema.values import split_fields, split_sequence, split_vector

Serialiser = Callable[[Any], bytes]


def serialiser(cql_type: CqlType) -> Serialiser:
    """Return a function from a value (of `Array.to_pylist`, with dates as numbers) to its bytes.

    None gives the empty value, which `values.decoder` decodes to None.
    """
    match cql_type:
        case Native(name):
            inner = _NATIVES[name]
        case Collection("map", (key, value)):
            inner = _map(serialiser(key), serialiser(value))
        case Collection(_, (element,)):
            inner = _list(serialiser(element))
        case Vector(element, _):
            inner = _vector(serialiser(element), fixed=element.fixed_length is not None)
        case Tuple() | Udt():
            inner = _struct(cql_type.distinct_fields)
        case _:
            raise AssertionError(cql_type)
    return lambda value: b"" if value is None else inner(value)


def loses_parts(cql_type: CqlType) -> bool:
    """Return whether values of a type that the database distinguishes may be equal after they were decoded."""
    match cql_type:
        case Collection("map", (key, value)):
            never_empty = isinstance(key, Native) and key.name in _NEVER_NULL
            return not never_empty or loses_parts(value)
        case Collection(_, (element,)) | Vector(element, _):
            return loses_parts(element)
    return isinstance(cql_type, Tuple | Udt)


def other_bytes(cql_type: CqlType) -> Callable[[bytes | None, Any], bytes | None]:
    """Return a function from a value's bytes and the decoded value to these bytes, or to None if the decoded value has
    the same when it is serialised. Fields that are missing at the end, as in values from before an ALTER TYPE, count as
    null, like in the order of the database.
    """
    inner, pad = serialiser(cql_type), padded(cql_type)

    def other(data: bytes | None, value: Any) -> bytes | None:
        return None if data is None or (again := inner(value)) == data or again == pad(data) else data

    return other


def padded(cql_type: CqlType) -> Callable[[bytes], bytes]:
    """Return a function that adds nulls for the fields that are missing at the end of a serialised value, or of its
    parts.
    """
    match cql_type:
        case Collection(_, arguments):
            inner = [padded(t) for t in arguments]

            def pad(data: bytes) -> bytes:
                parts = list(split_sequence(data, 4))
                found = [None if p is None else inner[i % len(inner)](p) for i, p in enumerate(parts)]
                return sequence(found, len(found) // len(inner))

        case Vector(element, dimension) if element.fixed_length is None:
            each = padded(element)

            def pad(data: bytes) -> bytes:
                parts = map(each, split_vector(data, element, dimension))
                return b"".join(vint(len(part)) + part for part in parts)

        case Tuple() | Udt():
            fields = [padded(t) for t in cql_type.parts]

            def pad(data: bytes) -> bytes:
                parts = split_fields(data, cql_type, len(fields))
                parts += [None] * (len(fields) - len(parts))
                return struct_of(None if p is None else field(p) for field, p in zip(fields, parts, strict=True))

        case _:
            return lambda data: data
    return lambda data: pad(data) if data else data


def serialised_values(values: Iterable[Any], others: Iterable[bytes | None], cql_type: CqlType) -> list[bytes]:
    """Return the bytes of decoded values, which are those of `others` where these are not None."""
    inner = serialiser(cql_type)
    return [inner(value) if other is None else other for value, other in zip(values, others, strict=True)]


def partition_key(parts: Sequence[bytes | None]) -> bytes:
    """Return a serialised partition key of its columns' values (`CompositeType` if it has several)."""
    if len(parts) == 1:
        return parts[0] or b""
    return b"".join(len(part or b"").to_bytes(2, "big") + (part or b"") + b"\0" for part in parts)


def key_splitter(count: int) -> Callable[[bytes], list[bytes | None]]:
    """Return the inverse of `partition_key` for a key of so many columns."""
    if count == 1:
        return lambda key: [key]

    def split(key: bytes) -> list[bytes | None]:
        parts: list[bytes | None] = []
        start = 0
        for _ in range(count):
            end = start + 2 + int.from_bytes(key[start : start + 2], "big")
            parts.append(key[start + 2 : end])
            start = end + 1
        return parts

    return split


def _map(key: Serialiser, value: Serialiser) -> Serialiser:
    def serialise(entries: Any) -> bytes:
        pairs = [(e["key"], e["value"]) if isinstance(e, dict) else e for e in entries]
        return struct.pack(">i", len(pairs)) + b"".join(_part(key(k)) + _part(value(v)) for k, v in pairs)

    return serialise


def _list(element: Serialiser) -> Serialiser:
    return lambda values: struct.pack(">i", len(values)) + b"".join(_part(element(v)) for v in values)


def _vector(element: Serialiser, *, fixed: bool) -> Serialiser:
    def serialise(values: Any) -> bytes:
        parts = map(element, values)
        return b"".join(part if fixed else vint(len(part)) + part for part in parts)

    return serialise


def sequence(parts: Sequence[bytes | None], count: int) -> bytes:
    """Return a list, set or map of `count` elements or entries, from the bytes of their parts."""
    return struct.pack(">i", count) + struct_of(parts)


def struct_of(parts: Iterable[bytes | None]) -> bytes:
    """Return a tuple or user-defined type, from the bytes of its parts, of which some may be null."""
    return b"".join(map(_part, parts))


def _part(data: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if data is None else struct.pack(">i", len(data)) + data


def _struct(fields: list[tuple[str, CqlType]]) -> Serialiser:
    serialisers = [(name, serialiser(t)) for name, t in fields]

    def serialise(values: Any) -> bytes:
        parts = ((inner, values[name]) for name, inner in serialisers)
        return struct_of(None if value is None else inner(value) for inner, value in parts)

    return serialise


def vint(value: int) -> bytes:
    """Return an unsigned vint: one leading one-bit per following byte."""
    extra = min(((value | 1).bit_length() - 1) // 7, 8)
    return (value | (0xFF00 >> extra & 0xFF) << 8 * extra).to_bytes(extra + 1, "big")


def _decimal(text: str) -> bytes:
    sign, digits, exponent = Decimal(text).as_tuple()
    assert isinstance(exponent, int)
    unscaled = int("".join(map(str, digits)))
    return struct.pack(">i", -exponent) + _varint(-unscaled if sign else unscaled)


def _varint(value: int) -> bytes:
    return value.to_bytes((value if value >= 0 else ~value).bit_length() // 8 + 1, "big", signed=True)


def _duration(value: dict[str, int]) -> bytes:
    return b"".join(vint((v << 1 ^ v >> 63) & (1 << 64) - 1) for v in value.values())


# Types whose empty value is decoded to one that is not null.
_NEVER_NULL = ("ascii", "blob", "text")


_NATIVES: dict[str, Serialiser] = {
    **{name: struct.Struct(">" + code).pack for name, code in NUMBERS.items()},
    "ascii": bytes_of_text,
    "blob": bytes,
    "boolean": struct.Struct("?").pack,
    "date": lambda value: struct.pack(">I", value + (1 << 31)),
    "decimal": _decimal,
    "duration": _duration,
    "empty": bytes,
    "inet": lambda value: ipaddress.ip_address(value).packed,
    "text": bytes_of_text,
    "timeuuid": lambda value: UUID(value).bytes,
    "uuid": lambda value: UUID(value).bytes,
    "varint": lambda value: _varint(int(value)),
}
