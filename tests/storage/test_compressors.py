"""Blocks with lengths larger than their data: memory is bounded by the existing data, for any lengths in a file."""

import os
import resource
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import cramjam
import lz4.block
import numpy as np
import pytest
import zstandard

from tests.storage.written import changes
from tests.support.guarded import in_a_process
from tests.support.recordings import WIDE, recorded
from tests.support.rewriting import copy, make_plain, recompress, set_compression
from writetime.storage.compressors import BadBlock, decompressor
from writetime.storage.file_errors import CorruptFile
from writetime.storage.locations import Location
from writetime.storage.sstable import SSTable

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "LZ4Compressor": lz4.block.compress,
    "SnappyCompressor": lambda data: bytes(cramjam.snappy.compress_raw(data)),
    "ZstdCompressor": lambda data: zstandard.compress(data, 22),
    "DeflateCompressor": lambda data: zlib.compress(data, 9),
    "NoopCompressor": bytes,
}
by_name = pytest.mark.parametrize("name", COMPRESS)
MIB = 1 << 20


@by_name
def test_nothing_compresses_more_than_the_bound(name: str) -> None:
    known = decompressor(name, "")
    for data in (bytes(16 * MIB), bytes(4096), b"ab" * MIB, os.urandom(4096), b"x", b"a" * 20):
        block = COMPRESS[name](data)
        out = bytearray(len(data))
        known.decompress(memoryview(block), memoryview(out))
        assert out == data
        assert len(data) <= known.most * len(block)


@by_name
def test_a_block_of_another_size_is_refused(name: str) -> None:
    known = decompressor(name, "")
    data = bytes(1000)
    block = COMPRESS[name](data)
    for size in (0, 1, 999, 1001, 4096):
        with pytest.raises(BadBlock):
            known.decompress(memoryview(block), memoryview(bytearray(size)))


def limit_memory() -> None:
    """Limit this process to 256 MiB more than it has."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmSize"))
    most = 1024 * int(line.split()[1]) + 256 * MIB
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def inflate_a_gigabyte(_: str) -> None:
    """A block that claims to be a gibibyte does not allocate it."""
    compressor = zlib.compressobj(1)
    block = b"".join(compressor.compress(bytes(MIB)) for _ in range(1024)) + compressor.flush()
    known = decompressor("DeflateCompressor", "")
    limit_memory()
    with pytest.raises(BadBlock):
        known.decompress(memoryview(block), memoryview(bytearray(65536)))


def small() -> Location:
    """An SSTable of one chunk."""
    return min((x for x in recorded("me")), key=lambda x: len(x.read("Data.db")))


def read_with_wrong_lengths(folder: str) -> None:
    """A small SSTable, compressed and not, whose components promise chunks of gibibytes."""
    here = Path(folder)
    compressed, plain = copy(small(), here / "compressed"), make_plain(small(), here / "plain")
    wanted = changes(compressed, SSTable(compressed).schema)
    assert changes(plain, SSTable(plain).schema).num_rows == wanted.num_rows
    crc = Path(plain.path("CRC.db"))
    crc.write_bytes(struct.pack(">i", (1 << 31) - 1) + crc.read_bytes()[4:])
    limit_memory()
    assert changes(plain, SSTable(plain).schema).num_rows == wanted.num_rows
    length = SSTable(compressed).data.length
    for name, compress in COMPRESS.items():
        there = recompress(small(), here / name, name, [], compress)
        for chunk, total in (((1 << 31) - 1, length), ((1 << 31) - 1, (1 << 31) - 1), (1 << 30, 1 << 30)):
            set_compression(there, name, [], struct.pack(">iqiq", chunk, total, 1, 0))
            if total == length:
                assert changes(there, SSTable(there).schema).num_rows == wanted.num_rows
            else:
                with pytest.raises(CorruptFile, match="cannot come out of"):
                    list(SSTable(there).scan(window=1))


@pytest.mark.parametrize("function", [inflate_a_gigabyte, read_with_wrong_lengths])
def test_memory_follows_the_file(function: Callable[[str], None], tmp_path: Path) -> None:
    answer = in_a_process(function, str(tmp_path))
    assert answer.returncode == 0, answer.stderr[-2000:]


def test_chunk_offsets_that_wrap_around(tmp_path: Path) -> None:
    here = copy(WIDE, tmp_path / "here")
    data = SSTable(here).data
    chunks = -(-data.length // data.chunk_length)
    assert chunks >= 3
    sound = Path(here.path("CompressionInfo.db")).read_bytes()
    for first, second in ((-(1 << 63), 0), (-(1 << 63), 3), ((1 << 63) - 1, -1), (-5, 9)):
        offsets = np.frombuffer(sound[-8 * chunks :], ">i8").copy()
        offsets[1:3] = first, second
        Path(here.path("CompressionInfo.db")).write_bytes(sound[: -8 * chunks] + offsets.tobytes())
        with pytest.raises(CorruptFile, match="chunk offsets"):
            SSTable(here).data.read(0, chunks, np.empty(data.length, np.uint8))
