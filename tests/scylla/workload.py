"""Threads that write to ScyllaDB, each to a table of its own. The writes of a thread and their order follow from its
seed."""

import random
import re
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from cassandra import InvalidRequest
from cassandra.cluster import NoHostAvailable, Session
from cassandra.query import SimpleStatement

from tests.scylla.statements import AHEAD_SECONDS, LiveGenerator, may_be_refused, with_options
from tests.support.generate import UDTS
from tests.support.waiting import PATIENCE_SECONDS
from writetime.clients.database import DRIVER_FAULTS
from writetime.schema.system import read_schema
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Udt, is_complex, quote_name

_T = TypeVar("_T")

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
# ScyllaDB drops a column of the log as if this were later, in seconds (`column_drop_leeway` in `cdc/log.cc`).
_LEEWAY_SECONDS = 5
_MOST_COLUMNS = 12


def write_to(raw: Session, generator: LiveGenerator, schema: TableSchema, writes: int = 80) -> None:
    """Write to some places of a table."""
    keys, rows = generator.places(schema)
    for _ in range(writes):
        statement = generator.statement(schema, keys, rows)
        try:
            raw.execute(SimpleStatement(statement))
        except InvalidRequest as e:
            if not may_be_refused(statement, e) and "prepend custom timestamp" not in str(e):
                raise AssertionError(f"{e}: {statement}") from None
        except NoHostAvailable as e:
            # ScyllaDB takes the `0x` of some literals for digits.
            if "Non-hex characters" not in str(e):
                raise


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
        made = self._generator.live_schema(self._keyspace, self.table, **shape)
        if self._random.random() < 0.5:
            made = self._generator.renamed(made)
        self._insist(with_options(made.create_statement(), [f"cdc = {self._random.choice(CDC_OPTIONS)}"]))
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
        self._try(self._generator.statement(self.schema, keys, rows))

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
                time.sleep(AHEAD_SECONDS + 0.1)
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
            if not may_be_refused(statement, e):
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
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return call()
            except InvalidRequest:
                raise
            except DRIVER_FAULTS:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
