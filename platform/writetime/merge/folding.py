"""Folds the changes of a table into its state."""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from writetime.changes.model import KINDS, RANGE_TOMBSTONE, ROW, change_schema, field_name
from writetime.core.arrow import decoded, one_chunk, take
from writetime.merge.columns import dropped_times, merge_column
from writetime.merge.conform import conform
from writetime.merge.counters import mergeable_counters
from writetime.merge.forms import with_newest_forms
from writetime.merge.order import Order, order_changes
from writetime.merge.precedence import NEVER, marker_times
from writetime.merge.tombstones import Tombstones, find_tombstones
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Native


def merge(tables: Iterable[pa.Table | pa.RecordBatch], schema: TableSchema) -> pa.Table:
    """Merge changes of whole partitions. They may be unsorted, repeated and overlapping, from any sources or older
    states.

    The state has the fields of changes, in the order of the database. For each partition, it has at most one partition
    tombstone, range tombstones that do not overlap, at most one static row, and one row per position, with all data
    that was not overwritten or deleted. `origin` is null. Expired data stays, so a state does not depend on the time.

    Raises:
        SchemaError: a table has changes of a schema that is not an earlier one of this table, see `conform`; or it has
            counters that cannot be merged, see `mergeable_counters`.
    """
    full = change_schema(schema)
    parts = [conform(t if isinstance(t, pa.Table) else pa.Table.from_batches([t]), schema) for t in tables]
    parts = [part for part in parts if len(part)]
    if not parts:
        return full.empty_table()
    schema, changes = _joined(parts, schema)
    for column in schema.static + schema.regular:
        if column.type == Native("counter"):
            name = field_name(column)
            cells = mergeable_counters(one_chunk(changes[name]), f"{schema.full_name}.{column.name}")
            changes = changes.set_column(changes.column_names.index(name), changes.schema.field(name), cells)
    order = with_newest_forms(order_changes(changes), changes, schema)
    tombstones = find_tombstones(order, one_chunk(changes["tombstone"]))
    group = order.group[: len(changes)]
    marker, some = _markers(one_chunk(changes["marker"]), group, tombstones)
    fields: dict[str, pa.Array] = {"marker": marker, "tombstone": tombstones.kept.array()}
    some |= tombstones.kept.write_time > NEVER
    dropped = dropped_times(schema)
    for column in schema.static + schema.regular:
        name = field_name(column)
        cells = one_chunk(changes[name])
        fields[name], present = merge_column(cells, column.type, group, tombstones.deleted, dropped[column.name])
        some |= present
    groups = np.flatnonzero(some)
    if len(groups) < len(some):
        fields = {name: array.take(pa.array(groups)) for name, array in fields.items()}
    fields |= _keys(changes, schema, order, tombstones, groups)
    # All missing fields of a type share their nulls.
    nulls = functools.cache(functools.partial(pa.nulls, len(groups)))
    arrays = [fields[f.name] if f.name in fields else nulls(f.type) for f in full]
    return pa.Table.from_arrays(arrays, schema=full)


def _joined(parts: Sequence[pa.Table], schema: TableSchema) -> tuple[TableSchema, pa.Table]:
    """Return the changes of all parts with one chunk per column, and their schema. Origins, and columns that no part
    has, are left out, because nulls would take most of the memory in a wide table.
    """

    def written(columns: tuple[Column, ...]) -> tuple[Column, ...]:
        return tuple(c for c in columns if any(part[field_name(c)].null_count < len(part) for part in parts))

    schema = replace(schema, static=written(schema.static), regular=written(schema.regular))
    fields = change_schema(schema)
    fields = fields.remove(fields.get_field_index("origin"))
    parts = [part.select(fields.names) for part in parts]
    if any(part.schema != parts[0].schema for part in parts):
        parts = [part.cast(fields) for part in parts]
    return schema, pa.concat_tables(parts).combine_chunks()


def _markers(markers: pa.StructArray, group: np.ndarray, tombstones: Tombstones) -> tuple[pa.StructArray, np.ndarray]:
    if markers.null_count == len(markers):
        none = np.zeros(len(tombstones.end), bool)
        return pa.nulls(len(none), markers.type), none
    times = marker_times(markers)
    deleted = tombstones.deleted.write_time
    best = times.latest(group, len(deleted))
    live = best >= 0
    live[live] = times.write_time[best[live]] > deleted[live]
    return take(markers, np.where(live, best, -1)), live


def _keys(
    changes: pa.Table, schema: TableSchema, order: Order, tombstones: Tombstones, groups: np.ndarray
) -> dict[str, pa.Array]:
    """Return the fields with the places of these groups; each takes them from its head."""
    items = order.head[groups]
    heads = order.change(items)
    kinds = order.kinds[heads]
    ends = np.where(kinds == RANGE_TOMBSTONE, order.head[tombstones.end[groups]], -1)
    rows = np.where(kinds == ROW, heads, -1)
    of_partition = ["token", "key", *(field_name(c) for c in schema.partition_key)]
    return {
        "kind": pa.DictionaryArray.from_arrays(pa.array(kinds), list(KINDS)).dictionary_decode(),
        **{name: decoded(take(one_chunk(changes[name]), heads)) for name in of_partition},
        **{field_name(c): take(one_chunk(changes[field_name(c)]), rows) for c in schema.clustering},
        "position": decoded(order.positions.take(pa.array(items))),
        "end": decoded(take(order.positions, ends)),
    }
