"""A table of a real database with random writes, whose columns come and go, and the lakes that follow it."""

import random
import time
import uuid
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from cassandra.cluster import Session
from cassandra.util import Date

from tests.support.examples import is_long_run
from tests.support.made import add, settings_at
from tests.support.view_clock import rows_at, upkeep_at
from tests.support.written import COLUMNS, SECOND, Row, Write, random_write
from writetime.core.config import Settings
from writetime.delta import buckets
from writetime.lake import state
from writetime.lake.table import LakeTable, create_table
from writetime.schema.system import read_schema
from writetime.view.refreshing import refresh

TYPES = {"a": "bigint", "b": "double", "c": "boolean", "d": "date", "e": "timestamp", "f": "frozen<list<int>>"}
"""The columns that come and go."""
VECTORS, REWRITTEN = "vectors", "rewritten"
# The upkeep of the views has its own clock: seconds per batch. It trims every second batch.
PACE = 300 if is_long_run() else 600
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class _Statement:
    """A write, and the values of further columns as CQL and as changes have them."""

    write: Write
    more: dict[str, tuple[str, Any]]

    @property
    def change(self) -> dict[str, Any]:
        return self.write.change | {name: self.write.cell(value) for name, (_, value) in self.more.items()}


class FollowedTable:
    """The table in the database, and the same in two lakes, one for each kind of view."""

    def __init__(self, session: Session, keyspace: str, folder: Path, seed: int) -> None:
        self.session = session
        self.name = f"{keyspace}.w{uuid.uuid4().hex[:12]}"
        self.columns: list[str] = []
        self.batches = self.packed = 0
        self._chooser = random.Random(seed)
        self._held: list[_Statement] = []
        self._begun = time.time()
        self._last = 0
        session.execute(f"CREATE TABLE {self.name} (id int, n int, s text static, v text, w int, PRIMARY KEY (id, n))")
        self._schema = read_schema(session, self.name)
        self.lakes = {view: self._lake(folder / view, view) for view in (VECTORS, REWRITTEN)}

    def _lake(self, folder: Path, view: str) -> tuple[Settings, LakeTable]:
        settings = settings_at(folder, buckets=2, view=view, iceberg=True)
        return settings, create_table(settings, self._schema)

    def folder(self, view: str) -> Path:
        """The folder of the view's tables of Delta and Iceberg."""
        return Path(self.lakes[view][1].view.storage.address)

    @property
    def all_columns(self) -> list[str]:
        """The columns that the table has now."""
        return [*COLUMNS, *self.columns]

    def step(self, *, alters: bool = True) -> list[Row]:
        """Write a batch, some of it later than others, and refresh the views; return the rows of the database. Before
        each fifth batch the table is altered.
        """
        self.batches += 1
        if self.batches % 5 == 3 and alters:
            self._alter()
        new = [self._statement() for _ in range(self._chooser.randint(0, 40))]
        late = {i for i in range(len(new)) if self._chooser.random() < 0.1}
        arrived = [*(each for i, each in enumerate(new) if i not in late), *self._held]
        self._held = [new[i] for i in late]
        self._chooser.shuffle(arrived)
        changes = [self._execute(each).change for each in arrived]
        rows, second = self.answer()
        folds, few = self._chooser.random() < 0.3, self._chooser.choice([0, 4096, 4096])
        for settings, table in self.lakes.values():
            table.follow(self._schema)
            add(table, changes, self.batches, self._schema)
            with self.clock(), rows_at(second * SECOND + 999_999), patch.object(buckets, "FEW_ROWS", few):
                if folds:
                    state.fold(table)
                    state.compact(table)
                self.packed += refresh(settings, table).packed
        return rows

    def clock(self) -> Any:
        """Let the upkeep of the views have its own time."""
        return upkeep_at(self._begun + PACE * self.batches)

    def answer(self) -> tuple[list[Row], int]:
        """Return the rows of `SELECT *`, and the second at which the database judged what has expired."""
        while True:
            begun = int(time.time())
            found = self.session.execute(f"SELECT {', '.join(self.all_columns)} FROM {self.name}").all()
            if int(time.time()) == begun:
                return in_order([tuple(map(plain, row)) for row in found]), begun

    def _statement(self) -> _Statement:
        self._last = max(self._last + 1, time.time_ns() // 1000)
        write = random_write(self._chooser, self._last)
        takes = write.kind in ("insert", "update")
        names = [name for name in self.columns if takes and self._chooser.random() < 0.5]
        return _Statement(write, {name: self._value(TYPES[name]) for name in names})

    def _value(self, cql_type: str) -> tuple[str, Any]:
        number = self._chooser.randint(-(1 << 40), 1 << 40)
        match cql_type:
            case "double":
                return repr(number / 3), number / 3
            case "boolean":
                return str(number % 2 == 0).lower(), number % 2 == 0
            case "date":
                day = date(1970, 1, 1) + timedelta(number % 40_000 - 10_000)
                return f"'{day.isoformat()}'", day
            case "frozen<list<int>>":
                values = [number % 7] * (number % 4)
                return str(values), values
        return str(number), number

    def _execute(self, statement: _Statement) -> _Statement:
        """Execute a write, without the columns that are gone; return it with the second at which it expires. If the
        second is not certain, it is executed again: of two cells of one write time, the one that expires later counts.
        """
        more = {name: value for name, value in statement.more.items() if name in self.columns}
        write, literals = statement.write, {name: cql for name, (cql, _) in more.items()}
        while True:
            begun = int(time.time())
            self.session.execute(write.cql(self.name, literals))
            if write.ttl is None:
                return _Statement(write, more)
            if int(time.time()) == begun:
                return _Statement(replace(write, expires=begun + write.ttl), more)

    def _alter(self) -> None:
        """Add a column, perhaps one that was dropped before, or drop one."""
        others = [name for name in TYPES if name not in self.columns]
        drops = not others or (self.columns and self._chooser.random() < 0.5)
        name = self._chooser.choice(self.columns if drops else others)
        # The database keeps the time of a drop in milliseconds: nothing was written in that one.
        time.sleep(0.002)
        if drops:
            self.session.execute(f"ALTER TABLE {self.name} DROP {name}")
            self.columns.remove(name)
        else:
            self.session.execute(f"ALTER TABLE {self.name} ADD {name} {TYPES[name]}")
            self.columns.append(name)
        time.sleep(0.002)
        self._schema = read_schema(self.session, self.name)


def plain(value: Any) -> Any:
    """The same for a value of the driver and of each engine."""
    match value:
        case datetime():
            return (value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH
        case Date():
            return value.date()
        case list() | tuple():
            return list(map(plain, value))
    return value


def in_order(rows: list[Row]) -> list[Row]:
    """Sort rows by their key. Of a partition with static columns alone, it is a null."""
    return sorted(rows, key=lambda row: tuple(-1 if value is None else value for value in row[:2]))
