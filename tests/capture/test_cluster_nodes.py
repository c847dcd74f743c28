"""The nodes of a ScyllaDB cluster that are queried while nodes join and leave; no server is needed."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, Session
from cassandra.connection import DefaultEndPoint
from cassandra.policies import DCAwareRoundRobinPolicy, TokenAwarePolicy
from cassandra.pool import Host

from writetime.capture.node_schemas import SchemaEvents
from writetime.capture.scylla_agent import read_cluster_truncations
from writetime.clients.database import DatabaseUnreachable, local_nodes


class Nodes:
    """A cluster and a session of `dc1` that are connected to nothing; each node records a truncation at its number."""

    def __init__(self) -> None:
        policy = TokenAwarePolicy(DCAwareRoundRobinPolicy("dc1"))
        profile = ExecutionProfile(load_balancing_policy=policy)
        self.cluster: Any = Cluster(["10.0.0.1"], execution_profiles={EXEC_PROFILE_DEFAULT: profile})
        policy.populate(self.cluster, [])
        self.silent: set[Host] = set()

    def add(self, number: int, center: str = "dc1", *, is_up: bool | None = True) -> Host:
        host, _ = self.cluster.add_host(DefaultEndPoint(f"10.0.0.{number}"), center, "rack", signal=False)
        self.cluster.profile_manager.on_add(host)
        host.is_up = is_up
        return host

    def session(self) -> Session:
        hosts = self.cluster.metadata.all_hosts()
        return cast("Session", SimpleNamespace(cluster=self.cluster, hosts=hosts, execute=self._execute))

    def _execute(self, _: str, host: Host) -> list[Any]:
        if host in self.silent or host.datacenter != "dc1":
            raise NoHostAvailable("Unable to complete the operation against any hosts", {host: "no pool"})
        number = int(str(host.address).rpartition(".")[2])
        return [SimpleNamespace(table_uuid=UUID(int=7), at=number)]


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    made = Nodes()
    yield made
    made.cluster.shutdown()


def truncated_at(session: Session) -> int:
    return read_cluster_truncations(session, "system.truncated")[UUID(int=7)].at


def test_nodes_that_joined_are_queried_for_truncations_and_those_that_left_are_not(nodes: Nodes) -> None:
    first = nodes.add(1)
    session = nodes.session()
    assert truncated_at(session) == 1000
    nodes.add(2)
    assert truncated_at(session) == 2000
    nodes.cluster.metadata.remove_host(first)
    nodes.silent.add(first)
    assert truncated_at(session) == 2000


def test_nodes_of_other_data_centers_are_not_queried(nodes: Nodes) -> None:
    """The driver takes one for up after an event, though it connects to none."""
    nodes.add(1)
    remote = nodes.add(9, "dc2", is_up=None)
    session = nodes.session()
    assert truncated_at(session) == 1000
    nodes.cluster.on_down(remote, is_host_addition=False)
    nodes.cluster.on_up(remote)
    assert remote.is_up
    assert truncated_at(session) == 1000


def test_a_node_that_may_be_up_has_to_answer(nodes: Nodes) -> None:
    """It may be the only one with a record. One that is down is left out, if another answers."""
    session = nodes.session()
    nodes.add(1)
    other = nodes.add(2, is_up=None)
    nodes.silent.add(other)
    with pytest.raises(DatabaseUnreachable, match=r"node 10\.0\.0\.2 does not answer: no pool"):
        truncated_at(session)
    other.is_up = False
    assert truncated_at(session) == 1000
    for host in nodes.cluster.metadata.all_hosts():
        host.is_up = False
    with pytest.raises(DatabaseUnreachable, match=r"no node of cassandra\.local_datacenter is up"):
        truncated_at(session)


def test_events_are_received_from_a_present_node(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def connect(endpoint: DefaultEndPoint) -> Any:
        asked.append(str(endpoint.address))
        raise OSError("refused")

    monkeypatch.setattr(nodes.cluster, "connection_factory", connect)
    session = nodes.session()
    events = SchemaEvents(nodes.cluster, lambda: local_nodes(session), again_seconds=0.0)
    assert not events.heard()
    first = nodes.add(1)
    nodes.add(9, "dc2")
    assert not events.heard()
    nodes.cluster.metadata.remove_host(first)
    nodes.add(2, is_up=None)
    nodes.add(3)
    assert not events.heard()
    assert asked == ["10.0.0.1", "10.0.0.3"]
