"""Compressed SSTables rewritten: with another compressor, other options, or another dictionary."""

import dataclasses
import shutil
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from writetime.storage.files import Location
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
    """Return what CompressionInfo.db has: compressor, options, and all that follows."""
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
