"""Backups of three nights."""

import shutil
import time
import uuid
from pathlib import Path

import pytest

from tests.backups.nights import Nightly, Nights
from tests.support.keyspaces import keyspace_alone
from tests.support.lake_answers import cql_rows
from tests.support.settings import write_settings
from writetime.clients.database import connect
from writetime.clients.node_snapshots import local_node, take_snapshot
from writetime.core.config import Lake, Settings
from writetime.runtime.nodetool import nodetool
from writetime.schema.system import read_schema


@pytest.fixture(scope="session")
def ingest_schema(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return keyspace_alone(tmp_path_factory.mktemp("cql"))


@pytest.fixture(scope="package")
def nights(cassandra: Settings, tmp_path_factory: pytest.TempPathFactory) -> Nights:
    """In the first night a column was dropped; before the third, the database compacted its SSTables."""
    keyspace, folder = f"t{uuid.uuid4().hex[:12]}", tmp_path_factory.mktemp("nights")
    table, taken, rows, written_until = f"{keyspace}.items", [], [], []
    with connect(cassandra) as session:
        session.execute(
            f"CREATE KEYSPACE {keyspace} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
        )
        session.execute(f"CREATE TYPE {keyspace}.place (x int, y int)")
        session.execute(
            f"CREATE TABLE {table} (id int, n int, v text, gone int, at frozen<place>, PRIMARY KEY (id, n)) "
            "WITH compaction = {'class': 'SizeTieredCompactionStrategy', 'enabled': 'false'}"
        )
        _, port = local_node(session)
        nodetool(port, "enablebackup")
        for i in range(30):
            session.execute(f"INSERT INTO {table} (id, n, v, gone, at) VALUES ({i}, 1, 'a', 1, {{x: {i}}})")
        nodetool(port, "flush", keyspace)
        session.execute(f"ALTER TABLE {table} DROP gone")
        for night in range(3):
            for i in range(night, 30, 3):
                session.execute(f"INSERT INTO {table} (id, n, v) VALUES ({i}, {night}, 'of night {night}')")
                session.execute(f"DELETE FROM {table} WHERE id = {i} AND n = {night + 1}")
            if night == 2:
                nodetool(port, "compact", keyspace)
            written_until.append(time.time_ns() // 1000)
            taken += take_snapshot(cassandra, table, f"night{night}")
            rows.append(cql_rows(session, read_schema(session, table)))
        nodetool(port, "disablebackup")
        schema = read_schema(session, table)
        assert session.cluster is not None
        session.cluster.refresh_schema_metadata()
        # As Medusa has it: with other keyspaces.
        described = session.cluster.metadata.keyspaces
        cql = "\n\n".join(described[name].export_as_string() for name in ("system_auth", keyspace))
    snapshots = [shutil.copytree(each, folder / each.name) for each in taken]
    flushed = shutil.copytree(taken[0].parents[1] / "backups", folder / "backups")
    return Nights(cassandra, schema, cql, snapshots, rows, written_until, flushed)


@pytest.fixture
def nightly(nights: Nights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nightly:
    lake = Lake(path=str(tmp_path / "lake"), buckets=2, cache=str(tmp_path / "cache"))
    settings = nights.settings.model_copy(update={"lake": lake})
    write_settings(settings, tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    return Nightly(nights, settings, tmp_path / "place")
