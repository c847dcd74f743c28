"""Event ids: a UUID per row of a batch, the same whenever the batch is repeated.

It is the SipHash-2-4-128 of the row's key and position, under a separate key for each batch. So it does not depend on
the order of events, two rows of a batch do not collide, and an event of another batch, or of the rebuilt stream, has
another id even if the row had the same values before. Reference: Aumasson and Bernstein, SipHash; the 128-bit form is
`siphash.c` of the authors.
"""

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa

from writetime.core.arrow import bytes_of
from writetime.core.compiled import njit
from writetime.schema.table import TableSchema

_U64 = np.uint64
_HYPHENS = (8, 13, 18, 23)


def event_ids(schema: TableSchema, generation: int, sequence: int, keys: pa.Array, positions: pa.Array) -> pa.Array:
    """Return the id of the event of each row of one batch, as the text of a UUID (version 8, RFC 9562), by the
    serialised partition keys and the positions of the rows. The table's id in the database identifies it, or its name
    if the id is not known. The generation is that of the stream (see `events`).
    """
    batch = f"{schema.id or schema.full_name}/{generation}/{sequence}"
    k0, k1 = np.frombuffer(hashlib.blake2b(batch.encode(), digest_size=16).digest(), "<u8")
    hashes = siphash(k0, k1, *bytes_of(keys), *bytes_of(positions))
    data = hashes.view(np.uint8).reshape(-1, 16)
    data[:, 6] = data[:, 6] & 0x0F | 0x80
    data[:, 8] = data[:, 8] & 0x3F | 0x80
    return _texts(data)


def _texts(data: np.ndarray) -> pa.Array:
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    text = np.empty((len(data), 36), np.uint8)
    places = [i for i in range(36) if i not in _HYPHENS]
    text[:, places[0::2]] = digits[data >> 4]
    text[:, places[1::2]] = digits[data & 15]
    text[:, _HYPHENS] = ord("-")
    offsets = pa.py_buffer(np.arange(0, 36 * (len(data) + 1), 36, dtype=np.int32))
    return pa.StringArray.from_buffers(len(data), offsets, pa.py_buffer(text))


@njit
def siphash(  # noqa: PLR0917 (numba has no keyword-only arguments)
    k0: np.uint64, k1: np.uint64, a_offsets: np.ndarray, a: np.ndarray, b_offsets: np.ndarray, b: np.ndarray
) -> np.ndarray:
    """Return the 128-bit SipHash-2-4 of each pair of values: the length of the first as 8 bytes, the first, the second;
    two little-endian words each.
    """
    count = len(a_offsets) - 1
    hashes = np.empty((count, 2), np.uint64)
    for i in range(count):
        first, second = a_offsets[i], b_offsets[i]
        size = a_offsets[i + 1] - first
        total = 8 + size + b_offsets[i + 1] - second
        v0 = k0 ^ _U64(0x736F6D6570736575)
        v1 = k1 ^ _U64(0x646F72616E646F6D) ^ _U64(0xEE)
        v2 = k0 ^ _U64(0x6C7967656E657261)
        v3 = k1 ^ _U64(0x7465646279746573)
        v3 ^= _U64(size)
        v0, v1, v2, v3 = _rounds(v0, v1, v2, v3, 2)
        v0 ^= _U64(size)
        word = _U64(0)
        for p in range(8, total):
            byte = a[first + p - 8] if p < 8 + size else b[second + p - 8 - size]
            word |= _U64(byte) << _U64(8 * (p & 7))
            if p & 7 == 7:
                v3 ^= word
                v0, v1, v2, v3 = _rounds(v0, v1, v2, v3, 2)
                v0 ^= word
                word = _U64(0)
        word |= _U64(total & 0xFF) << _U64(56)
        v3 ^= word
        v0, v1, v2, v3 = _rounds(v0, v1, v2, v3, 2)
        v0 ^= word
        v2 ^= _U64(0xEE)
        v0, v1, v2, v3 = _rounds(v0, v1, v2, v3, 4)
        hashes[i, 0] = v0 ^ v1 ^ v2 ^ v3
        v1 ^= _U64(0xDD)
        v0, v1, v2, v3 = _rounds(v0, v1, v2, v3, 4)
        hashes[i, 1] = v0 ^ v1 ^ v2 ^ v3
    return hashes


@njit
def _rotate(value: np.uint64, bits: int) -> np.uint64:
    return (value << _U64(bits)) | (value >> _U64(64 - bits))


@njit
def _rounds(v0: np.uint64, v1: np.uint64, v2: np.uint64, v3: np.uint64, count: int) -> tuple[Any, Any, Any, Any]:
    for _ in range(count):
        v0 += v1
        v1 = _rotate(v1, 13) ^ v0
        v0 = _rotate(v0, 32)
        v2 += v3
        v3 = _rotate(v3, 16) ^ v2
        v0 += v3
        v3 = _rotate(v3, 21) ^ v0
        v2 += v1
        v1 = _rotate(v1, 17) ^ v2
        v2 = _rotate(v2, 32)
    return v0, v1, v2, v3
