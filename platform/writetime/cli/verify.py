"""`writetime verify KS.TABLE`."""

import sys
import time
from collections.abc import Sequence

import click
import orjson

from writetime.core import config
from writetime.core.config import Settings
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError
from writetime.core.instants import instant_text
from writetime.lake.table import open_table
from writetime.verify.clusters import ClusterProgress, ClusterReport, verify_clusters
from writetime.verify.comparison import verify as compare

_CAUSE = (
    "rows may differ because data entered without the commit log, by sstableloader, nodetool import or repair "
    "streaming: take a snapshot, and bring it into the lake with `writetime backfill`. If only the lake has rows, the "
    "database may have lost writes, for example because it was restored to an earlier time: load the table again, as "
    "docs/backup.md describes"
)
PROGRESS_SECONDS = 5.0
"""Seconds between two lines of progress."""


@click.command()
@click.argument("table", metavar="KS.TABLE")
@click.option(
    "--wait", default=10.0, show_default=True, help="Seconds to read differing rows again, because of replication lag."
)
@click.option(
    "--against",
    metavar="CLUSTER",
    help="Compare the database with another cluster, [clusters.CLUSTER] in the settings, instead of with the view.",
)
@click.option("--times", is_flag=True, help="With --against: also compare the write times and TTLs of cells.")
def verify(*, table: str, wait: float, against: str | None, times: bool) -> None:
    """Compare a table's view with the database. It goes by token ranges, and prints the rows that differ as JSON lines.
    Then it compares the compacted view with the rows that it should have.

    The exit status is 1 if rows differ for a reason other than replication lag, if rows lag and the capture or landing
    of the table has stopped, or if the compacted view is wrong.
    """
    settings = config.load()
    if against is not None:
        report = compare_clusters(settings, against, table, wait, with_times=times)
        sys.exit(0 if report.proven else 1)
    if times:
        raise WritetimeError("--times needs --against: a view has no times of cells")
    sys.exit(0 if _view(settings, table, wait) else 1)


def _view(settings: Settings, table: str, wait: float) -> bool:
    """Compare the view with the database; return whether it is proven."""
    report = compare(settings, open_table(settings, table), wait)
    _print(report.differences)
    lake, database = (sum(getattr(r, side) for r in report.ranges) for side in ("lake_rows", "database_rows"))
    ranges = pluralize(len(report.ranges), "token range")
    read = f"{table}: {ranges}, {pluralize(database, 'row')} in the database and {lake} in the lake"
    click.echo(summary(read, abs(database - lake), report.differing, report.lagging, report.unsettled), err=True)
    if report.differing:
        click.echo(f"{table}: {_CAUSE}", err=True)
    if report.view is not None:
        _print(report.view.differences)
        fault = f": {report.view.fault}" if report.view.fault else ""
        at = instant_text(report.view.as_of)
        click.echo(f"{table}: the compacted view has {pluralize(report.view.rows, 'row')}, as of {at}{fault}", err=True)
    for reason in report.held:
        click.echo(f"{table}: writes may be missing in the lake, so its watermark does not advance: {reason}", err=True)
    for reason in report.stopped:
        click.echo(f"{table}: the rows that lag do not reach the lake: {reason}", err=True)
    return report.proven


def compare_clusters(settings: Settings, against: str, table: str, wait: float, *, with_times: bool) -> ClusterReport:
    """Compare the database with another cluster, and print the progress and the differences."""
    shown = time.monotonic()

    def show(progress: ClusterProgress) -> None:
        nonlocal shown
        if time.monotonic() - shown >= PROGRESS_SECONDS:
            shown = time.monotonic()
            rows = (
                f"{pluralize(progress.database_rows, 'row')} in the database and {progress.against_rows} in {against}"
            )
            click.echo(f"{table}: {progress.share:.0%} of the tokens, {rows}", err=True)

    report = verify_clusters(settings, against, table, wait, show, with_times=with_times)
    _print(report.differences)
    ranges, rows = pluralize(report.ranges, "token range"), pluralize(report.database_rows, "row")
    read = f"{table}: {ranges}, {rows} in the database and {report.against_rows} in {against}"
    apart = abs(report.database_rows - report.against_rows)
    click.echo(summary(read, apart, report.differing, report.lagging, report.unsettled), err=True)
    return report


def _print(differences: Sequence[object]) -> None:
    for difference in differences:
        click.echo(orjson.dumps(difference))


def summary(read: str, apart: int, differing: int, lagging: int, unsettled: int) -> str:
    """Return the summary of a comparison: the text of the first read, with the numbers of rows of both sides, which are
    so far `apart`; the rows that still differ or lag, and the partitions that were not read again (`unsettled`).
    """
    # Otherwise the numbers seem to contradict each other.
    first = " at the first read; at the last" if apart > differing + lagging and not unsettled else ""
    more = f"; not read again: {pluralize(unsettled, 'more partition')}" if unsettled else ""
    return f"{read}{first}: {differing} differ, {lagging} more lag behind{more}"
