"""Finds and checks the frames of a commit log's sections. numba compiles this module.

| part of a frame | bytes |
| --- | --- |
| size of the mutation | 4 |
| CRC32 of the size | 4 |
| mutation | size |
| CRC32 of size and mutation | 4 |
"""

import numpy as np

from writetime.storage.kernel.memory import compiled, load8, load32, load_int32

# The reasons why reading stopped: the end of the section, or a fault.
END, ZERO, TORN, BAD_SIZE, BAD_SIZE_CHECKSUM, BAD_CHECKSUM = range(6)
MESSAGES = {
    ZERO: "zeros instead of a mutation",
    TORN: "a mutation that ends beyond its section",
    BAD_SIZE: "a mutation of less than 10 bytes",
    BAD_SIZE_CHECKSUM: "a size of a mutation with a wrong CRC32",
    BAD_CHECKSUM: "a mutation with a wrong CRC32",
}


def _tables() -> np.ndarray:
    """Return the tables for computing CRC32 by eight bytes at a time (slicing by eight)."""
    tables = np.zeros((8, 256), np.int64)
    for i in range(256):
        crc = i
        for _ in range(8):
            crc = (crc >> 1) ^ (0xEDB88320 if crc & 1 else 0)
        tables[0, i] = crc
    for i in range(256):
        for k in range(1, 8):
            crc = int(tables[k - 1, i])
            tables[k, i] = (crc >> 8) ^ tables[0, crc & 0xFF]
    return tables


_CRC = _tables()


@compiled
def _crc32(crc: int, p: int, length: int) -> int:
    """Continue an inverted CRC32 with `length` bytes."""
    end = p + length
    while end - p >= 8:
        one, two = load32(p), load32(p + 4)
        a = _CRC[7, ((one >> 24) ^ crc) & 0xFF] ^ _CRC[6, ((one >> 16) ^ (crc >> 8)) & 0xFF]
        b = _CRC[5, ((one >> 8) ^ (crc >> 16)) & 0xFF] ^ _CRC[4, (one ^ (crc >> 24)) & 0xFF]
        c = _CRC[3, two >> 24] ^ _CRC[2, (two >> 16) & 0xFF]
        d = _CRC[1, (two >> 8) & 0xFF] ^ _CRC[0, two & 0xFF]
        crc = a ^ b ^ c ^ d
        p += 8
    while p < end:
        crc = (crc >> 8) ^ _CRC[0, (crc ^ load8(p)) & 0xFF]
        p += 1
    return crc


@compiled
def read_frames(
    address: int, sections: np.ndarray, section: int, start: int, mutations: np.ndarray
) -> tuple[int, int, int, int]:
    """Find the mutations of sections, from an offset in one of them on. Write their starts and ends to `mutations`.

    Return the number of mutations, the section and the offset at which reading stopped, and the reason. At the end of
    the last section, the section is the number of sections. The reason is also END if `mutations` is full.
    """
    p = start
    count = 0
    while section < len(sections):
        p = max(p, sections[section, 0])
        end = sections[section, 1]
        if end - p < 4:
            section += 1
            continue
        if count == len(mutations):
            break
        size = load_int32(address + p)
        if size == 0:
            return count, section, p, ZERO
        if size < 10:
            return count, section, p, BAD_SIZE
        if end - p < 12 or size > end - p - 12:
            return count, section, p, TORN
        crc = _crc32(0xFFFFFFFF, address + p, 4)
        if crc ^ 0xFFFFFFFF != load32(address + p + 4):
            return count, section, p, BAD_SIZE_CHECKSUM
        crc = _crc32(crc, address + p + 8, size)
        if crc ^ 0xFFFFFFFF != load32(address + p + 8 + size):
            return count, section, p, BAD_CHECKSUM
        mutations[count, 0] = p + 8
        mutations[count, 1] = p + 8 + size
        count += 1
        p += size + 12
    return count, section, p, END
