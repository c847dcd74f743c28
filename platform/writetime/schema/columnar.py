"""Decodes arrays of serialised values column by column; `values.decoder` decodes values without a plain form."""

import numpy as np
import pyarrow as pa

from writetime.core.counts import pluralize
from writetime.schema.mapping import stored_type
from writetime.schema.text import texts_of
from writetime.schema.types import NUMBERS, CqlType, Native
from writetime.schema.values import BadValue, decoder

_CODES = NUMBERS | {"boolean": "B", "date": "I"}
_HEX = np.frombuffer("".join(f"{i:02x}" for i in range(256)).encode(), np.uint8).reshape(256, 2)
_DASHES = (8, 12, 16, 20)


def decode(values: pa.Array, cql_type: CqlType) -> pa.Array:
    """Return the values of serialised ones (binary); null where one is null, or is empty and not text or blob. Invalid
    bytes for the type are a BadValue.
    """
    match cql_type:
        case Native("blob" | "empty"):
            return values
        case Native("text" | "ascii"):
            return texts_of(values)
        case Native("uuid" | "timeuuid"):
            data, present = fixed_width(values, 16, cql_type)
            return _texts(data, present)
        case Native(name) if name in _CODES:
            code = np.dtype(">" + _CODES[name])
            data, present = fixed_width(values, code.itemsize, cql_type)
            return _numbers(data.view(code).reshape(-1), present, name)
    inner = decoder(cql_type)
    return pa.array([None if v is None else inner(v) for v in values.to_pylist()], stored_type(cql_type))


def fixed_width(values: pa.Array, width: int, cql_type: CqlType) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of all values that are present, one row each, and which are present."""
    if not len(values):
        return np.empty((0, width), np.uint8), np.empty(0, bool)
    _, offsets, data = values.buffers()
    bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    lengths = np.diff(bounds)
    if values.null_count:
        # A null may have bytes, if the array was filtered by another one.
        lengths = np.where(values.is_valid().to_numpy(zero_copy_only=False), lengths, 0)
    present = lengths > 0
    if (lengths[present] != width).any():
        wrong = int(lengths[present & (lengths != width)][0])
        raise BadValue(f"a value of {pluralize(wrong, 'byte')} is not a {cql_type}, which has {width}")
    content = np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8)
    rows = bounds[:-1][present].astype(np.int64)
    if len(rows) == len(lengths):
        return content[rows[0] : rows[0] + width * len(rows)].reshape(-1, width), present
    return content[rows[:, None] + np.arange(width)], present


def _numbers(data: np.ndarray, present: np.ndarray, name: str) -> pa.Array:
    match name:
        case "boolean":
            found = data != 0
        case "date":
            found = (data.astype(np.int64) - (1 << 31)).astype(np.int32)
        case _:
            found = data.astype(data.dtype.newbyteorder("="))
    spread = np.zeros(len(present), found.dtype)
    spread[present] = found
    array = pa.array(spread, mask=None if present.all() else ~present)
    return array.cast(pa.date32()) if name == "date" else array


def _texts(data: np.ndarray, present: np.ndarray) -> pa.Array:
    digits = _HEX[data].reshape(len(data), 32)
    text = np.insert(digits, _DASHES, ord("-"), axis=1)
    ends = np.concatenate([[0], np.cumsum(np.where(present, 36, 0))]).astype(np.int32)
    valid = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(pa.string(), len(present), [valid, pa.py_buffer(ends), pa.py_buffer(text.tobytes())])
