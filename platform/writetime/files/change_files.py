"""Reads files of changes, and of levels of the state. The rows are those of Parquet's reader, at a lower cost."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from writetime.core.arrow import pc
from writetime.delta.footers import read_footer
from writetime.delta.parquet import conform, reading
from writetime.delta.storage import Storage
from writetime.merge.conform import REPEATING

_FLAG, _PRESENCE = "tombstone", "write_time"
# In smaller row groups, reading the statistics of a flag costs more than reading the flag.
_MANY_ROWS = 1 << 14


def read_changes(files: Iterable[tuple[Storage, str, tuple[int, int] | None]], schema: pa.Schema) -> list[pa.Table]:
    """Read files completely, or only the rows with tokens in a range. Files with the same fields become one table, so
    that no rows are combined twice.

    Fields of `REPEATING` are dictionaries if the files have them as dictionaries.
    """
    alike: dict[pa.Schema, list[pa.Table]] = {}
    names: dict[pa.Schema, str] = {}
    for storage, path, tokens in files:
        with open_changes(storage, path) as file:
            table = read_tokens(file, tokens, schema.names)
        fields = _without_dictionaries(table.schema)
        alike.setdefault(fields, []).append(table)
        names.setdefault(fields, f"{storage.address}/{path}")
    found = [(_joined(tables, fields), names[fields]) for fields, tables in alike.items()]
    return [conform(table, _with_dictionaries(schema, table), name) for table, name in found]


@contextmanager
def open_changes(storage: Storage, path: str) -> Iterator[pq.ParquetFile]:
    """Open a file so that its repeating texts and bytes are read as dictionaries."""
    with reading(storage, path), storage.filesystem().open_input_file(path) as opened:
        file = pq.ParquetFile(opened, metadata=read_footer(opened))
        yield pq.ParquetFile(
            opened,
            metadata=file.metadata,
            read_dictionary=_repeating(file),
            # A remote file is read with as few requests as its row groups allow.
            pre_buffer=not storage.is_local,
            page_checksum_verification=True,
        )


def read_tokens(file: pq.ParquetFile, tokens: tuple[int, int] | None, names: Sequence[str]) -> pa.Table:
    """Read the rows of a file with tokens from a first one to a last one, all by default; it is sorted by token."""
    if tokens is None:
        return read_groups(file, range(file.num_row_groups), names)
    first, last = tokens
    table = read_groups(file, groups_between(file, first, last), names)
    found = table["token"].to_numpy()
    begin, end = np.searchsorted(found, first), np.searchsorted(found, last, side="right")
    return table.slice(begin, end - begin)


def groups_between(file: pq.ParquetFile, first: int, last: int) -> list[int]:
    """Return the row groups that may have a token from a first one to a last one."""
    column = next(c for c in range(len(file.schema)) if file.schema.column(c).path == "token")
    ends = [file.metadata.row_group(g).column(column).statistics for g in range(file.num_row_groups)]
    return [g for g, token in enumerate(ends) if token.min <= last and token.max >= first]


def read_groups(file: pq.ParquetFile, groups: Sequence[int], names: Sequence[str]) -> pa.Table:
    """Read some row groups, with those of the columns that the file has.

    Columns that follow from the statistics are built without reading: a dictionary of one value (such as the kind, if
    all changes are of rows), and the tombstone flag of a column's cells if none of them is a tombstone.
    """
    schema = file.schema_arrow
    fields = [schema.field(name) for name in names if name in schema.names]
    statistics = _Statistics(file, groups) if file.metadata.num_rows >= _MANY_ROWS * file.num_row_groups else None
    constant = {f.name: found for f in fields if statistics and (found := statistics.constant(f)) is not None}
    flags = {f.name for f in fields if statistics and statistics.without_tombstones(f)}
    paths = []
    for field in fields:
        parts = [part.name for part in field.type if part.name != _FLAG] if field.name in flags else []
        paths += [f"{field.name}.{part}" for part in parts] or [field.name] * (field.name not in constant)
    # A task has one core.
    read = file.read_row_groups(list(groups), paths, use_threads=False)
    for column in read.columns:
        if pa.types.is_dictionary(column.type):
            # Arrow skips a page of an unknown kind, and a checksum does not cover the kind.
            column.validate(full=True)
    columns = []
    for field in fields:
        if field.name in constant:
            columns.append(pa.chunked_array([constant[field.name]]))
        elif field.name in flags:
            chunks = [_with_flag(chunk, field.type) for chunk in read[field.name].chunks]
            columns.append(pa.chunked_array(chunks, field.type))
        else:
            columns.append(read[field.name])
    return pa.table(columns, names=[field.name for field in fields])


def _without_dictionaries(schema: pa.Schema) -> pa.Schema:
    types = [f.type.value_type if pa.types.is_dictionary(f.type) else f.type for f in schema]
    return pa.schema(list(zip(schema.names, types, strict=True)))


def _with_dictionaries(schema: pa.Schema, table: pa.Table) -> pa.Schema:
    """Return the schema with the dictionaries that the merge accepts."""
    types = [table.schema.field(f.name).type if f.name in REPEATING else f.type for f in schema]
    return pa.schema(list(zip(schema.names, types, strict=True)))


def _joined(tables: Sequence[pa.Table], fields: pa.Schema) -> pa.Table:
    """Concatenate tables, with a dictionary for columns where all have one."""
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


class _Statistics:
    """The statistics of row groups, by column."""

    def __init__(self, file: pq.ParquetFile, groups: Sequence[int]) -> None:
        self._indices = {file.schema.column(i).path: i for i in range(len(file.schema))}
        self._groups = [file.metadata.row_group(group) for group in groups]

    def constant(self, field: pa.Field) -> pa.DictionaryArray | None:
        """Return a column of bytes or text as a dictionary, if it has one value and no null; else None."""
        if not pa.types.is_dictionary(field.type) or not self._groups:
            return None
        found = [group.column(self._indices[field.name]).statistics for group in self._groups]
        if any(one is None or one.null_count or not one.has_min_max for one in found):
            return None
        ends = {end for one in found for end in (one.min, one.max)}
        if len(ends) > 1:
            return None
        rows = sum(group.num_rows for group in self._groups)
        indices = pa.array(np.zeros(rows, np.int32))
        return pa.DictionaryArray.from_arrays(indices, pa.array(ends, field.type.value_type))

    def without_tombstones(self, field: pa.Field) -> bool:
        """Return whether a column has cells, and none of them is a tombstone."""
        flag, presence = (self._indices.get(f"{field.name}.{part}") for part in (_FLAG, _PRESENCE))
        if flag is None or presence is None:
            return False
        return all(_all_false(group, flag, presence) for group in self._groups)


def _all_false(group: pq.RowGroupMetaData, flag: int, presence: int) -> bool:
    """Return whether a flag is false in all cells, and present in each of them."""
    flags, present = group.column(flag).statistics, group.column(presence).statistics
    if flags is None or present is None or flags.null_count != present.null_count:
        return False
    return flags.null_count == group.num_rows or (flags.has_min_max and not flags.max)


def _with_flag(cells: pa.StructArray, wanted: pa.StructType) -> pa.StructArray:
    falses = pc.if_else(cells.field(_PRESENCE).is_valid(), pa.scalar(False), pa.scalar(None, pa.bool_()))
    parts = [falses if part.name == _FLAG else cells.field(part.name) for part in wanted]
    return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=cells.is_null())
