"""Compares a table's rows in the lake with the database by token ranges: first by digests, then row by row. Then it
compares the compacted view with the lake's rows (`compacted_view`).

The two are never read at the same time, so differing rows are read again, in both places, until they are equal or the
waiting time is over. A remaining difference is lag if the cells that differ were written, as the database reports,
later than all writes in the lake when the verification began (later changes land bucket by bucket). Otherwise
it is a real difference. Lag proves nothing if the table is captured and its capture or landing has stopped: then it
does not pass. (CQL reports no time of a deletion: a row that only the lake still has after the waiting time counts as a
difference.)
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from writetime.changes.model import change_schema
from writetime.clients.database import connect
from writetime.core.arrow import pc
from writetime.core.config import Settings
from writetime.delta.bucketed_table import BucketedTable
from writetime.delta.buckets import buckets_of, token_range
from writetime.delta.parquet import open_file
from writetime.files.key_ranges import TokenRange
from writetime.lake.bucket_contents import combined
from writetime.lake.horizon import WRITTEN
from writetime.lake.table import LakeTable
from writetime.lake.views import BucketView, bucket_views, time_now
from writetime.landing.reports import held, stopped
from writetime.merge import merge
from writetime.row_events.compare import OrderedRows
from writetime.schema.table import TableSchema
from writetime.verify.compacted_view import CompactedView, compare_view
from writetime.verify.compared_rows import between, differing, digest, tokens_of
from writetime.verify.database_table import DatabaseTable
from writetime.verify.lag import lag_of, rows_that_differ, times_at
from writetime.verify.lost_deletions import FirstRead, compared_rows, rows_with_entries, whole_until
from writetime.verify.suspects import Suspects

# Approximate number of rows of the database in memory at once; twice as many at most, or one partition.
RANGE_ROWS = 200_000
# The number of attempts to read a bucket whose files were merged meanwhile.
_ATTEMPTS = 3
_PAUSE_SECONDS = 1.0


@dataclass(frozen=True)
class ComparedRange:
    """A token range, both ends included: the number of rows of each side, and their digests at the first read."""

    first: int
    last: int
    database_rows: int
    lake_rows: int
    database_digest: str
    lake_digest: str


@dataclass(frozen=True)
class RowDifference:
    """A row that differs between the two sides; None where it does not exist. `written_at` (microseconds) is the newest
    write time that the database reports of the cells that differ, or else of the row; 0 if none.
    """

    token: int
    database: dict[str, Any] | None
    lake: dict[str, Any] | None
    written_at: int
    lagging: bool


@dataclass(frozen=True)
class VerifyReport:
    """The compared ranges, the remaining differences, and the newest write (microseconds) in the lake at the start.

    `differences` are at most `suspects.KEPT` rows that differ and as many that lag; `differing` and `lagging` are their
    numbers. `unsettled` is the number of differing partitions that were not read again, because others really differ.
    If rows lag, and capture or landing of the table has stopped, `stopped` is the reason why they do not reach the lake
    without help. `held` has the reasons why writes may be missing in the lake, although the rows may be equal. `view`
    is the comparison of the compacted view with the lake's rows as of its last refresh; None if there is no view yet.
    """

    ranges: list[ComparedRange]
    differences: list[RowDifference]
    newest: int
    differing: int = 0
    lagging: int = 0
    unsettled: int = 0
    stopped: Sequence[str] = ()
    held: Sequence[str] = ()
    view: CompactedView | None = None

    @property
    def proven(self) -> bool:
        """Whether the two sides are equal, except for lag that passes without help, and the compacted view is right."""
        good_view = self.view is None or self.view.fault is None
        return good_view and not self.differing and not self.unsettled and not self.stopped

    @property
    def real(self) -> list[RowDifference]:
        """The differences that are not lag."""
        return [d for d in self.differences if not d.lagging]


def verify(settings: Settings, table: LakeTable, wait_seconds: float = 10.0) -> VerifyReport:
    """Compare a table's rows in the lake with the database, and its compacted view with these rows.

    Args:
        settings: the settings of the database.
        table: the table in the lake.
        wait_seconds: how long to read differing rows again. If there are many partitions, this time is halved for each
            1,000 partitions after some that still differ.

    Raises:
        WritetimeError: the database cannot be read, or does not have the columns of the lake.
    """
    schema = table.schema()
    newest = newest_write(table)
    # A write that the lake lost may be newer than all others, as when writes end.
    lag_from = max(newest, whole_until(table.changes.load()))
    with connect(settings) as session:
        database = DatabaseTable(session, schema)
        ranges: list[ComparedRange] = []

        def settle(tokens: set[int], seconds: float) -> list[RowDifference]:
            return _settle(table, schema, database, tokens, time.monotonic() + seconds, lag_from=lag_from)

        suspects = Suspects(settle, wait_seconds)
        for found, tokens in _compare(table, schema, database):
            ranges.append(found)
            suspects.add(tokens)
        suspects.read_again()
    reasons = stopped(settings, table) if suspects.lagging else []
    counts = suspects.real, suspects.lagging, suspects.unsettled
    return VerifyReport(ranges, suspects.left, newest, *counts, reasons, held(settings, table), compare_view(table))


def _compare(
    table: LakeTable, schema: TableSchema, database: DatabaseTable
) -> Iterator[tuple[ComparedRange, set[int]]]:
    """Yield the ranges, and for each the tokens of rows that differ at the first read."""
    for bucket in range(table.buckets):
        lake, held = _rows_of_bucket(table, schema, bucket)
        first, last = token_range(bucket, table.buckets)
        step = -(-(last - first + 1) // (1 + held // RANGE_ROWS))
        while first <= last:
            start = first
            # The lake may lack most of the database's rows.
            theirs, end = database.first_rows(start, min(start + step - 1, last), 2 * RANGE_ROWS)
            first = end + 1
            ours = between(lake, start, end)
            digests = digest(theirs, schema), digest(ours, schema)
            tokens = set() if digests[0] == digests[1] else tokens_of(ours, theirs, differing(ours, theirs, schema))
            yield ComparedRange(start, end, len(theirs.tokens), len(ours.tokens), *digests), tokens


def _rows_of_bucket(table: LakeTable, schema: TableSchema, bucket: int) -> tuple[OrderedRows, int]:
    """Return the rows of a bucket as of now, and the number of rows and changes in its files."""
    for _ in range(_ATTEMPTS - 1):
        # Files were merged away meanwhile.
        with suppress(FileNotFoundError):
            return _read_bucket(table, schema, bucket)
    return _read_bucket(table, schema, bucket)


def _read_bucket(table: LakeTable, schema: TableSchema, bucket: int) -> tuple[OrderedRows, int]:
    views = [view for view in bucket_views(table) if view.bucket == bucket]
    held = sum(f.rows for view in views for source in view.contents.sources for f in source.files)
    return compared_rows(*_lake_state(views, schema)), held


def _settle(
    table: LakeTable,
    schema: TableSchema,
    database: DatabaseTable,
    suspects: set[int],
    deadline: float,
    *,
    lag_from: int,
) -> list[RowDifference]:
    """Read the differing tokens again, until none differs or the time is over; return the remaining differences."""
    first: FirstRead | None = None
    while suspects:
        began = time_now()
        theirs, written = database.timed_rows(sorted(suspects))
        first = first or FirstRead(theirs, began, time_now())
        # Before its rows are read.
        is_in_lake = first.is_in_lake(table.changes.load())
        lake = rows_with_entries(*_lake_state(bucket_views(table), schema, sorted(suspects)))
        ours = lake.rows
        found = differing(ours, theirs, schema)
        suspects = tokens_of(ours, theirs, found)
        if suspects and time.monotonic() > deadline:
            lost = first.lost(lake, theirs, found, schema) if is_in_lake else None
            lag = lag_of(ours, theirs, found, times_at(written, found.after), schema, began=lag_from, lost=lost)
            return [
                RowDifference(token, in_database, in_lake, at, lagging)
                for token, in_lake, in_database, at, lagging in rows_that_differ(ours, theirs, found, lag)
            ]
        if suspects:
            time.sleep(_PAUSE_SECONDS)
    return []


def newest_write(table: LakeTable) -> int:
    """Return the newest write time (microseconds) in the lake, by the statistics of its files.

    Write times in the future, which clients may set, do not count.
    """
    now = time_now()
    wanted = {path for field in change_schema(table.schema()) for path in _write_times(field.type, field.name)}
    return max((_newest_in(part, wanted, now) for part in (table.changes, table.state)), default=0)


def _write_times(kind: pa.DataType, path: str) -> Iterator[str]:
    """Yield the paths of write times in a column of changes, as Parquet names them. Values may have fields of the same
    name.
    """
    if pa.types.is_list(kind):
        yield from _write_times(kind.value_type, f"{path}.list.element")
    elif pa.types.is_struct(kind):
        fields = {field.name: field.type for field in kind}
        if pa.types.is_int64(fields.get(WRITTEN, pa.null())):
            yield f"{path}.{WRITTEN}"
            return
        for name, inner in fields.items():
            yield from _write_times(inner, f"{path}.{name}")


def _newest_in(part: BucketedTable, wanted: set[str], now: int) -> int:
    newest = 0
    for file in part.load().files:
        with open_file(part.storage, file.path) as opened:
            paths = {c: path for c in range(len(opened.schema)) if (path := opened.schema.column(c).path) in wanted}
            for group, (column, path) in product(range(opened.num_row_groups), paths.items()):
                statistics = opened.metadata.row_group(group).column(column).statistics
                if statistics is None or not statistics.has_min_max or statistics.max <= newest:
                    continue
                newest = max(
                    newest, statistics.max if statistics.max <= now else _newest_until(opened, group, path, now)
                )
    return newest


def _newest_until(opened: pq.ParquetFile, group: int, path: str, now: int) -> int:
    """Return the newest write time of a column up to now; 0 if there is none."""
    values = opened.read_row_group(group, columns=[path]).column(0).combine_chunks()
    while pa.types.is_nested(values.type):
        # Only the column at the path was read.
        values = values.flatten() if pa.types.is_list(values.type) else values.flatten()[0]
    return pc.max(values.filter(pc.less_equal(values, now))).as_py() or 0


def _lake_state(
    views: Sequence[BucketView], schema: TableSchema, tokens: Sequence[int] | None = None
) -> tuple[pa.Table, TableSchema, int]:
    """Return the state of all tokens or some, the schema, and the time of the views: the rows to compute."""
    if not views:
        return merge([], schema), schema, time_now()
    contents = {view.bucket: view.contents for view in views}
    if tokens is None:
        parts = [combined(list(contents.values())).merged(schema)]
    else:
        # Each token searches only the files of its bucket.
        owners = buckets_of(pa.array(tokens, pa.int64()), views[0].contents.waiting.buckets).tolist()
        asked = [(contents[bucket], token) for bucket, token in zip(owners, tokens, strict=True) if bucket in contents]
        parts = [held.merged(schema, TokenRange(token, token)) for held, token in asked]
    return pa.concat_tables([merge([], schema), *parts]), schema, views[0].as_of
