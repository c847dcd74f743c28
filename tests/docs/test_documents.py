"""The commands in README and docs/*.md are run, block by block. `tests.support.documents` has the rules."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import polars
import pytest
from pyspark.sql import SparkSession

from tests.support.documents import ROOT, SCYLLA_TUTORIAL, blocks, documents, mentioned
from tests.support.running import Folder
from tests.support.view_readers import duckdb_with_delta
from writetime.capture.change_publisher import ChangePublisher
from writetime.cli.main import main
from writetime.clients.database import apply_schema, connect
from writetime.clients.node_snapshots import take_snapshot
from writetime.core import config
from writetime.core.config import Settings
from writetime.ingest.topics import ensure_ingest_topics
from writetime.lake.followed_tables import read_entries
from writetime.schema.system import read_schema
from writetime.servers.kafka import KafkaServer
from writetime.servers.process import free_port
from writetime.servers.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.long

TUTORIAL = "docs/tutorial.md"
REPLICATION = "{'class': 'SimpleStrategy', 'replication_factor': 1}"


@pytest.fixture(scope="module")
def installation(server_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The environment of a user whose servers run: the shared Cassandra, and no topics and queues of other tests."""
    home = tmp_path_factory.mktemp("docs")
    (home / "cassandra").symlink_to(server_settings.embedded.home / "cassandra")
    own = {
        "WRITETIME_CASSANDRA__PORT": str(server_settings.cassandra.port),
        "WRITETIME_CASSANDRA__KEYSPACE": "documents",
        "WRITETIME_KAFKA__BOOTSTRAP_SERVERS": f"127.0.0.1:{free_port()}",
        "WRITETIME_ZOOKEEPER__HOSTS": f"127.0.0.1:{free_port()}",
        "WRITETIME_EMBEDDED__HOME": str(home),
        "WRITETIME_EMBEDDED__CASSANDRA_STORAGE_PORT": str(server_settings.embedded.cassandra_storage_port),
        "WRITETIME_EMBEDDED__KAFKA_CONTROLLER_PORT": str(free_port()),
        "WRITETIME_INGEST__PORT": str(free_port()),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in own.items():
            patch.setenv(name, value)
        patch.delenv("WRITETIME_CONFIG")
        patch.chdir(home)
        settings = config.load()
        servers = [KafkaServer(settings), ZooKeeperServer(settings)]
        try:
            for server in servers:
                server.start()
            apply_schema(settings)
            ensure_ingest_topics(settings)
            yield home
        finally:
            for server in servers:
                server.stop()


@pytest.fixture(scope="module")
def were_programs() -> set[str]:
    """The commands that some block has run as a program."""
    return set()


@pytest.fixture(scope="module")
def folder(installation: Path, spark: SparkSession, were_programs: set[str]) -> Iterator[Folder]:
    """A clone, and the things that documents assume: a captured table `shop.orders`, a snapshot of it, Python names."""
    settings = config.load()
    with connect(settings) as session:
        session.execute(f"CREATE KEYSPACE IF NOT EXISTS shop WITH replication = {REPLICATION}")
        session.execute("CREATE TABLE shop.orders (id int PRIMARY KEY, item text, total int) WITH cdc = true")
        for i in range(5):
            session.execute(f"INSERT INTO shop.orders (id, item, total) VALUES ({i}, 'item {i}', {i * 60})")
        schema = read_schema(session, "shop.orders")
    ChangePublisher(settings).announce(schema)
    [snapshot] = take_snapshot(settings, "shop.orders", "given")
    given: dict[str, Any] = {
        "snapshot": str(snapshot),
        "spark": spark,
        "duckdb": duckdb_with_delta(),
        "polars": polars,
        "schema": schema,
        "values": [],
    }
    found = Folder(installation / "clone", settings.ingest.port, given, were_programs=were_programs)
    try:
        yield found
    finally:
        found.end()


@pytest.mark.parametrize("document", [d for d in documents() if d not in (TUTORIAL, SCYLLA_TUTORIAL)])
def test_document(document: str, folder: Folder, installation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, README first, in one folder: each may use the results of the earlier ones."""
    monkeypatch.chdir(installation / "clone")
    try:
        for block in blocks(document):
            folder.run(block)
    finally:
        folder.end()


def test_the_settings_of_the_tutorial_for_scylladb_are_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page itself is run where a ScyllaDB is."""
    [text] = [block.text for block in blocks(SCYLLA_TUTORIAL) if "file" in block.said]
    (tmp_path / "writetime.toml").write_text(text)
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    tables, refused = read_entries(config.load())
    assert ([table.name for table in tables], refused) == (["bakery.orders"], [])


def test_documents_write_commands_in_one_way() -> None:
    assert not [document for document in documents() if "bin/writetime" in (ROOT / document).read_text()]


def test_every_command_that_is_mentioned_exists() -> None:
    for document in documents():
        for words in mentioned(document):
            command: click.Command = main
            depth = 0
            while isinstance(command, click.Group) and depth < len(words) and words[depth].islower():
                found = command.get_command(click.Context(command), words[depth])
                assert found is not None, f"{document}: writetime {' '.join(words)}"
                command, depth = found, depth + 1
            options = {option for p in command.params for option in p.opts} | {"--help", "--version"}
            used = {word.split("=")[0].rstrip(".,;:") for word in words if word.startswith("--")}
            assert used <= options, f"{document}: {command.name} has no {used - options}"


@pytest.mark.timeout(2400)
def test_tutorial(installation: Path, were_programs: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """From a clone in which nothing was done."""
    port = config.load().ingest.port
    clone = Folder(installation / "fresh", port, {"snapshot": ""}, were_programs=were_programs)
    monkeypatch.chdir(installation / "fresh")
    try:
        for block in blocks(TUTORIAL):
            clone.run(block)
    finally:
        clone.end()


def test_checks_that_documents_name_exist() -> None:
    _, _, rest = (ROOT / "docs/dagster.md").read_text().partition("\n## Checks\n")
    text = rest.partition("\n## ")[0]
    code = "".join(path.read_text() for part in ("platform", "assets") for path in (ROOT / part).rglob("*.py"))
    checks = set(re.findall(r"`(\w+)`", "".join(re.findall(r"(?m)^\| (`[a-z_`, ]+`) \| `[^|]+` \|", text))))
    assert len(checks) > 15
    for check in checks:
        assert re.search(rf'def {check}\(|"{check}"', code), check
