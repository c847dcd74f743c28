"""Finds the rows of erased places in files of the lake, and writes the files again without them.

Files are sorted by token, and have the tokens of each row group in their footers. So a file without the partitions
costs its footer, and only the keys and positions of the row groups that may have them are read.
"""

from collections.abc import Callable
from pathlib import PurePosixPath

import numpy as np
import pyarrow as pa

from writetime.changes.model import change_schema
from writetime.core.arrow import decoded, one_chunk, pc, take
from writetime.core.errors import WritetimeError
from writetime.delta.deletion_vectors import read_vector
from writetime.delta.parquet import PLACE, Layout, WrittenFile, conform, open_file, sort, without_empty, write_file
from writetime.delta.storage import Storage
from writetime.delta.versions import DataFile
from writetime.erasure.places import ErasedPlaces
from writetime.lake.erasures import parts_after
from writetime.row_events.events import ERASE
from writetime.schema.table import TableSchema

Cut = Callable[[pa.Table, DataFile], tuple[pa.Table, int]]
"""Returns the rows of a file that stay, and how many do not."""

# The fields of an event that an erasure leaves.
_LEFT_OF_EVENT = ("event_id", "kind", "sequence", "generation", "as_of")


def of_changes(places: ErasedPlaces, schema: TableSchema) -> Cut:
    """Return what leaves changes, or a level of the state, as they are: parts that are not newer than the erasure. The
    cut raises `require_no_bound`'s error.
    """

    def cut(rows: pa.Table, _file: DataFile) -> tuple[pa.Table, int]:
        require_no_bound(places, rows, schema.full_name)
        index = places.index(rows)
        erased = pa.array(index >= 0)
        own, rest = rows.filter(erased), rows.filter(pc.invert(erased))
        left = parts_after(own, schema, pa.array(places.until[index[index >= 0]]))
        if not sum(map(len, left)):
            return rest, len(own)
        full = change_schema(schema)
        return sort([conform(rest, full, "a file of changes"), *left]), len(own) - sum(map(len, left))

    return cut


def require_no_bound(places: ErasedPlaces, rows: pa.Table, name: str) -> None:
    """Raise a `WritetimeError` if a deletion of a range also covers other rows, and has the clustering values of erased
    ones in a bound: the table needs it, and no other bound means the same.
    """
    if places.is_bound_in(rows):
        raise WritetimeError(
            f"{name}: a deletion of a range begins or ends at rows that are to be erased, and covers others, so it "
            "stays, with the clustering values of its bounds: erase the partition, or name fewer clustering columns, "
            "so that the range is within"
        )


def of_view(places: ErasedPlaces, storage: Storage) -> Cut:
    """Return what leaves a file of the view: the rows at the places, and all that are marked as removed."""

    def cut(rows: pa.Table, file: DataFile) -> tuple[pa.Table, int]:
        erased = places.index(pa.Table.from_struct_array(one_chunk(rows[PLACE]))) >= 0
        count = int(erased.sum())
        erased[read_vector(storage, file.vector).to_array()] = True
        return rows.filter(pa.array(~erased)), count

    return cut


def of_events(places: ErasedPlaces) -> Cut:
    """Return what becomes of row events: an event of an erased row keeps its place in the stream, without values."""

    def cut(rows: pa.Table, _file: DataFile) -> tuple[pa.Table, int]:
        erased = erased_events(places, rows)
        columns = {
            name: one_chunk(rows[name])
            if name in _LEFT_OF_EVENT
            else pc.if_else(erased, pa.scalar(None, rows[name].type), one_chunk(rows[name]))
            for name in rows.column_names
        }
        columns["kind"] = pc.if_else(erased, ERASE, columns["kind"])
        count = pc.sum(erased).as_py() or 0
        return pa.table(list(columns.values()), schema=rows.schema.remove_metadata()), count

    return cut


def erased_events(places: ErasedPlaces, events: pa.Table) -> pa.Array:
    """Return which events are of the places, and not of writes after the erasure."""
    index = places.index(events)
    is_in = pa.array(index >= 0)
    if "write_time" not in events.column_names:
        # Events of earlier releases.
        return is_in
    is_old = pc.less_equal(one_chunk(events["write_time"]), take(pa.array(places.events_until), index))
    return pc.and_(is_in, is_old.fill_null(True))


def live_in_view(places: ErasedPlaces, storage: Storage, file: DataFile) -> bool:
    """Return whether a file of the view has rows of the places that are not marked as removed."""
    with open_file(storage, file.path) as opened:
        rows = opened.read([f"{PLACE}.key", f"{PLACE}.position"])
    found = np.flatnonzero(places.index(pa.Table.from_struct_array(one_chunk(rows[PLACE]))) >= 0)
    return any(row not in read_vector(storage, file.vector) for row in found.tolist())


def rewritten(
    storage: Storage, file: DataFile, cut: Cut, prefix: str, layout: Layout, *, without_nulls: bool = False
) -> tuple[list[WrittenFile], int]:
    """Write what stays of a file as a file of the same bucket, if anything does. Return it, and the number of rows that
    leave or lose their values; if there are none, nothing is written.
    """
    left, count = cut(_read(storage, file), file)
    if not count or not left.num_rows:
        return [], count
    # A dictionary would still have the values that left.
    columns = [decoded(one_chunk(column)) for column in left.columns]
    left = pa.table(columns, left.column_names)
    left = without_empty(left) if without_nulls else left
    tokens = left["token"] if PLACE not in left.column_names else None
    return [write_file(storage, left, file.bucket, tokens, prefix, layout=layout)], count


def count_erased(storage: Storage, file: DataFile, cut: Cut) -> int:
    """Return the number of rows of a file that would leave or lose their values."""
    return cut(_read(storage, file), file)[1]


def _read(storage: Storage, file: DataFile) -> pa.Table:
    with open_file(storage, file.path) as opened:
        return opened.read()


def prefix_of(path: str, parts: int) -> str:
    """Return the beginning of a file's name: some parts, each with a hyphen behind it."""
    return "".join(f"{part}-" for part in PurePosixPath(path).name.split("-")[:parts])
