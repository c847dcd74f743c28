"""Reads one SSTable as Arrow batches of changes: `for batch in SSTable(location).scan(): ...`."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
import pyarrow as pa

from writetime.schema.compatible import is_readable
from writetime.schema.table import SchemaError, TableSchema
from writetime.schema.types import CqlType
from writetime.storage.batch import BatchMaker, Origin
from writetime.storage.compression import ChunkedFile, key_at, open_data
from writetime.storage.file_errors import CorruptFile
from writetime.storage.index import PartitionIndex, read_index
from writetime.storage.infer import former_columns, schema_of_headers
from writetime.storage.kernel import layout as L
from writetime.storage.kernel.allocate import room, rooms
from writetime.storage.kernel.primitives import token
from writetime.storage.kernel.walk_sstable import walk_sstable
from writetime.storage.locations import Features, Location
from writetime.storage.plan import Buffers, Plan
from writetime.storage.row_index import read_blocks
from writetime.storage.split import Cut, Split, cuts
from writetime.storage.statistics import read_header

WINDOW = 1 << 20
MIN_TOKEN, MAX_TOKEN = -(1 << 63), (1 << 63) - 1

OnCorrupt = Literal["fail", "skip-partition", "skip-file"]


@dataclass
class ScanReport:
    """The parts that a scan could not read: one text per place, and the number of skipped bytes."""

    skipped: list[str] = field(default_factory=list)
    skipped_bytes: int = 0


def _are_readable(stored: Sequence[CqlType], known: Sequence[CqlType]) -> bool:
    return len(stored) == len(known) and all(map(is_readable, stored, known))


class SSTable:
    """One SSTable. Opening it reads and checks its header; `scan` reads the data.

    Raises:
        MissingFile, CorruptFile, Unsupported: a component is missing, corrupt, or not supported.
        SchemaError: `schema` does not fit this file.
    """

    def __init__(self, location: Location, schema: TableSchema | None = None) -> None:
        self.location = location
        self.header = read_header(location)
        self.schema = schema or schema_of_headers([(location, self.header)])
        where = location.path("Statistics.db")
        ours = [c.type for c in self.schema.partition_key]
        if not _are_readable(self.header.partition_key, ours):
            raise SchemaError(f"{where}: the partition key is not that of {self.schema.full_name}")
        ours = [c.type for c in self.schema.clustering]
        reverse = [c.reversed for c in self.schema.clustering]
        theirs = [key.components[0] for key in self.header.clustering]
        if not _are_readable(theirs, ours) or reverse != [key.reversed for key in self.header.clustering]:
            raise SchemaError(f"{where}: the clustering columns are not those of {self.schema.full_name}")
        self._former = former_columns(where, self.header, self.schema)
        self._tokens: dict[int, int] = {}

    @cached_property
    def features(self) -> Features:
        """The features of the file. ScyllaDB writes the expiry of cells with 64 bits (`write_cell` in
        sstables/mx/writer.cc), so it may be after 2038. Cassandra before `oa` writes 32 bits. Only ScyllaDB's SSTables
        have a Scylla.db.
        """
        features = self.location.features
        return replace(features, unsigned_deletion_time=True) if self.location.exists("Scylla.db") else features

    @cached_property
    def data(self) -> ChunkedFile:
        """The data file."""
        return open_data(self.location)

    @cached_property
    def index(self) -> PartitionIndex:
        """The index of the partitions. It is empty if the SSTable has no index."""
        index = read_index(self.location)
        if len(index.positions) and index.positions[-1] >= self.data.length:
            raise CorruptFile(
                self.data.path,
                self.data.length,
                f"the file ends, and {index.path} has positions beyond: one of the two is damaged",
            )
        return index

    def splits(self, target_bytes: int, tokens: tuple[int, int] = (MIN_TOKEN, MAX_TOKEN)) -> list[Split]:
        """Cut the part of the data that can hold these tokens (both included) into pieces of about `target_bytes`.

        A piece is a range of uncompressed data, cut between partitions, and between rows of larger partitions. All
        pieces together give the changes of a scan of all data. There is only one piece without an index, and if only
        the file as a whole has a checksum. Raise `CorruptFile` if the index, or a key that it leads to, cannot be read.
        """
        positions = self.index.positions
        if not len(positions):
            return [Split(Cut(0), Cut(self.data.length))]
        if not self.data.has_chunk_checksums:
            # Each piece's reader must read the whole file first.
            target_bytes = self.data.length
        first = self._search(tokens[0]) if tokens[0] != MIN_TOKEN else 0
        last = self._search(tokens[1] + 1) if tokens[1] != MAX_TOKEN else len(positions)
        if first > last:
            raise CorruptFile(self.index.path, None, "partitions in the order of their tokens were expected")
        # The reader of the previous partition finds and reports faults there.
        if first > 0 and not self._is_next(first, tokens):
            first -= 1
        if first >= last:
            return []
        start = int(positions[first])
        end = self.data.length if last == len(positions) else int(positions[last])
        places = cuts(self.location, self.header.clustering, self.index, (start, end), target_bytes)
        return [Split(a, b) for a, b in pairwise([Cut(start), *places, Cut(end)])]

    def _is_next(self, partition: int, tokens: tuple[int, int]) -> bool:
        """Return whether the data prove that no partition with these tokens is between this one and the previous one.

        Indexes have no checksums. An index that lacks a partition, or has a wrong position, must not hide a partition.
        This reads at most the last block of rows of the previous partition. After the last partition of the index there
        may always be others, because a truncated Index.db looks like an index of fewer partitions. Raise `CorruptFile`
        if the previous partition is not at its position in the index.
        """
        before = int(self.index.positions[partition - 1])
        if not self.index.leads(partition - 1, key_at(self.data, before)):
            raise CorruptFile(self.index.path, None, f"the key that the data have at {before} was expected there")
        if partition == len(self.index.positions):
            return False
        start, end = Cut(before), Cut(int(self.index.positions[partition]))
        try:
            blocks = read_blocks(self.location, self.header.clustering, self.index, partition - 1)
            if blocks is not None:
                start = Cut(before + int(blocks.offsets[-1]), before, blocks.open_at(-1))
            return not any(self.scan(["token"], split=Split(start, end), tokens=tokens, window=1))
        except CorruptFile:
            return False

    def _search(self, wanted: int) -> int:
        """Return the number of the first partition whose token is at least `wanted`."""
        return bisect_left(range(len(self.index.positions)), wanted, key=self._token)

    def _token(self, partition: int) -> int:
        """Return the token of the partition with this number. It is cached, because all searches begin with the same
        partitions.
        """
        if partition not in self._tokens:
            self._tokens[partition] = token(key_at(self.data, int(self.index.positions[partition])))
        return self._tokens[partition]

    def scan(
        self,
        fields: Sequence[str] | None = None,
        *,
        split: Split | None = None,
        tokens: tuple[int, int] = (MIN_TOKEN, MAX_TOKEN),
        on_corrupt: OnCorrupt = "fail",
        report: ScanReport | None = None,
        window: int = WINDOW,
        origin: Origin | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Read the changes, in the order of the file: by token, partition, and position.

        Args:
            fields: the fields of `changes.change_schema(self.schema)` to read; None for all.
            split: a piece from `splits`; None for all data.
            tokens: the first and the last token to read.
            on_corrupt: the action at a fault: fail, continue with the next partition in the index, or leave out the
                rest of the file. The changes before the fault are returned in each case.
            report: records the parts that are left out.
            window: the number of uncompressed bytes to process at a time. It grows to hold the largest row.
            origin: the value of the field `origin`; by default the file's path.

        Raises:
            CorruptFile, MissingFile: see `on_corrupt`; a missing file always raises. If all of the file was read in
                order, Digest.crc32 is compared at the end, after the changes were returned.
        """
        split = split or Split(Cut(0), Cut(self.data.length))
        origin = origin or Origin("sstable", self.data.path, datetime.now(UTC))
        plan = Plan(self.schema, None if fields is None else set(fields), former=self._former)
        maker = BatchMaker(plan, fields)
        walker = _Walker(self, maker, tokens=tokens, window=window, origin=origin)
        end = split.end.offset
        while split.start.offset < end:
            try:
                yield from walker.batches(split)
            except CorruptFile as fault:
                if on_corrupt == "fail":
                    raise
                sound_until = walker.sound_until if on_corrupt == "skip-partition" else None
                split = Split(Cut(self._resume(fault, split, sound_until, report)), split.end)
            else:
                break
        try:
            self.data.digest.check()
        except CorruptFile as fault:
            if on_corrupt == "fail":
                raise
            if report is not None:
                report.skipped.append(str(fault))

    def _resume(self, fault: CorruptFile, split: Split, sound_until: int | None, report: ScanReport | None) -> int:
        """Return the offset at which a scan continues after a fault, and record the part that it leaves out: up to the
        next partition in the index after `sound_until`, or up to the end of the split if this is None.
        """
        at, end = max(split.start.offset, fault.offset or 0), split.end.offset
        resume = end
        # A fault without a position may be anywhere, so data after it may have been returned already.
        if sound_until is not None and fault.offset is not None:
            positions = self.index.positions
            later = positions[positions > max(at, sound_until - 1)]
            resume = min(int(later[0]), end) if len(later) else end
        if report is not None:
            report.skipped.append(f"{fault} (continued at offset {resume})" if resume < end else str(fault))
            report.skipped_bytes += max(0, resume - at)
        return resume


class _Walker:
    """Moves a window over a data file. The window is filled by chunk, the kernel processes it, and its changes become
    batches.
    """

    def __init__(
        self, sstable: SSTable, maker: BatchMaker, *, tokens: tuple[int, int], window: int, origin: Origin
    ) -> None:
        self._data = sstable.data
        self._header = sstable.header
        self._features = sstable.features
        self._maker = maker
        self._tokens = tokens
        self._origin = origin
        lines = maker.plan.header([n for n, _ in self._header.static], [n for n, _ in self._header.regular])
        self._lines, self._present, self._key, self._state = rooms(
            [(len(lines), np.int64), (len(lines), np.uint8), (L.KEY_ROOM, np.uint8), (L.WALK_FIELDS, np.int64)]
        )
        self._lines[:] = lines
        # No chunk that starts before this offset can be read.
        self.sound_until = 0
        self._allocate(max(window, self._data.chunk_length))

    def _allocate(self, capacity: int) -> None:
        self._buffers = Buffers([self._maker.plan], capacity)
        self._window = room(capacity, np.uint8)
        self._state[L.OPEN_BYTES] = self._buffers.open_start.ctypes.data

    def _open_start(self) -> np.ndarray:
        """Return a copy of the position at which the open range tombstone starts; nothing if none is open."""
        length = int(self._state[L.OPEN_LENGTH]) if self._state[L.OPEN] else 0
        return self._buffers.open_start[:length].copy()

    def _start(self, split: Split) -> None:
        state, header = self._state, self._header
        open_bytes = state[L.OPEN_BYTES]
        state[:] = 0
        state[L.OPEN_BYTES] = open_bytes
        state[L.MIN_WRITE_TIME] = header.min_write_time
        state[L.MIN_DELETION_TIME] = header.min_deletion_time
        state[L.MIN_TTL] = header.min_ttl
        state[L.UNSIGNED_DELETION_TIME] = self._features.unsigned_deletion_time
        state[L.COMPACT_PARTITION_DELETION] = self._features.compact_partition_deletion
        state[L.IS_SSTABLE] = 1
        state[L.STATICS], state[L.REGULARS] = len(header.static), len(header.regular)
        state[L.CURRENT_KEY] = self._key.ctypes.data
        state[L.CURRENT_TOKEN] = MIN_TOKEN
        state[L.FIRST_TOKEN], state[L.LAST_TOKEN] = self._tokens
        state[L.STOP_PARTITION] = -1 if split.end.partition is None else split.end.partition
        if split.end.open is not None:
            state[L.STOP_OPEN] = 1
            state[L.STOP_OPEN_WRITE_TIME], state[L.STOP_OPEN_DELETION_TIME] = split.end.open
        if split.start.partition is not None:
            self._start_inside(split.start, split.start.partition)

    def _start_inside(self, start: Cut, partition: int) -> None:
        key = key_at(self._data, partition)
        state = self._state
        self._key[: len(key)] = np.frombuffer(key, np.uint8)
        state[L.CURRENT_KEY_LENGTH] = len(key)
        state[L.CURRENT_TOKEN] = token(key)
        state[L.PARTITION_OFFSET] = partition
        state[L.IN_PARTITION] = 1
        if not self._tokens[0] <= state[L.CURRENT_TOKEN] <= self._tokens[1]:
            state[L.PASS_OVER] = 1
        elif start.open is not None:
            state[L.OPEN] = 2
            state[L.OPEN_WRITE_TIME], state[L.OPEN_DELETION_TIME] = start.open

    def batches(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Read a split."""
        self._start(split)
        start, end = split.start.offset, split.end.offset
        chunk_length = self._data.chunk_length
        chunk = start // chunk_length
        chunks = -(-end // chunk_length)
        offset = chunk * chunk_length  # of the window's first byte
        at, filled = start - offset, 0
        fault: CorruptFile | None = None
        while True:
            if fault is None and chunk < chunks:
                if len(self._window) - filled < chunk_length and at > 0:
                    self._window[: filled - at] = self._window[at:filled].copy()
                    offset, filled, at = offset + at, filled - at, 0
                if len(self._window) - filled < chunk_length:
                    rest, open_start = self._window[:filled], self._open_start()
                    # Earlier buffers would use memory at the same time as the new ones.
                    self._buffers = Buffers([self._maker.plan], 0)
                    self._allocate(2 * len(self._window))
                    self._window[:filled] = rest
                    self._buffers.open_start[: len(open_start)] = open_start
                count = min((len(self._window) - filled) // chunk_length, chunks - chunk)
                count, size, fault = self._read(chunk, count, filled)
                chunk += count
                filled += size
            last = chunk >= chunks
            self._state[L.STOP] = self._window.ctypes.data + split.end.offset - offset
            status, at = self._walk(offset, at, min(filled, end - offset), last=last)
            yield from self._maker.sound_batches(self._buffers, 0, self._origin)
            if status == L.DONE:
                return
            if self._state[L.READ_ON]:
                end = self._data.length
                chunks = -(-end // chunk_length)
            if status == L.TRUNCATED and end < self._data.length:
                raise CorruptFile(
                    self._data.path, end, "according to the index, a row or partition ends here, but none does"
                )
            if status != L.MORE:
                raise CorruptFile(self._data.path, offset + at, f"found {L.MESSAGES[status]}")
            if fault is not None:
                raise fault

    def _read(self, chunk: int, count: int, filled: int) -> tuple[int, int, CorruptFile | None]:
        """Read chunks into the window. If one is corrupt, keep the sound chunks before it, and return the fault with
        them.
        """
        try:
            return count, self._data.read(chunk, count, self._window[filled:]), None
        except CorruptFile as fault:
            if fault.offset is None:
                # The fault is one of the whole file.
                self.sound_until = self._data.length
                return 0, 0, fault
            sound = fault.offset // self._data.chunk_length - chunk
            self.sound_until = (chunk + sound + 1) * self._data.chunk_length
            size = self._data.read(chunk, sound, self._window[filled:]) if sound > 0 else 0
            return sound, size, fault

    def _walk(self, offset: int, at: int, end: int, *, last: bool) -> tuple[int, int]:
        state = self._state
        address = self._window.ctypes.data
        state[L.START], state[L.END] = address, address + end
        state[L.FILE_OFFSET] = offset
        state[L.IS_LAST] = last
        state[L.POSITION] = address + at
        self._buffers.reset()
        status = walk_sstable(state, self._buffers.tables, self._buffers.columns, self._lines, self._present)
        return status, int(state[L.POSITION]) - address
