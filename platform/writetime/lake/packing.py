"""Packs the small files of a stream of batches: many files become one, with the same rows.

Files are in classes of size, each `FAN` times the previous one. `FAN` files of a class become one file of the next
class. So a change is rewritten log16(packed / batch) times, and few files are left at any rate of writes. Rows are
copied and not merged, with the cells of dropped columns, so their origins and the history stay as they were. Files of
merged history are not packed, because their names show that their rows have no origins (`generation`).

`view.packing` uses `to_pack` and `SORTED_AT_ONCE`, `row_events.packing` uses `FAN` and `SORTED_AT_ONCE`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from writetime.changes.model import change_schema
from writetime.delta.buckets import ALL, are_few
from writetime.delta.parquet import (
    HOT_LAYOUT,
    WrittenFile,
    read_files,
    sort,
    split_by_bucket,
    uncompressed_size,
    without_empty,
    write_file,
)
from writetime.delta.storage import Storage
from writetime.delta.table_changes import TableChange
from writetime.delta.versions import DataFile, TableVersion
from writetime.files.merging import Runner, portions
from writetime.lake.retention import folded_changes, replicated_changes, used_changes
from writetime.lake.state import PACKED, is_merged, levels_to_fold
from writetime.lake.table import LakeTable
from writetime.schema.table import TableSchema

FAN = 16
"""The number of files of one size that become one."""

SORTED_AT_ONCE = 1 << 30
"""The most bytes in memory that are sorted at once. A text column of an Arrow array has at most 2 GiB."""

# Larger files stay as they are, so that a task holds at most 16 times this much (bytes of Parquet).
_LARGEST = 16 << 20
# The number of unused files of batches from which they are packed before they are used.
_MOST_NEW = 4 * FAN


def to_pack(storage: Storage, files: Sequence[DataFile], fan: int = FAN) -> list[DataFile]:
    """Return the files to pack into one, like `levels_to_fold`, without those that are large in memory. Sorting cannot
    make larger files from these, so they would be packed forever.
    """
    small = files
    while chosen := levels_to_fold(small, fan):
        large = {f.path for f in chosen if uncompressed_size(storage, f.path) > SORTED_AT_ONCE // fan}
        if not large:
            break
        small = [f for f in small if f.path not in large]
    return chosen


@dataclass(frozen=True)
class _Pack:
    """Write the rows of some files of one bucket, or of `ALL`, as one file. Many or large rows of `ALL` become one file
    per bucket. More rows than are sorted at once become several files.
    """

    bucket: int
    buckets: int
    files: Sequence[DataFile]
    storage: Storage
    schema: TableSchema
    prefix: str

    def run(self) -> list[WrittenFile]:
        # Only one portion is in memory.
        size_of = partial(uncompressed_size, self.storage)
        return [
            file
            for portion in portions([f.path for f in self.files], size_of, SORTED_AT_ONCE)
            for file in self._packed(portion)
        ]

    def _packed(self, paths: Sequence[str]) -> list[WrittenFile]:
        tables = read_files(self.storage, paths, change_schema(self.schema))
        found: dict[int, list[pa.Table]] = {self.bucket: tables}
        few = are_few(sum(map(len, tables)), self.buckets, sum(table.nbytes for table in tables))
        if self.bucket == ALL and not few:
            found = {}
            for bucket, part in (split for table in tables for split in split_by_bucket(table, self.buckets)):
                found.setdefault(bucket, []).append(part)
        written = []
        for bucket, parts in found.items():
            for portion in portions(parts, lambda part: part.nbytes, SORTED_AT_ONCE):
                rows = without_empty(sort(portion))
                written.append(write_file(self.storage, rows, bucket, rows["token"], self.prefix, layout=HOT_LAYOUT))
        return written


def pack_batches(table: LakeTable, changes: TableVersion, most_new: int = _MOST_NEW) -> int:
    """Pack the files of all buckets, which small batches write; return the number of packed files. The cost is
    proportional to the batches. It runs between batches.

    Files that the state, the row events or the view have not read yet are not packed. Otherwise these would read the
    packed file as new, with rows that they have already. If there are more than `most_new` such files, packing them
    costs less nevertheless. Raise `Conflict` if another process replaced one of these files.
    """
    files = changes.by_folder.get(ALL, [])
    used = used_changes(table)
    old = [] if used is None else _known(files, used)
    if used is None or len(files) - len(old) > most_new:
        return _pack(table, changes, {ALL: files}, changes.version, map)
    return _pack(table, changes, {ALL: old}, used.version, map)


def pack_folded(table: LakeTable, run: Runner = map, most_new: int = _MOST_NEW) -> int:
    """Pack the files of each bucket that the state, the row events and the view have all read, so that none of them
    reads these again; return the number of packed files. If more than `most_new` files wait for row events or view,
    pack the files that the state has read. Raise `Conflict` if another process replaced one of these files.
    """
    changes = table.changes.load()
    of_buckets = {bucket: files for bucket, files in changes.by_folder.items() if bucket != ALL}
    used = used_changes(table)
    if used is None or any(len(f) - len(_known(f, used)) > most_new for f in of_buckets.values()):
        used = folded_changes(table)
    if used is None:
        return 0
    found = {bucket: _known(files, used) for bucket, files in of_buckets.items()}
    return _pack(table, changes, found, used.version, run)


def _known(files: Sequence[DataFile], version: TableVersion) -> list[DataFile]:
    """Return those of these files that a version has."""
    return [file for file in files if file.path in version.by_path]


def _pack(table: LakeTable, changes: TableVersion, found: dict[int, list[DataFile]], version: int, run: Runner) -> int:
    """Pack files that a version of `changes` has. Those that a replica has are packed separately, so that the
    replication reads none of these again.
    """
    small = {b: [f for f in files if f.size <= _LARGEST and not is_merged(f)] for b, files in found.items()}
    replicated = replicated_changes(table) if any(len(files) >= FAN for files in small.values()) else []
    storage, schema = table.changes.storage, table.whole_schema(changes)
    tasks, removed = [], []
    for bucket, files in small.items():
        for read, group in _by_reader(files, replicated, version):
            if chosen := to_pack(storage, group):
                tasks.append(_Pack(bucket, table.buckets, chosen, storage, schema, f"{PACKED}{read}-"))
                removed += chosen
    if not tasks:
        return 0
    written = [file for files in run(_Pack.run, tasks) for file in files]
    table.changes.commit(changes, TableChange(removed, written, is_new_data=False))
    return len(removed)


def _by_reader(
    files: Sequence[DataFile], replicated: Sequence[TableVersion], version: int
) -> Iterator[tuple[int, list[DataFile]]]:
    """Yield the files that each of these versions is the first to have, and the rest, with the number of the version,
    or `version` if it is smaller.
    """
    left = list(files)
    for each in replicated:
        known = _known(left, each)
        yield min(each.version, version), known
        left = [file for file in left if file.path not in each.by_path]
    yield version, left
