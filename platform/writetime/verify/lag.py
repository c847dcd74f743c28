"""Distinguishes lag from a real difference, by the write times of the cells that differ."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from writetime.lake.views import time_now
from writetime.row_events.compare import Matched, OrderedRows, different_values
from writetime.schema.table import TableSchema
from writetime.verify.compared_rows import is_static, json_row

NO_TIME = -(1 << 63)
"""Stands for a write time that the database does not report."""


@dataclass(frozen=True)
class WriteLag:
    """For each place that differs: the newest write time that counts (microseconds; 0 if none), and if it is lag."""

    written_at: np.ndarray
    lagging: np.ndarray


def times_at(times: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Return the write times of some rows of one side: none where the index is -1."""
    found = np.full((len(index), times.shape[1]), NO_TIME)
    found[index >= 0] = times[index[index >= 0]]
    return found


def rows_that_differ(
    one: OrderedRows, other: OrderedRows, found: Matched, lag: WriteLag
) -> Iterator[tuple[int, dict[str, Any] | None, dict[str, Any] | None, int, bool]]:
    """Yield for each place that differs its token, the row of each side (None where it has none), the newest write time
    that counts, and whether it is lag.
    """
    columns = (found.before, found.after, lag.written_at, lag.lagging)
    for i, j, at, lagging in zip(*(column.tolist() for column in columns), strict=True):
        token = one.tokens[i] if i >= 0 else other.tokens[j]
        yield token.as_py(), json_row(one, i), json_row(other, j), at, lagging


def lag_of(
    one: OrderedRows,
    other: OrderedRows,
    found: Matched,
    times: np.ndarray,
    schema: TableSchema,
    *,
    began: int,
    lost: np.ndarray | None = None,
) -> WriteLag:
    """Return which of the places that differ are lag: all cells that differ were written after the beginning.

    So a lost cell does not count as lag only because other cells of its row are often written. CQL has no write time of
    a deleted cell, or of collections and UDTs that are not frozen. If no cell that differs has a write time, the newest
    of the whole row counts, but a row with a lost deletion is not lag. A write time in the future does not show when
    the cell was written.

    Args:
        one, other: the rows of both sides.
        found: the places that differ.
        times: for each of these places, the write times of the static and regular columns (microseconds or `NO_TIME`).
        schema: the table.
        began: the time (microseconds) after which writes may not be on both sides yet.
        lost: for each of these places and columns, whether `one` lost a deletion of the cell, if that is known.
    """
    now = time_now()
    differs = _cells_that_differ(one, other, found, schema)
    # A row of only static columns is compared with the first row of the other side, which is another row.
    alone = (is_static(one, found.before) | is_static(other, found.after))[:, None]
    statics = np.array([column in schema.static for column in schema.static + schema.regular], bool)
    own = ~alone | statics
    # A side that lacks a row may have its static cells in other rows of the partition.
    in_both = ((found.before >= 0) & (found.after >= 0))[:, None]
    differs &= own & (alone | in_both | ~statics)
    timed = differs & (times != NO_TIME)
    some = timed.any(axis=1)
    newest = np.where(timed | (own & ~some[:, None]), times, NO_TIME).max(axis=1, initial=NO_TIME)
    oldest = np.where(timed, times, newest[:, None]).min(axis=1, initial=now)
    lagging = (began < oldest) & (newest <= now) & (newest != NO_TIME)
    return WriteLag(np.maximum(newest, 0), lagging if lost is None else lagging & ~(lost & differs).any(axis=1))


def _cells_that_differ(one: OrderedRows, other: OrderedRows, found: Matched, schema: TableSchema) -> np.ndarray:
    """Return for each place and each static and regular column whether the two rows differ in it."""
    columns = [
        different_values(one, found.before, other, found.after, column.name)
        for column in schema.static + schema.regular
    ]
    return np.array(columns, bool).reshape(len(columns), len(found.before)).T
