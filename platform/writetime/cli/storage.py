"""`writetime sstable PATH` and `writetime commitlog PATH`: changes as JSON lines, Parquet or Arrow, or their
statistics."""

import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, cast

import click
import orjson
import pyarrow as pa
import pyarrow.compute as _compute
import pyarrow.parquet as pq

from writetime.api.files import schema_of_fields
from writetime.changes.model import KINDS, field_name
from writetime.cli.options import options, output_options, schema_option
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError, naming
from writetime.core.printing import json_line
from writetime.schema.cql import parse_schemas, parse_table
from writetime.schema.table import TableSchema
from writetime.schema.types import Collection, CqlType, is_complex
from writetime.storage.commitlog import CommitLogReader, SegmentReport
from writetime.storage.infer import infer_schema
from writetime.storage.locations import find_sstables
from writetime.storage.segment import find_segments, trusted
from writetime.storage.sstable import OnCorrupt, ScanReport, SSTable

# pyarrow creates these functions when it is loaded, so a type checker does not know them.
pc: Any = _compute

Batches = Iterator[tuple[TableSchema, pa.RecordBatch]]


_of_files = options(click.argument("path"), schema_option, output_options)


@click.command()
@_of_files
@click.option("--on-corrupt", type=click.Choice(["fail", "skip-partition", "skip-file"]), default="fail")
def sstable(
    *, path: str, schema_file: Path | None, fields: str | None, output: Path | None, stats: bool, on_corrupt: str
) -> None:
    """Print the changes in SSTables, one JSON object per line. PATH is an SSTable, or a folder of them."""
    locations = list(find_sstables(path))
    schema = parse_table(schema_file.read_text()) if schema_file else infer_schema(locations)
    wanted = chosen_fields(fields, [schema])
    report = ScanReport()

    def batches() -> Batches:
        for location in locations:
            for batch in SSTable(location, schema).scan(wanted, on_corrupt=cast(OnCorrupt, on_corrupt), report=report):
                yield schema, batch

    write_changes(batches(), [schema], wanted, output, stats=stats)
    for skipped in report.skipped:
        click.echo(f"left out: {skipped}", err=True)


@click.command()
@_of_files
@click.option(
    "--table", "tables", multiple=True, help="A table to read, as keyspace.table; default: all of the schema."
)
@click.option("--on-corrupt", type=click.Choice(["fail", "skip-file"]), default="fail")
def commitlog(
    *,
    path: str,
    schema_file: Path | None,
    fields: str | None,
    output: Path | None,
    stats: bool,
    tables: tuple[str, ...],
    on_corrupt: Literal["fail", "skip-file"],
) -> None:
    """Print the changes in commit log segments, one JSON object per line. PATH is a segment, or a folder of them. The
    schema must give each table its id (CREATE TABLE ... WITH ID = ...). Writes to other tables are counted.
    """
    if schema_file is None:
        raise WritetimeError("commit logs do not name their tables' columns: pass a file with CREATE TABLE as --schema")
    schemas = parse_schemas(schema_file.read_text())
    chosen = [s for s in schemas if not tables or s.full_name in tables]
    wanted = chosen_fields(fields, chosen)
    reader = CommitLogReader(
        *(schemas, tables or None), fields=wanted, on_unknown_table="skip", torn_tail="stop", on_corrupt=on_corrupt
    )
    report = SegmentReport()

    def batches() -> Batches:
        for segment, until in trusted(find_segments(path)):
            report.position, report.torn_at = 0, None
            yield from reader.read(segment, until=until, report=report)
            if report.torn_at is not None:
                click.echo(f"{segment.path} ends at offset {report.torn_at} in an unfinished write", err=True)

    write_changes(batches(), chosen, wanted, output, stats=stats)
    for skipped in report.skipped:
        click.echo(f"left out: {skipped}", err=True)
    for table, count in report.unknown_tables.items():
        hiding = report.hiding[table]
        lost = f"; {hiding} of them write to requested tables after that, and these changes are lost" if hiding else ""
        click.echo(
            f"{pluralize(count, 'mutation')} not read from the write to table {table} on: its schema is not known"
            f"{lost}",
            err=True,
        )


def chosen_fields(text: str | None, schemas: list[TableSchema]) -> list[str] | None:
    """Return the fields that a text names, separated by commas; None if there is none. Raises WritetimeError: changes
    of one of the tables do not have the field.
    """
    if text is None:
        return None
    fields = [name.strip() for name in text.split(",")]
    for schema in schemas:
        schema_of_fields(schema, fields)
    return fields


def write_changes(
    batches: Batches, schemas: list[TableSchema], fields: list[str] | None, output: Path | None, *, stats: bool
) -> None:
    """Print changes as JSON lines, or their statistics, or write them to a Parquet or Arrow file. Raises
    WritetimeError: the file's name has another suffix, or the file would hold the changes of several tables.
    """
    if stats:
        click.echo(orjson.dumps(statistics(batches), option=orjson.OPT_INDENT_2).decode())
        return
    if output is None:
        for schema, batch in batches:
            several = {"table": pa.scalar(schema.full_name)} if len(schemas) > 1 else {}
            for i in range(batch.num_rows):
                change = {name: batch[name][i] for name in batch.schema.names}
                sys.stdout.buffer.write(json_line(several | change, nulls=False) + b"\n")
        return
    if len(schemas) != 1:
        raise WritetimeError("an output file holds the changes of one table: name the table with --table")
    arrow = schema_of_fields(schemas[0], fields)
    if output.suffix == ".parquet":
        with naming(output), pq.ParquetWriter(output, arrow, compression="zstd") as parquet:
            for _, batch in batches:
                parquet.write_batch(batch)
    elif output.suffix == ".arrow":
        with naming(output), pa.OSFile(str(output), "wb") as file, pa.ipc.new_file(file, arrow) as writer:
            for _, batch in batches:
                writer.write_batch(batch)
    else:
        raise WritetimeError(f"{output} is neither a .parquet nor an .arrow file")


def statistics(batches: Iterable[tuple[TableSchema, pa.RecordBatch]]) -> dict[str, Any]:
    """Count changes by table and kind, cells and tombstones by column, and give the range of write times.

    A column that is not frozen has the cells of its elements or fields, and one more tombstone where all of it is
    deleted. Sizes are bytes of the changes in Arrow.
    """
    tables: dict[str, dict[str, Any]] = {}
    for schema, batch in batches:
        found = tables.setdefault(
            schema.full_name, {"changes": 0, "bytes": 0, "kinds": dict.fromkeys(KINDS, 0), "columns": {}}
        )
        found["changes"] += batch.num_rows
        found["bytes"] += batch.nbytes
        if "kind" in batch.schema.names:
            for entry in batch.column("kind").value_counts().to_pylist():
                found["kinds"][entry["values"]] += entry["counts"]
        times = [
            pc.struct_field(batch.column(name), "write_time")
            for name in ("marker", "tombstone")
            if name in batch.schema.names
        ]
        for column in schema.static + schema.regular:
            if field_name(column) not in batch.schema.names:
                continue
            array = batch.column(field_name(column))
            totals = found["columns"].setdefault(column.name, {"cells": 0, "tombstones": 0})
            if is_complex(column.type):
                deletions = array.flatten()[0]
                totals["tombstones"] += len(deletions) - deletions.null_count
                times.append(pc.struct_field(deletions, "write_time"))
            for cells in _cells(array, column.type):
                totals["cells"] += len(cells) - cells.null_count
                totals["tombstones"] += pc.sum(pc.and_(cells.is_valid(), cells.field("tombstone"))).as_py() or 0
                times.append(pc.struct_field(cells, "write_time"))
        for array in times:
            low_high = pc.min_max(array.drop_null())
            if low_high["min"].is_valid:
                found["first_write_time"] = min(found.get("first_write_time", 1 << 63), low_high["min"].as_py())
                found["last_write_time"] = max(found.get("last_write_time", -(1 << 63)), low_high["max"].as_py())
    for found in tables.values():
        for name in ("first_write_time", "last_write_time"):
            if name in found and abs(found[name]) < 253_402_300_800_000_000:
                found[name.replace("write_time", "write")] = datetime.fromtimestamp(found[name] / 1e6, UTC).isoformat()
    return tables


def _cells(array: pa.Array, cql_type: CqlType) -> list[pa.Array]:
    """Return the cells of a column; if it is complex, those of its elements or of each of its fields."""
    if not is_complex(cql_type):
        return [array]
    parts = array.flatten()[1]
    return [parts.flatten()] if isinstance(cql_type, Collection) else parts.flatten()
