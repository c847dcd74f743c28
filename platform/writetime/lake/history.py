"""A table as of an earlier time: the changes whose write time is not later.

The changes can show a time if they are complete from that time on. Three operations limit this: a snapshot, which lacks
the cells that its cells replaced; retention, which merges old changes into one; and a new generation. The first two
raise the table's property `writetime.history_from`. The commit that begins a generation has its first time, so that
both take effect at once. Earlier times are rejected, unless an earlier generation can show them (`lake.earlier`).
"""

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from writetime.changes.model import field_name
from writetime.core.arrow import mask_of, one_chunk, pc
from writetime.core.errors import WritetimeError
from writetime.core.instants import instant_text
from writetime.delta.versions import TableVersion
from writetime.lake.table import LakeTable
from writetime.schema.table import TableSchema
from writetime.schema.types import is_complex

HISTORY_FROM = "writetime.history_from"
HISTORY = "history"
"""In a commit to `changes` that begins a generation: the first time that it can show, in microseconds."""


def history_from(changes: TableVersion) -> int | None:
    """Return the first time that the changes can show, in microseconds; None if they can show any time."""
    found = changes.properties.get(HISTORY_FROM), changes.transaction(HISTORY)
    return max((int(first) for first in found if first is not None), default=None)


def raise_history(table: LakeTable, instant: int) -> None:
    """Record that the changes show no time before this one (microseconds)."""
    table.changes.raise_property(HISTORY_FROM, instant)


def require_history(table: LakeTable, changes: TableVersion, instant: int) -> None:
    """Raise a `WritetimeError` if the changes cannot show a time (microseconds)."""
    if fault := cannot_show(table, changes, instant):
        raise WritetimeError(fault)


def cannot_show(table: LakeTable, changes: TableVersion, instant: int) -> str | None:
    """Return why the changes cannot show a time (microseconds); None if they can."""
    first = history_from(changes)
    if first is None or instant >= first:
        return None
    return (
        f"{table.name} as of {instant_text(instant)}: the lake can show only {instant_text(first)} and later (a "
        "snapshot was taken or the table was truncated or created again then, or older changes were merged by "
        "lake.keep_history_days)"
    )


def without_later_drops(schema: TableSchema, instant: int) -> TableSchema:
    """Return a schema in which no drop after a time (microseconds) makes cells void."""
    return replace(schema, dropped=tuple(column for column in schema.dropped if column.dropped_at <= instant))


def schema_at(table: LakeTable, changes: TableVersion, instant: int, created: int | None = None) -> TableSchema:
    """Return the schema of a version of the changes as it was at a time (microseconds): with the columns that were
    dropped since, and with their cells from before, also of those that were added again. Columns that were added since
    stay in it. They have no cells from before. With `created`, it is that of an earlier table of the name.
    """
    return without_later_drops(table.whole_schema(changes, after=instant, created=created), instant)


def until(changes: pa.Table, schema: TableSchema, instant: int) -> pa.Table:
    """Return the parts of the changes that were written up to a time (microseconds)."""
    return select(changes, schema, lambda cells: pc.less_equal(cells.field("write_time"), instant))


def after(changes: pa.Table, schema: TableSchema, instant: int) -> pa.Table:
    """Return the parts of the changes that were written after a time (microseconds)."""
    return select(changes, schema, lambda cells: pc.greater(cells.field("write_time"), instant))


Keep = Callable[[pa.StructArray], pa.Array]
"""Returns which cells, markers or tombstones stay."""


def select(changes: pa.Table, schema: TableSchema, keep: Keep) -> pa.Table:
    """Return changes with only those cells, markers and tombstones that stay."""
    columns: dict[str, pa.Array] = {name: _cells(one_chunk(changes[name]), keep) for name in ("marker", "tombstone")}
    for column in schema.static + schema.regular:
        select = _parts if is_complex(column.type) else _cells
        columns[field_name(column)] = select(one_chunk(changes[field_name(column)]), keep)
    left = np.logical_or.reduce([mask_of(array.is_valid()) for array in columns.values()])
    arrays = [columns.get(name, changes[name]) for name in changes.column_names]
    return pa.Table.from_arrays(arrays, schema=changes.schema).filter(pa.array(left))


def _cells(cells: pa.StructArray, keep: Keep) -> pa.StructArray:
    kept = pc.and_(cells.is_valid(), keep(cells).fill_null(False))
    return pa.StructArray.from_arrays(cells.flatten(), fields=list(cells.type), mask=pc.invert(kept))


def _parts(column: pa.StructArray, keep: Keep) -> pa.StructArray:
    """Filter a non-frozen collection or UDT; it is null if nothing of it is left."""
    tombstone, parts = column.flatten()
    tombstone = _cells(tombstone, keep)
    left = tombstone.is_valid()
    if pa.types.is_struct(parts.type):
        cells = [_cells(field, keep) for field in parts.flatten()]
        some = functools.reduce(pc.or_, [c.is_valid() for c in cells])
        kept = pa.StructArray.from_arrays(cells, fields=list(parts.type), mask=pc.invert(some))
    else:
        elements = parts.flatten()
        chosen = keep(elements)
        row = pc.list_parent_indices(parts).filter(chosen).to_numpy()
        lengths = np.bincount(row, minlength=len(parts))
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
        some = pa.array(lengths > 0)
        kept = pa.ListArray.from_arrays(offsets, elements.filter(chosen), parts.type, mask=pc.invert(some))
    left = pc.or_(left, some)
    return pa.StructArray.from_arrays([tombstone, kept], fields=list(column.type), mask=pc.invert(left))
