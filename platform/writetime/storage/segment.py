"""One commit log segment as bytes: its header, and its sections, checked and decompressed, up to a trusted offset.

`CommitLogDescriptor`: version, id, JSON parameters, CRC32. `CommitLogSegmentReader`: each section follows a marker with
the position of the next one and a CRC32 of the segment's id and its own position; of compressed segments each section
holds its uncompressed length and one compressed block. Offsets are logical, as in Cassandra's own positions: those of
the uncompressed data with its markers.
"""

import json
import posixpath
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import cramjam
import numpy as np
from pyarrow import fs

from writetime.storage.compression import decompressor
from writetime.storage.errors import CorruptFile, Missing, Unsupported
from writetime.storage.files import read_file, resolve

_NAME = re.compile(r"CommitLog-(?P<version>\d+)-(?P<id>\d+)\.log$")
# Versions: 6 is of 3.x, 7 of 4.x (and of 5.0 in its compatibility mode), 8 of 5.0.
VERSIONS = (7, 8)
_MARKER = 8


@dataclass(frozen=True)
class Section:
    """The bytes between two sync markers; `offset` is the logical one of the first byte."""

    data: np.ndarray
    offset: int
    is_last: bool


@dataclass(frozen=True)
class CdcIndex:
    """What `_cdc.idx` says: the offset up to which a segment may be read, and whether it is complete."""

    offset: int
    completed: bool


@dataclass(frozen=True)
class Segment:
    """A commit log segment, by its file; `id` orders the segments of a node."""

    filesystem: fs.FileSystem
    path: str
    version: int
    id: int

    @property
    def name(self) -> str:
        """The file's name."""
        return posixpath.basename(self.path)

    def cdc_index(self) -> CdcIndex | None:
        """Return what `_cdc.idx` beside the segment says; None if there is none, as outside of `cdc_raw`.

        Raises:
            CorruptFile: it says something else.
        """
        path = self.path.removesuffix(".log") + "_cdc.idx"
        try:
            lines = read_file(self.filesystem, path).decode().split()
        except Missing:
            return None
        if not lines or not lines[0].isdigit() or lines[1:] not in ([], ["COMPLETED"]):
            # The node truncates the file before it writes it, so a reader may find it empty.
            if not lines:
                return CdcIndex(0, completed=False)
            raise CorruptFile(path, 0, "an offset, and maybe COMPLETED in a second line, was expected")
        return CdcIndex(int(lines[0]), completed=len(lines) == 2)

    def sections(self, until: int | None = None) -> Iterator[Section]:
        """Read the sections, in order, those only that start before the logical offset `until`.

        Raises:
            Missing: the segment is not there (any more).
            CorruptFile: a marker or block is not what was written.
            Unsupported: the segment is encrypted, or compressed in an unknown way.
        """
        data = read_file(self.filesystem, self.path)
        position, compression = self._header(data)
        decompress = decompressor(compression, self.path) if compression else None
        logical = position
        while position <= len(data) - _MARKER and (until is None or logical < until):
            end, crc = struct.unpack_from(">iI", data, position)
            if end == 0 and crc == 0:
                return
            marked = struct.pack(">IIi", self.id & 0xFFFFFFFF, self.id >> 32 & 0xFFFFFFFF, position)
            if zlib.crc32(marked) != crc:
                raise CorruptFile(self.path, position, "a sync marker without its CRC32")
            start = position + _MARKER
            if not start <= end <= len(data):
                raise CorruptFile(self.path, position, f"a sync marker that points to {end}, outside of the file")
            logical += _MARKER
            is_last = data[end : end + _MARKER].strip(b"\0") == b""
            if decompress is None:
                body = np.frombuffer(data, np.uint8, end - start, start)
            else:
                if end - start < 4:
                    raise CorruptFile(self.path, start, "a compressed section was expected")
                body = np.empty(struct.unpack_from(">I", data, start)[0], np.uint8)
                try:
                    done = decompress(memoryview(data)[start + 4 : end], body) if len(body) else 0
                except (ValueError, zlib.error, cramjam.DecompressionError) as e:
                    raise CorruptFile(self.path, start, f"a compressed section: {e}") from None
                if done != len(body):
                    raise CorruptFile(self.path, start, f"a section of {len(body)} bytes has {done}")
            yield Section(body, logical, is_last)
            logical += len(body)
            position = end

    def _header(self, data: bytes) -> tuple[int, str | None]:
        """Return the size of the header and the class of the compressor."""
        try:
            version, segment_id, length = struct.unpack_from(">iqH", data)
            end = 14 + length
            crc = struct.unpack_from(">I", data, end)[0]
        except struct.error:
            raise CorruptFile(self.path, 0, "a segment's header was expected") from None
        checked = struct.pack(">iIIi", version, segment_id & 0xFFFFFFFF, segment_id >> 32 & 0xFFFFFFFF, length)
        if zlib.crc32(data[14:end], zlib.crc32(checked)) != crc:
            raise CorruptFile(self.path, 0, "the segment's header does not have its CRC32")
        if (version, segment_id) != (self.version, self.id):
            raise CorruptFile(self.path, 0, f"the header is that of version {version}, segment {segment_id}")
        parameters = json.loads(data[14:end]) if length else {}
        if "encKeyAlias" in parameters or "encCipher" in parameters:
            raise Unsupported(f"{self.path}: encrypted segments are not supported")
        return end + 4, parameters.get("compressionClass")


def find_segments(path: str) -> list[Segment]:
    """Return the segments at a path (a file, or a folder such as `cdc_raw`), in the order in which they were written.

    Raises:
        Missing: there is nothing at the path.
        Unsupported: a segment of a version that is not supported.
    """
    filesystem, path = resolve(path)
    info = filesystem.get_file_info(path)
    if info.type == fs.FileType.NotFound:
        raise Missing(f"{path} does not exist")
    paths = [path]
    if info.type == fs.FileType.Directory:
        paths = [i.path for i in filesystem.get_file_info(fs.FileSelector(path)) if i.path.endswith(".log")]
    segments = []
    for each in paths:
        match = _NAME.search(each)
        if match is None:
            raise Unsupported(f"{each} is not named like a commit log segment (CommitLog-7-1700000000000.log)")
        if int(match["version"]) not in VERSIONS:
            raise Unsupported(f"{each}: commit log version {match['version']} is not supported; {VERSIONS} are")
        segments.append(Segment(filesystem, each, int(match["version"]), int(match["id"])))
    return sorted(segments, key=lambda s: s.id)
