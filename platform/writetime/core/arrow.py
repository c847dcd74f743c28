"""Conversions between Arrow and numpy: numbers, bytes and masks of arrays, and taking entries by index."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

# pyarrow creates the functions of this module when it is imported, where type checkers do not see them.
pc: Any = pyarrow.compute

Bytes = tuple[np.ndarray, np.ndarray]
"""Offsets, and the data that they divide."""


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, without a copy if it already is one."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def decoded(array: pa.Array) -> pa.Array:
    """Return an array without a dictionary."""
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def numbers(array: pa.Array) -> np.ndarray:
    """Return the numbers of an integer array, 0 where it is null."""
    if array.null_count == len(array):
        return np.zeros(len(array), array.type.to_pandas_dtype())
    return (array.fill_null(0) if array.null_count else array).to_numpy()


def bytes_of(array: pa.Array) -> Bytes:
    """Return offsets and data of an array of bytes or text; null is empty."""
    if array.null_count:
        array = array.fill_null(b"" if pa.types.is_binary(array.type) else "")
    if not len(array):
        return np.zeros(1, np.int32), np.empty(0, np.uint8)
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    return bounds, np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8)


def numbers_present(array: pa.Array) -> np.ndarray:
    """Return the numbers of an integer array, any number where it is null."""
    return np.frombuffer(array.buffers()[1] or b"", array.type.to_pandas_dtype())[
        array.offset : array.offset + len(array)
    ]


def mask_of(array: pa.Array) -> np.ndarray:
    """Return the truth values of an array without nulls."""
    return _bits(array, 1)


def take(array: pa.Array, indices: np.ndarray) -> pa.Array:
    """Take entries of an array, null where the index is -1."""
    missing = indices < 0
    return _take(array, pa.array(indices, mask=missing if missing.any() else None))


def take_rows(batch: pa.RecordBatch, indices: np.ndarray) -> pa.RecordBatch:
    """Take rows of a batch."""
    taken_by = pa.array(indices)
    return pa.RecordBatch.from_arrays([_take(column, taken_by) for column in batch.columns], schema=batch.schema)


def take_present(structs: pa.StructArray, indices: np.ndarray) -> pa.StructArray:
    """Take structs of which none is null, null where the index is -1: like `take`, but faster."""
    missing = indices < 0
    taken_by = pa.array(indices, mask=missing)
    fields = [_take(structs.field(i), taken_by) for i in range(structs.type.num_fields)]
    return pa.StructArray.from_arrays(fields, fields=list(structs.type), mask=pa.array(missing))


def _take(array: pa.Array, indices: pa.Array) -> pa.Array:
    if array.null_count == len(array):
        return pa.nulls(len(indices), array.type)
    if not pa.types.is_struct(array.type):
        return array.take(indices)
    # Most fields of most structs are null. Taking whole structs would copy the nulls one by one.
    taken = [_take(array.field(i), indices) for i in range(array.type.num_fields)]
    absent = None
    if array.null_count:
        absent = array.is_null().take(indices).fill_null(True)
    elif indices.null_count:
        absent = indices.is_null()
    return pa.StructArray.from_arrays(taken, fields=list(array.type), mask=absent)


def valid(array: pa.Array) -> np.ndarray:
    """Return which entries are not null."""
    return _bits(array, 0) if array.null_count else np.ones(len(array), bool)


def _bits(array: pa.Array, buffer: int) -> np.ndarray:
    bits = np.frombuffer(array.buffers()[buffer] or b"", np.uint8)
    count = array.offset + len(array)
    return np.unpackbits(bits, count=count, bitorder="little")[array.offset :].view(bool)


class Constant:
    """A value to repeat. One array of it, with a power of two as its length, is built. All results are its slices."""

    def __init__(self, value: Any, arrow: pa.DataType) -> None:
        self.type = arrow
        self._value = value
        self._array = pa.nulls(0, arrow)

    def times(self, count: int) -> pa.Array:
        """Return the value `count` times."""
        if count > len(self._array):
            length = 1 << max(10, (count - 1).bit_length())
            self._array = pa.repeat(pa.scalar(self._value, self.type), length)
        return self._array.slice(0, count)
