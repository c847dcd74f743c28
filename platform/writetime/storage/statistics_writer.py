"""Writes Statistics.db of an SSTable; `statistics` describes the file.

`StatsMetadata` has, in this order: two histograms, the position in the commit log, the minimums and maximums of write
time, deletion time and TTL, the ratio of compression, a histogram of deletion times, level, time of repair, the first
and last clustering (before `oa`), whether counters have old shards, the numbers of cells and rows, positions in the
commit log (none), a pending repair and whether the data is transient (from `na` on), the host (none), whether
partitions are deleted, the first and last clustering with their types, the first and last key, and the share of the
token range (these from `oa` on).
"""

import functools
import math
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from writetime.schema.serialise import vint
from writetime.schema.table import Column, TableSchema, storage_order
from writetime.schema.types import MARSHAL, CqlType
from writetime.schema.values import read_vint
from writetime.storage.kernel import write_layout as K
from writetime.storage.locations import Features
from writetime.storage.statistics import DELETION_TIME_EPOCH, TIMESTAMP_EPOCH

PARTITIONER = "org.apache.cassandra.dht.Murmur3Partitioner"
# MetadataCollector: the number of buckets of the histograms, and of bins of deletion times, which are rounded to
# seconds.
_SIZE_BUCKETS, _CELL_BUCKETS = 155, 118
_BINS = 100
_ROUNDED_TO = 60
# ClusteringPrefix.Kind
_CLUSTERING, _INCLUSIVE_START, _INCLUSIVE_END = 4, 1, 6
_NO_POSITION = struct.pack(">qi", -1, 0)
_LONGEST = (1 << 31) - 1
# HyperLogLogPlus(13, 25) of stream-lib: 2^13 registers of 5 bits, six in each number of 32 bits.
_PRECISION, _SPARSE_PRECISION = 13, 25


@functools.cache
def _histogram_offsets(buckets: int) -> np.ndarray:
    """Return the upper bounds of a histogram's buckets (`EstimatedHistogram.newOffsets`)."""
    found = [1]
    while len(found) < buckets:
        found.append(max(found[-1] + 1, math.floor(found[-1] * 1.2 + 0.5)))
    return np.array(found, np.int64)


class Collected:
    """What is known of the partitions that were written so far."""

    def __init__(self) -> None:
        self._sizes = np.zeros(_SIZE_BUCKETS + 1, np.int64)
        self._cells = np.zeros(_CELL_BUCKETS + 1, np.int64)
        self._deleted: dict[int, int] = {}
        self._registers = np.zeros(1 << _PRECISION, np.int64)

    def add(self, finished: np.ndarray, deletion_times: np.ndarray) -> None:
        """Add finished partitions, and deletion times and expiries (seconds)."""
        self._sizes += _counts(finished[:, K.PARTITION_BYTES], _SIZE_BUCKETS)
        self._cells += _counts(finished[:, K.PARTITION_CELLS], _CELL_BUCKETS)
        times, counts = np.unique(-(-deletion_times // _ROUNDED_TO) * _ROUNDED_TO, return_counts=True)
        for time, count in zip(times.tolist(), counts.tolist(), strict=True):
            self._deleted[time] = self._deleted.get(time, 0) + count
        if len(self._deleted) > 10 * _BINS:
            self._deleted = dict(_merged(self._deleted))
        hashes = finished[:, K.ESTIMATE_HASH].astype(np.uint64)
        rest = hashes << np.uint64(_PRECISION) | np.uint64(1 << (_PRECISION - 1))
        # The number of leading zeros of a number is 63 less the exponent of its highest bit.
        exponents = np.frexp((rest >> np.uint64(11)).astype(np.float64))[1] + 10
        at = (hashes >> np.uint64(64 - _PRECISION)).astype(np.int64)
        np.maximum.at(self._registers, at, 64 - exponents)

    def histograms(self) -> bytes:
        """Return the histograms of partition sizes and of cells per partition."""
        return b"".join(map(_histogram, (self._sizes, self._cells)))

    def deletion_times(self, *, unsigned: bool) -> bytes:
        """Return the histogram of deletion times (`TombstoneHistogram`)."""
        bins = sorted(_merged(self._deleted))
        code = ">qi" if unsigned else ">dq"
        packed = (struct.pack(code, time, min(count, _LONGEST)) for time, count in bins)
        return struct.pack(">ii", len(bins), len(bins)) + b"".join(packed)

    def cardinality(self) -> bytes:
        """Return the estimate of the number of keys (`HyperLogLogPlus.getBytes`)."""
        words = np.zeros(-(-len(self._registers) // 6) * 6, np.int64)
        words[: len(self._registers)] = np.minimum(self._registers, 31)
        packed = (words.reshape(-1, 6) << (5 * np.arange(6))).sum(axis=1)
        data = packed.astype(">u4").tobytes()
        return struct.pack(">i", -2) + b"".join(map(_varint, (_PRECISION, _SPARSE_PRECISION, 0, len(data)))) + data


def _counts(numbers: np.ndarray, buckets: int) -> np.ndarray:
    return np.bincount(np.searchsorted(_histogram_offsets(buckets), numbers), minlength=buckets + 1)


def _merged(counts: dict[int, int]) -> Iterable[tuple[int, int]]:
    """Merge neighbouring times until there are few enough."""
    bins = sorted(counts.items())
    while len(bins) > _BINS:
        step = -(-len(bins) // _BINS)
        groups = [bins[i : i + step] for i in range(0, len(bins), step)]
        bins = [(group[-1][0], sum(count for _, count in group)) for group in groups]
    return bins


def _varint(value: int) -> bytes:
    """Write a number as stream-lib does: seven bits per byte, the lowest first."""
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(found) + bytes([value])


def _histogram(counts: np.ndarray) -> bytes:
    offsets = _histogram_offsets(len(counts) - 1)
    lines = np.stack([np.concatenate([offsets[:1], offsets]), counts], axis=1)
    return struct.pack(">i", len(counts)) + lines.astype(">i8").tobytes()


@dataclass(frozen=True)
class Written:
    """What Statistics.db records of a finished SSTable. `type_name` names the types of columns. `first` and `last` are
    the first and the last partition key.
    `smallest` and `largest` are clusterings as prefixes: kind, for a bound the size, and the values. They are None if
    there is neither a row nor a bound.
    """

    state: np.ndarray
    type_name: Callable[[CqlType], str]
    collected: Collected
    compression_ratio: float
    filter_chance: float
    first: bytes
    last: bytes
    smallest: bytes | None
    largest: bytes | None


def statistics(schema: TableSchema, features: Features, written: Written) -> bytes:
    """Return the contents of Statistics.db."""
    components = [
        (0, _text(PARTITIONER.encode()) + struct.pack(">d", written.filter_chance)),
        (1, _with_length(written.collected.cardinality())),
        (2, _stats(schema, features, written)),
        (3, _header(schema, written)),
    ]
    checksum = features.metadata_checksum
    count = struct.pack(">i", len(components))
    offset = 4 + 8 * len(components) + (8 if checksum else 0)
    contents = b""
    for kind, body in components:
        contents += struct.pack(">ii", kind, offset)
        offset += len(body) + (4 if checksum else 0)
    crc = zlib.crc32(count)
    parts = [count, _crc(crc), contents, _crc(zlib.crc32(contents, crc))]
    for _, body in components:
        parts += [body, _crc(zlib.crc32(body))]
    return b"".join(parts if checksum else parts[::2])


def _crc(value: int) -> bytes:
    return struct.pack(">I", value)


def _text(data: bytes) -> bytes:
    return struct.pack(">H", len(data)) + data


def _with_length(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def _with_vint(data: bytes) -> bytes:
    return vint(len(data)) + data


def _header(schema: TableSchema, written: Written) -> bytes:
    base = [int(written.state[n]) for n in (K.BASE_WRITE_TIME, K.BASE_DELETION_TIME, K.BASE_TTL)]
    parts = [vint(base[0] - TIMESTAMP_EPOCH & (1 << 64) - 1), vint(base[1] - DELETION_TIME_EPOCH & (1 << 64) - 1)]
    parts += [vint(base[2]), _with_vint(_key_type(schema, written).encode()), _clustering_types(schema, written)]
    for columns in (schema.static, schema.regular):
        ordered = storage_order(columns)
        parts.append(vint(len(ordered)))
        parts += [_with_vint(c.name.encode()) + _with_vint(written.type_name(c.type).encode()) for c in ordered]
    return b"".join(parts)


def _key_type(schema: TableSchema, written: Written) -> str:
    types = [written.type_name(c.type) for c in schema.partition_key]
    return types[0] if len(types) == 1 else f"{MARSHAL}CompositeType({','.join(types)})"


def _clustering_types(schema: TableSchema, written: Written) -> bytes:
    names = [written.type_name(c.type) for c in schema.clustering]
    names = [f"{MARSHAL}ReversedType({n})" if c.reversed else n for n, c in zip(names, schema.clustering, strict=True)]
    return vint(len(names)) + b"".join(_with_vint(name.encode()) for name in names)


def _stats(schema: TableSchema, features: Features, written: Written) -> bytes:
    state, unsigned = written.state, features.unsigned_deletion_time
    most = 0xFFFFFFFF if unsigned else _LONGEST
    has_deletions = state[K.MIN_DELETION_TIME] <= state[K.MAX_DELETION_TIME]
    smallest = int(state[K.MIN_DELETION_TIME]) if has_deletions else most
    # What never expires has the largest number.
    largest = most if state[K.SOME_LIVE] or not has_deletions else int(state[K.MAX_DELETION_TIME])
    largest_ttl = max(0, int(state[K.MAX_TTL]))
    parts = [
        written.collected.histograms(),
        _NO_POSITION,
        struct.pack(">qq", int(state[K.MIN_WRITE_TIME]), int(state[K.MAX_WRITE_TIME])),
        struct.pack(">II", min(smallest, most), min(largest, most)),
        struct.pack(">ii", min(int(state[K.MIN_TTL]), largest_ttl), largest_ttl),
        struct.pack(">d", written.compression_ratio),
        written.collected.deletion_times(unsigned=unsigned),
        struct.pack(">iq", 0, 0),
    ]
    if features.compact_partition_deletion:
        parts.append(_clustering_types(schema, written))
        parts.append(_bound(schema.clustering, written.smallest, _INCLUSIVE_START))
        parts.append(_bound(schema.clustering, written.largest, _INCLUSIVE_END))
    else:
        parts += [_bound_values(schema.clustering, prefix) for prefix in (written.smallest, written.largest)]
    parts.append(struct.pack(">?qq", False, int(state[K.COLUMN_COUNT]), int(state[K.ROW_COUNT])))
    parts += [_NO_POSITION, struct.pack(">i", 0)]
    if features.metadata_checksum:
        # No pending repair, not transient.
        parts.append(b"\0\0")
    # No host.
    parts.append(b"\0")
    if features.compact_partition_deletion:
        parts.append(struct.pack(">?", bool(state[K.PARTITION_DELETIONS])))
        parts += [_with_vint(written.first), _with_vint(written.last), struct.pack(">d", math.nan)]
    return b"".join(parts)


def _bound(clustering: Sequence[Column], prefix: bytes | None, kind: int) -> bytes:
    """Return a clustering prefix as a bound."""
    if prefix is None:
        return struct.pack(">BH", kind, 0)
    if prefix[0] != _CLUSTERING:
        return prefix
    return struct.pack(">BH", kind, len(clustering)) + prefix[1:]


def _bound_values(clustering: Sequence[Column], prefix: bytes | None) -> bytes:
    """Return the values of a clustering prefix, each with its length (2 bytes), up to the first null."""
    if prefix is None:
        return struct.pack(">i", 0)
    size, p = (len(clustering), 1) if prefix[0] == _CLUSTERING else (int.from_bytes(prefix[1:3], "big"), 3)
    values: list[bytes] = []
    header = 0
    for i in range(size):
        if i % 32 == 0:
            header, p = read_vint(prefix, p)
        kind = header >> 2 * (i % 32) & 3
        if kind & 2:
            break
        length = 0
        if kind == 0:
            fixed = clustering[i].type.fixed_length
            length, p = (fixed, p) if fixed is not None else read_vint(prefix, p)
        values.append(prefix[p : p + length])
        p += length
    return struct.pack(">i", len(values)) + b"".join(map(_text, values))
