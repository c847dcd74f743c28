"""The live rows of a state at a time: the rows that `SELECT *` would return then."""

import numpy as np
import pyarrow as pa

from writetime.changes.model import field_name
from writetime.core.arrow import mask_of, numbers, one_chunk, pc, take
from writetime.merge.precedence import EXPIRED_TTL
from writetime.schema.mapping import stored_type
from writetime.schema.table import TableSchema
from writetime.schema.types import Collection, CqlType, is_complex


def live_rows(state: pa.Table, schema: TableSchema, as_of: int) -> pa.Table:
    """Return the live rows of a state of whole partitions at a time (seconds), in the order of the database, with the
    table's columns by name.

    Values have the stored form (`mapping.stored_type`). `files.row_form.to_micros` returns the form of views.

    A row is live while its marker or one of its regular cells is live. Data with a TTL is live before its expiry
    second, and no longer in it. Live static cells are joined to each row of their partition. If there is no row, they
    form one, with nulls in the clustering and regular columns.
    """
    return live(state, schema, as_of)[0]


def live(state: pa.Table, schema: TableSchema, as_of: int) -> tuple[pa.Table, np.ndarray]:
    """Return the result of `live_rows`, and the index of each row in the state. A row of static cells alone has the
    index of the static row.
    """
    lives = markers_live(one_chunk(state["marker"]), as_of)
    has_static = np.zeros(len(state), bool)
    values: dict[str, pa.Array] = {}
    for column in schema.static + schema.regular:
        array, some = live_column(one_chunk(state[field_name(column)]), column.type, as_of)
        values[column.name] = array
        (has_static if column in schema.static else lives)[some] = True
    partition = _partitions(one_chunk(state["key"]))
    partitions = int(partition[-1]) + 1 if len(partition) else 0
    rows = np.bincount(partition[lives], minlength=partitions)
    static = np.full(partitions, -1)
    static[partition[has_static]] = np.flatnonzero(has_static)
    alone = has_static & (rows[partition] == 0)
    taken = np.flatnonzero(lives | alone)
    statics = static[partition[taken]]
    arrays = [take(one_chunk(state[field_name(c)]), taken) for c in schema.partition_key + schema.clustering]
    arrays += [take(values[c.name], statics) for c in schema.static]
    arrays += [take(values[c.name], taken) for c in schema.regular]
    fields = [pa.field(c.name, stored_type(c.type)) for c in schema.columns]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields)), taken


def live_column(column: pa.StructArray, cql_type: CqlType, as_of: int) -> tuple[pa.Array, np.ndarray]:
    """Return the value of a column in each row of a state, and whether any of its cells lives."""
    if not is_complex(cql_type):
        lives = cells_live(column, as_of)
        return pc.if_else(lives, column.field("value"), pa.scalar(None, stored_type(cql_type))), mask_of(lives)
    arrow, parts = stored_type(cql_type), column.flatten()[1]
    if not isinstance(cql_type, Collection):
        pairs = zip(parts.flatten(), cql_type.parts, strict=True)
        fields, lives = zip(*(live_column(cells, field_type, as_of) for cells, field_type in pairs), strict=True)
        some = np.logical_or.reduce(lives)
        return pa.StructArray.from_arrays(fields, fields=list(arrow), mask=pa.array(~some)), some
    elements = parts.flatten()
    lives = cells_live(elements, as_of)
    row = np.repeat(np.arange(len(parts)), numbers(pc.list_value_length(parts)))[mask_of(lives)]
    elements = elements.filter(lives)
    some = np.bincount(row, minlength=len(parts)) > 0
    whole = some.copy()
    if cql_type.kind == "map":
        # A key may be an empty value, which is null here, and maps have no null keys.
        whole[row[mask_of(elements.field("path").is_null())]] = False
        elements, row = elements.filter(pa.array(whole[row])), row[whole[row]]
    offsets = pa.array(np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(parts)))]).astype(np.int32))
    absent = pa.array(~whole)
    if pa.types.is_map(arrow):
        keys, items = elements.field("path"), elements.field("value")
        return pa.MapArray.from_arrays(offsets, keys, items, type=arrow, mask=absent), some
    if cql_type.kind == "map":
        entries = [elements.field("path"), elements.field("value")]
        values = pa.StructArray.from_arrays(entries, fields=list(arrow.value_type))
    else:
        values = elements.field("path" if cql_type.kind == "set" else "value")
    return pa.ListArray.from_arrays(offsets, values, type=arrow, mask=absent), some


def cells_live(cells: pa.StructArray, as_of: int) -> pa.Array:
    """Return which cells exist, are not tombstones, and have not expired (`AbstractCell.isLive`)."""
    unexpired = pc.greater(cells.field("deletion_time"), as_of).fill_null(True)
    deleted = cells.field("tombstone").fill_null(False)
    return pc.and_(cells.is_valid(), pc.and_(unexpired, pc.invert(deleted)))


def markers_live(markers: pa.StructArray, as_of: int) -> np.ndarray:
    """Return which row markers exist and have not expired."""
    expired = pc.or_(
        pc.less_equal(markers.field("expiry"), as_of).fill_null(False),
        pc.equal(markers.field("ttl"), EXPIRED_TTL).fill_null(False),
    )
    return mask_of(pc.and_(markers.is_valid(), pc.invert(expired)))


def _partitions(keys: pa.Array) -> np.ndarray:
    """Number the partitions of changes that are in order."""
    if not len(keys):
        return np.empty(0, np.int64)
    return np.concatenate([[0], np.cumsum(mask_of(pc.not_equal(keys[1:], keys[:-1])))])
