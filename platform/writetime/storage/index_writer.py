"""Writes what finds the partitions of an SSTable: Index.db, Summary.db and Filter.db."""

import struct
from typing import Protocol

import numpy as np

from writetime.storage.kernel import write_layout as K
from writetime.storage.kernel.filters import set_bits

# TableParams of Cassandra and ScyllaDB: a summary has each 128th key. The chance of a wrong answer of a filter.
_INTERVAL = 128
_FULL_SAMPLING = 128
FILTER_CHANCE = 0.01
# BloomCalculations: 10 bits per key and 5 hashes are right for this chance.
_BITS_PER_KEY, _HASHES = 10, 5
# BloomCalculations adds these, so that small filters are good, too.
_EXCESS = 20


class _Output(Protocol):
    def write(self, data: memoryview | bytes, /) -> object: ...


class IndexWriter:
    """Writes Index.db, and collects what Summary.db and Filter.db need: 16 bytes per partition."""

    def __init__(self, output: _Output) -> None:
        self._output = output
        self._hashes: list[np.ndarray] = []
        self._offsets: list[int] = []
        self._entries = bytearray()
        self.first = b""
        self.last = b""
        self.count = 0
        self.length = 0

    def write(self, entries: np.ndarray, finished: np.ndarray) -> None:
        """Write the entries of finished partitions (FINISHED_FIELDS per partition)."""
        if not len(finished):
            return
        view = entries.data
        self._output.write(view)
        self.length += len(view)
        self._hashes.append(finished[:, [K.FILTER_BASE, K.FILTER_STEP]].copy())
        for i in range(-self.count % _INTERVAL, len(finished), _INTERVAL):
            self._offsets.append(len(self._entries))
            position = int(finished[i, K.ENTRY_POSITION])
            self._entries += _key(view, int(finished[i, K.ENTRY_AT])) + struct.pack("<q", position)
        if not self.count:
            self.first = _key(view, 0)
        self.last = _key(view, int(finished[-1, K.ENTRY_AT]))
        self.count += len(finished)

    def summary(self) -> bytes:
        """Return Summary.db (`IndexSummary.IndexSummarySerializer`)."""
        offsets = np.array(self._offsets, "<i4") + 4 * len(self._offsets)
        size = offsets.nbytes + len(self._entries)
        count = len(offsets)
        head = struct.pack(">iiqii", _INTERVAL, count, size, _FULL_SAMPLING, count)
        ends = b"".join(struct.pack(">i", len(key)) + key for key in (self.first, self.last))
        return head + offsets.astype("<i4").tobytes() + bytes(self._entries) + ends

    def filter(self, *, words: bool) -> bytes:
        """Return Filter.db (`BloomFilter`). `words`: its bits are in big-endian numbers of 64 bits, as before `na`."""
        length = (self.count * _BITS_PER_KEY + _EXCESS + 63) // 64
        bits = np.zeros(8 * length, np.uint8)
        for hashes in self._hashes:
            set_bits(np.ascontiguousarray(hashes), _HASHES, bits)
        data = bits.view("<u8").astype(">u8").tobytes() if words else bits.tobytes()
        return struct.pack(">ii", _HASHES, length) + data


def _key(entries: memoryview, at: int) -> bytes:
    return bytes(entries[at + 2 : at + 2 + int.from_bytes(entries[at : at + 2], "big")])
