"""Commands on a table that is misspelt, or whose changes the database does not log."""

import logging
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.published import command
from writetime.cli import follow, view
from writetime.clients.database import connect
from writetime.clients.kafka import NoTopic, end_offsets
from writetime.core import config
from writetime.core.config import Settings
from writetime.lake.followed_tables import RefusedEntry, followed_tables
from writetime.landing import missing_tables
from writetime.landing.missing_tables import KnownTables

pytestmark = pytest.mark.long

COMMANDS = ("view", "maintain", "verify", "row-events", "publish", "land", "snapshot", "scylla-cdc", "follow")


@pytest.fixture
def keyspace(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> str:
    # Otherwise `follow` would let pytest record the logs of later tests as JSON, too.
    monkeypatch.setattr(follow, "log_as_json", lambda: None)
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
    assert command("backfill", f"{keyspace}.Plain", str(tmp_path)).stderr.strip() == (
        f"Error: {tmp_path} is a snapshot of {keyspace}.orders, not of {keyspace}.Plain"
    )
    # CQL ignores the case of names without quotes.
    for name in (f"{keyspace}.ORDERS".upper(), f'"{keyspace}"."orders"'):
        assert f"did you mean {keyspace}.orders?" in command("view", name).stderr
    assert command("view", "nothing.alike").stderr.strip() == "Error: no table nothing.alike in the database"
    assert KnownTables(settings).misspelt(f"{keyspace}.orders") is None


@pytest.mark.parametrize("spelt", [str, str.upper, str.title])
@pytest.mark.parametrize(
    ("wrong", "meant"), [("ORDERS", "orders"), ("Orders", "orders"), ("order", "orders"), ("plain", "Plain")]
)
def test_an_entry_of_a_misspelt_table(
    wrong: str, meant: str, spelt: Callable[[str], str], keyspace: str, settings: Settings
) -> None:
    name = f"{spelt(keyspace)}.{wrong}"
    entries = {spelt(keyspace): {wrong: {}}}
    found, refused = followed_tables(settings.model_copy(update={"tables": entries}))
    reason = (
        f"the database has no table {name}; is it {keyspace}.{meant}? Create the table, or correct the entry "
        f"[tables.{name}]"
    )
    assert (found, refused) == ([], [RefusedEntry(name, reason)])


@pytest.mark.cassandra_only("cdc = true is Cassandra's option")
def test_a_table_whose_changes_are_not_logged(
    keyspace: str, settings: Settings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = f"{keyspace}.Plain"
    for given in (["view"], ["view", "--wait", "600"], ["verify"], ["row-events"], ["land"]):
        assert f'ALTER TABLE {keyspace}."Plain" WITH cdc = true' in command(*given, table).stderr
    log = f"{table} has no CDC log: ALTER TABLE {keyspace}.\"Plain\" WITH cdc = {{'enabled': true}}"
    assert log in command("scylla-cdc", table).stderr
    # It begins nevertheless, with this table, and the one that exists.
    stop = threading.Event()
    stop.set()
    monkeypatch.setattr(follow, "stopped_by_signal", lambda: stop)
    with caplog.at_level(logging.WARNING):
        assert command("follow", table, f"{keyspace}.orders", f"{keyspace}.order").exit_code == 0
    assert [r.getMessage() for r in caplog.records if r.name == follow.__name__] == [
        f'the database does not log the changes of {table}: ALTER TABLE {keyspace}."Plain" WITH cdc = true; or bring '
        "in a snapshot with `writetime backfill`",
        f"no table {keyspace}.order; did you mean {keyspace}.orders?",
    ]


@pytest.mark.parametrize(
    ("logged", "topics", "entries", "is_certain"),
    [
        ({"shop.orders": False}, set[str](), {}, True),
        ({"shop.orders": False}, {"shop.items"}, {"shop": {"items": {}}}, True),
        ({"shop.orders": True}, set[str](), {}, False),
        # The database does not answer, or Kafka does not.
        (None, set[str](), {}, False),
        ({"shop.orders": False}, None, {}, False),
        # Changes from before the option was removed, and snapshots that Dagster takes.
        ({"shop.orders": False}, {"shop.orders"}, {}, False),
        ({"shop.orders": False}, set[str](), {"shop": {"orders": {}}}, False),
    ],
)
def test_view_waits_if_changes_may_come(
    logged: dict[str, bool] | None,
    topics: set[str] | None,
    entries: dict[str, Any],
    is_certain: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = config.load(lake={"path": str(tmp_path)}, tables=entries)
    monkeypatch.setattr(missing_tables, "_tables_of_database", lambda _: logged)
    monkeypatch.setattr(missing_tables, "_tables_of_kafka", lambda _: topics)
    monkeypatch.setattr(config, "load", lambda: settings)
    waited: list[float] = []
    monkeypatch.setattr(view, "wait_until", lambda _condition, seconds, _pause: waited.append(seconds))
    answer = command("view", "shop.orders", "--wait", "60")
    assert answer.exit_code == 1
    assert waited == ([] if is_certain else [60])
    if is_certain:
        assert answer.stderr.count("\n") == 1
        assert "ALTER TABLE shop.orders WITH cdc = true" in answer.stderr


@pytest.mark.parametrize(
    ("logged", "topics", "told"),
    [
        ({"shop.orders": True}, set[str](), "no agent has published it yet; start `writetime agent`"),
        ({"shop.orders": True}, {"shop.orders"}, "land those in Kafka with `writetime follow` or `writetime land`"),
        ({"shop.orders": False}, {"shop.orders"}, "ALTER TABLE shop.orders WITH cdc = true"),
        # The database, or Kafka, does not answer.
        (None, {"shop.orders"}, "load the table shop.orders with `writetime backfill`"),
        ({"shop.orders": True}, None, "load the table shop.orders with `writetime backfill`"),
    ],
)
def test_a_table_that_is_not_in_the_lake_yet(
    logged: dict[str, bool] | None,
    topics: set[str] | None,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = config.load(lake={"path": str(tmp_path)})
    monkeypatch.setattr(missing_tables, "_tables_of_database", lambda _: logged)
    monkeypatch.setattr(missing_tables, "_tables_of_kafka", lambda _: topics)
    monkeypatch.setattr(config, "load", lambda: settings)
    for name in ("view", "maintain", "row-events"):
        answer = command(name, "shop.orders")
        assert answer.exit_code == 1
        assert told in answer.stderr


def test_a_missing_topic_is_not_taken_for_one_without_a_leader(settings: Settings) -> None:
    """The latter would be waited for."""
    with pytest.raises(NoTopic, match="topic none does not exist"):
        end_offsets(settings, "none", [0])
