"""Programs use each of two nodes again after it was lost, and nothing is lost that was accepted."""

import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.servers import ADDRESSES, ClusterNode, answers_at
from tests.support.all_programs import AGAIN_SECONDS, Platform, running_platform
from writetime.clients import database
from writetime.core.config import Settings
from writetime.core.waiting import wait_until
from writetime.ingest.topics import ensure_ingest_topics
from writetime.servers.process import free_port

LASTS_SECONDS = 15.0
# The connections of a session to two nodes: one to each, and one for events.
CONNECTIONS = 3


def settings_of(servers: Settings, home: Path) -> Settings:
    """Settings of two nodes that are to be started in a folder, with a broker that runs."""
    name = f"t{uuid.uuid4().hex[:12]}"
    changes = {
        "cassandra": {
            "contact_points": list(ADDRESSES[:2]),
            "port": free_port(),
            "keyspace": name,
            "replication": {"class": "NetworkTopologyStrategy", "datacenter1": 2},
        },
        "embedded": {"home": home, "cassandra_storage_port": free_port(), "cassandra_heap_mb": 384},
        "ingest": {
            "port": free_port(),
            "topic": name,
            "dead_letter_topic": f"{name}.dead",
            "group": f"{name}-sink",
            "session_timeout_seconds": 3.0,
        },
        "lake": {"path": str(home / "lake"), "buckets": 2},
    }
    return servers.model_copy(
        update={part: getattr(servers, part).model_copy(update=own) for part, own in changes.items()}
    )


def agent_of(settings: Settings, node: ClusterNode) -> Settings:
    changes = {"node": node.address, "state_dir": node.folder / "agent", "snapshot": "schema-only"}
    return settings.model_copy(update={"capture": settings.capture.model_copy(update=changes)})


@pytest.fixture(scope="module")
def two_nodes(kafka: Settings, zookeeper: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Settings of two nodes that run."""
    for address in ADDRESSES[:2]:
        if not answers_at(address):
            pytest.skip(f"this machine has no address {address}: on macOS, `sudo ifconfig lo0 alias {address}`")
    settings = settings_of(kafka, tmp_path_factory.mktemp("nodes"))
    nodes = [ClusterNode(settings, number) for number in range(2)]
    try:
        for node in nodes:
            node.launch()
        for node in nodes:
            node.wait_ready()
        database.apply_schema(settings)
        ensure_ingest_topics(settings)
        yield settings
    finally:
        for node in nodes:
            node.stop(signal.SIGKILL)


@pytest.fixture(scope="module")
def nodes(two_nodes: Settings) -> list[ClusterNode]:
    return [ClusterNode(two_nodes, number) for number in range(2)]


@pytest.fixture(scope="module")
def platform(two_nodes: Settings, nodes: list[ClusterNode]) -> Iterator[Platform]:
    settings, home = two_nodes, two_nodes.embedded.home
    table = f"{settings.cassandra.keyspace}.rows"
    with database.connect(settings) as session:
        session.execute(f"CREATE TABLE {table} (id int PRIMARY KEY) WITH cdc = true", timeout=60)
    agents = {f"agent-{node.address}": agent_of(settings, node) for node in nodes}
    with running_platform(settings, settings, home, table, agents) as found:
        yield found


@contextmanager
def frozen(node: ClusterNode) -> Iterator[None]:
    """A node that sends no events and does not close its connections."""
    pid = node.pid()
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def assert_nodes_are_used(platform: Platform) -> None:
    def used() -> bool:
        # `follow` does not connect to the database.
        return all(
            len(found) >= CONNECTIONS and {address for _, address in found} == {*ADDRESSES[:2]}
            for name, found in platform.connections().items()
            if name != "follow"
        )

    assert wait_until(used, AGAIN_SECONDS), platform.described(platform.connections())


@pytest.mark.long_only("starts two nodes, and each three times")
@pytest.mark.parametrize("events", ["events", "lost events"])
@pytest.mark.parametrize("lost", [0, 1])
def test_a_node_that_was_lost_is_used_again(
    platform: Platform, nodes: list[ClusterNode], lost: int, events: str
) -> None:
    node, other = nodes[lost], nodes[1 - lost]
    with platform.sending() as sender:
        sender.wait_until_accepted()
        assert_nodes_are_used(platform)
        if events == "events":
            node.stop(signal.SIGKILL)
            sender.wait_until_refused("item", "batch", "row")
            time.sleep(LASTS_SECONDS)
            node.start()
        else:
            with frozen(other):
                node.stop(signal.SIGKILL)
                sender.wait_until_refused("item", "batch", "row")
                node.start()
        assert_nodes_are_used(platform)
        sender.wait_until_accepted()
