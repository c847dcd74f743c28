"""Decodes positions to the clustering values that they were encoded from: the inverse of `changes.position`.

Values that are equal in the database have one position, so decoding gives one of them (for the decimals 1 and 1.0, the
one with the fewest digits). Source: `ByteSourceInverse`.
"""

import struct
from collections.abc import Callable, Sequence

from writetime.changes.model import udt_fields
from writetime.schema.serialise import sequence, struct_of, vint
from writetime.schema.table import Column
from writetime.schema.types import Collection, CqlType, Native, Vector
from writetime.schema.values import BadValue

_NULL, _EMPTY, _VALUE, _EMPTY_REVERSED = 0x3E, 0x3F, 0x40, 0x41
_PART_END = 0x38
_INVERT = bytes(255 - i for i in range(256))

# From the bytes and an offset to a value and the offset after it.
_Decode = Callable[[bytes, int], tuple[bytes, int]]


def clustering_decoder(clustering: Sequence[Column]) -> Callable[[bytes], list[bytes | None]]:
    """Return a function from a position to its serialised clustering values: all of a row, or the first ones of a
    bound. It raises BadValue if the position is not one of these columns.
    """
    decoders = [_decoder(c.type) for c in clustering]
    reverse = [c.reversed for c in clustering]

    def decode(position: bytes) -> list[bytes | None]:
        inverted = position.translate(_INVERT) if any(reverse) else position
        values: list[bytes | None] = []
        p = 0
        try:
            while p < len(position) - 1:
                kind = position[p]
                p += 1
                number = len(values)
                if kind == _VALUE:
                    value, p = decoders[number](inverted if reverse[number] else position, p)
                    values.append(value)
                elif kind in (_NULL, _EMPTY, _EMPTY_REVERSED):
                    values.append(None if kind == _NULL else b"")
                else:
                    raise ValueError(f"byte {kind:#x} at {p - 1}")
        except (IndexError, ValueError, struct.error) as e:
            raise BadValue(f"{position[:64].hex()} is not a position of this table: {e}") from None
        return values

    return decode


def _decoder(cql_type: CqlType) -> _Decode:
    match cql_type:
        case Native("text" | "ascii" | "blob" | "inet" | "duration" | "empty" | "counter"):
            return _escaped
        case Native(name):
            return _NATIVES[name]
        case Collection(_, arguments):
            return _collection([_decoder(t) for t in arguments])
        case Vector(element, dimension):
            return _vector(_decoder(element), dimension, fixed=element.fixed_length is not None)
    return _tuple([_decoder(t) for _, t in udt_fields(cql_type)])


def _escaped(data: bytes, p: int) -> tuple[bytes, int]:
    parts = []
    while True:
        zero = data.index(0, p)
        parts.append(data[p:zero])
        p = zero + 1
        start = p
        while p < len(data) and data[p] == 0xFE:
            p += 1
        zeros = p - start
        if p < len(data) and data[p] == 0xFF:
            parts.append(bytes(zeros + 1))
            p += 1
        else:
            parts.append(bytes(zeros))
            return b"".join(parts), p


def _fixed(size: int, restore: Callable[[bytes], bytes]) -> _Decode:
    def decode(data: bytes, p: int) -> tuple[bytes, int]:
        if p + size > len(data):
            raise IndexError(f"the value at {p} ends early")
        return restore(data[p : p + size]), p + size

    return decode


def _signed(data: bytes) -> bytes:
    return bytes([data[0] ^ 0x80]) + data[1:]


def _float(data: bytes) -> bytes:
    return _signed(data) if data[0] & 0x80 else data.translate(_INVERT)


def _bigint(data: bytes, p: int) -> tuple[bytes, int]:
    value, p = _variable_length(data, p)
    return struct.pack(">q", value), p


def _variable_length(data: bytes, p: int) -> tuple[int, int]:
    is_negative = data[p] < 0x80
    if is_negative:
        data = _inverted(data, p)
    first = data[p]
    size = 8 - (255 - first).bit_length()
    if size == 8 and data[p + 1] & 0x80:
        magnitude = int.from_bytes(data[p + 1 : p + 9], "big") & (1 << 63) - 1
        size = 9
    else:
        magnitude = int.from_bytes(data[p : p + size], "big") & (1 << 7 * size) - 1
    return (~magnitude if is_negative else magnitude), p + size


def _inverted(data: bytes, p: int) -> bytes:
    return data[:p] + data[p:].translate(_INVERT)


def _varint(data: bytes, p: int) -> tuple[bytes, int]:
    sign = data[p]
    if sign not in (0, 0xFF):
        value, p = _variable_length(data, p)
        return value.to_bytes((value if value >= 0 else ~value).bit_length() // 8 + 1, "big", signed=True), p
    lengths = data if sign else _inverted(data, p)
    p += 1
    extra = 8 - (255 - lengths[p]).bit_length()
    size = int.from_bytes(lengths[p : p + extra + 1], "big") & (1 << 7 * (extra + 1)) - 1
    p += extra + 1
    size += 7
    magnitude = data[p : p + size]
    # The first byte must have the sign, which the encoding has left out where it only repeated it.
    if (magnitude[0] < 0x80) != (sign == 0xFF):
        magnitude = (b"\0" if sign else b"\xff") + magnitude
    return magnitude, p + size


def _decimal(data: bytes, p: int) -> tuple[bytes, int]:
    header = data[p]
    p += 1
    if header == 0x80:
        return struct.pack(">i", 0) + b"\0", p
    is_negative = header < 0x80
    size = header - (0x40 if is_negative else 0xC0)
    modulated = int.from_bytes(data[p : p + abs(size)], "big") - ((1 << 8 * -size) if size < 0 else 0)
    p += abs(size)
    exponent = -modulated if is_negative else modulated
    end = data.index(0, p)
    unscaled = 0
    for byte in data[p:end]:
        unscaled = unscaled * 100 + byte - 0x80
    if not unscaled:
        raise ValueError(f"the decimal at {p} has no digits")
    # The value is 0.ddd... x 100^exponent.
    scale = 2 * (end - p - exponent)
    while unscaled % 10 == 0:
        unscaled, scale = unscaled // 10, scale - 1
    magnitude = unscaled if unscaled >= 0 else ~unscaled
    return struct.pack(">i", scale) + unscaled.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True), end + 1


def _msb_of_time_order(ordered: int) -> int:
    return ordered << 32 & 0xFFFFFFFF00000000 | ordered >> 16 & 0xFFFF0000 | ordered >> 48


def _timeuuid(data: bytes) -> bytes:
    ordered, lsb = struct.unpack(">QQ", data)
    return struct.pack(">QQ", _msb_of_time_order(ordered), lsb ^ 0x8080808080808080)


def _uuid(data: bytes) -> bytes:
    ordered, lsb = struct.unpack(">QQ", data)
    version = ordered >> 60
    if version == 1:
        return struct.pack(">QQ", _msb_of_time_order(ordered), lsb)
    msb = ordered << 4 & 0xFFFFFFFFFFFF0000 | version << 12 | ordered & 0xFFF
    return struct.pack(">QQ", msb, lsb)


def _same(data: bytes) -> bytes:
    return data


_NATIVES: dict[str, _Decode] = {
    "bigint": _bigint,
    "boolean": _fixed(1, _same),
    "date": _fixed(4, _same),
    "decimal": _decimal,
    "double": _fixed(8, _float),
    "float": _fixed(4, _float),
    "int": _fixed(4, _signed),
    "smallint": _fixed(2, _signed),
    "time": _fixed(8, _same),
    "timestamp": _fixed(8, _signed),
    "timeuuid": _fixed(16, _timeuuid),
    "tinyint": _fixed(1, _signed),
    "uuid": _fixed(16, _uuid),
    "varint": _varint,
}


def _part(decode: _Decode, data: bytes, p: int) -> tuple[bytes | None, int]:
    kind = data[p]
    if kind == _VALUE:
        return decode(data, p + 1)
    if kind not in (_NULL, _EMPTY):
        raise ValueError(f"byte {kind:#x} at {p}")
    return (None if kind == _NULL else b""), p + 1


def _parts(decoders: Sequence[_Decode], data: bytes, p: int) -> tuple[list[bytes | None], int]:
    """Decode parts up to their end, by the decoders in turn."""
    found: list[bytes | None] = []
    while data[p] != _PART_END:
        part, p = _part(decoders[len(found) % len(decoders)], data, p)
        found.append(part)
    return found, p + 1


def _collection(decoders: Sequence[_Decode]) -> _Decode:
    def decode(data: bytes, p: int) -> tuple[bytes, int]:
        found, p = _parts(decoders, data, p)
        return sequence(found, len(found) // len(decoders)), p

    return decode


def _tuple(decoders: Sequence[_Decode]) -> _Decode:
    def decode(data: bytes, p: int) -> tuple[bytes, int]:
        found, p = _parts(decoders, data, p)
        # A position lacks the nulls at the end.
        return struct_of(found + [None] * (len(decoders) - len(found))), p

    return decode


def _vector(decode_element: _Decode, dimension: int, *, fixed: bool) -> _Decode:
    def decode(data: bytes, p: int) -> tuple[bytes, int]:
        found, p = _parts([decode_element], data, p)
        if len(found) != dimension:
            raise ValueError(f"{len(found)} elements of a vector at {p}")
        parts = [part or b"" for part in found]
        return b"".join(parts if fixed else (vint(len(part)) + part for part in parts)), p

    return decode
