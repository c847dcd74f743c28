"""The live cells of a state, one by one, so that two states can be compared cell by cell."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from writetime.changes.model import field_name
from writetime.core.arrow import numbers, one_chunk, pc, take
from writetime.merge.cells import ColumnCells, cells_of
from writetime.merge.live import cells_live, markers_live
from writetime.row_events.compare import OrderedRows
from writetime.schema.table import TableSchema

MARKER = -1
"""The column of a row's marker."""


@dataclass(frozen=True)
class LiveCells:
    """The cells of a state that live at a time.

    `cells` has the place of each, which is that of its row, its column and its path, and as values its path, its
    serialised value and its expiry (seconds; null: none). `entries` are the indexes of the rows in the state. `columns`
    are indexes in the static and regular columns, or `MARKER`. The paths are those of `merge.cells`.
    """

    cells: OrderedRows
    entries: np.ndarray
    columns: np.ndarray
    paths: pa.Array
    write_times: np.ndarray


def live_cells(state: pa.Table, schema: TableSchema, now: int) -> LiveCells:
    """Return the cells of a state that live at a time (seconds). The table has no counters."""
    marker, marker_expiry = _markers(one_chunk(state["marker"]), now)
    parts = [(MARKER, marker, marker_expiry)]
    lives = partial(cells_live, as_of=now)
    for number, column in enumerate(schema.static + schema.regular):
        found = cells_of(one_chunk(state[field_name(column)]), column.type, lives)
        parts += [(number, part, part.expiries) for part in found]
    entries = np.concatenate([part.entries for _, part, _ in parts])
    columns = np.concatenate([np.full(len(part.entries), number, np.int16) for number, part, _ in parts])
    path, place, value = (
        pa.concat_arrays([getattr(part, name) for _, part, _ in parts]) for name in ("paths", "places", "values")
    )
    write_time = pa.concat_arrays([part.cells.field("write_time") for _, part, _ in parts])
    expiry = pa.concat_arrays([expiries for _, _, expiries in parts])
    tokens, keys, positions = (take(one_chunk(state[name]), entries) for name in ("token", "key", "position"))
    # A position has an end, and the code a fixed length, so no two cells have the same bytes.
    codes = pa.Array.from_buffers(pa.binary(2), len(columns), [None, pa.py_buffer(columns.astype(">i2"))])
    nothing = pa.scalar(b"", pa.binary())
    places = pc.binary_join_element_wise(positions, codes.cast(pa.binary()), place.fill_null(b""), nothing)
    values = pa.table({"path": path, "value": value, "expiry": expiry})
    return LiveCells(OrderedRows(values, tokens, keys, places), entries, columns, path, numbers(write_time))


def _markers(markers: pa.StructArray, now: int) -> tuple[ColumnCells, pa.Array]:
    """Return the live markers as cells, and their expiries."""
    entries = np.flatnonzero(markers_live(markers, now))
    live = take(markers, entries)
    values = pa.repeat(pa.scalar(b"", pa.binary()), len(entries))
    paths = pa.nulls(len(entries), pa.binary())
    return ColumnCells(entries, live, paths, paths, values), live.field("expiry")
