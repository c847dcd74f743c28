"""Converts delta rows of a log to changes: each row's effect on its partition, with the write time in the log.

Rules (ScyllaDB's `cdc/log.cc`, docs/features/cdc):

- The time of `cdc$time` is the write time of a row's data, but the tombstone of a whole collection or user-defined type
  is one microsecond older.
- `cdc$ttl` applies to all live data in the row.
- The log has neither the expiry time of a cell nor the deletion time of a tombstone. Both follow from the write time.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cached_property
from itertools import takewhile

import numpy as np
import pyarrow as pa

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
from writetime.core.arrow import pc, valid
from writetime.schema.columnar import decode
from writetime.schema.serialise import loses_parts, other_bytes
from writetime.schema.serialise_arrays import partition_keys, plain
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Collection, CqlType, Native, is_complex
from writetime.schema.values import UnknownFields, split_fields, split_sequence
from writetime.scylla_cdc import log as L
from writetime.scylla_cdc.column_history import History, where_in
from writetime.scylla_cdc.log import LogError
from writetime.storage.kernel.primitives import tokens

_KIND = dict.fromkeys(L.OPERATIONS, ROW)
_KIND |= {L.START_INCLUSIVE: RANGE_TOMBSTONE, L.START_EXCLUSIVE: RANGE_TOMBSTONE}
_KIND |= {L.PARTITION_DELETE: PARTITION_TOMBSTONE, L.EXPIRED_PARTITION: PARTITION_TOMBSTONE}
_ENDS = (L.END_INCLUSIVE, L.END_EXCLUSIVE)
_SAY_NOTHING = (L.PREIMAGE, L.POSTIMAGE, *_ENDS)
_NULL = pa.scalar(None, pa.binary())

Encode = Callable[[Sequence[bytes | None], bytes], bytes]


class Deltas:
    """Converts the log rows of one table to changes, with the requested fields, in their order."""

    def __init__(
        self,
        table: TableSchema,
        history: History,
        fields: Sequence[str] | None = None,
        found: Counter[str] | None = None,
    ) -> None:
        full = change_schema(table)
        self.schema = full if fields is None else pa.schema([full.field(name) for name in fields])
        self.table = table
        self._history = history
        self._found = Counter() if found is None else found
        self._captured_at = datetime.now(UTC)
        self._keys = {field_name(c): c for c in table.partition_key}
        self._clustering = {field_name(c): c for c in table.clustering}
        written = {field_name(c): c for c in table.static + table.regular}
        self._written = {name: c for name, c in written.items() if name in self.schema.names}
        self._encode = position_encoder(table.clustering)
        self.columns = L.row_columns(table)
        """The log's columns that are needed."""
        for column in self._written.values():
            self.columns += [column.name, L.DELETED + column.name]
            if is_complex(column.type):
                self.columns.append(L.DELETED_ELEMENTS + column.name)

    def convert(self, page: pa.RecordBatch) -> pa.RecordBatch:
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
        rows = LogRows(self.table, self._encode, page.filter(pa.array(kept)), page.filter(pa.array(ends)))
        arrays = [self._array(rows, name) for name in self.schema.names]
        rows.check_ranges()
        if not arrays:
            return pa.RecordBatch.from_struct_array(pa.nulls(rows.count, pa.struct([])))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(self, rows: "LogRows", name: str) -> pa.Array:
        if name in self._keys:
            return decode(rows.page[self._keys[name].name], self._keys[name].type)
        if name in self._clustering:
            column = self._clustering[name]
            values, are_rows = rows.page[column.name], rows.kinds == ROW
            return decode(values if are_rows.all() else pc.if_else(pa.array(are_rows), values, _NULL), column.type)
        if name in self._written:
            return rows.column(self._written[name])
        if name == "origin":
            return rows.origin(self._captured_at)
        # `LogRows` has the other fields by their names.
        return getattr(rows, name)


class LogRows:
    """The rows of one page, each of which becomes a change, and the rows with the ends of its ranges."""

    def __init__(self, table: TableSchema, encode: Encode, page: pa.RecordBatch, ends: pa.RecordBatch) -> None:
        self._table = table
        self._encode = encode
        self.page = page
        self.count = page.num_rows
        self._operations = L.operations(page)
        self._ends = ends
        self.times = L.times(page)
        self._seconds = self.times // 1_000_000
        ttl = decode(page[L.TTL], Native("bigint")).fill_null(0).to_numpy()
        self._ttl = np.clip(ttl, 0, (1 << 31) - 1).astype(np.int32)
        self.kinds = np.array([_KIND[i] for i in self._operations.tolist()], np.int8)
        if table.clustering:
            # A readable row without a clustering key is static.
            without = ~np.any([valid(page[c.name]) for c in table.clustering], axis=0)
            self.kinds[without & (self.kinds == ROW)] = STATIC

    @property
    def kind(self) -> pa.Array:
        """The kinds by their names."""
        return pa.DictionaryArray.from_arrays(pa.array(self.kinds), list(KINDS)).dictionary_decode()

    @cached_property
    def key(self) -> pa.Array:
        """The serialised partition keys (`CompositeType` if they have several columns)."""
        return partition_keys([self.page[c.name] for c in self._table.partition_key])

    @property
    def token(self) -> pa.Array:
        """The tokens of the partitions."""
        return tokens(self.key)

    @cached_property
    def position(self) -> pa.Array:
        """The position of each change in its partition."""
        fixed = {STATIC: STATIC_POSITION, PARTITION_TOMBSTONE: PARTITION_POSITION}
        starts = {L.START_INCLUSIVE: BEFORE, L.START_EXCLUSIVE: AFTER}
        rows = zip(self.kinds.tolist(), self._operations.tolist(), self._prefixes(self.page), strict=True)
        made = [fixed[k] if k in fixed else self._encode(prefix, starts.get(o, AT)) for k, o, prefix in rows]
        return pa.array(made, pa.binary())

    @cached_property
    def end(self) -> pa.Array:
        """The end of each range."""
        made: list[bytes | None] = [None] * self.count
        at = np.flatnonzero(self.kinds == RANGE_TOMBSTONE).tolist()
        rows = zip(at, L.operations(self._ends).tolist(), self._prefixes(self._ends), strict=True)
        for i, operation, prefix in rows:
            made[i] = self._encode(prefix, AFTER if operation == L.END_INCLUSIVE else BEFORE)
        return pa.array(made, pa.binary())

    def check_ranges(self) -> None:
        """Reject ranges whose bounds are not in the order of the clustering key."""
        if self._ends.num_rows:
            wrong = pc.greater(self.position, self.end).fill_null(False).to_numpy(zero_copy_only=False)
            if wrong.any():
                where = where_in(self.page, wrong, self._table)
                raise LogError(f"{where} deletes a range that ends before it starts")

    def _prefixes(self, page: pa.RecordBatch) -> list[list[bytes | None]]:
        """Return the clustering keys of rows and of bounds, which end at the first null."""
        if not self._table.clustering:
            return [[]] * page.num_rows
        rows = zip(*(page[c.name].to_pylist() for c in self._table.clustering), strict=True)
        return [list(takewhile(lambda part: part is not None, row)) for row in rows]

    @property
    def marker(self) -> pa.Array:
        """The liveness of the rows that were inserted."""
        inserted = self._operations == L.INSERT
        expires = inserted & (self._ttl > 0)
        parts = [
            pa.array(self.times, mask=~inserted),
            pa.array(self._ttl, mask=~expires),
            pa.array(self._seconds + self._ttl, mask=~expires),
        ]
        return pa.StructArray.from_arrays(parts, fields=list(MARKER), mask=pa.array(~inserted))

    @property
    def tombstone(self) -> pa.Array:
        """The deletions of rows, ranges and partitions."""
        return self._tombstones(~np.isin(self._operations, (L.UPDATE, L.INSERT)), self.times)

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
        deleted = L.flags(self.page[L.DELETED + column.name])
        raw = self.page[column.name]
        if not is_complex(column.type):
            if (deleted & valid(raw)).any():
                raise LogError(
                    f"the log of {self._table.full_name} both writes and deletes column {column.name} in one row"
                )
            return self._cells(raw, deleted, column.type, column_type(column.type))
        dead = self.page[L.DELETED_ELEMENTS + column.name]
        # The tombstone of a whole column is older than the cells written with it.
        tombstone = self._tombstones(deleted, self.times - 1)
        if isinstance(column.type, Collection):
            parts, some = self._elements(column.type, raw, dead)
        else:
            parts, some = self._fields(column.type, raw, dead)
        arrow = column_type(column.type)
        return pa.StructArray.from_arrays([tombstone, parts], fields=list(arrow), mask=pa.array(~(some | deleted)))

    def _cells(self, raw: pa.Array, dead: np.ndarray, cql_type: CqlType, arrow: pa.DataType) -> pa.StructArray:
        """Return the cells of all rows: with a value where `raw` has one, tombstones where `dead`."""
        live = valid(raw)
        values = decode(raw, cql_type)
        parts = [values, *self._cell_times(live, dead, np.arange(self.count)), *_bytes(raw, values, cql_type)]
        return pa.StructArray.from_arrays(parts, fields=list(arrow), mask=pa.array(~(live | dead)))

    def _cell_times(self, live: np.ndarray, dead: np.ndarray, rows: np.ndarray) -> list[pa.Array]:
        """Return the fields of cells, each of the row in `rows`, that have their times."""
        there = live | dead
        ttl = self._ttl[rows]
        expires = live & (ttl > 0)
        return [
            pa.array(self.times[rows], mask=~there),
            pa.array(ttl, mask=~expires),
            pa.array(self._seconds[rows] + np.where(expires, ttl, 0), mask=~(expires | dead)),
            pa.array(dead, mask=~there),
        ]

    def _elements(self, cql_type: Collection, raw: pa.Array, dead: pa.Array) -> tuple[pa.Array, np.ndarray]:
        """Return the elements that were written and deleted, and which rows have some."""
        paths: list[bytes | None] = []
        values: list[bytes | None] = []
        flags: list[bool] = []
        counts = np.zeros(self.count, np.int32)
        is_set = cql_type.kind == "set"
        written_parts, dead_parts = raw.to_pylist(), dead.to_pylist()
        for row in np.flatnonzero(valid(raw) | valid(dead)).tolist():
            parts = list(split_sequence(written_parts[row], 4)) if written_parts[row] is not None else []
            gone = list(split_sequence(dead_parts[row], 4)) if dead_parts[row] is not None else []
            written = parts if is_set else parts[::2]
            paths += [*written, *gone]
            values += [*([b""] * len(parts) if is_set else parts[1::2]), *([None] * len(gone))]
            flags += [False] * len(written) + [True] * len(gone)
            counts[row] = len(written) + len(gone)
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
        for row in np.flatnonzero(valid(raw)).tolist():
            for i, part in enumerate(split_fields(raw[row].as_py(), cql_type, len(fields))):
                values[i][row] = part
        for row in np.flatnonzero(valid(dead)).tolist():
            for part in split_sequence(dead[row].as_py(), 4):
                index = int.from_bytes(part or b"", "big")
                if index >= len(fields):
                    raise UnknownFields(f"field {index} of a {cql_type} was deleted, which has {len(fields)}")
                gone[index, row] = True
        arrow = column_type(cql_type).field("fields").type
        cells = [
            self._cells(pa.array(values[i], pa.binary()), gone[i], t, arrow.field(name).type)
            for i, (name, t) in enumerate(fields)
        ]
        some = np.any([valid(cell) for cell in cells], axis=0)
        return pa.StructArray.from_arrays(cells, fields=list(arrow)), some


def _bytes(raw: pa.Array, values: pa.Array, cql_type: CqlType) -> list[pa.Array]:
    """Return the bytes of decoded values where decoding lost some, if it loses some of the type's values."""
    if not loses_parts(cql_type):
        return []
    found = map(other_bytes(cql_type), raw.to_pylist(), plain(values).to_pylist())
    return [pa.array(list(found), pa.binary())]
