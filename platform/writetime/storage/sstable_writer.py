"""Writes changes as one SSTable: `with SSTableWriter(folder, schema) as writer: writer.write(batch)`.

The files are those of Cassandra's `BigTableWriter`, of the versions `nb` (Cassandra 4.0 to 5.0), `oa` (Cassandra 5.0,
with expiries after 2038) and `me` (ScyllaDB).
"""

import posixpath
import struct
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from writetime.changes.model import KINDS, PARTITION_TOMBSTONE, RANGE_TOMBSTONE, change_schema
from writetime.core.errors import WritetimeError
from writetime.schema.table import TableSchema
from writetime.schema.types import marshal_name, scylla_name
from writetime.storage.batch_to_write import Arranged, Arranger
from writetime.storage.data_writer import COMPRESSORS, DataWriter
from writetime.storage.file_errors import Unsupported
from writetime.storage.index_writer import FILTER_CHANCE, IndexWriter
from writetime.storage.kernel import write_layout as K
from writetime.storage.kernel.allocate import room, rooms
from writetime.storage.kernel.write_partitions import write_changes
from writetime.storage.locations import Location, resolve
from writetime.storage.statistics import DELETION_TIME_EPOCH, TIMESTAMP_EPOCH
from writetime.storage.statistics_writer import Collected, Written, statistics

VERSIONS = ("nb", "oa", "me")
# Cassandra's default (column_index_size) before 5.0. A block's width is stored as the difference to it.
_BLOCK_SIZE = 1 << 16
_CHUNK_LENGTH = 1 << 14
# ScyllaDB writes expiries with 64 bits, and deletions of partitions with 31.
_LAST_EXPIRY = {"nb": (1 << 31) - 2, "oa": (1 << 32) - 3, "me": (1 << 32) - 3}
_LAST_DELETION = {"nb": (1 << 31) - 2, "oa": (1 << 32) - 3, "me": (1 << 31) - 2}
# A set of one record: the features (2), 8 bytes, all of `sstable_feature` (`sstables/types.hh`) except the last one,
# `CorrectLastPiBlockWidth`: the last block of a row index includes the end of the partition, as in Cassandra. ScyllaDB
# refuses counters without this file (`sstable_directory::validate`).
_SCYLLA = struct.pack(">IIIQ", 1, 2, 8, (1 << 6) - 1)
# The largest value that a clustering column may have, and bytes for its encoding.
_CLUSTERING_BYTES = 2 * K.LONGEST + 64
_ERRORS = {
    K.OVERLAP: "a range tombstone begins within another one: merge the changes first",
    K.UNSORTED_POSITION: "changes of a partition must have positions that grow: merge the changes first",
    K.UNSORTED_KEY: "partitions must have tokens and keys that grow: merge the changes first",
    K.BAD_POSITION: "a row without a position, or a range that does not end after its start",
    K.BAD_KIND: f"a change of another kind than {', '.join(KINDS)}",
    K.BAD_KEY: f"a partition key must have 1 to {K.LONGEST} bytes",
    K.LONG_CLUSTERING: f"a clustering value must have at most {K.LONGEST} bytes",
}


class BadInput(WritetimeError):
    """Changes that an SSTable cannot hold, or that are not in its order."""


class SSTableWriter:
    """Writes one SSTable. Changes must be merged: in the order of `changes.model`, with one change per position and
    ranges that do not overlap, such as a state. Memory grows only by some 100 bytes per block of the current partition,
    by 16 bytes per partition, and by 8 per chunk.

    Leaving the context without an exception writes the last component, TOC.txt. Without it, readers refuse the SSTable.
    """

    def __init__(
        self,
        folder: str,
        schema: TableSchema,
        *,
        version: str = "nb",
        compressor: str | None = "LZ4Compressor",
        chunk_length: int = _CHUNK_LENGTH,
        block_size: int = _BLOCK_SIZE,
        sstable_id: str = "1",
    ) -> None:
        """Create the files.

        Args:
            folder: where to: a path, or the URL of a folder in an object store.
            schema: the table.
            version: one of `VERSIONS`.
            compressor: the name of a compressor's class, or None.
            chunk_length: bytes per compressed chunk.
            block_size: bytes of rows per block of a partition's row index.
            sstable_id: the part of the files' names that distinguishes SSTables of a folder.

        Raises:
            Unsupported: the version or the compressor is unknown, or a size is out of range. No file is created then.
        """
        if version not in VERSIONS:
            raise Unsupported(f"SSTables of version {version} cannot be written; those of {', '.join(VERSIONS)} can")
        if compressor is not None and compressor not in COMPRESSORS:
            raise Unsupported(f"compressor {compressor} is not supported; {', '.join(COMPRESSORS)} are")
        for name, number in ("chunk_length", chunk_length), ("block_size", block_size):
            if not 0 < number < 1 << 31:
                raise Unsupported(f"{name} must be a number of bytes from 1 to {(1 << 31) - 1}, not {number}")
        filesystem, path = resolve(folder)
        filesystem.create_dir(path, recursive=True)
        self.location = Location(filesystem, posixpath.normpath(path), version, sstable_id, "big")
        self.schema = schema
        self.changes = 0
        self._is_broken = False
        self._compressor = compressor
        self._data_file = self._open("Data.db")
        self._index_file = self._open("Index.db")
        self._data = DataWriter(self._data_file, compressor, chunk_length)
        self._index = IndexWriter(self._index_file)
        self._arranger = Arranger(schema)
        self._fields = [field for field in change_schema(schema) if field.name != "origin"]
        self._collected = Collected()
        self._state = np.zeros(K.WRITER_FIELDS, np.int64)
        self._lines = np.zeros((0, K.WRITE_FIELDS), np.int64)
        self._buffers: dict[int, np.ndarray] = {}
        self._kept = self._start(block_size)

    def _open(self, component: str) -> Any:
        return self.location.filesystem.open_output_stream(self.location.path(component))

    def _start(self, block_size: int) -> np.ndarray:
        state, features = self._state, self.location.features
        state[K.CLUSTERINGS] = len(self.schema.clustering)
        state[K.STATICS], state[K.REGULARS] = len(self.schema.static), len(self.schema.regular)
        state[K.UNSIGNED] = features.unsigned_deletion_time
        state[K.LIVE_DELETION_TIME] = -1 if features.unsigned_deletion_time else (1 << 31) - 1
        state[K.BLOCK_SIZE] = block_size
        state[[K.MIN_WRITE_TIME, K.MIN_DELETION_TIME, K.MIN_TTL]] = (1 << 63) - 1
        state[[K.MAX_WRITE_TIME, K.MAX_DELETION_TIME, K.MAX_TTL]] = -(1 << 63)
        state[[K.MIN_POSITION_LENGTH, K.MAX_POSITION_LENGTH, K.KEY_LENGTH]] = -1
        state[K.KEPT_ROOM] = K.LONGEST + 64 + _CLUSTERING_BYTES * len(self.schema.clustering)
        kept = room(K.KEPT_BUFFERS * int(state[K.KEPT_ROOM]), np.uint8)
        state[K.KEPT] = kept.ctypes.data
        return kept

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._finish()
        finally:
            self._data_file.close()
            self._index_file.close()

    def write(self, batch: pa.RecordBatch) -> None:
        """Write changes with the fields of `changes.model.change_schema`; `origin` is not needed.

        Raises:
            BadInput: the changes are not merged or not sorted, have a time that this version cannot hold, or have other
                fields; or an earlier batch was refused.
        """
        self._check_state()
        if not batch.num_rows:
            return
        self._check_fields(batch.schema)
        self._is_broken = True
        arranged = self._arranger.arrange(batch)
        if self._state[K.UNSIGNED]:
            self._check_deletions(arranged)
        if not self.changes:
            self._set_bases(arranged)
        self._reserve(arranged)
        for number, array in arranged.arrays.items():
            self._state[number] = array.ctypes.data
        self._lines = arranged.lines
        self._run(arranged.count, is_last=False)
        self.changes += arranged.count
        self._is_broken = False

    def _check_deletions(self, arranged: Arranged) -> None:
        """Raise BadInput if a partition or range was deleted before 1970. In the head of a partition and in its index,
        the first bit of the write time marks a missing deletion since `oa` (`DeletionTime.Serializer`).
        """
        arrays = arranged.arrays
        early = np.isin(arrays[K.KIND], (RANGE_TOMBSTONE, PARTITION_TOMBSTONE)) & (arrays[K.TOMBSTONE_TIMES] < 0)
        if early.any():
            raise BadInput(
                f"{self.location.path('Data.db')}: change {self.changes + int(early.argmax())}: version "
                f"{self.location.version} holds no deletion of a partition or range with a write time before 1970: "
                "write version nb"
            )

    def _check_state(self) -> None:
        # The state then has addresses of the refused batch, and some of its changes are missing.
        if self._is_broken:
            raise BadInput(f"{self.location.path('Data.db')}: an earlier batch was refused: write a new SSTable")

    def _check_fields(self, fields: pa.Schema) -> None:
        """Raise BadInput if the kernel would read other arrays than those that it knows."""
        for field in self._fields:
            found = fields.field(field.name).type if field.name in fields.names else None
            if found is None or not found.equals(field.type):
                raise BadInput(
                    f"{self.location.path('Data.db')}: changes of {self.schema.full_name} must have the field "
                    f"{field.name} of type {field.type}" + ("" if found is None else f", not {found}")
                )

    def _set_bases(self, arranged: Arranged) -> None:
        """Set the numbers that times are relative to. Smaller ones may follow, but take more space.

        Cassandra reads a deletion time of `oa` that is 2^31 seconds after its base, or later, as an invalid one.
        """
        bases = arranged.minimums()
        defaults = TIMESTAMP_EPOCH, DELETION_TIME_EPOCH, 0
        for number, base, default in zip(
            (K.BASE_WRITE_TIME, K.BASE_DELETION_TIME, K.BASE_TTL), bases, defaults, strict=True
        ):
            self._state[number] = default if base == (1 << 63) - 1 else base
        if self._state[K.UNSIGNED]:
            self._state[K.BASE_DELETION_TIME] = max(int(self._state[K.BASE_DELETION_TIME]), DELETION_TIME_EPOCH)

    def _reserve(self, arranged: Arranged) -> None:
        """Ensure that the buffers have room for the output of a batch."""
        state, bytes_ = self._state, arranged.room + 2 * int(self._state[K.KEPT_ROOM])
        blocks = bytes_ // int(state[K.BLOCK_SIZE]) + 2
        # A block has four numbers, and the clusterings of its first and its last row or bound. A row is in one block,
        # and may be of an earlier batch.
        prefixes = arranged.prefix_room(len(self.schema.clustering)) + int(state[K.KEPT_ROOM])
        block_bytes = int(state[K.BLOCKS_USED]) + blocks * 64 + 2 * prefixes
        index_bytes = block_bytes + 4 * (int(state[K.BLOCK_COUNT]) + blocks) + bytes_
        wanted = {
            K.OUT: (bytes_, np.uint8),
            K.BODY: (bytes_, np.uint8),
            K.INDEX: (index_bytes, np.uint8),
            K.DELETED: (4 * arranged.count + sum(line.entries() for line in arranged.kept) * 2 + 8, np.int64),
            K.FINISHED: ((arranged.count + 1) * K.FINISHED_FIELDS, np.int64),
        }
        missing = [n for n, (count, _) in wanted.items() if n not in self._buffers or len(self._buffers[n]) < count]
        for number, array in zip(missing, rooms([wanted[n] for n in missing]), strict=True):
            self._buffers[number] = array
        self._grow(K.BLOCKS, K.BLOCKS_USED, block_bytes, np.uint8)
        self._grow(K.BLOCK_OFFSETS, K.BLOCK_COUNT, int(state[K.BLOCK_COUNT]) + blocks, np.int32)
        for number, array in self._buffers.items():
            state[number] = array.ctypes.data

    def _grow(self, number: int, used: int, count: int, dtype: type[np.generic]) -> None:
        """Replace a buffer whose contents are still needed by one that is large enough."""
        old = self._buffers.get(number)
        if old is not None and len(old) >= count:
            return
        new = room(2 * count, dtype)
        if old is not None:
            new[: int(self._state[used])] = old[: int(self._state[used])]
        self._buffers[number] = new

    def _run(self, count: int, *, is_last: bool) -> None:
        state = self._state
        state[[K.OUT_USED, K.INDEX_USED, K.DELETED_COUNT, K.FINISHED_COUNT]] = 0
        row, error = write_changes(state, self._lines, count, is_last)
        if error:
            raise BadInput(f"{self.location.path('Data.db')}: change {self.changes + row}: {_ERRORS[error]}")
        finished = self._buffers[K.FINISHED][: int(state[K.FINISHED_COUNT]) * K.FINISHED_FIELDS]
        finished = finished.reshape(-1, K.FINISHED_FIELDS)
        deleted = self._buffers[K.DELETED][: int(state[K.DELETED_COUNT])]
        self._check_times(deleted)
        self._collected.add(finished, deleted)
        self._data.write(self._buffers[K.OUT][: int(state[K.OUT_USED])])
        self._index.write(self._buffers[K.INDEX][: int(state[K.INDEX_USED])], finished)
        state[K.DATA_POSITION] = self._data.length
        state[K.INDEX_POSITION] = self._index.length

    def _check_times(self, deletion_times: np.ndarray) -> None:
        last = _LAST_EXPIRY[self.location.version]
        base = int(self._state[K.BASE_DELETION_TIME])
        last_tombstone = min(_LAST_DELETION[self.location.version], base + (1 << 31) - 1)
        found = [int(self._state[K.MAX_TOMBSTONE_TIME])] if self._state[K.MAX_TOMBSTONE_TIME] > last_tombstone else []
        if len(deletion_times):
            found += [t for t in (int(deletion_times.min()), int(deletion_times.max())) if not 0 <= t <= last]
        if found:
            raise BadInput(
                f"{self.location.path('Data.db')}: a cell expires or was deleted at {found[0]} (seconds since 1970); "
                f"version {self.location.version} holds 0 to {last_tombstone}, and version oa more"
            )

    def _finish(self) -> None:
        """End the last partition, and write the other components."""
        self._check_state()
        if not self.changes:
            raise BadInput(f"{self.location.path('Data.db')}: an SSTable without changes cannot be written")
        self._run(0, is_last=True)
        features = self.location.features
        components = self._data.finish()
        if self._compressor is not None:
            components["CompressionInfo.db"] = self._data.compression_info(with_maximum=features.max_compressed_length)
        if self.location.version == "me":
            components["Scylla.db"] = _SCYLLA
        components["Filter.db"] = self._index.filter(words=not features.metadata_checksum)
        components["Summary.db"] = self._index.summary()
        components["Statistics.db"] = statistics(
            self.schema,
            features,
            Written(
                self._state,
                scylla_name if self.location.version == "me" else marshal_name,
                self._collected,
                self._data.ratio,
                FILTER_CHANCE,
                self._index.first,
                self._index.last,
                *self._clusterings(),
            ),
        )
        self._data_file.close()
        self._index_file.close()
        names = ["Data.db", "Index.db", *components, "TOC.txt"]
        components["TOC.txt"] = "".join(f"{name}\n" for name in names).encode()
        for name, content in components.items():
            with self._open(name) as file:
                file.write(content)

    def _clusterings(self) -> tuple[bytes | None, bytes | None]:
        """Return the smallest and the largest clustering. Those of ScyllaDB also cover deletions of partitions."""
        if self.location.version == "me" and self._state[K.PARTITION_DELETIONS]:
            return None, None
        return (
            self._prefix(K.KEPT_MIN_PREFIX, K.MIN_POSITION_LENGTH, K.MIN_PREFIX_LENGTH),
            self._prefix(K.KEPT_MAX_PREFIX, K.MAX_POSITION_LENGTH, K.MAX_PREFIX_LENGTH),
        )

    def _prefix(self, number: int, position_length: int, length: int) -> bytes | None:
        if self._state[position_length] < 0:
            return None
        start = number * int(self._state[K.KEPT_ROOM])
        return self._kept[start : start + int(self._state[length])].tobytes()
