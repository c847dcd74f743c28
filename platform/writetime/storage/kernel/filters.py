"""Sets the bits of a filter of keys. numba compiles this module."""

import numpy as np

from writetime.storage.kernel.memory import compiled


@compiled
def set_bits(hashes: np.ndarray, count: int, bits: np.ndarray) -> None:
    """Set the bits of keys in a filter (`BloomFilter.setIndexes`). `hashes` has base and step of each key; `count` is
    the number of bits of each; `bits` has eight per entry.
    """
    capacity = 8 * len(bits)
    for i in range(len(hashes)):
        base = hashes[i, 0]
        for _ in range(count):
            at = base % capacity
            # Java's remainder has the sign of the dividend, and the filter takes its absolute value.
            if base < 0 and at != 0:
                at = capacity - at
            bits[at >> 3] |= np.uint8(1 << (at & 7))
            base += hashes[i, 1]
