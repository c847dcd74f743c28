"""Compares a restored table with the lake, cell by cell: values, write times and expiries.

The database may not report the times of parts of collections and user-defined types (`cell_times`); of these, the
values are compared. If the table had rows before, writes of its own may be newer. Then a row is only wrong if it has a
cell that is older than in the lake. CQL reports no deletions: a row that is missing may have been deleted later.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from writetime.clients.database import connect
from writetime.core.arrow import one_chunk, take
from writetime.core.config import Settings
from writetime.delta.buckets import token_range
from writetime.lake.views import BucketView, time_now
from writetime.merge import merge
from writetime.row_events.compare import Matched, OrderedRows, different_values
from writetime.schema.table import TableSchema
from writetime.schema.types import is_complex
from writetime.verify.cell_times import TimedColumn, newer, of_lake, timed_schema
from writetime.verify.compared_rows import differing, json_row
from writetime.verify.database_table import DatabaseTable
from writetime.verify.lost_deletions import rows_with_entries

# Cells expire between the two reads, and by several clocks, so what differs is read again.
_ATTEMPTS = 2
_PAUSE_SECONDS = 1.0
# Rows of each side in memory at once, or one partition. Each value has a write time and a TTL.
_RANGE_ROWS = 50_000
KEPT = 1_000
"""The number of differences that are kept; the others are counted."""


@dataclass(frozen=True)
class RestoredDifference:
    """A row that differs between the lake and the restored table; None where it does not exist."""

    token: int
    lake: dict[str, Any] | None
    database: dict[str, Any] | None


@dataclass(frozen=True)
class RestoredReport:
    """The rows of the lake, how many of them differ in the database, the first of these, and how many rows have newer
    writes or deletions of the table's own, if it had rows before.
    """

    rows: int
    differing: int
    differences: Sequence[RestoredDifference]
    newer: int

    @property
    def proven(self) -> bool:
        """Whether the database has all that the lake has."""
        return not self.differing


def verify_restored(
    settings: Settings, views: Sequence[BucketView], schema: TableSchema, buckets: int, *, has_others: bool
) -> RestoredReport:
    """Compare a restored table with views of the lake.

    Args:
        settings: of the database.
        views: the views that were restored.
        schema: the restored table; its columns have the labels of the lake.
        buckets: the number of buckets of the lake's table.
        has_others: whether the table had rows before.

    Raises:
        WritetimeError: the database cannot be read, or masks values of the table.
    """
    of_bucket = {view.bucket: view for view in views}
    with connect(settings) as session:
        comparison = _Comparison(DatabaseTable(session, schema, with_times=True), schema, has_others=has_others)
        for bucket in range(buckets):
            view = of_bucket.get(bucket)
            comparison.add(merge([], schema) if view is None else view.state(), *token_range(bucket, buckets))
    return comparison.report()


@dataclass(frozen=True)
class _Found:
    """Rows of both sides, and the places that differ: those that are wrong, and those with newer writes of the table's
    own.
    """

    ours: OrderedRows
    theirs: OrderedRows
    wrong: Matched
    own: Matched


class _Comparison:
    """Counts the rows of the lake and those that differ, a range of tokens at a time."""

    def __init__(self, database: DatabaseTable, schema: TableSchema, *, has_others: bool) -> None:
        self._database = database
        self._schema = schema
        self._timed = timed_schema(schema, database.timed)
        self._has_others = has_others
        self._rows = self._differing = self._newer = 0
        self._kept: list[RestoredDifference] = []

    def report(self) -> RestoredReport:
        """Return what was found."""
        return RestoredReport(self._rows, self._differing, self._kept, self._newer)

    def add(self, state: pa.Table, first: int, last: int) -> None:
        """Compare a range of tokens, both ends included, with its state. Each row is decoded once, unless rows of its
        part of the range differ.
        """
        tokens = state["token"].to_numpy()
        while first <= last:
            start = np.searchsorted(tokens, first)
            # The database may lack most of the lake's rows. A partition is never cut.
            following = tokens[start + _RANGE_ROWS : start + _RANGE_ROWS + 1].tolist()
            until = max([first, *(token - 1 for token in following)]) if following else last
            theirs, end = self._database.first_rows(first, until, _RANGE_ROWS)
            count = np.searchsorted(tokens, end, "right") - start
            self._count(self._settled(state.slice(start, count), theirs, first, end))
            first = end + 1

    def _settled(self, state: pa.Table, theirs: OrderedRows, first: int, last: int) -> _Found:
        """Compare rows with the state of their range, which are read again, some times or until nothing is wrong."""
        found = self._compared(state, theirs)
        for _ in range(_ATTEMPTS):
            if not len(found.wrong.before):
                break
            time.sleep(_PAUSE_SECONDS)
            found = self._compared(state, self._database.rows(first, last))
        return found

    def _compared(self, state: pa.Table, theirs: OrderedRows) -> _Found:
        ours = _rows(state, self._schema, self._database.timed, time_now())
        found = differing(ours, theirs, self._timed)
        own = np.zeros(len(found.before), bool)
        if self._has_others:
            own = _of_own(ours, theirs, found, self._database.timed)
        wrong, newer = (Matched(found.before[places], found.after[places]) for places in (~own, own))
        return _Found(ours, theirs, wrong, newer)

    def _count(self, found: _Found) -> None:
        self._rows += len(found.ours.tokens)
        self._newer += len(found.own.before)
        self._differing += len(found.wrong.before)
        places = zip(found.wrong.before.tolist(), found.wrong.after.tolist(), strict=True)
        for before, after in islice(places, KEPT - len(self._kept)):
            token = found.ours.tokens[before] if before >= 0 else found.theirs.tokens[after]
            both = json_row(found.ours, before), json_row(found.theirs, after)
            self._kept.append(RestoredDifference(token.as_py(), *both))


def _rows(state: pa.Table, schema: TableSchema, timed: Sequence[TimedColumn], now: int) -> OrderedRows:
    """Return the rows that live in a state at a time (microseconds), with the columns of `timed_schema`."""
    found = rows_with_entries(state, schema, now)
    values = found.rows.values
    entries = dict(zip(schema.static + schema.regular, found.entries, strict=True))
    for each in timed:
        times, expiries = of_lake(entries[each.column], each.column.type, now // 1_000_000)
        values = values.append_column(each.time, times).append_column(each.expiry, expiries)
    return replace(found.rows, values=values)


def _of_own(ours: OrderedRows, theirs: OrderedRows, found: Matched, timed: Sequence[TimedColumn]) -> np.ndarray:
    """Return which of the places that differ may do so by newer writes of the table's own: no cell is older there. Of
    parts of a column, only the same ones can be compared: those of equal values.
    """
    sides = (ours, found.before), (theirs, found.after)
    older = np.zeros(len(found.before), bool)
    for each in timed:
        lake, database = (
            (take(one_chunk(rows.values[each.time]), index), take(one_chunk(rows.values[each.expiry]), index))
            for rows, index in sides
        )
        replaced = newer(lake, database, theirs.within[each.expiry])
        if is_complex(each.column.type):
            replaced &= ~different_values(ours, found.before, theirs, found.after, each.column.name)
        older |= replaced
    return ~older
