"""Three nodes and brokers, one agent per node: after any kill, the lake matches the database; `faults` runs longer.

Oracle: the database: rows by CQL at all nodes, and the acknowledged writes.
"""

from pathlib import Path

import pytest

from tests.cluster.faults import ClusterRun
from tests.cluster.servers import Servers
from tests.support.generate import SEED


@pytest.mark.long_only("kills nodes and brokers of a cluster")
def test_without_a_node_or_a_broker_the_lake_continues(servers: Servers, tmp_path: Path) -> None:
    report = ClusterRun(servers, tmp_path, SEED).run(0)
    print(report)
    assert report.faults == {"broker": 1, "agent": 1, "node": 1, "landing": 1}
    # Each write is captured on each of its replicas.
    assert min(report.acknowledged, report.rows, report.events) > 0
    assert report.copies > 2
