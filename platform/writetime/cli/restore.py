"""`writetime restore KS.TABLE --to FOLDER`, and `writetime import FOLDER`."""

import sys

import click
import orjson

from writetime.bulk_load.import_folders import import_folder, import_transfers
from writetime.bulk_load.sstables import RestoreManifest
from writetime.core import config
from writetime.core.config import Settings
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError
from writetime.core.instants import instant_text, parse_instant
from writetime.core.logs import log_as_json
from writetime.core.signals import stopped_by_signal
from writetime.lake.table import LakeTable, open_table
from writetime.restore import to_folder
from writetime.restore.into import restore_into
from writetime.storage.locations import without_secrets
from writetime.storage.sstable_writer import VERSIONS


@click.command()
@click.argument("table", metavar="KS.TABLE")
@click.option("--to", "folder", required=True, metavar="FOLDER", help="A new or empty folder, local or a URL.")
@click.option("--as-of", "as_of", help="A time, such as 2025-06-01T12:00:00Z, or microseconds since 1970.")
@click.option("--into", metavar="KS.OTHER", help="Import into this table of the database, and compare it.")
@click.option("--merge", is_flag=True, help="With --into: the table may have rows; the newer write to a cell counts.")
@click.option(
    "--version",
    type=click.Choice(VERSIONS),
    default="nb",
    show_default=True,
    help="nb: Cassandra 4.0 to 5.0; oa: Cassandra 5.0, with expiries after 2038; me: ScyllaDB.",
)
def restore(*, table: str, folder: str, as_of: str | None, into: str | None, merge: bool, version: str) -> None:
    """Write a table of the lake as SSTables, which the database can import. They have all cells and tombstones, with
    their times, as of now or of a past time (--as-of).

    With --into, each node of the database gets its own SSTables. The nodes of this machine import them at once, others
    by `writetime import FOLDER`. When all have them, the rows are compared with the lake. The exit status is 1 if nodes
    remain or rows differ. Run the same command again to go on.
    """
    settings = config.load()
    instant = None if as_of is None else parse_instant(as_of)
    lake = open_table(settings, table)
    if into is None and merge:
        raise WritetimeError("--merge needs --into")
    if into is not None:
        if version != "nb":
            raise WritetimeError(f"--version {version} is for SSTables without --into, where the database decides")
        sys.exit(0 if _into(settings, lake, folder, into, instant, merge=merge) else 1)
    _show(folder, to_folder.restore(lake, folder, instant, version=version))


def _into(settings: Settings, table: LakeTable, folder: str, into: str, as_of: int | None, *, merge: bool) -> bool:
    """Restore into a table, and print the result; return whether it is proven."""
    report = restore_into(settings, table, folder, into, as_of, merge=merge)
    _show(folder, report.manifest)
    if report.comparison is None:
        remain = f"{pluralize(len(report.remaining), 'node')} on other machines ({', '.join(report.remaining)})"
        remedy = f"run `writetime import {without_secrets(folder)}` on each, and then this command again"
        click.echo(f"{into}: {remain} have not imported their SSTables: {remedy}", err=True)
        return False
    found = report.comparison
    for difference in found.differences:
        click.echo(orjson.dumps(difference))
    newer = f", {found.newer} have newer writes or deletions of {into}" if found.newer else ""
    click.echo(f"{into}: {pluralize(found.rows, 'row')} in the lake; {found.differing} differ{newer}", err=True)
    return found.proven


def _show(folder: str, manifest: RestoreManifest) -> None:
    what = f"{pluralize(manifest.changes, 'change')} in {pluralize(len(manifest.sstables), 'SSTable')}"
    click.echo(f"{manifest.table}: {what} in {without_secrets(folder)}")
    if manifest.as_of is not None and manifest.as_of > manifest.captured_until > 0:
        until = instant_text(manifest.captured_until)
        click.echo(f"{manifest.table}: the lake has all writes up to {until}; later ones may be missing", err=True)


@click.command("import")
@click.argument("folder", metavar="FOLDER")
@click.option("--follow", is_flag=True, help="Import what replications write below the folder, as it comes.")
def import_(*, folder: str, follow: bool) -> None:
    """Import the SSTables that `writetime restore --into` wrote for the node of this machine.

    Run it on the machine of the node, as the user of the node. In a cluster, capture.node names the node.
    """
    settings = config.load()
    if follow:
        log_as_json()
        import_transfers(settings, folder, stopped_by_signal())
        return
    manifest, count = import_folder(settings, folder)
    assert manifest.target is not None
    click.echo(f"{manifest.target.table}: {pluralize(count, 'SSTable')} imported from {without_secrets(folder)}")
