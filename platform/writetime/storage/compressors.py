"""Decompresses blocks by the name of their compressor: those of Cassandra and ScyllaDB, also with dictionaries.

Cassandra 6.0 writes the dictionary of a file to the end of its CompressionInfo.db, in each version of the format
(`CompressionDictionary.serialize`), with big-endian numbers:

| part | bytes |
| --- | --- |
| kind: 0 is a dictionary of Zstandard | 1 |
| id | 8 |
| length of the dictionary | 4 |
| dictionary | length |
| CRC32C of the kind, the id (here little-endian) and the dictionary | 4 |
"""

import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cramjam
import lz4.block
import zstandard

from writetime.core.counts import pluralize
from writetime.storage.file_errors import CorruptFile, Unsupported

# Decompresses a block into a buffer of its size; returns the number of bytes.
_Decompress = Callable[[memoryview, memoryview], int]
# The exceptions for an invalid block.
_FAULTS = (ValueError, zlib.error, cramjam.DecompressionError, zstandard.ZstdError, lz4.block.LZ4BlockError)
_DICTIONARY_PART = b".dictionary."
_LZ4_LENGTH = struct.Struct("<I")
# Of Cassandra's dictionary: kind, id and length, and the only kind.
_DICTIONARY_HEAD = struct.Struct(">bqi")
_ZSTD_KIND = 0
_CRC32C_POLYNOMIAL = 0x82F63B78


class BadBlock(Exception):
    """A block that is invalid, or has another number of bytes than expected."""


@dataclass(frozen=True)
class Decompressor:
    """Decompresses the blocks of one compressor; each byte of a block becomes at most `most` bytes."""

    _decompress: _Decompress
    most: int

    def decompress(self, block: memoryview, out: memoryview) -> None:
        """Decompress a block into a buffer of its size, or raise `BadBlock`."""
        try:
            done = self._decompress(block, out)
        except _FAULTS as e:
            raise BadBlock(str(e)) from None
        if done != len(out):
            raise BadBlock(f"it has {pluralize(done, 'byte')}, not {len(out)}")


def _fill(out: memoryview, plain: bytes | memoryview) -> int:
    if len(plain) != len(out):
        raise ValueError(f"{pluralize(len(plain), 'byte')} instead of {len(out)}")
    out[:] = plain
    return len(out)


def _lz4(dictionary: bytes) -> _Decompress:
    def decompress(data: memoryview, out: memoryview) -> int:
        # Cassandra puts the uncompressed length (4 bytes, little-endian) before an LZ4 block, as both libraries do.
        if len(data) < 4 or _LZ4_LENGTH.unpack_from(data)[0] != len(out):
            raise ValueError(f"the LZ4 block is not one of {pluralize(len(out), 'byte')}")
        if dictionary:
            return _fill(out, lz4.block.decompress(data, dict=dictionary))
        return cramjam.lz4.decompress_block_into(data, out)  # type: ignore[arg-type]

    return decompress


def _zstd(dictionary: bytes) -> _Decompress:
    # Each thread needs its own, because a decompressor does not serve two threads at a time.
    decompressor = zstandard.ZstdDecompressor(
        dict_data=zstandard.ZstdCompressionDict(dictionary) if dictionary else None
    )

    def decompress(data: memoryview, out: memoryview) -> int:
        # The length is checked before memory is allocated. It is -1 if the frame does not have it.
        if zstandard.frame_content_size(data) not in (-1, len(out)):
            raise ValueError(f"the Zstandard frame is not one of {pluralize(len(out), 'byte')}")
        return _fill(out, decompressor.decompress(data, max_output_size=len(out), allow_extra_data=False))

    return decompress


def _inflate(data: memoryview, out: memoryview) -> int:
    inflater = zlib.decompressobj()
    # The buffer has one more byte, so that the decompressor reads the end of the stream, and not beyond.
    plain = inflater.decompress(data, len(out) + 1)
    if len(plain) <= len(out) and (not inflater.eof or inflater.unused_data):
        raise ValueError("the Deflate stream does not end with the block")
    return _fill(out, plain)


# A byte that extends the length of an LZ4 match stands for 255.
_LZ4_MOST = 255
# A Snappy copy of 3 bytes is at most 64 bytes.
_SNAPPY_MOST = 22
# A Zstandard block of 4 bytes is at most 128 KiB.
_ZSTD_MOST = 1 << 15
# Two bits of Deflate are a match of at most 258 bytes.
_DEFLATE_MOST = 4 * 258
# By the name of the class; called with the dictionary, which may be empty.
_COMPRESSORS: dict[str, tuple[Callable[[bytes], _Decompress], int]] = {
    "LZ4Compressor": (lambda _: _lz4(b""), _LZ4_MOST),
    "LZ4WithDictsCompressor": (_lz4, _LZ4_MOST),
    "SnappyCompressor": (lambda _: cramjam.snappy.decompress_raw_into, _SNAPPY_MOST),  # type: ignore[dict-item]
    "ZstdCompressor": (lambda _: _zstd(b""), _ZSTD_MOST),
    "ZstdWithDictsCompressor": (_zstd, _ZSTD_MOST),
    "ZstdDictionaryCompressor": (_zstd, _ZSTD_MOST),
    "DeflateCompressor": (lambda _: _inflate, _DEFLATE_MOST),
    "NoopCompressor": (lambda _: lambda data, out: _fill(out, data), 1),
}


def decompressor(
    class_name: str, file: str, options: Sequence[tuple[bytes, bytes]] = (), dictionary: bytes = b""
) -> Decompressor:
    """Return the decompressor for the blocks of a compressor, by its class with or without the package. `file` names
    it, with options that include ScyllaDB's dictionaries. With Cassandra's `dictionary`, the class does not count
    (`CompressionMetadata.resolveCompressor`).

    Raises:
        Unsupported: the compressor is unknown.
        CorruptFile: a part of the dictionary is missing, or the dictionary is invalid.
    """
    name = "ZstdDictionaryCompressor" if dictionary else class_name.rpartition(".")[2]
    if name not in _COMPRESSORS:
        raise Unsupported(f"{file}: compressor {name} is not supported; {', '.join(_COMPRESSORS)} are")
    try:
        make, most = _COMPRESSORS[name]
        return Decompressor(make(dictionary or _dictionary(options, file)), most)
    except zstandard.ZstdError as e:
        raise CorruptFile(file, None, f"the dictionary cannot be read: {e}") from None


def _dictionary(options: Sequence[tuple[bytes, bytes]], file: str) -> bytes:
    """Join the parts of the dictionary (`dict_from_options` in sstables/compressor.cc of ScyllaDB).

    The parts are the options `.dictionary.00000000`, `.dictionary.00000001`, ..., because an option has at most 65,534
    bytes. A file has at most one dictionary, and none if it is older than the first dictionary of its table.
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


def cassandra_dictionary(section: bytes, file: str) -> bytes:
    """Return the dictionary in the last part of a CompressionInfo.db. The table above gives its format.

    Raises:
        Unsupported: the dictionary is of an unknown kind.
        CorruptFile: the part is no dictionary, or does not match its CRC32C.
    """
    start = _DICTIONARY_HEAD.size
    if len(section) < start:
        raise CorruptFile(file, None, f"{pluralize(len(section), 'byte')} after the chunk offsets are no dictionary")
    kind, number, length = _DICTIONARY_HEAD.unpack_from(section)
    if length <= 0 or len(section) != start + length + 4:
        raise CorruptFile(file, None, f"{pluralize(len(section), 'byte')} after the chunk offsets are no dictionary")
    dictionary = section[start : start + length]
    crc = _crc32c(struct.pack("<bq", kind, number) + dictionary)
    if crc != int.from_bytes(section[-4:], "big"):
        raise CorruptFile(file, None, "the compression dictionary does not match its CRC32C")
    if kind != _ZSTD_KIND:
        raise Unsupported(f"{file}: a compression dictionary of kind {kind} is not supported; kind 0 (Zstandard) is")
    return dictionary


def _crc32c_of(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (_CRC32C_POLYNOMIAL if value & 1 else 0)
    return value


_CRC32C_TABLE = [_crc32c_of(value) for value in range(256)]


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC32C_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF
