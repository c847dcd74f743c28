"""Rewrites compressed SSTables with another compressor, other options, or another dictionary."""

import dataclasses
import shutil
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from writetime.storage.locations import Location
from writetime.storage.sstable import SSTable

Options = Sequence[tuple[bytes, bytes]]
PART = b".dictionary."


def copy(location: Location, folder: Path) -> Location:
    """Copy the components of an SSTable."""
    folder.mkdir(parents=True)
    for path in Path(location.folder).iterdir():
        if path.name.startswith(f"{location.version}-{location.id}-"):
            shutil.copyfile(path, folder / path.name)
    return dataclasses.replace(location, folder=str(folder))


def renamed(location: Location, folder: Path, version: str) -> Location:
    """Copy an SSTable with the name of another version, whose files have the same form."""
    here = copy(location, folder)
    for path in list(folder.iterdir()):
        path.rename(folder / path.name.replace(f"{location.version}-", f"{version}-", 1))
    return dataclasses.replace(here, version=version)


def _string(data: bytes) -> bytes:
    return struct.pack(">H", len(data)) + data


def compression(location: Location) -> tuple[str, Options, bytes]:
    """Return the content of CompressionInfo.db: compressor, options, and the rest."""
    data = location.read("CompressionInfo.db")
    p = 0

    def take() -> bytes:
        nonlocal p
        length = struct.unpack_from(">H", data, p)[0]
        p += 2 + length
        return data[p - length : p]

    name = take().decode()
    p += 4
    options = [(take(), take()) for _ in range(struct.unpack_from(">i", data, p - 4)[0])]
    return name, options, data[p:]


def set_compression(location: Location, name: str, options: Options, rest: bytes) -> None:
    """Write CompressionInfo.db."""
    head = _string(name.encode()) + struct.pack(">i", len(options))
    strings = b"".join(_string(key) + _string(value) for key, value in options)
    Path(location.path("CompressionInfo.db")).write_bytes(head + strings + rest)


def dictionary_of(options: Options) -> bytes:
    """Return the dictionary, whose parts are in order."""
    return b"".join(value for key, value in options if key.startswith(PART))


def parts(dictionary: bytes, size: int = 65_534) -> list[tuple[bytes, bytes]]:
    """Return the options that hold a dictionary, of so many bytes each."""
    cut = [dictionary[i : i + size] for i in range(0, len(dictionary), size)]
    return [(PART + f"{i:08}".encode(), part) for i, part in enumerate(cut)]


def recompress(
    location: Location, folder: Path, name: str, options: Options, compress: Callable[[bytes], bytes]
) -> Location:
    """Copy an SSTable, with each chunk compressed in another way."""
    here = copy(location, folder)
    data = SSTable(location).data
    out = np.empty(data.chunk_length, np.uint8)
    file, offsets = bytearray(), []
    for chunk in range(-(-data.length // data.chunk_length)):
        offsets.append(len(file))
        body = compress(out[: data.read(chunk, 1, out)].tobytes())
        file += body + struct.pack(">I", zlib.crc32(body))
    Path(here.path("Data.db")).write_bytes(file)
    Path(here.path("Digest.crc32")).write_text(str(zlib.crc32(file)))
    rest = struct.pack(">iqi", data.chunk_length, data.length, len(offsets))
    set_compression(here, name, options, rest + struct.pack(f">{len(offsets)}q", *offsets))
    return here


def write_plain(location: Location, data: bytes) -> None:
    """Write an uncompressed Data.db with its checksums."""
    Path(location.path("Data.db")).write_bytes(data)
    Path(location.path("Digest.crc32")).write_text(str(zlib.crc32(data)))
    sums = [zlib.crc32(data[i : i + 65536]) for i in range(0, len(data), 65536)]
    Path(location.path("CRC.db")).write_bytes(struct.pack(f">i{len(sums)}I", 65536, *sums))


def make_plain(location: Location, folder: Path) -> Location:
    """Copy an SSTable without its compression."""
    here = copy(location, folder)
    data = SSTable(location).data
    plain = np.empty(-(-data.length // data.chunk_length) * data.chunk_length, np.uint8)
    size = data.read(0, -(-data.length // data.chunk_length), plain)
    Path(here.path("CompressionInfo.db")).unlink(missing_ok=True)
    Path(here.path("TOC.txt")).write_text("Data.db\nStatistics.db\n")
    write_plain(here, plain[:size].tobytes())
    return here


def as_older(location: Location, folder: Path, version: str) -> Location:
    """Rewrite an `nb` SSTable as version `mc`, `md`, `me`, `ms` or `mt`: no checksums in Statistics.db, no maximum
    length.

    The table of contents is turned round, as ScyllaDB's need not be in the order of the offsets.
    """
    older = renamed(location, folder, version)
    statistics = Path(older.path("Statistics.db"))
    data = statistics.read_bytes()
    count = struct.unpack_from(">i", data)[0]
    contents = [struct.unpack_from(">ii", data, 8 + 8 * i) for i in range(count)]
    ends = [o for _, o in contents[1:]] + [len(data)]
    bodies = {kind: data[start : end - 4] for (kind, start), end in zip(contents, ends, strict=True)}
    offset, table = 4 + 8 * count, []
    for kind, body in bodies.items():
        table.append(struct.pack(">ii", kind, offset))
        offset += len(body)
    statistics.write_bytes(struct.pack(">i", count) + b"".join(reversed(table)) + b"".join(bodies.values()))
    if older.exists("CompressionInfo.db"):
        compressor, options, rest = compression(older)
        set_compression(older, compressor, options, rest[:4] + rest[8:])
    return older


def break_chunk(location: Location, chunk: int) -> None:
    """Flip a bit in a compressed chunk."""
    info = location.read("CompressionInfo.db")
    count = SSTable(location).data.length // SSTable(location).data.chunk_length + 1
    offsets = struct.unpack(f">{count}q", info[-8 * count :])
    path = Path(location.path("Data.db"))
    broken = bytearray(path.read_bytes())
    broken[offsets[chunk] + 20] ^= 4
    path.write_bytes(broken)
