"""A captured database, and the other data of the platform: the state of an agent, a broker, and a lake."""

import shutil
import signal
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

import pytest

from tests.support import waiting
from tests.support.commands import run
from tests.support.lake_answers import cql_rows, view_rows
from tests.support.messages import decoded
from tests.support.published import command
from tests.support.servers import server_addresses, start
from tests.support.settings import write_settings
from writetime.capture import commitlog_agent as agent
from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.lake import views
from writetime.lake.table import is_in_lake, open_table
from writetime.schema.system import read_schema
from writetime.servers.kafka import KafkaServer
from writetime.wire.topic_names import row_events_topic

# A check costs more CPU time than the work that it waits for, so it is rare.
wait_for = partial(waiting.wait_for, pause=0.5)


class Platform:
    """Commands run in this process, with the current settings file; agents run in threads."""

    def __init__(self, settings: Settings, keyspace: str) -> None:
        self.settings = settings
        self.keyspace = keyspace
        self.state_dir = settings.capture.state_dir
        self.lake = Path(settings.lake.path)

    def write(self, *statements: str) -> None:
        """Execute statements, with the keyspace for `{ks}`."""
        with connect(self.settings) as session:
            for statement in statements:
                session.execute(statement.replace("{ks}", self.keyspace))

    def table(self, name: str) -> str:
        """Create a table that is captured, with ten rows; return its whole name."""
        self.write(f"CREATE TABLE {{ks}}.{name} (id int PRIMARY KEY, v text) WITH cdc = true")
        self.write(*(f"INSERT INTO {{ks}}.{name} (id, v) VALUES ({i}, 'first')" for i in range(10)))
        return f"{self.keyspace}.{name}"

    @contextmanager
    def agent(self, snapshot: Literal["initial", "always", "schema-only"] = "schema-only") -> Iterator[None]:
        """Run `writetime agent`."""
        capture = self.settings.capture.model_copy(update={"snapshot": snapshot})
        stop, faults = threading.Event(), []

        def work() -> None:
            try:
                agent.run(self.settings.model_copy(update={"capture": capture}), stop)
            except BaseException as e:
                faults.append(e)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        assert not faults, faults

    def land(self, name: str) -> None:
        """Land a table until the lake has the rows of the database, and prove that."""
        with connect(self.settings) as session:
            schema = read_schema(session, name)

            def is_same() -> bool:
                command("land", name)
                return is_in_lake(self.settings, name) and self.rows(name) == cql_rows(session, schema)

            # Agents first read the writes of other tests to the shared node.
            wait_for(is_same)
        run("verify", name)

    def rows(self, name: str) -> list[dict[str, object]]:
        """The rows of the lake."""
        return view_rows(views.virtual(open_table(self.settings, name)))

    def replayed(self, name: str) -> list[dict[str, object]]:
        """The rows that a consumer of the topic of row events ends with, which begins again at a later generation."""
        events = decoded(self.settings, row_events_topic(name))
        newest = max(event["generation"] for event in events)
        rows: dict[bytes, dict[str, object] | None] = {}
        for event in events:
            if event["generation"] == newest:
                assert event["before"] == rows.get(event["key"])
                rows[event["key"]] = event["after"]
        return sorted((row for row in rows.values() if row), key=lambda row: str(row["id"]))

    def lose_kafka(self) -> None:
        """Kill the broker, and start one in an empty folder."""
        server = KafkaServer(self.settings)
        server.stop(signal.SIGKILL)
        shutil.rmtree(server.folder / "data")
        start(self.settings, "kafka")


@pytest.fixture(scope="module")
def platform(cassandra: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """The node that tests share, with a broker, an agent's state and a separate lake."""
    home = tmp_path_factory.mktemp("restore")
    with server_addresses(home, cassandra.cassandra.model_dump()) as own:
        start(own, "kafka")
        capture = own.capture.model_copy(update={"state_dir": home / "agent", "poll_seconds": 0.1})
        lake = own.lake.model_copy(update={"cache": str(home / "cache"), "buckets": 2})
        settings = own.model_copy(update={"capture": capture, "lake": lake})
        write_settings(settings, home / "writetime.toml")
        made = Platform(settings, f"r{uuid.uuid4().hex[:10]}")
        replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        made.write(f"CREATE KEYSPACE {{ks}} WITH replication = {replication}")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("WRITETIME_CONFIG", str(home / "writetime.toml"))
            yield made
        made.write("DROP KEYSPACE {ks}")
