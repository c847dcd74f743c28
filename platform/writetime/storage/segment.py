"""Reads a commit log segment as bytes: its header, and its sections up to a trusted offset, checked and decompressed.

The header (`CommitLogDescriptor`), with big-endian numbers:

| part | bytes |
| --- | --- |
| version | 4 |
| id of the segment | 8 |
| length of the parameters | 2 |
| parameters, as JSON | length |
| CRC32 of the parts above | 4 |

Sections follow the header (`CommitLogSegmentReader`), each after a sync marker:

| part | bytes |
| --- | --- |
| marker: position of the next marker in the file | 4 |
| marker: CRC32 of the segment's id and of the marker's own position | 4 |
| only if compressed: uncompressed length of the section | 4 |
| the frames of the section, or one compressed block | up to the next marker |

Offsets are logical, as in Cassandra: they count the uncompressed data and its markers.

`_cdc.idx` (`CommitLogSegment.writeCDCIndexFile`) has the logical offset up to which a segment is synced. For a segment
that a restarted node replayed, it has the size of the file instead. If the segment is compressed, this is not a logical
offset, but then `_cdc.idx` always has COMPLETED.
"""

import json
import posixpath
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from pyarrow import NativeFile, fs

from writetime.core.counts import pluralize
from writetime.storage.compressors import BadBlock, Decompressor, decompressor
from writetime.storage.file_errors import CorruptFile, MissingFile, StorageError, TornTail, Unsupported
from writetime.storage.locations import entries, open_file, read_file, resolve
from writetime.storage.regular_files import irregular

_NAME = re.compile(r"CommitLog-(?P<version>\d+)-(?P<id>\d+)\.log$")
# Versions: 6 is that of 3.x, 7 of 4.x (and of 5.0 and 6.0 in their compatibility modes), 8 of 5.0, 9 of 6.0.
VERSIONS = (7, 8, 9)
# For a segment that may be read completely.
END = 1 << 62
# Bytes of a sync marker.
MARKER_BYTES = 8
# The most digits of an offset.
_DIGITS = 18
# Each read takes at least this many bytes, because a log that is synced with each write has tiny sections.
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class SyncMarker:
    """The place of a sync marker: its position in the file, and its logical offset. Reading may begin there."""

    position: int
    offset: int


@dataclass(frozen=True)
class Section:
    """The bytes between two sync markers. `offset` is the logical offset of the first byte, `next` the marker after."""

    data: np.ndarray
    offset: int
    is_last: bool
    next: SyncMarker


@dataclass(frozen=True)
class Stretch:
    """Adjacent sections as one array, with gaps for their markers. `sections` is an array of two columns: the starts
    and ends of the sections in that array.

    `offset` is the logical offset of the first byte. `is_last`: the segment's last section is among them. `next` is the
    marker after them.
    """

    data: np.ndarray
    offset: int
    sections: np.ndarray
    is_last: bool
    next: SyncMarker


@dataclass(frozen=True)
class CdcIndex:
    """The content of `_cdc.idx`: the offset up to which a segment may be read, and whether it is complete."""

    offset: int
    completed: bool


class _Blocks:
    """A file that is read forwards in blocks. Only the newest block is kept."""

    def __init__(self, file: NativeFile) -> None:
        self.size = file.size()
        self._file = file
        self._start = 0
        self._block = b""

    def read(self, start: int, length: int) -> memoryview:
        """Return bytes from an offset on; fewer at the end of the file."""
        if start < self._start or start + length > self._start + len(self._block):
            self._block = self._file.read_at(max(length, BLOCK_BYTES), start)
            self._start = start
        first = start - self._start
        return memoryview(self._block)[first : first + length]


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

    def size(self) -> int:
        """Return the size of the file in bytes."""
        return self.filesystem.get_file_info(self.path).size

    def cdc_index(self) -> CdcIndex | None:
        """Return the `_cdc.idx` in the segment's folder. Return None if there is none, as outside `cdc_raw`. Raise
        `CorruptFile` if it is invalid.
        """
        path = self.path.removesuffix(".log") + "_cdc.idx"
        try:
            lines = read_file(self.filesystem, path).split()
        except MissingFile:
            return None
        if not lines:
            # The node truncates the file before it writes it, so a reader may find it empty.
            return CdcIndex(0, completed=False)
        if not lines[0].isdigit() or len(lines[0]) > _DIGITS or lines[1:] not in ([], [b"COMPLETED"]):
            raise CorruptFile(path, 0, "an offset was expected, and optionally COMPLETED in a second line")
        return CdcIndex(int(lines[0]), completed=len(lines) == 2)

    def sections(self, start: int = 0, until: int = END, place: SyncMarker | None = None) -> Iterator[Section]:
        """Read the sections that end after `start` and begin before `until`, in order. Both offsets are logical.

        With a `place`, read only the sections after it, and do not walk over the earlier ones.

        A section is completely in memory, but never two sections of a mebibyte or more.

        Raises:
            MissingFile: the segment does not exist, or no longer exists.
            TornTail: the end of the segment is unfinished.
            CorruptFile: a marker or block is invalid.
            Unsupported: the segment is encrypted, or its compressor is not supported.
        """
        try:
            opened = open_file(self.filesystem, self.path)
        except MissingFile:
            raise MissingFile(
                f"{self.path} does not exist, or no longer exists, so its changes are missing: put it back, or read "
                "the tables' SSTables instead"
            ) from None
        with opened:
            file = _Blocks(opened)
            position, compression = self._header(file)
            compressor = decompressor(compression, self.path) if compression else None
            logical = position
            if place is not None:
                position, logical = place.position, place.offset
            while logical < until and (end := self._next(file, position, logical)) is not None:
                logical += MARKER_BYTES
                begin = position + MARKER_BYTES
                length = end - begin
                if compressor is not None:
                    begin += 4
                    length = int.from_bytes(file.read(begin - 4, 4), "big", signed=True)
                    if begin > end or length < 0:
                        raise CorruptFile(self.path, logical, "a compressed section was expected")
                if logical + length > start:
                    after = file.read(begin, end - begin + MARKER_BYTES)
                    data, marker = after[: end - begin], after[end - begin :]
                    is_last = not any(marker) or len(marker) < MARKER_BYTES
                    body = np.frombuffer(data, np.uint8)
                    if compressor is not None:
                        body = self._decompressed(compressor, data, length, logical, is_last=is_last)
                    yield Section(body, logical, is_last, SyncMarker(end, logical + length))
                logical += length
                position = end

    def end(self) -> int | None:
        """Return the logical offset of the last sync marker, behind all complete sections; 0 if there is none, None if
        the segment does not exist or is not supported.
        """
        end = 0
        try:
            for section in self.sections():
                end = section.next.offset
        except (MissingFile, Unsupported):
            return None
        except StorageError:
            # The node reads no more of it, either.
            pass
        return end

    def _next(self, file: _Blocks, position: int, logical: int) -> int | None:
        """Return the end of the section after the marker at `position`. Return None if no marker was written there."""
        marker = file.read(position, MARKER_BYTES)
        if not any(marker):
            return None
        if len(marker) < MARKER_BYTES:
            raise TornTail(self.path, logical, "the file ends inside a sync marker")
        end, crc = struct.unpack(">iI", marker)
        marked = struct.pack(">IIi", self.id & 0xFFFFFFFF, self.id >> 32 & 0xFFFFFFFF, position)
        if zlib.crc32(marked) != crc:
            # The node writes a marker's position first, and then its CRC32.
            raise (CorruptFile if crc else TornTail)(self.path, logical, "a sync marker does not match its CRC32")
        if end > file.size:
            raise TornTail(self.path, logical, f"a sync marker that points to {end}, beyond the file's end")
        if end < position + MARKER_BYTES:
            raise CorruptFile(self.path, logical, f"a sync marker that points back to {end}")
        return end

    def _decompressed(
        self, compressor: Decompressor, data: memoryview, length: int, logical: int, *, is_last: bool
    ) -> np.ndarray:
        fault = TornTail if is_last else CorruptFile
        # A wrong length must not allocate memory for data that is not there.
        if length > compressor.most * len(data):
            raise fault(
                self.path, logical, f"{pluralize(length, 'byte')} cannot come out of the {len(data)} of a section"
            )
        body = np.empty(length, np.uint8)
        try:
            compressor.decompress(data, body.data)
        except BadBlock as e:
            raise fault(self.path, logical, f"a compressed section: {e}") from None
        return body

    def _header(self, file: _Blocks) -> tuple[int, str | None]:
        """Return the size of the header and the class of the compressor."""
        data = bytes(file.read(0, 14))
        if not any(data):
            raise TornTail(self.path, 0, "a segment's header was expected")
        try:
            version, segment_id, length = struct.unpack(">iqH", data)
            data = bytes(file.read(0, 18 + length))
            end = 14 + length
            crc = struct.unpack_from(">I", data, end)[0]
        except struct.error:
            raise TornTail(self.path, 0, "a segment's header was expected") from None
        checked = struct.pack(">iIIi", version, segment_id & 0xFFFFFFFF, segment_id >> 32 & 0xFFFFFFFF, length)
        if zlib.crc32(data[14:end], zlib.crc32(checked)) != crc:
            raise (CorruptFile if crc else TornTail)(self.path, 0, "the segment's header does not match its CRC32")
        if (version, segment_id) != (self.version, self.id):
            raise CorruptFile(self.path, 0, f"the header is that of version {version}, segment {segment_id}")
        try:
            parameters = json.loads(data[14:end]) if length else {}
            compression = parameters.get("compressionClass")
            if not isinstance(compression, str | None):
                raise TypeError
        except (ValueError, AttributeError, TypeError, RecursionError):
            raise CorruptFile(self.path, 14, "the parameters of a segment were expected") from None
        if "encKeyAlias" in parameters or "encCipher" in parameters:
            raise Unsupported(
                f"{self.path}: encrypted segments are not supported: run the node without "
                "transparent_data_encryption_options, then bring a snapshot of its tables into the lake with "
                "`writetime backfill`"
            )
        return end + 4, compression


def find_segments(path: str) -> list[Segment]:
    """Return the segments at a path (a file, or a folder such as `cdc_raw`), in the order in which they were written.
    The errors are those that `list_segments` raises and returns.
    """
    segments, refused = list_segments(path)
    for error in refused.values():
        raise error
    return segments


def list_segments(path: str) -> tuple[list[Segment], dict[str, StorageError]]:
    """Return the segments at a path like `find_segments`, and why each other log file there is refused, by its path: it
    is not named like a segment, has an unsupported version, or is not a regular file. So a program that reads a whole
    folder does not stop at one file. Raise `MissingFile` if there is nothing at the path.
    """
    filesystem, path = resolve(path)
    info = filesystem.get_file_info(path)
    if info.type == fs.FileType.NotFound:
        raise MissingFile(f"{path} does not exist")
    is_folder = info.type == fs.FileType.Directory
    paths = [each for each in entries(filesystem, path) if each.endswith(".log")] if is_folder else [path]
    segments: list[Segment] = []
    refused: dict[str, StorageError] = {}
    for each in paths:
        match = _NAME.fullmatch(posixpath.basename(each))
        if match is None:
            reason = f"{each} is not named like a commit log segment (CommitLog-7-1700000000000.log)"
            refused[each] = Unsupported(reason)
        elif int(match["version"]) not in VERSIONS:
            reason = (
                f"{each}: commit log version {match['version']} is not supported; {', '.join(map(str, VERSIONS))} are"
            )
            refused[each] = Unsupported(reason)
        elif isinstance(filesystem, fs.LocalFileSystem) and (fault := irregular(each)) is not None:
            refused[each] = fault
        else:
            segments.append(Segment(filesystem, each, int(match["version"]), int(match["id"])))
    return sorted(segments, key=lambda s: s.id), refused


def trusted(segments: Sequence[Segment]) -> list[tuple[Segment, int | None]]:
    """Return each segment of a node with the offset up to which it may be read; None if it has no `_cdc.idx`.

    The offset is `END` if the segment is complete, or if a later segment has changes. In the second case, the node no
    longer adds to the segment. After a crash, the segment may have more data than its `_cdc.idx` records, and the node
    itself reads these data when it starts.
    """
    found = [(segment, segment.cdc_index()) for segment in segments]
    newest = max((segment.id for segment, index in found if index is not None), default=0)
    return [
        (s, None if index is None else END if index.completed or s.id < newest else index.offset) for s, index in found
    ]


def stretches(sections: Iterable[Section]) -> Iterator[Stretch]:
    """Join adjacent sections into stretches of about a mebibyte. Before an error, yield the stretch so far."""
    waiting: list[Section] = []
    try:
        for section in sections:
            if waiting and _block(section) is not _block(waiting[0]):
                yield _join(waiting)
                waiting = []
            waiting.append(section)
            if section.offset + len(section.data) - waiting[0].offset >= BLOCK_BYTES:
                yield _join(waiting)
                waiting = []
    except CorruptFile:
        if waiting:
            yield _join(waiting)
        raise
    if waiting:
        yield _join(waiting)


def _block(section: Section) -> bytes | None:
    """Return the block of the file that has a section's bytes; None if the section was decompressed."""
    base = section.data.base
    return base.obj if isinstance(base, memoryview) else None


def _join(sections: list[Section]) -> Stretch:
    first, last = sections[0], sections[-1]
    starts = np.array([s.offset for s in sections]) - first.offset
    ranges = np.stack([starts, starts + [len(s.data) for s in sections]], axis=1)
    data, block = first.data, _block(first)
    if block is not None:
        whole = np.frombuffer(block, np.uint8)
        start = data.ctypes.data - whole.ctypes.data
        data = whole[start : start + ranges[-1, 1]]
    elif len(sections) > 1:
        data = np.empty(ranges[-1, 1], np.uint8)
        for section, (start, end) in zip(sections, ranges, strict=True):
            data[start:end] = section.data
    return Stretch(data, first.offset, ranges, last.is_last, last.next)
