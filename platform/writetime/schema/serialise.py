"""Serialises values: the inverse of `values.decoder`.

Two things are lost in decoding and cannot be restored: whether a part of a value was empty or null (null here), and
whether a tuple or user-defined type ended before its last fields or had null for them (null here).
"""

import ipaddress
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

from writetime.schema.text import bytes_of_text
from writetime.schema.types import Collection, CqlType, Native, Tuple, Udt, Vector

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
        case Tuple(arguments):
            inner = _struct([(f"_{i}", t) for i, t in enumerate(arguments, 1)])
        case Udt():
            inner = _struct(cql_type.distinct_fields)
        case _:
            raise AssertionError(cql_type)
    return lambda value: b"" if value is None else inner(value)


def partition_key(parts: Sequence[bytes | None]) -> bytes:
    """Return a serialised partition key of its columns' values (`CompositeType` if it has several)."""
    if len(parts) == 1:
        return parts[0] or b""
    return b"".join(len(part or b"").to_bytes(2, "big") + (part or b"") + b"\0" for part in parts)


def _map(key: Serialiser, value: Serialiser) -> Serialiser:
    def serialise(entries: Any) -> bytes:
        pairs = [(e["key"], e["value"]) if isinstance(e, dict) else e for e in entries]
        return struct.pack(">i", len(pairs)) + b"".join(_part(key, k) + _part(value, v) for k, v in pairs)

    return serialise


def _list(element: Serialiser) -> Serialiser:
    return lambda values: struct.pack(">i", len(values)) + b"".join(_part(element, v) for v in values)


def _vector(element: Serialiser, *, fixed: bool) -> Serialiser:
    def serialise(values: Any) -> bytes:
        parts = map(element, values)
        return b"".join(part if fixed else _vint(len(part)) + part for part in parts)

    return serialise


def _part(inner: Serialiser, value: Any) -> bytes:
    if value is None:
        return b"\xff\xff\xff\xff"
    data = inner(value)
    return struct.pack(">i", len(data)) + data


def _struct(fields: list[tuple[str, CqlType]]) -> Serialiser:
    serialisers = [(name, serialiser(t)) for name, t in fields]
    return lambda values: b"".join(_part(inner, values[name]) for name, inner in serialisers)


def _vint(value: int) -> bytes:
    """Write an unsigned vint: one leading one-bit per following byte."""
    extra = min((max(value.bit_length(), 1) - 1) // 7, 8)
    if extra == 8:
        return b"\xff" + value.to_bytes(8, "big")
    return (value | (0xFF00 >> extra & 0xFF) << 8 * extra).to_bytes(extra + 1, "big")


def _decimal(text: str) -> bytes:
    sign, digits, exponent = Decimal(text).as_tuple()
    assert isinstance(exponent, int)
    unscaled = int("".join(map(str, digits)))
    return struct.pack(">i", -exponent) + _varint(-unscaled if sign else unscaled)


def _varint(value: int) -> bytes:
    return value.to_bytes((value if value >= 0 else ~value).bit_length() // 8 + 1, "big", signed=True)


def _duration(value: dict[str, int]) -> bytes:
    return b"".join(_vint((v << 1 ^ v >> 63) & (1 << 64) - 1) for v in value.values())


def _pack(code: str) -> Serialiser:
    return struct.Struct(">" + code).pack


_NATIVES: dict[str, Serialiser] = {
    "ascii": bytes_of_text,
    "bigint": _pack("q"),
    "blob": bytes,
    "boolean": _pack("?"),
    "counter": _pack("q"),
    "date": lambda value: struct.pack(">I", value + (1 << 31)),
    "decimal": _decimal,
    "double": _pack("d"),
    "duration": _duration,
    "empty": bytes,
    "float": _pack("f"),
    "inet": lambda value: ipaddress.ip_address(value).packed,
    "int": _pack("i"),
    "smallint": _pack("h"),
    "text": bytes_of_text,
    "time": _pack("q"),
    "timestamp": _pack("q"),
    "timeuuid": lambda value: UUID(value).bytes,
    "tinyint": _pack("b"),
    "uuid": lambda value: UUID(value).bytes,
    "varint": lambda value: _varint(int(value)),
}
