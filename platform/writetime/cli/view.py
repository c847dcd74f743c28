"""`writetime view KS.TABLE`."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator

import click
import pyarrow as pa
import pyarrow.parquet as pq

from writetime.cli.text_tables import print_table
from writetime.core import config
from writetime.core.errors import WritetimeError
from writetime.core.instants import parse_instant
from writetime.core.printing import json_line, json_value
from writetime.lake import views
from writetime.lake.row_form import warning
from writetime.lake.table import open_table, view_schema
from writetime.lookup.keys import keys_of, tokens_of
from writetime.lookup.reading import Reader
from writetime.schema.names import TakenNames, candidates


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
    schema = lake_table.schema()
    instant = None if as_of is None else parse_instant(as_of)
    unfit: Counter[str] = Counter()
    keys = keys_of(where, schema) if where and instant is None else None
    tokens = None if keys is None else tokens_of(keys, schema)
    parts = views.virtual(lake_table, instant, unfit) if tokens is None else [Reader(lake_table).rows(tokens, unfit)]
    wanted = (filtered(part, where) for part in parts) if where else parts
    if form == "jsonl":
        _print_lines(wanted)
    else:
        {"table": _print_table, "parquet": _write_parquet}[form](wanted, view_schema(schema))
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
