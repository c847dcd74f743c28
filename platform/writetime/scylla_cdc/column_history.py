"""Decides which rows of a log can be read, if the schema of its table has changed since they were written.

ScyllaDB alters a log with its table (`create_log_schema` in `cdc/log.cc`):

- When a column is dropped, its columns in the log are dropped, and earlier rows look as if it had not been written. If
  the column was static, such a row has neither values nor a clustering key.
- When a key column is renamed, it is dropped from the log and added under its new name. So it is null in earlier rows.

Both drops are in `system_schema.dropped_columns` of the log. Their time is five seconds later, so that no earlier row
is younger.

While the CDC option `delta` is `keys`, rows are logged without values. There is no record of that period. Updates prove
it, because they have no values then. Inserts only suggest it, because an insert of keys alone looks the same.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np
import pyarrow as pa

from writetime.core.arrow import valid
from writetime.core.instants import instant_text
from writetime.schema.table import Column, TableSchema
from writetime.scylla_cdc import log as L
from writetime.scylla_cdc.findings import DOUBTFUL_INSERT, IN_SNAPSHOT, STATIC_DROPPED
from writetime.scylla_cdc.log import LogError, LogGap

_NEVER = -(1 << 63)
# Nodes learn of ALTER TABLE one after the other, and a write time may be five seconds in the future.
LEEWAY = 10_000_000
_IMAGES = (L.PREIMAGE, L.POSTIMAGE)
_OF_PARTITIONS = (L.PARTITION_DELETE, L.EXPIRED_PARTITION)
_STARTS = (L.START_INCLUSIVE, L.START_EXCLUSIVE)
_BOUNDS = (*_STARTS, L.END_INCLUSIVE, L.END_EXCLUSIVE)
# Static rows have these operations and no others.
_OF_STATIC_ROWS = (L.UPDATE, *_IMAGES)


class History:
    """Decides which rows of one table's log can be read.

    Since `options_since`, the last alteration of the table, `delta` has been `full`. `empty_updates`: the table has
    updates without values. The snapshot with the unreadable rows began at `snapshot_at`. Times are in microseconds.
    """

    def __init__(
        self,
        table: TableSchema,
        log: TableSchema,
        *,
        options_since: int = 0,
        empty_updates: bool = False,
        snapshot_at: int | None = None,
    ) -> None:
        self._table = table
        self._options_since = options_since
        self._empty_updates = empty_updates
        self._snapshot_at = _NEVER if snapshot_at is None else snapshot_at
        self._values = table.static + table.regular
        dropped = {column.name: column.dropped_at for column in log.dropped}
        values = {name for name in dropped if L.DELETED + name in dropped}
        self.dropped_until = max((dropped[name] for name in values), default=_NEVER)
        """Time of the last drop of columns that are not key columns, in microseconds."""
        # A key column has no column `cdc$deleted_`.
        others = {name for name in dropped if not name.startswith(L.DELETED)} - values
        self._renamed = {name: dropped[name] for name in others}

    def readable(self, page: pa.RecordBatch, operations: np.ndarray, found: Counter[str]) -> np.ndarray:
        """Return which rows can be read, and count the others. Images that cannot be read are not counted.

        Raises:
            LogGap: the key of a row is missing because a key column was renamed, or the values of an update are missing
                because `delta` was `keys`, and no snapshot has the row.
            LogError: the key or the values are missing for an unknown reason.
        """
        judged = self._judge(page, operations)
        deltas = ~np.isin(operations, _IMAGES)
        if (judged.wrong & deltas).any():
            raise LogError(
                f"{where_in(page, judged.wrong & deltas, self._table)} lacks its key, although no key column was "
                "renamed: ScyllaDB writes no such row"
            )
        self._check_lost(judged.times[judged.lost & deltas])
        bare = self._bare(page, operations, judged)
        found[IN_SNAPSHOT] += int((judged.lost & deltas).sum() + bare.sum())
        found[STATIC_DROPPED] += int((judged.empty & deltas).sum())
        found[DOUBTFUL_INSERT] += self._doubtful(page, operations, judged)
        return judged.readable & ~bare

    def readable_images(self, page: pa.RecordBatch, operations: np.ndarray) -> np.ndarray:
        """Return which rows are images that can be read."""
        return np.isin(operations, _IMAGES) & self._judge(page, operations).readable

    def _judge(self, page: pa.RecordBatch, operations: np.ndarray) -> "_Judged":
        times = L.times(page)
        without_key = np.any([~valid(page[c.name]) for c in self._table.partition_key], axis=0)
        # Which rows lack a part of the clustering key, and all of it.
        clustering = self._table.clustering
        absent = np.array([~valid(page[c.name]) for c in clustering], bool).reshape(len(clustering), page.num_rows)
        needed = ~np.isin(operations, _OF_PARTITIONS) & bool(clustering)
        some, every = needed & absent.any(axis=0), needed & absent.all(axis=0)
        written = _any_value(page, self._table.static)
        static = every & np.isin(operations, _OF_STATIC_ROWS) & ~_any_value(page, self._table.regular)
        lost = np.zeros(page.num_rows, bool)
        if self._renamed:
            renamed = times <= max(self._renamed.values())
            # Values of an image that cannot be read may belong to another row. An update that lost all of its values
            # has no effect.
            surely_static = static & (written | self._shows(page, self._table.regular))
            lost = renamed & (without_key | (some & ~surely_static))
            # Both bounds of a range, even if one has the column: it is null in bounds that are prefixes, too.
            starts = np.flatnonzero(np.isin(operations, _STARTS))
            lost[starts] = lost[starts + 1] = lost[starts] | lost[starts + 1]
        empty = static & ~written & ~lost & (times <= self.dropped_until) & self._shows(page, self._table.static)
        static &= bool(self._table.static) | empty
        wrong = (without_key | (some & ~np.isin(operations, _BOUNDS) & ~static)) & ~lost
        return _Judged(times, lost, empty, wrong)

    def _bare(self, page: pa.RecordBatch, operations: np.ndarray, judged: "_Judged") -> np.ndarray:
        """Return which updates have no values, because `delta` was `keys`, and are in the snapshot."""
        # Before that time, the values may belong to columns that were dropped later.
        bare = (operations == L.UPDATE) & judged.readable & (judged.times > self.dropped_until)
        if self._empty_updates or not bare.any() or not self._shows(page, self._values):
            return np.zeros(page.num_rows, bool)
        bare &= ~_any_value(page, self._values)
        late = bare & (judged.times >= self._options_since + LEEWAY)
        if late.any():
            raise LogError(
                f"{where_in(page, late, self._table)} is an update without values, although the table's CDC option "
                "delta is not keys: if clients send updates without values, set scylla_cdc.empty_updates to pass"
            )
        times = judged.times[bare & (judged.times >= self._snapshot_at)]
        if len(times):
            raise LogGap(
                self._table.full_name,
                int(times.min()),
                max(self._options_since, int(times.max()) + 1),
                "updates have no values, because the table's CDC option delta was keys, which leaves written values "
                "out of the log (if clients send updates without values, set scylla_cdc.empty_updates to pass)",
            )
        return bare

    def _doubtful(self, page: pa.RecordBatch, operations: np.ndarray, judged: "_Judged") -> int:
        """Count inserts without values from before the last alteration of the table that no snapshot has."""
        inserts = (operations == L.INSERT) & judged.readable & (judged.times < self._options_since)
        inserts &= (judged.times > self.dropped_until) & (judged.times >= self._snapshot_at)
        if not self._values or not inserts.any() or not self._shows(page, self._values):
            return 0
        return int((inserts & ~_any_value(page, self._values)).sum())

    @staticmethod
    def _shows(page: pa.RecordBatch, columns: Sequence[Column]) -> bool:
        return all(c.name in page.schema.names for c in columns)

    def _check_lost(self, times: np.ndarray) -> None:
        """Reject rows that lack their keys, unless the snapshot has them."""
        if not len(times):
            return
        first = int(times.min())
        renamed = {name: at for name, at in self._renamed.items() if at >= first}
        end = max(renamed.values())
        if self._snapshot_at < end:
            reason = f"key column {', '.join(renamed)} was renamed, and rows from before do not have it"
            raise LogGap(self._table.full_name, first, end, reason)


@dataclass(frozen=True)
class _Judged:
    """The decision on each row."""

    times: np.ndarray
    lost: np.ndarray
    """Rows whose keys are gone because a key column was renamed."""
    empty: np.ndarray
    """Rows that had values of dropped static columns only."""
    wrong: np.ndarray
    """Rows that have no key for an unknown reason."""

    @property
    def readable(self) -> np.ndarray:
        return ~(self.lost | self.empty | self.wrong)


def where_in(page: pa.RecordBatch, rows: np.ndarray, table: TableSchema) -> str:
    """Name the first of some rows of a log."""
    row = int(np.flatnonzero(rows)[0])
    stream, time = page[L.STREAM][row].as_py(), UUID(bytes=page[L.TIME][row].as_py())
    sequence, when = int.from_bytes(page[L.SEQUENCE][row].as_py(), "big"), instant_text(L.uuid_time(time))
    return f"the log of {table.full_name}: row {sequence} of {time} ({when}) in stream 0x{stream.hex()}"


def _any_value(page: pa.RecordBatch, columns: Sequence[Column]) -> np.ndarray:
    """Return which rows write or delete a value of these columns, as far as the page has them."""
    names = [prefix + c.name for c in columns for prefix in ("", L.DELETED, L.DELETED_ELEMENTS)]
    there = [valid(page[name]) for name in names if name in page.schema.names]
    return np.any(there, axis=0) if there else np.zeros(page.num_rows, bool)
