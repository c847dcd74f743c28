"""Postimages like those of ScyllaDB, compared with the changes of their writes; no server is needed.

`Table` follows `cdc/split.cc` and `cdc/log.cc` of ScyllaDB 2026.1. It reads the rows that a mutation names, splits the
mutation by write times, and applies each part to these rows without regard to write times. So a postimage has the
values of its own write even if the table keeps newer ones. Statements come in any order of their write times, as from
several clients with different clocks.
"""

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from writetime.schema.cql import parse_table
from writetime.schema.table import DroppedColumn
from writetime.schema.types import Native
from writetime.scylla_cdc.column_history import History
from writetime.scylla_cdc.findings import IMAGE_DISAGREES, IMAGE_NOT_COMPARED
from writetime.scylla_cdc.images import CheckedDeltas
from writetime.scylla_cdc.log import first_uuid, log_table

pytestmark = pytest.mark.slow

START = 1_700_000_000_000_000
SCHEMA = parse_table("CREATE TABLE ks.t (p int, c int, s int static, v int, w int, PRIMARY KEY (p, c))")
# A static column was dropped after all writes of the tests.
GONE = [DroppedColumn(name, Native("int"), None, START + 1000) for name in ("gone", "cdc$deleted_gone")]
LOG = replace(log_table(SCHEMA), dropped=tuple(GONE))
WIDTHS = {"cdc$operation": 1, "cdc$ttl": 8}

# A log row without stream, time and number.
LogRow = dict[str, Any]
# The static row has the clustering None.
Values = dict[str, int | None]


@dataclass
class Mutation:
    """The effect of a statement or a batch on the partition: the last write of each cell, marker and row."""

    cells: dict[tuple[int | None, str], tuple[int, int | None]] = field(default_factory=dict)
    markers: dict[int, int] = field(default_factory=dict)
    deleted: dict[int, int] = field(default_factory=dict)
    partition: int | None = None
    named: set[tuple[int | None, int]] = field(default_factory=set)

    def name(self, c: int | None, time: int) -> "Mutation":
        """Update a row and set nothing, or only a column that is dropped later."""
        self.named.add((c, time))
        return self

    def write(self, c: int | None, values: Values, time: int, *, insert: bool = False) -> "Mutation":
        for name, value in values.items():
            found = self.cells.get((c, name))
            self.cells[c, name] = max(((time, value), found or (time, value)), key=_wins)
        if insert:
            assert c is not None
            self.markers[c] = max(time, self.markers.get(c, 0))
        return self

    def delete(self, c: int | None, time: int) -> "Mutation":
        if c is None:
            self.partition = max(time, self.partition or 0)
        else:
            self.deleted[c] = max(time, self.deleted.get(c, 0))
        return self

    def times(self) -> list[int]:
        found = {time for time, _ in self.cells.values()}.union(self.markers.values(), self.deleted.values())
        return sorted(found | {time for _, time in self.named} | ({self.partition} if self.partition else set()))

    def rows(self) -> set[int]:
        return {c for c, _ in {*self.cells, *self.named} if c is not None}.union(self.markers, self.deleted)


def _wins(cell: tuple[int, int | None]) -> tuple[int, bool, int]:
    """Order cells of one place: a later write time wins, then a deletion, then a greater value."""
    time, value = cell
    return time, value is None, value or 0


class Table:
    """One partition, and its log."""

    def __init__(self, r: random.Random, *, preimage: bool = True, keys_only: bool = False) -> None:
        self.log: list[tuple[UUID, list[LogRow]]] = []
        self.keys_only = keys_only
        self._preimage = preimage
        self._random = r
        self._state = Mutation()

    def apply(self, mutation: Mutation) -> None:
        """Log a mutation, and then apply it."""
        rows = {c: found for c in mutation.rows() if (found := self._row(c)) is not None}
        static = self._values(None)
        for time in mutation.times():
            group = list(self._group(mutation, time, rows, static))
            self.log.append((UUID(int=first_uuid(time).int + self._random.getrandbits(40)), group))
        state = self._state
        for (c, name), (time, value) in mutation.cells.items():
            state.write(c, {name: value}, time)
        for c, time in mutation.markers.items():
            state.write(c, {}, time, insert=True)
        for c, time in mutation.deleted.items():
            state.delete(c, time)
        if mutation.partition:
            state.delete(None, mutation.partition)

    def _values(self, c: int | None) -> Values:
        deleted = max(self._state.partition or 0, 0 if c is None else self._state.deleted.get(c, 0))
        found = {name: cell for (place, name), cell in self._state.cells.items() if place == c}
        return {name: value for name, (time, value) in found.items() if time > deleted and value is not None}

    def _row(self, c: int) -> Values | None:
        """Return the row of `SELECT`; None if it does not exist."""
        values = self._values(c)
        deleted = max(self._state.partition or 0, self._state.deleted.get(c, 0))
        return values if values or self._state.markers.get(c, 0) > deleted else None

    def _group(self, mutation: Mutation, time: int, rows: dict[int, Values], static: Values) -> Iterable[LogRow]:
        cells: dict[int | None, Values] = {}
        for (c, name), (at, value) in mutation.cells.items():
            if at == time:
                cells.setdefault(c, {})[name] = value
        for c, at in mutation.named:
            if at == time:
                cells.setdefault(c, {})
        inserted = {c for c, at in mutation.markers.items() if at == time}
        deleted = {c for c, at in mutation.deleted.items() if at == time}
        affected = sorted({c for c in cells if c is not None} | inserted | deleted)
        if self._preimage:
            if None in cells and static:
                yield _row_of(0, None, {name: static.get(name) for name in cells[None]})
            for c in affected:
                if c in rows:
                    names = ("v", "w") if c in deleted else cells.get(c, {})
                    yield _row_of(0, c, {name: rows[c].get(name) for name in names})
        if None in cells:
            yield _row_of(1, None, self._logged(cells[None]))
            static.update(cells[None])
        for c in sorted(inserted) + [c for c in affected if c in cells and c not in inserted]:
            yield _row_of(2 if c in inserted else 1, c, self._logged(cells.get(c, {})))
            rows.setdefault(c, {}).update(cells.get(c, {}))
        for c in sorted(deleted):
            yield _row_of(3, c, {})
            rows.pop(c, None)
        if mutation.partition == time:
            yield {"cdc$operation": 4, "p": 1}
            rows.clear()
        if None in cells:
            yield _row_of(9, None, static, image=True)
        yield from (_row_of(9, c, rows[c], image=True) for c in affected if c in rows)

    def _logged(self, values: Values) -> Values:
        return {} if self.keys_only else values


def _row_of(operation: int, c: int | None, values: Values, *, image: bool = False) -> LogRow:
    row: LogRow = {"cdc$operation": operation, "p": 1, "c": c, **values}
    return row if image else row | {f"cdc$deleted_{name}": True for name, value in values.items() if value is None}


def page_of(groups: Sequence[tuple[UUID, list[LogRow]]]) -> pa.RecordBatch:
    """Return the rows of groups as a page of the log, each value as bytes."""
    rows: list[dict[str, bytes | None]] = []
    for uuid, group in groups:
        for i, row in enumerate(group):
            full = {"cdc$batch_seq_no": i, **row} | ({"cdc$end_of_batch": True} if i == len(group) - 1 else {})
            made = {name: _serialised(name, value) for name, value in full.items()}
            rows.append({"cdc$stream_id": bytes(16), "cdc$time": uuid.bytes, **made})
    names = [c.name for c in log_table(SCHEMA).columns]
    return pa.RecordBatch.from_arrays([pa.array([row.get(n) for row in rows], pa.binary()) for n in names], names=names)


def _serialised(name: str, value: int | None) -> bytes | None:
    if value is None:
        return None
    return value.to_bytes(1 if value is True else WIDTHS.get(name, 4), "big", signed=True)


def checked(groups: Sequence[tuple[UUID, list[LogRow]]], preimages_since: int | None = 0) -> tuple[int, list[str]]:
    """Return how many values disagree, and the columns of the first ones."""
    history = History(SCHEMA, LOG, empty_updates=True)
    found: Counter[str] = Counter()
    texts: list[str] = []
    CheckedDeltas(SCHEMA, history, found, texts, preimages_since).convert(page_of(groups))
    assert not found[IMAGE_NOT_COMPARED], texts
    return found[IMAGE_DISAGREES], [text.partition(" column ")[2].split()[0] for text in texts]


def ordered(table: Table) -> list[tuple[UUID, list[LogRow]]]:
    return sorted(table.log, key=lambda group: (group[0].time, bytes(b ^ 0x80 for b in group[0].bytes[8:])))


def statements(r: random.Random, *, deletions: bool = True) -> Mutation:
    """Make a statement, or a batch of some, with write times near to each other, in any order."""
    made = Mutation()
    for _ in range(r.choice([1, 1, 1, 2, 3])):
        time, c = START + r.randint(1, 60), r.randint(1, 3)
        values = {name: r.choice([None, *range(5)]) for name in ("v", "w") if r.random() < 0.5}
        kind = r.random()
        if kind < 0.35:
            made.write(c, values, time, insert=True)
        elif kind < 0.8 or not deletions:
            made.write(c, values or {"v": r.randint(0, 4)}, time)
        elif kind < 0.83:
            made.name(r.choice([None, c]), time)
        elif kind < 0.88:
            made.write(None, {"s": r.choice([None, 1, 2])}, time)
        elif kind < 0.97:
            made.delete(c, time)
        else:
            made.delete(None, time)
    return made


@pytest.mark.parametrize("preimage", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_postimages_agree_in_any_order_of_write_times(seed: int, preimage: bool) -> None:
    r = random.Random(seed)
    table = Table(r, preimage=preimage)
    for _ in range(60):
        table.apply(statements(r))
    groups = ordered(table)
    for windows in (1, 2, 7):
        cuts = [0, *sorted(r.sample(range(1, len(groups)), windows - 1)), len(groups)]
        for first, last in pairwise(cuts):
            assert checked(groups[first:last], 0 if preimage else None) == (0, [])


@pytest.mark.parametrize("seed", range(10))
def test_values_that_were_not_logged_are_found(seed: int) -> None:
    """While `delta` is `keys`, each insert of a row that was not there shows it, whatever comes later."""
    r = random.Random(seed)
    table = Table(r, keys_only=True)
    for _ in range(30):
        table.apply(statements(r, deletions=False))
    groups = ordered(table)
    writers = Counter(
        (uuid.time, c) for uuid, rows in groups for c in {row["c"] for row in rows if row["cdc$operation"] in (1, 2)}
    )
    wanted = 0
    for uuid, rows in groups:
        new = {row["c"] for row in rows if row["cdc$operation"] == 2} - {
            row["c"] for row in rows if row["cdc$operation"] == 0
        }
        for row in rows:
            if row["cdc$operation"] == 9 and row["c"] in new and writers[uuid.time, row["c"]] == 1:
                wanted += sum(row.get(name) is not None for name in ("v", "w"))
    assert checked(groups)[0] == wanted
    assert checked(groups, None) == (0, [])
    assert seed or wanted


def test_an_insert_of_keys_with_a_late_write() -> None:
    """The row was new, and then came a write of an earlier time: it is not in the postimage, and nothing is missing."""
    table = Table(random.Random(1))
    table.apply(Mutation().write(1, {}, START + 9, insert=True))
    table.apply(Mutation().write(1, {"v": 5}, START + 3))
    assert checked(ordered(table)) == (0, [])


def test_an_insert_of_keys_into_an_existing_row() -> None:
    """Only a preimage shows that it was there, so without preimages there is nothing to compare."""
    table = Table(random.Random(1), preimage=False)
    table.apply(Mutation().write(1, {"v": 5}, START + 3))
    table.apply(Mutation().write(1, {}, START + 9, insert=True))
    _, insert = ordered(table)
    assert checked([insert], None) == (0, [])
    # There are preimages since a later time.
    assert checked([insert], START + 10) == (0, [])
    assert checked([insert], START + 9) == (1, ["v"])


def test_a_preimage_shows_that_there_were_preimages() -> None:
    table = Table(random.Random(1))
    table.apply(Mutation().write(1, {"v": 1}, START + 1, insert=True))
    table.apply(Mutation().write(1, {"v": 2}, START + 2))
    table.keys_only = True
    table.apply(Mutation().write(2, {"v": 3, "w": 4}, START + 3, insert=True))
    assert checked(ordered(table), START + 10) == (2, ["v", "w"])
    assert checked(ordered(table)[2:], START + 10) == (0, [])


@pytest.mark.parametrize("c", [1, None])
def test_an_update_that_sets_nothing_at_the_time_of_another_write(c: int | None) -> None:
    """Or that sets a column that is dropped later. Its postimage has what the row had before the other write."""
    column = "s" if c is None else "v"
    table = Table(random.Random(1))
    table.apply(Mutation().write(c, {column: 1}, START + 1))
    table.apply(Mutation().name(c, START + 9))
    table.apply(Mutation().write(c, {column: 2}, START + 9))
    assert checked(ordered(table)) == (0, [])
