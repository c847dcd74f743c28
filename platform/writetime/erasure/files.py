"""Finds the rows of erased partitions in files of the lake, and writes the files again without them.

Files are sorted by token, and have the tokens of each row group in their footers. So a file without the partitions
costs its footer, and only the keys of the row groups that may have them are read.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from writetime.changes.model import change_schema
from writetime.core.arrow import decoded, mask_of, one_chunk, pc
from writetime.delta.buckets import ALL, buckets_of
from writetime.delta.deletion_vectors import read_vector
from writetime.delta.parquet import (
    PLACE,
    Layout,
    WrittenFile,
    conform,
    open_file,
    sort,
    without_empty,
    write_file,
)
from writetime.delta.storage import Storage
from writetime.delta.versions import DataFile
from writetime.lake.erasures import newer
from writetime.row_events.events import ERASE
from writetime.schema.table import TableSchema

Cut = Callable[[pa.Table, DataFile], tuple[pa.Table, int]]
"""Returns the rows of a file that stay, and how many do not."""

# The fields of an event that an erasure leaves.
_LEFT_OF_EVENT = ("event_id", "kind", "sequence", "generation", "as_of")


@dataclass(frozen=True)
class Partitions:
    """Partitions by their tokens and serialised keys, in any order, and the write time (microseconds) up to which each
    is erased.
    """

    tokens: np.ndarray
    keys: pa.Array
    until: Mapping[bytes, int]

    def buckets(self, buckets: int) -> set[int]:
        """Return the buckets of files that may have them."""
        return {ALL, *np.unique(buckets_of(pa.array(self.tokens), buckets)).tolist()}

    def are_keys_of(self, keys: pa.Array) -> pa.Array:
        """Return which keys are those of the partitions; a null is not."""
        return pc.is_in(decoded(keys), value_set=self.keys)

    def may_be_in(self, storage: Storage, path: str) -> bool:
        """Return whether a file has rows of them: of changes, of the state, events, or rows of a view with places."""
        with open_file(storage, path) as file:
            within = f"{PLACE}." if PLACE in file.schema_arrow.names else ""
            groups = self._groups(file, f"{within}token")
            if not groups:
                return False
            found = one_chunk(file.read_row_groups(groups, [f"{within}key"]).column(0))
            return pc.any(self.are_keys_of(found.field("key") if within else found)).as_py() or False

    def _groups(self, file: pq.ParquetFile, token: str) -> list[int]:
        """Return the row groups that may have a token of them, by their statistics."""
        paths = [file.schema.column(i).path for i in range(len(file.schema))]
        if token not in paths:
            return list(range(file.num_row_groups))
        found = []
        for group in range(file.num_row_groups):
            ends = file.metadata.row_group(group).column(paths.index(token)).statistics
            if ends is None or not ends.has_min_max or ((self.tokens >= ends.min) & (self.tokens <= ends.max)).any():
                found.append(group)
        return found


def of_changes(partitions: Partitions, schema: TableSchema) -> Cut:
    """Return what leaves changes, or a level of the state, as they are: parts that are not newer than the erasure."""

    def cut(rows: pa.Table, _file: DataFile) -> tuple[pa.Table, int]:
        erased = partitions.are_keys_of(_keys(rows))
        own = rows.filter(erased)
        keys = _keys(own)
        left = [
            newer(own.filter(pc.equal(keys, key)), schema, partitions.until[key.as_py()]) for key in pc.unique(keys)
        ]
        rest = rows.filter(pc.invert(erased))
        if not sum(map(len, left)):
            return rest, len(own)
        full = change_schema(schema)
        return sort([conform(rest, full, "a file of changes"), *left]), len(own) - sum(map(len, left))

    return cut


def of_view(partitions: Partitions, storage: Storage) -> Cut:
    """Return what leaves a file of the view: the rows of the partitions, and all that are marked as removed."""

    def cut(rows: pa.Table, file: DataFile) -> tuple[pa.Table, int]:
        erased = np.array(mask_of(partitions.are_keys_of(one_chunk(rows[PLACE]).field("key"))))
        count = int(erased.sum())
        erased[read_vector(storage, file.vector).to_array()] = True
        return rows.filter(pa.array(~erased)), count

    return cut


def of_events(partitions: Partitions) -> Cut:
    """Return what becomes of row events: an event of an erased row keeps its place in the stream, without values."""

    def cut(rows: pa.Table, _file: DataFile) -> tuple[pa.Table, int]:
        erased = erased_events(partitions, rows)
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


def erased_events(partitions: Partitions, events: pa.Table) -> pa.Array:
    """Return which events are of the partitions, and not of writes after the erasure."""
    index = pc.index_in(_keys(events), value_set=partitions.keys)
    until = pa.array([partitions.until[key] for key in partitions.keys.to_pylist()], pa.int64()).take(index)
    if "write_time" not in events.column_names:
        # Events of earlier releases.
        return index.is_valid()
    is_old = pc.less_equal(one_chunk(events["write_time"]), until)
    return pc.and_(index.is_valid(), is_old.fill_null(True))


def live_in_view(partitions: Partitions, storage: Storage, file: DataFile) -> bool:
    """Return whether a file of the view has rows of the partitions that are not marked as removed."""
    with open_file(storage, file.path) as opened:
        keys = one_chunk(opened.read([f"{PLACE}.key"]).column(0)).field("key")
    found = np.flatnonzero(mask_of(partitions.are_keys_of(keys)))
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


def _keys(rows: pa.Table) -> pa.Array:
    return decoded(one_chunk(rows["key"]))
