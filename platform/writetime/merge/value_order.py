"""Converts Arrow values to bytes that compare like values in the database, by serialised bytes or by their type.

The database resolves ties by the serialised bytes of values, for all types. These compare as unsigned bytes, so -1 is
greater than 1. The elements of a collection have the order of their type.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from writetime.changes.position import AT, position_encoder
from writetime.core.arrow import pc
from writetime.schema.serialise import serialised_values, serialiser
from writetime.schema.serialise_arrays import plain, uuid_rows
from writetime.schema.table import Column
from writetime.schema.text import bytes_of_texts
from writetime.schema.types import NUMBERS, CqlType, Native, with_parts

_BYTES, _TEXTS = ("blob", "empty"), ("ascii", "text")
# Big-endian numbers of the same size as the serialised value: Arrow's, plus the offset that makes them unsigned.
_NUMBERS = NUMBERS | {"date": "i"}
_SIGNED = ("bigint", "int", "smallint", "timestamp", "tinyint")


def serialised(array: pa.Array, cql_type: CqlType, others: pa.Array | None = None) -> pa.Array:
    """Return bytes or text that compare as the serialised values do; null where a value is empty. `others` are the
    values' bytes where decoding lost some (`schema.serialise.loses_parts`).
    """
    if others is not None and others.null_count < len(others):
        return pc.coalesce(others, serialised(array, cql_type))
    if isinstance(cql_type, Native):
        # 36 hexadecimal characters sort as the 16 bytes do.
        if cql_type.name in (*_BYTES, "uuid", "timeuuid"):
            return array
        if cql_type.name in _TEXTS:
            return bytes_of_texts(array)
        if cql_type.name in _NUMBERS:
            return _numbers(array, cql_type.name, flip=cql_type.name == "date")
    inner = serialiser(cql_type)
    return pa.array([None if v is None else inner(v) for v in plain(array).to_pylist()], pa.binary())


def comparable(array: pa.Array, cql_type: CqlType, others: pa.Array | None = None) -> pa.Array:
    """Return bytes or text that compare as values of the type do in the database; null where a value is empty. `others`
    are as for `serialised`.
    """
    if isinstance(cql_type, Native):
        if cql_type.name in _BYTES:
            return array
        if cql_type.name in _TEXTS:
            return bytes_of_texts(array)
        if cql_type.name in (*_SIGNED, "date", "time"):
            return _numbers(array, cql_type.name, flip=cql_type.name in (*_SIGNED, "date"))
        if cql_type.name == "timeuuid":
            return _time_order(array)
    encode = position_encoder([Column("value", cql_type)])
    return pa.array([encode([d], AT) if d else None for d in _exact_bytes(array, cql_type, others)], pa.binary())


def serialised_row(
    arrays: Sequence[pa.Array], types: Sequence[CqlType], others: Sequence[pa.Array | None] | None = None
) -> pa.Array:
    """Return bytes that compare as the serialised values of several arrays do, one after the other. `others` are for
    each array as for `serialised`.
    """
    blobs = position_encoder([Column("value", Native("blob"))] * len(types))
    columns = map(_exact_bytes, arrays, types, others or [None] * len(types))
    return pa.array([blobs(row, AT) for row in zip(*columns, strict=True)], pa.binary())


def _exact_bytes(array: pa.Array, cql_type: CqlType, others: pa.Array | None) -> list[bytes]:
    exact = [None] * len(array) if others is None else others.to_pylist()
    return serialised_values(plain(array).to_pylist(), exact, cql_type)


def has_forms(cql_type: CqlType) -> bool:
    """Return whether values of a type may differ but be equal in the database, like the decimals 1.0 and 1, or the
    many forms of not-a-number.

    Equal values are one clustering key, or one element of a set.
    """
    return any(t in (Native("decimal"), Native("double"), Native("float")) for t in with_parts(cql_type))


def _numbers(array: pa.Array, name: str, *, flip: bool) -> pa.Array:
    values = plain(array).fill_null(0).to_numpy()
    code = np.dtype(">" + _NUMBERS[name])
    data = values.astype(code).view(np.uint8).reshape(-1, code.itemsize)
    if flip:
        data = data ^ np.array([0x80] + [0] * (data.shape[1] - 1), np.uint8)
    return _fixed(data, array)


def _time_order(array: pa.Array) -> pa.Array:
    """Put the time of version 1 UUIDs first, and invert the sign of the other bytes (`TimeUUIDType`)."""
    data = uuid_rows(array)
    ordered = data[:, [6, 7, 4, 5, 0, 1, 2, 3, *range(8, 16)]]
    ordered[:, 8:] ^= 0x80
    return _fixed(ordered, array)


def _fixed(data: np.ndarray, array: pa.Array) -> pa.Array:
    """Return rows of bytes as an array with the nulls of another array."""
    width = data.shape[1]
    offsets = np.arange(0, (len(data) + 1) * width, width, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    values = pa.Array.from_buffers(pa.binary(), len(data), buffers)
    if not array.null_count:
        return values
    return pc.if_else(array.is_valid(), values, pa.scalar(None, pa.binary()))
