"""Attacks capture and the lake with tables and statements: `python -m tests.attack.statements
[--seconds N | --rounds N] [--seed S] [--first N]`.

It starts Kafka and Cassandra, and an agent as a program, which is killed at random moments. A round creates tables with
all types and odd names (see `cql`), writes to all of them at once, and lands the captured changes. Then the state and
the views of each table must equal the database's rows, and `verify` must prove it. A table must not stop another, so
each is compared separately. A round follows from its number and the seed, and `--first` repeats it.
"""

import os
import random
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from cassandra import InvalidRequest, RequestExecutionException
from cassandra.cluster import Cluster, Session
from cassandra.protocol import ErrorMessage, SyntaxException

from tests.attack.command import conclude, numbers, options
from tests.attack.cql import OddGenerator
from tests.attack.report import Report
from tests.support import answers
from tests.support.captured import Captured
from tests.support.lake_views import answered, assert_lake
from tests.support.programs import Program
from tests.support.servers import running_servers
from tests.support.settings import write_settings
from tests.support.tables import counted
from tests.support.workload import TYPES
from writetime.core.config import Capture, Settings
from writetime.lake.table import open_table
from writetime.landing.landing import Landing
from writetime.verify.comparison import verify

_TABLES = 3
_STATEMENTS = 50
# Of the agent, in a round.
KILLS = 3


class _Node:
    """A node that runs already, as `Captured` writes to it."""

    def __init__(self, session: Session, port: int) -> None:
        self.port = port
        self._session = session

    def session(self) -> Session:
        """Return the session."""
        return self._session

    def write_one(self, statement: str) -> None:
        """Execute a statement."""
        self._session.execute(statement)


class Attack:
    """Rounds in a separate keyspace, with one agent."""

    def __init__(
        self, settings: Settings, home: Path, seed: int, captured: Captured, writing: Session, *, kills: int
    ) -> None:
        self.report = Report()
        self._settings = settings
        self._seed = seed
        self._captured = captured
        # Conditional writes answer with rows, and the driver cannot decode all of their values.
        self._writing = writing
        self._agent = Program(home, "agent", "agent")
        self._tables = 0
        self._kills_a_round = kills
        self._kills = 0

    def run(self, first: int, rounds: int | None, seconds: float | None) -> Report:
        """Try rounds by their numbers."""
        self._agent.start()
        try:
            for number in numbers(first, rounds, seconds):
                self._round(number)
        finally:
            self._agent.end()
        ends = dict(self._agent.ends)
        if set(ends) - {0, -9} or not ends.get(0):
            self.report.findings.append(f"the agent ended {ends}: {self._agent.tail()[-900:]}")
        self.report.notes.append(f"{self._tables} tables, {self._kills} kills of the agent")
        return self.report

    def _round(self, number: int) -> None:
        r = random.Random(f"{self._seed}/{number}")
        generator = OddGenerator(r.getrandbits(64), self._captured.keyspace)
        statements: dict[str, list[str]] = {}
        for i in range(_TABLES):
            name = f"{r.choice(['t', 'T', 'Tab_'])}{number}_{i}"
            schema = generator.odd_schema(name)
            if self._execute("tables", self._create(schema.create_statement())):
                statements[name] = generator.statements(schema, _STATEMENTS)
        if r.random() < 0.5:
            name = f"Counted{number}"
            schema = replace(counted(), keyspace=self._captured.keyspace, name=name)
            if self._execute("tables", self._create(schema.create_statement())):
                statements[name] = generator.counters(schema.full_name, _STATEMENTS)
        self._write(r, statements)
        try:
            self._captured.settle()
        except Exception as e:
            self.report.findings.append(f"round {number}: {e}: {self._agent.tail()[-900:]}")
            return
        for name in statements:
            self._compare(number, name)
        self._tables += len(statements)

    @staticmethod
    def _create(statement: str) -> str:
        return f"{statement} {'AND' if ' WITH ' in statement else 'WITH'} cdc = true"

    def _write(self, r: random.Random, statements: dict[str, list[str]]) -> None:
        """Write to all tables, and kill the agent meanwhile."""
        turns = [name for name, own in statements.items() for _ in own]
        r.shuffle(turns)
        kills = {r.randrange(len(turns)) for _ in range(self._kills_a_round)} if turns else set()
        left = {name: iter(own) for name, own in statements.items()}
        for i, name in enumerate(turns):
            if i in kills:
                self._agent.kill()
                self._kills += 1
            self._execute("statements", next(left[name]))

    def _execute(self, what: str, statement: str) -> bool:
        try:
            self._writing.execute(statement)
        except (InvalidRequest, SyntaxException):
            self.report.add(what, "refused")
            return False
        except (RequestExecutionException, ErrorMessage) as e:
            # The database may have written it. Its answer at the end counts.
            self.report.add(what, type(e).__name__)
            return False
        self.report.add(what, "accepted")
        return True

    def _compare(self, number: int, name: str) -> None:
        """Compare one table, whatever became of the others."""
        table = f"{self._captured.keyspace}.{name}"
        try:
            schema = self._captured.schema(name)
            wanted = answered(self._captured.node.port, schema)
            if Landing(self._settings, table).drain() or wanted.num_rows:
                lake = open_table(self._settings, table)
                assert_lake(lake, wanted, schema)
                report = verify(self._settings, lake, 0)
                assert report.proven, f"verify finds {[*report.differences][:3]}"
                assert sum(r.database_rows for r in report.ranges) == wanted.num_rows
        except Exception as e:
            where = traceback.extract_tb(e.__traceback__)[-1]
            place = f"{Path(where.filename).name}:{where.lineno}"
            self.report.findings.append(f"round {number}, {table}: {type(e).__name__} at {place}: {str(e)[:900]}")
            self.report.add("tables compared", "finding")
        else:
            self.report.add("tables compared", "equal" if wanted.num_rows else "equal, empty")


@contextmanager
def _node(settings: Settings) -> Iterator[_Node]:
    port = settings.cassandra.port
    cluster = Cluster(["127.0.0.1"], port=port, connect_timeout=60, control_connection_timeout=60, protocol_version=5)
    try:
        session = cluster.connect()
        session.default_timeout = 60
        yield _Node(session, port)
    finally:
        cluster.shutdown()


def attack(
    settings: Settings,
    home: Path,
    seed: int = 1,
    *,
    rounds: int | None = None,
    seconds: float | None = None,
    first: int = 0,
    kills: int = KILLS,
) -> Report:
    """Try so many rounds, or for so many seconds, on servers that run; return the results."""
    settings = settings.model_copy(
        update={
            "capture": Capture(state_dir=home / "state", snapshot="schema-only"),
            "lake": settings.lake.model_copy(update={"path": str(home / "lake"), "buckets": 2}),
        }
    )
    write_settings(settings, home / "writetime.toml")
    with _node(settings) as node, answers.raw_session(node.port) as writing:
        made: Any = node
        captured = Captured(made, settings, f"attack{int(time.time())}", home)
        captured.write(*TYPES)
        return Attack(settings, home, seed, captured, writing, kills=kills).run(first, rounds, seconds)


@options(seconds=120.0)
def main(seconds: float | None, rounds: int | None, seed: int, first: int) -> None:
    """Attack capture and the lake, and print the tries and findings."""
    with tempfile.TemporaryDirectory(prefix="attack-") as folder, running_servers(Path(folder)) as settings:
        os.environ["WRITETIME_CONFIG"] = str(Path(folder) / "writetime.toml")
        report = attack(settings, Path(folder), seed, rounds=rounds, seconds=seconds, first=first)
    conclude(report, "statements", seed)


if __name__ == "__main__":
    main()
