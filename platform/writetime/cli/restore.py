"""`writetime restore KS.TABLE --to FOLDER`."""

import click

from writetime.core import config
from writetime.core.counts import pluralize
from writetime.core.instants import parse_instant
from writetime.lake import restore as lake
from writetime.lake.table import open_table
from writetime.storage.locations import without_secrets
from writetime.storage.sstable_writer import VERSIONS


@click.command()
@click.argument("table", metavar="KS.TABLE")
@click.option("--to", "folder", required=True, metavar="FOLDER", help="A new or empty folder, local or a URL.")
@click.option("--as-of", "as_of", help="A time, such as 2025-06-01T12:00:00Z, or microseconds since 1970.")
@click.option(
    "--version",
    type=click.Choice(VERSIONS),
    default="nb",
    show_default=True,
    help="nb: Cassandra 4.0 to 5.0; oa: Cassandra 5.0, with expiries after 2038; me: ScyllaDB.",
)
def restore(*, table: str, folder: str, as_of: str | None, version: str) -> None:
    """Write a table of the lake as SSTables, which the database can import. They have all cells and tombstones, with
    their times, as of now or of a past time (--as-of)."""
    instant = None if as_of is None else parse_instant(as_of)
    sstables = lake.restore(open_table(config.load(), table), folder, instant, version=version)
    for sstable in sstables:
        click.echo(f"{sstable.file}  {pluralize(sstable.changes, 'change')}", err=True)
    changes = pluralize(sum(sstable.changes for sstable in sstables), "change")
    click.echo(f"{table}: {changes} in {pluralize(len(sstables), 'SSTable')} in {without_secrets(folder)}")
