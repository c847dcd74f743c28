"""Agents of three nodes at RF 3 that share: one message per write, also while they are killed.

Oracle: the database at ALL, and the number of acknowledged writes.
"""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cassandra import ConsistencyLevel
from cassandra.cluster import Session

from tests.cluster.servers import ADDRESSES, REPLICATION, Servers, session_at
from tests.support.programs import Program
from tests.support.settings import write_settings
from tests.support.waiting import wait_for
from writetime.clients.kafka import end_offsets
from writetime.core.config import Settings
from writetime.lake import views
from writetime.lake.table import open_table
from writetime.landing.landing import Landing
from writetime.wire.topic_names import changes_topic
from writetime.wire.watermarks import WatermarkTopic

_WRITES = 2000


@contextmanager
def agents(settings: Settings, home: Path) -> Iterator[list[Program]]:
    """Run an agent for each node, all of which share."""
    found = []
    for address in ADDRESSES:
        folder = home / address
        folder.mkdir()
        capture = {"node": address, "state_dir": folder / "state", "snapshot": "schema-only", "replicas": "one"}
        cassandra = settings.cassandra.model_copy(update={"contact_points": [address]})
        own = {"cassandra": cassandra, "capture": settings.capture.model_copy(update=capture)}
        write_settings(settings.model_copy(update=own), folder / "writetime.toml")
        found.append(Program(folder, "agent", "agent"))
    try:
        for agent in found:
            agent.start()
        yield found
    finally:
        for agent in found:
            agent.end()
            print(agent.tail())


def passed(settings: Settings, table: str) -> None:
    """Wait until all nodes' watermarks of a table have passed now."""
    now, topic = time.time_ns() // 1000, WatermarkTopic(settings)

    def are() -> bool:
        marks = topic.read().of(table)
        return len(marks) == len(ADDRESSES) and all(mark.tables[table].until > now for mark in marks.values())

    wait_for(are)


def write(session: Session, table: str, first: int) -> None:
    """Write rows, each acknowledged by a quorum."""
    insert = session.prepare(f"INSERT INTO {table} (k, v) VALUES (?, ?)")
    for start in range(first, first + _WRITES, 50):
        for answer in [session.execute_async(insert, (k, f"v{k}")) for k in range(start, start + 50)]:
            answer.result()


def rows(settings: Settings, table: str) -> dict[int, str]:
    """Return the rows of all replicas."""
    with session_at(settings, ConsistencyLevel.ALL) as session:
        return {row.k: row.v for row in session.execute(f"SELECT k, v FROM {table}")}


@pytest.mark.long_only("starts three nodes and three brokers")
def test_each_write_is_one_message_until_agents_are_killed(servers: Servers, tmp_path: Path) -> None:
    lake = servers.settings.lake.model_copy(update={"path": str(tmp_path / "lake"), "buckets": 4})
    settings = servers.settings.model_copy(update={"lake": lake})
    table = f"k{uuid.uuid4().hex[:10]}.t"
    with session_at(settings) as session, agents(settings, tmp_path) as found:
        session.execute(f"CREATE KEYSPACE {table[:-2]} WITH replication = {REPLICATION}", timeout=60)
        session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v text) WITH cdc = true", timeout=60)
        passed(settings, table)

        def messages() -> int:
            return sum(end_offsets(settings, changes_topic(table)).values())

        write(session, table, 0)
        passed(settings, table)
        normal = messages()
        print(f"{normal} messages of {_WRITES} writes")
        assert _WRITES <= normal <= 1.05 * _WRITES
        for part, agent in enumerate(found, 1):
            agent.kill()
            write(session, table, part * _WRITES)
        passed(settings, table)
        print(f"{messages() - normal} messages of {3 * _WRITES} writes while each agent was killed once")
        # No more than if each replica published.
        assert messages() - normal < 9 * _WRITES
        Landing(settings, table).drain()
        view = {row["k"]: row["v"] for part in views.virtual(open_table(settings, table)) for row in part.to_pylist()}
        assert view == rows(settings, table)
        assert len(view) == 4 * _WRITES
