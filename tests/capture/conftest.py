"""One node for all tests of capture; each test has its own keyspace, agent state and segments."""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.capture.endtoend import NODE
from tests.support.captured import Captured, captured_keyspace
from tests.support.format_server import FormatServer, KilledServer
from tests.support.servers import running, start
from tests.support.settings import write_settings
from writetime.core.config import Settings


@pytest.fixture(scope="package")
def node(addresses: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FormatServer]:
    """A node with segments of one mebibyte, which it syncs before it acknowledges a write."""
    server = FormatServer(tmp_path_factory.mktemp("capture"), "oa", **NODE)
    try:
        with ThreadPoolExecutor(1) as pool:
            # Both at once: one after the other takes longer.
            node_starts = pool.submit(server.start)
            start(addresses, "kafka")
            node_starts.result()
        # The driver would read the schemas of all tables again and again, and nothing here uses them.
        server.session().cluster.schema_metadata_enabled = False
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def own_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FormatServer]:
    """A node that the tests of one module restart with other settings."""
    with running(KilledServer(tmp_path_factory.mktemp("own"), "oa", **NODE)) as server:
        yield server


@pytest.fixture
def settings(node: FormatServer, kafka: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings with a lake and a name of a keyspace that no other test uses, in force for commands, too. The keyspace
    is not made, and no topics: landing asks for the topics of tables alone."""
    database = {"port": node.port, "keyspace": f"l{uuid.uuid4().hex[:12]}"}
    own = kafka.model_copy(
        update={
            "cassandra": kafka.cassandra.model_copy(update=database),
            # Each bucket costs a task, and a file of a commit.
            "lake": kafka.lake.model_copy(update={"path": str(tmp_path / "lake"), "buckets": 2}),
            "alerts": kafka.alerts.model_copy(update={"reports": tmp_path / "reports"}),
        }
    )
    write_settings(own, tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    return own


@pytest.fixture
def captured(node: FormatServer, kafka: Settings, tmp_path: Path) -> Iterator[Captured]:
    """A captured keyspace, until the test ends."""
    with captured_keyspace(node, kafka, tmp_path) as made:
        yield made


@pytest.fixture
def landed(captured: Captured, tmp_path: Path) -> Captured:
    """A captured keyspace, and a separate lake."""
    lake = captured.settings.lake.model_copy(update={"path": str(tmp_path / "lake")})
    captured.settings = captured.settings.model_copy(update={"lake": lake})
    return captured
