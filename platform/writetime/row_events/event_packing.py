"""Packs the small files of the stream: the files of successive batches become one, with the same events in order.

Batches are in classes of size. `FAN` successive batches of a class become one file of the next class, so few files are
left at any rate. The name of a file has its last batch, and each event has its own batch (`sequence`). So positions in
the stream do not change.

A batch that is large in memory stays as it is, like one that is large on disk. So packing holds few bytes at once, also
of events that compress well, and packs each event only a few times.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile

import pyarrow as pa

from writetime.lake.buckets import ALL
from writetime.lake.lake_storage import Storage
from writetime.lake.merging import portions
from writetime.lake.packing import FAN, SORTED_AT_ONCE
from writetime.lake.parquet import PARTITION, read_file, uncompressed_size, write_file
from writetime.lake.table import LakeTable
from writetime.lake.versions import DataFile, TableVersion
from writetime.row_events.stream_files import PREFIX, batch_files, merged_to

# Larger batches stay as they are, so that the result has at most 16 times this much (bytes of Parquet).
_LARGEST = 1 << 20
# Batches of the first class are up to this size, and those of the second one up to the largest.
SIZE_CLASSES = (_LARGEST // FAN, _LARGEST)


@dataclass(frozen=True)
class _Batches:
    """The files of one batch, or of several that were packed; `last` is the last one."""

    last: int
    files: Sequence[DataFile]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def in_memory(self, storage: Storage) -> int:
        """Return the size of the events in memory (bytes)."""
        return sum(uncompressed_size(storage, file.path) for file in self.files)


def pack_events(table: LakeTable) -> int:
    """Pack small batches; return how many files were packed.

    Raises:
        Conflict: another process replaced one of these files.
    """
    stream = table.row_events.load()
    chosen = _chosen(stream, table.row_events.storage)
    if not chosen:
        return 0
    files = [file for batches in chosen for file in batches.files]
    fields = stream.fields
    fields = fields.remove(fields.get_field_index(PARTITION))
    events = pa.concat_tables(read_file(table.row_events.storage, file.path, fields) for file in files)
    name = f"{PREFIX}{chosen[-1].last}-"
    packed = write_file(table.row_events.storage, events, ALL, events["token"], name)
    table.row_events.rewrite(stream, files, [packed], data_change=False)
    return len(files)


def _chosen(stream: TableVersion, storage: Storage) -> Sequence[_Batches]:
    """Return successive batches to pack. They fit in memory together."""
    base = merged_to(stream)
    newer = [(last, file) for last, file in batch_files(stream) if last > base]
    found = [_Batches(last, [file for _, file in files]) for last, files in groupby(newer, lambda each: each[0])]
    most = SORTED_AT_ONCE // FAN
    for smallest, size in reversed(list(zip((0, *SIZE_CLASSES), SIZE_CLASSES, strict=False))):
        newest = list(takewhile(lambda b, size=size: b.size <= size and b.in_memory(storage) <= most, reversed(found)))
        if sum(batches.size > smallest for batches in newest) >= FAN:
            return next(portions(newest[::-1], lambda batches: batches.in_memory(storage), SORTED_AT_ONCE))
    return []
