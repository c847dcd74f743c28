"""Turns merged changes into statements, by row: each cell and deletion with its own write time.

Cells of one row with one write time and one expiry are written together. A cell that has expired is deleted at its
write time, as it deletes older ones. CQL cannot delete a marker alone, so an expired one becomes one that expires after
a second.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from cassandra.query import BoundStatement

from writetime.changes.clusterings import clustering_decoder
from writetime.changes.model import KINDS, PARTITION_TOMBSTONE, RANGE_TOMBSTONE, ROW, STATIC, field_name
from writetime.core.arrow import one_chunk, pc
from writetime.merge.cells import cells_of
from writetime.merge.precedence import EXPIRED_TTL
from writetime.replication.cell_statements import NO_TTL, CellStatements, rest_of_ttl
from writetime.replication.slices import slices_of
from writetime.replication.target_table import is_list
from writetime.schema.serialise import key_splitter, loses_parts
from writetime.schema.serialise_arrays import serialised_array
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Collection, is_complex

_SHORT_TTL = 1
# Python's objects take many times the bytes of Arrow.
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 5_000, 4 << 20
_ROW, _STATIC, _RANGE, _PARTITION = (KINDS[code] for code in (ROW, STATIC, RANGE_TOMBSTONE, PARTITION_TOMBSTONE))

_Time = tuple[int, int | None]
"""A write time (microseconds), and an expiry (seconds)."""


@dataclass
class _Row:
    """The cells of a row: simple ones by their time and name, and parts by their column and time. None deletes one."""

    simple: dict[_Time, dict[str, bytes | None]] = field(default_factory=lambda: defaultdict(dict))
    parts: dict[tuple[int, _Time], list[tuple[bytes, bytes | None]]] = field(default_factory=lambda: defaultdict(list))


class RowWrites:
    """Makes the statements of a table without counters. Those for lists are for ScyllaDB only."""

    def __init__(self, statements: CellStatements, schema: TableSchema) -> None:
        self._statements, self._schema = statements, schema
        self._columns = schema.static + schema.regular
        self._split = key_splitter(len(schema.partition_key))
        self._decode = clustering_decoder(schema.clustering)

    def of(self, state: pa.Table, clock: Callable[[], float]) -> Iterator[tuple[bytes, list[BoundStatement]]]:
        """Yield the partition key of each row, range and deletion of merged changes, and its statements. TTLs count
        from the time (seconds) at which a row is requested, because the target may be slow.
        """
        count = max(min(_ROWS_AT_ONCE, _BYTES_AT_ONCE * len(state) // max(state.nbytes, 1)), 1)
        for start in range(0, len(state), count):
            yield from self._of_some(state.slice(start, count), clock)

    def _of_some(self, state: pa.Table, clock: Callable[[], float]) -> Iterator[tuple[bytes, list[BoundStatement]]]:
        rows = self._cells(state)
        names = ("kind", "key", "position", "end", "marker", "tombstone")
        fields = zip(*(state[name].to_pylist() for name in names), strict=True)
        clusterings = self._clusterings(state)
        deletions = {
            number: pc.struct_field(one_chunk(state[field_name(column)]), ["tombstone", "write_time"]).to_pylist()
            for number, column in enumerate(self._columns)
            if is_complex(column.type)
        }
        for entry, (kind, key, position, end, marker, tombstone) in enumerate(fields):
            keys = self._split(key)
            if kind == _RANGE:
                yield key, list(self._of_range(keys, position, end, tombstone["write_time"]))
                continue
            if kind == _ROW:
                decoded = self._decode(position)
                keys += [
                    value if form[entry] is None else form[entry]
                    for value, form in zip(decoded, clusterings, strict=True)
                ]
            found = [] if tombstone is None else [self._statements.delete(keys, tombstone["write_time"])]
            if kind in (_ROW, _STATIC):
                found += [
                    self._statements.delete_column(self._columns[number], keys, times[entry])
                    for number, times in deletions.items()
                    if times[entry] is not None
                ]
                row = rows.get(entry) or _Row()
                found += self._of_row(keys, marker, row, int(clock()), is_static=kind == _STATIC)
            yield key, found

    def _cells(self, state: pa.Table) -> dict[int, _Row]:
        rows: dict[int, _Row] = defaultdict(_Row)
        for number, column in enumerate(self._columns):
            complex_column = is_complex(column.type)
            for part in cells_of(one_chunk(state[field_name(column)]), column.type, pa.StructArray.is_valid):
                cells = part.cells
                columns = [part.paths, part.values, cells.field("write_time"), part.expiries, cells.field("tombstone")]
                for entry, path, value, write_time, expiry, deleted in zip(
                    part.entries.tolist(), *(each.to_pylist() for each in columns), strict=True
                ):
                    written = None if deleted else value
                    if complex_column:
                        rows[entry].parts[number, (write_time, expiry)].append((path, written))
                    else:
                        rows[entry].simple[write_time, expiry][column.name] = written
        return rows

    def _of_row(
        self, keys: list[bytes | None], marker: dict[str, int | None] | None, row: _Row, now: int, *, is_static: bool
    ) -> Iterator[BoundStatement]:
        write = self._statements
        if marker is not None:
            write_time, expiry = marker["write_time"], marker["expiry"]
            assert write_time is not None
            ttl = None if marker["ttl"] == EXPIRED_TTL else rest_of_ttl(expiry, now)
            if ttl is None:
                yield write.insert(keys, {}, write_time, _SHORT_TTL)
            else:
                yield write.insert(keys, row.simple.pop((write_time, expiry), {}), write_time, ttl)
        for (write_time, expiry), values in row.simple.items():
            ttl = rest_of_ttl(expiry, now)
            written = dict.fromkeys(values) if ttl is None else values
            yield write.update(keys, written, write_time, ttl or NO_TTL, static=is_static)
        for (number, (write_time, expiry)), parts in row.parts.items():
            ttl = rest_of_ttl(expiry, now)
            parts_now = [(path, None) for path, _ in parts] if ttl is None else parts
            yield from self._of_parts(self._columns[number], keys, parts_now, write_time, ttl or NO_TTL)

    def _of_parts(
        self,
        column: Column,
        keys: list[bytes | None],
        parts: Sequence[tuple[bytes, bytes | None]],
        write_time: int,
        ttl: int,
    ) -> Iterator[BoundStatement]:
        write = self._statements
        if is_list(column):
            yield from (write.set_list_element(column, keys, part, write_time, ttl) for part in parts)
            return
        is_collection = isinstance(column.type, Collection)
        if gone := [path for path, value in parts if value is None and is_collection]:
            yield write.delete_elements(column, keys, gone, write_time)
        if kept := [part for part in parts if part[1] is not None or not is_collection]:
            yield write.add_parts(column, keys, kept, write_time, ttl)

    def _of_range(
        self, keys: list[bytes | None], start: bytes, end: bytes, write_time: int
    ) -> Iterator[BoundStatement]:
        for each in slices_of(start, end, self._schema.clustering, self._decode):
            prefix = [*keys, *each.equal]
            if each.bounds:
                yield self._statements.delete_slice(prefix, each.bounds, write_time)
            else:
                yield self._statements.delete(prefix, write_time)

    def _clusterings(self, state: pa.Table) -> list[list[bytes | None]]:
        """Return the clustering values of rows in the form in which they were written. A position has one of the forms
        that are equal, such as 1 and 1.0, but all bytes of values whose decoded form loses some; these are None here.
        """
        found = []
        for column in self._schema.clustering:
            array = one_chunk(state[field_name(column)])
            is_lossy = loses_parts(column.type)
            values = [None] * len(array) if is_lossy else serialised_array(array, column.type).to_pylist()
            valid = array.is_valid().to_pylist()
            found.append([value if is_valid else None for value, is_valid in zip(values, valid, strict=True)])
        return found
