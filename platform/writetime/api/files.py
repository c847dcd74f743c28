"""Reads files of the database as changes in Arrow, and writes changes as SSTables, without the database."""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from writetime.changes.model import change_schema
from writetime.core.errors import WritetimeError
from writetime.merge.conform import conform
from writetime.merge.folding import merge
from writetime.schema.cql import parse_schemas, parse_table
from writetime.schema.table import TableSchema
from writetime.storage.commitlog import CommitLogReader
from writetime.storage.infer import infer_schema
from writetime.storage.locations import entries, exists, find_sstables, parse_name, resolve, without_secrets
from writetime.storage.segment import find_segments, trusted
from writetime.storage.sstable import SSTable
from writetime.storage.sstable_writer import SSTableWriter

# Changes that are written at a time.
_BATCH_ROWS = 1 << 16


def read_sstable(path: str, schema: str | None = None, fields: Sequence[str] | None = None) -> pa.RecordBatchReader:
    """Return the changes in an SSTable, or in all SSTables of a folder.

    Args:
        path: the SSTable's `Data.db` or a folder, local or in an object store (a URL).
        schema: a CREATE TABLE statement. Defaults to the snapshot's `schema.cql`, else to the headers of the SSTables.
        fields: the fields of the changes to read; all by default.

    Raises:
        WritetimeError: there is no SSTable, one is corrupt, or a field does not exist.
    """
    locations = list(find_sstables(path))
    table = infer_schema(locations) if schema is None else parse_table(schema)

    def batches() -> Iterator[pa.RecordBatch]:
        for location in locations:
            yield from SSTable(location, table).scan(fields)

    return pa.RecordBatchReader.from_batches(schema_of_fields(table, fields), batches())


def read_commitlog(
    path: str, schema: str, table: str | None = None, fields: Sequence[str] | None = None
) -> pa.RecordBatchReader:
    """Return the changes of one table in a commit log segment, or in all segments of a folder.

    Args:
        path: the segment or a folder, local or in an object store (a URL).
        schema: CREATE TABLE statements with the ids of the tables (`WITH ID = ...`), as `DESCRIBE ... WITH INTERNALS`
            prints them: of this table, and of those that are written in the same batches.
        table: the table as `keyspace.table`. It may be left out if `schema` has one table only.
        fields: the fields of the changes to read; all by default.

    Raises:
        WritetimeError: the schema lacks the table, a segment is corrupt, or a field does not exist. Or a mutation
            writes to a table that the schema lacks before it writes to this table, so it cannot be read.
    """
    known = parse_schemas(schema)
    chosen = next((s for s in known if s.full_name == table), None) if table else parse_table(schema)
    if chosen is None:
        raise WritetimeError(f"the schema has no table {table}; it has {', '.join(s.full_name for s in known)}")
    result = schema_of_fields(chosen, fields)
    reader = CommitLogReader(
        known, [chosen.full_name], fields=result.names, on_unknown_table="count", torn_tail="stop", on_corrupt="fail"
    )

    def batches() -> Iterator[pa.RecordBatch]:
        for segment, until in trusted(find_segments(path)):
            for _, batch in reader.read(segment, until=until):
                yield batch

    return pa.RecordBatchReader.from_batches(result, batches())


def write_sstable(
    changes: pa.Table | pa.RecordBatchReader,
    folder: str,
    schema: str,
    *,
    version: str = "nb",
    compressor: str | None = "LZ4Compressor",
    block_size: int = 1 << 16,
) -> str:
    """Write changes as one SSTable, which `nodetool import` brings into a table. Return the path of its `Data.db`.

    Args:
        changes: a table of changes in any order, which is merged first, in memory; or batches that are merged already:
            in the order of tokens, keys and positions, with one change per position.
        folder: a folder without SSTables, local or in an object store (a URL). It is created.
        schema: a CREATE TABLE statement.
        version: `nb` (Cassandra 4.0 to 5.0), `oa` (Cassandra 5.0 with the storage compatibility `NONE`) or `me`
            (ScyllaDB).
        compressor: the name of a compressor's class: LZ4, Snappy, Zstd or Deflate, each followed by `Compressor`; or
            None.
        block_size: bytes of rows per entry of a partition's row index.

    Raises:
        WritetimeError: the folder has SSTables, there are no changes, they are not merged, or this version cannot hold
            one of their times.
    """
    filesystem, path = resolve(folder)
    if exists(filesystem, path) and any(parse_name(filesystem, file) for file in entries(filesystem, path)):
        raise WritetimeError(f"{without_secrets(folder)} has SSTables already: name a folder without any")
    table = parse_table(schema)
    parts: Iterable[pa.Table] = (
        [merge([changes], table)]
        if isinstance(changes, pa.Table)
        else (conform(pa.Table.from_batches([batch]), table) for batch in changes)
    )
    with SSTableWriter(folder, table, version=version, compressor=compressor, block_size=block_size) as writer:
        for part in parts:
            for batch in part.to_batches(max_chunksize=_BATCH_ROWS):
                writer.write(batch)
    return writer.location.path("Data.db")


def schema_of_fields(table: TableSchema, fields: Sequence[str] | None) -> pa.Schema:
    """Return the Arrow schema of the changes of a table, or of these fields of them. Raises WritetimeError: changes of
    the table do not have a field.
    """
    full = change_schema(table)
    if fields is None:
        return full
    if unknown := [name for name in fields if name not in full.names]:
        raise WritetimeError(
            f"changes of {table.full_name} have no field {unknown[0]}; they have {', '.join(full.names)}"
        )
    return pa.schema([full.field(name) for name in fields])
