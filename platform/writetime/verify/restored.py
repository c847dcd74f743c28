"""Compares a restored table with the lake, cell by cell: values, write times, and which cells have a TTL.

CQL reports no write times of the parts of collections and user-defined types; of these, the values are compared. If the
table had rows before, writes of its own may be newer. Then a row is only wrong if it has a cell that is older than in
the lake.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from writetime.clients.database import connect
from writetime.core.arrow import mask_of, pc, take
from writetime.core.config import Settings
from writetime.delta.buckets import token_range
from writetime.lake.views import BucketView, time_now
from writetime.merge import merge
from writetime.merge.live import cells_live
from writetime.row_events.compare import Matched, OrderedRows
from writetime.schema.table import TableSchema
from writetime.verify.compared_rows import between, differing, json_row, tokens_of
from writetime.verify.comparison import RANGE_ROWS
from writetime.verify.database_table import DatabaseTable, time_name, timed_columns, timed_schema, ttl_name
from writetime.verify.lost_deletions import rows_with_entries

# Cells expire between the two reads, so what differs is read again.
_ATTEMPTS = 3
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
    rows = wrong = newer = 0
    kept: list[RestoredDifference] = []
    with connect(settings) as session:
        database = DatabaseTable(session, schema, with_times=True)
        for bucket in range(buckets):
            view = of_bucket.get(bucket)
            state = merge([], schema) if view is None else view.state()
            rows += len(_rows(state, schema, time_now()).tokens)
            for tokens in _suspects(database, state, schema, *token_range(bucket, buckets)):
                ours, theirs, found = _read_again(database, state, schema, tokens)
                of_own = _of_own(ours, theirs, found, schema) if has_others else np.zeros(len(found.before), bool)
                newer += int(of_own.sum())
                wrong += int((~of_own).sum())
                kept += [
                    RestoredDifference((ours.tokens[i] if i >= 0 else theirs.tokens[j]).as_py(), *both)
                    for i, j in zip(found.before[~of_own].tolist(), found.after[~of_own].tolist(), strict=True)
                    for both in [(json_row(ours, i), json_row(theirs, j))]
                ][: KEPT - len(kept)]
    return RestoredReport(rows, wrong, kept, newer)


def _suspects(
    database: DatabaseTable, state: pa.Table, schema: TableSchema, first: int, last: int
) -> Iterator[set[int]]:
    """Yield the tokens that differ at the first read, of one range of tokens after the other."""
    timed = timed_schema(schema)
    while first <= last:
        theirs, end = database.first_rows(first, last, 2 * RANGE_ROWS)
        ours = between(_rows(state, schema, time_now()), first, end)
        if tokens := tokens_of(ours, theirs, differing(ours, theirs, timed)):
            yield tokens
        first = end + 1


def _read_again(
    database: DatabaseTable, state: pa.Table, schema: TableSchema, tokens: set[int]
) -> tuple[OrderedRows, OrderedRows, Matched]:
    """Read tokens again, some times or until nothing differs; return the rows of both sides, and what differs."""
    state = state.filter(pc.is_in(state["token"], pa.array(sorted(tokens), pa.int64())))
    timed = timed_schema(schema)
    attempts = _ATTEMPTS
    while True:
        theirs = database.of_tokens(sorted(tokens))
        ours = _rows(state, schema, time_now())
        found = differing(ours, theirs, timed)
        attempts -= 1
        if not attempts or not len(found.before):
            return ours, theirs, found


def _rows(state: pa.Table, schema: TableSchema, now: int) -> OrderedRows:
    """Return the rows that live in a state at a time (microseconds), with the columns of `timed_schema`."""
    found = rows_with_entries(state, schema, now)
    values = found.rows.values
    for column, cells in zip(schema.static + schema.regular, found.entries, strict=True):
        if column in timed_columns(schema):
            lives = cells_live(cells, now // 1_000_000)
            nothing = pa.scalar(None, pa.int64())
            values = values.append_column(time_name(column), pc.if_else(lives, cells.field("write_time"), nothing))
            has_ttl = pc.and_(lives, cells.field("ttl").is_valid())
            values = values.append_column(ttl_name(column), has_ttl)
    return replace(found.rows, values=values)


def _of_own(ours: OrderedRows, theirs: OrderedRows, found: Matched, schema: TableSchema) -> np.ndarray:
    """Return which of the places that differ may do so by newer writes of the table's own: no cell is older there."""
    older = np.zeros(len(found.before), bool)
    for column in timed_columns(schema):
        lake, database = (
            take(rows.values[time_name(column)].combine_chunks(), index)
            for rows, index in ((ours, found.before), (theirs, found.after))
        )
        older |= mask_of(pc.greater(lake, database).fill_null(False))
    return ~older
