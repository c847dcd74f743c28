"""Finds the cells that the writes of an interval damaged, and their values without these writes.

The *good* state of some partitions is the merge of the writes up to the start of the interval, and of those after its
end that still count. So no rule is needed for each kind of write and deletion: a cell is damaged if it differs between
the good state and the present one. A cell that differed at the end of the interval, and no longer does, was written
again since, and is left alone.

CQL cannot write the paths of a list, so a list is one cell: it is written whole, or left alone if any of its elements
was written after the interval.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from writetime.changes.clusterings import clustering_decoder
from writetime.changes.model import element_types, field_name, udt_fields
from writetime.changes.position import STATIC_POSITION
from writetime.core.arrow import numbers, one_chunk, take
from writetime.core.printing import json_value
from writetime.files.row_form import to_micros
from writetime.lake.history import after, until
from writetime.merge import merge
from writetime.merge.order import group_by
from writetime.row_events.compare import changed
from writetime.row_events.events import indexed_rows
from writetime.row_events.write_times import latest_of_column
from writetime.schema.columnar import decode
from writetime.schema.mapping import stored_type
from writetime.schema.serialise import key_splitter, loses_parts
from writetime.schema.serialise_arrays import serialised_array
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Collection, CqlType, is_complex
from writetime.undo.live_cells import MARKER, LiveCells, live_cells

OVERWRITTEN, DELETED, ADDED, WRITTEN_SINCE = KINDS = ("overwritten", "deleted", "added", "written_since")
"""A cell has another value, or none, or had none before the interval; or it was written again since, and is left alone.
"""

OF_ROW, OF_MARKER, OF_CELL = "row", "marker", "cell"
"""The damaged part of a row: all of it, its marker, or a cell."""

# The JSON of what has no value: a row, its marker, or an element of a set.
_THERE = "true"


@dataclass(frozen=True)
class Interval:
    """The writes with write times after the first time, up to and including the last one, in microseconds."""

    first: int
    last: int


@dataclass(frozen=True)
class Chosen:
    """The columns to undo, by name, and a function that returns the numbers of the rows to undo among rows of the view;
    None for all.
    """

    columns: frozenset[str] | None = None
    rows: Callable[[pa.Table], pa.Array] | None = None


def damage_schema(schema: TableSchema) -> pa.Schema:
    """Return the fields of a damaged cell.

    `kind` is one of `KINDS`, and `part` is `row`, `marker` or `cell`. `element` is the key or the element of a
    collection, or the field of a user-defined type. `before` is the value at the start, and `now` the present one
    (the one at the end, if the cell was written again since). These three are JSON. `written_at` is the write time of
    `now`. `row` has the key columns. The other fields are for the statements: `key_values` are
    serialised, `expiry` is in seconds, and `elements` are a list's.
    """
    keys = [pa.field(c.name, stored_type(c.type)) for c in schema.partition_key + schema.clustering]
    element = pa.struct([("value", pa.binary()), ("expiry", pa.int64())])
    return pa.schema(
        [
            ("kind", pa.string()),
            ("part", pa.string()),
            ("column", pa.string()),
            ("element", pa.string()),
            ("before", pa.string()),
            ("now", pa.string()),
            ("written_at", pa.timestamp("us", "UTC")),
            ("row", pa.struct(keys)),
            ("token", pa.int64()),
            ("key", pa.binary()),
            ("position", pa.binary()),
            ("key_values", pa.list_(pa.field("element", pa.binary()))),
            ("path", pa.binary()),
            ("value", pa.binary()),
            ("expiry", pa.int64()),
            ("elements", pa.list_(pa.field("element", element))),
        ]
    )


def find_damage(
    changes: Sequence[pa.Table], schema: TableSchema, interval: Interval, now: int, chosen: Chosen
) -> pa.Table:
    """Return the damaged cells of some partitions, in the order of the database, with the fields of `damage_schema`.

    Args:
        changes: all changes of these partitions.
        schema: the table, which has no counters.
        interval: the damaging writes.
        now: the time at which cells have expired, in seconds.
        chosen: the columns and rows that count.
    """
    start = merge([until(each, schema, interval.first) for each in changes], schema)
    end = merge([until(each, schema, interval.last) for each in changes], schema)
    present = merge(changes, schema)
    good = merge([start, after(present, schema, interval.last)], schema)
    return _Comparison([good, present, start, end], schema, interval, now).damage(chosen)


@dataclass(frozen=True)
class _Side:
    """The live cells of a state, with the number of the row of each."""

    found: LiveCells
    rows: np.ndarray
    lists: dict[tuple[int, int], list[int]]
    """The cells of each list, by row and column, in order."""

    def value(self, index: int) -> bytes:
        return self.found.cells.values["value"][index].as_py()

    def expiry(self, index: int) -> int | None:
        return self.found.cells.values["expiry"][index].as_py()


@dataclass(frozen=True)
class _Damaged:
    """A damaged cell, and its indexes in the cells before and now, -1 if it is not there. A whole list has none."""

    row: int
    column: int
    path: bytes | None
    kind: str
    sides: tuple[_Side, _Side]
    indexes: tuple[int, int] = (-1, -1)
    part: str = OF_CELL
    is_list: bool = False

    @property
    def place(self) -> Hashable:
        return self.row, self.column, self.path

    def value(self, side: int) -> bytes | None:
        """Return the serialised value, before (0) or now (1)."""
        index = self.indexes[side]
        return None if index < 0 else self.sides[side].value(index)

    @property
    def expiry(self) -> int | None:
        """The time at which the cell expires, as it was before."""
        return None if self.indexes[0] < 0 else self.sides[0].expiry(self.indexes[0])

    @property
    def written_at(self) -> int | None:
        """The write time of the cell that there is now."""
        return None if self.indexes[1] < 0 else int(self.sides[1].found.write_times[self.indexes[1]])


class _Comparison:
    """Compares four states of some partitions: the good one, the present one, and those at the start and the end."""

    def __init__(self, states: Sequence[pa.Table], schema: TableSchema, interval: Interval, now: int) -> None:
        self._states, self._schema, self._interval, self._now = states, schema, interval, now
        self._columns = schema.static + schema.regular
        tokens, keys, positions = (
            pa.concat_arrays([one_chunk(state[name]) for state in states]) for name in ("token", "key", "position")
        )
        # Rows have numbers in the order of the database, which are the same in all states.
        numbered, self._heads, self._partitions = group_by(numbers(tokens), keys, positions)
        self._of_entries = np.split(numbered, np.cumsum([len(state) for state in states])[:-1])
        self._sides = [self._side(state, of) for state, of in zip(states, self._of_entries, strict=True)]

    def damage(self, chosen: Chosen) -> pa.Table:
        """Return the damaged cells."""
        good, present, start, end = self._sides
        # A cell that is damaged now was damaged at the end of the interval, too.
        found = {cell.place: cell for cell in self._differing(start, end, is_past=True)}
        found |= {cell.place: cell for cell in self._differing(good, present, is_past=False)}
        cells = list(found.values())
        if chosen.columns is None:
            cells = self._with_whole_rows(cells)
        else:
            cells = [cell for cell in cells if cell.column != MARKER and self._name(cell) in chosen.columns]
        if chosen.rows is not None:
            rows, partitions = self._chosen(chosen.rows)
            cells = [cell for cell in cells if cell.row in (partitions if self._is_static(cell) else rows)]
        return self._table(sorted(cells, key=lambda cell: (cell.row, cell.column)))

    def _side(self, state: pa.Table, of_entries: np.ndarray) -> _Side:
        found = live_cells(state, self._schema, self._now)
        rows = of_entries[found.entries]
        lists: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, column in enumerate(self._columns):
            if _is_list(column):
                for index in np.flatnonzero(found.columns == number).tolist():
                    lists[int(rows[index]), number].append(index)
        return _Side(found, rows, dict(lists))

    def _differing(self, before: _Side, now: _Side, *, is_past: bool) -> Iterable[_Damaged]:
        places = changed(before.found.cells, now.found.cells)
        for indexes in zip(places.before.tolist(), places.after.tolist(), strict=True):
            side, index = (before, indexes[0]) if indexes[0] >= 0 else (now, indexes[1])
            row, column = int(side.rows[index]), int(side.found.columns[index])
            sides = before, now
            if column != MARKER and _is_list(self._columns[column]):
                kind = _kind(*((row, column) in each.lists for each in sides))
                is_left = is_past or self._newest_of_list(row, column) > self._interval.last
                yield _Damaged(row, column, None, WRITTEN_SINCE if is_left else kind, sides, is_list=True)
            else:
                kind = WRITTEN_SINCE if is_past else _kind(*(each >= 0 for each in indexes))
                part = OF_MARKER if column == MARKER else OF_CELL
                yield _Damaged(row, column, side.found.paths[index].as_py(), kind, sides, indexes, part)

    def _newest_of_list(self, row: int, column: int) -> int:
        """Return the latest write time of a list in the present state; the least number if it has nothing of it."""
        times = self._list_times[column]
        entry = self._present_entries.get(row)
        return np.iinfo(np.int64).min if entry is None else int(times[entry])

    @cached_property
    def _list_times(self) -> dict[int, np.ndarray]:
        present = self._states[1]
        return {
            number: latest_of_column(one_chunk(present[field_name(column)]), column.type)
            for number, column in enumerate(self._columns)
            if _is_list(column)
        }

    @cached_property
    def _present_entries(self) -> dict[int, int]:
        return {row: entry for entry, row in enumerate(self._of_entries[1].tolist())}

    def _with_whole_rows(self, cells: Sequence[_Damaged]) -> list[_Damaged]:
        """Return damaged cells, with one for each row that would not exist without the interval: one deletion of the
        row undoes it.
        """
        exist = set(self._sides[0].rows.tolist())
        found: dict[Hashable, _Damaged] = {}
        for cell in cells:
            is_new = cell.kind == ADDED and cell.row not in exist and not self._is_static(cell)
            whole = (
                replace(cell, column=MARKER, path=None, part=OF_ROW, indexes=(-1, -1), is_list=False)
                if is_new
                else cell
            )
            # The marker of the row has this place, too.
            if whole.part == OF_ROW or whole.place not in found:
                found[whole.place] = whole
        return list(found.values())

    def _chosen(self, choose: Callable[[pa.Table], pa.Array]) -> tuple[set[int], set[int]]:
        """Return the numbers of chosen rows, and those of all entries of their partitions. A row is chosen by what it
        was at the start, what it would be, or what it is.
        """
        rows: set[int] = set()
        for state, of_entries in zip(self._states[:3], self._of_entries[:3], strict=True):
            live, entries = indexed_rows(state, self._schema, self._now * 1_000_000)
            numbers_of = choose(to_micros(live.values, self._schema)).to_pylist()
            rows |= set(of_entries[entries[numbers_of]].tolist())
        chosen = np.isin(self._partitions, self._partitions[sorted(rows)])
        return rows, set(np.flatnonzero(chosen).tolist())

    def _is_static(self, cell: _Damaged) -> bool:
        return 0 <= cell.column < len(self._schema.static)

    def _name(self, cell: _Damaged) -> str:
        return self._columns[cell.column].name

    def _table(self, cells: Sequence[_Damaged]) -> pa.Table:
        entries = self._heads[np.array([cell.row for cell in cells], np.int64)]
        keys = self._schema.partition_key + self._schema.clustering
        places = {name: self._taken(name, entries) for name in ("token", "key", "position")}
        texts = _texts(cells, self._columns)
        columns: dict[str, pa.Array | list[Any]] = {
            "kind": [cell.kind for cell in cells],
            "part": [cell.part for cell in cells],
            "column": [None if cell.column == MARKER else self._name(cell) for cell in cells],
            **{name: [of.get(n) for n in range(len(cells))] for name, of in texts.items()},
            "written_at": [cell.written_at for cell in cells],
            "row": pa.StructArray.from_arrays(
                [self._taken(field_name(column), entries) for column in keys], names=[column.name for column in keys]
            ),
            **places,
            "key_values": self._key_values(entries, places),
            "path": [cell.path for cell in cells],
            "value": [cell.value(0) for cell in cells],
            "expiry": [cell.expiry for cell in cells],
            "elements": [self._elements(cell) for cell in cells],
        }
        schema = damage_schema(self._schema)
        arrays = [found if isinstance(found := columns[f.name], pa.Array) else pa.array(found, f.type) for f in schema]
        return pa.Table.from_arrays(arrays, schema=schema)

    def _taken(self, name: str, entries: np.ndarray) -> pa.Array:
        return take(pa.concat_arrays([one_chunk(state[name]) for state in self._states]), entries)

    def _key_values(self, entries: np.ndarray, places: Mapping[str, pa.Array]) -> list[list[bytes | None]]:
        """Return the serialised key columns. Keys and positions have all bytes, except for the form of values that are
        equal in the database, such as the decimals 1 and 1.0.
        """
        split = key_splitter(len(self._schema.partition_key))
        decode = clustering_decoder(self._schema.clustering)
        forms: list[list[bytes | None]] = []
        for column in self._schema.clustering:
            array = self._taken(field_name(column), entries)
            is_lossy = loses_parts(column.type)
            forms.append([None] * len(array) if is_lossy else _serialised(array, column.type))
        found = []
        for n, (key, position) in enumerate(
            zip(*(places[name].to_pylist() for name in ("key", "position")), strict=True)
        ):
            clustering = [] if position == STATIC_POSITION else decode(position)
            own = [value if form[n] is None else form[n] for value, form in zip(clustering, forms, strict=False)]
            found.append(split(key) + own)
        return found

    def _elements(self, cell: _Damaged) -> list[dict[str, Any]] | None:
        if not cell.is_list:
            return None
        side = cell.sides[0]
        found = side.lists.get((cell.row, cell.column), ())
        return [{"value": side.value(index), "expiry": side.expiry(index)} for index in found]


def _serialised(array: pa.Array, cql_type: CqlType) -> list[bytes | None]:
    values, valid = serialised_array(array, cql_type).to_pylist(), array.is_valid().to_pylist()
    return [value if is_valid else None for value, is_valid in zip(values, valid, strict=True)]


def _kind(was: bool, is_: bool) -> str:
    return OVERWRITTEN if was and is_ else DELETED if was else ADDED


def _is_list(column: Column) -> bool:
    return is_complex(column.type) and isinstance(column.type, Collection) and column.type.kind == "list"


def _texts(cells: Sequence[_Damaged], columns: Sequence[Column]) -> dict[str, dict[int, str]]:
    """Return the JSON of the fields `element`, `before` and `now`, by the numbers of the cells. Values of one type are
    decoded together.
    """
    found: dict[str, dict[int, str]] = {"element": {}, "before": {}, "now": {}}
    alike: dict[tuple[int, bytes | None], list[int]] = defaultdict(list)
    for number, cell in enumerate(cells):
        if cell.part == OF_CELL:
            is_field = not isinstance(columns[cell.column].type, Collection)
            alike[cell.column, cell.path if is_field else None].append(number)
        else:
            found["before"] |= {number: _THERE} if cell.indexes[0] >= 0 else {}
            found["now"] |= {number: _THERE} if cell.indexes[1] >= 0 or cell.part == OF_ROW else {}
    for (column, path), members in alike.items():
        element_type, value_type = _types(columns[column].type, path)
        if isinstance(element_type, str):
            found["element"] |= dict.fromkeys(members, orjson.dumps(element_type).decode())
        elif element_type is not None:
            paths = {number: cells[number].path for number in members}
            found["element"] |= _json(paths, element_type)
        for name, side in (("before", 0), ("now", 1)):
            if cells[members[0]].is_list:
                found[name] |= {number: _json_of_list(cells[number], side, value_type) for number in members}
            elif value_type is None:
                found[name] |= {number: _THERE for number in members if cells[number].indexes[side] >= 0}
            else:
                found[name] |= _json({number: cells[number].value(side) for number in members}, value_type)
    return found


def _types(cql_type: CqlType, path: bytes | None) -> tuple[CqlType | str | None, CqlType | None]:
    """Return the type of the paths of a column, or the name of a field, and the type of its values."""
    if not is_complex(cql_type):
        return None, cql_type
    if not isinstance(cql_type, Collection):
        assert path is not None
        return udt_fields(cql_type)[int.from_bytes(path, "big")]
    types = dict(element_types(cql_type))
    return None if cql_type.kind == "list" else types["path"], types.get("value")


def _json(values: Mapping[int, bytes | None], cql_type: CqlType) -> dict[int, str]:
    present = {number: value for number, value in values.items() if value is not None}
    decoded = decode(pa.array(present.values(), pa.binary()), cql_type)
    return {n: orjson.dumps(json_value(value)).decode() for n, value in zip(present, decoded, strict=True)}


def _json_of_list(cell: _Damaged, side: int, cql_type: CqlType | None) -> str:
    assert cql_type is not None
    found = cell.sides[side].lists.get((cell.row, cell.column), ())
    values = decode(pa.array([cell.sides[side].value(index) for index in found], pa.binary()), cql_type)
    return orjson.dumps([json_value(value) for value in values]).decode()
