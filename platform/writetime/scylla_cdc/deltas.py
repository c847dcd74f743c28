"""Converts delta rows of a log to changes: each row's effect on its partition, with the write time in the log.

Rules (ScyllaDB's `cdc/log.cc`, docs/features/cdc):

- The time of `cdc$time` is the write time of a row's data, but the tombstone of a whole collection or user-defined type
  is one microsecond older.
- `cdc$ttl` applies to all live data in the row.
- The log has neither the expiry time of a cell nor the deletion time of a tombstone. Both follow from the write time.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from writetime.changes.model import (
    KINDS,
    MARKER,
    ORIGIN,
    PARTITION_TOMBSTONE,
    RANGE_TOMBSTONE,
    ROW,
    STATIC,
    TOMBSTONE,
    change_schema,
    column_type,
    element_types,
    field_name,
    udt_fields,
)
from writetime.changes.position import AFTER, AT, BEFORE, PARTITION_POSITION, STATIC_POSITION, position_encoder
from writetime.merge.value_order import plain
from writetime.schema.columnar import decode
from writetime.schema.serialise import loses_parts, other_bytes
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Collection, CqlType, Native, is_complex
from writetime.schema.values import UnknownFields, split_fields, split_sequence
from writetime.scylla_cdc import log as L
from writetime.scylla_cdc.column_history import History, nulls_of, where_in
from writetime.scylla_cdc.log import LogError
from writetime.storage.kernel.primitives import tokens

# pyarrow creates the functions of this module when it is imported, where type checkers do not see them.
pc: Any = pyarrow.compute

_KIND = dict.fromkeys(L.OPERATIONS, ROW)
_KIND |= {L.START_INCLUSIVE: RANGE_TOMBSTONE, L.START_EXCLUSIVE: RANGE_TOMBSTONE}
_KIND |= {L.PARTITION_DELETE: PARTITION_TOMBSTONE, L.EXPIRED_PARTITION: PARTITION_TOMBSTONE}
_ENDS = (L.END_INCLUSIVE, L.END_EXCLUSIVE)
_SAY_NOTHING = (L.PREIMAGE, L.POSTIMAGE, *_ENDS)
_EMPTY = pa.scalar(b"", pa.binary())

Encode = Callable[[Sequence[bytes | None], bytes], bytes]


class Deltas:
    """Converts the log rows of one table to changes, with the requested fields, in their order."""

    def __init__(
        self,
        schema: TableSchema,
        history: History,
        fields: Sequence[str] | None = None,
        *,
        found: Counter[str] | None = None,
    ) -> None:
        full = change_schema(schema)
        self.schema = full if fields is None else pa.schema([full.field(name) for name in fields])
        self.table = schema
        self._history = history
        self._found = Counter() if found is None else found
        self._keys = {field_name(c): c for c in schema.partition_key}
        self._clustering = {field_name(c): c for c in schema.clustering}
        written = {field_name(c): c for c in schema.static + schema.regular}
        self._written = {name: c for name, c in written.items() if name in self.schema.names}
        self._position = position_encoder(schema.clustering)

    @property
    def columns(self) -> list[str]:
        """The log's columns that are needed."""
        names = [L.STREAM, L.TIME, L.SEQUENCE, L.OPERATION, L.TTL, L.END_OF_BATCH]
        names += [c.name for c in self.table.partition_key + self.table.clustering]
        for column in self._written.values():
            names += [column.name, L.DELETED + column.name]
            if is_complex(column.type):
                names.append(L.DELETED_ELEMENTS + column.name)
        return names

    def convert(self, page: pa.RecordBatch, captured_at: datetime) -> pa.RecordBatch:
        """Return the changes of log rows, in which each start of a range is followed by its end.

        Raises:
            LogGap: a row cannot be read, because the table has been altered since.
            LogError: ScyllaDB does not write such a row.
            BadValue: a value is invalid for its type.
        """
        operations = L.operations(page)
        unknown = ~np.isin(operations, L.OPERATIONS)
        if unknown.any():
            raise LogError(
                f"{where_in(page, unknown, self.table)} has the operation {operations[unknown][0]}, which this "
                "version of Writetime does not support"
            )
        readable = self._history.readable(page, operations, self._found)
        ends = readable & np.isin(operations, _ENDS)
        kept = readable & ~np.isin(operations, _SAY_NOTHING)
        work = LogRows(
            self.table, page.filter(pa.array(kept)), operations[kept], page.filter(pa.array(ends)), operations[ends]
        )
        arrays = [self._array(work, name, captured_at) for name in self.schema.names]
        work.check_ranges(self._position)
        if not arrays:
            return pa.RecordBatch.from_struct_array(pa.nulls(work.count, pa.struct([])))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(self, work: "LogRows", name: str, captured_at: datetime) -> pa.Array:
        if name in self._keys:
            return decode(work.page[self._keys[name].name], self._keys[name].type)
        if name in self._clustering:
            column = self._clustering[name]
            return decode(_where(work.kinds == ROW, work.page[column.name]), column.type)
        if name in self._written:
            return work.column(self._written[name])
        match name:
            case "kind":
                return pa.DictionaryArray.from_arrays(pa.array(work.kinds), list(KINDS)).dictionary_decode()
            case "key":
                return work.keys
            case "token":
                return tokens(work.keys)
            case "position":
                return work.positions(self._position)
            case "end":
                return work.ends(self._position)
            case "marker":
                return work.marker()
            case "tombstone":
                return work.tombstone()
        return work.origin(captured_at)


class LogRows:
    """The rows of one page, each of which becomes a change."""

    def __init__(
        self,
        table: TableSchema,
        page: pa.RecordBatch,
        operations: np.ndarray,
        ends: pa.RecordBatch,
        end_operations: np.ndarray,
    ) -> None:
        self._table = table
        self.page = page
        self.count = page.num_rows
        self._operations = operations
        self._ends = ends
        self._end_operations = end_operations
        self.times = L.times(page)
        self._seconds = self.times // 1_000_000
        ttl = decode(page[L.TTL], Native("bigint")).fill_null(0).to_numpy()
        self._ttl = np.clip(ttl, 0, (1 << 31) - 1).astype(np.int32)
        self.kinds = np.array([_KIND[i] for i in operations.tolist()], np.int8)
        if table.clustering:
            # A readable row without a clustering key is static.
            without = np.all([nulls_of(page[c.name]) for c in table.clustering], axis=0)
            self.kinds[without & (self.kinds == ROW)] = STATIC

    @cached_property
    def keys(self) -> pa.Array:
        """The serialised partition keys (`CompositeType` if they have several columns)."""
        parts = [self.page[c.name] for c in self._table.partition_key]
        if len(parts) == 1:
            return parts[0]
        pieces: list[pa.Array | pa.Scalar] = []
        for part in parts:
            lengths = pc.binary_length(part).to_numpy().astype(">u2").view("S2")
            pieces += [_two_bytes(lengths), part, pa.scalar(b"\0", pa.binary())]
        return pc.binary_join_element_wise(*pieces, _EMPTY)

    def positions(self, encode: Encode) -> pa.Array:
        """Return the position of each change in its partition."""
        fixed = {STATIC: STATIC_POSITION, PARTITION_TOMBSTONE: PARTITION_POSITION}
        ends = {L.START_INCLUSIVE: BEFORE, L.START_EXCLUSIVE: AFTER}
        rows = zip(self.kinds.tolist(), self._operations.tolist(), self._clusterings(self.page), strict=True)
        made = [fixed[k] if k in fixed else encode(_prefix(values), ends.get(o, AT)) for k, o, values in rows]
        return pa.array(made, pa.binary())

    def ends(self, encode: Encode) -> pa.Array:
        """Return the end of each range."""
        made: list[bytes | None] = [None] * self.count
        at = np.flatnonzero(self.kinds == RANGE_TOMBSTONE).tolist()
        rows = zip(at, self._end_operations.tolist(), self._clusterings(self._ends), strict=True)
        for i, operation, values in rows:
            made[i] = encode(_prefix(values), AFTER if operation == L.END_INCLUSIVE else BEFORE)
        return pa.array(made, pa.binary())

    def check_ranges(self, encode: Encode) -> None:
        """Reject ranges whose bounds are not in the order of the clustering key."""
        if not self._ends.num_rows:
            return
        starts, ends = self.positions(encode), self.ends(encode)
        wrong = pc.greater(starts, ends).fill_null(False).to_numpy(zero_copy_only=False)
        if wrong.any():
            raise LogError(f"{where_in(self.page, wrong, self._table)} deletes a range that ends before it starts")

    def _clusterings(self, page: pa.RecordBatch) -> list[tuple[bytes | None, ...]]:
        if not self._table.clustering:
            return [()] * page.num_rows
        return list(zip(*(page[c.name].to_pylist() for c in self._table.clustering), strict=True))

    def marker(self) -> pa.Array:
        """Return the liveness of the rows that were inserted."""
        inserted = self._operations == L.INSERT
        expires = inserted & (self._ttl > 0)
        parts = [
            pa.array(self.times, mask=~inserted),
            pa.array(self._ttl, mask=~expires),
            pa.array(self._seconds + self._ttl, mask=~expires),
        ]
        return pa.StructArray.from_arrays(parts, fields=list(MARKER), mask=pa.array(~inserted))

    def tombstone(self) -> pa.Array:
        """Return the deletions of rows, ranges and partitions."""
        deletes = ~np.isin(self._operations, (L.UPDATE, L.INSERT))
        return self._tombstones(deletes, self.times)

    def _tombstones(self, there: np.ndarray, times: np.ndarray) -> pa.Array:
        parts = [pa.array(times, mask=~there), pa.array(self._seconds, mask=~there)]
        return pa.StructArray.from_arrays(parts, fields=list(TOMBSTONE), mask=pa.array(~there))

    def origin(self, captured_at: datetime) -> pa.Array:
        """Return the row of the log that each change was made of."""
        source, node = pa.repeat(pa.scalar("scylla_cdc"), self.count), pa.nulls(self.count, pa.string())
        times = decode(self.page[L.TIME], Native("timeuuid"))
        streams = self.page[L.STREAM].dictionary_encode()
        names = pa.array([f"0x{stream.hex()}" for stream in streams.dictionary.to_pylist()], pa.string())
        file = pc.binary_join_element_wise(names.take(streams.indices), times, "/")
        offset = decode(self.page[L.SEQUENCE], Native("int")).cast(pa.int64())
        captured = pa.repeat(pa.scalar(captured_at, pa.timestamp("us", "UTC")), self.count)
        return pa.StructArray.from_arrays([source, node, file, offset, captured], fields=list(ORIGIN))

    def column(self, column: Column) -> pa.Array:
        """Return a static or regular column."""
        deleted = _flags(self.page[L.DELETED + column.name])
        raw = self.page[column.name]
        if not is_complex(column.type):
            arrow = column_type(column.type)
            if (deleted & ~nulls_of(raw)).any():
                raise LogError(
                    f"the log of {self._table.full_name} both writes and deletes column {column.name} in one row"
                )
            return self._cells(raw, deleted, np.arange(self.count), column.type, arrow)
        dead = self.page[L.DELETED_ELEMENTS + column.name]
        # The tombstone of a whole column is older than the cells written with it.
        tombstone = self._tombstones(deleted, self.times - 1)
        if isinstance(column.type, Collection):
            parts, some = self._elements(column.type, raw, dead)
        else:
            parts, some = self._fields(column.type, raw, dead)
        arrow = column_type(column.type)
        return pa.StructArray.from_arrays([tombstone, parts], fields=list(arrow), mask=pa.array(~(some | deleted)))

    def _cells(
        self, raw: pa.Array, dead: np.ndarray, rows: np.ndarray, cql_type: CqlType, arrow: pa.DataType
    ) -> pa.StructArray:
        """Return cells, each of the row in `rows`: with a value where `raw` has one, tombstones where `dead`."""
        live = ~nulls_of(raw)
        there = live | dead
        times = self._cell_times(live, dead, rows)
        values = decode(raw, cql_type)
        parts = [values, *times, *_bytes(raw, values, cql_type)]
        return pa.StructArray.from_arrays(parts, fields=list(arrow), mask=pa.array(~there))

    def _cell_times(self, live: np.ndarray, dead: np.ndarray, rows: np.ndarray) -> list[pa.Array]:
        there = live | dead
        ttl = self._ttl[rows]
        expires = live & (ttl > 0)
        seconds = self._seconds[rows]
        return [
            pa.array(self.times[rows], mask=~there),
            pa.array(ttl, mask=~expires),
            pa.array(seconds + np.where(expires, ttl, 0), mask=~(expires | dead)),
            pa.array(dead, mask=~there),
        ]

    def _elements(self, cql_type: Collection, raw: pa.Array, dead: pa.Array) -> tuple[pa.Array, np.ndarray]:
        """Return the elements that were written and deleted, and which rows have some."""
        paths: list[bytes | None] = []
        values: list[bytes | None] = []
        flags: list[bool] = []
        counts = np.zeros(self.count, np.int32)
        is_set = cql_type.kind == "set"
        rows = np.flatnonzero(~(nulls_of(raw) & nulls_of(dead)))
        written_parts, dead_parts = raw.to_pylist(), dead.to_pylist()
        for row in rows.tolist():
            before = len(paths)
            if (data := written_parts[row]) is not None:
                parts = list(split_sequence(data, 4))
                paths += parts if is_set else parts[::2]
                values += [b""] * len(parts) if is_set else parts[1::2]
            written = len(paths) - before
            if (data := dead_parts[row]) is not None:
                paths += split_sequence(data, 4)
            counts[row] = len(paths) - before
            gone = len(paths) - before - written
            values += [None] * gone
            flags += [False] * written + [True] * gone
        of = np.repeat(np.arange(self.count), counts)
        gone_flags = np.array(flags, bool)
        arrow = column_type(cql_type).field("elements").type
        raws = [pa.array(each, pa.binary()) for each in ((paths,) if is_set else (paths, values))]
        types = [t for _, t in element_types(cql_type)]
        children = list(map(decode, raws, types))
        exact = [part for each in zip(raws, children, types, strict=True) for part in _bytes(*each)]
        children += [*self._cell_times(~gone_flags, gone_flags, of), *exact]
        elements = pa.StructArray.from_arrays(children, fields=list(arrow.value_type))
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), elements, type=arrow), counts > 0

    def _fields(self, cql_type: CqlType, raw: pa.Array, dead: pa.Array) -> tuple[pa.Array, np.ndarray]:
        """Return the fields that were written and deleted, and which rows have some. A null field was not written."""
        fields = udt_fields(cql_type)
        values: list[list[bytes | None]] = [[None] * self.count for _ in fields]
        gone = np.zeros((len(fields), self.count), bool)
        for row in np.flatnonzero(~nulls_of(raw)).tolist():
            for i, part in enumerate(split_fields(raw[row].as_py(), cql_type, len(fields))):
                values[i][row] = part
        for row in np.flatnonzero(~nulls_of(dead)).tolist():
            for part in split_sequence(dead[row].as_py(), 4):
                index = int.from_bytes(part or b"", "big")
                if index >= len(fields):
                    raise UnknownFields(f"field {index} of a {cql_type} was deleted, which has {len(fields)}")
                gone[index, row] = True
        arrow = column_type(cql_type).field("fields").type
        rows = np.arange(self.count)
        cells = [
            self._cells(pa.array(values[i], pa.binary()), gone[i], rows, t, arrow.field(name).type)
            for i, (name, t) in enumerate(fields)
        ]
        some = np.any([cell.is_valid().to_numpy(zero_copy_only=False) for cell in cells], axis=0)
        return pa.StructArray.from_arrays(cells, fields=list(arrow)), some


def _bytes(raw: pa.Array, values: pa.Array, cql_type: CqlType) -> list[pa.Array]:
    """Return the bytes of decoded values where decoding lost some, if it loses some of the type's values."""
    if not loses_parts(cql_type):
        return []
    found = map(other_bytes(cql_type), raw.to_pylist(), plain(values).to_pylist())
    return [pa.array(list(found), pa.binary())]


def _flags(array: pa.Array) -> np.ndarray:
    return decode(array, Native("boolean")).fill_null(False).to_numpy(zero_copy_only=False)


def _where(mask: np.ndarray, array: pa.Array) -> pa.Array:
    return array if mask.all() else pc.if_else(pa.array(mask), array, pa.scalar(None, pa.binary()))


def _prefix(values: tuple[bytes | None, ...]) -> list[bytes]:
    """Return the values of a clustering key or of a bound, which ends at the first null."""
    found = []
    for value in values:
        if value is None:
            break
        found.append(value)
    return found


def _two_bytes(lengths: np.ndarray) -> pa.Array:
    offsets = pa.py_buffer(np.arange(0, 2 * len(lengths) + 1, 2, dtype=np.int32))
    return pa.Array.from_buffers(pa.binary(), len(lengths), [None, offsets, pa.py_buffer(lengths.tobytes())])
