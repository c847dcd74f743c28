"""One node for all tests of capture; each test has its own keyspace, agent state and segments."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.capture.endtoend import NODE
from tests.support.captured import Captured, captured_keyspace
from tests.support.format_server import FormatServer
from writetime.core.config import Settings


@pytest.fixture(scope="package")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FormatServer]:
    """A node with segments of one mebibyte, which it syncs before it acknowledges a write."""
    server = FormatServer(tmp_path_factory.mktemp("capture"), "oa", **NODE)
    try:
        server.start()
        # The driver would read the schemas of all tables again and again, and nothing here uses them.
        server.session().cluster.schema_metadata_enabled = False
        yield server
    finally:
        server.stop()


@pytest.fixture
def captured(node: FormatServer, kafka: Settings, tmp_path: Path) -> Iterator[Captured]:
    """A keyspace that is captured, until the test ends."""
    with captured_keyspace(node, kafka, tmp_path) as made:
        yield made


@pytest.fixture
def landed(captured: Captured, tmp_path: Path) -> Captured:
    """A keyspace that is captured, and a lake of its own."""
    lake = captured.settings.lake.model_copy(update={"path": str(tmp_path / "lake")})
    captured.settings = captured.settings.model_copy(update={"lake": lake})
    return captured
