"""Finds deletions of cells that the lake lost. CQL reports no time of a deletion, so in a row with continuous writes, a
lost deletion would count as lag forever.

At a first read, the database lacks a cell, so all of it was deleted by then, or never written. A later read of the lake
has the cell, with a write time before the first read, although the lake has all writes up to that read by its
watermarks or snapshots. So the lake does not have the deletion, and never gets it. Elements of sets and maps, and
fields of UDTs, are such cells. Elements of lists are not compared: the database does not return which element is which.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from writetime.changes.model import STATIC, field_name, udt_fields
from writetime.core.arrow import mask_of, one_chunk, pc, take
from writetime.delta.versions import TableVersion
from writetime.lake.horizon import complete_snapshot, registered_sources, watermark_of
from writetime.merge.order import kind_codes
from writetime.row_events.compare import Matched, OrderedRows, different, match
from writetime.row_events.events import indexed_rows
from writetime.row_events.write_times import latest_of_column
from writetime.schema.table import TableSchema
from writetime.schema.types import Collection, CqlType, Native, is_complex
from writetime.verify.lost_bytes import compared_columns, of_lake

# How much earlier than a watermark a write must be (microseconds), as clocks of machines differ.
_CLOCKS_DIFFER = 5_000_000
# Types of elements that do not show by their values whether they are the same.
_SEVERAL_FORMS = frozenset({"decimal", "float", "double", "duration", "date"})


def whole_until(changes: TableVersion) -> int:
    """Return the time (microseconds) up to which the lake has all writes, by its watermarks or a backfill, unless it
    lost some.
    """
    marks = [watermark_of(changes, source) for source in registered_sources(changes)]
    return min(marks, default=complete_snapshot(changes)) - _CLOCKS_DIFFER


@dataclass(frozen=True)
class LakeRows:
    """Rows of the lake, and for each static and regular column, the entries of the state that its values are from."""

    rows: OrderedRows
    entries: Sequence[pa.Array]


@dataclass(frozen=True)
class FirstRead:
    """The rows of the database at the first read, and the times before and after it (microseconds). A cell that was
    written in between may have a deletion that the lake need not have yet.
    """

    rows: OrderedRows
    began: int
    ended: int

    def is_in_lake(self, changes: TableVersion) -> bool:
        """Return whether a version of the changes has all writes up to the read."""
        return whole_until(changes) >= self.ended

    def lost(self, lake: LakeRows, database: OrderedRows, found: Matched, schema: TableSchema) -> np.ndarray:
        """Return for each place and each static and regular column whether the lake lost a deletion of one of its
        cells.

        Args:
            lake: the rows of the lake, when `is_in_lake`.
            database: the rows of the database, read after the first read.
            found: the places that differ, the lake's `before`.
            schema: the table.
        """
        matched = match(database, self.rows)
        first = np.full(len(database.tokens) + 1, -1)
        first[matched.before] = np.where(matched.before >= 0, matched.after, -1)
        first[-1] = -1
        then = first[found.after]
        known = (found.before >= 0) & (found.after >= 0) & (then >= 0)
        sides = (lake.rows, found.before), (database, found.after), (self.rows, then)
        columns = []
        for column, entries in zip(schema.static + schema.regular, lake.entries, strict=True):
            values = [take(one_chunk(rows.values[column.name]), index) for rows, index in sides]
            of_places = take(entries, found.before)
            marks = known & _lost(column.type, of_places, values, self.began)
            if _shows_elements(column.type):
                held, now, before = values
                for i in np.flatnonzero(known & ~marks & different(held, now)).tolist():
                    kept = _old_elements(of_places[i], self.began) & _elements(held[i])
                    marks[i] = bool(kept - _elements(now[i]) - _elements(before[i]))
            columns.append(marks)
        return np.array(columns, bool).reshape(len(columns), len(known)).T


def rows_with_entries(state: pa.Table, schema: TableSchema, as_of: int) -> LakeRows:
    """Return the rows that live in a state at a time (microseconds), and the entries of their columns."""
    rows, index, of_static = _compared_rows(state, schema, as_of)
    return LakeRows(
        rows,
        [
            take(one_chunk(state[field_name(column)]), of_static if column in schema.static else index)
            for column in schema.static + schema.regular
        ],
    )


def compared_rows(state: pa.Table, schema: TableSchema, as_of: int) -> OrderedRows:
    """Return the rows that live in a state at a time (microseconds), with the bytes that decoding lost."""
    return _compared_rows(state, schema, as_of)[0]


def _compared_rows(state: pa.Table, schema: TableSchema, as_of: int) -> tuple[OrderedRows, np.ndarray, np.ndarray]:
    """Return the rows, and the index of the entry of each row, and of its static row, in the state."""
    rows, index = indexed_rows(state, schema, as_of)
    statics = np.flatnonzero(kind_codes(one_chunk(state["kind"])) == STATIC)
    keys = one_chunk(state["key"])
    place = pc.index_in(rows.keys, value_set=keys.take(pa.array(statics))).fill_null(-1).to_numpy()
    # Without such an entry, the row has no static cell.
    of_static = np.append(statics, -1)[place]
    lost = {}
    for column in compared_columns(schema):
        entries = take(one_chunk(state[field_name(column)]), of_static if column in schema.static else index)
        lost[column.name] = of_lake(entries, one_chunk(rows.values[column.name]), column.type, as_of // 1_000_000)
    return replace(rows, lost_bytes=lost), index, of_static


def _lost(cql_type: CqlType, entries: pa.Array, values: Sequence[pa.Array], until: int) -> np.ndarray:
    """Return where the lake holds a value, or a field of a UDT, that was written up to a time, and that the database
    lacks at both reads. `values` are those of the lake, and of the database at the last and the first read.
    """
    if is_complex(cql_type) and not isinstance(cql_type, Collection):
        cells, *parts = (each.flatten() for each in (entries.flatten()[1], *values))
        fields = zip(udt_fields(cql_type), cells, zip(*parts, strict=True), strict=True)
        return np.logical_or.reduce([_lost(field_type, own, of, until) for (_, field_type), own, of in fields])
    held, now, before = values
    lacked = mask_of(now.is_null()) & mask_of(before.is_null())
    return lacked & mask_of(held.is_valid()) & (latest_of_column(entries, cql_type) <= until)


def _shows_elements(cql_type: CqlType) -> bool:
    """Return whether a column has elements of its own that can be told from one another by their values."""
    match cql_type:
        case Collection("set" | "map", (Native(name), *_), False):
            return name not in _SEVERAL_FORMS
    return False


def _old_elements(entry: pa.StructScalar, until: int) -> set[object]:
    """Return the elements, by their values or keys, that were written up to a time, also those that do not live."""
    elements = entry["elements"].values
    if elements is None:
        return set()
    return set(elements.field("path").filter(pc.less_equal(elements.field("write_time"), until)).to_pylist())


def _elements(value: pa.ListScalar | pa.MapScalar) -> set[object]:
    """Return the elements of a set, or the keys of a map; none of null."""
    values = value.values
    if values is None:
        return set()
    return set((values.field(0) if pa.types.is_struct(values.type) else values).to_pylist())
