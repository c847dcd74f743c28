"""The row form of values in views and row events: timestamps are in microseconds, as Spark and Delta store them.

Changes and states have CQL's milliseconds, which have a larger range. A timestamp that does not fit is null in the row
form. In a collection, tuple, vector or user-defined type, only that part is null. But a map with such a key is null as
a whole, because maps have no null keys.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from writetime.core.arrow import mask_of, one_chunk, pc
from writetime.core.counts import pluralize
from writetime.delta.parquet import list_offsets
from writetime.schema.mapping import arrow_type, stored_type
from writetime.schema.table import TableSchema
from writetime.schema.types import Collection, CqlType, Native, Vector

MILLIS_MAX = ((1 << 63) - 1) // 1000
"""The largest number of milliseconds, and as a negative number the smallest, that a timestamp of microseconds holds."""


def to_micros(rows: pa.Table, schema: TableSchema, unfit: Counter[str] | None = None) -> pa.Table:
    """Return rows of the stored form (of `merge.live_rows`) in the row form, with the names of the lake's view. `unfit`
    counts, by column, the rows with a timestamp that does not fit.
    """
    arrays = []
    for column in schema.columns:
        values = rows[column.name]
        if stored_type(column.type) != arrow_type(column.type):
            array, lost = _fit(one_chunk(values), column.type)
            values = pa.chunked_array([array])
            if unfit is not None and lost.any():
                unfit[column.name] += int(lost.sum())
        arrays.append(values)
    fields = [(c.label or c.name, arrow_type(c.type)) for c in schema.columns]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def warning(table: str, unfit: Counter[str]) -> str:
    """Return the warning about timestamps that do not fit."""
    columns = ", ".join(f"{name} ({pluralize(count, 'row')})" for name, count in sorted(unfit.items()))
    return f"{table}: timestamps outside of the years -290308 to 294247 are null in views and row events: {columns}"


def _fit(values: pa.Array, cql_type: CqlType) -> tuple[pa.Array, np.ndarray]:
    """Return values in the row form, and a flag for each that does not fit."""
    wanted = arrow_type(cql_type)
    if values.type == wanted:
        return values, np.zeros(len(values), bool)
    match cql_type:
        case Native():
            return _fit_timestamps(values, wanted)
        case Collection("map", arguments):
            return _fit_maps(values, arguments, wanted)
        case Collection(_, (element,)) | Vector(element, _):
            elements, lost = _fit(values.flatten(), element)
            return pa.ListArray.from_arrays(list_offsets(values), elements, wanted), _any_in(values, lost)
    parts = [_fit(part, t) for part, t in zip(values.flatten(), cql_type.parts, strict=True)]
    arrays = [array for array, _ in parts]
    return (
        pa.StructArray.from_arrays(arrays, fields=list(wanted), mask=values.is_null()),
        np.logical_or.reduce([lost for _, lost in parts]),
    )


def _fit_timestamps(millis: pa.Array, wanted: pa.DataType) -> tuple[pa.Array, np.ndarray]:
    fits = pc.and_(pc.less_equal(millis, MILLIS_MAX), pc.greater_equal(millis, -MILLIS_MAX))
    kept = pc.if_else(fits, millis, pa.scalar(None, pa.int64()))
    return pc.multiply(kept, 1000).cast(wanted), mask_of(pc.invert(fits).fill_null(False))


def _fit_maps(maps: pa.Array, types: Sequence[CqlType], wanted: pa.DataType) -> tuple[pa.Array, np.ndarray]:
    if pa.types.is_map(maps.type):
        maps = maps.cast(pa.list_(pa.struct([("key", maps.type.key_type), ("value", maps.type.item_type)])))
    entries = maps.flatten()
    (keys, lost_keys), (items, lost_items) = (_fit(p, t) for p, t in zip(entries.flatten(), types, strict=True))
    void = _any_in(maps, lost_keys)
    lost = void | _any_in(maps, lost_items)
    kept = pc.if_else(pa.array(void), pa.scalar(None, maps.type), maps)
    left = pa.array(~void[_rows_of(maps)])
    keys, items, offsets = keys.filter(left), items.filter(left), list_offsets(kept)
    if pa.types.is_map(wanted):
        return pa.MapArray.from_arrays(offsets, keys, items, wanted), lost
    pairs = pa.StructArray.from_arrays([keys, items], fields=list(wanted.value_type))
    return pa.ListArray.from_arrays(offsets, pairs, wanted), lost


def _any_in(lists: pa.Array, flags: np.ndarray) -> np.ndarray:
    """Return which lists have a flagged element."""
    found = np.zeros(len(lists), bool)
    found[_rows_of(lists)[flags]] = True
    return found


def _rows_of(lists: pa.Array) -> np.ndarray:
    """Return, for each element of the flattened lists, the index of its list."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    return np.repeat(np.arange(len(lists)), lengths)
