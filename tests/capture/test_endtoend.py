"""The whole way from writes to the lake, while everything is killed; `endtoend` runs it for longer."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.capture.endtoend import NODE, EndToEnd
from tests.support.format_server import KilledServer
from tests.support.generate import SEED
from tests.support.workload import Writer
from writetime.core.config import Settings
from writetime.servers.kafka import KafkaServer

# Each of six threads; they would otherwise keep the database busy all the time.
_PAUSE_SECONDS = 0.2


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[KilledServer]:
    """A node of this test alone."""
    server = KilledServer(tmp_path / "node", "oa", **NODE)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def test_the_lake_matches_the_database_after_any_kill(
    killed: KilledServer, kafka: Settings, tmp_path: Path, is_long: bool
) -> None:
    pause_seconds = Writer.pause_seconds if is_long else _PAUSE_SECONDS
    report = EndToEnd(killed, KafkaServer(kafka), kafka, tmp_path, SEED, pause_seconds=pause_seconds).run(0)
    print(report)
    assert min(report.acknowledged, report.rows, report.segments, report.delivered, report.alterations) > 0
