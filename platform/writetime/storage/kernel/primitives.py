"""The basic reads and writes of the kernel: variable-length integers, tokens, and byte-comparable clustering values.

numba compiles this module. A function that reads takes an address and the end of the readable data, and returns the
address after the value. If the value does not fit, it returns `end + 1`. Later reads return this again, so one check
after several reads is enough.
"""

import numpy as np
import pyarrow as pa

from writetime.storage.kernel.memory import (
    compiled,
    copy,
    inlined,
    load8,
    load32,
    load64,
    load_native32,
    store8,
    store64,
)

# The number of extra bytes of an unsigned vint, by its first byte: its leading one bits (utils.vint.VIntCoding).
_EXTRA_BYTES = np.array([8 - (255 - i).bit_length() for i in range(256)], np.int64)


@inlined
def read_vint(p: int, end: int) -> tuple[int, int]:
    """Read an unsigned vint as an int64 (the upper half of the range wraps to negative)."""
    if p >= end:
        return 0, end + 1
    first = load8(p)
    if first < 0x80:
        return first, p + 1
    extra = int(_EXTRA_BYTES[first])
    if extra > end - p - 1:
        return 0, end + 1
    if extra == 8:
        return load64(p + 1), p + 9
    value = first & (0xFF >> extra)
    for i in range(extra):
        value = (value << 8) | load8(p + 1 + i)
    return value, p + 1 + extra


@inlined
def skip(p: int, length: int, end: int) -> int:
    """Skip `length` bytes."""
    if length < 0 or length > end - p:
        return end + 1
    return p + length


@compiled
def _rotate(v: np.uint64, n: int) -> np.uint64:
    return (v << np.uint64(n)) | (v >> np.uint64(64 - n))


@compiled
def _mix(k: np.uint64) -> np.uint64:
    k ^= k >> np.uint64(33)
    k *= np.uint64(0xFF51AFD7ED558CCD)
    k ^= k >> np.uint64(33)
    k *= np.uint64(0xC4CEB9FE1A85EC53)
    k ^= k >> np.uint64(33)
    return k


@compiled
def _little64(p: int) -> np.uint64:
    value = np.uint64(0)
    for i in range(8):
        value |= np.uint64(load8(p + i)) << np.uint64(8 * i)
    return value


@compiled
def _signed_tail(p: int, length: int) -> np.uint64:
    """Return the number in a tail of `length` bytes. Each byte is sign-extended first: all tokens depend on it."""
    value = np.uint64(0)
    for i in range(length):
        byte = load8(p + i)
        if byte >= 128:
            byte -= 256
        value ^= np.uint64(byte) << np.uint64(8 * i)
    return value


@inlined
def murmur(p: int, length: int) -> tuple[np.uint64, np.uint64]:
    """Return both halves of `MurmurHash.hash3_x64_128`."""
    c1 = np.uint64(0x87C37B91114253D5)
    c2 = np.uint64(0x4CF5AD432745937F)
    h1 = np.uint64(0)
    h2 = np.uint64(0)
    blocks = length >> 4
    for i in range(blocks):
        k1 = _little64(p + 16 * i)
        k2 = _little64(p + 16 * i + 8)
        h1 ^= _rotate(k1 * c1, 31) * c2
        h1 = (_rotate(h1, 27) + h2) * np.uint64(5) + np.uint64(0x52DCE729)
        h2 ^= _rotate(k2 * c2, 33) * c1
        h2 = (_rotate(h2, 31) + h1) * np.uint64(5) + np.uint64(0x38495AB5)
    p += 16 * blocks
    tail = length & 15
    if tail > 8:
        h2 ^= _rotate(_signed_tail(p + 8, tail - 8) * c2, 33) * c1
    if tail > 0:
        h1 ^= _rotate(_signed_tail(p, min(tail, 8)) * c1, 31) * c2
    h1 ^= np.uint64(length)
    h2 ^= np.uint64(length)
    h1 += h2
    h2 += h1
    h1 = _mix(h1)
    h2 = _mix(h2)
    h1 += h2
    return h1, h2 + h1


@compiled
def token_at(p: int, length: int) -> np.int64:
    """Return the token of a serialised partition key (`Murmur3Partitioner`)."""
    first, _ = murmur(p, length)
    token = np.int64(first)
    # The smallest token is reserved for "before all keys".
    return token if token != -0x8000000000000000 else np.int64(0x7FFFFFFFFFFFFFFF)


@compiled
def _filter_byte(p: int, length: int) -> int:
    _, second = murmur(p, length)
    return int(second & np.uint64(0xFF))


@compiled
def _tokens(offsets: int, data: int, count: int, out: int) -> None:
    for i in range(count):
        start = load_native32(offsets + 4 * i)
        store64(out + 8 * i, token_at(data + start, load_native32(offsets + 4 * i + 4) - start))


def tokens(keys: pa.Array) -> pa.Array:
    """Return the tokens of serialised partition keys (binary, without nulls)."""
    found = np.empty(len(keys), np.int64)
    if len(keys):
        _, offsets, data = keys.buffers()
        _tokens(offsets.address + 4 * keys.offset, data.address if data else 0, len(keys), found.ctypes.data)
    return pa.array(found)


def token(key: bytes) -> int:
    """Return the token of a serialised partition key."""
    buffer = np.frombuffer(key, np.uint8) if key else np.zeros(1, np.uint8)
    return int(token_at(buffer.ctypes.data, len(key)))


def filter_byte(key: bytes) -> int:
    """Return the byte of a serialised partition key's hash that is in Partitions.db (`filterHashLowerBits`)."""
    buffer = np.frombuffer(key, np.uint8) if key else np.zeros(1, np.uint8)
    return int(_filter_byte(buffer.ctypes.data, len(key)))


# The methods that make a clustering value byte-comparable. `writetime.changes.model` describes the encoding, and
# encodes values of COMPARE_OTHER.
COMPARE_OTHER, COMPARE_SIGNED, COMPARE_PLAIN, COMPARE_BIGINT, COMPARE_FLOAT = range(5)
COMPARE_BOOLEAN, COMPARE_UUID, COMPARE_TIMEUUID, COMPARE_BYTES = range(5, 9)


@compiled
def _encode_bigint(value: int, out: int) -> int:
    magnitude = value ^ (value >> 63)
    size = 1
    while size < 9 and magnitude >> (7 * size - 1) != 0:
        size += 1
    if size == 9:
        store8(out, 0xFF if value >= 0 else 0)
        for i in range(8):
            store8(out + 1 + i, (value ^ -0x8000000000000000) >> (56 - 8 * i))
        return out + 9
    encoded = magnitude | (((-0x100 >> size) & 0xFF) << (8 * size - 8))
    if value < 0:
        encoded = ~encoded
    for i in range(size):
        store8(out + i, encoded >> (8 * (size - 1 - i)))
    return out + size


@compiled
def _time_order(p: int) -> int:
    return (load64(p) << 48) | (((load64(p) >> 16) & 0xFFFF) << 32) | load32(p)


@compiled
def _is_not_a_number(p: int, length: int) -> bool:
    if length == 4:
        return (load32(p) & 0x7FFFFFFF) > 0x7F800000
    return (load64(p) & 0x7FFFFFFFFFFFFFFF) > 0x7FF0000000000000


@compiled
def _store_big64(out: int, value: int) -> None:
    for i in range(8):
        store8(out + i, value >> (56 - 8 * i))


@compiled
def _encode_bytes(p: int, length: int, out: int) -> int:
    zero = False
    for i in range(length):
        byte = load8(p + i)
        if byte == 0:
            store8(out, 0xFE if zero else 0)
            zero = True
        else:
            if zero:
                store8(out, 0xFF)
                out += 1
            store8(out, byte)
            zero = False
        out += 1
    store8(out, 0xFE if zero else 0)
    return out + 1


@compiled
def encode_comparable(method: int, reverse: bool, p: int, length: int, out: int) -> int:
    """Write a clustering value, with the byte before it. Return the address after it. At most 2 * length + 3 bytes are
    written.
    """
    if length == 0 and method != COMPARE_BYTES:
        store8(out, 0x41 if reverse else 0x3F)
        return out + 1
    store8(out, 0x40)
    out += 1
    start = out
    if method == COMPARE_BYTES:
        out = _encode_bytes(p, length, out)
    elif method == COMPARE_BIGINT:
        out = _encode_bigint(load64(p), out)
    elif method == COMPARE_BOOLEAN:
        store8(out, 1 if load8(p) != 0 else 0)
        out += 1
    elif method == COMPARE_TIMEUUID:
        _store_big64(out, _time_order(p))
        _store_big64(out + 8, load64(p + 8) ^ -0x7F7F7F7F7F7F7F80)
        out += 16
    elif method == COMPARE_UUID:
        high = load64(p)
        version = (high >> 12) & 0xF
        by_version = (version << 60) | ((high >> 4) & 0x0FFFFFFFFFFFF000) | (high & 0xFFF)
        high = _time_order(p) if version == 1 else by_version
        _store_big64(out, high)
        copy(out + 8, p + 8, 8)
        out += 16
    else:
        copy(out, p, length)
        if method == COMPARE_SIGNED:
            store8(out, load8(p) ^ 0x80)
        elif method == COMPARE_FLOAT:
            if _is_not_a_number(p, length):
                # All forms of it are equal in the database, and greater than any number.
                store8(out, 0xFF)
                store8(out + 1, 0xC0 if length == 4 else 0xF8)
                for i in range(2, length):
                    store8(out + i, 0)
            elif load8(p) < 0x80:
                store8(out, load8(p) ^ 0x80)
            else:
                for i in range(length):
                    store8(out + i, load8(p + i) ^ 0xFF)
        out += length
    if reverse:
        for q in range(start, out):
            store8(q, load8(q) ^ 0xFF)
    return out


# The two hexadecimal digits of each byte, as a 16-bit number that has them in this machine's byte order.
_HEX_PAIRS = np.frombuffer("".join(f"{i:02x}" for i in range(256)).encode(), np.uint16).astype(np.int64)


@compiled
def write_uuid(p: int, out: int) -> None:
    """Write the 36 characters of the UUID at `p`."""
    for i in range(16):
        pair = _HEX_PAIRS[load8(p + i)]
        store8(out, pair)
        store8(out + 1, pair >> 8)
        out += 2
        if i == 3 or i == 5 or i == 7 or i == 9:  # noqa: PLR1714 (a set is slow in compiled code)
            store8(out, 0x2D)
            out += 1
