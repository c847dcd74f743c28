"""Writes the data of an SSTable in chunks, with their checksums: Data.db, and CompressionInfo.db or CRC.db."""

import struct
import zlib
from array import array
from collections.abc import Callable
from typing import Protocol

import cramjam
import numpy as np
import zstandard

# Of data without compression (`ChecksummedSequentialWriter`).
_PLAIN_CHUNK = 1 << 16


class _Output(Protocol):
    def write(self, data: memoryview | bytes, /) -> object: ...


def _lz4(data: memoryview) -> bytes:
    # The uncompressed length precedes the block (4 bytes, little-endian).
    return bytes(cramjam.lz4.compress_block(data, store_size=True))


def _deflate(data: memoryview) -> bytes:
    return zlib.compress(data)


def _zstd() -> Callable[[memoryview], bytes]:
    return zstandard.ZstdCompressor(level=3).compress


# By the name of the class.
_COMPRESSORS: dict[str, Callable[[], Callable[[memoryview], bytes]]] = {
    "LZ4Compressor": lambda: _lz4,
    "SnappyCompressor": lambda: lambda data: bytes(cramjam.snappy.compress_raw(data)),
    "ZstdCompressor": _zstd,
    "DeflateCompressor": lambda: _deflate,
}
COMPRESSORS = tuple(_COMPRESSORS)


class DataWriter:
    """Writes data in chunks to Data.db. `compressor` is one of `COMPRESSORS`, or None."""

    def __init__(self, output: _Output, compressor: str | None, chunk_length: int) -> None:
        self._output = output
        self._compressor = compressor
        self._compress = _COMPRESSORS[compressor]() if compressor else None
        self._chunk_length = chunk_length if compressor else _PLAIN_CHUNK
        self._rest = bytearray()
        # A number per chunk: a list would take five times the memory.
        self._positions = array("q")
        self._checksums = array("I")
        self._digest = 0
        self.length = 0
        self.written = 0

    def write(self, data: np.ndarray) -> None:
        """Write bytes."""
        view = data.data
        self.length += len(view)
        if self._rest:
            missing = self._chunk_length - len(self._rest)
            self._rest += view[:missing]
            view = view[missing:]
            if len(self._rest) < self._chunk_length:
                return
            self._chunk(memoryview(self._rest))
            self._rest = bytearray()
        whole = len(view) // self._chunk_length * self._chunk_length
        for start in range(0, whole, self._chunk_length):
            self._chunk(view[start : start + self._chunk_length])
        self._rest += view[whole:]

    def finish(self) -> dict[str, bytes]:
        """Write the last chunk. Return the other components that follow from the data, by their names."""
        if self._rest:
            self._chunk(memoryview(self._rest))
        components = {"Digest.crc32": str(self._digest).encode()}
        if self._compressor is None:
            components["CRC.db"] = struct.pack(">i", self._chunk_length) + np.array(self._checksums, ">u4").tobytes()
        return components

    def compression_info(self, *, with_maximum: bool) -> bytes:
        """Return CompressionInfo.db (`CompressionMetadata.Writer`). `with_maximum`: the version has the largest length
        of a compressed chunk.
        """
        assert self._compressor is not None
        name = self._compressor.encode()
        parts = [struct.pack(">H", len(name)) + name, struct.pack(">ii", 0, self._chunk_length)]
        if with_maximum:
            parts.append(struct.pack(">i", (1 << 31) - 1))
        parts.append(struct.pack(">qi", self.length, len(self._positions)))
        return b"".join(parts) + np.array(self._positions, ">i8").tobytes()

    @property
    def ratio(self) -> float:
        """Compressed bytes per byte; -1 without compression."""
        return self.written / self.length if self._compressor and self.length else -1.0

    def _chunk(self, chunk: memoryview) -> None:
        data = self._compress(chunk) if self._compress else chunk
        checksum = zlib.crc32(data)
        self._positions.append(self.written)
        self._output.write(data)
        self._digest = zlib.crc32(data, self._digest)
        self.written += len(data)
        if self._compress:
            trailer = struct.pack(">I", checksum)
            self._output.write(trailer)
            self._digest = zlib.crc32(trailer, self._digest)
            self.written += 4
        else:
            self._checksums.append(checksum)
