"""`writetime view KS.TABLE`."""

import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import click
import pyarrow as pa
import pyarrow.parquet as pq

from writetime.cli.text_tables import print_parts
from writetime.core import config
from writetime.core.errors import MissingTable, WritetimeError
from writetime.core.instants import parse_instant
from writetime.core.printing import json_lines
from writetime.core.waiting import wait_until
from writetime.files.key_ranges import KeyRanges, TokenRange
from writetime.files.row_form import warning
from writetime.lake import views
from writetime.lake.table import LakeTable, is_in_lake, open_table, view_schema
from writetime.lookup.conditions import TOKEN, conditions_of, with_token_column
from writetime.lookup.filtering import filtered
from writetime.lookup.keys import ALL_TOKENS, label, places_of_condition
from writetime.lookup.reading import FoundRows, RowReader
from writetime.schema.names import TakenNames, candidates, fold
from writetime.schema.table import TableSchema

_PAUSE_SECONDS = 0.2


@click.command()
@click.argument("table", metavar="KS.TABLE")
@click.option("--as-of", "as_of", help="A time, such as 2025-06-01T12:00:00Z, or microseconds since 1970.")
@click.option(
    "--where",
    help="A condition in SQL, such as \"amount > 10 AND city = 'Oslo'\". Double quotes around a name that is a word of "
    "SQL: '\"order\" = 7'.",
)
@click.option("--format", "form", type=click.Choice(["table", "jsonl", "parquet"]), default="table", show_default=True)
@click.option("--wait", default=0.0, metavar="SECONDS", help="Maximum time to wait until there are rows.")
def view(*, table: str, as_of: str | None, where: str | None, form: str, wait: float) -> None:
    """Print the rows of a table as the database would return them for SELECT *. The rows are those of now, or of a past
    time (--as-of).
    """
    settings = config.load()
    deadline = time.monotonic() + wait
    if wait and not is_in_lake(settings, table):
        # Only this case needs the import, which takes time.
        from writetime.landing.missing_tables import KnownTables

        known = KnownTables(settings)
        if known.is_unknown(table) or known.is_certainly_not_captured(table):
            raise MissingTable(f"no table {table}", table)
        wait_until(lambda: is_in_lake(settings, table), wait, _PAUSE_SECONDS)
    lake_table = open_table(settings, table)
    schema = lake_table.schema()
    instant = None if as_of is None else parse_instant(as_of)
    unfit: Counter[str] = Counter()

    def read() -> Iterator[pa.Table]:
        unfit.clear()
        return rows_where(lake_table, where, instant, unfit) if where else views.virtual(lake_table, instant, unfit)

    wanted = _with_rows(read, deadline)
    match form:
        case "jsonl":
            for part in wanted:
                sys.stdout.buffer.writelines(json_lines(part))
        case "parquet":
            _write_parquet(wanted, view_schema(schema))
        case _:
            print_parts(view_schema(schema).names, wanted)
    if unfit:
        click.echo(warning(table, unfit), err=True)


def _with_rows(read: Callable[[], Iterator[pa.Table]], deadline: float) -> Iterator[pa.Table]:
    """Return the parts of the first read that finds rows, or of the last one before the deadline."""
    while True:
        parts = read()
        for part in parts:
            if len(part):
                return itertools.chain([part], parts)
        if time.monotonic() >= deadline:
            return iter(())
        time.sleep(_PAUSE_SECONDS)


def rows_where(table: LakeTable, where: str, instant: int | None, unfit: Counter[str]) -> Iterator[pa.Table]:
    """Yield the rows that meet a condition, by a look-up if it names keys or tokens and there is no past time. Raises
    WritetimeError: DuckDB rejects the condition, or it uses `token()` of a past time.
    """
    if instant is not None:
        if _uses_token(where, table.schema()):
            raise WritetimeError(f"--where {where!r}: token() works for the present rows only: omit --as-of")
        yield from (filtered(part, where) for part in views.virtual(table, instant, unfit))
        return
    reader = RowReader(table)
    schema = reader.schema
    key = _key(schema)
    found = places_of_condition(conditions_of(where, key), schema)
    if found is None and _uses_token(where, schema):
        found = ALL_TOKENS
    if isinstance(found, KeyRanges):
        yield _filtered(reader.at(found, unfit), where, key)
    elif isinstance(found, TokenRange):
        yield from (_filtered(rows, where, key) for rows in reader.between(found, unfit))
    else:
        yield from (filtered(part, where) for part in views.virtual(table, None, unfit))


def _key(schema: TableSchema) -> list[str]:
    return [fold(label(column)) for column in schema.partition_key]


def _uses_token(where: str, schema: TableSchema) -> bool:
    return with_token_column(where, _key(schema), TOKEN) is not None


def _filtered(rows: FoundRows, where: str, partition_key: list[str]) -> pa.Table:
    taken = TakenNames(rows.values.column_names)
    token = next(name for name in candidates("writetime_token") if name not in taken)
    replaced = with_token_column(where, partition_key, token)
    if replaced is None:
        return filtered(rows.values, where)
    return filtered(rows.values.append_column(token, rows.tokens), replaced).drop_columns([token])


def _write_parquet(parts: Iterable[pa.Table], schema: pa.Schema) -> None:
    if sys.stdout.isatty():
        raise WritetimeError("a terminal cannot show a Parquet file: redirect it, as in `> rows.parquet`")
    with pq.ParquetWriter(pa.PythonFile(sys.stdout.buffer, mode="w"), schema, compression="zstd") as writer:
        for part in parts:
            writer.write_table(part)
