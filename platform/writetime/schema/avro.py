"""Avro: encodes Arrow columns by an Avro schema, column by column.

Each value becomes the bytes of Avro's binary encoding; the bytes of a record are those of its fields, joined row by row
by Arrow, so no row is handled in Python. Libraries for Avro encode one record at a time, from Python objects: too slow
for a node's changes. Reference: Apache Avro 1.12 Specification, "Binary encoding".
"""

import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as _compute

from writetime.core.compiled import njit
from writetime.core.errors import WritetimeError

# pyarrow creates these functions when it is loaded, so a type checker does not know them.
pc: Any = _compute

_BINARY = pa.large_binary()
# The branches of a union. Also false, and the end of an array.
_ZERO, _VALUE = b"\x00", b"\x02"

# A part of each value: its bytes, null where the value is null; or the same bytes for all.
_Part: TypeAlias = pa.Array | pa.Scalar


@functools.cache
def _scalar(value: bytes | None) -> pa.Scalar:
    """Return bytes as Arrow has them. The first scalar imports pandas, which not every command needs."""
    return pa.scalar(value, _BINARY)


def encode(values: pa.Array, avro: Any, header: bytes = b"") -> pa.Array:
    """Return a header and the bytes of each value; null where the value is null and its schema has no null.

    The fields of a struct are those of the schema's record, in the same order. The schema refers to no type by name.

    Raises:
        WritetimeError: a record lacks a field that is not a union with null.
    """
    parts = [_scalar(header), *_parts(values, avro)] if header else _parts(values, avro)
    encoded = joined(parts) if len(parts) > 1 else parts[0]
    if isinstance(encoded, pa.Scalar):
        return pa.repeat(encoded, len(values))
    if encoded.null_count > values.null_count:
        name = avro["name"].rpartition(".")[2] if isinstance(avro, dict) and "name" in avro else "value"
        raise WritetimeError(f"a {name} lacks a field that every {name} has")
    return encoded


def joined(parts: Sequence[pa.Array | pa.Scalar]) -> Any:
    """Return the bytes of each row's parts together; null where a part is null. Only scalars give a scalar."""
    return pc.binary_join_element_wise(*parts, _scalar(b""))


def _parts(values: pa.Array, avro: Any) -> list[_Part]:
    match avro:
        case ["null", _] if values.null_count == len(values):
            return [_scalar(_ZERO)]
        case ["null", some] if not values.null_count:
            return [_scalar(_VALUE), *_parts(values, some)]
        case ["null", some]:
            encoded = encode(values, some)
            filled = joined([_scalar(_VALUE), encoded.fill_null(_scalar(b""))])
            return [pc.if_else(encoded.is_valid(), filled, _scalar(_ZERO))]
        case {"type": "record", "fields": fields}:
            pairs = zip(values.flatten(), fields, strict=True)
            parts = [part for field, of in pairs for part in _parts(field, of["type"])]
            if values.null_count and all(isinstance(of["type"], list) for of in fields):
                # No bytes, but null where the record is: its fields do not show that.
                parts.append(_where(values, _scalar(b"")))
            return parts
        case {"type": "array", "items": items}:
            return [_array(values, items)]
        case {"type": "enum", "symbols": symbols}:
            return [_long(pc.index_in(values, pa.array(symbols)))]
        case {"type": simple} | simple:
            return [_simple(values, simple)]


def _simple(values: pa.Array, avro: str) -> _Part:
    match avro:
        case "string" | "bytes":
            return _bytes(values.slice(0, 1))[0] if _is_constant(values) else _bytes(values)
        case "int" | "long":
            return _long(values)
        case "boolean" if not values.null_count and not pc.any(values).as_py():
            return _scalar(_ZERO)
        case "boolean":
            return _fixed(values.cast(pa.uint8()))
        case "float" | "double":
            return _fixed(values)
    raise AssertionError(avro)


def _is_constant(values: pa.Array) -> bool:
    """Return whether all texts or bytes are the same, such as the name of the file that changes come from."""
    if not len(values) or values.null_count or values[0] != values[-1]:
        return False
    return pc.all(pc.equal(values, values[0])).as_py()


def _long(values: pa.Array) -> pa.Array:
    """Return integers, dates or timestamps as Avro's int or long."""
    if not pa.types.is_integer(values.type):
        values = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
    numbers = values.cast(pa.int64()).fill_null(0).to_numpy()
    offsets, data = _varints(numbers)
    return _where(values, _binary(offsets, data))


def _bytes(values: pa.Array) -> pa.Array:
    """Return text or bytes as Avro's string or bytes."""
    content = values.cast(pa.large_binary() if pa.types.is_binary(values.type) else pa.large_string()).cast(_BINARY)
    return joined([_long(pc.binary_length(content)), content])


@njit
def _varints(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Write zig-zag numbers in 7-bit groups, the lowest first."""
    offsets = np.zeros(len(values) + 1, np.int64)
    data = np.empty(10 * len(values), np.uint8)
    end = 0
    for i in range(len(values)):
        rest = np.uint64(values[i] << 1) ^ np.uint64(values[i] >> 63)
        while rest > 0x7F:
            data[end] = rest & 0x7F | 0x80
            rest >>= np.uint64(7)
            end += 1
        data[end] = rest
        end += 1
        offsets[i + 1] = end
    return offsets, data[:end]


def _fixed(values: pa.Array) -> pa.Array:
    data = values.fill_null(0).to_numpy()
    return _where(values, _binary(np.arange(len(values) + 1) * data.itemsize, np.ascontiguousarray(data)))


def _binary(offsets: np.ndarray, data: np.ndarray) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets.astype(np.int64, copy=False)), pa.py_buffer(data)]
    return pa.Array.from_buffers(_BINARY, len(offsets) - 1, buffers)


def _array(lists: pa.Array, items: Any) -> pa.Array:
    if pa.types.is_map(lists.type):
        lists = lists.cast(pa.list_(pa.struct([("key", lists.type.key_type), ("value", lists.type.item_type)])))
    elements = lists.flatten()
    if not len(elements):
        return _where(lists, pa.repeat(_scalar(_ZERO), len(lists)))
    # The number of elements, their bytes, and 0; an empty one is only the 0.
    lengths = pc.list_value_length(lists).fill_null(0)
    encoded = encode(elements, items)
    _, offsets, data = encoded.buffers()
    starts = np.frombuffer(offsets, np.int64)[encoded.offset : encoded.offset + len(encoded) + 1]
    bounds = starts[np.concatenate([[0], np.cumsum(lengths.to_numpy())])]
    content = pa.Array.from_buffers(_BINARY, len(lists), [None, pa.py_buffer(bounds), data])
    blocks = joined([_long(lengths), content, _scalar(_ZERO)])
    return _where(lists, pc.if_else(pc.equal(lengths, 0), _scalar(_ZERO), blocks))


def _where(values: pa.Array, encoded: _Part) -> pa.Array:
    return pc.if_else(values.is_valid(), encoded, _scalar(None)) if values.null_count else encoded
