"""Finds deletions of cells that the lake lost. CQL reports no time of a deletion, so in a row with continuous writes, a
lost deletion would count as lag forever.

At a first read, the database lacks a cell, so the cell was deleted by then, or never written. A later read of the lake
has the cell, with a write time before the first read, although the lake has all writes up to that read by its
watermarks or snapshots. So the lake does not have the deletion, and never gets it.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from writetime.changes.model import STATIC, field_name
from writetime.core.arrow import mask_of, one_chunk, pc, take
from writetime.lake.horizon import complete_snapshot, registered_sources, watermark_of
from writetime.lake.versions import TableVersion
from writetime.merge.order import kind_codes
from writetime.row_events.compare import Matched, Rows, match
from writetime.row_events.events import indexed_rows
from writetime.row_events.write_times import latest_of_column
from writetime.schema.table import TableSchema

# How much later than the read the lake's writes must reach (microseconds), as clocks of machines differ.
_CLOCKS_DIFFER = 5_000_000


@dataclass(frozen=True)
class FirstRead:
    """The rows of the database at the first read, and the time after it (microseconds)."""

    rows: Rows
    at: int

    def is_in_lake(self, changes: TableVersion) -> bool:
        """Return whether a version of the changes has all writes up to the read."""
        marks = [watermark_of(changes, source) for source in registered_sources(changes)]
        return min(marks, default=complete_snapshot(changes)) >= self.at + _CLOCKS_DIFFER

    def lost(self, lake: Rows, written: np.ndarray, database: Rows, found: Matched, schema: TableSchema) -> np.ndarray:
        """Return for each place and each static and regular column whether the lake lost a deletion of the cell.

        Args:
            lake: the rows of the lake, when `is_in_lake`.
            written: their write times, see `timed_rows`.
            database: the rows of the database, read after the first read.
            found: the places that differ, the lake's `before`.
            schema: the table.
        """
        matched = match(database, self.rows)
        first = np.full(len(database.tokens) + 1, -1)
        first[matched.before] = np.where(matched.before >= 0, matched.after, -1)
        first[-1] = -1
        then = first[found.after]
        known = (found.before >= 0) & (found.after >= 0) & (then >= 0)
        columns = []
        for number, column in enumerate(schema.static + schema.regular):
            lacked = [
                mask_of(take(one_chunk(rows.values[column.name]), index).is_null())
                for rows, index in ((database, found.after), (self.rows, then))
            ]
            has = mask_of(take(one_chunk(lake.values[column.name]), found.before).is_valid())
            is_old = np.zeros(len(has), bool)
            is_old[known] = written[found.before[known], number] <= self.at
            columns.append(known & has & lacked[0] & lacked[1] & is_old)
        return np.array(columns, bool).reshape(len(columns), len(known)).T


def timed_rows(state: pa.Table, schema: TableSchema, as_of: int) -> tuple[Rows, np.ndarray]:
    """Return the rows that live in a state at a time (microseconds), and the latest write times of their cells: one
    line per row, one column per static and regular column.
    """
    rows, index = indexed_rows(state, schema, as_of)
    statics = np.flatnonzero(kind_codes(one_chunk(state["kind"])) == STATIC)
    keys = one_chunk(state["key"])
    place = pc.index_in(rows.keys, value_set=keys.take(pa.array(statics))).fill_null(-1).to_numpy()
    # Without such an entry, the row has no static cell.
    of_static = np.append(statics, 0)[place]
    columns = [
        latest_of_column(one_chunk(state[field_name(column)]), column.type)[
            of_static if column in schema.static else index
        ]
        for column in schema.static + schema.regular
    ]
    return rows, np.array(columns, np.int64).reshape(len(columns), len(index)).T
