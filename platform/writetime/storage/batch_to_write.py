"""Arranges a batch of changes in the arrays that the kernel writes from."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from writetime.changes.clusterings import clustering_decoder
from writetime.changes.model import KINDS, RANGE_TOMBSTONE, ROW, field_name, udt_fields
from writetime.changes.position import AT, position_encoder
from writetime.core.arrow import bytes_of, numbers, pc, valid
from writetime.schema.serialise import loses_parts, vint
from writetime.schema.serialise_arrays import serialised_array
from writetime.schema.table import Column, TableSchema, storage_order
from writetime.schema.types import Collection, CqlType, Native, is_complex
from writetime.schema.values import BadValue
from writetime.storage import counter_contexts
from writetime.storage.kernel import layout as L
from writetime.storage.kernel import write_layout as K

_KINDS = pa.array(KINDS)


@dataclass
class _Line:
    """One line of the kernel's COLUMNS, and the arrays whose addresses it has."""

    type: CqlType
    shape: int = L.SIMPLE
    part: bool = False
    children: list["_Line"] = field(default_factory=list)
    arrays: dict[int, np.ndarray] = field(default_factory=dict)

    def numbers(self, first_child: int) -> list[int]:
        found = [0] * K.WRITE_FIELDS
        length = self.type.fixed_length
        # A part of a collection or UDT has its length before the value, with any type.
        found[K.WRITE_LENGTH] = -1 if length is None or self.part else length
        found[K.WRITE_SHAPE] = self.shape
        found[K.WRITE_CHILD] = first_child
        found[K.WRITE_CHILDREN] = len(self.children)
        for number, array in self.arrays.items():
            found[number] = array.ctypes.data
        return found

    def value_bytes(self) -> int:
        """Return the bytes of all values and paths."""
        ends = [self.arrays[n][-1] for n in (K.WRITE_OFFSETS, K.WRITE_PATH_OFFSETS) if n in self.arrays]
        starts = [self.arrays[n][0] for n in (K.WRITE_OFFSETS, K.WRITE_PATH_OFFSETS) if n in self.arrays]
        return sum(map(int, ends)) - sum(map(int, starts)) + sum(child.value_bytes() for child in self.children)

    def entries(self) -> int:
        """Return the number of cells that the line may have."""
        own = len(self.arrays[K.WRITE_STATE]) if K.WRITE_STATE in self.arrays else 0
        return own + sum(child.entries() for child in self.children)


@dataclass(frozen=True)
class Arranged:
    """The arrays of a batch: by number in the state of the writer, and the lines of its columns with theirs."""

    count: int
    arrays: dict[int, np.ndarray]
    lines: np.ndarray
    kept: Sequence[_Line]

    @property
    def room(self) -> int:
        """The number of bytes that these changes take at most."""
        data = self._bytes(K.KEY_OFFSETS, K.START_BOUND_OFFSETS, K.END_BOUND_OFFSETS)
        data += sum(line.value_bytes() for line in self.kept)
        # A cell has at most five numbers of up to nine bytes besides its value; a row has three more, and may start a
        # partition and follow the end of another one.
        return data + 60 * sum(line.entries() for line in self.kept) + (200 + 12 * len(self.kept)) * self.count

    def prefix_room(self, clusterings: int) -> int:
        """Return the number of bytes that the clusterings of these rows and bounds take at most."""
        lines = self.kept[:clusterings]
        # A value has its length in at most five bytes, and 32 values have a header of at most nine.
        values = sum(line.value_bytes() + 5 * line.entries() for line in lines) + 9 * -(-len(lines) // 32) * self.count
        return values + self._bytes(K.START_BOUND_OFFSETS, K.END_BOUND_OFFSETS)

    def _bytes(self, *offsets: int) -> int:
        return sum(int(self.arrays[n][-1]) - int(self.arrays[n][0]) for n in offsets if n in self.arrays)

    def minimums(self) -> tuple[int, int, int]:
        """Return the smallest write time, deletion time and TTL; None of a kind gives the largest number."""
        times: list[np.ndarray] = []
        deletions: list[np.ndarray] = []
        ttls: list[np.ndarray] = []

        def add(arrays: dict[int, np.ndarray], names: tuple[int, int, int, int]) -> None:
            state, time, deletion, ttl = (arrays.get(name) for name in names)
            if state is None or time is None:
                return
            times.append(time[state != 0])
            if deletion is not None:
                deletions.append(deletion[state & (L.IS_TOMBSTONE | L.HAS_TTL) != 0])
            if ttl is not None:
                ttls.append(ttl[state & L.HAS_TTL != 0])

        def add_line(line: _Line) -> None:
            state = line.arrays.get(K.WRITE_STATE)
            arrays = line.arrays
            if state is not None and line.shape != L.SIMPLE:
                arrays = {**arrays, K.WRITE_STATE: np.where(state & L.IS_TOMBSTONE, state, 0)}
            add(arrays, (K.WRITE_STATE, K.WRITE_TIMES, K.WRITE_DELETION_TIMES, K.WRITE_TTLS))
            for child in line.children:
                add_line(child)

        add(self.arrays, (K.MARKER_STATE, K.MARKER_TIMES, K.MARKER_EXPIRIES, K.MARKER_TTLS))
        tombstones = {**self.arrays, K.TOMBSTONE_STATE: self.arrays[K.TOMBSTONE_STATE] * np.uint8(L.IS_TOMBSTONE)}
        add(tombstones, (K.TOMBSTONE_STATE, K.TOMBSTONE_TIMES, K.TOMBSTONE_DELETION_TIMES, -1))
        for line in self.kept:
            add_line(line)
        most = (1 << 63) - 1
        found = [min((int(a.min()) for a in each if len(a)), default=most) for each in (times, deletions, ttls)]
        return found[0], found[1], found[2]


class Arranger:
    """Arranges batches of one table's changes."""

    def __init__(self, schema: TableSchema) -> None:
        self.clustering = schema.clustering
        self.static = storage_order(schema.static)
        self.regular = storage_order(schema.regular)
        self._decode = clustering_decoder(schema.clustering)
        self._last_key: bytes | None = None

    def arrange(self, batch: pa.RecordBatch) -> Arranged:
        """Return the arrays of a batch, which has the fields of `changes.change_schema`."""
        count = batch.num_rows
        kinds = numbers(pc.index_in(batch["kind"], value_set=_KINDS).fill_null(len(KINDS))).astype(np.uint8)
        keys = batch["key"].fill_null(b"")
        arrays = {K.KIND: kinds, K.STARTS: self._starts(keys), K.TOKENS: _copied(batch["token"], np.int64)}
        for offsets, data, array in (
            (K.KEY_OFFSETS, K.KEYS, keys),
            (K.POSITION_OFFSETS, K.POSITIONS, batch["position"]),
            (K.END_OFFSETS, K.ENDS, batch["end"]),
        ):
            arrays[offsets], arrays[data] = bytes_of(array)
        arrays |= self._bounds(batch, kinds)
        marker, tombstone = batch["marker"], batch["tombstone"]
        arrays[K.MARKER_STATE] = (valid(marker) * (L.IS_PRESENT + L.HAS_TTL * valid(marker.field("ttl")))).astype(
            np.uint8
        )
        arrays[K.MARKER_TIMES] = _copied(marker.field("write_time"), np.int64)
        arrays[K.MARKER_TTLS] = _copied(marker.field("ttl"), np.int32)
        arrays[K.MARKER_EXPIRIES] = _copied(marker.field("expiry"), np.int64)
        arrays[K.TOMBSTONE_STATE] = valid(tombstone).astype(np.uint8)
        arrays[K.TOMBSTONE_TIMES] = _copied(tombstone.field("write_time"), np.int64)
        arrays[K.TOMBSTONE_DELETION_TIMES] = _copied(tombstone.field("deletion_time"), np.int64)
        lines = [self._clustering(batch, number, kinds == ROW) for number in range(len(self.clustering))]
        lines += [_line(batch[field_name(c)], c.type) for c in (*self.static, *self.regular)]
        rows: list[list[int]] = []
        children = len(lines)
        for line in lines:
            rows.append(line.numbers(children))
            children += len(line.children)
        rows += [child.numbers(0) for line in lines for child in line.children]
        return Arranged(count, arrays, np.array(rows, np.int64).reshape(len(rows), K.WRITE_FIELDS), lines)

    def _starts(self, keys: pa.Array) -> np.ndarray:
        """Return which changes have another key than the one before."""
        starts = np.ones(len(keys), np.uint8)
        if len(keys):
            starts[1:] = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
            starts[0] = keys[0].as_py() != self._last_key
            self._last_key = keys[-1].as_py()
        return starts

    def _bounds(self, batch: pa.RecordBatch, kinds: np.ndarray) -> dict[int, np.ndarray]:
        found: dict[int, np.ndarray] = {}
        is_range = kinds == RANGE_TOMBSTONE
        if not is_range.any():
            return found
        for name, offsets, data in (
            ("position", K.START_BOUND_OFFSETS, K.START_BOUNDS),
            ("end", K.END_BOUND_OFFSETS, K.END_BOUNDS),
        ):
            bounds = [b""] * len(kinds)
            for i in np.flatnonzero(is_range):
                # The kernel refuses a range without a position.
                if position := batch[name][int(i)].as_py():
                    bounds[i] = _bound(self._decode(position), self.clustering)
            found[offsets], found[data] = bytes_of(pa.array(bounds, pa.binary()))
        return found

    def _clustering(self, batch: pa.RecordBatch, number: int, is_row: np.ndarray) -> _Line:
        column = self.clustering[number]
        values = serialised_array(batch[field_name(column)], column.type)
        if loses_parts(column.type):
            values = self._exact(values, batch["position"], number, is_row)
        line = _Line(column.type)
        line.arrays[K.WRITE_OFFSETS], line.arrays[K.WRITE_VALUES] = bytes_of(values)
        # A row of these tables has a value for each clustering column, which may be empty.
        line.arrays[K.WRITE_STATE] = np.ones(len(values), np.uint8)
        return line

    def _exact(self, values: pa.Array, positions: pa.Array, number: int, is_row: np.ndarray) -> pa.Array:
        """Return clustering values whose decoded form may have lost parts: where the position has others, its own."""
        encode = position_encoder([self.clustering[number]])
        found = values.to_pylist()
        for i in np.flatnonzero(is_row):
            of_position = self._decode(positions[int(i)].as_py())[number]
            if of_position is not None and encode([found[i]], AT) != encode([of_position], AT):
                found[i] = of_position
        return pa.array(found, pa.binary())


def _bound(values: Sequence[bytes | None], clustering: Sequence[Column]) -> bytes:
    """Return a bound's size and values as on disk (`ClusteringBoundOrBoundary.Serializer`)."""
    if any(value is not None and len(value) > K.LONGEST for value in values):
        raise BadValue(f"a bound of a range has a value of more than {K.LONGEST} bytes")
    parts = [struct.pack(">H", len(values))]
    for at in range(0, len(values), 32):
        some = values[at : at + 32]
        header = sum((2 if v is None else 1 if not v else 0) << 2 * i for i, v in enumerate(some))
        parts.append(vint(header))
        for value, column in zip(some, clustering[at:], strict=False):
            if value:
                parts += [vint(len(value)) if column.type.fixed_length is None else b"", value]
    return b"".join(parts)


def _copied(array: pa.Array, dtype: type[np.generic]) -> np.ndarray:
    return np.ascontiguousarray(numbers(array), dtype)


def _line(array: pa.Array, cql_type: CqlType) -> _Line:
    """Return the line of a static or regular column."""
    if not is_complex(cql_type):
        return _cells(array, cql_type)
    is_collection = isinstance(cql_type, Collection)
    line = _Line(cql_type, L.COLLECTION if is_collection else L.UDT)
    present, tombstone = valid(array), array.field("tombstone")
    state = present * (L.IS_PRESENT + L.IS_TOMBSTONE * valid(tombstone))
    line.arrays[K.WRITE_TIMES] = _copied(tombstone.field("write_time"), np.int64)
    line.arrays[K.WRITE_DELETION_TIMES] = _copied(tombstone.field("deletion_time"), np.int64)
    if is_collection:
        lists = array.field("elements")
        lengths = np.where(valid(lists), pc.list_value_length(lists).fill_null(0).to_numpy(), 0)
        line.arrays[K.WRITE_ELEMENTS] = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        line.children = [_elements(lists.flatten(), cql_type)]
        lengths = np.where(present, lengths, 0)
        state = np.where((lengths > 0) | (state & L.IS_TOMBSTONE != 0), state, 0)
    else:
        fields = array.field("fields")
        inside = present & valid(fields)
        line.children = [_cells(fields.field(i), t, part=True) for i, (_, t) in enumerate(udt_fields(cql_type))]
        some = np.zeros(len(array), bool)
        for child in line.children:
            child.arrays[K.WRITE_STATE] = np.where(inside, child.arrays[K.WRITE_STATE], 0).astype(np.uint8)
            some |= child.arrays[K.WRITE_STATE] != 0
        state = np.where(some | (state & L.IS_TOMBSTONE != 0), state, 0)
    line.arrays[K.WRITE_STATE] = state.astype(np.uint8)
    return line


def _elements(elements: pa.Array, cql_type: Collection) -> _Line:
    path_type = Native("timeuuid") if cql_type.kind == "list" else cql_type.arguments[0]
    value_type = cql_type.arguments[0] if cql_type.kind == "list" else cql_type.arguments[-1]
    line = _cells(elements, Native("empty") if cql_type.kind == "set" else value_type, part=True)
    paths = serialised_array(elements.field("path"), path_type, _other(elements, "path_bytes"))
    line.arrays[K.WRITE_PATH_OFFSETS], line.arrays[K.WRITE_PATHS] = bytes_of(paths)
    return line


def _other(cells: pa.Array, name: str) -> pa.Array | None:
    return cells.field(name) if cells.type.get_field_index(name) >= 0 else None


def _cells(cells: pa.Array, cql_type: CqlType, *, part: bool = False) -> _Line:
    line = _Line(cql_type, part=part)
    tombstone = cells.field("tombstone").fill_null(False).to_numpy(zero_copy_only=False)
    with_ttl = valid(cells.field("ttl")) & ~tombstone
    state = L.IS_PRESENT + L.HAS_TTL * with_ttl + L.IS_TOMBSTONE * tombstone
    line.arrays[K.WRITE_STATE] = (valid(cells) * state).astype(np.uint8)
    line.arrays[K.WRITE_TIMES] = _copied(cells.field("write_time"), np.int64)
    line.arrays[K.WRITE_TTLS] = _copied(cells.field("ttl"), np.int32)
    line.arrays[K.WRITE_DELETION_TIMES] = _copied(cells.field("deletion_time"), np.int64)
    if cql_type == Native("counter"):
        values = counter_contexts.encode(cells.field("shards"))
    elif cql_type == Native("empty"):
        values = pa.array([b""] * len(cells), pa.binary())
    else:
        values = serialised_array(cells.field("value"), cql_type, _other(cells, "value_bytes"))
    line.arrays[K.WRITE_OFFSETS], line.arrays[K.WRITE_VALUES] = bytes_of(values)
    return line
