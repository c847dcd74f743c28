"""Builds Arrow batches of changes from the kernel's output."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from writetime.changes.model import KINDS, MARKER, ORIGIN, SHARD, TOMBSTONE, change_schema, field_name
from writetime.changes.position import AFTER, AT, BEFORE, PARTITION_POSITION, STATIC_POSITION, position_encoder
from writetime.core.arrow import Constant
from writetime.core.errors import reason_of
from writetime.schema.serialise import loses_parts, other_bytes
from writetime.schema.text import texts_of
from writetime.schema.types import Collection, Native
from writetime.schema.values import decoder, read_vint
from writetime.storage import counter_contexts
from writetime.storage.file_errors import CorruptFile
from writetime.storage.kernel import layout as L
from writetime.storage.kernel.repeat import repeat_values
from writetime.storage.plan import Buffers, ColumnLayout, Plan

# Each change of a batch repeats its key, and a key of 64 KiB may have very many small changes.
KEY_BYTES = 64 << 20
_TEXTS = (Native("text"), Native("ascii"))
_KIND_ROW = Constant(KINDS[0], pa.string())
_NO_END = Constant(None, pa.binary())
_NO_MARKER = Constant(None, MARKER)
_NO_TOMBSTONE = Constant(None, TOMBSTONE)
_NO_BYTES = Constant(None, pa.binary())
_NO_TTL = Constant(None, pa.int32())
_NO_TIME = Constant(None, pa.int64())
_IS_NO_TOMBSTONE = Constant(False, pa.bool_())


@dataclass(frozen=True)
class Origin:
    """The origin of changes: the kind of source, the node that wrote it, the file, and the time of reading.

    If an agent published a snapshot of a ScyllaDB table, its changes have the name of the table's log instead of a
    node, and the time at which the snapshot began.
    """

    source: str
    file: str
    captured_at: datetime
    node: str | None = None

    @cached_property
    def constants(self) -> list[Constant]:
        """The fields that are the same for all changes: source, node, file, and the time of reading."""
        fields = (("source", self.source), ("node", self.node), ("file", self.file), ("captured_at", self.captured_at))
        return [Constant(value, ORIGIN.field(name).type) for name, value in fields]


def _buffer(array: np.ndarray) -> pa.Buffer:
    """Copy an array's bytes: the kernel's buffers are reused."""
    return pa.py_buffer(array.tobytes())


def _repeated(array: pa.Array, counts: np.ndarray) -> pa.Array:
    """Repeat each text or byte value as often as `counts` (int32)."""
    _, offsets, content = array.buffers()
    rows = int(counts.sum())
    lengths = np.diff(np.frombuffer(offsets, np.int32, len(array) + 1))
    room = int(np.dot(lengths.astype(np.int64), counts))
    ends, values = pa.allocate_buffer(4 * rows + 4), pa.allocate_buffer(room)
    np.frombuffer(ends, np.int32, 1)[0] = 0
    repeat_values(counts.ctypes.data, offsets.address, content.address, len(array), ends.address + 4, values.address)
    return pa.Array.from_buffers(array.type, rows, [None, ends, values])


def _bits(flags: np.ndarray) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


class _CorruptChange(CorruptFile):
    """A change with an invalid value, with its number among the changes of its table in the buffers."""

    def __init__(self, file: str, offset: int, expected: str, row: int) -> None:
        super().__init__(file, offset, expected)
        self.row = row


class BatchMaker:
    """Converts the buffers of one table to record batches with the requested fields, in their order."""

    def __init__(self, plan: Plan, fields: Sequence[str] | None = None) -> None:
        full = change_schema(plan.schema)
        self.schema = full if fields is None else pa.schema([full.field(name) for name in fields])
        self.plan = plan
        self._columns = {field_name(c): plan.columns[c.name] for c in plan.schema.static + plan.schema.regular}
        self._keys = {field_name(c): line for c, line in zip(plan.schema.partition_key, plan.key, strict=True)}
        self._clustering = {
            field_name(c): line for c, line in zip(plan.schema.clustering, plan.clustering, strict=True)
        }
        self.decoders: dict[int, Callable[[bytes], Any]] = {
            line.index: decoder(line.type) for line in plan.lines() if _needs_python(line)
        }
        # Of values whose bytes are kept if decoding loses some of them.
        self.exact = {
            line.index: other_bytes(line.type)
            for stored in plan.stored()
            for line in (stored, *stored.children)
            if line.shape == L.SIMPLE and loses_parts(line.type)
        }
        self.encode = None if plan.encodes_position else position_encoder(plan.schema.clustering)

    def batches(self, buffers: Buffers, table: int, origin: Origin) -> Iterator[pa.RecordBatch]:
        """Return the changes of a table in the buffers. Each record batch has at most `KEY_BYTES` of keys, or one row.

        If a value is invalid for its type, raise `CorruptFile` with the offset of the change, before the first batch.
        """
        try:
            work = _Work(self, buffers, table)
            arrays = self._arrays(work, origin)
        except MemoryError:
            raise
        except Exception as e:
            raise self._fault(buffers, table, origin, e) from e
        return self._pieces(work, arrays, buffers.key_bytes(table))

    def _fault(self, buffers: Buffers, table: int, origin: Origin, error: Exception) -> CorruptFile:
        """Return the error of the first change that cannot be converted. It is found by halving the changes. If even no
        change can be converted, the error has no place: it is not one of a value.
        """
        numbers = buffers.tables[table].copy()
        sound, faulty = -1, int(numbers[L.ROWS])
        while faulty - sound > 1:
            middle = (sound + faulty) // 2
            buffers.tables[table] = numbers
            buffers.cut(table, middle)
            try:
                self._arrays(_Work(self, buffers, table), origin)
            except MemoryError:
                raise
            except Exception as e:
                faulty, error = middle, e
            else:
                sound = middle
        buffers.tables[table] = numbers
        if faulty == 0:
            return CorruptFile(origin.file, None, f"{self.plan.schema.full_name}: {reason_of(error)}")
        offset, key = _Work(self, buffers, table).place_of(sound)
        named = f"{self.plan.schema.full_name}, partition 0x{key[:64].hex()}{'...' if len(key) > 64 else ''}"
        return _CorruptChange(origin.file, offset, f"{named}: {reason_of(error)}", sound)

    def sound_batches(self, buffers: Buffers, table: int, origin: Origin) -> Iterator[pa.RecordBatch]:
        """Return the changes like `batches`, but at an invalid value those before it, and raise `CorruptFile` then."""
        if not buffers.tables[table, L.ROWS]:
            return
        try:
            found = self.batches(buffers, table, origin)
        except _CorruptChange as fault:
            buffers.cut(table, fault.row)
            if fault.row:
                yield from self.batches(buffers, table, origin)
            raise
        yield from found

    def _pieces(self, work: "_Work", arrays: list[pa.Array], key_bytes: int) -> Iterator[pa.RecordBatch]:
        if not arrays:
            yield pa.RecordBatch.from_struct_array(pa.nulls(work.rows, pa.struct([])))
            return
        are_keys = [name == "key" or name in self._keys for name in self.schema.names]
        ends = [work.rows] if key_bytes <= KEY_BYTES else work.ends_by_key_bytes(KEY_BYTES)
        for start, end in pairwise([0, *ends]):
            piece = [
                work.by_partition(array, start, end) if is_key else work.part(array, start, end)
                for array, is_key in zip(arrays, are_keys, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(piece, schema=self.schema)

    def _arrays(self, work: "_Work", origin: Origin) -> list[pa.Array]:
        return [self._array(work, name, origin) for name in self.schema.names]

    def _array(self, work: "_Work", name: str, origin: Origin) -> pa.Array:
        """Return a field of all changes. If it belongs to the key, return the values of all partitions."""
        if name in self._columns:
            return work.column(self._columns[name])
        if name in self._clustering:
            return work.values(self._clustering[name], work.rows)
        if name in self._keys:
            return work.values(self._keys[name], work.partitions)
        match name:
            case "kind":
                return work.kinds()
            case "key":
                return work.binary(L.KEY_OFFSETS, L.KEY_BYTES, work.partitions)
            case "token":
                return work.tokens()
            case "position":
                return work.positions()
            case "end":
                return work.ends()
            case "marker":
                return work.marker()
            case "tombstone":
                return work.tombstone()
        return work.origin(origin)


def _needs_python(line: ColumnLayout) -> bool:
    plain = isinstance(line.type, Native) and line.type.name in ("text", "ascii", "blob", "empty")
    return line.shape == L.SIMPLE and line.form == L.BYTES and not plain


class _Work:
    """One batch under construction."""

    def __init__(self, maker: BatchMaker, buffers: Buffers, table: int) -> None:
        self._maker = maker
        self._arrays = buffers.arrays
        self._table_arrays = buffers.table_arrays[table]
        # The bytes of decoded values, by line, where decoding lost some.
        self._bytes: dict[int, pa.Array] = {}
        self._without_times: dict[int, tuple[pa.Array, pa.Array, pa.Array]] = {}
        self.rows = int(buffers.tables[table, L.ROWS])
        self.partitions = int(buffers.tables[table, L.PARTITIONS])
        self._kinds = self._table_arrays[L.ROW_KIND][: self.rows]
        self._first_rows = np.append(self._table_arrays[L.FIRST_ROW][: self.partitions], np.int32(self.rows))
        self._row_counts = np.diff(self._first_rows)

    def _state(self, line: ColumnLayout, count: int) -> tuple[np.ndarray, int]:
        """Return the bits of each of a line's first entries, and those that any of them has."""
        state = self._arrays[line.index][L.STATE][:count]
        return state, int(np.bitwise_or.reduce(state))

    def kinds(self) -> pa.Array:
        if not self._kinds.any():
            return _KIND_ROW.times(self.rows)
        return pa.DictionaryArray.from_arrays(pa.array(self._kinds), list(KINDS)).dictionary_decode()

    def place_of(self, row: int) -> tuple[int, bytes]:
        """Return the offset of a change in the file, and the key of its partition."""
        partition = int(np.searchsorted(self._first_rows[: self.partitions], row, "right")) - 1
        start, end = self._table_arrays[L.KEY_OFFSETS][partition : partition + 2]
        return int(self._table_arrays[L.ROW_OFFSET][row]), self._table_arrays[L.KEY_BYTES][start:end].tobytes()

    def ends_by_key_bytes(self, most: int) -> list[int]:
        """Cut the changes into parts with at most `most` bytes of keys, or one change; return the ends of the parts."""
        lengths = np.diff(self._table_arrays[L.KEY_OFFSETS][: self.partitions + 1]).astype(np.int64)
        used = np.cumsum(np.repeat(lengths, self._row_counts))
        ends, before = [], 0
        while not ends or ends[-1] < self.rows:
            start = ends[-1] if ends else 0
            ends.append(max(int(np.searchsorted(used, before + most, "right")), start + 1))
            before = int(used[ends[-1] - 1])
        return ends

    def part(self, array: pa.Array, start: int, end: int) -> pa.Array:
        """Return the values of the changes from `start` to `end`, given those of all changes."""
        return array if end - start == self.rows else array.take(pa.array(np.arange(start, end)))

    def by_partition(self, array: pa.Array, start: int, end: int) -> pa.Array:
        """Repeat each partition's value for each of its changes between `start` and `end`."""
        counts = np.diff(np.clip(self._first_rows, start, end))
        if (counts == 1).all():
            return array
        if array.type in (pa.string(), pa.binary()) and not array.null_count:
            return _repeated(array, counts)
        return array.take(pa.array(np.repeat(np.arange(self.partitions), counts)))

    def tokens(self) -> pa.Array:
        """Return the token of each row."""
        tokens = np.repeat(self._table_arrays[L.TOKENS][: self.partitions], self._row_counts)
        return pa.Array.from_buffers(pa.int64(), self.rows, [None, pa.py_buffer(tokens)])

    def numbers(self, number: int, count: int, arrow: pa.DataType, validity: pa.Buffer | None = None) -> pa.Array:
        return pa.Array.from_buffers(arrow, count, [validity, _buffer(self._table_arrays[number][:count])])

    def binary(self, offsets: int, data: int, count: int, validity: pa.Buffer | None = None) -> pa.Array:
        ends = self._table_arrays[offsets][: count + 1]
        content = self._table_arrays[data][: ends[count]]
        return pa.Array.from_buffers(pa.binary(), count, [validity, _buffer(ends), _buffer(content)])

    def positions(self) -> pa.Array:
        array = self.binary(L.POSITION_OFFSETS, L.POSITION_BYTES, self.rows)
        if self._maker.encode is None:
            return array
        fixed = {1: STATIC_POSITION, 3: PARTITION_POSITION}
        pairs = zip(self._kinds.tolist(), array.to_pylist(), strict=True)
        return pa.array([fixed[kind] if kind in fixed else self._comparable(raw) for kind, raw in pairs], pa.binary())

    def ends(self) -> pa.Array:
        is_range = self._kinds == 2
        if not is_range.any():
            return _NO_END.times(self.rows)
        array = self.binary(L.END_OFFSETS, L.END_BYTES, self.rows, _bits(is_range))
        if self._maker.encode is None:
            return array
        return pa.array([None if end is None else self._comparable(end) for end in array.to_pylist()], pa.binary())

    def _comparable(self, raw: bytes) -> bytes:
        """Encode a clustering key that the kernel left unchanged, after its terminator and the number of its values."""
        assert self._maker.encode is not None
        count = int.from_bytes(raw[1:3], "big")
        values: list[bytes | None] = []
        p, header = 3, 0
        for i, line in enumerate(self._maker.plan.clustering[:count]):
            if i % 32 == 0:
                header, p = read_vint(raw, p)
            state = header >> (2 * (i % 32)) & 3
            if state:
                values.append(None if state & 2 else b"")
                continue
            length = line.type.fixed_length
            if length is None:
                length, p = read_vint(raw, p)
            values.append(raw[p : p + length])
            p += length
        return self._maker.encode(values, {0x20: BEFORE, 0x38: AT, 0x60: AFTER}[raw[0]])

    def marker(self) -> pa.Array:
        state = self._table_arrays[L.MARKER_STATE][: self.rows]
        if not state.any():
            return _NO_MARKER.times(self.rows)
        validity = _validity(state, L.IS_PRESENT)
        if (state & L.HAS_TTL).any():
            expires = _validity(state, L.HAS_TTL)
            times = [
                self.numbers(L.MARKER_TTL, self.rows, pa.int32(), expires),
                self.numbers(L.MARKER_EXPIRY, self.rows, pa.int64(), expires),
            ]
        else:
            times = self._no_times(self.rows)[:2]
        children = [self.numbers(L.MARKER_WRITE_TIME, self.rows, pa.int64(), validity), *times]
        return pa.Array.from_buffers(MARKER, self.rows, [validity], children=children)

    def tombstone(self) -> pa.Array:
        arrays = self._table_arrays
        state = arrays[L.TOMBSTONE_STATE][: self.rows]
        return _tombstones(state, L.IS_PRESENT, arrays[L.TOMBSTONE_WRITE_TIME], arrays[L.TOMBSTONE_DELETION_TIME])

    def origin(self, origin: Origin) -> pa.Array:
        source, node, file, captured_at = [constant.times(self.rows) for constant in origin.constants]
        offset = self.numbers(L.ROW_OFFSET, self.rows, pa.int64())
        children = [source, node, file, offset, captured_at]
        return pa.Array.from_buffers(ORIGIN, self.rows, [None], children=children)

    def column(self, line: ColumnLayout) -> pa.Array:
        """Return a static or regular column."""
        if line.shape == L.SIMPLE:
            return self._cells(line, self.rows)
        state, some = self._state(line, self.rows)
        if not some:
            return line.no_column.times(self.rows)
        arrow = line.no_column.type
        validity = _validity(state, L.IS_PRESENT)
        arrays = self._arrays[line.index]
        tombstone = _tombstones(state, L.IS_TOMBSTONE, arrays[L.WRITE_TIME], arrays[L.DELETION_TIME])
        if line.shape == L.COLLECTION:
            parts = self._elements(line, arrow.field("elements").type)
        else:
            fields = arrow.field("fields").type
            cells = [self._cells(child, self.rows) for child in line.children]
            parts = pa.Array.from_buffers(fields, self.rows, [validity], children=cells)
        return pa.Array.from_buffers(arrow, self.rows, [validity], children=[tombstone, parts])

    def _elements(self, line: ColumnLayout, arrow: pa.DataType) -> pa.Array:
        offsets = self._arrays[line.index][L.OFFSETS][: self.rows + 1]
        count = int(offsets[self.rows])
        cell, path = line.children
        children = [self.values(path, count)]
        if isinstance(line.type, Collection) and line.type.kind != "set":
            children.append(self.values(cell, count))
        children += self._times(cell, count, None)
        children += [self._bytes_of(each, count) for each in (path, cell) if each.index in self._maker.exact]
        elements = pa.Array.from_buffers(arrow.value_type, count, [None], children=children)
        # A missing column has no elements. The struct around it distinguishes it from an empty one.
        return pa.Array.from_buffers(arrow, self.rows, [None, _buffer(offsets)], children=[elements])

    def _cells(self, line: ColumnLayout, count: int) -> pa.Array:
        state, some = self._state(line, count)
        if not some:
            return line.no_cell.times(count)
        validity = _validity(state, L.IS_PRESENT)
        if line.form == L.COUNTER:
            children = self._counters(line, self._times(line, count, validity))
        else:
            children = [self.values(line, count), *self._times(line, count, validity)]
            if line.index in self._maker.exact:
                children.append(self._bytes_of(line, count))
        return pa.Array.from_buffers(line.no_cell.type, count, [validity], children=children)

    def _counters(self, line: ColumnLayout, times: list[pa.Array]) -> list[pa.Array]:
        """Return the parts of counter cells: the sums of their shards, their times, and the shards."""
        arrays, count = self._arrays[line.index], len(times[0])
        offsets = arrays[L.OFFSETS][: count + 1]
        found = counter_contexts.decode(offsets, arrays[L.VALUES][: offsets[count]])
        validity = _validity(arrays[L.STATE][:count], L.HAS_VALUE)
        values = pa.Array.from_buffers(pa.int64(), count, [validity, pa.py_buffer(found.sums)])
        write_times = np.repeat(arrays[L.WRITE_TIME][:count], found.per_counter)
        parts = [found.ids, found.kinds, pa.array(found.clocks), pa.array(found.counts), pa.array(write_times)]
        shards = pa.StructArray.from_arrays(parts, fields=list(SHARD))
        ends = np.concatenate([[0], np.cumsum(found.per_counter)]).astype(np.int32)
        arrow = line.no_cell.type.field("shards").type
        lists = pa.Array.from_buffers(arrow, count, [validity, pa.py_buffer(ends)], children=[shards])
        return [values, *times, lists]

    def _times(self, line: ColumnLayout, count: int, validity: pa.Buffer | None) -> list[pa.Array]:
        """Return write time, TTL, deletion time and tombstone flag of cells."""
        arrays = self._arrays[line.index]
        state, some = self._state(line, count)
        ttls, deletion_times, tombstones = self._no_times(count)
        if some & L.HAS_TTL:
            valid = _validity(state, L.HAS_TTL)
            ttls = pa.Array.from_buffers(pa.int32(), count, [valid, _buffer(arrays[L.TTL][:count])])
        if some & L.HAS_DELETION_TIME:
            valid = _validity(state, L.HAS_DELETION_TIME)
            deletion_times = pa.Array.from_buffers(pa.int64(), count, [valid, _buffer(arrays[L.DELETION_TIME][:count])])
        if some & L.IS_TOMBSTONE:
            tombstones = pa.Array.from_buffers(pa.bool_(), count, [validity, _bits(state & L.IS_TOMBSTONE)])
        elif validity is not None:
            tombstones = pa.Array.from_buffers(pa.bool_(), count, [validity, tombstones.buffers()[1]])
        write_times = pa.Array.from_buffers(pa.int64(), count, [validity, _buffer(arrays[L.WRITE_TIME][:count])])
        return [write_times, ttls, deletion_times, tombstones]

    def _no_times(self, count: int) -> tuple[pa.Array, pa.Array, pa.Array]:
        """Return TTL, deletion time and tombstone flag of cells that never expire and are not tombstones."""
        if count not in self._without_times:
            self._without_times[count] = _NO_TTL.times(count), _NO_TIME.times(count), _IS_NO_TOMBSTONE.times(count)
        return self._without_times[count]

    def values(self, line: ColumnLayout, count: int) -> pa.Array:
        """Return the values of a line, with null where there is none."""
        arrow = line.no_value.type
        arrays = self._arrays[line.index]
        state, some = self._state(line, count)
        if not some & L.HAS_VALUE:
            return line.no_value.times(count)
        if line.index in self._maker.decoders:
            return self._decoded(line, state, arrow)
        validity = _validity(state, L.HAS_VALUE)
        if L.OFFSETS in arrays:
            offsets = arrays[L.OFFSETS][: count + 1]
            content = arrays[L.VALUES][: offsets[count]]
            buffers = [validity, _buffer(offsets), _buffer(content)]
            if line.type in _TEXTS:
                return texts_of(pa.Array.from_buffers(pa.binary(), count, buffers))
            return pa.Array.from_buffers(arrow, count, buffers)
        if line.form == L.BOOLEAN:
            return pa.Array.from_buffers(arrow, count, [validity, _bits(arrays[L.VALUES][:count])])
        content = arrays[L.VALUES][: count * L.WIDTH[line.form]]
        return pa.Array.from_buffers(arrow, count, [validity, _buffer(content)])

    def _bytes_of(self, line: ColumnLayout, count: int) -> pa.Array:
        """Return the bytes of the values of a line that `values` has returned, where decoding lost some."""
        return self._bytes.get(line.index, _NO_BYTES.times(count))

    def _decoded(self, line: ColumnLayout, state: np.ndarray, arrow: pa.DataType) -> pa.Array:
        decode = self._maker.decoders[line.index]
        arrays = self._arrays[line.index]
        count = len(state)
        offsets = arrays[L.OFFSETS][: count + 1].tolist()
        content = arrays[L.VALUES][: offsets[count]].tobytes()
        has_value = state & L.HAS_VALUE
        if line.key:
            # The changes of a partition may be in the next window. Then an invalid key is a fault of that window.
            has_value = has_value * (self._row_counts > 0)
        places = zip(pairwise(offsets), has_value.tolist(), strict=True)
        parts = [content[start:end] if has else None for (start, end), has in places]
        values = [None if part is None else decode(part) for part in parts]
        if line.index in self._maker.exact:
            found = list(map(self._maker.exact[line.index], parts, values))
            self._bytes[line.index] = pa.array(found, pa.binary())
        return pa.array(values, arrow)


def _tombstones(state: np.ndarray, bit: int, *times: np.ndarray) -> pa.Array:
    """Return the tombstones of the entries with a bit, by their write times and deletion times."""
    count = len(state)
    if not np.bitwise_or.reduce(state) & bit:
        return _NO_TOMBSTONE.times(count)
    validity = _validity(state, bit)
    children = [pa.Array.from_buffers(pa.int64(), count, [validity, _buffer(each[:count])]) for each in times]
    return pa.Array.from_buffers(TOMBSTONE, count, [validity], children=children)


def _validity(state: np.ndarray, bit: int) -> pa.Buffer | None:
    """Return the entries that have a bit; None if all have it."""
    return None if np.bitwise_and.reduce(state) & bit else _bits(state & bit)
