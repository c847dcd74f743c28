"""The checksum of a Parquet file's footer.

Parquet has checksums of pages, and none of the footer, whose damage may hide columns or rows. So a footer of the lake's
files ends with a mark and its CRC32. Readers decode one Thrift structure from the bytes of a footer, and ignore the
bytes behind it, like the signature that Parquet's encryption adds there ("Plaintext footer mode" in Encryption.md).
"""

import struct
import zlib
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

_MARK = b"WTFC"
_SEAL = struct.Struct("<4sI")
# The length of the footer, and Parquet's magic number.
_END = struct.Struct("<I4s")
_MAGIC = b"PAR1"
# Most footers are smaller.
_READ_BYTES = 1 << 16


class SealedFooter:
    """A sink for `pq.ParquetWriter` that passes bytes on to another one, and adds the checksum to the footer."""

    closed = False

    def __init__(self, sink: pa.NativeFile) -> None:
        self._sink = sink
        self._held: list[bytes] | None = None

    def write(self, data: bytes) -> int:
        """Write bytes, or keep them if they are the footer."""
        if self._held is None:
            self._sink.write(data)
        else:
            self._held.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Do nothing: the other sink is flushed when it is closed."""

    def hold(self) -> None:
        """Treat what follows as the footer, perhaps with data in front of it."""
        self._held = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, _: TracebackType | None) -> None:
        if kind is None and self._held is not None:
            self._sink.write(_sealed(b"".join(self._held)))


def _sealed(end: bytes) -> bytes:
    """Return the end of a file, from before its footer, with the checksum."""
    length, _ = _END.unpack(end[-_END.size :])
    footer = end[-_END.size - length : -_END.size]
    seal = _SEAL.pack(_MARK, zlib.crc32(footer))
    return end[: -_END.size] + seal + _END.pack(length + len(seal), _MAGIC)


def read_footer(file: Any) -> pq.FileMetaData | None:
    """Read the footer of a file that is open, with one request if it is not large. Return None if the file has no
    footer of the usual kind, so that pyarrow reports this.

    Raises:
        ArrowInvalid: the footer is damaged.
    """
    size = file.size()
    end = file.read_at(min(size, _READ_BYTES), max(size - _READ_BYTES, 0))
    if len(end) < _END.size or end[-4:] != _MAGIC:
        return None
    length, _ = _END.unpack(end[-_END.size :])
    whole = length + _END.size
    if whole > size:
        return None
    if whole > len(end):
        end = file.read_at(whole, size - whole)
    footer = end[-whole : -_END.size]
    mark, checksum = _SEAL.unpack(footer[-_SEAL.size :]) if length > _SEAL.size else (b"", 0)
    if mark == _MARK and zlib.crc32(footer[: -_SEAL.size]) != checksum:
        raise pa.ArrowInvalid("the checksum of its footer is wrong")
    return pq.read_metadata(pa.BufferReader(end[-whole:]))
