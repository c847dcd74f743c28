"""`writetime scylla-cdc KS.TABLE`."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
import pyarrow as pa

from writetime.cli.options import output_options
from writetime.cli.storage import chosen_fields, write_changes
from writetime.core import config
from writetime.core.instants import parse_instant
from writetime.schema.table import TableSchema
from writetime.scylla_cdc.findings import finding_lines
from writetime.scylla_cdc.offsets import interval
from writetime.scylla_cdc.source import open_source

_INSTANT = "a time, such as 2025-06-01T12:00:00Z, or microseconds since 1970"


@click.command(name="scylla-cdc")
@click.argument("table", metavar="KS.TABLE")
@click.option("--from", "first", help=f"First write time ({_INSTANT}); default: the start of the log.")
@click.option("--to", "last", help="Write times before this; default: all settled windows.")
@click.option("--snapshot-at", help="Start time of the snapshot that has the changes missing from the log.")
@output_options
def scylla_cdc(
    *,
    table: str,
    first: str | None,
    last: str | None,
    snapshot_at: str | None,
    fields: str | None,
    output: Path | None,
    stats: bool,
) -> None:
    """Print the changes in a ScyllaDB CDC log, one JSON object per line."""
    start, end, snapshot = (None if text is None else parse_instant(text) for text in (first, last, snapshot_at))
    with open_source(config.load(), table) as source:
        schema = source.schema
        wanted = chosen_fields(fields, [schema])
        pieces = interval(source, start, end, snapshot)
        found: Counter[str] = Counter()

        def batches() -> Iterator[tuple[TableSchema, pa.RecordBatch]]:
            for batch in source.read(pieces, wanted, snapshot_at=snapshot, found=found):
                yield schema, batch

        write_changes(batches(), [schema], wanted, output, stats=stats)
        for line in finding_lines(found):
            click.echo(line, err=True)
        source.check_schema(schema)
        if pieces:
            source.check_gap(min(piece.start for piece in pieces), snapshot)
