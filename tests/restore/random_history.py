"""Random histories of captured tables: writes of every kind, and the answers of the database at some instants."""

import threading
import time
from dataclasses import dataclass, replace

from cassandra import InvalidRequest
from cassandra.cluster import Session

from tests.support.captured import Captured
from tests.support.generate import UDTS
from tests.support.published import command
from tests.support.timed_writes import Answers
from tests.support.waiting import wait_for
from tests.support.workload import Clock, Counters, Writer
from writetime.clients.untyped_rows import UntypedProtocol
from writetime.lake.horizon import captured_until
from writetime.lake.table import open_table
from writetime.lake.views import time_now
from writetime.schema.system import read_schema
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Collection, Native, Udt, is_complex, quote_name

# Cells that expire while a test runs, or before the later second of its answers, or after it.
_TTLS = [2, 30, 1000, 1_000_000]
LATER_SECONDS = 20_000
"""The seconds from an instant to the later second of its answers."""

# Of a table before each phase but the first.
_ALTERATIONS = 2

_COLLECTIONS = (
    Column("a", Collection("list", (Native("int"),))),
    Column("b", Collection("map", (Native("text"), Native("int")))),
    Column("e", Collection("set", (Native("int"),))),
    Column("u", UDTS["inner"]),
)


@dataclass(frozen=True)
class Instant:
    """An instant (microseconds), and the answers of a table as of its second and as of a later one."""

    at: int
    schema: TableSchema
    now: Answers
    later: Answers

    @property
    def seconds(self) -> tuple[int, int]:
        """The two seconds."""
        return self.at // 1_000_000, self.at // 1_000_000 + LATER_SECONDS


class History(Writer):
    """Writes to a random table with collections. Write times are those of the coordinator, unique ones of now, and some
    that many statements share; none is before the last instant, or before the last change of the schema.
    """

    def __init__(self, session: Session, keyspace: str, name: str, seed: int) -> None:
        super().__init__(session, Clock(), keyspace, name, seed, threading.Event())
        self._generator._ttls = _TTLS
        self.begin()

    def begin(self) -> None:
        """Let later writes have write times from now on."""
        self._mark = self._clock()

    def alter(self) -> None:
        """Change nothing: whoever records instants changes the schema between them."""

    def change_schema(self) -> None:
        """Add, drop or return a column, or add a field to a type."""
        super().alter()
        self.begin()

    def _schema(self) -> TableSchema:
        schema = super()._schema()
        static = tuple(replace(c, name=f"s{c.name}") for c in _COLLECTIONS[:2]) if schema.clustering else ()
        return replace(schema, static=schema.static + static, regular=schema.regular + _COLLECTIONS)

    def _some_time(self) -> int:
        r = self._random
        return self._mark + r.choice([1, 2]) if r.random() < 0.3 else self._clock()

    def _statement(self, number: int) -> str:
        return self._of_part(number) if self._random.random() < 0.3 else super()._statement(number)

    def _of_part(self, number: int) -> str:
        """Make a statement on a part of a collection or UDT, of a kind that the generator does not make, or a
        conditional one.
        """
        r, schema, table = self._random, self.schema, self.schema.full_name
        key, row = self._places[0][number], r.choice(self._places[1])
        pairs = list(zip([c.name for c in schema.partition_key + schema.clustering], key + row, strict=True))
        column = r.choice([c for c in schema.static + schema.regular if is_complex(c.type)])
        of_key = len(schema.partition_key) if column in schema.static else len(pairs)
        where = " AND ".join(f"{quote_name(name)} = {value}" for name, value in pairs[:of_key])
        if r.random() < 0.15:
            names, values = zip(*pairs, strict=True)
            return (
                f"INSERT INTO {table} ({', '.join(map(quote_name, names))}) VALUES ({', '.join(values)}) IF NOT EXISTS"
            )
        using = r.choice(["", f"USING TIMESTAMP {self._some_time()}"])
        name = quote_name(column.name)
        if isinstance(column.type, Udt):
            field = quote_name(r.choice(column.type.fields)[0])
            return f"UPDATE {table} {using} SET {name}.{field} = null WHERE {where}"
        assert isinstance(column.type, Collection)
        element = self._generator.literal(column.type.arguments[0], key=True)
        if column.type.kind == "list":
            new = f"{using} AND TTL {r.choice(_TTLS)}" if using and r.random() < 0.3 else using
            return r.choice(
                [
                    f"UPDATE {table} {new} SET {name} = [{element}] + {name} WHERE {where}",
                    f"UPDATE {table} {new} SET {name}[0] = {element} WHERE {where}",
                    f"UPDATE {table} {using} SET {name} = {name} - [{element}] WHERE {where}",
                    f"DELETE {name}[0] FROM {table} {using} WHERE {where}",
                ]
            )
        if column.type.kind == "map" and r.random() < 0.3:
            return f"UPDATE {table} {using} SET {name} = {name} - {{{element}}} WHERE {where}"
        return f"DELETE {name}[{element}] FROM {table} {using} WHERE {where}"

    def try_to(self, statement: str) -> bool:
        """Execute a statement; return whether it was acknowledged."""
        handler = self._session.client_protocol_handler
        if " IF NOT EXISTS" in statement:
            # It may answer with the existing row, of which the driver cannot decode all values.
            self._session.client_protocol_handler = UntypedProtocol
        try:
            return super().try_to(statement)
        except InvalidRequest as e:
            # The list is shorter.
            if "[0] = " not in statement:
                raise AssertionError(f"{statement}: {e}") from e
            return False
        finally:
            self._session.client_protocol_handler = handler


class CounterHistory(Counters):
    """Adds to counters, and deletes some. The database does not define the value of a counter that was deleted and is
    added to later, so other partitions follow those with a deletion.
    """

    def __init__(self, session: Session, keyspace: str, name: str, seed: int) -> None:
        super().__init__(session, Clock(), keyspace, name, seed, threading.Event())
        self._keys = list(range(9))

    def begin(self) -> None:
        """Change nothing: counters have no write times but those of the coordinator."""

    def change_schema(self) -> None:
        """Change nothing."""

    def step(self) -> None:
        """Add to one, or delete."""
        r, table = self._random, self.schema.full_name
        place, c = r.randrange(9), r.randrange(5)
        of_key = f"k = {self._keys[place]}"
        column, where = r.choice([("n", f"{of_key} AND c = {c}"), ("s", of_key)])
        if r.random() > 0.1:
            self.try_to(f"UPDATE {table} SET {column} = {column} + {r.randint(-9, 9)} WHERE {where}")
            return
        self._keys[place] = max(self._keys) + 1
        deletions = [f"DELETE {column} FROM {table} WHERE {where}", f"DELETE FROM {table} WHERE {where}"]
        self.try_to(r.choice([*deletions, f"DELETE FROM {table} WHERE {of_key} AND c > {c}"]))


class Recorder:
    """Lets histories go on, records instants of them, and brings them into the lake."""

    def __init__(self, captured: Captured, at: Session, histories: list[History | CounterHistory]) -> None:
        self._captured = captured
        self._at = at
        release = captured.node.session().execute("SELECT release_version FROM system.local").one().release_version
        self._of_parts = release >= "5"
        self.histories = histories
        self.instants: list[Instant] = []

    def answers(self, schema: TableSchema, second: int) -> Answers:
        """Return the answers of a table, for the columns of a schema."""
        return Answers.at(self._at, schema, second, of_parts=self._of_parts)

    def phases(self, count: int, steps: int) -> None:
        """Write, and record an instant after each phase. The schemas change before some."""
        for phase in range(count):
            for history in self.histories:
                history.begin()
                for _ in range(_ALTERATIONS if phase else 0):
                    # The lake knows a column that is dropped.
                    self._captured.settle()
                    history.change_schema()
                for _ in range(steps):
                    history.step()
            # The write time of a conditional write may be a moment later.
            time.sleep(0.05)
            for history in self.histories:
                self.instants.append(self._record(history.schema.full_name))
                history.begin()

    def _record(self, table: str) -> Instant:
        at = time_now()
        schema = read_schema(self._captured.node.session(), table)
        now, later = (self.answers(schema, second) for second in (at // 1_000_000, at // 1_000_000 + LATER_SECONDS))
        return Instant(at, schema, now, later)

    def land(self) -> None:
        """Land until the lake has all writes up to now, and then do some maintenance."""
        now = time_now()
        for history in self.histories:
            wait_for(lambda history=history: self._has_all(history, now))
            done = command("maintain", history.schema.full_name)
            assert done.exit_code == 0, done.output

    def _has_all(self, history: History | CounterHistory, until: int) -> bool:
        # Of a table without changes, the lake gets a watermark every five minutes.
        history.step()
        self._captured.settle()
        done = command("land", history.schema.full_name)
        assert done.exit_code == 0, done.output
        return captured_until(open_table(self._captured.settings, history.schema.full_name).changes.load()) > until

    def truncate(self) -> None:
        """Truncate all tables; the lake learns of it."""
        self.land()
        for history in self.histories:
            self._captured.write(f"TRUNCATE {history.schema.full_name}")
        self.land()

    def create_again(self) -> None:
        """Drop all tables, and create others of the same names; the lake learns of it."""
        self.land()
        for history in self.histories:
            self._captured.write(
                f"DROP TABLE {history.schema.full_name}", f"DROP TABLE IF EXISTS {{ks}}.keys_{history.table}"
            )
            history.create()
        self.land()
