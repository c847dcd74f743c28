"""Restores as of random instants of random histories.

Oracle: the answers of the database at these instants, with write times and TTLs, as of the second of the instant and as
of a later one.
"""

import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cassandra.cluster import Session

from tests.restore.random_history import CounterHistory, History, Instant, Recorder
from tests.support.captured import REPLICATION, Captured, captured_keyspace
from tests.support.chosen_seconds import ProtocolAt
from tests.support.format_server import FormatServer
from tests.support.generate import SEED
from tests.support.published import command
from tests.support.settings import write_settings
from tests.support.workload import TYPES
from writetime.core.config import Settings

pytestmark = pytest.mark.long

_TABLES, _TABLES_LONG = 1, 5
_STEPS, _STEPS_LONG = 60, 150


@pytest.fixture
def captured(kafka: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Captured]:
    """A captured keyspace of a node of its own, with a lake; its settings are in force for commands."""
    node = FormatServer(tmp_path / "node", "nb", commitlog_sync="batch", commitlog_segment_size="1MiB")
    node.start()
    try:
        with captured_keyspace(node, kafka, tmp_path) as made:
            lake = made.settings.lake.model_copy(update={"path": str(tmp_path / "lake"), "buckets": 2})
            made.settings = made.settings.model_copy(update={"lake": lake})
            write_settings(made.settings, tmp_path / "writetime.toml")
            monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
            yield made
    finally:
        node.stop()


@pytest.fixture
def at(captured: Captured) -> Session:
    """A session for answers as of chosen seconds."""
    session = captured.node.session().cluster.connect()
    session.client_protocol_handler = ProtocolAt
    session.default_timeout = 60
    return session


def test_as_of_random_instants(captured: Captured, at: Session, tmp_path: Path, is_long: bool) -> None:
    """The tables are altered, truncated, and dropped and created between the instants."""
    captured.write(*TYPES)
    session, keyspace = captured.node.session(), captured.keyspace
    count, steps = (_TABLES_LONG, _STEPS_LONG) if is_long else (_TABLES, _STEPS)
    histories = [History(session, keyspace, f"t{n}", 100 * SEED + n) for n in range(count)]
    recorder = Recorder(captured, at, [*histories, CounterHistory(session, keyspace, "counts", SEED)])
    with captured.agent():
        for history in recorder.histories:
            history.create()
        # The lake shows no instant from before it knows a table.
        recorder.land()
        recorder.phases(3, steps)
        recorder.truncate()
        recorder.phases(3, steps)
        recorder.create_again()
        recorder.phases(2, steps)
        recorder.land()
    copies = [_restored(captured, recorder, instant, tmp_path) for instant in recorder.instants]
    captured.node.nodetool("compact")
    for instant, copy in zip(recorder.instants, copies, strict=True):
        recorder.answers(replace(instant.schema, keyspace=copy), instant.seconds[1]).assert_same(instant.later)
    assert len({str(instant.now.rows) for instant in recorder.instants}) == len(recorder.instants)


def _restored(captured: Captured, recorder: Recorder, instant: Instant, home: Path) -> str:
    """Restore a table as of an instant into a new keyspace, with its own types; return the keyspace."""
    copy = f"copy{uuid.uuid4().hex[:10]}"
    captured.node.write_one(f"CREATE KEYSPACE {copy} WITH replication = {REPLICATION}")
    table = f"{copy}.{instant.schema.name}"
    name = instant.schema.full_name
    done = command("restore", name, "--to", str(home / copy), "--into", table, "--as-of", str(instant.at))
    assert done.exit_code == 0, f"{name} as of {instant.at}: {done.output} {done.exception!r}"
    schema = replace(instant.schema, keyspace=copy)
    for second, wanted in zip(instant.seconds, (instant.now, instant.later), strict=True):
        recorder.answers(schema, second).assert_same(wanted)
    # Deletions are dropped at the first compaction.
    captured.node.write_one(f"ALTER TABLE {table} WITH gc_grace_seconds = 0")
    return copy
