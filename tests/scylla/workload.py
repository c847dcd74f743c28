"""Random tables in ScyllaDB, and threads that write to them, each to a table of its own.

The writes of a thread and their order follow from its seed. Write times come from the clock, because with CDC, ScyllaDB
accepts only times near its own. Cassandra accepts these parts of statements, but ScyllaDB (branch-2026.1) refuses them,
so they are avoided:

- a write time before the streams, or more than 5 s ahead (`cdc/metadata.cc`);
- `IF NOT EXISTS` and `IF EXISTS` in ALTER (`cql3/Cql.g`);
- a column that is added again less than 5 s after it was dropped (`cdc/log.cc`);
- literals of user-defined types for clustering columns in descending order (`cql3/expr/prepare_expr.cc`);
- empty elements of vectors (`types/vector.hh`).
"""

import random
import re
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from cassandra import InvalidRequest
from cassandra.cluster import Session
from cassandra.query import SimpleStatement

from tests.support.generate import UDTS, Generator
from writetime.clients.database import DRIVER_FAULTS
from writetime.schema.system import read_schema
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Collection, CqlType, Udt, Vector, is_complex, quote_name

_T = TypeVar("_T")

SECOND = 1_000_000
TYPES = [
    "CREATE TYPE IF NOT EXISTS {ks}.spot (x int)",
    *(
        f"CREATE TYPE IF NOT EXISTS {{ks}}.{udt.name} ({', '.join(f'{quote_name(n)} {t}' for n, t in udt.fields)})"
        for udt in UDTS.values()
    ),
]
# The log keeps values before and after a write as well.
CDC_OPTIONS = [
    "{'enabled': true}",
    "{'enabled': true, 'preimage': true, 'postimage': true}",
    "{'enabled': true, 'preimage': 'full', 'ttl': 7200}",
]
# How far ahead of the clock a write time may be, in seconds; ScyllaDB takes 5.
_AHEAD_SECONDS = 2
# ScyllaDB drops a column of the log as if this were later, in seconds (`column_drop_leeway` in `cdc/log.cc`).
_LEEWAY_SECONDS = 5
_PATIENCE_SECONDS = 300
_MOST_COLUMNS = 12
# Why the database may refuse a statement of the generator, which does not know which keys and ranges are empty, nor how
# long a list is; and a field that another thread adds can be read a moment before it can be written.
_REFUSALS = ("Key may not be empty", "Unknown field", "out of bound", "list which is null")


class LiveGenerator(Generator):
    """Makes statements that ScyllaDB takes."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._ttls = [1, 100_000]
        self._ttls_made = 0

    def literal(self, cql_type: CqlType, *, key: bool = False) -> str:
        """Make a literal, in vectors without empty elements."""
        if isinstance(cql_type, Vector):
            elements = [self.literal(cql_type.element, key=True) for _ in range(cql_type.dimension)]
            return "[" + ", ".join("'empty'" if element == "''" else element for element in elements) + "]"
        return super().literal(cql_type, key=key)

    def live_schema(self, keyspace: str, name: str, **shape: int) -> TableSchema:
        """Make a table of a keyspace, with clustering columns of user-defined types in ascending order."""
        made = self.schema(name, **shape)
        clustering = tuple(replace(c, reversed=c.reversed and not isinstance(c.type, Udt)) for c in made.clustering)
        return replace(made, keyspace=keyspace, clustering=clustering)

    def statement(self, schema: TableSchema, key: list[str], row: list[str]) -> str:
        """Make one statement, or a batch, for a partition."""
        r = self.random
        kind = r.random()
        if kind < 0.06:
            return self._conditional(schema, key, row)
        if kind < 0.12 and (lists := [c for c in schema.regular if _is_list(c)]):
            return self._of_list(schema, r.choice(lists), key, row)
        if kind < 0.22:
            statements = [self._one(schema, key, row) for _ in range(r.randint(2, 4))]
            return f"BEGIN {r.choice(['', 'UNLOGGED '])}BATCH {'; '.join(statements)}; APPLY BATCH"
        return self._one(schema, key, row)

    def time(self) -> int:
        """Return a write time near to now, in microseconds, that others may have, too."""
        now = time.time_ns() // 1000
        if self.random.random() < 0.05:
            return now + _AHEAD_SECONDS * SECOND
        return now // SECOND * SECOND + self.random.choice([0, 0, 1, 2])

    def _one(self, schema: TableSchema, key: list[str], row: list[str]) -> str:
        (made,) = self.writes(schema, 1, ([key], [row]))
        return self._timed(made)

    def _timed(self, statement: str) -> str:
        made = re.sub(r"TIMESTAMP -?\d+", lambda _: f"TIMESTAMP {self.time()}", statement)
        return re.sub(r"TTL (\d+)", self._ttl, made)

    def _ttl(self, match: re.Match[str]) -> str:
        # When a cell expires is not logged, so of two with the same time and TTL it is not known which is the later.
        self._ttls_made += 1
        return match[0] if match[1] == "1" else f"TTL {100_000 + 1000 * self._ttls_made}"

    def _conditional(self, schema: TableSchema, key: list[str], row: list[str]) -> str:
        """Make an INSERT or UPDATE with a condition; such have no write time of their own."""
        while True:
            made = self._one(schema, key, row)
            if made.startswith(("INSERT", "UPDATE")):
                without = re.sub(r" USING TIMESTAMP \d+(?: AND (TTL \d+))?", _without_time, made)
                condition = "IF NOT EXISTS" if made.startswith("INSERT") else "IF EXISTS"
                # The options of an INSERT come after its condition, and those of an UPDATE before.
                found = re.search(r" USING TTL \d+$", without) if made.startswith("INSERT") else None
                if found:
                    return f"{without[: found.start()]} {condition}{found[0]}"
                return f"{without} {condition}"

    def _of_list(self, schema: TableSchema, column: Column, key: list[str], row: list[str]) -> str:
        """Make a statement that reads a list before it writes to it."""
        assert isinstance(column.type, Collection)
        table = f"{schema.keyspace}.{schema.name}"
        name, element = quote_name(column.name), self.literal(column.type.arguments[0], key=True)
        columns = schema.partition_key + schema.clustering
        where = " AND ".join(f"{quote_name(c.name)} = {v}" for c, v in zip(columns, key + row, strict=True))
        using = f" USING TIMESTAMP {self.time()}"
        return self.random.choice(
            [
                f"UPDATE {table}{using} SET {name}[0] = {element} WHERE {where}",
                f"UPDATE {table}{using} SET {name} = {name} - [{element}] WHERE {where}",
                f"UPDATE {table}{using} SET {name} = [{element}] + {name} WHERE {where}",
                f"DELETE {name}[0] FROM {table}{using} WHERE {where}",
            ]
        )


def _without_time(match: re.Match[str]) -> str:
    return f" USING {match[1]}" if match[1] else ""


def _is_list(column: Column) -> bool:
    return isinstance(column.type, Collection) and column.type.kind == "list" and is_complex(column.type)


class LiveWriter(threading.Thread):
    """Writes to one table until `stop` is set, and alters it."""

    def __init__(
        self, session: Session, raw: Session, keyspace: str, name: str, seed: int, stop: threading.Event
    ) -> None:
        """Write through `raw`, whose rows hold bytes: the driver cannot decode every row that a condition answers."""
        super().__init__(name=f"writer of {name}")
        self.table = name
        self.seed = seed
        self.counts: Counter[str] = Counter()
        self.fault: str | None = None
        self._session = session
        self._raw = raw
        self._stop_writing = stop
        self._generator = LiveGenerator(seed)
        self._random = random.Random(seed)
        self._dropped: dict[str, tuple[Column, str]] = {}
        self._keyspace = keyspace

    @property
    def full_name(self) -> str:
        """The table, as keyspace.table."""
        return f"{self._keyspace}.{self.table}"

    def create(self) -> None:
        """Create the table."""
        shape = {"clusterings": self._random.randint(0, 3), "regulars": self._random.randint(1, 5)}
        statement = self._generator.live_schema(self._keyspace, self.table, **shape).create_statement()
        joiner = "AND" if " WITH " in statement else "WITH"
        self._insist(f"{statement} {joiner} cdc = {self._random.choice(CDC_OPTIONS)}")
        self._read_schema()
        self._move()

    def run(self) -> None:
        try:
            while not self._stop_writing.is_set():
                self.step()
                self._stop_writing.wait(self._random.random() * 0.1)
        except BaseException:
            self.fault = traceback.format_exc()

    def step(self) -> None:
        """Write once, and now and then go elsewhere or alter the table."""
        chance = self._random.random()
        if chance < 0.02:
            self._move()
        elif chance < 0.03:
            self.alter()
        keys, rows = self._places
        self._try(self._generator.statement(self.schema, self._random.choice(keys), self._random.choice(rows)))

    def alter(self) -> None:
        """Change the table's schema, or a type that it may use."""
        r, columns = self._random, self.schema.static + self.schema.regular
        # A type that is not frozen cannot be dropped, one that grew meanwhile cannot be added again.
        may_go = [c for c in columns if not (isinstance(c.type, Udt) and is_complex(c.type))]
        number = self.counts["altered"]
        match r.choice(["add", "add", "drop", "return", "type"]):
            case "add" if len(columns) < _MOST_COLUMNS:
                cql_type = r.choice(["spot", "frozen<spot>", *(str(self._generator.cql_type()) for _ in range(4))])
                static = " static" if self.schema.clustering and r.random() < 0.3 else ""
                self._insist(f"ALTER TABLE {self.full_name} ADD n{number} {cql_type}{static}")
            case "drop" if len(may_go) > 1:
                column = r.choice(may_go)
                if not any(name in str(column.type) for name in (*UDTS, "spot")):
                    self._dropped[column.name] = column, " static" if column in self.schema.static else ""
                # Writes ahead of the clock are older than the drop, too.
                time.sleep(_AHEAD_SECONDS + 0.1)
                self._insist(f"ALTER TABLE {self.full_name} DROP {quote_name(column.name)}")
            case "return" if self._dropped:
                column, static = self._dropped.pop(r.choice(sorted(self._dropped)))
                time.sleep(_LEEWAY_SECONDS + 1)
                self._insist(f"ALTER TABLE {self.full_name} ADD {quote_name(column.name)} {column.type}{static}")
                # Write times are up to a second behind the clock: the log has only rows that are newer than the drop.
                time.sleep(1.1)
            case "type":
                self._insist(f"ALTER TYPE {self._keyspace}.spot ADD {self.table}_{number} text")
            case _:
                return
        self.counts["altered"] += 1
        self._read_schema()

    def alter_options(self, options: str) -> None:
        """Change the table's options, such as how many tablets it has."""
        self._insist(f"ALTER TABLE {self.full_name} WITH {options}")

    def _move(self) -> None:
        """Write to other places from now on."""
        self._places = self._generator.places(self.schema)

    def _read_schema(self) -> None:
        self.schema: TableSchema = self.until_answered(lambda: read_schema(self._session, self.full_name))

    def _try(self, statement: str) -> None:
        try:
            answer = self._raw.execute(SimpleStatement(statement), timeout=30).one()
        except InvalidRequest as e:
            # An empty range, of a deletion, alone or in a batch, is refused with several texts.
            if "DELETE" not in statement and not any(text in str(e) for text in _REFUSALS):
                raise AssertionError(f"{e}: {statement}") from None
            self.counts["refused"] += 1
        except DRIVER_FAULTS:
            # It may have been written: if so, the log has it.
            self.counts["unknown"] += 1
            self._stop_writing.wait(0.2)
        else:
            # A condition answers first whether it held.
            self.counts["written" if answer is None or answer[0] == b"\1" else "not applied"] += 1

    def _insist(self, statement: str) -> None:
        """Execute a change of the schema until it is acknowledged, or found to be there from an attempt before."""
        again = False

        def call() -> None:
            nonlocal again
            is_first, again = not again, True
            try:
                self._session.execute(statement, timeout=120)
            except InvalidRequest as e:
                if is_first or not re.search(r"conflicts with an existing|was not found|already exist", str(e)):
                    raise AssertionError(f"{e}: {statement}") from None

        self.until_answered(call)

    def until_answered(self, call: Callable[[], _T]) -> _T:
        """Repeat a call until the database answers it."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return call()
            except InvalidRequest:
                raise
            except DRIVER_FAULTS:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
