"""An index of the expiries in a file, so that due rows are found without reading all rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from writetime.core.arrow import numbers_present, pc, valid

_NONE = pa.nulls(0)
_NUMBERS = np.iinfo(np.int64)


@dataclass(frozen=True)
class Expiries:
    """The seconds at which data of rows expires, in order, and the index of the row of each."""

    seconds: np.ndarray
    rows: np.ndarray

    def due(self, after: int, until: int) -> np.ndarray:
        """Return the rows (sorted, each once) where data expires in `after` < t <= `until`, in seconds."""
        start, end = np.searchsorted(self.seconds, [after, until], "right")
        return np.unique(self.rows[start:end])

    def next_after(self, second: int) -> int | None:
        """Return the first second after this one at which data expires; None if there is none."""
        place = int(np.searchsorted(self.seconds, second, "right"))
        return int(self.seconds[place]) if place < len(self.seconds) else None


def expiries_of(batch: pa.RecordBatch, first_row: int) -> Expiries:
    """Return the expiries of the markers and cells of changes. Their rows are counted from `first_row`.

    A key column may look like a column of cells. Then the index also has rows in which nothing expires.
    """
    seconds: list[np.ndarray] = []
    rows: list[np.ndarray] = []
    # Mostly, the cells of a row expire with its marker.
    common = np.full(batch.num_rows, np.iinfo(np.int64).min)
    for number, (row, second) in enumerate(_found(batch)):
        new = second != common[row]
        if number == 0:
            common[row] = second
        seconds.append(second[new])
        rows.append(row[new])
    return _in_order(seconds, [each + first_row for each in rows])


def expiry_bounds(source: pq.ParquetFile) -> tuple[int, int] | None:
    """Return two seconds, between which all data of a file of the lake expires, by its footer; None if none expires.

    A file has no field of cells that is null in all rows, so mostly it has no TTL.
    """
    columns = {source.schema.column(i).path: i for i in range(len(source.schema))}
    groups = [source.metadata.row_group(i) for i in range(source.num_row_groups)]
    found: list[tuple[int, int]] = []
    for path, ttl in columns.items():
        end = columns.get(f"{path[:-3]}expiry", columns.get(f"{path[:-3]}deletion_time"))
        if path.endswith(".ttl") and end is not None:
            found += [_bounds(group.column(end).statistics) for group in groups if _has_values(group.column(ttl))]
    return (min(first for first, _ in found), max(last for _, last in found)) if found else None


def _has_values(column: pq.ColumnChunkMetaData) -> bool:
    """Return whether a column of a row group may have values that are not null."""
    # pyarrow's type stubs do not know that a column may have no statistics.
    known: Any = column.statistics
    return known is None or known.num_values > 0


def _bounds(known: Any) -> tuple[int, int]:
    return (known.min, known.max) if known is not None and known.has_min_max else (_NUMBERS.min, _NUMBERS.max)


def joined(several: list[Expiries]) -> Expiries:
    """Return the expiries of several batches of a file."""
    return _in_order([each.seconds for each in several], [each.rows for each in several])


def _in_order(seconds: list[np.ndarray], rows: list[np.ndarray]) -> Expiries:
    nothing = [np.empty(0, np.int64)]
    all_seconds, all_rows = np.concatenate(nothing + seconds), np.concatenate(nothing + rows)
    order = np.argsort(all_seconds, kind="stable")
    return Expiries(all_seconds[order], all_rows[order])


def _found(batch: pa.RecordBatch) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield rows, and the seconds at which their data expires, for each field with expiries. The marker is first."""
    for name in sorted(batch.schema.names, key=lambda n: n != "marker"):
        parts = _parts(batch.column(name))
        yield from _of_cells(parts)
        if pa.types.is_list((lists := parts.get("elements", _NONE)).type):
            parents = pc.list_parent_indices(lists).to_numpy()
            for row, second in _of_cells(_parts(lists.flatten())):
                yield parents[row], second
        for cells in _parts(parts.get("fields", _NONE)).values():
            yield from _of_cells(_parts(cells))


def _of_cells(parts: dict[str, pa.Array]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the expiries of cells or markers: only those have a TTL."""
    ends, ttls = parts.get("expiry", parts.get("deletion_time", _NONE)), parts.get("ttl", _NONE)
    if (ends.type, ttls.type) == (pa.int64(), pa.int32()):
        row = np.flatnonzero(valid(ends) & valid(ttls))
        if len(row):
            yield row, numbers_present(ends)[row]


def _parts(structs: pa.Array) -> dict[str, pa.Array]:
    if not pa.types.is_struct(structs.type):
        return {}
    return dict(zip((field.name for field in structs.type), structs.flatten(), strict=True))
