"""The live cells of a state, one by one, so that two states can be compared cell by cell."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from writetime.changes.model import element_types, field_name, udt_fields
from writetime.core.arrow import mask_of, numbers, one_chunk, pc, take
from writetime.merge.columns import kept_bytes
from writetime.merge.live import cells_live, markers_live
from writetime.merge.value_order import comparable, has_forms
from writetime.row_events.compare import OrderedRows
from writetime.schema.serialise_arrays import serialised_array
from writetime.schema.table import TableSchema
from writetime.schema.types import Collection, CqlType, is_complex

MARKER = -1
"""The column of a row's marker."""


@dataclass(frozen=True)
class LiveCells:
    """The cells of a state that live at a time.

    `cells` has the place of each, which is that of its row, its column and its path, and as values its path, its
    serialised value and its expiry (seconds; null: none). `entries` are the indexes of the rows in the state. `columns`
    are indexes in the static and regular columns, or `MARKER`. A path is a serialised key, element or timeuuid, or two
    bytes with the number of a field; it is null in other columns.
    """

    cells: OrderedRows
    entries: np.ndarray
    columns: np.ndarray
    paths: pa.Array
    write_times: np.ndarray


@dataclass(frozen=True)
class _Part:
    """Live cells of one column, or of one field. `place` has the paths in a form in which those that are equal in the
    database are equal, such as the decimals 1.5 and 1.50.
    """

    entries: np.ndarray
    path: pa.Array
    place: pa.Array
    value: pa.Array
    write_time: pa.Array
    expiry: pa.Array


def live_cells(state: pa.Table, schema: TableSchema, now: int) -> LiveCells:
    """Return the cells of a state that live at a time (seconds). The table has no counters."""
    parts = [(MARKER, _markers(one_chunk(state["marker"]), now))]
    for number, column in enumerate(schema.static + schema.regular):
        parts += [(number, part) for part in _of_column(one_chunk(state[field_name(column)]), column.type, now)]
    entries = np.concatenate([part.entries for _, part in parts])
    columns = np.concatenate([np.full(len(part.entries), number, np.int16) for number, part in parts])
    path, place, value, write_time, expiry = (
        pa.concat_arrays([getattr(part, name) for _, part in parts])
        for name in ("path", "place", "value", "write_time", "expiry")
    )
    tokens, keys, positions = (take(one_chunk(state[name]), entries) for name in ("token", "key", "position"))
    # A position has an end, and the code a fixed length, so no two cells have the same bytes.
    codes = pa.Array.from_buffers(pa.binary(2), len(columns), [None, pa.py_buffer(columns.astype(">i2"))])
    nothing = pa.scalar(b"", pa.binary())
    places = pc.binary_join_element_wise(positions, codes.cast(pa.binary()), place.fill_null(b""), nothing)
    values = pa.table({"path": path, "value": value, "expiry": expiry})
    return LiveCells(OrderedRows(values, tokens, keys, places), entries, columns, path, numbers(write_time))


def _markers(markers: pa.StructArray, now: int) -> _Part:
    entries = np.flatnonzero(markers_live(markers, now))
    live = take(markers, entries)
    values = pa.repeat(pa.scalar(b"", pa.binary()), len(entries))
    paths = pa.nulls(len(entries), pa.binary())
    return _Part(entries, paths, paths, values, live.field("write_time"), live.field("expiry"))


def _of_column(column: pa.StructArray, cql_type: CqlType, now: int) -> Iterator[_Part]:
    if not is_complex(cql_type):
        yield _of_cells(column, np.arange(len(column)), cql_type, now)
        return
    parts = column.flatten()[1]
    if not isinstance(cql_type, Collection):
        for number, ((_, field_type), cells) in enumerate(zip(udt_fields(cql_type), parts.flatten(), strict=True)):
            yield _of_cells(cells, np.arange(len(cells)), field_type, now, struct.pack(">h", number))
        return
    elements = parts.flatten()
    entries = np.repeat(np.arange(len(parts)), numbers(pc.list_value_length(parts)))
    types = dict(element_types(cql_type))
    found = _of_cells(elements, entries, types.get("value"), now)
    live = elements.filter(cells_live(elements, now))
    exact = kept_bytes(live, "path")
    path = serialised_array(live.field("path"), types["path"], exact)
    place = comparable(live.field("path"), types["path"], exact).cast(pa.binary()) if has_forms(types["path"]) else path
    yield _Part(found.entries, path, place, found.value, found.write_time, found.expiry)


def _of_cells(
    cells: pa.StructArray, entries: np.ndarray, value_type: CqlType | None, now: int, path: bytes | None = None
) -> _Part:
    """Return those of some cells that live; elements of sets have no value."""
    lives = cells_live(cells, now)
    live = cells.filter(lives)
    if value_type is None:
        value = pa.repeat(pa.scalar(b"", pa.binary()), len(live))
    else:
        value = serialised_array(live.field("value"), value_type, kept_bytes(live, "value"))
    # A tombstone's time of deletion has the same field.
    expiry = pc.if_else(live.field("ttl").is_valid(), live.field("deletion_time"), pa.scalar(None, pa.int64()))
    paths = pa.nulls(len(live), pa.binary()) if path is None else pa.repeat(pa.scalar(path, pa.binary()), len(live))
    return _Part(entries[mask_of(lives)], paths, paths, value, live.field("write_time"), expiry)
