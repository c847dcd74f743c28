"""Writes of all kinds to several tables at once, in threads that record the acknowledged writes.

Each thread has one table, which it creates, writes to and alters. A statement has a unique write time, or one of a few
that many statements share. A write without an acknowledgement may have been applied or not.
"""

import itertools
import re
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from cassandra import InvalidRequest
from cassandra.cluster import Session
from cassandra.protocol import SyntaxException

from tests.support.generate import UDTS, Generator, Places
from writetime.clients.database import DRIVER_FAULTS
from writetime.core.arrow import pc
from writetime.schema.system import read_schema
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Udt, is_complex, quote_name

_T = TypeVar("_T")

TYPES = ["CREATE TYPE IF NOT EXISTS {ks}.spot (x int)"]
TYPES += [
    f"CREATE TYPE IF NOT EXISTS {{ks}}.{udt.name} ({', '.join(f'{quote_name(n)} {t}' for n, t in udt.fields)})"
    for udt in UDTS.values()
]
# Write times that many statements share.
_TIES = [1000, 1001, 1_700_000_000_000_000]
# A cell may expire while the workload runs.
SHORT_TTL = 3
_MOST_COLUMNS = 12
# Updates that write nothing, and ranges that may hold nothing.
_MAY_BE_EMPTY = re.compile(r"SET (\w+) = \1 [+-] (\[\]|\{\}) |^DELETE FROM .* > .* <= ")
_COLUMN = re.compile(r"^DELETE (\w+) FROM | SET (\w+)")

# A statement, its partition's token, its write time. Those of a batch are acknowledged together.
Acknowledged = list[tuple[str, int, int]]


class Clock:
    """Write times that no two statements share, in microseconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 0
        self._own = threading.local()

    def __call__(self) -> int:
        with self._lock:
            self._now = self._own.last = max(self._now + 1, time.time_ns() // 1000)
        return self._own.last

    @property
    def last(self) -> int:
        """The time that this thread was given last."""
        return self._own.last


class Writer(threading.Thread):
    """Writes to one table until `stop` is set; the seed decides the writes and their order."""

    # The longest pause between two writes.
    pause_seconds = 0.03

    def __init__(
        self, session: Session, clock: Clock, keyspace: str, name: str, seed: int, stop: threading.Event
    ) -> None:
        super().__init__(name=f"writer of {name}")
        self.table = name
        self.acknowledged: list[Acknowledged] = []
        self.refused = 0
        self.unknown = 0
        self.alterations = 0
        self.fault: str | None = None
        self._session = session
        self._keyspace = keyspace
        self._stop_writing = stop
        self._clock = clock
        self._generator = Generator(seed)
        self._generator._ttls = [SHORT_TTL, 1000, 86_400]
        self._random = self._generator.random
        self._gone: dict[str, tuple[Column, str]] = {}
        self._ever_gone: set[str] = set()

    def run(self) -> None:
        try:
            self.create()
            while not self._stop_writing.is_set():
                self.step()
                self._stop_writing.wait(self._random.random() * self.pause_seconds)
        except BaseException:
            self.fault = traceback.format_exc()

    # --- the table ----------------------------------------------------------------------------------------------------

    def create(self) -> None:
        """Create the table, and one that returns the tokens of its keys."""
        # Columns that an earlier table of this name had may not fit: one without clustering has no static columns.
        self._gone.clear()
        schema = self._schema()
        # Of a map literal that has a key twice, the database takes one value or the other: no key to look for.
        while any(name in str(c.type) for c in schema.partition_key for name in ("map", "outer")):
            schema = self._schema()
        statement = schema.create_statement().replace(f"{schema.keyspace}.", f"{self._keyspace}.")
        joiner = " AND" if " WITH " in statement else " WITH"
        self.insist(f"{statement.replace('TABLE', 'TABLE IF NOT EXISTS', 1)}{joiner} cdc = true")
        self._read_schema()
        keys = ", ".join(f"{quote_name(c.name)} {c.type}" for c in schema.partition_key)
        self.insist(
            f"CREATE TABLE IF NOT EXISTS {self._keyspace}.keys_{self.table} ({keys}, n int, "
            f"PRIMARY KEY (({self._key_names()}), n))"
        )
        self._move()

    def _schema(self) -> TableSchema:
        return self._generator.schema(self.table, clusterings=self._random.randint(0, 2), regulars=4)

    def _read_schema(self) -> None:
        name = f"{self._keyspace}.{self.table}"
        self.schema: TableSchema = self._until_answered(lambda: read_schema(self._session, name))

    def _key_names(self) -> str:
        return ", ".join(quote_name(c.name) for c in self.schema.partition_key)

    def _move(self) -> None:
        """Write to other places from now on."""
        self._places: Places = self._generator.places(self.schema)
        self._tokens: list[int | None] = [self._token(key) for key in self._places[0]]

    def _token(self, key: list[str]) -> int | None:
        """Ask for the token of a key; None if it is no key."""
        table = f"{self._keyspace}.keys_{self.table}"
        where = " AND ".join(f"{quote_name(c.name)} = {v}" for c, v in zip(self.schema.partition_key, key, strict=True))
        try:
            self.insist(f"INSERT INTO {table} ({self._key_names()}, n) VALUES ({', '.join(key)}, 0)")
        except InvalidRequest as e:
            if "Key may not be empty" not in str(e):
                raise
            return None
        query = f"SELECT token({self._key_names()}) FROM {table} WHERE {where} LIMIT 1"
        return self._until_answered(lambda: next(iter(self._session.execute(query))))[0]

    def alter(self) -> None:
        """Change the table's schema, or a type that it may use."""
        r, table = self._random, self.schema.full_name
        columns = self.schema.static + self.schema.regular
        # A type that is not frozen cannot be dropped; one with tuples for types is not taken back.
        may_go = [c for c in columns if not (isinstance(c.type, Udt) and is_complex(c.type))]
        match r.choice(["add", "add", "drop", "return", "type"]):
            case "add" if len(columns) < _MOST_COLUMNS:
                cql_type = r.choice(["spot", "frozen<spot>", *(str(self._generator.cql_type()) for _ in range(4))])
                static = " static" if self.schema.clustering and r.random() < 0.3 else ""
                self._alter(f"ALTER TABLE {table} ADD n{self.alterations} {cql_type}{static}")
            case "drop" if may_go:
                column = r.choice(may_go)
                if not any(name in str(column.type) for name in (*UDTS, "spot")):
                    self._gone[column.name] = column, " static" if column in self.schema.static else ""
                self._ever_gone.add(column.name)
                # The database keeps the time of the drop in milliseconds: nothing was written in that one.
                time.sleep(0.002)
                self._alter(f"ALTER TABLE {table} DROP {quote_name(column.name)}")
                time.sleep(0.002)
            case "return" if self._gone:
                column, static = self._gone.pop(r.choice(sorted(self._gone)))
                self._alter(f"ALTER TABLE {table} ADD {quote_name(column.name)} {column.type}{static}")
            case "type":
                self._alter(f"ALTER TYPE {self._keyspace}.spot ADD {self.table}_{self.alterations} text")
            case _:
                return
        self.alterations += 1
        self._read_schema()

    # --- writes -------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Write once, and now and then go elsewhere or change the schema."""
        r = self._random
        chance = r.random()
        if chance < 0.01:
            self._move()
        elif chance < 0.03:
            self.alter()
        known = [i for i, token in enumerate(self._tokens) if token is not None]
        if not known:
            return self._move()
        chosen = r.choices(known, k=r.choice([1] * 9 + [3]))
        statements = [self._statement(i) for i in chosen]
        text = statements[0] if len(statements) == 1 else f"BEGIN BATCH {'; '.join(statements)}; APPLY BATCH"
        if self.try_to(text):
            self.acknowledged.append(
                [(s, self._tokens[i] or 0, self._time(s)) for s, i in zip(statements, chosen, strict=True)]
            )
        return None

    def try_to(self, statement: str) -> bool:
        """Execute a statement; return whether it was acknowledged."""
        try:
            self._session.execute(statement)
        except InvalidRequest as e:
            # The generator does not know that a range must not be empty, nor a key. A field that another thread adds to
            # a type can be read in the schema a moment before it can be written.
            expected = any(text in str(e) for text in ("Key may not be empty", "Unknown field"))
            if "DELETE" not in statement and "BATCH" not in statement and not expected:
                raise
            self.refused += 1
        except DRIVER_FAULTS:
            self.unknown += 1
            self._stop_writing.wait(0.1)
        else:
            return True
        return False

    def _statement(self, number: int) -> str:
        key, rows = self._places[0][number], self._places[1]
        (made,) = self._generator.writes(self.schema, 1, ([key], rows))
        return re.sub(r"TIMESTAMP -?\d+", lambda _: f"TIMESTAMP {self._some_time()}", made)

    def _some_time(self) -> int:
        return self._random.choice(_TIES) if self._random.random() < 0.3 else self._clock()

    def _time(self, statement: str) -> int:
        found = re.search(r"TIMESTAMP (\d+)", statement)
        return int(found[1]) if found else self._clock.last

    def insist(self, statement: str) -> None:
        """Execute a statement that may be repeated until it is acknowledged."""
        self._until_answered(lambda: self._session.execute(statement, timeout=60))

    def _alter(self, statement: str) -> None:
        """Execute an ALTER until it is acknowledged. One that was not answered may have been executed, and is refused
        when it is repeated then: 4.0 has no IF NOT EXISTS for columns.
        """
        tries = itertools.count()

        def execute() -> None:
            with suppress(InvalidRequest) if next(tries) else nullcontext():
                self._session.execute(statement, timeout=60)

        self._until_answered(execute)

    def _until_answered(self, call: Callable[[], _T]) -> _T:
        while True:
            try:
                return call()
            except (InvalidRequest, SyntaxException):
                raise
            except DRIVER_FAULTS:
                time.sleep(0.2)

    # --- what has to be found -----------------------------------------------------------------------------------------

    def missing(self, found: set[tuple[int, int]]) -> Iterator[Acknowledged]:
        """Yield the acknowledged writes of which neither is among tokens with write times.

        In a batch a deletion hides what is older, so of each partition its latest write has to be there, if no deletion
        that may be empty is later. Overwriting a collection deletes it one microsecond before. A column that was
        dropped before its values were read takes them with it.
        """
        for together in self.acknowledged:
            latest: dict[int, int] = {}
            hidden: dict[int, int] = {}
            for statement, token, at in together:
                column = _COLUMN.search(statement)
                name = column and (column[1] or column[2])
                if name not in self._ever_gone:
                    of_kind = hidden if _MAY_BE_EMPTY.search(statement) else latest
                    of_kind[token] = max(at, of_kind.get(token, at))
            wanted = {(token, at) for token, at in latest.items() if at > hidden.get(token, at - 1)}
            if any((token, at) not in found and (token, at - 1) not in found for token, at in wanted):
                yield together


class Counters(Writer):
    """Adds to counters."""

    def create(self) -> None:
        """Create the table."""
        self.insist(
            f"CREATE TABLE IF NOT EXISTS {self._keyspace}.{self.table} "
            "(k int, c int, n counter, s counter static, PRIMARY KEY (k, c)) WITH cdc = true"
        )
        self._read_schema()

    def step(self) -> None:
        """Add to one."""
        r = self._random
        what, where = r.choice([("n", f" AND c = {r.randrange(5)}"), ("s", "")])
        by = r.randint(-9, 9)
        self.try_to(f"UPDATE {self.schema.full_name} SET {what} = {what} + {by} WHERE k = {r.randrange(9)}{where}")


class Filling(Writer):
    """Writes so much that the node begins further segments."""

    def create(self) -> None:
        """Create the table."""
        self.insist(
            f"CREATE TABLE IF NOT EXISTS {self._keyspace}.{self.table} (k int PRIMARY KEY, v blob) WITH cdc = true"
        )
        self._read_schema()

    def step(self) -> None:
        """Write a large value."""
        filling = self._random.randbytes(30_000).hex()
        self.try_to(f"INSERT INTO {self.schema.full_name} (k, v) VALUES ({self._random.randrange(20)}, 0x{filling})")
        self._stop_writing.wait(0.2)


class Emptied(Writer):
    """Writes to a table that it truncates now and then, or drops and creates."""

    def create(self) -> None:
        """Create the table."""
        self.insist(
            f"CREATE TABLE IF NOT EXISTS {self._keyspace}.{self.table} (k int, c int, v text, PRIMARY KEY (k, c)) "
            "WITH cdc = true"
        )
        self._read_schema()

    def step(self) -> None:
        """Write or delete a row, or lose them all. The database returns the remaining rows."""
        r, table = self._random, self.schema.full_name
        chance, where = r.random(), f"k = {r.randrange(9)} AND c = {r.randrange(9)}"
        if chance < 0.01:
            self.insist(f"TRUNCATE {table}")
            self.alterations += 1
        elif chance < 0.015:
            self.insist(f"DROP TABLE IF EXISTS {table}")
            self.create()
            self.alterations += 1
        elif chance < 0.2:
            self.try_to(f"DELETE FROM {table} WHERE {where}")
        else:
            self.try_to(f"UPDATE {table} SET v = 'v{r.randrange(10**6)}' WHERE {where}")


def write_times(changes: Iterable[pa.Table]) -> set[tuple[int, int]]:
    """Return the token and the write time of all parts of changes."""
    found: set[tuple[int, int]] = set()
    for table in changes:
        tokens = table["token"].to_numpy()
        for name in table.column_names:
            for rows, times in _times(table[name].combine_chunks(), np.arange(len(table))):
                found.update(zip(tokens[rows].tolist(), times.tolist(), strict=True))
    return found


def _times(values: Any, rows: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    if pa.types.is_struct(values.type):
        for field, child in zip(values.type, values.flatten(), strict=True):
            if field.name == "write_time":
                there = child.is_valid().to_numpy(zero_copy_only=False)
                yield rows[there], child.drop_null().to_numpy()
            else:
                yield from _times(child, rows)
    elif pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        yield from _times(values.flatten(), rows[pc.list_parent_indices(values).to_numpy()])
