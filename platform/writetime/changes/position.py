"""Encodes the order of rows within a partition as bytes.

Positions, compared as unsigned bytes, order all elements of a partition:

| element | position |
| --- | --- |
| partition tombstone | empty |
| static row | 0x18 |
| row, or bound of a range | its encoded clustering |

A range tombstone covers the rows with `position <= row.position < end`.

The encoding is Cassandra's own byte-comparable one, version OSS50 (`ByteComparable.md`,
`ClusteringComparator.asByteComparable`), but for empty parts of values (see the table). Each component has a byte
before it, and the bytes of a descending component are inverted. A terminator ends the position.

| byte | meaning |
| --- | --- |
| 0x40 | a component follows |
| 0x3E | the component is null |
| 0x3F, 0x41 | the component is empty, but its type has no empty values: ascending, descending |
| 0x3E, 0x3F, 0x40 | within a value: the part is null; it is empty, but its type has no empty values; it follows |
| 0x38 | end of a row |
| 0x20 | end of a bound before its clustering |
| 0x60 | end of a bound after its clustering |
"""

import math
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle

from writetime.schema.serialise import vint
from writetime.schema.table import Column
from writetime.schema.types import Collection, CqlType, Native, Vector
from writetime.schema.values import checked, split_fields, split_sequence, split_vector

_NEXT, _NEXT_NULL, _NEXT_EMPTY, _NEXT_EMPTY_REVERSED = b"\x40", b"\x3e", b"\x3f", b"\x41"
_TERMINATOR = b"\x38"
BEFORE, AT, AFTER = b"\x20", _TERMINATOR, b"\x60"
STATIC_POSITION, PARTITION_POSITION = b"\x18", b""
_INVERT = bytes(255 - i for i in range(256))

Encoder = Callable[[bytes], bytes | None]


def position_encoder(clustering: Sequence[Column]) -> Callable[[Sequence[bytes | None], bytes], bytes]:
    """Return a function that encodes a position. Its arguments are serialised clustering values (a prefix of them, with
    None for null), and `BEFORE`, `AT` or `AFTER`.
    """
    encoders = [_encoder(c.type) for c in clustering]
    reverse = [c.reversed for c in clustering]

    def encode(values: Sequence[bytes | None], end: bytes) -> bytes:
        parts = []
        for value, encoder, reversed_ in zip(values, encoders, reverse, strict=False):
            if value is None:
                parts.append(_NEXT_NULL)
            elif (data := encoder(value)) is None:
                parts.append(_NEXT_EMPTY_REVERSED if reversed_ else _NEXT_EMPTY)
            else:
                parts += [_NEXT, data.translate(_INVERT) if reversed_ else data]
        parts.append(end)
        return b"".join(parts)

    return encode


def _encoder(cql_type: CqlType) -> Encoder:
    """Return the byte-comparable encoding of a type's values; the function returns None for an empty value."""
    match cql_type:
        case Native("text" | "ascii" | "blob" | "inet" | "duration" | "empty" | "counter"):
            return _escaped
        case Native(name):
            return checked(_NATIVES[name], cql_type)
    encoders = [_encoder(t) for t in cql_type.parts]

    def encode(data: bytes) -> bytes:
        match cql_type:
            case Collection():
                parts: Iterable[bytes | None] = split_sequence(data, 4)
            case Vector(element, dimension):
                parts = split_vector(data, element, dimension)
            case _:
                parts = split_fields(data, cql_type, len(encoders))
                while parts and parts[-1] is None:
                    parts.pop()
        return b"".join(map(_part, cycle(encoders), parts)) + _TERMINATOR

    return checked(encode, cql_type)


_ZEROS = re.compile(rb"\0+")


def _escaped(data: bytes) -> bytes:
    def run(match: re.Match[bytes]) -> bytes:
        return b"\0" + b"\xfe" * (len(match[0]) - 1) + (b"\xfe" if match.end() == len(data) else b"\xff")

    return _ZEROS.sub(run, data) + (b"" if data.endswith(b"\0") else b"\0")


def _signed(data: bytes) -> bytes:
    return bytes([data[0] ^ 0x80]) + data[1:]


# All forms of not-a-number are equal in the database, and greater than any number.
_NOT_A_NUMBER = {4: b"\x7f\xc0\0\0", 8: b"\x7f\xf8\0\0\0\0\0\0"}


def _float(data: bytes) -> bytes:
    value = struct.unpack(">f" if len(data) == 4 else ">d", data)[0]
    if math.isnan(value):
        data = _NOT_A_NUMBER[len(data)]
    return data.translate(_INVERT) if data[0] & 0x80 else _signed(data)


def _variable_length(value: int) -> bytes:
    """Encode a signed 64-bit integer in 1 to 9 bytes (`ByteSource.VariableLengthInteger`)."""
    magnitude = value ^ (value >> 63)
    size = magnitude.bit_length() // 7 + 1 if magnitude else 1
    if size >= 9:
        encoded = b"\xff" + (magnitude | 1 << 63).to_bytes(8, "big")
    else:
        mask = (-0x100 >> size) & 0xFF
        encoded = (magnitude | mask << (8 * size - 8)).to_bytes(size, "big")
    return encoded.translate(_INVERT) if value < 0 else encoded


def _varint(data: bytes) -> bytes:
    value = int.from_bytes(data, "big", signed=True)
    # Leading bytes that only repeat the sign do not count, not even the one that two's complement needs.
    p = 0
    if data[0] in (0, 255):
        while p + 1 < len(data):
            p += 1
            if data[p] != data[0]:
                break
    size = len(data) - p
    if size < 7:
        return _variable_length(value)
    sign = 0xFF if value < 0 else 0
    length = vint(size - 7)
    return bytes([sign ^ 0xFF]) + (length.translate(_INVERT) if sign else length) + data[p:]


def _decimal(data: bytes) -> bytes:
    scale = struct.unpack_from(">i", data)[0]
    unscaled = int.from_bytes(data[4:], "big", signed=True)
    if unscaled == 0:
        return b"\x80"
    negative = unscaled < 0
    digits = str(abs(unscaled))
    # The value is 0.ddd... x 100^exponent: pairs of digits. The first pair may have a leading zero.
    shifted = (scale - len(digits)) & ~1
    exponent = -shifted >> 1
    places = scale - shifted
    digits = digits.rjust(places, "0")
    digits = (digits + "0" * (len(digits) % 2)).rstrip("0")
    digits += "0" * (len(digits) % 2)
    pairs = [int(digits[i : i + 2]) for i in range(0, len(digits), 2)]
    modulated = -exponent if negative else exponent
    size = (abs(modulated).bit_length() + 7) // 8
    header = 0x40 + (-size if modulated < 0 else size) + (0 if negative else 0x80)
    if negative:
        # -(0.d1 d2 ... dn) rounded down pair by pair: the first floor is negative, the rest is positive.
        complement = 100 ** len(pairs) - int(digits)
        rest = f"{complement:0{2 * len(pairs)}d}"
        pairs = [int(rest[i : i + 2]) for i in range(0, len(rest), 2)]
        pairs[0] -= 100
        while pairs[-1] == 0:
            pairs.pop()
    body = bytes(0x80 + pair for pair in pairs)
    return bytes([header]) + (modulated & ((1 << 8 * size) - 1)).to_bytes(size, "big") + body + b"\0"


def _time_order(msb: int) -> int:
    """Put a version 1 UUID's time first (`TimeUUIDType.reorderTimestampBytes`)."""
    return (msb << 48 & (1 << 64) - 1) | (msb << 16 & 0xFFFF00000000) | msb >> 32


def _timeuuid(data: bytes) -> bytes:
    msb, lsb = struct.unpack(">QQ", data)
    return struct.pack(">QQ", _time_order(msb), lsb ^ 0x8080808080808080)


def _uuid(data: bytes) -> bytes:
    msb, lsb = struct.unpack(">QQ", data)
    version = msb >> 12 & 0xF
    ordered = _time_order(msb) if version == 1 else version << 60 | (msb >> 4 & 0x0FFFFFFFFFFFF000) | msb & 0xFFF
    return struct.pack(">QQ", ordered, lsb)


_NATIVES: dict[str, Callable[[bytes], bytes]] = {
    "bigint": lambda data: _variable_length(struct.unpack(">q", data)[0]),
    "boolean": lambda data: b"\x01" if data != b"\0" else b"\0",
    "date": lambda data: data,
    "decimal": _decimal,
    "double": _float,
    "float": _float,
    "int": _signed,
    "smallint": _signed,
    "time": lambda data: data,
    "timestamp": _signed,
    "timeuuid": _timeuuid,
    "tinyint": _signed,
    "uuid": _uuid,
    "varint": _varint,
}


def _part(encoder: Encoder, part: bytes | None) -> bytes:
    """Encode a part of a value, with the byte before it. The database's encoding has one byte for null and empty parts,
    although its comparator distinguishes them.
    """
    if part is None:
        return _NEXT_NULL
    data = encoder(part)
    return _NEXT_EMPTY if data is None else _NEXT + data
