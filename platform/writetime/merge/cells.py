"""The cells of a state, one by one, with the serialised forms of their paths and values."""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from writetime.changes.model import element_types, udt_fields
from writetime.core.arrow import mask_of, numbers, pc
from writetime.merge.columns import kept_bytes
from writetime.merge.value_order import comparable, has_forms
from writetime.schema.serialise_arrays import serialised_array
from writetime.schema.types import Collection, CqlType, is_complex


@dataclass(frozen=True)
class ColumnCells:
    """Cells of one column, or of one field of a user-defined type.

    `entries` are the indexes of their rows in the state. `cells` has their times, as in a change. A path is a
    serialised key, element or timeuuid, or two bytes with the number of a field; it is null in other columns. `places`
    are the paths in a form in which those that are equal in the database are equal, such as the decimals 1.5 and 1.50.
    `values` are serialised; a tombstone and an element of a set have none, and an empty one here.
    """

    entries: np.ndarray
    cells: pa.StructArray
    paths: pa.Array
    places: pa.Array
    values: pa.Array

    @property
    def expiries(self) -> pa.Array:
        """The times at which the cells expire, in seconds; null for those that do not."""
        # A tombstone's time of deletion has the same field.
        expires = self.cells.field("ttl").is_valid()
        return pc.if_else(expires, self.cells.field("deletion_time"), pa.scalar(None, pa.int64()))


def cells_of(
    column: pa.StructArray, cql_type: CqlType, kept: Callable[[pa.StructArray], pa.Array]
) -> Iterator[ColumnCells]:
    """Yield the cells of a column of a state that `kept` returns a mask of. The column is no counter."""
    if not is_complex(cql_type):
        yield _cells(column, np.arange(len(column)), cql_type, kept)
        return
    parts = column.flatten()[1]
    if not isinstance(cql_type, Collection):
        for number, ((_, field_type), cells) in enumerate(zip(udt_fields(cql_type), parts.flatten(), strict=True)):
            yield _cells(cells, np.arange(len(cells)), field_type, kept, struct.pack(">h", number))
        return
    elements = parts.flatten()
    entries = np.repeat(np.arange(len(parts)), numbers(pc.list_value_length(parts)))
    types = dict(element_types(cql_type))
    found = _cells(elements, entries, types.get("value"), kept)
    cells, exact = found.cells, kept_bytes(found.cells, "path")
    path = serialised_array(cells.field("path"), types["path"], exact)
    place = (
        comparable(cells.field("path"), types["path"], exact).cast(pa.binary()) if has_forms(types["path"]) else path
    )
    yield ColumnCells(found.entries, cells, path, place, found.values)


def _cells(
    cells: pa.StructArray,
    entries: np.ndarray,
    value_type: CqlType | None,
    kept: Callable[[pa.StructArray], pa.Array],
    path: bytes | None = None,
) -> ColumnCells:
    mask = kept(cells)
    found = cells.filter(mask)
    if value_type is None:
        values = pa.repeat(pa.scalar(b"", pa.binary()), len(found))
    else:
        values = serialised_array(found.field("value"), value_type, kept_bytes(found, "value"))
    paths = pa.nulls(len(found), pa.binary()) if path is None else pa.repeat(pa.scalar(path, pa.binary()), len(found))
    return ColumnCells(entries[mask_of(mask)], found, paths, paths, values)
