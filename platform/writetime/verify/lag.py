"""Distinguishes lag from a real difference, by the write times of the cells that differ."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from writetime.changes.position import STATIC_POSITION
from writetime.core.arrow import mask_of, one_chunk, pc, take
from writetime.lake.views import time_now
from writetime.row_events.compare import Matched, Rows, different
from writetime.schema.table import TableSchema

NO_TIME = -(1 << 63)
"""In place of a write time that the database does not report."""


@dataclass(frozen=True)
class Lag:
    """Of each place that differs: the newest write time that counts (microseconds; 0 if none), and if it is lag."""

    written_at: np.ndarray
    lagging: np.ndarray


def times_at(times: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Return the write times of some rows of one side: none where the index is -1."""
    found = np.full((len(index), times.shape[1]), NO_TIME)
    found[index >= 0] = times[index[index >= 0]]
    return found


def lag_of(one: Rows, other: Rows, found: Matched, times: np.ndarray, schema: TableSchema, *, began: int) -> Lag:
    """Return which of the places that differ are lag: all cells that differ were written after the beginning.

    So a lost cell is not taken for lag because others of its row are often written. CQL has no write time of a deleted
    cell, nor of collections and UDTs that are not frozen. If no cell that differs has one, the newest of the whole row
    counts. A write time in the future does not show when the cell was written.

    Args:
        one: the rows of one side.
        other: the rows of the other side.
        found: the places that differ.
        times: for each of these places, the write times of the static and regular columns (microseconds or `NO_TIME`).
        schema: the table.
        began: the time (microseconds) after which writes may not be on both sides yet.
    """
    now = time_now()
    timed = times != NO_TIME
    differs = timed & _cells_that_differ(one, other, found, schema)
    some = differs.any(axis=1)
    newest = np.where(differs | ~some[:, None], times, NO_TIME).max(axis=1, initial=NO_TIME)
    oldest = np.where(differs, times, newest[:, None]).min(axis=1, initial=now)
    return Lag(np.maximum(newest, 0), (began < oldest) & (newest <= now) & (newest != NO_TIME))


def _cells_that_differ(one: Rows, other: Rows, found: Matched, schema: TableSchema) -> np.ndarray:
    """Return for each place and each static and regular column whether its cells differ."""
    in_both = (found.before >= 0) & (found.after >= 0)
    positions = pc.coalesce(take(one.positions, found.before), take(other.positions, found.after))
    is_static = mask_of(pc.equal(positions, pa.scalar(STATIC_POSITION, pa.binary())))
    columns = []
    for column in schema.static + schema.regular:
        before, after = (one_chunk(side.values[column.name]) for side in (one, other))
        differs = different(take(before, found.before), take(after, found.after))
        # The other side may have the static cells in other rows of the partition.
        columns.append(differs & (in_both | (is_static == (column in schema.static))))
    return np.array(columns, bool).reshape(len(columns), len(in_both)).T
