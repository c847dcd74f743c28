"""A file of changes, a level of the state, or the places of a file of the view, decoded into Arrow and mapped into
memory.

The rows are in the order of the database, so they are searched in place: the token column for ranges of tokens, and
token, key and position for rows. Only the pages with rows that are used are read.

The parts of a decoded file, in order:

| part | content |
| --- | --- |
| Arrow IPC file | the rows, in batches |
| expiries | the seconds at which data expires, and the row of each (`expiries`) |
| footer | JSON that describes the batches |
| end | the length and the CRC-32 of the footer, and `MAGIC` |

The CRC-32 of each batch, and that of the expiries, is compared at the first use.
"""

import functools
import itertools
import json
import struct
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from writetime.core.arrow import take_rows
from writetime.core.errors import naming
from writetime.delta.parquet import PLACE, sizes_of_groups
from writetime.files.expiries import Expiries, expiries_of, joined
from writetime.files.key_ranges import KeyRanges, SortedBatch

VERSION = 2
MAGIC = b"WTDECODE"
_TAIL = struct.Struct("<II8s")
# Bytes of a batch. A larger batch needs more memory to decode, and more time to check. A batch of changes searches each
# of smaller ones, and takes rows from each.
BATCH_BYTES = 256 << 20


class DamagedDecodedFile(Exception):
    """A decoded file that is incomplete, changed, or of another version."""


@dataclass(frozen=True)
class _Batch:
    """The place of a batch in its file, and its tokens."""

    start: int
    size: int
    rows: int
    crc: int
    first: int
    last: int


class Decoded:
    """The rows of one file, in order. A method raises `DamagedDecodedFile` if a part of the file that is used for the
    first time has changed since it was written.

    `ends` and `counts` are the tokens and the rows of each batch, `load` reads a batch, and `expiries` reads those of
    the file. `memory` is the bytes of memory that the rows take, apart from mapped files.
    """

    def __init__(
        self,
        ends: list[tuple[int, int]],
        counts: list[int],
        load: Callable[[int], pa.RecordBatch],
        expiries: Callable[[], Expiries],
        memory: int = 0,
    ) -> None:
        self.memory = memory
        self._ends = ends
        self._starts = np.cumsum([0, *counts])
        self._batch = batch = functools.cache(load)
        self._sorted = functools.cache(lambda number: SortedBatch(batch(number)))
        self._expiries = functools.cache(expiries)

    def between(self, first: int, last: int) -> list[pa.RecordBatch]:
        """Return the rows with tokens from a first one to a last one, in order."""
        found = []
        for number, (least, greatest) in enumerate(self._ends):
            if first <= greatest and least <= last:
                batch = self._batch(number)
                held = batch.column("token").to_numpy()
                start, end = np.searchsorted(held, first), np.searchsorted(held, last, "right")
                if start < end:
                    found.append(batch.slice(start, end - start))
        return found

    def rows(self, places: KeyRanges) -> list[pa.RecordBatch]:
        """Return the rows that a merge at these places needs, in order: see `SortedBatch.rows`."""
        return [take_rows(self._batch(number), rows) for number, rows in self._at(places)]

    def numbers(self, places: KeyRanges) -> list[tuple[np.ndarray, pa.RecordBatch]]:
        """Return the result of `rows`, with the index in the file of each row."""
        return [(rows + self._starts[n], take_rows(self._batch(n), rows)) for n, rows in self._at(places)]

    def count(self, places: KeyRanges) -> int:
        """Return the number of the rows that `rows` returns."""
        return sum(len(rows) for _, rows in self._at(places))

    def narrowed(self, places: KeyRanges, count: int) -> KeyRanges:
        """Return whole partitions, each narrowed to about `count` rows at most, see `SortedBatch.narrowed`."""
        for number, ends in enumerate(self._ends):
            if len(places.within(ends).tokens):
                places = self._sorted(number).narrowed(places, count)
        return places

    def expiring(self, after: int, until: int) -> list[pa.RecordBatch]:
        """Return the rows where data expires in `after` < t <= `until` (seconds), in order."""
        rows = self._expiries().due(after, until)
        found = []
        for number, (start, end) in enumerate(itertools.pairwise(self._starts)):
            own = rows[np.searchsorted(rows, start) : np.searchsorted(rows, end)]
            if len(own):
                found.append(take_rows(self._batch(number), own - start))
        return found

    def next_expiry(self, after: int) -> int | None:
        """Return the first second after this one at which data expires; None if there is none."""
        return self._expiries().next_after(after)

    def _at(self, places: KeyRanges) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the rows that a merge at these places needs, for each batch with such rows."""
        for number, ends in enumerate(self._ends):
            wanted = places.within(ends)
            if len(wanted.tokens) and len(rows := self._sorted(number).rows(wanted)):
                yield number, rows


def decode(source: pq.ParquetFile) -> Decoded:
    """Return the rows of a file of the lake, in memory."""
    return in_memory(list(_batches(source, BATCH_BYTES)))


def in_memory(batches: list[pa.RecordBatch]) -> Decoded:
    """Return the rows of these batches, which are in order."""
    counts = [batch.num_rows for batch in batches]
    starts = itertools.accumulate(counts, initial=0)
    expiries = joined([expiries_of(batch, start) for batch, start in zip(batches, starts, strict=False)])
    memory = sum(batch.nbytes for batch in batches)
    return Decoded(list(map(_ends, batches)), counts, batches.__getitem__, lambda: expiries, memory)


def write(source: pq.ParquetFile, path: Path, size: int, batch_bytes: int = BATCH_BYTES) -> None:
    """Decode a file of the lake of this size (bytes) into a file. It appears complete, or not at all."""
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    try:
        places: list[dict[str, int]] = []
        found = []
        with naming(path), pa.OSFile(str(part), "wb") as sink, pa.ipc.new_file(sink, _fields(source)) as writer:
            for batch in _batches(source, batch_bytes):
                found.append(expiries_of(batch, sum(place["rows"] for place in places)))
                start = sink.tell()
                writer.write_batch(batch)
                first, last = _ends(batch)
                place = {"start": start, "size": sink.tell() - start, "rows": batch.num_rows}
                places.append(place | {"first": first, "last": last})
                # Else two batches would be in memory.
                del batch
        expiries = joined(found)
        with pa.memory_map(str(part)) as mapped:
            data = mapped.read_buffer()
            # Aligned, so that numpy searches them in place.
            behind = [bytes(-data.size % 8), pa.py_buffer(expiries.seconds), pa.py_buffer(expiries.rows)]
            footer = _footer(data, places, size, len(expiries.rows), functools.reduce(_crc, behind, 0))
        with naming(path), part.open("ab") as file:
            file.writelines([*behind, footer])
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def read(path: Path, size: int | None) -> Decoded:
    """Map a decoded file, made from a file of this size (bytes), or of any. If it is not complete, unchanged and of
    this version, that is a DamagedDecodedFile, and if it cannot be read, an OSError.
    """
    try:
        with pa.memory_map(str(path)) as file:
            # The memory stays mapped as long as its rows are used, even if the file is deleted.
            data = file.read_buffer()
        length, crc, magic = _TAIL.unpack(data[-_TAIL.size :])
        behind = data.size - _TAIL.size - length
        text = data.slice(max(behind, 0), length)
        if magic != MAGIC or behind < 0 or zlib.crc32(text) != crc:
            raise DamagedDecodedFile
        footer = json.loads(text.to_pybytes())
        end, expiries = footer["end"], footer["expiries"]
        start = end + -end % 8
        if footer["version"] != VERSION or size not in {None, footer["size"]} or behind != start + 16 * expiries:
            raise DamagedDecodedFile
        batches = [_Batch(**batch) for batch in footer["batches"]]
        arrow = data.slice(0, end)
        if _crc_of_rest(arrow, batches) != footer["crc_of_rest"]:
            raise DamagedDecodedFile
        reader = pa.ipc.open_file(arrow)
        if reader.num_record_batches != len(batches):
            raise DamagedDecodedFile
    except (struct.error, ValueError, LookupError, TypeError, pa.ArrowException) as e:
        raise DamagedDecodedFile from e

    def batch(number: int) -> pa.RecordBatch:
        place = batches[number]
        if zlib.crc32(arrow.slice(place.start, place.size)) != place.crc:
            raise DamagedDecodedFile
        return reader.get_batch(number)

    def index() -> Expiries:
        if zlib.crc32(data.slice(end, behind - end)) != footer["crc_of_expiries"]:
            raise DamagedDecodedFile
        seconds, rows = np.frombuffer(data.slice(start, 16 * expiries), np.int64).reshape(2, -1)
        return Expiries(seconds, rows)

    return Decoded([(b.first, b.last) for b in batches], [b.rows for b in batches], batch, index)


def _footer(data: pa.Buffer, places: list[dict[str, int]], size: int, expiries: int, crc_of_expiries: int) -> bytes:
    batches = [_Batch(**p, crc=zlib.crc32(data.slice(p["start"], p["size"]))) for p in places]
    footer = {
        "version": VERSION,
        "size": size,
        "end": data.size,
        "expiries": expiries,
        "crc_of_expiries": crc_of_expiries,
        "crc_of_rest": _crc_of_rest(data, batches),
        "batches": [vars(batch) for batch in batches],
    }
    text = json.dumps(footer).encode()
    return text + _TAIL.pack(len(text), zlib.crc32(text), MAGIC)


def _crc(before: int, part: bytes | pa.Buffer) -> int:
    return zlib.crc32(part, before)


def _crc_of_rest(data: pa.Buffer, batches: list[_Batch]) -> int:
    """Return the CRC-32 of the bytes before the first batch and after the last one."""
    start = batches[0].start if batches else data.size
    end = batches[-1].start + batches[-1].size if batches else data.size
    return zlib.crc32(data.slice(end, data.size - end), zlib.crc32(data.slice(0, start)))


def _batches(source: pq.ParquetFile, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file in batches of at most `batch_bytes`, or of one larger row group."""
    groups: list[int] = []
    size = 0
    fields = _fields(source)
    has_places = PLACE in source.schema_arrow.names
    sizes = sizes_of_groups(source.metadata)
    for group, own in enumerate(sizes):
        groups.append(group)
        size += own
        if group == len(sizes) - 1 or size + sizes[group + 1] > batch_bytes:
            # One after the other, because a column is in memory twice while its chunks are combined.
            arrays = (
                _column(source, groups, PLACE).flatten()
                if has_places
                else [_column(source, groups, name) for name in fields.names]
            )
            # With these fields, rows of files that differ only in their metadata are alike, and are merged together.
            batches = [batch for batch in pa.table(arrays, fields).to_batches() if batch.num_rows]
            del arrays
            while batches:
                yield batches.pop(0)
            groups, size = [], 0


def _column(source: pq.ParquetFile, groups: Sequence[int], name: str) -> pa.ChunkedArray:
    """Return a column of some row groups, in as few chunks as Arrow can hold."""
    # A task has one core.
    return source.read_row_groups(groups, [name], use_threads=False).combine_chunks()[name]


def _fields(source: pq.ParquetFile) -> pa.Schema:
    fields = source.schema_arrow
    return pa.schema(list(fields.field(PLACE).type)) if PLACE in fields.names else fields.remove_metadata()


def _ends(batch: pa.RecordBatch) -> tuple[int, int]:
    tokens = batch.column("token")
    return tokens[0].as_py(), tokens[-1].as_py()
