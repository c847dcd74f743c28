"""Clusters to which nothing is replicated, because writes there would be lost or expire early."""

from pathlib import Path

import pytest
from cassandra.cluster import Session

from tests.replication.conftest import Clusters
from tests.support.clocks import set_clock
from tests.support.generate import KEYSPACE
from tests.support.replicated import Replicated
from writetime.core.config import load
from writetime.core.errors import WritetimeError
from writetime.core.server_settings import NamedCluster
from writetime.replication.cluster_sessions import connected

pytestmark = pytest.mark.long

_TABLE = f"{KEYSPACE}.refused_targets"


@pytest.mark.parametrize("ahead", [-90, 90])
def test_a_clock_that_is_apart(
    clusters: Clusters, replicated: Replicated, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    for node in (clusters.source, clusters.target):
        node.write_one(f"DROP TABLE IF EXISTS {_TABLE}")
    schema = replicated.create("refused_targets", f"CREATE TABLE {_TABLE} (k int PRIMARY KEY, v int)")
    replicated.write([f"INSERT INTO {_TABLE} (k, v) VALUES (1, 1) USING TTL 500"])
    replicated.capture()
    set_clock(monkeypatch, ahead)
    with pytest.raises(WritetimeError, match=r"the clocks of this machine and of target differ by \d+ s: set them"):
        replicated.replicate()
    session: Session = clusters.target.session()
    assert not list(
        session.execute(
            "SELECT * FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s", _TABLE.split(".")
        )
    )
    set_clock(monkeypatch, ahead // 3)
    replicated.replicate()
    set_clock(monkeypatch, 0)
    clusters.assert_same(schema)


def test_the_consistency_of_one_node(tmp_path: Path) -> None:
    """A cluster that does not answer would be another reason, and nothing listens at port 1."""
    settings = load(lake={"path": str(tmp_path)}, clusters={"staging": NamedCluster(port=1, consistency="LOCAL_ONE")})
    reason = r"a replication needs consistency LOCAL_QUORUM or more in \[clusters\.staging\]: a node that is lost would"
    with pytest.raises(WritetimeError, match=reason), connected(settings, "staging"):
        pass
