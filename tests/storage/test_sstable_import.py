"""SSTables that are written, imported into a node: it answers as it does for the table that they were read from.

Oracle: the answers of CQL, with write times and TTLs, before and after a compaction.
"""

import random
from pathlib import Path

import pytest

import writetime
from tests.support.timed_writes import COLUMNS, Answers, statements
from writetime.clients import node_snapshots
from writetime.clients.database import connect
from writetime.clients.node_snapshots import take_snapshot
from writetime.core.config import Settings
from writetime.runtime.nodetool import nodetool
from writetime.schema.system import read_schema

pytestmark = pytest.mark.slow


def test_a_node_answers_the_same(settings: Settings, tmp_path: Path) -> None:
    keyspace = settings.cassandra.keyspace
    with connect(settings) as session:
        for name in ("given_back", "given_back_again"):
            session.execute(f"CREATE TABLE {keyspace}.{name} {COLUMNS}")
        for statement in statements(f"{keyspace}.given_back", random.Random(5)):
            session.execute(statement)
        wanted = Answers.of(session, f"{keyspace}.given_back")
        assert len(wanted.rows) > 10
        assert any(wanted.expiries)
        _, port = node_snapshots.local_node(session)
        (folder,) = take_snapshot(settings, f"{keyspace}.given_back", "written")
        changes = writetime.read_sstable(str(folder))
        schema = read_schema(session, f"{keyspace}.given_back").create_statement()
        writetime.write_sstable(changes.read_all(), str(tmp_path / "out"), schema, block_size=256)
        nodetool(port, "import", "--extended-verify", keyspace, "given_back_again", str(tmp_path / "out"))
        Answers.of(session, f"{keyspace}.given_back_again").assert_same(wanted)
        nodetool(port, "compact", keyspace, "given_back_again")
        Answers.of(session, f"{keyspace}.given_back_again").assert_same(wanted)
