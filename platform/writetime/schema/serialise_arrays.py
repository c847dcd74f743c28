"""Serialises Arrow arrays of values (`schema.serialise` does so for single values)."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from writetime.core.arrow import bytes_of, pc
from writetime.schema.serialise import serialised_values
from writetime.schema.text import bytes_of_texts
from writetime.schema.types import NUMBERS, CqlType, Native

_NO_UUID = "00000000-0000-1000-8000-000000000000"
_EMPTY, _END = (pa.scalar(value, pa.binary()) for value in (b"", b"\0"))


def serialised_array(array: pa.Array, cql_type: CqlType, others: pa.Array | None = None) -> pa.Array:
    """Return the bytes of values in their stored form (`schema.mapping.stored_type`), empty where a value is null.
    `others` are the values' bytes where decoding lost some (`schema.serialise.loses_parts`).
    """
    if isinstance(cql_type, Native):
        name = cql_type.name
        if name in ("blob", "empty"):
            return array.fill_null(b"")
        if name in ("ascii", "text"):
            return bytes_of_texts(array).fill_null(b"")
        if name == "boolean":
            return _rows(array.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint8), array)
        if name in NUMBERS:
            return _rows(array.fill_null(0).to_numpy().astype(">" + NUMBERS[name]), array)
        if name == "date":
            days = array.cast(pa.int32()).fill_null(0).to_numpy().astype(np.int64) + (1 << 31)
            return _rows(days.astype(">u4"), array)
        if name in ("uuid", "timeuuid"):
            return _rows(uuid_rows(array), array)
    values = plain(array).to_pylist()
    bytes_ = [None] * len(array) if others is None else others.to_pylist()
    return pa.array(serialised_values(values, bytes_, cql_type), pa.binary())


def partition_keys(parts: Sequence[pa.Array]) -> pa.Array:
    """Return the serialised partition keys of the serialised values of their columns, of which none is null
    (`CompositeType` if there are several).
    """
    if len(parts) == 1:
        return parts[0]
    pieces: list[pa.Array | pa.Scalar] = []
    for part in parts:
        lengths = pa.py_buffer(pc.binary_length(part).to_numpy().astype(">u2"))
        pieces += [pa.Array.from_buffers(pa.binary(2), len(part), [None, lengths]).cast(pa.binary()), part, _END]
    return pc.binary_join_element_wise(*pieces, _EMPTY)


def uuid_rows(array: pa.Array) -> np.ndarray:
    """Return the 16 bytes of each UUID as a row. A null is a version 1 UUID with zeros."""
    bounds, text = bytes_of(array.fill_null(_NO_UUID))
    # A slice may have nulls before it, which have no bytes.
    characters = text[bounds[0] : bounds[-1]].reshape(-1, 36)
    digits = np.delete(characters, (8, 13, 18, 23), axis=1)
    digits = np.where(digits >= ord("a"), digits - (ord("a") - 10), digits - ord("0")).astype(np.uint8)
    return digits[:, ::2] << 4 | digits[:, 1::2]


def _rows(numbers: np.ndarray, array: pa.Array) -> pa.Array:
    """Return the bytes of each number (or row of bytes), none where another array is null."""
    count = len(array)
    data = np.ascontiguousarray(numbers).view(np.uint8).reshape(count, -1) if count else np.empty((0, 1), np.uint8)
    width = data.shape[1]
    if array.null_count:
        present = array.is_valid().to_numpy(zero_copy_only=False)
        data = data[present]
        offsets = np.concatenate([[0], np.cumsum(present * width)]).astype(np.int32)
    else:
        offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def plain(array: pa.Array) -> pa.Array:
    """Convert dates to numbers, at any depth: Python's own have a smaller range."""
    return array.cast(_plain_type(array.type))


def _plain_type(arrow: pa.DataType) -> pa.DataType:
    if pa.types.is_date32(arrow):
        return pa.int32()
    if pa.types.is_struct(arrow):
        return pa.struct([(field.name, _plain_type(field.type)) for field in arrow])
    if pa.types.is_map(arrow):
        return pa.map_(_plain_type(arrow.key_type), _plain_type(arrow.item_type))
    if pa.types.is_list(arrow):
        return pa.list_(pa.field(arrow.value_field.name, _plain_type(arrow.value_type)))
    return arrow
