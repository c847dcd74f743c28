"""Compares a table of two clusters by token ranges, as before the end of a migration.

Each range is compared by digests, then row by row. The clusters are never read at the same time, so partitions that
differ are read again, from both, until they are equal or the waiting time is over. A remaining difference is lag if
the cells that differ were written after the beginning of the comparison, as one of the databases reports. (CQL reports
no time of a deletion, so a deletion that only one cluster has counts as a difference.)
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.lake.views import time_now
from writetime.schema.system import read_schema
from writetime.schema.table import SchemaError, TableSchema
from writetime.verify.cell_times import timed_schema
from writetime.verify.compared_rows import differing, digest, tokens_of
from writetime.verify.comparison import RANGE_ROWS
from writetime.verify.database_table import DatabaseTable
from writetime.verify.lag import lag_of, rows_that_differ, times_at
from writetime.verify.suspects import Suspects

_FIRST, _LAST = -(1 << 63), (1 << 63) - 1
# The first range is this share of all tokens, because nothing is known of the table. Each later range is at most four
# times larger or smaller than the previous one.
_FIRST_SHARE = 1 << 12
_MOST_GROWTH = 4
_PAUSE_SECONDS = 1.0


@dataclass(frozen=True)
class ClusterDifference:
    """A row that differs between the two clusters; None where it does not exist. `written_at` (microseconds) is the
    newest write time that either database reports of the cells that differ, or else of the row; 0 if none.
    """

    token: int
    database: dict[str, Any] | None
    against: dict[str, Any] | None
    written_at: int
    lagging: bool


@dataclass(frozen=True)
class ClusterProgress:
    """The progress of a comparison: the share of all tokens (0 to 1), and the rows of both sides."""

    share: float
    database_rows: int
    against_rows: int


@dataclass(frozen=True)
class ClusterReport:
    """The rows of both sides, and the remaining differences: at most `suspects.KEPT` rows that differ and as many that
    lag; `differing` and `lagging` are how many there are. `unsettled` is the number of differing partitions that were
    not read again, because others really differ.
    """

    ranges: int
    database_rows: int
    against_rows: int
    differences: list[ClusterDifference]
    differing: int
    lagging: int
    unsettled: int

    @property
    def proven(self) -> bool:
        """Whether the two sides are equal, except for lag."""
        return not self.differing and not self.unsettled

    @property
    def real(self) -> list[ClusterDifference]:
        """The differences that are not lag."""
        return [d for d in self.differences if not d.lagging]


def verify_clusters(
    settings: Settings,
    against: str,
    table: str,
    wait_seconds: float = 10.0,
    progress: Callable[[ClusterProgress], None] | None = None,
    *,
    with_times: bool = False,
) -> ClusterReport:
    """Compare a table of the database with the same table of another cluster: the values, and `with_times` also the
    write times and expiries of cells. Of parts of columns, they are compared if both databases report them.

    Args:
        settings: the settings of the database and of the other clusters.
        against: the name of the other cluster, as in `[clusters.NAME]`.
        table: the name of the table, as keyspace.table.
        wait_seconds: as in `comparison.verify`.
        progress: is called after each range.

    Raises:
        WritetimeError: the settings have no such cluster, one of the two cannot be read, or the table has other
            columns in the other cluster.
    """
    other = settings.of_cluster(against)
    began = time_now()
    with connect(settings) as session, connect(other) as other_session:
        schema = read_schema(session, table)
        try:
            theirs = read_schema(other_session, table)
        except SchemaError:
            raise WritetimeError(f"the cluster {against} has no table {table}") from None
        _require_same_columns(schema, theirs, against)
        here = DatabaseTable(session, schema, with_times=with_times)
        there = DatabaseTable(other_session, replace(schema, id=None), with_times=with_times)
        here.timed = there.timed = [each for each in here.timed if each in there.timed]
        pair = _Pair(here, there, schema)

        def settle(tokens: set[int], seconds: float) -> list[ClusterDifference]:
            return pair.settle(tokens, time.monotonic() + seconds, began)

        ranges, suspects, found = 0, Suspects(settle, wait_seconds), ClusterProgress(0, 0, 0)
        for share, here_rows, there_rows, tokens in pair.compare():
            ranges += 1
            suspects.add(tokens)
            found = ClusterProgress(share, found.database_rows + here_rows, found.against_rows + there_rows)
            if progress is not None:
                progress(found)
        suspects.read_again()
    counts = suspects.real, suspects.lagging, suspects.unsettled
    return ClusterReport(ranges, found.database_rows, found.against_rows, suspects.left, *counts)


class _Pair:
    """The table in both clusters."""

    def __init__(self, here: DatabaseTable, there: DatabaseTable, schema: TableSchema) -> None:
        self._here = here
        self._there = there
        self._schema = schema
        self._timed = timed_schema(schema, here.timed)

    def compare(self) -> Iterator[tuple[float, int, int, set[int]]]:
        """Yield for each range of tokens the share of all tokens up to its end, the rows of both sides, and the tokens
        of rows that differ. Ranges follow the number of rows, so that each has about `RANGE_ROWS`.
        """
        total = _LAST - _FIRST + 1
        first, step = _FIRST, total // _FIRST_SHARE
        with ThreadPoolExecutor(2) as pool:
            while first <= _LAST:
                last = min(first + step - 1, _LAST)
                here, there = pool.map(lambda side, r=(first, last): side.rows(*r), (self._here, self._there))
                # Expiries are equal within some seconds, so they have no digest.
                has_digest = not self._here.timed
                same = has_digest and digest(here, self._schema) == digest(there, self._schema)
                tokens = set() if same else tokens_of(here, there, differing(here, there, self._timed))
                rows = len(here.tokens), len(there.tokens)
                yield (last - _FIRST + 1) / total, *rows, tokens
                growth = RANGE_ROWS / max(*rows, 1)
                step = max(int(step * min(max(growth, 1 / _MOST_GROWTH), _MOST_GROWTH)), 1)
                first = last + 1

    def settle(self, suspects: set[int], deadline: float, began: int) -> list[ClusterDifference]:
        """Read the tokens again, until none differs or the time is over; return the remaining differences."""
        while suspects:
            (here, here_times), (there, there_times) = (
                side.timed_rows(sorted(suspects)) for side in (self._here, self._there)
            )
            found = differing(here, there, self._timed)
            suspects = tokens_of(here, there, found)
            if suspects and time.monotonic() > deadline:
                times = np.maximum(times_at(here_times, found.before), times_at(there_times, found.after))
                lag = lag_of(here, there, found, times, self._schema, began=began)
                return [ClusterDifference(*row) for row in rows_that_differ(here, there, found, lag)]
            if suspects:
                time.sleep(_PAUSE_SECONDS)
        return []


def _require_same_columns(schema: TableSchema, other: TableSchema, against: str) -> None:
    ours, theirs = _columns(schema), _columns(other)
    names = [name for name in sorted(ours.keys() | theirs.keys()) if ours.get(name) != theirs.get(name)]
    if names:
        raise WritetimeError(
            f"{schema.full_name} has other columns in the cluster {against}, so the two cannot be compared: "
            + "; ".join(f"{ours.get(n, 'no ' + n)} here, and {theirs.get(n, 'no ' + n)} there" for n in names)
        )


def _columns(schema: TableSchema) -> dict[str, str]:
    """Return each column as text, by its name, with its type, its kind and its place in a key; and each UDT with its
    fields.
    """
    kinds = {
        "partition key": schema.partition_key,
        "clustering": schema.clustering,
        "static": schema.static,
        "regular": schema.regular,
    }
    found = {f"type {udt.name}": f"type {udt.name} {udt.fields}" for udt in schema.udts()}
    for kind, columns in kinds.items():
        for number, column in enumerate(columns):
            place = f" {number + 1}" if kind in ("partition key", "clustering") else ""
            found[column.name] = f"{column.name} {column.type} ({kind}{place})"
    return found
