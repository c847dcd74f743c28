"""Commands on a table that is misspelt, or whose changes the database does not log."""

import logging
import re
import threading
from pathlib import Path

import pytest

from tests.support.published import command
from writetime.cli import follow
from writetime.clients.database import connect
from writetime.clients.kafka import NoTopic, end_offsets
from writetime.core.config import Settings
from writetime.landing.missing_tables import KnownTables

COMMANDS = ("view", "maintain", "verify", "row-events", "publish", "land", "snapshot", "scylla-cdc", "follow")


@pytest.fixture
def keyspace(settings: Settings) -> str:
    keyspace = settings.cassandra.keyspace
    with connect(settings) as session:
        session.execute(f"CREATE TABLE {keyspace}.orders (id int PRIMARY KEY) WITH cdc = true")
        session.execute(f'CREATE TABLE {keyspace}."Plain" (id int PRIMARY KEY)')
    return keyspace


@pytest.mark.cassandra_only("cdc = true is Cassandra's option")
def test_a_misspelt_table(keyspace: str, settings: Settings, tmp_path: Path) -> None:
    wrong, message = f"{keyspace}.order", f"Error: no table {keyspace}.order; did you mean {keyspace}.orders?"
    for name in COMMANDS:
        answer = command(name, wrong)
        assert answer.exit_code == 1
        assert message.removeprefix("Error: ") in answer.stderr.splitlines()[0].removeprefix(f"Error: {wrong}: ")
    assert command("view", wrong, "--wait", "60").stderr.strip() == message
    # Other tests may have one of this name.
    assert re.match(r"Error: no table order; did you mean \w+\.orders\?\n", command("row-events", "order").stderr)
    # The content of an empty table's snapshot.
    (tmp_path / "schema.cql").write_text(f"CREATE TABLE {keyspace}.orders (id int PRIMARY KEY);")
    (tmp_path / "manifest.json").write_text('{"files": [], "created_at": "2026-01-01T00:00:00Z"}')
    assert command("backfill", wrong, str(tmp_path)).stderr.strip() == message
    assert command("view", "nothing.alike").stderr.strip() == "Error: no table nothing.alike in the database"
    assert KnownTables(settings).misspelt(f"{keyspace}.orders") is None


@pytest.mark.cassandra_only("cdc = true is Cassandra's option")
def test_a_table_whose_changes_are_not_logged(
    keyspace: str, settings: Settings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = f"{keyspace}.Plain"
    for name in ("view", "verify", "row-events", "land"):
        assert f'ALTER TABLE {keyspace}."Plain" WITH cdc = true' in command(name, table).stderr
    log = f"{table} has no CDC log: ALTER TABLE {keyspace}.\"Plain\" WITH cdc = {{'enabled': true}}"
    assert log in command("scylla-cdc", table).stderr
    # It begins nevertheless, with this table, and the one that exists.
    stop = threading.Event()
    stop.set()
    monkeypatch.setattr(follow, "stopped_by_signal", lambda: stop)
    monkeypatch.setattr(follow, "log_as_json", lambda: None)
    with caplog.at_level(logging.WARNING):
        assert command("follow", table, f"{keyspace}.orders", f"{keyspace}.order").exit_code == 0
    assert [r.getMessage() for r in caplog.records if r.name == follow.__name__] == [
        f'the database does not log the changes of {table}: ALTER TABLE {keyspace}."Plain" WITH cdc = true; or bring '
        "in a snapshot with `writetime backfill`",
        f"no table {keyspace}.order; did you mean {keyspace}.orders?",
    ]


def test_a_missing_topic_is_not_taken_for_one_without_a_leader(settings: Settings) -> None:
    """The latter would be waited for."""
    with pytest.raises(NoTopic, match="topic none does not exist"):
        end_offsets(settings, "none", [0])
