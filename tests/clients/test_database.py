import shutil
import socket
import uuid
from pathlib import Path

import pytest
from click.testing import CliRunner

from writetime.cli.main import main
from writetime.clients import database
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError


@pytest.mark.usefixtures("queue_tables")
def test_schema_files_are_applied_once_and_recorded(settings: Settings) -> None:
    names = [path.name for path in sorted(database.schema_folder().glob("*.cql"))]
    assert [int(name[:3]) for name in names] == list(range(1, len(names) + 1))
    assert database.apply_schema(settings) == []
    with database.connect(settings) as session:
        rows = session.execute(f"SELECT name, applied_at FROM {settings.cassandra.keyspace}.schema_files").all()
    assert sorted(row.name for row in rows) == names
    assert all(row.applied_at for row in rows)


@pytest.mark.usefixtures("queue_tables")
def test_schema_files_that_were_not_recorded_are_applied_again(settings: Settings) -> None:
    """As after a crash between a file's statements and its record."""
    names = [path.name for path in sorted(database.schema_folder().glob("*.cql"))]
    with database.connect(settings) as session:
        session.execute(f"TRUNCATE {settings.cassandra.keyspace}.schema_files")
    assert database.apply_schema(settings) == names


def test_a_changed_schema_file_is_refused(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cql"
    shutil.copytree(database.schema_folder(), folder)
    with (folder / "002_user_events.cql").open("a") as f:
        f.write("-- one more word\n")
    monkeypatch.setattr(database, "schema_folder", lambda: folder)
    with pytest.raises(WritetimeError, match=r"002_user_events\.cql was changed after"):
        database.apply_schema(settings)


def test_count_rows_agrees_with_cql(settings: Settings) -> None:
    table = f"{settings.cassandra.keyspace}.event_first_seen"
    with database.connect(settings) as session:
        insert = session.prepare(f"INSERT INTO {table} (user_id, event_id, event_timestamp) VALUES (?, uuid(), 0)")
        for i in range(500):
            session.execute(insert, [f"user {i % 90}"])
        [row] = session.execute(f"SELECT count(*) AS n FROM {table}")
        assert database.count_rows(session, table, "user_id") == row.n == 500


def test_large_requests_are_sent_at_once(settings: Settings) -> None:
    """Without waiting for the acknowledgement of their first piece."""
    with database.connect(settings) as session:
        [pool] = session.get_pools()
        assert pool._connection._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_missing_database_is_reported_in_one_line(settings: Settings) -> None:
    elsewhere = {"contact_points": ["127.0.0.1"], "port": 1}
    nowhere = settings.model_copy(update={"cassandra": settings.cassandra.model_copy(update=elsewhere)})
    with pytest.raises(WritetimeError, match=r"no database answers at 127\.0\.0\.1:1 "), database.connect(nowhere):
        pass


def test_cql_by_a_command(settings: Settings) -> None:
    run = CliRunner(catch_exceptions=False).invoke
    table = f"{settings.cassandra.keyspace}.user_events"
    insert = f"INSERT INTO {table} (user_id, event_timestamp, event_id) VALUES ('Zoë', 5, {uuid.UUID(int=7)})"
    select = f'SELECT user_id AS "Who", event_id FROM {table}'
    assert run(main, ["cql", insert, select]).stdout == f'{{"Who": "Zoë", "event_id": "{uuid.UUID(int=7)}"}}\n'
    refused = run(main, ["cql", "SELECT nothing"])
    assert refused.exit_code == 1
    assert refused.output.startswith("Error: SELECT nothing: ")


def test_replicas_are_known_without_the_schemas_of_all_tables(settings: Settings) -> None:
    keyspace = f"replicated_{uuid.uuid4().hex[:8]}"
    replication = f"{{'class': 'NetworkTopologyStrategy', '{settings.cassandra.local_datacenter}': 1}}"
    with database.connect(settings) as session:
        session.execute(f"CREATE KEYSPACE {keyspace} WITH replication = {replication}")
        assert session.cluster is not None
        known = session.cluster.metadata
        assert list(known.keyspaces) == [settings.cassandra.keyspace]
        for name in (keyspace, "missing"):
            database.find_replicas(session, name)
        assert list(known.keyspaces) == [settings.cassandra.keyspace, keyspace]
        assert known.get_replicas(keyspace, b"key") == list(session.hosts or ())
        assert not known.get_replicas("missing", b"key")
        session.execute(f"DROP KEYSPACE {keyspace}")
