"""Rows of a log after generated alterations of its table, compared with the written values of a model of ScyllaDB.

Oracle: a model of ScyllaDB in the test: the values that it wrote.
"""

import random
import struct
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest

from tests.support.generate import SEED
from writetime.schema.table import Column, DroppedColumn, TableSchema
from writetime.schema.types import Native
from writetime.scylla_cdc import log as L
from writetime.scylla_cdc.column_history import History
from writetime.scylla_cdc.findings import IN_SNAPSHOT, STATIC_DROPPED
from writetime.scylla_cdc.log import LogGap, first_uuid

INT = Native("int")
SECOND = 1_000_000
START = 1_700_000_000 * SECOND


@dataclass(frozen=True)
class Written:
    """A row of the log: its origin, and its columns, each as the number of a column of the log."""

    time: int
    operation: int
    keys: frozenset[int]
    values: frozenset[int]
    static: bool = False


@dataclass
class Log:
    """A table and its log while they are written to and altered. A column that is dropped or renamed gets a new number
    when it comes back, as its values do not."""

    r: random.Random
    numbers: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    rows: list[Written] = field(default_factory=list)
    now: int = START
    added: int = 0

    def __post_init__(self) -> None:
        self.partition = self.made("p", self.r.randint(1, 2))
        self.clustering = self.made("c", self.r.randint(0, 3))
        self.statics = self.made("s", self.r.randint(0, 2) if self.clustering else 0)
        self.regulars = self.made("v", self.r.randint(0, 2))

    def made(self, prefix: str, count: int) -> list[str]:
        return [self.add(f"{prefix}{i}") for i in range(count)]

    def add(self, name: str) -> str:
        self.added += 1
        self.numbers[name] = self.added
        return name

    def alter(self) -> None:
        """Add, drop or rename a column."""
        columns = self.r.choice([self.statics, self.regulars] if self.clustering else [self.regulars])
        what = self.r.random()
        if what < 0.25:
            keys = self.r.choice([k for k in (self.partition, self.clustering) if k])
            i = self.r.randrange(len(keys))
            self.drop(keys[i])
            keys[i] = self.add(f"renamed{len(self.dropped)}")
        elif what < 0.6 and columns:
            name = columns.pop(self.r.randrange(len(columns)))
            self.drop(name)
            self.drop(L.DELETED + name)
        else:
            name = f"{'s' if columns is self.statics else 'v'}{self.r.randint(0, 3)}"
            if name not in columns and self.dropped.get(name, 0) < self.now:
                columns.append(self.add(name))

    def drop(self, name: str) -> None:
        self.dropped[name] = self.now + 5 * SECOND
        self.numbers.pop(name, None)

    def write(self) -> None:
        """Log a write of some kind."""

        def some(names: list[str], least: int) -> frozenset[int]:
            count = self.r.randint(min(least, len(names)), len(names))
            return frozenset(self.numbers[n] for n in self.r.sample(names, count))

        def row(operation: int, keys: list[str], values: frozenset[int] = frozenset(), *, static: bool = False) -> None:
            numbers = frozenset(self.numbers[n] for n in keys)
            self.rows.append(Written(self.now, operation, numbers, values, static))

        whole = self.partition + self.clustering
        kind = self.r.choice(["static", "insert", "update", "delete", "partition", "range"])
        if kind == "static" and self.statics:
            row(self.r.choice([L.UPDATE, L.PREIMAGE, L.POSTIMAGE]), self.partition, some(self.statics, 1), static=True)
        elif kind == "insert":
            row(L.INSERT, whole, some(self.regulars, 0))
        elif kind == "update" and self.regulars:
            row(L.UPDATE, whole, some(self.regulars, 1))
        elif kind == "delete" and self.clustering:
            row(L.ROW_DELETE, whole)
        elif kind == "range" and self.clustering:
            for operation in (L.START_INCLUSIVE, L.END_EXCLUSIVE):
                row(operation, self.partition + self.clustering[: self.r.randint(0, len(self.clustering))])
        elif kind == "partition":
            row(L.PARTITION_DELETE, self.partition)

    def schemas(self) -> tuple[TableSchema, TableSchema]:
        """The table and its log as they are now."""
        partition, clustering, static, regular = (tuple(Column(n, INT) for n in names) for names in self.columns)
        table = TableSchema("ks", "t", partition, clustering, static, regular)
        gone = [DroppedColumn(name, INT, False, at) for name, at in self.dropped.items()]
        return table, TableSchema("ks", "t_log", table.partition_key, dropped=tuple(gone))

    @property
    def columns(self) -> list[list[str]]:
        return [self.partition, self.clustering, self.statics, self.regulars]

    def page(self) -> tuple[pa.RecordBatch, np.ndarray]:
        """The log's current rows, and the operations."""
        names = [n for part in self.columns for n in part]
        data: dict[str, list[bytes | None]] = {
            L.STREAM: [bytes(16)] * len(self.rows),
            L.TIME: [first_uuid(row.time).bytes for row in self.rows],
            L.SEQUENCE: [bytes(4)] * len(self.rows),
        }
        for name in names:
            number = self.numbers[name]
            data[name] = [struct.pack(">i", 1) if number in row.keys | row.values else None for row in self.rows]
            if name in self.statics + self.regulars:
                data[L.DELETED + name] = [None] * len(self.rows)
        arrays = [pa.array(column, pa.binary()) for column in data.values()]
        return pa.RecordBatch.from_arrays(arrays, names=list(data)), np.array([row.operation for row in self.rows])


def altered_log(seed: int) -> Log:
    log = Log(random.Random(seed))
    for _ in range(log.r.randint(1, 3)):
        for _ in range(log.r.randint(0, 12)):
            log.now += log.r.randint(1, 4) * SECOND
            log.write()
        log.now += SECOND
        log.alter()
        # Writes of the same five seconds may have the column that is new.
        for _ in range(log.r.randint(0, 3)):
            log.now += SECOND
            log.write()
    return log


class Reading:
    """Which rows of an altered log can be read, after all of its alterations."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.table, self.log_schema = log.schemas()
        self.page, self.operations = log.page()
        self.there = set(log.numbers.values())
        # Rows with a key column that the log no longer has.
        self.lost = [not row.keys <= self.there for row in log.rows]
        self.is_image = [row.operation in (L.PREIMAGE, L.POSTIMAGE) for row in log.rows]
        # Until when nothing may be concluded from null in a key column.
        self.renamed = max(
            (at for name, at in log.dropped.items() if name[0] not in "sv" and L.DELETED not in name), default=0
        )
        self.counts: Counter[str] = Counter()
        history = History(self.table, self.log_schema, snapshot_at=max([log.now, *log.dropped.values()]))
        self.readable = history.readable(self.page, self.operations, self.counts)

    def assert_rows(self) -> None:
        for row, kept, lost in zip(self.log.rows, self.readable.tolist(), self.lost, strict=True):
            assert not (kept and lost), row
            empty = row.static and not row.values & self.there
            assert kept or lost or empty or row.time <= self.renamed, row
            if kept and self.table.clustering and row.operation in (L.INSERT, L.UPDATE, L.ROW_DELETE):
                assert row.static == (not row.keys - {self.log.numbers[n] for n in self.log.partition}), row
            if empty and row.time > self.renamed:
                assert not kept
        starts = np.flatnonzero(self.operations == L.START_INCLUSIVE)
        assert (self.readable[starts] == self.readable[starts + 1]).all()

    def assert_counts(self) -> None:
        """Each row that is dropped is counted, but for images."""
        dropped = sum(not k and not image for k, image in zip(self.readable.tolist(), self.is_image, strict=True))
        assert self.counts[STATIC_DROPPED] + self.counts[IN_SNAPSHOT] == dropped

    def has_gap(self) -> bool:
        return any(lost and not image for lost, image in zip(self.lost, self.is_image, strict=True))

    def assert_gap(self) -> None:
        """Without a snapshot from after the last renaming of a key column."""
        with pytest.raises(LogGap, match="was renamed") as raised:
            History(self.table, self.log_schema).readable(self.page, self.operations, Counter())
        assert raised.value.end == self.renamed
        early = History(self.table, self.log_schema, snapshot_at=raised.value.end - 1)
        with pytest.raises(LogGap):
            early.readable(self.page, self.operations, Counter())


@pytest.mark.parametrize("seed", range(SEED, SEED + 10))
def test_the_readable_rows_of_a_log(seed: int) -> None:
    """No row is read as another than it was, and none is skipped that could be read."""
    logs = [altered_log(seed * 1000 + i) for i in range(100)]
    readings = [Reading(log) for log in logs if log.rows]
    found: Counter[str] = Counter()
    gaps = 0
    for reading in readings:
        reading.assert_rows()
        reading.assert_counts()
        found += reading.counts
        if reading.has_gap():
            reading.assert_gap()
            gaps += 1
    assert found.keys() == {STATIC_DROPPED, IN_SNAPSHOT}
    assert gaps > 10
