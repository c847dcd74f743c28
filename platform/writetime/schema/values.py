"""Decodes the serialised values that are not plain numbers or bytes: decimals, collections, tuples, vectors, ...

The encodings are those of `org.apache.cassandra.serializers` and `db.marshal` (native protocol version 3 and later). A
decoded value is valid input of pyarrow for `mapping.stored_type` of the same CQL type.
"""

import ipaddress
import struct
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, TypeVar
from uuid import UUID

import pyarrow as pa

from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError
from writetime.schema.mapping import stored_type
from writetime.schema.text import text_of
from writetime.schema.types import NUMBERS, Collection, CqlType, Native, Tuple, Udt, Vector


class BadValue(WritetimeError):
    """Invalid bytes for a type."""


class UnknownFields(BadValue):
    """A value of a user-defined type with more fields than the type has in the known schema."""


Decoder = Callable[[bytes], Any]
_T = TypeVar("_T")


def decoder(cql_type: CqlType) -> Decoder:
    """Return a function from a value's bytes to a Python value.

    Empty bytes give None, except for text and blob, and so does a map with a key that is None.
    """
    match cql_type:
        case Native("text" | "ascii"):
            return text_of
        case Native("blob" | "empty"):
            return lambda data: data
        case Native(name):
            inner = _NATIVES[name]
        case Collection("map", (key, value)):
            inner = _map(key, value)
        case Collection(_, (element,)):
            inner = _list(decoder(element))
        case Vector(element, dimension):
            inner = _vector(element, dimension)
        case Tuple() | Udt():
            inner = _struct(cql_type)
        case _:
            raise AssertionError(cql_type)
    return checked(inner, cql_type)


def checked(read: Callable[[bytes], _T], cql_type: CqlType) -> Callable[[bytes], _T | None]:
    """Return a function that reads the bytes of a value. Empty bytes give None, and invalid ones raise `BadValue`."""

    def read_checked(data: bytes) -> _T | None:
        try:
            return read(data) if data else None
        except (struct.error, IndexError, ValueError) as e:
            size = pluralize(len(data), "byte")
            raise BadValue(f"{data[:32].hex()} ({size}) is not a valid {cql_type}: {e}") from None

    return read_checked


def _unpack(code: str) -> Decoder:
    unpack = struct.Struct(">" + code).unpack
    return lambda data: unpack(data)[0]


def _decimal(data: bytes) -> str:
    scale = struct.unpack_from(">i", data)[0]
    unscaled = int.from_bytes(data[4:], "big", signed=True)
    digits = tuple(map(int, str(abs(unscaled))))
    return str(Decimal((unscaled < 0, digits, -scale)))


def read_vint(data: bytes, offset: int) -> tuple[int, int]:
    """Read an unsigned vint; return it and the offset after it."""
    first = data[offset]
    extra = 8 - (first ^ 0xFF).bit_length()
    end = offset + 1 + extra
    if end > len(data):
        raise IndexError("a vint is truncated")
    if extra == 8:
        return int.from_bytes(data[offset + 1 : end], "big"), end
    return int.from_bytes(bytes([first & (0xFF >> extra)]) + data[offset + 1 : end], "big"), end


def _duration(data: bytes) -> dict[str, int]:
    parts, p = [], 0
    for _ in range(3):
        zigzag, p = read_vint(data, p)
        parts.append((zigzag >> 1) ^ -(zigzag & 1))
    return {"months": parts[0], "days": parts[1], "nanoseconds": parts[2]}


def _inet(data: bytes) -> str:
    """Return the text form of an address by RFC 5952, which `ipaddress` follows from Python 3.13 on only.

    The form must not depend on the version of Python, as texts are keys and are compared.
    """
    address = ipaddress.ip_address(data)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(address) if mapped is None else f"::ffff:{mapped}"


_NATIVES: dict[str, Decoder] = {
    **{name: _unpack(code) for name, code in NUMBERS.items()},
    "boolean": lambda data: data != b"\0",
    "date": lambda data: struct.unpack(">I", data)[0] - (1 << 31),
    "decimal": _decimal,
    "duration": _duration,
    "inet": _inet,
    "timeuuid": lambda data: str(UUID(bytes=data)),
    "uuid": lambda data: str(UUID(bytes=data)),
    "varint": lambda data: str(int.from_bytes(data, "big", signed=True)),
}


def split_sequence(data: bytes, offset: int = 0) -> Iterator[bytes | None]:
    """Split parts, each after a 4-byte length; a negative length is null."""
    while offset < len(data):
        length = struct.unpack_from(">i", data, offset)[0]
        offset += 4
        if length < 0:
            yield None
            continue
        if length > len(data) - offset:
            raise BadValue(
                f"a part of {pluralize(length, 'byte')} does not fit into the remaining {len(data) - offset}"
            )
        yield data[offset : offset + length]
        offset += length


def split_fields(data: bytes, cql_type: CqlType, count: int) -> list[bytes | None]:
    """Split the fields of a tuple or user-defined type, which has `count` of them; more are `UnknownFields`.

    A value may end early: it was written before ALTER TYPE added the missing fields, which are null.
    """
    parts = list(split_sequence(data))
    if len(parts) > count:
        raise UnknownFields(
            f"a value has {len(parts)} fields, and {cql_type} has {count}: the type was altered since its schema was "
            "read, so read the schema again"
        )
    return parts


def split_vector(data: bytes, element: CqlType, dimension: int) -> list[bytes]:
    """Split a vector: parts of the element's fixed length, else each after its length as an unsigned vint."""
    if element.fixed_length is not None:
        length = element.fixed_length
        if len(data) != length * dimension:
            raise BadValue(f"a vector of {dimension} x {pluralize(length, 'byte')} has {len(data)}")
        return [data[i : i + length] for i in range(0, len(data), length)]
    parts, p = [], 0
    for _ in range(dimension):
        length, p = read_vint(data, p)
        if length > len(data) - p:
            raise BadValue(f"a vector's element of {pluralize(length, 'byte')} does not fit into {len(data) - p}")
        parts.append(data[p : p + length])
        p += length
    return parts


def _list(element: Decoder) -> Decoder:
    return lambda data: [None if part is None else element(part) for part in split_sequence(data, 4)]


def _map(key_type: CqlType, value_type: CqlType) -> Decoder:
    key, value = decoder(key_type), decoder(value_type)
    as_map = pa.types.is_map(stored_type(Collection("map", (key_type, value_type))))

    def decode(data: bytes) -> list[Any] | None:
        parts = list(split_sequence(data, 4))
        pairs = [
            (None if k is None else key(k), None if v is None else value(v))
            for k, v in zip(parts[::2], parts[1::2], strict=True)
        ]
        # A key may be an empty value, and maps have no null keys (`merge.live`).
        if any(k is None for k, _ in pairs):
            return None
        return pairs if as_map else [{"key": k, "value": v} for k, v in pairs]

    return decode


def _vector(element: CqlType, dimension: int) -> Decoder:
    decode = decoder(element)
    return lambda data: [decode(part) for part in split_vector(data, element, dimension)]


def _struct(cql_type: Tuple | Udt) -> Decoder:
    names = [name for name, _ in cql_type.distinct_fields]
    decoders = [decoder(t) for t in cql_type.parts]

    def decode(data: bytes) -> dict[str, Any]:
        parts = split_fields(data, cql_type, len(names))
        parts += [None] * (len(names) - len(parts))
        return {n: None if part is None else d(part) for n, d, part in zip(names, decoders, parts, strict=True)}

    return decode
