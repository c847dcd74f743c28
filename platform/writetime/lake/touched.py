"""Reads only the parts of files that a batch of row events, or a look-up, needs: the partitions of some tokens, and
those where cells expire.

Partitions are read through the cache of decoded files. Expiring cells are searched in the row groups whose statistics
allow them, and there only in the columns of expiry.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from writetime.changes.model import change_schema, field_name, udt_fields
from writetime.core.arrow import mask_of, pc
from writetime.lake.cache import Cache
from writetime.lake.change_files import groups_between, open_changes
from writetime.lake.merging import PORTION_BYTES, Source
from writetime.lake.parquet import conform
from writetime.merge import merge
from writetime.schema.table import TableSchema
from writetime.schema.types import Collection, CqlType, is_complex


def merge_touched(
    sources: Iterable[Source], schema: TableSchema, tokens: np.ndarray, cache: Cache, start: pa.Table | None = None
) -> pa.Table:
    """Merge the rows of files with some tokens (sorted, each once), and a merged table (if any); memory depends on the
    result.
    """
    state = merge([], schema) if start is None else start
    portion: list[pa.Table] = []
    size = 0
    for table in _read(sources, change_schema(schema), tokens, cache):
        portion.append(table)
        size += table.nbytes
        if size > PORTION_BYTES:
            state = merge([state, *portion], schema)
            portion, size = [], 0
    return merge([state, *portion], schema)


def expiring_tokens(sources: Iterable[Source], schema: TableSchema, after: int, until: int, cache: Cache) -> np.ndarray:
    """Return the tokens (sorted) of partitions where data expires, or was deleted, in `after` < t <= `until`.

    Both are in seconds.
    """
    wanted = expiry_paths(schema)
    found = [np.empty(0, np.int64)]
    ending = (replace(s, files=tuple(f for f in s.files if cache.may_end(s.storage, f, after, until))) for s in sources)
    for file, within in _open(ending):
        columns = {c: file.schema.column(c).path for c in range(len(file.schema))}
        times = [c for c, path in columns.items() if path in wanted]
        groups = [g for g in _groups(file, within) if _may_hold(file.metadata.row_group(g), times, after, until)]
        if groups:
            table = file.read_row_groups(groups, ["token", *(columns[c] for c in times)])
            hit = np.zeros(table.num_rows, bool)
            for column in table.drop_columns(["token"]).columns:
                hit |= _any_between(column.combine_chunks(), after, until)
            found.append(_of_range(table["token"].to_numpy()[hit], within))
    return np.unique(np.concatenate(found))


def expiry_paths(schema: TableSchema) -> set[str]:
    """Return the Parquet columns that hold the expiry of markers and cells."""
    paths = {"marker.expiry"}
    for column in schema.static + schema.regular:
        paths |= {f"{field_name(column)}.{path}" for path in _cell_paths(column.type)}
    return paths


def _cell_paths(cql_type: CqlType) -> list[str]:
    if not is_complex(cql_type):
        return ["deletion_time"]
    if isinstance(cql_type, Collection):
        return ["elements.list.element.deletion_time"]
    return [f"fields.{name}.deletion_time" for name, _ in udt_fields(cql_type)]


def _read(sources: Iterable[Source], wanted: pa.Schema, tokens: np.ndarray, cache: Cache) -> Iterator[pa.Table]:
    alike: dict[pa.Schema, list[pa.RecordBatch]] = {}
    size = 0
    for source in sources:
        for file in source.files:
            for batch in cache.rows(source.storage, file, _of_range(tokens, source.tokens_of(file))):
                alike.setdefault(batch.schema, []).append(batch)
                size += batch.nbytes
            if size > PORTION_BYTES:
                yield from _conformed(alike, wanted)
                alike, size = {}, 0
    yield from _conformed(alike, wanted)


def _conformed(alike: dict[pa.Schema, list[pa.RecordBatch]], wanted: pa.Schema) -> Iterator[pa.Table]:
    """Yield batches of the same fields as one table, so that it is conformed once."""
    for batches in alike.values():
        yield conform(pa.Table.from_batches(batches).combine_chunks(), wanted, "a file of changes")


def _open(sources: Iterable[Source]) -> Iterator[tuple[pq.ParquetFile, tuple[int, int] | None]]:
    """Yield files, each with the range of the tokens to take from it; None for all."""
    for source in sources:
        for file in source.files:
            with open_changes(source.storage, file.path) as opened:
                yield opened, source.tokens_of(file)


def _groups(file: pq.ParquetFile, within: tuple[int, int] | None) -> Sequence[int]:
    return range(file.num_row_groups) if within is None else groups_between(file, *within)


def _of_range(tokens: np.ndarray, within: tuple[int, int] | None) -> np.ndarray:
    return tokens if within is None else tokens[(tokens >= within[0]) & (tokens <= within[1])]


def _may_hold(group: pq.RowGroupMetaData, columns: Iterable[int], after: int, until: int) -> bool:
    """Return whether one of these columns may hold a number in `after` < n <= `until`."""
    for column in columns:
        statistics = group.column(column).statistics
        if statistics is None:
            return True
        if statistics.has_min_max and statistics.min <= until and statistics.max > after:
            return True
    return False


def _any_between(array: pa.Array, after: int, until: int) -> np.ndarray:
    """Return in which rows any number, at any depth, is in `after` < n <= `until`."""
    if pa.types.is_struct(array.type):
        return np.logical_or.reduce([_any_between(field, after, until) for field in array.flatten()])
    if pa.types.is_list(array.type):
        found = np.zeros(len(array), bool)
        found[pc.list_parent_indices(array).to_numpy()[_any_between(array.flatten(), after, until)]] = True
        return found
    hit = pc.and_(pc.greater(array, after), pc.less_equal(array, until))
    return mask_of(hit.fill_null(False))
