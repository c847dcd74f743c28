"""Compares pre- and postimages with the changes. An image is a row as ScyllaDB read it before or after a write.

Images are not reliable: they are read without a lock, so with concurrent writers they may be stale, or show later
writes. But if no change explains a value in an image, and no newer change replaces it, writes may be missing, as when
CDC was off for a while. No log can show this fault.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import compress
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from writetime.changes.model import field_name
from writetime.changes.position import PARTITION_POSITION, STATIC_POSITION, position_encoder
from writetime.core.arrow import pc
from writetime.core.instants import instant_text
from writetime.merge import merge
from writetime.schema.columnar import decode
from writetime.schema.mapping import stored_type
from writetime.schema.serialise_arrays import plain
from writetime.schema.table import TableSchema
from writetime.schema.types import is_complex
from writetime.scylla_cdc import log as L
from writetime.scylla_cdc.column_history import History
from writetime.scylla_cdc.deltas import Deltas, LogRows
from writetime.scylla_cdc.findings import IMAGE_DISAGREES, IMAGE_NOT_COMPARED

# The most findings of one read that are described. All are counted.
_DESCRIBED = 10
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
        self._encode = position_encoder(schema.clustering)
        places = {"kind": pa.string(), "stream": pa.binary(), "write_time": pa.int64()}
        places |= {"key": pa.binary(), "position": pa.binary()}
        # A column may have the name of another field.
        self.schema = pa.schema([*places.items(), *((field_name(c), stored_type(c.type)) for c in self._simple)])
        self.columns = L.row_columns(schema) + [c.name for c in self._simple]
        """The log's columns that are needed."""

    def convert(self, page: pa.RecordBatch) -> pa.RecordBatch:
        """Return the images among some rows."""
        operations = L.operations(page)
        kept = self._history.readable_images(page, operations)
        rows = LogRows(self.table, self._encode, page.filter(pa.array(kept)), page.slice(0, 0))
        kinds = pa.array([_KINDS[o] for o in operations[kept].tolist()], pa.string())
        values = [decode(rows.page[c.name], c.type) for c in self._simple]
        arrays = [kinds, rows.page[L.STREAM], pa.array(rows.times), rows.key, rows.position, *values]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


class CheckedDeltas(Deltas):
    """Converts log rows to changes with all fields, and compares them with the postimages among the rows.

    The agent does not have all changes of a row, but only those of the windows that it reads. So it compares the cells
    that each write set with the write's own postimage (`contradictions`). It reads images in any case, because they are
    ordinary rows of the log. `found` counts the findings, and `texts` gets the descriptions of the first ones.
    """

    def __init__(
        self, table: TableSchema, history: History, found: Counter[str], texts: list[str], preimages_since: int | None
    ) -> None:
        super().__init__(table, history, found=found)
        self._images = Images(table, history)
        self._texts = texts
        self._preimages_since = preimages_since

    def convert(self, page: pa.RecordBatch) -> pa.RecordBatch:
        """Return the changes of complete groups of rows, as `Deltas` does. Comparing raises no error."""
        changes = super().convert(page)
        are_postimages = L.operations(page) == L.POSTIMAGE
        if are_postimages.any():
            try:
                self._compare(self._images.convert(page), changes)
            # A fault of the comparison must not prevent that changes are published.
            except Exception as e:
                count, first = int(are_postimages.sum()), page[L.STREAM][int(np.flatnonzero(are_postimages)[0])].as_py()
                self._found[IMAGE_NOT_COMPARED] += count
                self._describe(
                    f"{count} postimages, the first in stream 0x{first.hex()}, of the log of {self.table.full_name} "
                    f"could not be compared with its changes, which are published: {type(e).__name__}: {e}"
                )
        return changes

    def _compare(self, images: pa.RecordBatch, changes: pa.RecordBatch) -> None:
        same_rows = pa.Table.from_batches([changes.filter(pc.is_in(changes["key"], images["key"]))])
        for found in contradictions(images, same_rows, self.table, self._preimages_since):
            self._found[IMAGE_DISAGREES] += 1
            # Without values and keys, because these may be confidential.
            self._describe(
                f"the {found.kind} of a write of {instant_text(found.write_time)} in stream 0x{found.stream.hex()} has "
                f"another value of column {found.column} than the changes of the log of {self.table.full_name}: "
                f"compare the table with writetime verify {self.table.full_name}"
            )

    def _describe(self, text: str) -> None:
        if len(self._texts) < _DESCRIBED:
            self._texts.append(text)


# A row's key and position, and the write time of an image.
_Place = tuple[bytes, bytes, int]
# Takes the place of an image, the cell that the changes have of a column, and the value that the image shows.
_IsCompared = Callable[[_Place, dict[str, Any] | None, Any], bool]


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

    The images and changes are those of some groups of the log. `preimages_since` is the write time since which the
    table has had preimages, or None if it has none. Without them, nothing shows whether a row was new. A preimage among
    `images` shows that there were some by then.
    """
    writes, bare_inserts = _writes(images, changes, schema, preimages_since)

    def is_compared(image: _Place, cell: dict[str, Any] | None, shown: Any) -> bool:
        if writes[image] != 1:
            return False
        if cell is not None and cell["write_time"] == image[2]:
            return True
        return shown is not None and image in bare_inserts

    postimages = images.filter(pc.equal(images["kind"], "postimage"))
    return disagreements([postimages], changes, schema, is_compared)


def disagreements(
    images: Iterable[pa.RecordBatch], changes: pa.Table, schema: TableSchema, is_compared: _IsCompared | None = None
) -> Iterator[Disagreement]:
    """Compare images with the merge of all known changes of the table, or only the cells that `is_compared` accepts.

    A cell is not compared if a newer write or deletion replaced it, or if it expires. For a preimage, only the cells
    that it shows are compared, because it does not show each column.
    """
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


def _writes(
    images: pa.RecordBatch, changes: pa.Table, schema: TableSchema, preimages_since: int | None
) -> tuple[Counter[_Place], set[_Place]]:
    """Return how many writes there were to a row at a time, and the rows made by an insert that sets no column and has
    no preimage, at a time when there were preimages. A write is one group of the log, which `origin.file` names.
    """
    files = changes["origin"].combine_chunks().field("file").to_pylist()
    times = {file: L.uuid_time(UUID(file.rpartition("/")[2])) for file in set(files)}
    keys, positions = changes["key"].to_pylist(), changes["position"].to_pylist()
    changed = [(key, position, times[file]) for key, position, file in zip(keys, positions, files, strict=True)]
    groups = Counter(place for place, _ in set(zip(changed, files, strict=True)))
    shown = list(zip(*(images[n].to_pylist() for n in ("key", "position", "write_time")), strict=True))
    before = {place for kind, place in zip(images["kind"].to_pylist(), shown, strict=True) if kind == "preimage"}
    after = Counter(place for kind, place in zip(images["kind"].to_pylist(), shown, strict=True) if kind == "postimage")
    written = np.zeros(len(changes), bool)
    for column in schema.static + schema.regular:
        written |= changes[field_name(column)].is_valid().to_numpy()
    inserted = changes["marker"].is_valid().to_numpy()
    bare = set(compress(changed, inserted)) - set(compress(changed, written)) - before
    since = None if preimages_since is None else min([preimages_since, *(place[2] for place in before)])
    # A write that sets nothing has only its postimage.
    return groups | after, {place for place in bare if since is not None and place[2] >= since}


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
