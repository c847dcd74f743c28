"""Avro: encodes Arrow columns as records, column by column.

Each value becomes the bytes of Avro's binary encoding; the bytes of a record are those of its fields, joined row by row
by Arrow, so no row is handled in Python. Libraries for Avro encode one record at a time, from Python objects: too slow
for a node's changes. Reference: Apache Avro 1.12 Specification, "Binary encoding".
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as _compute

from writetime.core.compiled import njit
from writetime.schema.types import Collection, CqlType, Native, Tuple, Udt, Vector

# pyarrow creates these functions when it is loaded, so a type checker does not know them.
pc: Any = _compute

_BINARY = pa.large_binary()
_NULL, _VALUE = b"\x00", b"\x02"


@functools.cache
def _scalar(value: bytes) -> pa.Scalar:
    """Return bytes as Arrow has them. The first scalar imports pandas, which not every command needs."""
    return pa.scalar(value, _BINARY)


def encode(values: pa.Array, cql_type: CqlType) -> pa.Array:
    """Return the bytes of each value as `mapping.avro_type` defines it; null where the value is null."""
    match cql_type:
        case Native("duration"):
            return joined([encode_long(part) for part in values.flatten()])
        case Native("boolean"):
            return _fixed(values.cast(pa.uint8()))
        case Native("float" | "double"):
            return _fixed(values)
        case Native():
            return encode_bytes(values) if _is_bytes(values.type) else encode_long(values)
        case Collection("map", (key, value)):
            entries = values.cast(pa.list_(_entry(values.type))) if pa.types.is_map(values.type) else values
            flat = entries.flatten()
            pairs = zip(flat.flatten(), (key, value), strict=True)
            return array_of(entries, joined([nullable(encode(part, t)) for part, t in pairs]))
        case Collection(_, (element,)) | Vector(element, _):
            return array_of(values, nullable(encode(values.flatten(), element)))
        case Tuple(arguments):
            return _record(values, arguments)
        case Udt(_, _, fields):
            return _record(values, [t for _, t in fields])
    raise AssertionError(cql_type)


def nullable(encoded: pa.Array) -> pa.Array:
    """Return a value of a union of null and a type, from the bytes of that type."""
    return pc.if_else(encoded.is_valid(), joined([_scalar(_VALUE), encoded.fill_null(_scalar(b""))]), _scalar(_NULL))


def joined(parts: Sequence[pa.Array | pa.Scalar]) -> pa.Array:
    """Return the bytes of records, from those of their fields; null where a field is null."""
    return pc.binary_join_element_wise(*parts, _scalar(b""))


def encode_long(values: pa.Array) -> pa.Array:
    """Return integers, dates or timestamps as Avro's int or long."""
    if not pa.types.is_integer(values.type):
        values = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
    numbers = values.cast(pa.int64()).fill_null(0).to_numpy()
    offsets, data = _varints(numbers)
    return _where(values, _binary(offsets, data))


def encode_bytes(values: pa.Array) -> pa.Array:
    """Return text or bytes as Avro's string or bytes."""
    content = values.cast(pa.large_binary() if pa.types.is_binary(values.type) else pa.large_string()).cast(_BINARY)
    return joined([encode_long(pc.binary_length(content)), content])


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


def _record(values: pa.Array, types: Sequence[CqlType]) -> pa.Array:
    parts = [nullable(encode(part, t)) for part, t in zip(values.flatten(), types, strict=True)]
    return _where(values, joined(parts))


def _fixed(values: pa.Array) -> pa.Array:
    data = values.fill_null(0).to_numpy()
    return _where(values, _binary(np.arange(len(values) + 1) * data.itemsize, np.ascontiguousarray(data)))


def _binary(offsets: np.ndarray, data: np.ndarray) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets.astype(np.int64, copy=False)), pa.py_buffer(data)]
    return pa.Array.from_buffers(_BINARY, len(offsets) - 1, buffers)


def array_of(lists: pa.Array, elements: pa.Array) -> pa.Array:
    """Return the bytes of arrays, from those of their elements in order; null where a list is null."""
    # The number of elements, their bytes, and 0; an empty one is only the 0.
    lengths = pc.list_value_length(lists).fill_null(0)
    counts = lengths.to_numpy()
    _, offsets, data = elements.buffers()
    starts = np.frombuffer(offsets, np.int64)[elements.offset : elements.offset + len(elements) + 1]
    bounds = starts[np.concatenate([[0], np.cumsum(counts)])]
    content = pa.Array.from_buffers(_BINARY, len(lists), [None, pa.py_buffer(bounds), data])
    blocks = joined([encode_long(lengths), content, _scalar(_NULL)])
    return _where(lists, pc.if_else(pc.equal(lengths, 0), _scalar(_NULL), blocks))


def _where(values: pa.Array, encoded: pa.Array) -> pa.Array:
    return pc.if_else(values.is_valid(), encoded, pa.scalar(None, _BINARY)) if values.null_count else encoded


def _is_bytes(arrow: pa.DataType) -> bool:
    return pa.types.is_string(arrow) or pa.types.is_binary(arrow)


def _entry(arrow: pa.DataType) -> pa.StructType:
    return pa.struct([("key", arrow.key_type), ("value", arrow.item_type)])
