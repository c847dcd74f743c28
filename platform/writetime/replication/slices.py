"""Cuts a range of a partition into slices that CQL can delete.

The bounds of a range are prefixes of clustering values, of any lengths. CQL deletes the rows that have equal values in
some first clustering columns, and meet bounds of the next one. So the range from (1, 2) to (3) is cut into the rows
with 1 and at least 2, and those between 1 and 3. This holds for ascending and descending columns alike.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from writetime.changes.position import AFTER
from writetime.schema.serialise import sequence, struct_of, vint
from writetime.schema.table import Column
from writetime.schema.types import NUMBERS, Collection, CqlType, Native, Vector

_Values = list[bytes | None]

# Those that are no numbers. A timeuuid needs its version.
_OF_NATIVES = dict.fromkeys(("ascii", "blob", "text"), b"") | {
    "boolean": b"\0",
    "date": bytes(4),
    "decimal": bytes(5),
    "inet": bytes(4),
    "timeuuid": bytes(6) + b"\x10" + bytes(9),
    "uuid": bytes(16),
    "varint": b"\0",
}


@dataclass(frozen=True)
class Slice:
    """The rows whose first clustering values are `equal`, and whose next one meets the bounds: an operator of CQL, and
    a value.
    """

    equal: Sequence[bytes | None]
    bounds: Sequence[tuple[str, bytes | None]] = ()


@dataclass(frozen=True)
class _Bound:
    """A place before or after the rows with some first values."""

    values: Sequence[bytes | None]
    is_after: bool


def slices_of(
    start: bytes, end: bytes, clustering: Sequence[Column], decode: Callable[[bytes], _Values]
) -> Iterator[Slice]:
    """Yield the slices of a range of positions. `decode` is `changes.clusterings.clustering_decoder`."""
    first, last = (_Bound(decode(position), position.endswith(AFTER)) for position in (start, end))
    for each in _cut([], first, last, clustering):
        if each.equal or each.bounds:
            yield each
            continue
        # Without a bound, the statement would delete the static row, too.
        middle = _some_value(clustering[0].type)
        yield Slice([], [("<", middle)])
        yield Slice([], [(">=", middle)])


def _cut(equal: _Values, start: _Bound, end: _Bound, clustering: Sequence[Column]) -> Iterator[Slice]:
    """Yield the slices between two bounds of the rows with equal first values; the bounds lack these."""
    if not start.values and not end.values:
        if end.is_after and not start.is_after:
            yield Slice(equal)
        return
    if not (start.values or not start.is_after) or not (end.values or end.is_after):
        # It begins after all of these rows, or ends before them.
        return
    first, last = (bound.values[0] if bound.values else None for bound in (start, end))
    if start.values and end.values and first == last:
        yield from _cut([*equal, first], _inner(start), _inner(end), clustering)
        return
    after, before = ("<", ">") if clustering[len(equal)].reversed else (">", "<")
    bounds: list[tuple[str, bytes | None]] = []
    if start.values:
        is_whole = len(start.values) == 1 and not start.is_after
        bounds.append((after + "=" * is_whole, first))
        if len(start.values) > 1:
            yield from _cut([*equal, first], _inner(start), _Bound([], is_after=True), clustering)
    if end.values:
        is_whole = len(end.values) == 1 and end.is_after
        bounds.append((before + "=" * is_whole, last))
        if len(end.values) > 1:
            yield from _cut([*equal, last], _Bound([], is_after=False), _inner(end), clustering)
    yield Slice(equal, bounds)


def _some_value(cql_type: CqlType) -> bytes:
    """Return a serialised value of a type of a clustering column."""
    match cql_type:
        case Native(name) if name in NUMBERS:
            return bytes(struct.calcsize(">" + NUMBERS[name]))
        case Native(name):
            return _OF_NATIVES[name]
        case Collection():
            return sequence([], 0)
        case Vector(element, dimension):
            part = _some_value(element)
            return (part if element.fixed_length is not None else vint(len(part)) + part) * dimension
    return struct_of([None] * len(cql_type.parts))


def _inner(bound: _Bound) -> _Bound:
    return _Bound(bound.values[1:], bound.is_after)
