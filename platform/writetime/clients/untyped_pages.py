"""Reads results of the database as Arrow batches of serialised values, without a Python object per value.

The frame of a result has the values of each row, each with its length before it (native protocol version 4, 4.2.5.2).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from cassandra.protocol import _ProtocolHandler, read_int  # type: ignore[attr-defined]

from writetime.clients.untyped_rows import UntypedResult
from writetime.core.compiled import njit


class PageResult(UntypedResult):
    """A result whose rows are one batch."""

    def recv_results_rows(
        self, f: Any, protocol_version: int, user_type_map: Any, result_metadata: Any, column_encryption_policy: Any
    ) -> None:
        """Read the rows."""
        del protocol_version, column_encryption_policy
        self.recv_results_metadata(f, user_type_map)
        described = self.column_metadata or result_metadata or ()
        self.column_names = [d[2] for d in described]
        self.column_types = [d[3] for d in described]
        rows = read_int(f)
        self.parsed_rows = page(self.column_names, rows, f.read())


class PageProtocol(_ProtocolHandler):
    """A protocol handler for a session whose results are pages. Its execution profile needs `as_page`."""

    message_types_by_opcode = _ProtocolHandler.message_types_by_opcode | {PageResult.opcode: PageResult}


def as_page(_: Sequence[str], found: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Return the only element of a result's rows: a row factory of the driver, which expects a list."""
    return [found]


def page(names: Sequence[str], rows: int, body: bytes) -> pa.RecordBatch:
    """Return the rows of a result as columns of serialised values, null where a value is null."""
    count, columns = rows * len(names), len(names)
    bounds, present = _values(np.frombuffer(body, np.uint8), count)
    buffers = [np.packbits(present, bitorder="little"), bounds, body]
    values = pa.Array.from_buffers(pa.binary(), 2 * count, [pa.py_buffer(each) for each in buffers])
    arrays = [values.take(pa.array(np.arange(2 * i + 1, 2 * count, 2 * columns))) for i in range(columns)]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


@njit
def _values(body: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of lengths and values, which take turns, and which of them are not null."""
    bounds = np.zeros(2 * count + 1, np.int32)
    present = np.ones(2 * count, np.bool_)
    p = 0
    for i in range(1, 2 * count, 2):
        if p + 4 > len(body):
            raise ValueError("a page of rows is cut off")
        length = 0
        for k in range(p, p + 4):
            length = length << 8 | body[k]
        present[i] = length < 1 << 31
        bounds[i] = p + 4
        p += 4 + (length if present[i] else 0)
        if p > len(body):
            raise ValueError("a page of rows is cut off")
        bounds[i + 1] = p
    return bounds, present
