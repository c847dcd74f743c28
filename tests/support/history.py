"""A table with a history in a lake, and the answers of the database at some instants of it."""

import random
from collections.abc import Callable, Iterable
from pathlib import Path

from cassandra.cluster import Session

from tests.support.timed_writes import COLUMNS, Answers, statements
from writetime.clients.node_snapshots import take_snapshot
from writetime.core.config import Settings
from writetime.lake import state
from writetime.lake.changes import ChangeWriter
from writetime.lake.table import LakeTable, create_table
from writetime.schema.system import read_schema
from writetime.storage.locations import find_sstables
from writetime.storage.sstable import SSTable

START = 1_700_000_000_000_000
HOUR = 3_600_000_000
PHASES = 3


def instant_after(phase: int) -> int:
    """Return a time after the writes of a phase, and before those of the next one."""
    return START + phase * HOUR + HOUR // 2


def with_history(
    settings: Settings,
    session: Session,
    name: str,
    seed: int = 0,
    snapshot: Callable[[Settings, str, str], Iterable[Path]] = take_snapshot,
) -> tuple[LakeTable, list[Answers]]:
    """Write to a new table in phases, an hour apart, and bring each into the lake by a snapshot, of a table under a
    tag. Return the table in the lake, and the answers after each phase.
    """
    table = f"{settings.cassandra.keyspace}.{name}"
    session.execute(f"CREATE TABLE {table} {COLUMNS}")
    lake = create_table(settings, read_schema(session, table))
    wanted: list[Answers] = []
    for phase in range(PHASES):
        for statement in statements(table, random.Random(seed + phase), START + phase * HOUR):
            session.execute(statement)
        wanted.append(Answers.of(session, table))
        add_snapshot(lake, snapshot(settings, table, f"flush{phase}"), phase)
        state.fold(lake)
    return lake, wanted


def add_snapshot(lake: LakeTable, folders: Iterable[Path], number: int, known: set[str] | None = None) -> None:
    """Add the changes of all SSTables, without the known ones. The first snapshot with a change has it, so the lake
    keeps its history.
    """
    schema, seen = lake.schema(), set() if known is None else known
    found = [location for folder in folders for location in find_sstables(str(folder))]
    locations = [location for location in found if location.id not in seen]
    seen |= {location.id for location in locations}
    batches = [batch for location in locations for batch in SSTable(location, schema).scan()]
    lake.changes.append(ChangeWriter.of(lake, schema).write(batches), "test", number)
