"""Reads one SSTable as Arrow batches of changes: `for batch in SSTable(location).scan(): ...`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
import pyarrow as pa

from writetime.schema.table import SchemaError, TableSchema
from writetime.schema.types import is_complex
from writetime.storage import layout as L
from writetime.storage.batch import BatchMaker, Origin
from writetime.storage.compression import DataFile, open_data
from writetime.storage.errors import CorruptFile
from writetime.storage.files import Location
from writetime.storage.index import partition_positions
from writetime.storage.infer import schema_of_headers
from writetime.storage.plan import Buffers, Plan
from writetime.storage.primitives import token
from writetime.storage.statistics import read_header
from writetime.storage.walk_sstable import walk_sstable

WINDOW = 1 << 20
MIN_TOKEN, MAX_TOKEN = -(1 << 63), (1 << 63) - 1

OnCorrupt = Literal["fail", "skip-partition", "skip-file"]


@dataclass
class Report:
    """What a scan left out because it could not be read: one text for each place, and the bytes of data passed over."""

    skipped: list[str] = field(default_factory=list)
    skipped_bytes: int = 0


class SSTable:
    """One SSTable. Opening it reads and checks its header; the data are read by `scan`.

    Raises:
        Missing, CorruptFile, Unsupported: a component is not there, not what was written, or not supported.
        SchemaError: `schema` is not that of this file.
    """

    def __init__(self, location: Location, schema: TableSchema | None = None) -> None:
        self.location = location
        self.header = read_header(location)
        self.schema = schema or schema_of_headers([(location, self.header)])
        self._check_schema()

    def _check_schema(self) -> None:
        where = self.location.path("Statistics.db")
        if tuple(c.type for c in self.schema.partition_key) != self.header.partition_key:
            raise SchemaError(f"{where}: the partition key is not that of {self.schema.full_name}")
        ours = [(c.type, c.reversed) for c in self.schema.clustering]
        if ours != [(key.components[0], key.reversed) for key in self.header.clustering]:
            raise SchemaError(f"{where}: the clustering columns are not those of {self.schema.full_name}")
        static = {c.name: c.type for c in self.schema.static} | {
            d.name: d.type for d in self.schema.dropped if d.static
        }
        regular = {c.name: c.type for c in self.schema.regular}
        regular |= {d.name: d.type for d in self.schema.dropped if not d.static and d.name not in regular}
        for stored, known in ((self.header.static, static), (self.header.regular, regular)):
            for name, cql_type in stored:
                if name not in known:
                    raise SchemaError(f"{where}: {self.schema.full_name} has no column {name}, live or dropped")
                ours_type = known[name]
                if (ours_type.fixed_length, is_complex(ours_type)) != (cql_type.fixed_length, is_complex(cql_type)):
                    raise SchemaError(f"{where}: column {name} is stored as {cql_type}, not as {ours_type}")

    @cached_property
    def data(self) -> DataFile:
        """The data file."""
        return open_data(self.location)

    @cached_property
    def partitions(self) -> np.ndarray:
        """Where the partitions start in the uncompressed data, ascending; empty without an index."""
        positions = partition_positions(self.location)
        if len(positions) and positions[-1] >= self.data.length:
            raise CorruptFile(self.location.path(self.location.features.index), None, "positions beyond the data's end")
        return positions

    def splits(self, target_bytes: int, tokens: tuple[int, int] = (MIN_TOKEN, MAX_TOKEN)) -> list[tuple[int, int]]:
        """Cut the part of the data that can hold these tokens (both included) into pieces of about `target_bytes`.

        A piece is a range of offsets in the uncompressed data, cut between partitions. Without an index there is one.
        """
        positions = self.partitions
        if not len(positions):
            return [(0, self.data.length)]
        first, last = 0, len(positions)
        if tokens != (MIN_TOKEN, MAX_TOKEN):
            first, last = self._search(tokens[0]), self._search(tokens[1] + 1)
        if first >= last:
            return []
        start = int(positions[first])
        end = self.data.length if last == len(positions) else int(positions[last])
        wanted = np.arange(start + target_bytes, end, target_bytes)
        cuts = {int(positions[i]) for i in np.searchsorted(positions, wanted) if i < last}
        bounds = sorted({start, *cuts, end})
        return list(pairwise(bounds))

    def _search(self, wanted: int) -> int:
        """Return the number of the first partition whose token is at least `wanted`."""
        low, high = 0, len(self.partitions)
        while low < high:
            middle = (low + high) // 2
            if self.token_at(int(self.partitions[middle])) < wanted:
                low = middle + 1
            else:
                high = middle
        return low

    def token_at(self, position: int) -> int:
        """Return the token of the partition that starts at a position."""
        data = self.data
        first = position // data.chunk_length
        last = min(position + 2 + 65535, data.length - 1) // data.chunk_length
        offset = position - first * data.chunk_length
        chunks = min(2 if offset + 256 > data.chunk_length else 1, last - first + 1)
        while True:
            out = np.empty(chunks * data.chunk_length, np.uint8)
            size = data.read(first, chunks, out)
            length = int.from_bytes(out[offset : offset + 2].tobytes(), "big")
            if offset + 2 + length <= size:
                return token(out[offset + 2 : offset + 2 + length].tobytes())
            if first + chunks > last:
                raise CorruptFile(data.path, position, "a partition was expected")
            chunks = last - first + 1

    def scan(
        self,
        fields: Sequence[str] | None = None,
        *,
        split: tuple[int, int] | None = None,
        tokens: tuple[int, int] = (MIN_TOKEN, MAX_TOKEN),
        on_corrupt: OnCorrupt = "fail",
        report: Report | None = None,
        window: int = WINDOW,
        origin: Origin | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Read the changes, in the order of the file: by token, partition, and position.

        Args:
            fields: fields of `changes.change_schema(self.schema)` to read; all if None.
            split: a range of offsets from `splits`; all of the data if None.
            tokens: the first and the last token to read.
            on_corrupt: at a fault, `fail`; or go on with the next partition whose start the index tells, or give up the
                rest of the file. The changes before the fault stay, what is left out is counted in `report`.
            report: takes what was left out.
            window: bytes of uncompressed data to work on at a time; grows to hold the largest row.
            origin: what the field `origin` is to say; the file's path by default.

        Raises:
            CorruptFile, Missing: see `on_corrupt`; a missing file always raises.
        """
        start, end = split or (0, self.data.length)
        origin = origin or Origin("sstable", self.data.path, datetime.now(UTC))
        walker = _Walker(self, fields, tokens, window, origin)
        while start < end:
            try:
                yield from walker.batches(start, end)
            except CorruptFile as fault:
                if on_corrupt == "fail":
                    raise
                at = start if fault.offset is None else fault.offset
                resume = end
                if on_corrupt == "skip-partition":
                    later = self.partitions[self.partitions > max(at, walker.sound_until - 1)]
                    resume = min(int(later[0]), end) if len(later) else end
                if report is not None:
                    report.skipped.append(f"{fault} (went on at offset {resume})" if resume < end else str(fault))
                    report.skipped_bytes += resume - at
                start = resume
            else:
                return


class _Walker:
    """The window over the data that the kernel walks through."""

    def __init__(
        self, sstable: SSTable, fields: Sequence[str] | None, tokens: tuple[int, int], window: int, origin: Origin
    ) -> None:
        self._data = sstable.data
        self._header = sstable.header
        self._features = sstable.location.features
        self._plan = Plan(sstable.schema, None if fields is None else set(fields))
        self._maker = BatchMaker(self._plan, fields)
        self._tokens = tokens
        self._origin = origin
        self._lines = np.array(
            self._plan.header([n for n, _ in self._header.static], [n for n, _ in self._header.regular]) or [0],
            np.int64,
        )
        self._present = np.empty(len(self._lines) + 1, np.uint8)
        self._key = np.empty(65536, np.uint8)
        self._state = np.zeros(L.WALK_FIELDS, np.int64)
        # No chunk that starts before this offset can be read.
        self.sound_until = 0
        self._allocate(max(window, self._data.chunk_length))

    def _allocate(self, capacity: int) -> None:
        self._window = np.empty(capacity, np.uint8)
        self._buffers = Buffers([self._plan], capacity)
        open_start = np.empty(4 * capacity + 4 * len(self._plan.clustering) + 64, np.uint8)
        if self._state[L.OPEN]:
            length = int(self._state[L.OPEN_LENGTH])
            open_start[:length] = self._open_start[:length]
        self._open_start = open_start
        self._state[L.OPEN_BYTES] = open_start.ctypes.data

    def _start(self) -> None:
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

    def batches(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Read the partitions from offset `start` to offset `end`."""
        self._start()
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
                    rest = self._window[:filled]
                    self._allocate(2 * len(self._window))
                    self._window[:filled] = rest
                count = min((len(self._window) - filled) // chunk_length, chunks - chunk)
                count, size, fault = self._read(chunk, count, filled)
                chunk += count
                filled += size
            last = chunk >= chunks
            status, at = self._walk(offset, at, min(filled, end - offset), last=last)
            if self._buffers.tables[0, L.ROWS]:
                yield self._maker.batch(self._buffers, 0, self._origin)
            if status == L.DONE:
                return
            if status != L.MORE:
                raise CorruptFile(self._data.path, offset + at, f"found {L.MESSAGES[status]}")
            if fault is not None:
                raise fault

    def _read(self, chunk: int, count: int, filled: int) -> tuple[int, int, CorruptFile | None]:
        """Read chunks into the window; what is sound before a corrupt one counts, and the fault is returned with it."""
        try:
            return count, self._data.read(chunk, count, self._window[filled:]), None
        except CorruptFile as fault:
            sound = 0 if fault.offset is None else fault.offset // self._data.chunk_length - chunk
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
