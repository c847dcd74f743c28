"""`writetime snapshot | backfill | view | maintain KS.TABLE`."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq

from writetime.cli.text_tables import print_table
from writetime.clients.node_snapshots import take_snapshot
from writetime.core import config
from writetime.core.errors import WritetimeError
from writetime.core.instants import parse_instant
from writetime.core.printing import json_line, json_value
from writetime.lake import state, views
from writetime.lake.backfill import backfill as run_backfill
from writetime.lake.backfill import complete_schema, find_snapshots
from writetime.lake.row_form import warning
from writetime.lake.table import create_table, open_table, view_schema
from writetime.row_events.upkeep import maintain as maintain_table
from writetime.schema.cql import parse_table
from writetime.schema.names import TakenNames, candidates


@click.command()
@click.argument("table", metavar="KS.TABLE")
@click.option("--tag", help="The snapshot's name; default: the present time.")
def snapshot(*, table: str, tag: str | None) -> None:
    """Take a snapshot of a table on this machine's Cassandra node. The folders of the snapshot are printed, for
    `backfill`."""
    tag = f"writetime-{datetime.now(UTC):%Y%m%dT%H%M%S}" if tag is None else tag
    for folder in take_snapshot(config.load(), table, tag):
        click.echo(folder)


@click.command()
@click.argument("table", metavar="KS.TABLE")
@click.argument("paths", metavar="SNAPSHOT_PATHS...", nargs=-1, required=True)
@click.option("--schema", "schema_file", type=click.Path(path_type=Path), help="A file with CREATE TABLE.")
def backfill(*, table: str, paths: tuple[str, ...], schema_file: Path | None) -> None:
    """Bring snapshots of a table into the lake. They may come from one node or many. Safe to repeat: completed buckets
    are skipped.
    """
    settings = config.load()
    found = find_snapshots(paths, parse_table(schema_file.read_text()) if schema_file else None)
    if found.schema.full_name != table:
        raise WritetimeError(f"{paths[0]} is a snapshot of {found.schema.full_name}, not of {table}")
    found = complete_schema(settings, found)
    lake_table = create_table(settings, found.schema)
    total = 0
    for bucket, changes in run_backfill(lake_table, found):
        total += changes
        click.echo(f"bucket {bucket + 1} of {lake_table.buckets}: {changes} changes", err=True)
    folded = state.fold(lake_table)
    click.echo(f"{table}: {total} changes added, {folded} files of changes folded into the state")


@click.command()
@click.argument("table", metavar="KS.TABLE")
@click.option("--as-of", "as_of", help="A time, such as 2025-06-01T12:00:00Z, or microseconds since 1970.")
@click.option("--where", help="A condition in SQL, such as \"amount > 10 AND city = 'Oslo'\".")
@click.option("--format", "form", type=click.Choice(["table", "jsonl", "parquet"]), default="table")
def view(*, table: str, as_of: str | None, where: str | None, form: str) -> None:
    """Print the rows of a table as the database would return them for SELECT *. The rows are those of now, or of a past
    time (--as-of).
    """
    lake_table = open_table(config.load(), table)
    instant = None if as_of is None else parse_instant(as_of)
    unfit: Counter[str] = Counter()
    parts = views.virtual(lake_table, instant, unfit)
    wanted = (filtered(part, where) for part in parts) if where else parts
    schema = view_schema(lake_table.schema())
    if form == "jsonl":
        _print_lines(wanted)
    else:
        {"table": _print_table, "parquet": _write_parquet}[form](wanted, schema)
    if unfit:
        click.echo(warning(table, unfit), err=True)


@click.command()
@click.argument("table", metavar="KS.TABLE")
def maintain(*, table: str) -> None:
    """Fold, compact and clean up a table of the lake. That is: fold new changes into the state, drop old tombstones,
    refresh the compacted view, merge old history and row events, delete files that no version needs."""
    settings = config.load()
    unfit: Counter[str] = Counter()
    done = maintain_table(settings, open_table(settings, table), unfit=unfit)
    click.echo(f"changes    {done['files_folded']} files folded into the state")
    click.echo(f"state      levels folded in {done['buckets_compacted']} buckets")
    click.echo(f"tombstones dropped in {done['buckets_without_old_tombstones']} buckets")
    click.echo(f"view       {done['rows']} rows")
    click.echo(f"history    {done['history_files_merged']} files merged")
    click.echo(f"events     {done['row_events_merged']} merged into the rows that they resulted in")
    click.echo(f"vacuum     {done['files_deleted']} files deleted")
    if unfit:
        click.echo(warning(table, unfit), err=True)


def filtered(rows: pa.Table, where: str) -> pa.Table:
    """Return the rows that meet a condition in DuckDB's SQL, unchanged: the values do not pass through DuckDB.

    The condition uses the column names of the view.

    Raises:
        WritetimeError: DuckDB rejects the condition.
    """
    import duckdb

    taken = TakenNames(rows.column_names)
    number = next(name for name in candidates("writetime_row") if name not in taken)
    numbered = rows.append_column(number, pa.array(range(rows.num_rows), pa.int64()))
    try:
        chosen = duckdb.from_arrow(numbered).filter(where).order(number).project(number)
        return rows.take(chosen.fetch_arrow_table()[number])
    except duckdb.Error as e:
        raise WritetimeError(f"--where {where!r}: {str(e).splitlines()[0]}") from None


def _print_table(parts: Iterable[pa.Table], schema: pa.Schema) -> None:
    def rows() -> Iterator[list[str]]:
        for part in parts:
            columns = [[json_value(value) for value in column] for column in part.columns]
            for row in zip(*columns, strict=True):
                yield ["" if value is None else str(value) for value in row]

    print_table(schema.names, rows())


def _print_lines(parts: Iterable[pa.Table]) -> None:
    for line in _lines(parts):
        click.echo(line)


def _lines(parts: Iterable[pa.Table]) -> Iterator[bytes]:
    for part in parts:
        for i in range(part.num_rows):
            yield json_line({name: part[name][i] for name in part.column_names})


def _write_parquet(parts: Iterable[pa.Table], schema: pa.Schema) -> None:
    if sys.stdout.isatty():
        raise WritetimeError("a terminal cannot show a Parquet file: redirect it, as in `> rows.parquet`")
    with pq.ParquetWriter(pa.PythonFile(sys.stdout.buffer, mode="w"), schema, compression="zstd") as writer:
        for part in parts:
            writer.write_table(part)
