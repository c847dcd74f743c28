"""Encodes the positions of many rows at once: `changes.position`, for arrays of serialised clustering values."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from writetime.changes.position import AT, position_encoder
from writetime.core.arrow import bytes_of, valid
from writetime.schema.table import TableSchema
from writetime.storage.kernel.memory import compiled, load8, load_native32, load_native64, store8, store32
from writetime.storage.kernel.primitives import encode_comparable
from writetime.storage.plan import Plan

# The numbers of a column: the addresses of offsets, data and validity (a byte per row), the method, and if it descends.
_NUMBERS = 5


def row_positions(values: Sequence[pa.Array], count: int, schema: TableSchema) -> pa.Array:
    """Return the positions of `count` rows.

    Args:
        values: the serialised values of each clustering column, null where a value is null. They must be valid for
            their types: `schema.columnar.decode` checks that.
        count: the number of rows.
        schema: the table.
    """
    plan = Plan(schema)
    arrays = [(*bytes_of(each), valid(each).view(np.uint8)) for each in values]
    # At most: see `encode_comparable`.
    room = count + sum(2 * int(bounds[-1] - bounds[0]) + 3 * count for bounds, _, _ in arrays)
    if not plan.encodes_position or room >= 1 << 31:
        encode = position_encoder(schema.clustering)
        rows = zip(*(each.to_pylist() for each in values), strict=True)
        return pa.array([encode(row, AT) for row in rows], pa.binary())
    columns = np.array(
        [
            [*(part.ctypes.data for part in parts), line.compare, line.reverse]
            for parts, line in zip(arrays, plan.clustering, strict=True)
        ],
        np.int64,
    )
    ends, found = np.zeros(count + 1, np.int32), np.empty(room, np.uint8)
    _encode(columns.ctypes.data, len(arrays), count, ends.ctypes.data, found.ctypes.data)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(found[: ends[-1]])])


@compiled
def _encode(columns: int, width: int, count: int, ends: int, out: int) -> None:
    start = out
    for row in range(count):
        for column in range(width):
            numbers = columns + 8 * _NUMBERS * column
            if load8(load_native64(numbers + 16) + row) == 0:
                store8(out, 0x3E)
                out += 1
                continue
            bounds = load_native64(numbers) + 4 * row
            first = load_native32(bounds)
            length = load_native32(bounds + 4) - first
            method, descends = load_native64(numbers + 24), load_native64(numbers + 32) != 0
            out = encode_comparable(method, descends, load_native64(numbers + 8) + first, length, out)
        store8(out, 0x38)
        out += 1
        store32(ends + 4 * row + 4, out - start)
