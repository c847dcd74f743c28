"""The kernel's lines of numbers for a table's columns, and the buffers that the kernel writes to."""

from collections.abc import Collection as Names
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from writetime.changes.model import cell_type, column_type, element_types, field_name, udt_fields
from writetime.core.arrow import Constant
from writetime.schema.mapping import stored_type
from writetime.schema.table import Column, DroppedColumn, TableSchema, storage_order
from writetime.schema.types import Collection, CqlType, Native, is_complex
from writetime.storage.infer import END_OF_TIME, NO_TIME, last_drops
from writetime.storage.kernel import layout as L
from writetime.storage.kernel import primitives as P
from writetime.storage.kernel.allocate import rooms

# By the native type: the form of output values, and the method that makes clustering values comparable. Python decodes
# and compares others.
_NATIVES = {
    "ascii": (L.BYTES, P.COMPARE_BYTES),
    "bigint": (L.FIXED8, P.COMPARE_BIGINT),
    "blob": (L.BYTES, P.COMPARE_BYTES),
    "boolean": (L.BOOLEAN, P.COMPARE_BOOLEAN),
    "counter": (L.COUNTER, P.COMPARE_OTHER),
    "date": (L.DATE, P.COMPARE_PLAIN),
    "double": (L.FIXED8, P.COMPARE_FLOAT),
    "float": (L.FIXED4, P.COMPARE_FLOAT),
    "inet": (L.BYTES, P.COMPARE_BYTES),
    "int": (L.FIXED4, P.COMPARE_SIGNED),
    "smallint": (L.FIXED2, P.COMPARE_SIGNED),
    "text": (L.BYTES, P.COMPARE_BYTES),
    "time": (L.FIXED8, P.COMPARE_PLAIN),
    "timestamp": (L.FIXED8, P.COMPARE_SIGNED),
    "timeuuid": (L.UUID_TEXT, P.COMPARE_TIMEUUID),
    "tinyint": (L.FIXED1, P.COMPARE_SIGNED),
    "uuid": (L.UUID_TEXT, P.COMPARE_UUID),
}
_TEXTS = ("text", "ascii", "blob", "empty")


@dataclass
class ColumnLayout:
    """One line of the kernel's COLUMNS. `cells`: its values are cells, with their own times."""

    name: str
    type: CqlType
    index: int
    shape: int = L.SIMPLE
    cells: bool = True
    wanted: bool = True
    key: bool = False
    part: bool = False
    static: bool = False
    dropped_at: int = NO_TIME
    former: bool = False
    reverse: bool = False
    children: list["ColumnLayout"] = field(default_factory=list)

    @property
    def form(self) -> int:
        """The form of the output values; `BYTES` if Python decodes them."""
        return self._native[0]

    @property
    def compare(self) -> int:
        """The method that makes values of a clustering column comparable."""
        return self._native[1]

    @property
    def _native(self) -> tuple[int, int]:
        name = self.type.name if isinstance(self.type, Native) else ""
        return _NATIVES.get(name, (L.BYTES, P.COMPARE_OTHER))

    @cached_property
    def no_value(self) -> Constant:
        """A null of the Arrow type of a value, repeated."""
        return Constant(None, stored_type(self.type))

    @cached_property
    def no_cell(self) -> Constant:
        """A null of the Arrow type of a cell, repeated."""
        is_counter = self.form == L.COUNTER
        return Constant(None, column_type(self.type) if is_counter else cell_type(self.type))

    @cached_property
    def no_column(self) -> Constant:
        """A null of the Arrow type of the column, repeated."""
        return Constant(None, column_type(self.type))

    def numbers(self) -> list[int]:
        """The line's constant numbers; addresses are 0."""
        numbers = [0] * L.COLUMN_FIELDS
        length = self.type.fixed_length
        # The cells of a collection or UDT have their length before the value, with any type.
        numbers[L.LENGTH] = -1 if length is None or self.part else length
        numbers[L.FORM] = self.form
        numbers[L.SHAPE] = self.shape
        numbers[L.DROPPED_AT] = self.dropped_at
        numbers[L.FORMER] = self.former
        if self.children:
            numbers[L.CHILD] = self.children[0].index
        if self.shape == L.UDT:
            numbers[L.CHILDREN] = len(self.children)
        numbers[L.WANTED] = self.wanted
        numbers[L.EMPTY_IS_VALUE] = isinstance(self.type, Native) and self.type.name in _TEXTS
        numbers[L.COMPARE] = self.compare
        numbers[L.REVERSE] = self.reverse
        numbers[L.IS_STATIC] = self.static
        return numbers


class Plan:
    """The lines of one table: its key, then columns with one value per row, then the elements of its collections.

    `fields` are the requested fields of the change; None for all. `former` are the columns to skip, see
    `infer.former_columns`; by default those that were dropped and not added again.
    """

    def __init__(
        self,
        schema: TableSchema,
        fields: Names[str] | None = None,
        first: int = 0,
        former: Sequence[DroppedColumn] | None = None,
    ) -> None:
        self.schema = schema
        self.start = self._next = first
        self._fields = fields
        self.key = [
            self._add(c.name, c.type, cells=False, wanted=self._wants(c), key=True) for c in schema.partition_key
        ]
        self.first = self._next
        self.clustering = [
            self._add(c.name, c.type, cells=False, wanted=self._wants(c), reverse=c.reversed) for c in schema.clustering
        ]
        dropped_at = last_drops(schema)
        self.columns: dict[str, ColumnLayout] = {}
        for columns, static in ((schema.static, True), (schema.regular, False)):
            for column in storage_order(columns):
                at = dropped_at.get(column.name, NO_TIME)
                self.columns[column.name] = self._column(column, static, at, wanted=self._wants(column))
        if former is None:
            former = [replace(d, dropped_at=END_OF_TIME) for d in schema.dropped if d.name not in self.columns]
        # By kind and name.
        self._former: dict[tuple[bool, str], ColumnLayout] = {}
        for d in former:
            kind = bool(d.static), d.name
            if kind not in self._former:
                column = Column(d.name, d.type)
                self._former[kind] = self._column(column, kind[0], d.dropped_at, wanted=False, former=True)
        self.last = self._next
        for line in self.stored():
            if line.shape == L.COLLECTION:
                self._elements(line)
        self.end = self._next

    @property
    def encodes_position(self) -> bool:
        """Whether the kernel writes positions. It does not if a clustering column has a type that Python encodes."""
        return all(line.compare != P.COMPARE_OTHER for line in self.clustering)

    def stored(self) -> list[ColumnLayout]:
        """The lines of all static and regular columns, including former ones."""
        return [*self.columns.values(), *self._former.values()]

    def lines(self) -> list[ColumnLayout]:
        """All lines, in order."""
        lines = [*self.key, *self.clustering]
        for line in self.stored():
            lines += [line, *line.children]
        return sorted(lines, key=lambda line: line.index)

    def header(self, static: Sequence[str], regular: Sequence[str]) -> list[int]:
        """Return the lines of a header's columns, in the same order."""
        kinds = [(True, name) for name in static] + [(False, name) for name in regular]
        return [(self._former.get(kind) or self.columns[kind[1]]).index for kind in kinds]

    def _wants(self, column: Column) -> bool:
        return self._fields is None or field_name(column) in self._fields

    def _add(self, name: str, cql_type: CqlType, **options: Any) -> ColumnLayout:
        line = ColumnLayout(name, cql_type, self._next, **options)
        self._next += 1
        return line

    def _column(
        self, column: Column, static: bool, dropped_at: int, *, wanted: bool, former: bool = False
    ) -> ColumnLayout:
        options = {"static": static, "dropped_at": dropped_at, "former": former, "wanted": wanted}
        if not is_complex(column.type):
            return self._add(column.name, column.type, **options)
        shape = L.COLLECTION if isinstance(column.type, Collection) else L.UDT
        line = self._add(column.name, column.type, shape=shape, cells=False, **options)
        if shape == L.UDT:
            line.children = [self._child(line, name, t) for name, t in udt_fields(column.type)]
        return line

    def _child(self, parent: ColumnLayout, name: str, cql_type: CqlType, *, cells: bool = True) -> ColumnLayout:
        options = {"dropped_at": parent.dropped_at, "former": parent.former, "wanted": parent.wanted}
        return self._add(name, cql_type, cells=cells, part=True, **options)

    def _elements(self, line: ColumnLayout) -> None:
        assert isinstance(line.type, Collection)
        parts = dict(element_types(line.type))
        # The elements of a set have no value.
        value = self._child(line, "value", parts.get("value", Native("empty")))
        line.children = [value, self._child(line, "path", parts["path"], cells=False)]


# The number of entries of an array, and their type.
_Room = tuple[int, type[np.generic]]


class Buffers:
    """Buffers for the kernel's output from up to `capacity` bytes of input, for some tables, and its number tables."""

    def __init__(self, plans: Sequence[Plan], capacity: int) -> None:
        self.capacity = capacity
        self.entries = capacity // 2 + 2
        lines = [line for plan in plans for line in plan.lines()]
        of_lines, of_tables = [self._of_line(line) for line in lines], [self._of_table(plan) for plan in plans]
        numbers: list[_Room] = [(len(lines) * L.COLUMN_FIELDS, np.int64), (len(plans) * L.TABLE_FIELDS, np.int64)]
        clusterings = max((len(plan.clustering) for plan in plans), default=0)
        numbers.append((4 * capacity + 4 * clusterings + 64, np.uint8))
        found = iter(rooms([*numbers, *(room for each in (*of_lines, *of_tables) for room in each.values())]))
        self.columns = next(found).reshape(len(lines), L.COLUMN_FIELDS)
        for line, numbers_of_line in zip(lines, self.columns, strict=True):
            numbers_of_line[:] = line.numbers()
        self.tables = next(found).reshape(len(plans), L.TABLE_FIELDS)
        # The position at which the open range tombstone starts.
        self.open_start = next(found)
        arrays = [{number: next(found) for number in each} for each in of_lines]
        self.arrays = {line.index: each for line, each in zip(lines, arrays, strict=True)}
        self.table_arrays = [{number: next(found) for number in each} for each in of_tables]
        for index, each in self.arrays.items():
            for number, array in each.items():
                self.columns[index, number] = array.ctypes.data
        for i, plan in enumerate(plans):
            for number, array in self.table_arrays[i].items():
                self.tables[i, number] = array.ctypes.data
            self._set_table(i, plan)
        # The names by which commit logs refer to columns. They are kept, because the kernel has their addresses.
        self._names = [(line, np.frombuffer(line.name.encode(), np.uint8)) for plan in plans for line in plan.stored()]
        for line, name in self._names:
            self.columns[line.index, L.NAME_ADDRESS] = name.ctypes.data
            self.columns[line.index, L.NAME_LENGTH] = len(name)
        self._columns_at_start = self.columns.copy()
        self._tables_at_start = self.tables.copy()

    def reset(self) -> None:
        """Empty all buffers."""
        self.columns[:] = self._columns_at_start
        self.tables[:] = self._tables_at_start

    def key_bytes(self, table: int) -> int:
        """Return the bytes of the keys of a table's changes, if each change repeats the key of its partition."""
        arrays, partitions = self.table_arrays[table], int(self.tables[table, L.PARTITIONS])
        counts = np.diff(arrays[L.FIRST_ROW][:partitions], append=np.int32(self.tables[table, L.ROWS]))
        return int(np.dot(np.diff(arrays[L.KEY_OFFSETS][: partitions + 1]).astype(np.int64), counts))

    def cut(self, table: int, rows: int) -> None:
        """Keep only the first `rows` changes of a table."""
        numbers = self.tables[table]
        starts = self.table_arrays[table][L.FIRST_ROW][: int(numbers[L.PARTITIONS])]
        numbers[L.PARTITIONS], numbers[L.ROWS] = int(np.searchsorted(starts, rows)), rows

    def _of_line(self, line: ColumnLayout) -> dict[int, _Room]:
        if not line.wanted:
            return {}
        n = self.entries
        needed: dict[int, _Room] = {L.STATE: (n, np.uint8)}
        if line.shape == L.SIMPLE:
            if line.form in L.WIDTH:
                needed[L.VALUES] = n * L.WIDTH[line.form], np.uint8
            else:
                # 16 bytes of a UUID become 36 characters. The key may come from an earlier window.
                needed[L.VALUES] = self.capacity * 9 // 4 + 64 + (L.KEY_ROOM if line.key else 0), np.uint8
                needed[L.OFFSETS] = n + 1, np.int32
        if line.shape == L.COLLECTION:
            needed[L.OFFSETS] = n + 1, np.int32
        if line.cells or line.shape != L.SIMPLE:
            needed[L.WRITE_TIME] = n, np.int64
            needed[L.DELETION_TIME] = n, np.int64
        if line.cells:
            needed[L.TTL] = n, np.int32
        return needed

    def _of_table(self, plan: Plan) -> dict[int, _Room]:
        n = self.entries
        # A byte of a clustering key may be escaped; each value has a byte before it even if it takes none on disk; the
        # start of a range tombstone may come from an earlier window.
        position_bytes = 4 * self.capacity + n * (len(plan.clustering) + 4) + 64
        return {
            L.ROW_KIND: (n, np.int8),
            L.FIRST_ROW: (n + 1, np.int32),
            L.ROW_OFFSET: (n, np.int64),
            L.POSITION_OFFSETS: (n + 1, np.int32),
            L.POSITION_BYTES: (position_bytes, np.uint8),
            L.END_OFFSETS: (n + 1, np.int32),
            L.END_BYTES: (position_bytes, np.uint8),
            L.MARKER_STATE: (n, np.uint8),
            L.MARKER_WRITE_TIME: (n, np.int64),
            L.MARKER_TTL: (n, np.int32),
            L.MARKER_EXPIRY: (n, np.int64),
            L.TOMBSTONE_STATE: (n, np.uint8),
            L.TOMBSTONE_WRITE_TIME: (n, np.int64),
            L.TOMBSTONE_DELETION_TIME: (n, np.int64),
            L.KEY_OFFSETS: (n + 1, np.int32),
            L.KEY_BYTES: (self.capacity + L.KEY_ROOM, np.uint8),
            L.TOKENS: (n, np.int64),
        }

    def _set_table(self, i: int, plan: Plan) -> None:
        table = self.tables[i]
        table[L.FIRST], table[L.LAST] = plan.first, plan.last
        table[L.CLUSTERINGS] = len(plan.clustering)
        table[L.KEY], table[L.KEYS] = plan.key[0].index, len(plan.key)
        table[L.ENCODE_POSITION] = plan.encodes_position
        if plan.schema.id is not None:
            table[L.ID_HIGH], table[L.ID_LOW] = np.frombuffer(plan.schema.id.bytes, ">i8")
