"""Serialised values that are different bytes for the database, but may be one value to a reader that decodes them."""

import itertools
import struct
from collections.abc import Sequence
from random import Random
from uuid import UUID

from writetime.schema.serialise import vint
from writetime.schema.types import Collection, CqlType, Native, Tuple, Udt, Vector

_TIME = UUID("5ab0d580-0b5d-11ef-8000-000000000001").bytes
NATIVES: dict[str, list[bytes]] = {
    "ascii": [b"", b"a", b"\0"],
    "bigint": [b"", bytes(8), bytes(7) + b"\1"],
    "blob": [b"", b"\0", b"\0\0"],
    # Each byte but 00 is true.
    "boolean": [b"", b"\0", b"\1", b"\2", b"\xff"],
    "date": [bytes(4), b"\x80\0\0\0", b"\xff\xff\xff\xff"],
    # 1, 1.0, 1.00, 1 with a byte too many, 0 and 0.0.
    "decimal": [b"", b"\0\0\0\0\1", b"\0\0\0\1\x0a", b"\0\0\0\2\x64", b"\0\0\0\0\0\1", bytes(5), b"\0\0\0\1\0"],
    "double": [b"", bytes(8), b"\x80" + bytes(7)]
    + [bytes.fromhex(n) for n in ("7ff8000000000000", "7ff8000000000001", "fff8000000000000", "7ff0000000000001")],
    "duration": [b"\0\0\0", b"\0\2\0", b"\2\0\0", b"\0\0\x80\2"],
    "float": [b"", bytes(4), b"\x80" + bytes(3)]
    + [bytes.fromhex(n) for n in ("7fc00000", "7fc00001", "ffc00000", "7f800001")],
    # An IPv4 address, and the IPv6 address that maps it.
    "inet": [b"", b"\1\2\3\4", bytes(10) + b"\xff\xff\1\2\3\4", bytes(12) + b"\1\2\3\4"],
    "int": [b"", bytes(4), bytes(3) + b"\1"],
    "smallint": [bytes(2), b"\0\1"],
    # One character, composed and not.
    "text": [b"", b"a", "\u00e9".encode(), "e\u0301".encode()],
    "time": [bytes(8), bytes(7) + b"\1"],
    # Some beyond the years that microseconds reach.
    "timestamp": [b"", bytes(8), b"\x7f" + b"\xff" * 7, b"\x7f" + b"\xff" * 6 + b"\xfe", b"\x80" + bytes(7)],
    "timeuuid": [b"", _TIME, _TIME[:8] + b"\0" + _TIME[9:], _TIME[:8] + b"\xff" + _TIME[9:]],
    "tinyint": [b"\0", b"\1"],
    "uuid": [b"", _TIME, bytes(16), bytes(6) + b"\x40" + bytes(9)],
    # Leading bytes that only repeat the sign.
    "varint": [b"", b"\1", b"\0\1", b"\0\0\1", b"\xff", b"\xff\xff", b"\0"],
}


def forms(cql_type: CqlType, r: Random, most: int = 12) -> list[bytes]:
    """Return some serialised values of a type, valid in the database. They differ in null, empty and missing parts, in
    signs, and in bytes that do not count.
    """
    match cql_type:
        case Native(name):
            return NATIVES[name]
        case Collection("map", (key, value)):
            keys, values = (forms(t, r, 4) for t in (key, value))
            pairs = [[(r.choice(keys), r.choice(values)) for _ in range(n)] for n in (0, 1, 1, 1, 2)]
            found = [sequence(list(itertools.chain.from_iterable(entries)), len(entries)) for entries in pairs]
        case Collection(_, (element,)):
            several = forms(element, r, 4)
            found = [sequence([each], 1) for each in several] + [sequence([], 0), sequence(several[:2], 2)]
        case Vector(element, dimension):
            parts = [f for f in forms(element, r, 4) if f or element.fixed_length is None]
            fixed = element.fixed_length is not None
            found = [
                b"".join(p if fixed else vint(len(p)) + p for p in r.choices(parts, k=dimension)) for _ in range(4)
            ]
        case Tuple(types):
            found = _structs(types, r)
        case Udt(_, _, fields):
            found = _structs([t for _, t in fields], r)
        case _:
            raise AssertionError(cql_type)
    found = list(dict.fromkeys(found))
    return found if len(found) <= most else r.sample(found, most)


def sequence(parts: Sequence[bytes | None], count: int) -> bytes:
    """Serialise a list, set or map of some elements or entries."""
    return struct.pack(">i", count) + b"".join(map(_part, parts))


def fields(parts: Sequence[bytes | None]) -> bytes:
    """Serialise a tuple or user-defined type; it may have fewer parts than its type."""
    return b"".join(map(_part, parts))


def _structs(types: Sequence[CqlType], r: Random) -> list[bytes]:
    found = []
    for place, cql_type in enumerate(types):
        others = [r.choice([None, *forms(t, r, 4)]) for t in types]
        for form in (None, *forms(cql_type, r, 4)):
            found.append(fields([*others[:place], form, *others[place + 1 :]]))
        found.append(fields(others[:place]))
    return [*found, fields([None] * len(types))]


def _part(data: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if data is None else struct.pack(">i", len(data)) + data
