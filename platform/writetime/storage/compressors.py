"""Decompresses blocks by the name of their compressor: those of Cassandra, and those of ScyllaDB with dictionaries."""

import struct
import zlib
from collections.abc import Callable, Sequence

import cramjam
import lz4.block
import zstandard

from writetime.storage.errors import CorruptFile, Unsupported

# Decompresses a block into room of the size that it has; returns the number of bytes.
Decompress = Callable[[memoryview, memoryview], int]
# What they raise on a block that is not what the compressor wrote.
FAULTS = (ValueError, zlib.error, cramjam.DecompressionError, zstandard.ZstdError, lz4.block.LZ4BlockError)

_DICTIONARY_PART = b".dictionary."
_LZ4_LENGTH = struct.Struct("<I")


def fill(out: memoryview, plain: bytes | memoryview) -> int:
    """Copy bytes into room of the size that they should have.

    Raises:
        ValueError: they have another size.
    """
    if len(plain) != len(out):
        raise ValueError(f"{len(plain)} bytes instead of {len(out)}")
    out[:] = plain
    return len(out)


def _lz4(dictionary: bytes) -> Decompress:
    def decompress(data: memoryview, out: memoryview) -> int:
        # Cassandra puts the uncompressed length (4 bytes, little-endian) before an LZ4 block, as both libraries do.
        if len(data) < 4 or _LZ4_LENGTH.unpack_from(data)[0] != len(out):
            raise ValueError(f"the LZ4 block is not one of {len(out)} bytes")
        if dictionary:
            return fill(out, lz4.block.decompress(data, dict=dictionary))
        return cramjam.lz4.decompress_block_into(data, out)  # type: ignore[arg-type]

    return decompress


def _zstd(dictionary: bytes) -> Decompress:
    # Not shared, as one does not serve two threads at a time.
    decompressor = zstandard.ZstdDecompressor(
        dict_data=zstandard.ZstdCompressionDict(dictionary) if dictionary else None
    )

    def decompress(data: memoryview, out: memoryview) -> int:
        # Before so many bytes are allocated; -1 where the frame does not tell.
        if zstandard.frame_content_size(data) not in (-1, len(out)):
            raise ValueError(f"the Zstandard frame is not one of {len(out)} bytes")
        return fill(out, decompressor.decompress(data, max_output_size=len(out), allow_extra_data=False))

    return decompress


# By the name of the class; called with the dictionary, which may be empty.
_COMPRESSORS: dict[str, Callable[[bytes], Decompress]] = {
    "LZ4Compressor": lambda _: _lz4(b""),
    "LZ4WithDictsCompressor": _lz4,
    "SnappyCompressor": lambda _: cramjam.snappy.decompress_raw_into,  # type: ignore[return-value]
    "ZstdCompressor": lambda _: _zstd(b""),
    "ZstdWithDictsCompressor": _zstd,
    "DeflateCompressor": lambda _: lambda data, out: fill(out, zlib.decompress(data)),
    "NoopCompressor": lambda _: lambda data, out: fill(out, data),
}


def decompressor(class_name: str, file: str, options: Sequence[tuple[bytes, bytes]] = ()) -> Decompress:
    """Return the function that decompresses blocks of a compressor.

    Args:
        class_name: the name of the compressor's class, with or without its package.
        file: the file that names the compressor, for errors.
        options: what that file keeps with the compressor; ScyllaDB's dictionaries are among them.

    Raises:
        Unsupported: the compressor is unknown.
        CorruptFile: a part of the dictionary is missing, or it is none.
    """
    name = class_name.rpartition(".")[2]
    if name not in _COMPRESSORS:
        raise Unsupported(f"{file}: compressor {name} is not supported; {', '.join(_COMPRESSORS)} are")
    try:
        return _COMPRESSORS[name](_dictionary(options, file))
    except zstandard.ZstdError as e:
        raise CorruptFile(file, None, f"the dictionary cannot be read: {e}") from None


def _dictionary(options: Sequence[tuple[bytes, bytes]], file: str) -> bytes:
    """Join the parts of the dictionary (`dict_from_options` in sstables/compressor.cc of ScyllaDB).

    They are options `.dictionary.00000000`, `.dictionary.00000001`, ..., as an option has 65,534 bytes at most there. A
    file has one dictionary or none: none until one was trained for its table.
    """
    parts: dict[int, bytes] = {}
    for key, value in options:
        if key.startswith(_DICTIONARY_PART):
            number = key.removeprefix(_DICTIONARY_PART)
            if len(number) != 8 or not number.isdigit() or int(number) in parts:
                raise CorruptFile(file, None, f"{key[:40]!r} names no part of a dictionary, or one twice")
            parts[int(number)] = value
    for i in range(len(parts)):
        if i not in parts:
            raise CorruptFile(file, None, f"part {i} of the dictionary is missing")
    return b"".join(value for _, value in sorted(parts.items()))
