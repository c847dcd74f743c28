"""The whole way from writes to the lake, while everything is killed; `endtoend` runs it for longer."""

from pathlib import Path

from tests.capture.endtoend import EndToEnd
from tests.support.format_server import FormatServer
from tests.support.generate import SEED
from writetime.core.config import Settings
from writetime.servers.kafka import KafkaServer


def test_the_lake_matches_the_database_after_any_kill(node: FormatServer, kafka: Settings, tmp_path: Path) -> None:
    report = EndToEnd(node, KafkaServer(kafka), kafka, tmp_path, SEED).run(0)
    print(report)
    assert min(report.acknowledged, report.rows, report.segments, report.delivered, report.alterations) > 0
