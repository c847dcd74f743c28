"""`writetime replicate | cutover KS.TABLE`."""

import sys
import time
from dataclasses import asdict
from pathlib import Path

import click
import orjson

from writetime.cli.verify import compare_clusters
from writetime.core import config
from writetime.core.config import Settings, TableEntry
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError
from writetime.core.instants import instant_text, parse_instant
from writetime.lake.followed_tables import read_entries
from writetime.lake.table import open_table
from writetime.replication.replicated_part import ReplicatedPart
from writetime.replication.replicating import replicator
from writetime.verify.cutover import wait_until_complete
from writetime.verify.left_to_do import prepare

# Watermarks are by the clocks of the nodes (microseconds).
_CLOCKS_DIFFER = 5_000_000
_to = click.option("--to", "cluster", help="[clusters.CLUSTER] in the settings; default: `replicate_to` of the table.")


@click.command()
@click.argument("table", metavar="KS.TABLE")
@_to
@click.option("--again", is_flag=True, help="Write the whole table again, as after a TRUNCATE.")
def replicate(*, table: str, cluster: str | None, again: bool) -> None:
    """Write the changes of a table that another cluster lacks to it, with their write times.

    The first run writes the whole table. `writetime follow` does this all the time for tables with `replicate_to`.
    """
    settings = config.load()
    cluster, part = _chosen(settings, table, cluster)
    lake = open_table(settings, table)
    with replicator(settings, lake, cluster, part) as opened:
        written = opened.replicate(lake, again=again)
        position = opened.position
    click.echo(f"{table}: {pluralize(written, 'row')} and deletions written to {cluster}")
    if position is not None and position.complete_until:
        click.echo(f"{cluster} has all writes up to {instant_text(position.complete_until)}")


@click.command()
@click.argument("table", metavar="KS.TABLE")
@_to
@click.option("--at", "instant", metavar="INSTANT", help="When the last write to the old cluster ended; default: now.")
@click.option("--wait", default=600.0, show_default=True, help="Seconds to wait for the writes up to this instant.")
@click.option("--report", type=click.Path(path_type=Path), help="A file for the report, as JSON.")
def cutover(*, table: str, cluster: str | None, instant: str | None, wait: float, report: Path | None) -> None:
    """Wait until another cluster has all writes to a table, and compare all cells of both.

    Stop the writes to the old cluster first. Values, write times and TTLs are compared; rows that differ are printed as
    JSON lines, and the exit status is 1 then. Options, indexes and materialized views that the other cluster lacks are
    listed as left to do.
    """
    settings = config.load()
    cluster, part = _chosen(settings, table, cluster)
    if not part.is_whole:
        raise WritetimeError(f"{cluster} has a part of {table} only, or masked columns, so clients cannot move there")
    at = time.time_ns() // 1000 + _CLOCKS_DIFFER if instant is None else parse_instant(instant)

    def show(reached: int) -> None:
        click.echo(f"{cluster} has all writes up to {instant_text(reached)}" if reached else "loading", err=True)

    position = wait_until_complete(settings, table, cluster, at, wait_seconds=wait, progress=show)
    renamed, left_to_do = prepare(settings, cluster, table)
    for statement in renamed:
        click.echo(f"done in {cluster}: {statement}", err=True)
    began = time.time_ns() // 1000
    found = compare_clusters(settings, cluster, table, 10.0, with_times=True)
    # A row that lags was written during the comparison, to one cluster only.
    is_equal = found.proven and not found.lagging
    if report is not None:
        content = {
            "table": table,
            "from": settings.cassandra.contact_points,
            "to": settings.clusters[cluster].contact_points,
            "writes_until": instant_text(at),
            "replicated_until": instant_text(position.complete_until),
            "compared": "all values; write times and TTLs of all cells that both databases report",
            "comparison_began": instant_text(began),
            "comparison_ended": instant_text(time.time_ns() // 1000),
            "left_to_do": left_to_do,
            "equal": is_equal,
            **asdict(found),
        }
        report.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
    verdict = "equal" if is_equal else "not equal"
    click.echo(f"{table}: all writes up to {instant_text(at)} are in {cluster}, and the two are {verdict}")
    for each in left_to_do:
        click.echo(f"left to do: {each}")
    if found.lagging:
        click.echo(f"{table}: clients still write to one of the two clusters", err=True)
    sys.exit(0 if is_equal else 1)


def _chosen(settings: Settings, table: str, cluster: str | None) -> tuple[str, ReplicatedPart]:
    """Return the cluster, and the part of the table that its entry names for this cluster."""
    entry = next((each.entry for each in read_entries(settings)[0] if each.name == table), TableEntry())
    found = cluster or entry.replicate_to
    if found is None:
        raise WritetimeError(f"name the cluster with --to, or set replicate_to in [tables.{table}]")
    return found, ReplicatedPart.of_entry(entry) if found == entry.replicate_to else ReplicatedPart()
