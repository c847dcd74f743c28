"""A history with a bad interval, in a table of a node and in the lake."""

import random
from collections.abc import Iterator

import pytest
from cassandra.cluster import Session

from tests.support.history import HOUR, START, add_snapshot
from tests.support.timed_writes import COLUMNS, statements
from writetime.clients.database import connect
from writetime.clients.node_snapshots import take_snapshot
from writetime.core.config import Settings
from writetime.lake import state
from writetime.lake.horizon import raise_complete_snapshot
from writetime.lake.table import LakeTable, create_table
from writetime.lake.views import time_now
from writetime.schema.system import read_schema

# Statements of each phase.
GOOD, BAD, LATER = 600, 40, 60


@pytest.fixture
def session(settings: Settings) -> Iterator[Session]:
    with connect(settings) as opened:
        yield opened


class Damaged:
    """The table `damaged`, with good, bad and good statements, and the table `wanted`, with the good ones alone."""

    def __init__(self, settings: Settings, session: Session) -> None:
        self._settings, self._session = settings, session
        self.damaged, self.wanted = (f"{settings.cassandra.keyspace}.{name}" for name in ("damaged", "wanted"))
        self._flushes = 0
        self.lake: LakeTable

    def create(self, columns: str = COLUMNS) -> None:
        """Create both tables, and the first one in the lake."""
        for table in (self.damaged, self.wanted):
            self._session.execute(f"CREATE TABLE {table} {columns}")
        self.lake = create_table(self._settings, read_schema(self._session, self.damaged))

    def write_phases(self, seed: int) -> None:
        """Write three phases an hour apart, and capture each."""
        for phase, count in enumerate([GOOD, BAD, LATER]):
            found = statements("{}", random.Random(100 * seed + phase), START + phase * HOUR)
            for statement in found[:count]:
                self.write(statement, bad=phase == 1)
            self.capture()

    def write(self, statement: str, *, bad: bool = False) -> None:
        """Execute a statement with `{}` for the table."""
        for table in (self.damaged,) if bad else (self.damaged, self.wanted):
            self._session.execute(statement.replace("{}", table))

    def capture(self) -> None:
        """Bring all writes into the lake, which keeps their history."""
        taken_at = time_now()
        add_snapshot(self.lake, take_snapshot(self._settings, self.damaged, f"flush{self._flushes}"), self._flushes)
        self._flushes += 1
        raise_complete_snapshot(self.lake, taken_at)
        state.fold(self.lake)


@pytest.fixture
def tables(settings: Settings, session: Session) -> Damaged:
    return Damaged(settings, session)
