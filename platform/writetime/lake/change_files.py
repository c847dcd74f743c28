"""Reads files of changes, and of levels of the state: the same rows as Parquet's reader gives, for less."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from writetime.lake.parquet import conform
from writetime.lake.storage import Storage
from writetime.merge.arrow import pc

_FLAG, _PRESENCE = "tombstone", "write_time"
# In smaller row groups it costs more to look at the statistics of a flag than to read it.
_MANY_ROWS = 1 << 14


def read_changes(files: Iterable[tuple[Storage, str]], schema: pa.Schema) -> list[pa.Table]:
    """Read files whole; those that have the same fields come as one table, so that nothing is put together twice."""
    alike: dict[pa.Schema, list[pa.Table]] = {}
    names: dict[pa.Schema, str] = {}
    for storage, path in files:
        with open_changes(storage, path) as file:
            table = read_groups(file, range(file.num_row_groups), schema.names)
        fields = _without_dictionaries(table.schema)
        alike.setdefault(fields, []).append(table)
        names.setdefault(fields, f"{storage.address}/{path}")
    return [conform(_joined(found, fields), schema, names[fields]) for fields, found in alike.items()]


@contextmanager
def open_changes(storage: Storage, path: str) -> Iterator[pq.ParquetFile]:
    """Open a file so that its texts and bytes that repeat are read as dictionaries."""
    with storage.filesystem().open_input_file(path) as opened:
        file = pq.ParquetFile(opened)
        # What is read of a remote file comes in as few requests as its row groups allow.
        remote = not storage.is_local
        yield pq.ParquetFile(opened, metadata=file.metadata, read_dictionary=_repeating(file), pre_buffer=remote)


def read_groups(file: pq.ParquetFile, groups: Sequence[int], names: Sequence[str]) -> pa.Table:
    """Read some row groups and, of these columns, those that the file has.

    Most cells are no tombstones: where the statistics say so of a column, the flag is not read but made.
    """
    fields = [file.schema_arrow.field(name) for name in names if name in file.schema_arrow.names]
    made = set(_without_tombstones(file, groups, fields))
    paths = []
    for field in fields:
        parts = [part.name for part in field.type if part.name != _FLAG] if field.name in made else []
        paths += [f"{field.name}.{part}" for part in parts] or [field.name]
    # A task has one core.
    read = file.read_row_groups(list(groups), paths, use_threads=False)
    columns = []
    for field in fields:
        column = read[field.name]
        if field.name in made:
            column = pa.chunked_array([_with_flag(chunk, field.type) for chunk in column.chunks], field.type)
        columns.append(column)
    return pa.table(columns, names=[field.name for field in fields])


def _without_dictionaries(schema: pa.Schema) -> pa.Schema:
    types = [f.type.value_type if pa.types.is_dictionary(f.type) else f.type for f in schema]
    return pa.schema(list(zip(schema.names, types, strict=True)))


def _joined(tables: Sequence[pa.Table], fields: pa.Schema) -> pa.Table:
    """Put tables together, with a dictionary where all have one."""
    if any(table.schema != tables[0].schema for table in tables):
        tables = [table.cast(fields) for table in tables]
    return pa.concat_tables(tables).combine_chunks()


def _repeating(file: pq.ParquetFile) -> list[str]:
    if not file.num_row_groups:
        return []
    group = file.metadata.row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    of_bytes = [c for c in columns if c.physical_type == "BYTE_ARRAY" and "." not in c.path_in_schema]
    return [c.path_in_schema for c in of_bytes if c.has_dictionary_page]


def _without_tombstones(file: pq.ParquetFile, groups: Sequence[int], fields: Iterable[pa.Field]) -> Iterator[str]:
    if file.metadata.num_rows < _MANY_ROWS * file.num_row_groups:
        return
    indices = {file.schema.column(i).path: i for i in range(len(file.schema))}
    found = [file.metadata.row_group(g) for g in groups]
    for field in fields:
        flag, presence = (indices.get(f"{field.name}.{part}") for part in (_FLAG, _PRESENCE))
        if flag is not None and presence is not None and all(_all_false(g, flag, presence) for g in found):
            yield field.name


def _all_false(group: pq.RowGroupMetaData, flag: int, presence: int) -> bool:
    """Return whether a flag is false in all cells, and there in each of them."""
    flags, present = group.column(flag).statistics, group.column(presence).statistics
    if flags is None or present is None or flags.null_count != present.null_count:
        return False
    return flags.null_count == group.num_rows or (flags.has_min_max and not flags.max)


def _with_flag(cells: pa.StructArray, wanted: pa.StructType) -> pa.StructArray:
    falses = pc.if_else(cells.field(_PRESENCE).is_valid(), pa.scalar(False), pa.scalar(None, pa.bool_()))
    parts = [falses if part.name == _FLAG else cells.field(part.name) for part in wanted]
    return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=cells.is_null())
