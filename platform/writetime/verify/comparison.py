"""Compares a table's view with the database by token ranges: first by digests, then row by row.

The two are never read at the same time, so differing rows are read again, in both places, until they are equal or the
waiting time is over. A remaining difference is lag if the database reports a write time later than anything that the
lake knew of when the verification began (later changes land bucket by bucket). Otherwise it is a real difference. Lag
proves nothing if the table is captured and its capture or landing has stopped: then it does not pass. (CQL reports no
time of a deletion: one that the lake has not seen within the waiting time counts as a difference.)
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.lake.buckets import token_range
from writetime.lake.contents import combined
from writetime.lake.delta import BucketedTable
from writetime.lake.places import TokenRange
from writetime.lake.table import LakeTable
from writetime.lake.views import BucketView, bucket_views, time_now
from writetime.landing.reports import stopped
from writetime.merge import merge
from writetime.row_events.compare import Matched, Rows
from writetime.row_events.events import placed_rows
from writetime.schema.table import TableSchema
from writetime.verify.database_table import DatabaseTable
from writetime.verify.rows import differing, digest, json_row, tokens_of

# Approximate number of rows of the database in memory at once.
RANGE_ROWS = 200_000
# The most partitions that are read again. With more, there is no point in distinguishing them.
SUSPECTS = 1_000
_PAUSE_SECONDS = 1.0


@dataclass(frozen=True)
class Range:
    """A token range, both ends included: the number of rows of each side, and their digests at the first read."""

    first: int
    last: int
    database_rows: int
    lake_rows: int
    database_digest: str
    lake_digest: str


@dataclass(frozen=True)
class Difference:
    """A row that differs between the two sides; None where it does not exist. `written_at` (microseconds) is its newest
    write time that the database reports, 0 if none.
    """

    token: int
    database: dict[str, Any] | None
    lake: dict[str, Any] | None
    written_at: int
    lagging: bool = False


@dataclass(frozen=True)
class Report:
    """The ranges that were compared, the remaining differences, and the newest write (microseconds) that the lake knew
    of at first.

    `unsettled` is the number of differing partitions beyond the first `SUSPECTS`, which were not read again. If rows
    lag, `stopped` is why they do not reach the lake without help, if capture or landing of the table has stopped.
    """

    ranges: list[Range]
    differences: list[Difference]
    newest: int
    unsettled: int = 0
    stopped: Sequence[str] = ()

    @property
    def proven(self) -> bool:
        """Whether the two sides are equal, except for lag that passes without help."""
        return not self.real and not self.unsettled and not self.stopped

    @property
    def real(self) -> list[Difference]:
        """The differences that are not lag."""
        return [d for d in self.differences if not d.lagging]


class Suspects:
    """The partitions that differed at the first read, by their tokens.

    All partitions of a table may differ. So only the first `SUSPECTS` are kept, which are read again; the others are
    counted.
    """

    def __init__(self) -> None:
        self.chosen: set[int] = set()
        self.unsettled = 0

    def add(self, tokens: set[int]) -> None:
        """Add the partitions of a range that has not been compared before."""
        first = sorted(tokens)[: SUSPECTS - len(self.chosen)]
        self.chosen.update(first)
        self.unsettled += len(tokens) - len(first)


def verify(settings: Settings, table: LakeTable, wait_seconds: float = 10.0) -> Report:
    """Compare a table's view with the database.

    Args:
        settings: where the database is.
        table: the table in the lake.
        wait_seconds: how long to read differing rows again.

    Raises:
        WritetimeError: the database cannot be read, or does not have the columns of the lake.
    """
    schema = table.schema()
    newest = newest_write(table)
    with connect(settings) as session:
        database = DatabaseTable(session, schema)
        ranges: list[Range] = []
        suspects = Suspects()
        for found, tokens in _compare(table, schema, database):
            ranges.append(found)
            suspects.add(tokens)
        left = [
            replace(d, lagging=d.written_at > newest)
            for d in _settle(table, schema, database, suspects.chosen, time.monotonic() + wait_seconds)
        ]
    reasons = stopped(settings, table) if any(d.lagging for d in left) else []
    return Report(ranges, left, newest, suspects.unsettled, reasons)


def _compare(table: LakeTable, schema: TableSchema, database: DatabaseTable) -> Iterator[tuple[Range, set[int]]]:
    """Yield the ranges, and for each the tokens of rows that differ at the first read."""
    views = {view.bucket: view for view in bucket_views(table)}
    for bucket in range(table.buckets):
        view = views.get(bucket)
        held = sum(f.rows for source in view.contents.sources for f in source.files) if view else 0
        first, last = token_range(bucket, table.buckets)
        step = -(-(last - first + 1) // (1 + held // RANGE_ROWS))
        lake = _lake_rows([view] if view else [], schema, None)
        for start in range(first, last + 1, step):
            end = min(start + step - 1, last)
            theirs = database.rows(start, end)
            ours = _between(lake, start, end)
            digests = digest(theirs, schema), digest(ours, schema)
            tokens = set() if digests[0] == digests[1] else tokens_of(ours, theirs, differing(ours, theirs, schema))
            yield Range(start, end, len(theirs.tokens), len(ours.tokens), *digests), tokens


def _settle(
    table: LakeTable,
    schema: TableSchema,
    database: DatabaseTable,
    suspects: set[int],
    deadline: float,
) -> list[Difference]:
    """Read the differing tokens again, until none differs or the time is over; return the remaining differences."""
    while suspects:
        theirs, written = database.timed_rows(sorted(suspects))
        ours = _lake_rows(bucket_views(table), schema, np.array(sorted(suspects), np.int64))
        found = differing(ours, theirs, schema)
        suspects = tokens_of(ours, theirs, found)
        if suspects and time.monotonic() > deadline:
            return _differences(ours, theirs, found, written)
        if suspects:
            time.sleep(_PAUSE_SECONDS)
    return []


def newest_write(table: LakeTable) -> int:
    """Return the newest write time (microseconds) that the lake knows of, by the statistics of its files.

    Write times in the future, which clients may set, do not count.
    """
    now = time_now()
    newest = 0
    for part in (table.changes, table.state):
        for statistics in _write_times(part):
            if statistics is not None and statistics.has_min_max and newest < statistics.max <= now:
                newest = statistics.max
    return newest


def _write_times(part: BucketedTable) -> Iterator[pq.Statistics | None]:
    filesystem = part.storage.filesystem()
    for file in part.load().files:
        with pq.ParquetFile(file.path, filesystem=filesystem) as opened:
            columns = [c for c in range(len(opened.schema)) if opened.schema.column(c).path.endswith(".write_time")]
            for group in range(opened.num_row_groups):
                for column in columns:
                    yield opened.metadata.row_group(group).column(column).statistics


def _lake_rows(views: Sequence[BucketView], schema: TableSchema, tokens: np.ndarray | None) -> Rows:
    if not views:
        return placed_rows(merge([], schema), schema, time_now())
    contents = combined([view.contents for view in views])
    asked = [None] if tokens is None else [TokenRange(token, token) for token in tokens.tolist()]
    state = pa.concat_tables([merge([], schema), *(contents.merged(schema, each) for each in asked)])
    return placed_rows(state, schema, views[0].as_of)


def _between(rows: Rows, first: int, last: int) -> Rows:
    tokens = rows.tokens.to_numpy()
    start, end = np.searchsorted(tokens, first), np.searchsorted(tokens, last, "right")
    parts = (rows.tokens, rows.keys, rows.positions)
    return Rows(rows.values.slice(start, end - start), *(part.slice(start, end - start) for part in parts))


def _differences(ours: Rows, theirs: Rows, found: Matched, written: np.ndarray) -> list[Difference]:
    differences = []
    for i, j in zip(found.before.tolist(), found.after.tolist(), strict=True):
        at = int(written[j]) if j >= 0 else 0
        token = ours.tokens[i] if i >= 0 else theirs.tokens[j]
        differences.append(Difference(token.as_py(), json_row(theirs, j), json_row(ours, i), at))
    return differences
