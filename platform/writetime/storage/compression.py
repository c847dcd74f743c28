"""Reads the chunks of data files, checks their checksums and decompresses them. No byte is returned unchecked."""

import struct
import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from writetime.core.counts import pluralize
from writetime.storage.compressors import BadBlock, cassandra_dictionary, decompressor
from writetime.storage.file_errors import CorruptFile, MissingFile
from writetime.storage.kernel.memory import compiled
from writetime.storage.locations import Location, open_file

# The chunk length of an uncompressed file that has none, and the number of bytes per read.
_CHUNK_LENGTH = 1 << 16
_BLOCK = 16 * _CHUNK_LENGTH
_POLYNOMIAL = 0xEDB88320
# The most digits of a CRC32.
_DIGITS = 10


class ChunkedFile(ABC):
    """A data file as a sequence of chunks of `chunk_length` uncompressed bytes; the last one may be shorter."""

    length: int
    chunk_length: int
    digest: "Digest"
    # False: only the whole file has a checksum, so the first read must read all of it.
    has_chunk_checksums = True

    def __init__(self, location: Location) -> None:
        self.path = location.path("Data.db")
        self._location = location
        self._file = open_file(location.filesystem, self.path)

    @abstractmethod
    def read(self, first: int, count: int, out: np.ndarray) -> int:
        """Read `count` chunks from `first` on into `out`; return the number of bytes. Raise `CorruptFile` if a chunk or
        the whole file does not match its checksum, or a chunk cannot be decompressed.
        """

    def _bytes(self, start: int, size: int) -> memoryview:
        data = memoryview(self._file.read_at(size, start))
        if len(data) != size:
            raise CorruptFile(self.path, start, f"the file ends, {pluralize(size, 'more byte')} expected")
        return data

    def _fault(self, chunk: int, reason: str) -> CorruptFile:
        return CorruptFile(self.path, chunk * self.chunk_length, f"chunk {chunk}{reason}")


@dataclass
class _Cursor:
    """Reads the fields of a small component in order."""

    data: bytes
    file: str
    offset: int = 0

    def take(self, code: str) -> Any:
        try:
            (value,) = struct.unpack_from(">" + code, self.data, self.offset)
        except struct.error:
            raise CorruptFile(self.file, self.offset, f"the file ends where {code} was expected") from None
        self.offset += struct.calcsize(">" + code)
        return value

    def string(self) -> bytes:
        length = self.take("H")
        if length > len(self.data) - self.offset:
            raise CorruptFile(self.file, self.offset, f"a string of {pluralize(length, 'byte')} does not fit")
        self.offset += length
        return self.data[self.offset - length : self.offset]

    def text(self) -> str:
        data = self.string()
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise CorruptFile(self.file, self.offset - len(data), "a text that is not UTF-8") from None


class CompressedFile(ChunkedFile):
    """A compressed Data.db with its CompressionInfo.db (`CompressionMetadata`): each chunk is followed by its CRC32."""

    def __init__(self, location: Location) -> None:
        super().__init__(location)
        info = _Cursor(location.read("CompressionInfo.db"), location.path("CompressionInfo.db"))
        name = info.text()
        options = [(info.string(), info.string()) for _ in range(info.take("i"))]
        chunk_length = info.take("i")
        self._stored_from = info.take("i") if location.features.max_compressed_length else 0x7FFFFFFF
        self.length = info.take("q")
        count = info.take("i")
        needed = -(-self.length // chunk_length) if chunk_length > 0 else -1
        # A compacted file ends with an additional empty chunk: `SSTableWriter.openFinalEarly` flushes the last chunk,
        # and `SequentialWriter` flushes again at its end. The empty chunk is read with the last one, so that a wrong
        # length is detected. Deflate and Noop compress it to no bytes, so it has only its CRC32 then.
        if needed <= 0 or count not in (needed, needed + 1):
            raise CorruptFile(
                info.file, info.offset, f"{count} chunks of {pluralize(chunk_length, 'byte')} hold {self.length}"
            )
        if len(info.data) - info.offset < 8 * count:
            raise CorruptFile(info.file, info.offset, f"the file ends, {pluralize(count, 'chunk offset')} expected")
        offsets = np.frombuffer(info.data, ">i8", count, info.offset).astype(np.int64)
        after = info.data[info.offset + 8 * count :]
        compressor = decompressor(name, info.file, options, cassandra_dictionary(after, info.file) if after else b"")
        self._decompress = compressor.decompress
        self._offsets = np.append(offsets, self._file.size())
        self._needed = needed
        bodies = np.diff(self._offsets) - 4
        within = bodies[:-1]
        if offsets[0] != 0 or (offsets < 0).any() or (within[: needed - 1] <= 0).any() or (within < 0).any():
            raise CorruptFile(info.file, info.offset, "chunk offsets that start at 0 and grow were expected")
        last = f"the last chunk begins at {offsets[-1]} by {info.file}, one of the two is damaged"
        if bodies[-1] < (count == needed):
            raise CorruptFile(self.path, self._file.size(), f"the file ends: {last}")
        # A wrong length must not allocate memory for data that is not there.
        self.chunk_length = min(chunk_length, self.length)
        sizes = np.minimum(self.chunk_length, self.length - self.chunk_length * np.arange(needed))
        if (too_long := sizes > compressor.most * bodies[:needed]).any():
            chunk = int(np.argmax(too_long))
            size, body = pluralize(sizes[chunk], "byte"), pluralize(bodies[chunk], "compressed byte")
            expected = f"{size} of chunk {chunk} cannot come out of its {body}"
            if chunk == count - 1:
                raise CorruptFile(self.path, self._file.size(), f"{expected}: {last}")
            raise CorruptFile(info.file, info.offset, expected)
        self.digest = Digest(location, count)

    def read(self, first: int, count: int, out: np.ndarray) -> int:
        """Read chunks, see `ChunkedFile`."""
        if first + count == self._needed:
            count = len(self._offsets) - 1 - first
        start, end = int(self._offsets[first]), int(self._offsets[first + count])
        data = self._bytes(start, end - start)
        room = out.data
        filled = 0
        for chunk in range(first, first + count):
            begin, stop = int(self._offsets[chunk]) - start, int(self._offsets[chunk + 1]) - start - 4
            body = data[begin:stop]
            crc = zlib.crc32(body)
            if crc != int.from_bytes(data[stop : stop + 4], "big"):
                raise self._fault(chunk, " does not match its CRC32")
            self.digest.add(chunk, zlib.crc32(data[stop : stop + 4], crc), len(body) + 4)
            size = max(0, min(self.chunk_length, self.length - chunk * self.chunk_length))
            target = room[filled : filled + size]
            try:
                if len(body) >= self._stored_from:
                    # A chunk that compression does not make small enough is stored uncompressed. The last chunk of a
                    # file is then padded.
                    if any(body[size:]) or len(body) < size:
                        raise BadBlock(f"it has {pluralize(len(body), 'byte')}, not {size}")
                    target[:] = body[:size]
                elif body or size:
                    self._decompress(body, target)
            except BadBlock as e:
                raise self._fault(chunk, f": {e}") from None
            filled += size
        return filled


class PlainFile(ChunkedFile):
    """An uncompressed Data.db: CRC.db has the CRC32 of each chunk (`ChecksumWriter`).

    Without CRC.db, the whole file is compared with Digest.crc32 before the first read. That pass records the CRC32 of
    each chunk, so later reads detect bytes that have changed since.
    """

    def __init__(self, location: Location) -> None:
        super().__init__(location)
        self.has_chunk_checksums = location.exists("CRC.db")
        if not self.has_chunk_checksums and not location.exists("Digest.crc32"):
            raise MissingFile(
                f"{self.path} has neither CompressionInfo.db nor CRC.db nor Digest.crc32, so it cannot be verified"
            )
        self.length = self._file.size()
        self.chunk_length = _CHUNK_LENGTH
        self._checksums = self._read_checksums() if self.has_chunk_checksums else None
        self.digest = Digest(location, self._chunks)

    @property
    def _chunks(self) -> int:
        return -(-self.length // self.chunk_length)

    def _read_checksums(self) -> np.ndarray:
        crc = _Cursor(self._location.read("CRC.db"), self._location.path("CRC.db"))
        chunk_length = crc.take("i")
        count = -(-self.length // chunk_length) if chunk_length > 0 else -1
        of_chunks = f"of chunks of {pluralize(chunk_length, 'byte')}"
        # Compaction may add an empty chunk, as in a compressed file. The CRC32 of no bytes is 0.
        extra = crc.data[4 + 4 * count :]
        if count >= 0 and len(crc.data) % 4 == 0 and extra not in (b"", bytes(4)):
            found = pluralize(len(crc.data) // 4 - 1, "checksum")
            damaged = f"the file ends, and {crc.file} has {found} {of_chunks}: one of the two is damaged"
            raise CorruptFile(self.path, self.length, damaged)
        if count < 0 or len(crc.data) < 4 + 4 * count or extra not in (b"", bytes(4)):
            raise CorruptFile(crc.file, 4, f"{pluralize(count, 'checksum')} {of_chunks} expected")
        # No more memory is allocated than the file has data, even if a chunk may be longer.
        self.chunk_length = min(chunk_length, max(1, self.length))
        return np.frombuffer(crc.data, ">u4", count, 4)

    def _take_checksums(self) -> np.ndarray:
        """Record the checksums of the chunks, and compare their combination with that of the file."""
        checksums: list[int] = []
        digest = Digest(self._location, self._chunks)
        for start in range(0, self.length, _BLOCK):
            block = self._bytes(start, min(_BLOCK, self.length - start))
            for begin in range(0, len(block), self.chunk_length):
                body = block[begin : begin + self.chunk_length]
                checksums.append(zlib.crc32(body))
                digest.add(len(checksums) - 1, checksums[-1], len(body))
        digest.check(required=True)
        return np.array(checksums, np.uint32)

    def read(self, first: int, count: int, out: np.ndarray) -> int:
        """Read chunks, see `ChunkedFile`."""
        if self._checksums is None:
            self._checksums = self._take_checksums()
        start = first * self.chunk_length
        size = min(count * self.chunk_length, self.length - start)
        data = self._bytes(start, size)
        for chunk in range(first, first + count):
            begin = (chunk - first) * self.chunk_length
            body = data[begin : begin + self.chunk_length]
            crc = zlib.crc32(body)
            if crc != self._checksums[chunk]:
                raise self._fault(chunk, " does not match its CRC32")
            self.digest.add(chunk, crc, len(body))
        out[:size] = np.frombuffer(data, np.uint8)
        return size


def key_at(data: ChunkedFile, position: int) -> bytes:
    """Return the serialised key of the partition that starts at a position, or raise `CorruptFile`."""
    first = position // data.chunk_length
    last = (data.length - 1) // data.chunk_length
    offset = position - first * data.chunk_length
    for chunks in range(1, last - first + 2):
        out = np.empty(chunks * data.chunk_length, np.uint8)
        size = data.read(first, chunks, out)
        end = offset + 2 + int.from_bytes(out[offset : min(offset + 2, size)].tobytes(), "big")
        if offset + 2 <= size and end <= size:
            return out[offset + 2 : end].tobytes()
    raise CorruptFile(data.path, position, "a partition was expected")


def open_data(location: Location) -> ChunkedFile:
    """Open the data file of an SSTable, compressed or not. Raise `MissingFile`, `CorruptFile` or `Unsupported` if a
    component is missing or corrupt, or names an unsupported compressor.
    """
    return CompressedFile(location) if location.exists("CompressionInfo.db") else PlainFile(location)


class Digest:
    """Compares a file with Digest.crc32 after all its chunks were read in order, without reading any byte again."""

    def __init__(self, location: Location, chunks: int) -> None:
        self._location = location
        self._chunks = chunks
        self._read = 0
        self._crc = 0

    def add(self, chunk: int, crc: int, length: int) -> None:
        """Record the CRC32 of a chunk's `length` bytes in the file. Ignore it if the chunk is not the next one."""
        if chunk == self._read:
            self._crc = int(_combine(self._crc, crc, length))
            self._read += 1

    def check(self, *, required: bool = False) -> None:
        """Compare, if each chunk was read, and if there is a Digest.crc32 or it is required. Raise `CorruptFile` if it
        has another CRC32, or none, and `MissingFile` if it does not exist.
        """
        if self._read < self._chunks or not (required or self._location.exists("Digest.crc32")):
            return
        digest = self._location.read("Digest.crc32").strip()
        if not digest.isdigit() or len(digest) > _DIGITS or int(digest) != self._crc:
            path = self._location.path("Digest.crc32")
            raise CorruptFile(path, None, f"the CRC32 of Data.db was expected, {self._crc}, found {digest[:20]!r}")


@compiled
def _multiply(a: int, b: int) -> int:
    """Multiply two polynomials modulo the one of CRC32. Bits are reversed, as in the checksum."""
    product = 0
    for i in range(32):
        if a & (0x80000000 >> i) != 0:
            product ^= b
        b = (b >> 1) ^ (_POLYNOMIAL if b & 1 != 0 else 0)
    return product


def _powers() -> np.ndarray:
    """Return x to the power of 8, 16, 32, ...: the factors of a checksum for 1, 2, 4, ... bytes that follow."""
    powers = [0x80000000 >> 8]
    while len(powers) < 32:
        # As Python: a first call of compiled code takes half a second, and most programs make none.
        powers.append(_multiply.py_func(powers[-1], powers[-1]))
    return np.array(powers, np.int64)


_POWERS = _powers()


@compiled
def _combine(before: int, after: int, length: int) -> int:
    """Return the CRC32 of two runs of bytes from the CRC32 of each and the length of the second."""
    i = 0
    while length > 0:
        if length & 1 != 0:
            before = _multiply(_POWERS[i], before)
        length >>= 1
        i += 1
    return before ^ after
