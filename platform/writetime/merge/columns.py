"""The columns of the merged state: the latest cells of each row that no deletion covers.

A simple column has one cell per row. A collection has one cell per element, in the order of their paths, and a
user-defined type one per field. Both also have a column tombstone, which deletes earlier cells (`ComplexColumnData`).
"""

import numpy as np
import pyarrow as pa

from writetime.core.arrow import numbers, pc, take_present
from writetime.merge.counters import merge_counter
from writetime.merge.order import group_by
from writetime.merge.precedence import NEVER, cell_times, deletion_times
from writetime.merge.tombstones import Deletion
from writetime.merge.value_order import comparable, has_forms, serialised, serialised_row
from writetime.schema.table import TableSchema
from writetime.schema.types import Collection, CqlType, Native, is_complex


def dropped_times(schema: TableSchema) -> dict[str, int]:
    """Return the time of the last drop of each static and regular column. Cells that are not younger are void."""
    times = {column.name: NEVER for column in schema.static + schema.regular}
    for column in schema.dropped:
        if column.name in times:
            times[column.name] = max(times[column.name], column.dropped_at)
    return times


def merge_column(
    column: pa.StructArray, cql_type: CqlType, group: np.ndarray, deleted: Deletion, dropped_at: int
) -> tuple[pa.StructArray, np.ndarray]:
    """Merge a static or regular column of changes, of which each belongs to a group. `deleted` covers the cells of each
    group, and cells written at or before `dropped_at` are void, because the column was dropped.

    Return the column of each group, and whether it has any data.
    """
    if cql_type == Native("counter"):
        return merge_counter(column, group, deleted, dropped_at)
    if not is_complex(cql_type):
        return _simple(column, cql_type, group, deleted, dropped_at)
    groups = len(deleted.write_time)
    tombstones, parts = column.flatten()
    times = deletion_times(tombstones)
    latest = times.latest(group, groups)
    own = Deletion(times.write_time, times.deletion_time).at(latest)
    before_drop = Deletion(np.full(groups, dropped_at), np.full(groups, np.iinfo(np.int64).max))
    kept = own.exceeds(deleted) & own.exceeds(before_drop)
    deleted = own.where(kept, deleted)
    own = own.at(np.where(kept, np.arange(groups), -1))
    if isinstance(cql_type, Collection):
        merged, some = _elements(parts, cql_type, group, deleted, dropped_at)
    else:
        merged, some = _fields(parts, cql_type, group, deleted, dropped_at)
    some = some | kept
    array = pa.StructArray.from_arrays([own.array(), merged], fields=list(column.type), mask=pa.array(~some))
    return array, some


def _simple(
    cells: pa.StructArray, cql_type: CqlType, group: np.ndarray, deleted: Deletion, dropped_at: int
) -> tuple[pa.StructArray, np.ndarray]:
    times = cell_times(cells, dropped_at)

    def decide(tied: np.ndarray) -> pa.Array:
        return serialised(*_taken(cells, "value", cql_type, pa.array(tied)))

    best = times.latest(group, len(deleted.write_time), decide)
    live = (best >= 0) & (times.write_time[best] > deleted.write_time)
    return take_present(cells, np.where(live, best, -1)), live


def _fields(
    fields: pa.StructArray, cql_type: CqlType, group: np.ndarray, deleted: Deletion, dropped_at: int
) -> tuple[pa.StructArray, np.ndarray]:
    arrays = []
    some = np.zeros(len(deleted.write_time), bool)
    for cells, field_type in zip(fields.flatten(), cql_type.parts, strict=True):
        array, has_cell = _simple(cells, field_type, group, deleted, dropped_at)
        arrays.append(array)
        some |= has_cell
    return pa.StructArray.from_arrays(arrays, fields=list(fields.type), mask=pa.array(~some)), some


def _elements(
    lists: pa.ListArray, cql_type: Collection, group: np.ndarray, deleted: Deletion, dropped_at: int
) -> tuple[pa.ListArray, np.ndarray]:
    elements = lists.flatten()
    lengths = numbers(pc.list_value_length(lists))
    group = np.repeat(group, lengths)
    path_type = Native("timeuuid") if cql_type.kind == "list" else cql_type.arguments[0]
    value_type = cql_type.arguments[-1]
    paths = comparable(elements.field("path"), path_type, kept_bytes(elements, "path"))
    element, head, _ = group_by(group, pa.nulls(len(paths), pa.binary()), paths)
    groups_of = group[head]
    times = cell_times(elements, dropped_at)

    def decide(tied: np.ndarray) -> pa.Array:
        indices = pa.array(tied)
        if cql_type.kind == "set":
            return serialised(*_taken(elements, "path", path_type, indices))
        if not has_forms(path_type):
            return serialised(*_taken(elements, "value", value_type, indices))
        parts = [_taken(elements, name, t, indices) for name, t in (("value", value_type), ("path", path_type))]
        arrays, types, others = zip(*parts, strict=True)
        return serialised_row(arrays, types, others)

    best = times.latest(element, len(head), decide, of_tombstones=has_forms(path_type))
    live = best >= 0
    live[live] = times.write_time[best[live]] > deleted.write_time[groups_of[live]]
    counts = np.bincount(groups_of[live], minlength=len(deleted.write_time))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    some = counts > 0
    return pa.ListArray.from_arrays(pa.array(offsets), elements.take(pa.array(best[live])), type=lists.type), some


def kept_bytes(cells: pa.StructArray, name: str) -> pa.Array | None:
    """Return the bytes of the values or paths of cells where decoding lost some; None if it loses none of the type."""
    place = cells.type.get_field_index(f"{name}_bytes")
    return None if place < 0 else cells.flatten()[place]


def _taken(
    cells: pa.StructArray, name: str, cql_type: CqlType, indices: pa.Array
) -> tuple[pa.Array, CqlType, pa.Array | None]:
    """Return the values or paths of some cells, their type and their bytes, for `value_order.serialised`."""
    others = kept_bytes(cells, name)
    return cells.field(name).take(indices), cql_type, None if others is None else others.take(indices)
