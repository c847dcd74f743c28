"""Packs the files of a view: small files become a larger one, without the marked rows.

Files are in classes of size, each `FAN` times the previous one. `FAN` files of a class become one of the next class. If
more than a fortieth of a file's rows are marked, the file is written again without them. So a row is written at most
log4(view / batch) + 40 times for each of its changes, and a reader reads few files with few marked rows. `lake.packing`
chooses the files (`to_pack`), and limits the memory (`SORTED_AT_ONCE`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from writetime.core.arrow import one_chunk, pc
from writetime.delta.bucketed_table import Conflict
from writetime.delta.buckets import ALL, buckets_of
from writetime.delta.deletion_vectors import read_vector
from writetime.delta.parquet import PLACE, WrittenFile, conform, open_file
from writetime.delta.storage import Storage
from writetime.delta.table_changes import TableChange
from writetime.delta.versions import DataFile, TableVersion, by_folder
from writetime.files.merging import Runner, portions
from writetime.lake.packing import SORTED_AT_ONCE, to_pack
from writetime.lake.projection import VIEW
from writetime.lake.table import LakeTable, view_schema
from writetime.view.placed_rows import is_placed, write_placed

FAN = 4
"""The number of files of one size that become one."""

# Larger files (bytes of Parquet) are written again for their marked rows only.
_LARGEST = 32 << 20
# One in this number of a file's rows may be marked. Each marked row costs readers time: DuckDB some 100 ns.
_SHARE = 40


@dataclass(frozen=True)
class _Pack:
    """Write the live rows of some files as one file. Many or large rows of all buckets become one file per bucket, and
    rows that Arrow cannot sort at once become several.
    """

    bucket: int
    buckets: int
    files: tuple[DataFile, ...]
    schema: pa.Schema
    storage: Storage

    def run(self) -> list[WrittenFile]:
        """Run the task."""
        tables = map(self._rows, self.files)
        # Only one portion is in memory.
        return [
            file
            for portion in portions(tables, lambda table: table.nbytes, SORTED_AT_ONCE)
            for file in self._written(portion)
        ]

    def _written(self, tables: list[pa.Table]) -> list[WrittenFile]:
        found = {self.bucket: tables}
        # Not sooner, so that there are few files. A larger file of all buckets would not be packed again.
        few = sum(table.nbytes for table in tables) <= SORTED_AT_ONCE // FAN
        if self.bucket == ALL and not few:
            found = {}
            for table in tables:
                owners = buckets_of(one_chunk(table[PLACE]).field("token"), self.buckets)
                for bucket in np.unique(owners).tolist():
                    found.setdefault(bucket, []).append(table.filter(pa.array(owners == bucket)))
        return [file for bucket, parts in found.items() for file in write_placed(self.storage, _sorted(parts), bucket)]

    def _rows(self, file: DataFile) -> pa.Table:
        with open_file(self.storage, file.path) as opened:
            place = opened.schema_arrow.field(PLACE)
            rows = opened.read([name for name in opened.schema_arrow.names if name in {*self.schema.names, PLACE}])
        counts = np.ones(len(rows), bool)
        counts[read_vector(self.storage, file.vector).to_array()] = False
        full = pa.schema([*self.schema, place])
        return conform(rows.filter(pa.array(counts)), full, f"{self.storage.address}/{file.path}")


def _sorted(tables: Sequence[pa.Table]) -> pa.Table:
    """Return rows in the order of their places."""
    rows = pa.concat_tables(tables).combine_chunks()
    places = pa.table(one_chunk(rows[PLACE]).flatten(), ["token", "key", "position"])
    return rows.take(pc.sort_indices(places, sort_keys=[(name, "ascending") for name in places.column_names]))


def pack(table: LakeTable, run: Runner = map) -> int:
    """Pack the files of a view where it is worth it; return how many were replaced.

    Files are written again for their marked rows, together at most as many rows as the largest of them has, so that a
    refresh after it does not wait for many.
    """
    before = table.view.load()
    # If another program has changed the view, the next refresh writes all rows.
    storage = table.view.storage
    chosen = _chosen(storage, before) if VIEW.is_ours(before) else []
    if not chosen:
        return 0
    schema = view_schema(table.schema())
    tasks = [_Pack(bucket, table.buckets, tuple(files), schema, storage) for bucket, files in chosen]
    written = [file for files in run(_Pack.run, tasks) for file in files]
    removed = [file for _, files in chosen for file in files]
    try:
        VIEW.commit(table, before, TableChange(removed, written, is_new_data=False))
    except Conflict:
        # A refresh has marked rows of these files meanwhile.
        return 0
    return len(removed)


def _chosen(storage: Storage, version: TableVersion) -> list[tuple[int, list[DataFile]]]:
    """Return the groups of files to replace, each by one file, with their buckets."""
    chosen: list[tuple[int, list[DataFile]]] = []
    placed = [file for file in version.files if is_placed(file)]
    for bucket, files in sorted(by_folder(placed).items()):
        small = [file for file in files if file.size <= _LARGEST]
        live = [replace(file, size=round(file.size * (1 - file.marked / file.rows))) for file in small]
        if folded := {file.path for file in to_pack(storage, live, FAN)}:
            chosen.append((bucket, [file for file in files if file.path in folded]))
    taken = {file.path for _, files in chosen for file in files}
    marked = [file for file in placed if file.path not in taken and file.marked * _SHARE > file.rows]
    most_rows = max((file.rows for file in marked), default=0)
    rows = 0
    for file in sorted(marked, key=lambda file: file.marked / file.rows, reverse=True):
        rows += file.rows
        if rows > most_rows:
            break
        chosen.append((file.bucket, [file]))
    return chosen
