"""Packs the small files of the stream: the files of successive batches become one, with the same events in order.

Batches are in classes of size. `FAN` successive batches of a class become one file of the next class, so few files are
left at any rate. The name of a file has its last batch, and each event has its own batch (`sequence`). So positions in
the stream do not change.

A batch that is large in memory stays as it is, like one that is large on disk. So packing holds few bytes at once, also
of events that compress well, and packs each event only a few times. Small batches before a large one get no successors,
so they become one file, however few they are. So the number of files depends on the size of the events, and not on the
order of large and small batches. `FAN` and the limit of the memory, `SORTED_AT_ONCE`, are those of `lake.packing`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile

import pyarrow as pa

from writetime.delta.buckets import ALL
from writetime.delta.parquet import PARTITION, read_file, uncompressed_size, write_file
from writetime.delta.storage import Storage
from writetime.delta.table_changes import TableChange
from writetime.delta.versions import DataFile, TableVersion
from writetime.files.merging import portions
from writetime.lake.packing import FAN, SORTED_AT_ONCE
from writetime.lake.projection import ROW_EVENTS
from writetime.lake.table import LakeTable
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

    def is_small(self, storage: Storage) -> bool:
        """Return whether the events may be packed."""
        return self.size <= SIZE_CLASSES[-1] and self.in_memory(storage) <= SORTED_AT_ONCE // FAN

    def in_memory(self, storage: Storage) -> int:
        """Return the size of the events in memory (bytes)."""
        return sum(uncompressed_size(storage, file.path) for file in self.files)


def pack_events(table: LakeTable) -> int:
    """Pack small batches; return how many files were packed. Raise `Conflict` if another process replaced one of these
    files.
    """
    storage = table.row_events.storage
    packed = 0
    # In a commit of its own, so that a kill loses the work on one group only.
    for chosen in _chosen(table.row_events.load(), storage):
        stream = table.row_events.load()
        files = [file for batches in chosen for file in batches.files]
        fields = stream.fields
        fields = fields.remove(fields.get_field_index(PARTITION))
        events = pa.concat_tables(read_file(storage, file.path, fields) for file in files)
        name = f"{PREFIX}{chosen[-1].last}-"
        written = write_file(storage, events, ALL, events["token"], name)
        ROW_EVENTS.commit(table, stream, TableChange(files, [written], is_new_data=False))
        packed += len(files)
    return packed


def _chosen(stream: TableVersion, storage: Storage) -> Iterator[Sequence[_Batches]]:
    """Yield groups of successive batches to pack. Those of a group fit in memory together."""
    base = merged_to(stream)
    newer = [(last, file) for last, file in batch_files(stream) if last > base]
    found = [_Batches(last, [file for _, file in files]) for last, files in groupby(newer, lambda each: each[0])]
    runs = [list(run) for is_small, run in groupby(found, lambda b: b.is_small(storage)) if is_small]
    newest = runs.pop() if runs and runs[-1][-1] is found[-1] else []
    for run in runs:
        # Each portion is large afterwards, and so is not packed again, but for the last one.
        yield from (portion for portion in _portions(run, storage) if len(portion) > 1)
    for smallest, size in reversed(list(zip((0, *SIZE_CLASSES), SIZE_CLASSES, strict=False))):
        own = list(takewhile(lambda b, size=size: b.size <= size, reversed(newest)))
        if sum(batches.size > smallest for batches in own) >= FAN:
            yield next(_portions(own[::-1], storage))
            return


def _portions(several: Sequence[_Batches], storage: Storage) -> Iterator[list[_Batches]]:
    return portions(several, lambda batches: batches.in_memory(storage), SORTED_AT_ONCE)
