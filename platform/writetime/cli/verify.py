"""`writetime verify KS.TABLE`."""

import sys
from dataclasses import asdict

import click
import orjson

from writetime.core import config
from writetime.lake.table import open_table
from writetime.verify.comparison import verify as compare

_CAUSE = (
    "rows may differ because data entered without the commit log, by sstableloader, nodetool import or repair "
    "streaming: take a snapshot, and bring it into the lake with `writetime backfill`"
)


@click.command()
@click.argument("table", metavar="KS.TABLE")
@click.option(
    "--wait", default=10.0, show_default=True, help="Seconds to read differing rows again, because of replication lag."
)
def verify(*, table: str, wait: float) -> None:
    """Compare a table's view with the database, by token ranges; print the rows that differ as JSON lines.

    The exit status is 1 if rows differ for a reason other than replication lag, or if rows lag and the capture or
    landing of the table has stopped.
    """
    settings = config.load()
    report = compare(settings, open_table(settings, table), wait)
    for difference in report.differences:
        click.echo(orjson.dumps(asdict(difference)))
    lake, database = (sum(getattr(r, side) for r in report.ranges) for side in ("lake_rows", "database_rows"))
    lagging = len(report.differences) - len(report.real)
    click.echo(
        f"{table}: {len(report.ranges)} token ranges, {database} rows in the database and {lake} in the lake: "
        f"{len(report.real)} differ, {lagging} more lag behind"
        + (f"; {report.unsettled} more partitions differ and were not read again" if report.unsettled else ""),
        err=True,
    )
    if report.real:
        click.echo(f"{table}: {_CAUSE}", err=True)
    for reason in report.stopped:
        click.echo(f"{table}: the rows that lag do not reach the lake: {reason}", err=True)
    sys.exit(0 if report.proven else 1)
