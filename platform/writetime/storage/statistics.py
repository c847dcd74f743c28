"""Reads Statistics.db of an SSTable: its header, and the parts of the commit log that its data was written to.

The header has the minimums of its times, and the types of its columns. Times in the data are deltas to these minimums.

The file (`MetadataSerializer`), with a CRC32 of 4 bytes where it is named, from version `na` on:

| part | bytes |
| --- | --- |
| number of components | 4, and the CRC32 |
| kind and offset of each component | 4 and 4; after the last one the CRC32 of number, kinds and offsets |
| each component | up to the next one, and the CRC32 |

The header is one component (`SerializationHeader.Component`). Each text has its length before it, as a vint, and each
type is the name of its marshal class:

| part | encoding |
| --- | --- |
| minimums of write time, deletion time and TTL | 3 vints; the times count from 2015-09-22 |
| type of the partition key | text |
| types of the clustering columns | number as a vint, then the texts |
| static columns, then regular columns | for both: number as a vint, then name and type of each as texts |

Another component has the statistics (`StatsMetadata`). A position in the commit log is a segment's id (8) and an offset
(4). The component begins with two histograms (for both: number of buckets, 4; 16 bytes per bucket) and the highest
position. After other fields, which depend on the version, there are the lowest position, the number of intervals (4),
the first and last position of each, and up to version `oa` these parts:

| part | bytes |
| --- | --- |
| session of a pending repair | 1, and 16 if that is not 0 |
| is transient | 1 |
| host id of the node that wrote the data first | 1, and 16 if that is not 0 |
"""

import struct
import zlib
from dataclasses import dataclass, replace
from uuid import UUID

from writetime.core.counts import pluralize
from writetime.schema.table import Column, storage_order
from writetime.schema.types import CqlType, CqlTypeError, MarshalKey, is_complex, parse_marshal, parse_marshal_key
from writetime.schema.values import read_vint
from writetime.storage.file_errors import CorruptFile, Unsupported
from writetime.storage.locations import Location

_VALIDATION, _STATS, _HEADER = 0, 2, 3
_POSITION = struct.Struct(">qi")
# EncodingStats: the minimums of the times count from 2015-09-22 (UTC).
TIMESTAMP_EPOCH = 1_442_880_000_000_000
DELETION_TIME_EPOCH = 1_442_880_000

# Names and types.
Columns = tuple[tuple[str, CqlType], ...]


@dataclass(frozen=True)
class Header:
    """The minimums and types. `static` and `regular` have the order of the columns in rows."""

    min_write_time: int
    min_deletion_time: int
    min_ttl: int
    partition_key: tuple[CqlType, ...]
    clustering: tuple[MarshalKey, ...]
    static: Columns
    regular: Columns


def wrap64(value: int) -> int:
    """Reduce to a signed 64-bit integer, as Java's arithmetic does."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def read_header(location: Location) -> Header:
    """Read the header of an SSTable.

    Raises:
        MissingFile, CorruptFile: Statistics.db is missing or corrupt.
        Unsupported: the partitioner is not Murmur3, a column has a type without a CQL name, or the order of columns is
            one that neither Cassandra nor ScyllaDB writes.
    """
    path, components = _components(location)
    for kind in (_VALIDATION, _HEADER):
        if kind not in components:
            raise CorruptFile(path, None, f"component {kind} is missing")
    try:
        validation = components[_VALIDATION]
        partitioner = validation[2 : 2 + struct.unpack_from(">H", validation)[0]].decode()
        header = _Reader(components[_HEADER]).header()
    except (struct.error, IndexError, ValueError) as e:
        raise CorruptFile(path, None, f"a header was expected: {e}") from None
    except CqlTypeError as e:
        raise Unsupported(f"{path}: {e}") from None
    if not partitioner.endswith(".Murmur3Partitioner"):
        raise Unsupported(f"{path}: partitioner {partitioner} is not supported; Murmur3Partitioner is")
    return replace(header, static=_as_in_rows(path, header.static), regular=_as_in_rows(path, header.regular))


def newest_write(location: Location) -> int:
    """Return the newest time in an SSTable that a client or node gave to a write, in microseconds. The errors are those
    of `read_log_intervals`.

    In `StatsMetadata`, the histograms are followed by the position in the commit log (12 bytes), and the minimum and
    the maximum of the write times (8 bytes each).
    """
    path, components = _components(location)
    stats = components.get(_STATS, b"")
    try:
        return struct.unpack_from(">q", stats, _after_histograms(stats) + 20)[0]
    except struct.error:
        raise CorruptFile(path, None, "the times of writes were expected") from None


@dataclass(frozen=True)
class LogIntervals:
    """The parts of the commit log with the writes of an SSTable: for each the first and the last position, as segment
    and offset. `host_id` is the node whose log it is, None if that is not known.

    The two positions are equal if the node replayed the log at its start, because it does not log replayed writes again
    (tested on Cassandra 5.0).
    """

    host_id: UUID | None
    intervals: tuple[tuple[tuple[int, int], tuple[int, int]], ...]


def read_log_intervals(location: Location) -> LogIntervals:
    """Read the intervals of an SSTable of Cassandra.

    Raises:
        MissingFile, CorruptFile: Statistics.db is missing or corrupt.
    """
    path, components = _components(location)
    try:
        return _log_intervals(components[_STATS])
    except (KeyError, struct.error, IndexError, ValueError) as e:
        raise CorruptFile(path, None, f"intervals of the commit log were expected: {e!r}") from None


def _log_intervals(data: bytes) -> LogIntervals:
    """Find the intervals from their end, because the fields before them depend on the version: the last position of the
    last interval is the highest one.
    """
    start = _after_histograms(data)
    highest = data[start : start + _POSITION.size]
    if _POSITION.unpack(highest)[0] < 0:
        return LogIntervals(None, ())
    end = data.rindex(highest) + _POSITION.size
    count = next(
        n
        for n in range(1, end // (2 * _POSITION.size) + 1)
        if struct.unpack_from(">i", data, end - 2 * n * _POSITION.size - 4)[0] == n
    )
    positions = list(_POSITION.iter_unpack(data[end - 2 * count * _POSITION.size : end]))
    host_at = end + (17 if data[end] else 1) + 1
    host_id = UUID(bytes=data[host_at + 1 : host_at + 17]) if data[host_at] else None
    return LogIntervals(host_id, tuple(zip(positions[::2], positions[1::2], strict=True)))


def _after_histograms(stats: bytes) -> int:
    at = 0
    for _ in range(2):
        at += 4 + 16 * struct.unpack_from(">i", stats, at)[0]
    return at


def _as_in_rows(path: str, columns: Columns) -> Columns:
    """Return a header's columns in the order of rows: simple columns, then complex ones.

    Cassandra's headers have this order (`db.Columns`). ScyllaDB's headers have all columns in the order of the bytes of
    their names (`make_sstable_schema` in sstables/mx/writer.cc).
    """
    names = [name for name, _ in columns]
    if len(set(names)) < len(names):
        raise CorruptFile(path, None, f"the header lists a column twice: {', '.join(names)}")
    if names == [c.name for c in storage_order(Column(name, cql_type) for name, cql_type in columns)]:
        return columns
    if names == sorted(names, key=str.encode):
        return tuple(sorted(columns, key=lambda column: is_complex(column[1])))
    raise Unsupported(
        f"{path}: the header's columns are in an order that neither Cassandra nor ScyllaDB writes: {', '.join(names)}"
    )


def _components(location: Location) -> tuple[str, dict[int, bytes]]:
    """Return the path of Statistics.db, and its components by their kinds."""
    path, data = location.path("Statistics.db"), location.read("Statistics.db")
    checked = location.features.metadata_checksum
    crc_length = 4 if checked else 0

    def check(start: int, end: int, crc: int = 0) -> int:
        crc = zlib.crc32(data[start:end], crc)
        if checked and crc != int.from_bytes(data[end : end + 4], "big"):
            raise CorruptFile(path, start, "a part of the file does not match its CRC32")
        return crc

    try:
        count = struct.unpack_from(">i", data)[0]
        crc = check(0, 4)
        start = 4 + crc_length
        # In a file without checksums, a flipped bit in the count must not allocate a huge table.
        if not 0 < count <= 16:
            raise CorruptFile(path, 0, f"a few components were expected, not {count}")
        contents = [struct.unpack_from(">ii", data, start + 8 * i) for i in range(count)]
    except struct.error:
        raise CorruptFile(path, 0, "the file ends in its table of contents") from None
    check(start, start + 8 * count, crc)
    # ScyllaDB may list the components in another order than that in the file.
    ordered = sorted(contents, key=lambda entry: entry[1])
    ends = [offset for _, offset in ordered[1:]] + [len(data)]
    components = {}
    for (kind, offset), end in zip(ordered, ends, strict=True):
        if not start + 8 * count <= offset <= end - crc_length:
            raise CorruptFile(path, offset, "a component that is outside the file")
        check(offset, end - crc_length)
        components[kind] = data[offset : end - crc_length]
    return path, components


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._offset = 0

    def header(self) -> Header:
        write_time = wrap64(self._vint() + TIMESTAMP_EPOCH)
        deletion_time = wrap64(self._vint() + DELETION_TIME_EPOCH)
        ttl = wrap64(self._vint())
        key = parse_marshal_key(self._text())
        clustering = tuple(parse_marshal_key(self._text()) for _ in range(self._vint()))
        return Header(write_time, deletion_time, ttl, key.components, clustering, self._columns(), self._columns())

    def _vint(self) -> int:
        value, self._offset = read_vint(self._data, self._offset)
        return value

    def _text(self) -> str:
        length = self._vint()
        if length > len(self._data) - self._offset:
            raise IndexError(f"a text of {pluralize(length, 'byte')} does not fit")
        self._offset += length
        return self._data[self._offset - length : self._offset].decode()

    def _columns(self) -> Columns:
        return tuple((self._text(), parse_marshal(self._text())) for _ in range(self._vint()))
