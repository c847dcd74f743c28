"""Writes changes as files of the lake: in a Spark task, a thread, or the process that reads them.

    files = ChangeWriter.of(table, schema).write(batches)
    table.changes.append(files, "capture/node-1", batch_number)

Tasks write the files; the driver commits those of a batch in one step.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from writetime.changes.model import change_schema
from writetime.delta.buckets import are_few, bucket_of_few
from writetime.delta.parquet import (
    HOT_LAYOUT,
    WrittenFile,
    conform,
    sort,
    split_by_bucket,
    without_empty,
    write_file,
)
from writetime.delta.storage import Storage
from writetime.delta.versions import TableVersion
from writetime.lake.erasures import NO_ERASURES, Erasures, read_erasures
from writetime.lake.table import LakeTable
from writetime.schema.table import TableSchema

# The bytes of changes (in Arrow) that a task collects before it writes them. Sorting needs the same amount again.
BUFFER_BYTES = 256 << 20


@dataclass(frozen=True)
class ChangeWriter:
    """Writes changes of one table as files of its buckets. It can be sent to a task of Spark or to a thread. Readers of
    changes call `left` first.
    """

    storage: Storage
    schema: TableSchema
    buckets: int
    buffer_bytes: int = BUFFER_BYTES
    erasures: Erasures = NO_ERASURES

    @classmethod
    def of(cls, table: LakeTable, schema: TableSchema, changes: TableVersion | None = None) -> "ChangeWriter":
        """Return a writer to a table of the lake. With a version of its changes, `left` leaves out what was erased. The
        commit of the files must require `erased_of` this version.
        """
        erasures = NO_ERASURES if changes is None else read_erasures(table, changes)
        return cls(table.changes.storage, schema, table.buckets, erasures=erasures)

    def left(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield changes without those of erased partitions that are not newer than the erasure."""
        for batch in batches:
            yield from self.erasures.left(batch, self.schema) if self.erasures else [batch]

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[WrittenFile]:
        """Write changes. The files are not visible until they are committed.

        Each file holds one bucket, or all of them if the changes are few. It is sorted by token, key and position.
        """
        full = change_schema(self.schema)
        buffers: dict[int, list[pa.Table]] = {}
        sizes: dict[int, int] = {}
        written = []
        # Not split by bucket yet.
        few: list[pa.Table] = []
        for batch in batches:
            if not batch.num_rows:
                continue
            few.append(conform(pa.Table.from_batches([batch]), full, f"changes of {self.schema.full_name}"))
            if not buffers and not written and self._are_few(few):
                continue
            for bucket, part in split_by_bucket(pa.concat_tables(few), self.buckets):
                buffers.setdefault(bucket, []).append(part)
                sizes[bucket] = sizes.get(bucket, 0) + part.nbytes
            few = []
            while sum(sizes.values()) > self.buffer_bytes:
                largest = max(sizes, key=lambda b: sizes[b])
                written.append(self._flush(largest, buffers.pop(largest)))
                del sizes[largest]
        if few:
            return [self._flush(bucket_of_few(pa.concat_tables(few)["token"], self.buckets), few)]
        return written + [self._flush(bucket, buffers[bucket]) for bucket in sorted(buffers)]

    def _are_few(self, parts: Sequence[pa.Table]) -> bool:
        rows, size = sum(part.num_rows for part in parts), sum(part.nbytes for part in parts)
        return are_few(rows, self.buckets) and size <= self.buffer_bytes

    def _flush(self, bucket: int, parts: Sequence[pa.Table]) -> WrittenFile:
        changes = sort(parts)
        return write_file(self.storage, without_empty(changes), bucket, changes["token"], layout=HOT_LAYOUT)
