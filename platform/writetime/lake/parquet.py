"""The Parquet files of the lake: written and read by tasks, described in a few numbers for the commit."""

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as _compute
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from writetime.errors import WritetimeError
from writetime.lake.buckets import buckets_of
from writetime.lake.storage import Storage

# pyarrow makes these functions as it is loaded, so a type checker does not know them.
pc: Any = _compute

PARTITION = "token_bucket"
"""The Delta tables' partition column."""

ROW_GROUP_ROWS = 1 << 16
# Sorted by these, so that their statistics tell a reader which row groups it may leave out.
SORTED_BY = ("token", "key", "position")


@dataclass(frozen=True)
class WrittenFile:
    """A file that was written and that no commit names yet. `size` is in bytes."""

    path: str
    bucket: int
    rows: int
    size: int
    first_token: int | None
    last_token: int | None


WRITTEN_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("bucket", pa.int32()),
        ("rows", pa.int64()),
        ("size", pa.int64()),
        ("first_token", pa.int64()),
        ("last_token", pa.int64()),
    ]
)


def write_file(
    storage: Storage, table: pa.Table, bucket: int, tokens: pa.ChunkedArray | None, prefix: str = ""
) -> WrittenFile:
    """Write rows of one bucket as one file; `tokens` are those of the rows if they are a column too.

    The name is new each time: a task that is run again leaves a file that no commit names, which goes with a vacuum.
    """
    folder = f"{PARTITION}={bucket}"
    path = f"{folder}/{prefix}{uuid.uuid4().hex}.parquet"
    filesystem = storage.filesystem()
    if storage.is_local:
        filesystem.create_dir(folder)
    with (
        filesystem.open_output_stream(path) as sink,
        pq.ParquetWriter(sink, table.schema, compression="zstd") as writer,
    ):
        writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
    size = filesystem.get_file_info(path).size
    if tokens is None:
        return WrittenFile(path, bucket, table.num_rows, size, None, None)
    ends = pc.min_max(tokens)
    return WrittenFile(path, bucket, table.num_rows, size, ends["min"].as_py(), ends["max"].as_py())


def read_file(storage: Storage, path: str, schema: pa.Schema) -> pa.Table:
    """Read a file's columns of this schema; what the file does not have is null."""
    fragment = ds.ParquetFileFormat().make_fragment(path, storage.filesystem())
    present = [name for name in schema.names if name in fragment.physical_schema.names]
    return conform(fragment.to_table(columns=present), schema, f"{storage.address}/{path}")


def conform(table: pa.Table, schema: pa.Schema, what: str) -> pa.Table:
    """Return the columns of this schema, with nulls for the fields, also nested ones, that `table` does not have.

    Raises:
        WritetimeError: a field has another type.
    """
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        column = table[field.name]
        if column.type != field.type:
            try:
                column = pa.chunked_array([_conform(c, field.type) for c in column.chunks], field.type)
            except pa.ArrowException as e:
                raise WritetimeError(f"{what}: column {field.name} is {column.type}, not {field.type} ({e})") from None
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)


def _conform(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if array.type == wanted:
        return array
    if pa.types.is_struct(wanted) and pa.types.is_struct(array.type):
        present = {field.name: i for i, field in enumerate(array.type)}
        children = [
            _conform(array.field(present[f.name]), f.type) if f.name in present else pa.nulls(len(array), f.type)
            for f in wanted
        ]
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=array.is_null())
    if pa.types.is_map(wanted) and pa.types.is_map(array.type):
        entries = array.cast(pa.list_(pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])))
        flat = entries.flatten()
        keys, items = _conform(flat.field("key"), wanted.key_type), _conform(flat.field("value"), wanted.item_type)
        return pa.MapArray.from_arrays(_offsets(entries), keys, items, wanted)
    if pa.types.is_list(wanted) and pa.types.is_list(array.type):
        return pa.ListArray.from_arrays(_offsets(array), _conform(array.flatten(), wanted.value_type), wanted)
    return array.cast(wanted)


def _offsets(lists: pa.Array) -> pa.Array:
    """Return offsets into the flattened lists; a null offset makes a null list."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.array(offsets, mask=np.concatenate([lists.is_null().to_numpy(zero_copy_only=False), [False]]))


def split_by_bucket(table: pa.Table, buckets: int) -> Iterable[tuple[int, pa.Table]]:
    """Cut rows by the bucket of their token."""
    numbers = buckets_of(table["token"], buckets)
    present = np.unique(numbers)
    if len(present) == 1:
        yield int(present[0]), table
        return
    for bucket in present:
        yield int(bucket), table.filter(pa.array(numbers == bucket))


def sort(tables: Sequence[pa.Table]) -> pa.Table:
    """Put rows into the order of the database: by token, partition key and position."""
    table = pa.concat_tables(tables).combine_chunks()
    keys = pa.table([table[name] for name in SORTED_BY], SORTED_BY)
    return table.take(pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in SORTED_BY]))
