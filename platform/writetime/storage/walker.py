"""Moves a window over a data file. The window is filled by chunk, the kernel processes it, and its changes become
batches.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from writetime.storage.batch import BatchMaker, Origin
from writetime.storage.compression import ChunkedFile, key_at
from writetime.storage.file_errors import CorruptFile
from writetime.storage.kernel import layout as L
from writetime.storage.kernel.allocate import rooms
from writetime.storage.kernel.primitives import token
from writetime.storage.kernel.walk_sstable import walk_sstable
from writetime.storage.locations import Features
from writetime.storage.plan import Buffers
from writetime.storage.split import Cut, Split
from writetime.storage.statistics import Header

MIN_TOKEN, MAX_TOKEN = -(1 << 63), (1 << 63) - 1


class Walker:
    """The window over a data file."""

    def __init__(
        self,
        data: ChunkedFile,
        header: Header,
        features: Features,
        maker: BatchMaker,
        *,
        tokens: tuple[int, int],
        window: int,
        origin: Origin,
    ) -> None:
        self._data = data
        self._header = header
        self._features = features
        self._plan, self._maker = maker.plan, maker
        self._tokens = tokens
        self._origin = origin
        lines = self._plan.header([n for n, _ in self._header.static], [n for n, _ in self._header.regular])
        self._lines, self._present, self._key, self._state = rooms(
            [(len(lines), np.int64), (len(lines), np.uint8), (L.KEY_ROOM, np.uint8), (L.WALK_FIELDS, np.int64)]
        )
        self._lines[:] = lines
        # No chunk that starts before this offset can be read.
        self.sound_until = 0
        self._allocate(max(window, self._data.chunk_length))

    def _allocate(self, capacity: int) -> None:
        self._buffers = Buffers([self._plan], capacity)
        of_open = 4 * capacity + 4 * len(self._plan.clustering) + 64
        self._window, open_start = rooms([(capacity, np.uint8), (of_open, np.uint8)])
        if self._state[L.OPEN]:
            length = int(self._state[L.OPEN_LENGTH])
            open_start[:length] = self._open_start[:length]
        self._open_start = open_start
        self._state[L.OPEN_BYTES] = open_start.ctypes.data

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
                    rest = self._window[:filled]
                    # Earlier buffers would use memory at the same time as the new ones.
                    self._buffers = Buffers([self._plan], 0)
                    self._allocate(2 * len(self._window))
                    self._window[:filled] = rest
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
