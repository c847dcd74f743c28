"""A file of changes, or a level of the state, decoded into Arrow and mapped into memory.

The rows are in the order of the database, so their token column is the index: two binary searches find the rows of a
token. Only the pages of rows that are used are read.

A decoded file holds the Arrow IPC file, then the footer as JSON, then the footer's length and CRC-32 and `MAGIC`. The
footer describes the batches; the CRC-32 of each is compared when the batch is first used.
"""

import json
import struct
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from writetime.core.arrow import take

VERSION = 1
MAGIC = b"WTDECODE"
_TAIL = struct.Struct("<II8s")
# Fields of changes that hold when data ends, at any depth. A column may have such a name, too: it ends more often then.
ENDS = ("expiry", "deletion_time")
# Bytes of a batch. A larger one takes more memory to decode; smaller ones, more searches.
BATCH_BYTES = 128 << 20


class Damaged(Exception):
    """A decoded file that is incomplete, changed, or of another version."""


@dataclass(frozen=True)
class _Batch:
    """Where a batch is in its file, and its tokens."""

    start: int
    size: int
    crc: int
    first: int
    last: int


class Decoded:
    """The rows of one file. In `ending`, it has the first and the last second in which data of it expires or was
    deleted; None if there is no such data.
    """

    def __init__(self, batches: list[pa.RecordBatch], ending: tuple[int, int] | None) -> None:
        self.ending = ending
        self._batches = batches
        self._ends = [_ends(batch) for batch in batches]

    @property
    def memory(self) -> int:
        """The bytes of memory that the rows take, apart from mapped files."""
        return sum(batch.nbytes for batch in self._batches)

    def rows(self, tokens: np.ndarray) -> list[pa.RecordBatch]:
        """Return the rows with these tokens (sorted, each once), in order.

        Raises:
            Damaged: a part of the file that is used for the first time has changed since it was written.
        """
        found = []
        for number, (first, last) in enumerate(self._ends):
            wanted = tokens[np.searchsorted(tokens, first) : np.searchsorted(tokens, last, "right")]
            if not len(wanted):
                continue
            batch = self._batch(number)
            held = batch.column("token").to_numpy()
            starts, ends = np.searchsorted(held, wanted), np.searchsorted(held, wanted, "right")
            if len(wanted) == 1:
                part = batch.slice(starts[0], ends[0] - starts[0])
            else:
                rows = _indices(starts, ends - starts)
                part = pa.RecordBatch.from_arrays([take(c, rows) for c in batch.columns], schema=batch.schema)
            if part.num_rows:
                found.append(part)
        return found

    def _batch(self, number: int) -> pa.RecordBatch:
        return self._batches[number]


class _Mapped(Decoded):
    """The rows of a decoded file that is mapped into memory."""

    def __init__(self, data: pa.Buffer, batches: list[_Batch], ending: tuple[int, int] | None) -> None:
        self.ending = ending
        self._data = data
        self._places = batches
        self._ends = [(batch.first, batch.last) for batch in batches]
        self._batches = []
        self._reader: Any = pa.ipc.open_file(data)
        self._used: dict[int, pa.RecordBatch] = {}
        if self._reader.num_record_batches != len(batches):
            raise Damaged

    def _batch(self, number: int) -> pa.RecordBatch:
        if number not in self._used:
            place = self._places[number]
            if zlib.crc32(self._data.slice(place.start, place.size)) != place.crc:
                raise Damaged
            self._used[number] = self._reader.get_batch(number)
        return self._used[number]


def decode(source: pq.ParquetFile) -> Decoded:
    """Return the rows of a file of the lake, in memory."""
    return Decoded(list(_batches(source, BATCH_BYTES)), _ending(source.metadata))


def write(source: pq.ParquetFile, path: Path, size: int, batch_bytes: int = BATCH_BYTES) -> None:
    """Decode a file of the lake of this size (bytes) into a file. It appears complete, or not at all."""
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    try:
        places = []
        with pa.OSFile(str(part), "wb") as sink, pa.ipc.new_file(sink, source.schema_arrow) as writer:
            for batch in _batches(source, batch_bytes):
                start = sink.tell()
                writer.write_batch(batch)
                places.append((start, sink.tell() - start, *_ends(batch)))
        with pa.memory_map(str(part)) as mapped:
            footer = _footer(mapped.read_buffer(), places, size, _ending(source.metadata))
        with part.open("ab") as file:
            file.write(footer)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def read(path: Path, size: int) -> Decoded:
    """Map a decoded file, made from a file of this size (bytes).

    Raises:
        Damaged: see the class.
        OSError: the file cannot be read.
    """
    try:
        with pa.memory_map(str(path)) as file:
            # The memory stays mapped as long as its rows are used, even if the file is deleted.
            data = file.read_buffer()
        length, crc, magic = _TAIL.unpack(data[-_TAIL.size :])
        end = data.size - _TAIL.size - length
        text = data.slice(max(end, 0), length)
        if magic != MAGIC or end < 0 or zlib.crc32(text) != crc:
            raise Damaged
        footer = json.loads(text.to_pybytes())
        if footer["version"] != VERSION or footer["size"] != size or footer["end"] != end:
            raise Damaged
        batches = [_Batch(**batch) for batch in footer["batches"]]
        arrow = data.slice(0, end)
        if _crc_of_rest(arrow, batches) != footer["crc_of_rest"]:
            raise Damaged
        return _Mapped(arrow, batches, footer["ending"] and tuple(footer["ending"]))
    except (struct.error, ValueError, LookupError, TypeError, pa.ArrowException) as e:
        raise Damaged from e


def _footer(
    data: pa.Buffer, places: list[tuple[int, int, int, int]], size: int, ending: tuple[int, int] | None
) -> bytes:
    batches = [
        _Batch(start, length, zlib.crc32(data.slice(start, length)), first, last)
        for start, length, first, last in places
    ]
    footer = {
        "version": VERSION,
        "size": size,
        "end": data.size,
        "ending": ending,
        "crc_of_rest": _crc_of_rest(data, batches),
        "batches": [vars(batch) for batch in batches],
    }
    text = json.dumps(footer).encode()
    return text + _TAIL.pack(len(text), zlib.crc32(text), MAGIC)


def _crc_of_rest(data: pa.Buffer, batches: list[_Batch]) -> int:
    """Return the CRC-32 of what comes before the first batch and after the last one."""
    start = batches[0].start if batches else data.size
    end = batches[-1].start + batches[-1].size if batches else data.size
    return zlib.crc32(data.slice(end, data.size - end), zlib.crc32(data.slice(0, start)))


def _batches(source: pq.ParquetFile, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file in batches of about so many bytes."""
    groups: list[int] = []
    size = 0
    for group in range(source.num_row_groups):
        groups.append(group)
        size += source.metadata.row_group(group).total_byte_size
        if size >= batch_bytes or group == source.num_row_groups - 1:
            # A task has one core.
            table = source.read_row_groups(groups, use_threads=False).combine_chunks()
            yield from (batch for batch in table.to_batches() if batch.num_rows)
            groups, size = [], 0


def _ending(metadata: pq.FileMetaData) -> tuple[int, int] | None:
    """Return `Decoded.ending` by the statistics of a Parquet file; all times if one is missing."""
    schema = metadata.schema
    columns = [c for c in range(metadata.num_columns) if schema.column(c).path.rpartition(".")[2] in ENDS]
    columns = [c for c in columns if schema.column(c).physical_type == "INT64"]
    found = [metadata.row_group(g).column(c).statistics for g in range(metadata.num_row_groups) for c in columns]
    if any(statistics is None for statistics in found):
        return -(1 << 63), (1 << 63) - 1
    held = [statistics for statistics in found if statistics.has_min_max]
    return (min(s.min for s in held), max(s.max for s in held)) if held else None


def _ends(batch: pa.RecordBatch) -> tuple[int, int]:
    tokens = batch.column("token")
    return tokens[0].as_py(), tokens[-1].as_py()


def _indices(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the numbers of several ranges."""
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(counts.sum())
