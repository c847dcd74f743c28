"""Writes and reads the Parquet files of the lake. Tasks do this, and return a short description for the commit."""

import functools
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from writetime.core.arrow import one_chunk, pc
from writetime.core.errors import WritetimeError, plain_text
from writetime.core.outages import is_outage
from writetime.core.private_folders import restrict_home
from writetime.delta.buckets import ALL, are_few, buckets_of
from writetime.delta.footers import SealedFooter, read_footer
from writetime.delta.storage import Storage

PARTITION = "token_bucket"
"""The Delta tables' partition column."""

PLACE = "_place"
"""The column of files of the view with each row's token, key and position. Delta's schema does not have it, so readers
of the view do not see it.
"""
PLACE_PARTS = ("token", "key", "position")
"""The fields of that column."""

# The number of rows that show whether the values of a column repeat.
_SAMPLE_ROWS = 1 << 10
# Values are long if they have more bytes than this on average.
_LONG_VALUE = 1 << 10
# The name of a file has the size (bytes) of its rows in memory, which dictionaries hide from all other sizes. So a step
# that looks at many files, such as those that are too large to be packed, reads none of them.
_IN_MEMORY = re.compile(r"\.(\d+)\.parquet$")
# The footer has the size of each row group in memory, as a list: that of the columns that are decoded, which are only
# the places if the file has them.
_GROUP_SIZES = "writetime.group_sizes"
_DICTIONARIES = {pa.dictionary(pa.int32(), values) for values in (pa.string(), pa.binary())}
# The sort columns, so that their statistics show a reader which row groups it may skip.
SORTED_BY = ("token", "key", "position")


class Unreadable(WritetimeError):
    """A file of the lake that is damaged."""


class MissingLakeFile(Unreadable, FileNotFoundError):
    """A file of the lake that does not exist. Another program may have replaced it."""


@dataclass(frozen=True)
class WrittenFile:
    """A written file that no commit names yet. `size` is in bytes."""

    path: str
    bucket: int
    rows: int
    size: int
    first_token: int | None
    last_token: int | None


@dataclass(frozen=True)
class Layout:
    """The layout of rows in a file: the most rows per row group, which is the unit that a reader reads or skips. A row
    group of large rows has fewer rows, with about `row_group_bytes` in memory, and at most twice as many, or one row.
    Nulls do not count, because each row group adds to the footer for each column.
    """

    row_group_rows: int
    codec: str
    row_group_bytes: int = 16 << 20


COLD_LAYOUT = Layout(1 << 16, "zstd")
"""For data that is kept long and seldom read."""

HOT_LAYOUT = Layout(1 << 16, "lz4")
"""For changes and states, which are read completely, a few times, before they are merged with more. The files are
larger; both writing and reading take less CPU.
"""


def write_file(
    storage: Storage,
    table: pa.Table,
    bucket: int,
    tokens: pa.ChunkedArray | None,
    prefix: str = "",
    *,
    layout: Layout = COLD_LAYOUT,
) -> WrittenFile:
    """Write rows of one bucket as one file. `tokens` are the tokens of the rows, if the file has them as a column.

    The name is new each time. So a repeated task leaves a file that no commit names, and a vacuum deletes it.
    """
    folder, in_memory = f"{PARTITION}={bucket}", _bytes_in_memory(table)
    path = f"{folder}/{prefix}{uuid.uuid4().hex}.{in_memory}.parquet"
    if storage.is_local:
        restrict_home(Path(storage.root))
        storage.filesystem().create_dir(folder)
    # pyarrow's type stubs return only a bool here.
    repeating: Any = _repeating(table)
    options: Any = {"compression": layout.codec, "use_dictionary": repeating, "write_page_checksum": True}
    with (
        storage.writing(path) as output,
        SealedFooter(output) as sink,
        pq.ParquetWriter(sink, table.schema, **options) as writer,
    ):
        sizes = []
        for rows in _row_groups(table, in_memory, layout):
            writer.write_table(rows, row_group_size=layout.row_group_rows)
            sizes.append(_bytes_in_memory(rows.select([PLACE]) if PLACE in rows.column_names else rows))
        writer.add_key_value_metadata({_GROUP_SIZES: json.dumps(sizes)})
        # The writer writes its footer when it is closed.
        sink.hold()
    storage.sync(path)
    size = storage.filesystem().get_file_info(path).size
    if tokens is None:
        return WrittenFile(path, bucket, table.num_rows, size, None, None)
    ends = pc.min_max(tokens)
    return WrittenFile(path, bucket, table.num_rows, size, ends["min"].as_py(), ends["max"].as_py())


def write_rows(
    storage: Storage, table: pa.Table, bucket: int, buckets: int, prefix: str = "", *, layout: Layout = COLD_LAYOUT
) -> list[WrittenFile]:
    """Write rows with tokens. Rows of one bucket become one file. Rows of all buckets (`ALL`) become one file if they
    are few, or else one per bucket.
    """
    if not table.num_rows:
        return []
    if bucket != ALL or are_few(table.num_rows, buckets, table.nbytes):
        parts: Iterable[tuple[int, pa.Table]] = [(bucket, table)]
    else:
        parts = split_by_bucket(table, buckets)
    return [write_file(storage, part, b, part["token"], prefix, layout=layout) for b, part in parts]


@contextmanager
def deleted_if_refused(storage: Storage, files: Iterable[WrittenFile]) -> Iterator[None]:
    """Delete new files if the check of the files, or the work on them, inside the `with` block, raises. No commit will
    name them.
    """
    try:
        yield
    except BaseException:
        filesystem = storage.filesystem()
        for file in files:
            # A vacuum deletes the remaining files.
            with suppress(OSError):
                filesystem.delete_file(file.path)
        raise


def _row_groups(table: pa.Table, in_memory: int, layout: Layout) -> Iterator[pa.Table]:
    """Yield the rows of each row group, by their size on average. A few large rows among many small ones do not show in
    it, so a row group that is far larger is divided.
    """
    count, most = layout.row_group_rows, layout.row_group_bytes
    if in_memory > most:
        count = max(1, min(count, table.num_rows * most // max(1, in_memory - _bytes_of_nulls(table))))
    for start in range(0, max(table.num_rows, 1), count):
        yield from _divided(table.slice(start, count), 2 * most)


def _divided(rows: pa.Table, most: int) -> Iterator[pa.Table]:
    """Yield rows in parts of at most `most` bytes in memory without nulls, or of one row."""
    if rows.num_rows <= 1 or (size := _bytes_in_memory(rows)) <= most or size - _bytes_of_nulls(rows) <= most:
        yield rows
        return
    half = rows.num_rows // 2
    yield from _divided(rows.slice(0, half), most)
    yield from _divided(rows.slice(half), most)


def _repeating(table: pa.Table) -> list[str]:
    """Return the Parquet columns whose values repeat in the first rows.

    Only these become smaller with a dictionary. In other columns, it makes files larger, and writing and reading
    slower. Long values have no dictionary either, because it would hide the size of the rows, by which readers decide
    how much they read.
    """
    sample = table.slice(0, _SAMPLE_ROWS)
    leaves = [leaf for name in table.column_names for leaf in _leaves(name, sample[name].combine_chunks())]
    found = [(path, values[:_SAMPLE_ROWS].drop_null()) for path, values in leaves]
    return [path for path, values in found if not _are_long(values) and 2 * len(values.unique()) < len(values)]


def _are_long(values: pa.Array) -> bool:
    # The bytes of a dictionary are not those of these values.
    return not pa.types.is_dictionary(values.type) and values.nbytes > _LONG_VALUE * len(values)


def _leaves(path: str, array: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """Yield the Parquet columns below a field, by their paths."""
    if pa.types.is_struct(array.type):
        for field, values in zip(array.type, array.flatten(), strict=True):
            yield from _leaves(f"{path}.{field.name}", values)
    elif pa.types.is_map(array.type):
        yield from _leaves(f"{path}.key_value.key", array.keys)
        yield from _leaves(f"{path}.key_value.value", array.items)
    elif pa.types.is_list(array.type):
        yield from _leaves(f"{path}.list.element", array.flatten())
    else:
        yield path, array


def without_empty(table: pa.Table) -> pa.Table:
    """Leave out the fields, including nested ones, that are null in all rows; `conform` restores them."""
    kept = {name: _without_empty(one_chunk(table[name])) for name in table.column_names}
    return pa.table({name: array for name, array in kept.items() if array.null_count < len(array)})


def _without_empty(array: pa.Array) -> pa.Array:
    if not pa.types.is_struct(array.type):
        return array
    children = [(field.name, _without_empty(array.field(i))) for i, field in enumerate(array.type)]
    # Parquet has no struct without fields.
    kept = [(n, c) for n, c in children if c.null_count < len(c)] or children[:1]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays([c for _, c in kept], names=[n for n, _ in kept], mask=mask)


def read_file(storage: Storage, path: str, schema: pa.Schema) -> pa.Table:
    """Read a file's columns of this schema; columns that the file does not have are null."""
    return conform(_read(storage, path, schema.names), schema, f"{storage.address}/{path}")


def read_files(storage: Storage, paths: Sequence[str], schema: pa.Schema) -> list[pa.Table]:
    """Read the columns of this schema that any of these files has, and the sort columns; columns that a file does not
    have are null.
    """
    found = [_read(storage, path, schema.names) for path in paths]
    names = {*SORTED_BY}.union(*(table.column_names for table in found))
    fields = pa.schema([field for field in schema if field.name in names])
    return [conform(table, fields, f"{storage.address}/{path}") for table, path in zip(found, paths, strict=True)]


@contextmanager
def open_file(storage: Storage, path: str, **options: Any) -> Iterator[pq.ParquetFile]:
    """Open a file of the lake to read it, with options of `pq.ParquetFile`. Its faults are those of `reading`."""
    with (
        reading(storage, path),
        storage.filesystem().open_input_file(path) as opened,
        pq.ParquetFile(opened, metadata=read_footer(opened), page_checksum_verification=True, **options) as file,
    ):
        yield file


@contextmanager
def reading(storage: Storage, path: str) -> Iterator[None]:
    """While a file of the lake is opened and read, let its faults name the file and the remedy.

    Raises:
        Unreadable: it is damaged.
        MissingLakeFile: it does not exist.
    """
    try:
        yield
    except FileNotFoundError:
        raise MissingLakeFile(fault_of(storage, path, "does not exist")) from None
    except (pa.ArrowInvalid, OSError) as e:
        # The error of a damaged page has no number. Those of disks and networks have one, or name it.
        if isinstance(e, OSError) and (e.errno is not None or is_outage(e)):
            raise
        raise Unreadable(fault_of(storage, path, f"cannot be read: {' '.join(plain_text(e).split())}")) from e


def fault_of(storage: Storage, path: str, fault: str, *, of_log: bool = False) -> str:
    """Return the text of a fault of a file of a table of the lake, with the remedy (`remedy_of`)."""
    remedy = remedy_of(storage, of_log=of_log)
    return f"{storage.address}/{path} {fault}" + (f"; if it is lost or damaged, {remedy}" if remedy else "")


def remedy_of(storage: Storage, *, of_log: bool) -> str | None:
    """Return what to do about a damaged file of a table of the lake, or of its log; None if it is another table."""
    *_, table, part = storage.address.split("/")
    whole = "restore it, or load the table again, as docs/backup.md describes"
    return {
        "changes": f"repair the log with `writetime rebuild {table} {part}`, or {whole}" if of_log else whole,
        **dict.fromkeys(("state", "view", "row_events"), f"rebuild it with `writetime rebuild {table} {part}`"),
    }.get(part)


def _read(storage: Storage, path: str, names: Sequence[str]) -> pa.Table:
    """Read those of these columns that a file has."""
    with open_file(storage, path, pre_buffer=not storage.is_local) as file:
        return file.read([name for name in names if name in file.schema_arrow.names])


def count_values(storage: Storage, path: str, column: str) -> int:
    """Return the number of non-null values of a Parquet column, by its path; 0 if the file does not have it."""
    with open_file(storage, path) as file:
        names = [file.schema.column(i).path for i in range(len(file.schema))]
        if column not in names:
            return 0
        groups = [file.metadata.row_group(i).column(names.index(column)) for i in range(file.num_row_groups)]
    return sum(group.num_values - group.statistics.null_count for group in groups)


def uncompressed_size(storage: Storage, path: str) -> int:
    """Return the size (bytes) of a file's rows in memory, from its name. If another program wrote the file, return the
    size before compression, from its footer.
    """
    if recorded := _IN_MEMORY.search(path):
        return int(recorded[1])
    with open_file(storage, path) as file:
        return sum(file.metadata.row_group(group).total_byte_size for group in range(file.num_row_groups))


def sizes_of_groups(footer: pq.FileMetaData) -> list[int]:
    """Return the size (bytes) in memory of what is decoded of each row group. If another program wrote the file, return
    the sizes before compression.
    """
    if recorded := (footer.metadata or {}).get(_GROUP_SIZES.encode()):
        return json.loads(recorded)
    return [_encoded_size(footer.row_group(group)) for group in range(footer.num_row_groups)]


def _encoded_size(group: pq.RowGroupMetaData) -> int:
    parts = [group.column(i) for i in range(group.num_columns)]
    places = [part for part in parts if part.path_in_schema.startswith(f"{PLACE}.")]
    return sum(part.total_uncompressed_size for part in places or parts)


def _bytes_in_memory(table: pa.Table) -> int:
    """Return the size of rows without dictionaries."""
    return table.nbytes + sum(
        pc.sum(pc.binary_length(chunk.dictionary).take(chunk.indices)).as_py() or 0
        for column in table.columns
        if column.type in _DICTIONARIES
        for chunk in column.chunks
    )


def _bytes_of_nulls(table: pa.Table) -> int:
    """Return the part of the size of rows that is of nulls, which need nearly nothing in a file."""
    return sum(_nulls_of(chunk) for column in table.columns for chunk in column.chunks)


def _nulls_of(array: pa.Array) -> int:
    if pa.types.is_struct(array.type):
        return sum(map(_nulls_of, array.flatten()))
    try:
        bits = array.type.bit_width
    except ValueError:
        # Its offset.
        bits = 32
    return array.null_count * bits // 8


def conform(table: pa.Table, schema: pa.Schema, what: str) -> pa.Table:
    """Return the columns of this schema, with nulls for the fields, including nested ones, that `table` does not have.

    Raises:
        WritetimeError: a field has another type.
    """
    # All missing fields of a type share their nulls.
    nulls = functools.cache(pa.nulls)
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            columns.append(nulls(table.num_rows, field.type))
            continue
        column = table[field.name]
        if column.type != field.type:
            try:
                column = pa.chunked_array([_conform(c, field.type, nulls) for c in column.chunks], field.type)
            except pa.ArrowException as e:
                raise WritetimeError(f"{what}: column {field.name} is {column.type}, not {field.type} ({e})") from None
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)


def _conform(array: pa.Array, wanted: pa.DataType, nulls: Callable[[int, pa.DataType], pa.Array]) -> pa.Array:
    if array.type == wanted:
        return array
    if pa.types.is_struct(wanted) and pa.types.is_struct(array.type):
        present = {field.name: i for i, field in enumerate(array.type)}
        children = [
            _conform(array.field(present[f.name]), f.type, nulls) if f.name in present else nulls(len(array), f.type)
            for f in wanted
        ]
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=array.is_null())
    if pa.types.is_map(wanted) and pa.types.is_map(array.type):
        entries = array.cast(pa.list_(pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])))
        flat = entries.flatten()
        keys = _conform(flat.field("key"), wanted.key_type, nulls)
        items = _conform(flat.field("value"), wanted.item_type, nulls)
        return pa.MapArray.from_arrays(list_offsets(entries), keys, items, wanted)
    if pa.types.is_list(wanted) and pa.types.is_list(array.type):
        return pa.ListArray.from_arrays(
            list_offsets(array), _conform(array.flatten(), wanted.value_type, nulls), wanted
        )
    if pa.types.is_timestamp(array.type) != pa.types.is_timestamp(wanted):
        # A cast would read the microseconds of one as the milliseconds of the other.
        raise pa.ArrowInvalid(f"{array.type} cannot become {wanted}")
    return array.cast(wanted)


def list_offsets(lists: pa.Array) -> pa.Array:
    """Return offsets into the flattened lists; a null offset makes a null list."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.array(offsets, mask=np.concatenate([lists.is_null().to_numpy(zero_copy_only=False), [False]]))


def split_by_bucket(table: pa.Table, buckets: int) -> Iterable[tuple[int, pa.Table]]:
    """Split rows by the bucket of their token; the rows of each are in their order, and are copies."""
    numbers = buckets_of(table["token"], buckets)
    counts = np.bincount(numbers, minlength=buckets)
    if (present := np.flatnonzero(counts)).size == 1:
        yield int(present[0]), table
        return
    # One sort handles all rows, instead of one pass per bucket. NumPy sorts 16 bits by radix.
    narrow = numbers.astype(np.uint16) if buckets <= 1 << 16 else numbers
    rows = np.split(np.argsort(narrow, kind="stable"), np.cumsum(counts)[:-1])
    # With several chunks, each part would be taken from all chunks.
    table = table.combine_chunks()
    for bucket in present.tolist():
        yield bucket, table.take(pa.array(rows[bucket]))


def sort(tables: Sequence[pa.Table]) -> pa.Table:
    """Sort rows in the order of the database: by token, partition key and position."""
    table = pa.concat_tables(tables).combine_chunks()
    keys = pa.table([table[name] for name in SORTED_BY], SORTED_BY)
    return table.take(pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in SORTED_BY]))
