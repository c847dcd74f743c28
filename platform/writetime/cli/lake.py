"""`writetime snapshot | backfill | maintain | rebuild KS.TABLE`."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import click

from writetime.cli.options import schema_option
from writetime.clients.node_snapshots import new_tag, take_snapshot
from writetime.core import config
from writetime.core.config import Settings
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError
from writetime.delta.log_repair import repair_log
from writetime.files.row_form import warning
from writetime.lake import state
from writetime.lake.backfill import backfill as run_backfill
from writetime.lake.backfill import complete_schema, find_snapshots, lacking_nodes, untaken
from writetime.lake.table import LakeTable, create_missing_parts, create_table, open_table, table_storage
from writetime.row_events.stream import extend
from writetime.schema.cql import parse_table
from writetime.storage.locations import without_secrets
from writetime.view.expected_rows import check_of
from writetime.view.refreshing import refresh
from writetime.view.upkeep import maintain as maintain_table

_REBUILD: dict[str, tuple[Callable[[Settings, LakeTable], int], str, str]] = {
    "state": (lambda _, table: state.rebuild(table), "file", " of changes merged"),
    "view": (
        lambda settings, table: refresh(settings, table, staged=check_of(settings, table), whole=True).rows,
        "row",
        "",
    ),
    "row_events": (lambda _, table: extend(table, rebuild=True), "event", ""),
}


@click.command()
@click.argument("table", metavar="KS.TABLE")
@click.option("--tag", help="The snapshot's name; default: a new one, with the current time.")
def snapshot(*, table: str, tag: str | None) -> None:
    """Take a snapshot of a table on this machine's Cassandra node. The folders of the snapshot are printed, for
    `backfill`."""
    for folder in take_snapshot(config.load(), table, new_tag() if tag is None else tag):
        click.echo(folder)


@click.command()
@click.argument("table", metavar="KS.TABLE")
@click.argument("places", metavar="PLACE...", nargs=-1, required=True)
@schema_option
def backfill(*, table: str, places: tuple[str, ...], schema_file: Path | None) -> None:
    """Bring snapshots or backups of a table into the lake. They may come from one node or many.

    A PLACE is a folder or a URL: the folder of a snapshot; or, detected by its files, a place of Scylla Manager or of
    Cassandra Medusa, or a folder with data folders of nodes, with their `snapshots` and `backups`. Safe to repeat:
    SSTables that the lake already has are not read again.
    """
    settings = config.load()
    found = find_snapshots(places, parse_table(schema_file.read_text()) if schema_file else None, table)
    if found.schema.full_name != table:
        # Only this case needs the import, which takes time.
        from writetime.landing.missing_tables import KnownTables

        other = f"{without_secrets(places[0])} is a snapshot of {found.schema.full_name}, not of {table}"
        raise WritetimeError(KnownTables(settings).misspelt(table) or other)
    found = complete_schema(settings, found)
    lake_table = create_table(settings, found.schema)
    for reason in lacking_nodes(lake_table, found):
        click.echo(reason, err=True)
    click.echo(f"{len(untaken(lake_table, found))} of {pluralize(len(found.files), 'SSTable')} new", err=True)
    total = 0
    for bucket, changes in run_backfill(lake_table, found):
        total += changes
        click.echo(f"bucket {bucket + 1} of {lake_table.buckets}: {pluralize(changes, 'change')}", err=True)
    folded = state.fold(lake_table)
    click.echo(
        f"{table}: {pluralize(total, 'change')} added, {pluralize(folded, 'file')} of changes folded into the state"
    )


@click.command()
@click.argument("table", metavar="KS.TABLE")
def maintain(*, table: str) -> None:
    """Fold, compact and clean up a table of the lake. That is: fold new changes into the state, compact it, refresh the
    compacted view, trim the logs, drop old tombstones, pack files, merge old history and row events, delete files that
    no version needs."""
    settings = config.load()
    unfit: Counter[str] = Counter()
    done = maintain_table(settings, open_table(settings, table), unfit=unfit)
    click.echo(f"changes    {pluralize(done['files_folded'], 'file')} folded into the state")
    click.echo(f"state      levels folded in {pluralize(done['buckets_compacted'], 'bucket')}")
    click.echo(f"tombstones dropped in {pluralize(done['buckets_without_old_tombstones'], 'bucket')}")
    click.echo(f"view       {pluralize(done['rows'], 'row')}")
    click.echo(f"history    {pluralize(done['history_files_merged'], 'file')} merged")
    click.echo(f"events     {done['row_events_merged']} merged into the rows that they resulted in")
    click.echo(f"vacuum     {pluralize(done['files_deleted'], 'file')} deleted")
    if unfit:
        click.echo(warning(table, unfit), err=True)


@click.command()
@click.argument("table", metavar="KS.TABLE")
@click.argument(
    "parts", metavar="[changes|state|view|row_events]...", type=click.Choice(["changes", *_REBUILD]), nargs=-1
)
def rebuild(*, table: str, parts: tuple[str, ...]) -> None:
    """Rebuild state, compacted view or row events from stored data. The state comes from the changes, the view and the
    row events from the state. The default is the state and the view. A state or view that is missing, and a state that
    has other changes than the lake, are always included. If the view cannot be rebuilt because its rows are not as
    expected, the row events are rebuilt anyway. The database is not read.

    The changes cannot be rebuilt. `changes` ends their log before its first damaged commit. Landing reads the messages
    of these commits again, and a backfill its SSTables. Stop the programs that follow the table first.
    """
    settings = config.load()
    if "changes" in parts:
        lost = repair_log(table_storage(settings, table).folder("changes"))
        click.echo(f"{'changes':<10} {pluralize(lost, 'commit')} removed from the log")
    wanted = {*parts} - {"changes"} if parts else {"state", "view"}
    if not wanted:
        return
    wanted |= {*create_missing_parts(settings, table, wanted)}
    lake_table = open_table(settings, table)
    if not state.follows_changes(lake_table):
        wanted.add("state")
    faults: list[str] = []
    for part, (make, noun, rest) in _REBUILD.items():
        if part not in wanted:
            continue
        try:
            click.echo(f"{part:<10} {pluralize(make(settings, lake_table), noun)}{rest}")
        except (WritetimeError, ModuleNotFoundError) as e:
            # The others come from the state.
            if part == "state":
                raise
            faults.append(f"{part} is not rebuilt: {e}")
    if faults:
        raise WritetimeError("; ".join(faults))
