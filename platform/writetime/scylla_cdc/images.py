"""Compares pre- and postimages with the changes. An image is a row as ScyllaDB read it before or after a write.

Images are not reliable: they are read without a lock, so with concurrent writers they may be stale, or show later
writes. But if no change explains a value in an image, and no newer change replaces it, writes may be missing, as when
CDC was off for a while. No log can show this fault.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from writetime.changes.model import field_name
from writetime.changes.position import PARTITION_POSITION, STATIC_POSITION, position_encoder
from writetime.core.arrow import pc
from writetime.core.instants import UUID_EPOCH
from writetime.merge import merge
from writetime.merge.value_order import plain
from writetime.schema.columnar import decode
from writetime.schema.mapping import stored_type
from writetime.schema.table import TableSchema
from writetime.schema.types import is_complex
from writetime.scylla_cdc import log as L
from writetime.scylla_cdc.column_history import History
from writetime.scylla_cdc.deltas import LogRows

_KINDS = {L.PREIMAGE: "preimage", L.POSTIMAGE: "postimage"}


@dataclass(frozen=True)
class Disagreement:
    """A cell whose values in an image and in the changes differ. `write_time` is that of the image (microseconds)."""

    kind: str
    stream: bytes
    write_time: int
    key: bytes
    position: bytes
    column: str
    image: Any
    changes: Any


class Images:
    """Builds images from the image rows of a log: the row, the write and the values of simple columns."""

    def __init__(self, schema: TableSchema, history: History) -> None:
        self.table = schema
        self._history = history
        self._simple = [c for c in schema.static + schema.regular if not is_complex(c.type)]
        self._position = position_encoder(schema.clustering)
        fields: list[tuple[str, pa.DataType]] = [("kind", pa.string()), ("stream", pa.binary())]
        fields += [("write_time", pa.int64())]
        fields += [("key", pa.binary()), ("position", pa.binary())]
        fields += [(field_name(c), stored_type(c.type)) for c in self._simple]
        self.schema = pa.schema(fields)

    @property
    def columns(self) -> list[str]:
        """The log's columns that are needed."""
        names = [L.STREAM, L.TIME, L.SEQUENCE, L.OPERATION, L.TTL, L.END_OF_BATCH]
        names += [c.name for c in self.table.partition_key + self.table.clustering]
        return names + [c.name for c in self._simple]

    def convert(self, page: pa.RecordBatch, captured_at: datetime) -> pa.RecordBatch:
        """Return the images among some rows."""
        del captured_at
        operations = L.operations(page)
        kept = self._history.readable_images(page, operations)
        work = LogRows(self.table, page.filter(pa.array(kept)), operations[kept], page.slice(0, 0), operations[:0])
        kinds = pa.array([_KINDS[o] for o in operations[kept].tolist()], pa.string())
        values = [decode(work.page[c.name], c.type) for c in self._simple]
        arrays = [kinds, work.page[L.STREAM], pa.array(work.times), work.keys, work.positions(self._position), *values]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def disagreements(images: Iterable[pa.RecordBatch], changes: pa.Table, schema: TableSchema) -> Iterator[Disagreement]:
    """Compare images with the merge of all known changes of the table.

    A cell is not compared if a newer write or deletion replaced it, or if it expires. For a preimage, only the cells
    that it shows are compared, because it does not show each column.
    """
    return _disagreements(images, changes, schema)


def contradictions(
    images: pa.RecordBatch, changes: pa.Table, schema: TableSchema, preimages_since: int | None = 0
) -> Iterator[Disagreement]:
    """Compare postimages with the changes of the same writes, without those of other writes.

    The cells that a write sets are in its postimage, regardless of the row's earlier content and of other writers,
    because ScyllaDB's `cdc/log.cc` applies the delta to the row that it read before, without regard to write times.

    Other columns are compared only if the write is an insert without values and has no preimage. Then the row was new,
    and the values in the postimage were not logged, because `delta` was `keys`. A null in such a column means nothing,
    because another write with an earlier write time may have come later. A row that two writes set at the same time is
    not compared.

    Args:
        images: the images of some groups of the log.
        changes: the changes of the same groups.
        schema: the table.
        preimages_since: the write time since which the table has had preimages, or None if it has none. Without them,
            nothing shows whether a row was new. A preimage among `images` shows that there were some by then.
    """
    writes = _Writes(images, changes, schema, preimages_since)

    def is_compared(image: _Place, cell: dict[str, Any] | None, shown: Any) -> bool:
        if writes.count(image) != 1:
            return False
        if cell is not None and cell["write_time"] == image[2]:
            return True
        return shown is not None and image in writes.bare_inserts

    postimages = images.filter(pc.equal(images["kind"], "postimage"))
    return _disagreements([postimages], changes, schema, is_compared)


def _disagreements(
    images: Iterable[pa.RecordBatch], changes: pa.Table, schema: TableSchema, is_compared: "_IsCompared | None" = None
) -> Iterator[Disagreement]:
    state = _State(merge([changes], schema), schema)
    simple = {field_name(c): c in schema.static for c in schema.static + schema.regular if not is_complex(c.type)}
    for batch in images:
        columns = {name: plain(batch[name]).to_pylist() for name in batch.schema.names if name in simple}
        rows = zip(*(batch[n].to_pylist() for n in ("kind", "stream", "write_time", "key", "position")), strict=True)
        for i, (kind, stream, time, key, position) in enumerate(rows):
            if state.deleted_at(key, position) >= time:
                continue
            for name, values in columns.items():
                if simple[name] != (position == STATIC_POSITION) or (kind == "preimage" and values[i] is None):
                    continue
                cell = state.cell(key, position, name)
                newest = time if kind == "postimage" else time - 1
                if cell is not None and (cell["write_time"] > newest or cell["ttl"] is not None):
                    continue
                known = None if cell is None else cell["value"]
                if repr(known) == repr(values[i]):
                    continue
                if is_compared is None or is_compared((key, position, time), cell, values[i]):
                    yield Disagreement(kind, stream, time, key, position, name, values[i], known)


class _Writes:
    """The writes that some changes belong to: a write is one group of the log, which `origin.file` names."""

    def __init__(
        self, images: pa.RecordBatch, changes: pa.Table, schema: TableSchema, preimages_since: int | None
    ) -> None:
        places = list(zip(*(changes[n].to_pylist() for n in ("key", "position")), strict=True))
        files = changes["origin"].combine_chunks().field("file").to_pylist()
        times = {file: _write_time(file) for file in set(files)}
        self._files: dict[_Place, set[str]] = {}
        for (key, position), file in zip(places, files, strict=True):
            self._files.setdefault((key, position, times[file]), set()).add(file)
        written = np.zeros(len(changes), bool)
        for column in schema.static + schema.regular:
            written |= changes[field_name(column)].is_valid().to_numpy()
        inserted = changes["marker"].is_valid().to_numpy()
        rows = zip(*(images[n].to_pylist() for n in ("key", "position", "write_time")), strict=True)
        shown = list(zip(images["kind"].to_pylist(), rows, strict=True))
        existed = {place for kind, place in shown if kind == "preimage"}
        self._postimages = Counter(place for kind, place in shown if kind == "postimage")
        values = {(*places[i], times[files[i]]) for i in np.flatnonzero(written).tolist()}
        since = None if preimages_since is None else min([preimages_since, *(place[2] for place in existed)])
        made = {(*places[i], times[files[i]]) for i in np.flatnonzero(inserted).tolist()} - values - existed
        self.bare_inserts = {place for place in made if since is not None and place[2] >= since}
        """Rows made by an insert that sets no column and has no preimage, at a time when there were preimages."""

    def count(self, place: "_Place") -> int:
        """Return how many writes there were to a row at a time. A write that sets nothing has only its postimage."""
        return max(len(self._files.get(place, ())), self._postimages[place])


# A row's key and position, and the write time of an image.
_Place = tuple[bytes, bytes, int]
# Takes the place of an image, the cell that the changes have of a column, and the value that the image shows.
_IsCompared = Callable[[_Place, dict[str, Any] | None, Any], bool]


def _write_time(file: str) -> int:
    """Return the write time of the group of the log that `origin.file` names."""
    return (UUID(file.rpartition("/")[2]).time - UUID_EPOCH) // 10


class _State:
    """Cells and deletions of a merged state, by place."""

    def __init__(self, state: pa.Table, schema: TableSchema) -> None:
        self._rows: dict[tuple[bytes, bytes], int] = {}
        self._ranges: dict[bytes, list[tuple[bytes, bytes, int]]] = {}
        self._deleted: dict[tuple[bytes, bytes], int] = {}
        places = [state[n].to_pylist() for n in ("kind", "key", "position", "end")]
        times = state["tombstone"].combine_chunks().field("write_time").to_pylist()
        for i, (kind, key, position, end) in enumerate(zip(*places, strict=True)):
            if kind == "range_tombstone":
                self._ranges.setdefault(key, []).append((position, end, times[i]))
            else:
                self._rows[key, position] = i
                if times[i] is not None:
                    self._deleted[key, position] = times[i]
        self._cells = {
            field_name(c): plain(state[field_name(c)].combine_chunks()).to_pylist()
            for c in schema.static + schema.regular
            if not is_complex(c.type)
        }

    def deleted_at(self, key: bytes, position: bytes) -> int:
        """Return the write time of the newest deletion of a place."""
        times = [self._deleted.get((key, p)) for p in (PARTITION_POSITION, position)]
        times += [time for first, end, time in self._ranges.get(key, []) if first <= position < end]
        return max((t for t in times if t is not None), default=-(1 << 63))

    def cell(self, key: bytes, position: bytes, name: str) -> dict[str, Any] | None:
        """Return the cell of a column at a place."""
        row = self._rows.get((key, position))
        return None if row is None else self._cells[name][row]
