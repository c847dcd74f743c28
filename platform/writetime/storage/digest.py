"""The checksum of a whole data file, combined from those of its chunks."""

import numpy as np

from writetime.storage.file_errors import CorruptFile
from writetime.storage.kernel.memory import compiled
from writetime.storage.locations import Location

_POLYNOMIAL = 0xEDB88320
# The most digits of a CRC32.
_DIGITS = 10


class Digest:
    """Compares a file with Digest.crc32 after all its chunks were read in order, without reading any byte again."""

    def __init__(self, location: Location, chunks: int, *, required: bool = False) -> None:
        self._location = location
        self._chunks = chunks
        self._required = required
        self._read = 0
        self._crc = 0

    def add(self, chunk: int, crc: int, length: int) -> None:
        """Record the CRC32 of a chunk's `length` bytes in the file. Ignore it if the chunk is not the next one."""
        if chunk == self._read:
            self._crc = int(_combine(self._crc, crc, length))
            self._read += 1

    def check(self) -> None:
        """Compare, if each chunk was read and there is a Digest.crc32.

        Raises:
            CorruptFile: Digest.crc32 has another CRC32, or none.
            MissingFile: Digest.crc32 does not exist, but is required.
        """
        if self._read < self._chunks or not (self._required or self._location.exists("Digest.crc32")):
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
