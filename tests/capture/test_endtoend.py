"""From writes to the lake, while everything is killed; `endtoend` runs this for longer.

Oracle: the database: the node's rows by CQL, and the acknowledged writes.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.capture.endtoend import NODE, Dose, EndToEnd
from tests.support.format_server import KilledServer
from tests.support.generate import SEED
from tests.support.servers import running
from writetime.core.config import Settings
from writetime.servers.kafka import KafkaServer

pytestmark = pytest.mark.long

# Each of four threads pauses longer: they would otherwise keep the database busy all the time. The agent of the node
# publishes snapshots, that of the replica does not.
_SHORT = Dose(pause_seconds=0.2, kills=1, quiet_seconds=1.5, tables=2, replicas=1, snapshot="schema-only")


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[KilledServer]:
    """A node of this test alone."""
    with running(KilledServer(tmp_path / "node", "oa", **NODE)) as server:
        yield server


def test_the_lake_matches_the_database_after_any_kill(
    killed: KilledServer, kafka: Settings, tmp_path: Path, is_long: bool
) -> None:
    dose = Dose() if is_long else _SHORT
    report = EndToEnd(killed, KafkaServer(kafka), kafka, tmp_path, SEED, dose).run(0)
    print(report)
    assert min(report.acknowledged, report.rows, report.segments, report.delivered, report.alterations) > 0
