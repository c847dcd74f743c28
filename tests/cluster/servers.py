"""Three real Cassandra nodes and three real Kafka brokers on one machine, and settings that name them all.

Nodes share their ports and have separate addresses, 127.0.0.1 to 127.0.0.3, as nodes of a real cluster have.
"""

import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.policies import ConstantReconnectionPolicy, FallthroughRetryPolicy
from cassandra.pool import Host

from tests.support.servers import flushes_schemas
from writetime.clients.database import DRIVER_FAULTS
from writetime.core import config
from writetime.core.config import Settings
from writetime.servers.cassandra import CassandraServer
from writetime.servers.kafka import KafkaServer
from writetime.servers.process import EmbeddedServer, free_port

ADDRESSES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
REPLICATION = "{'class': 'NetworkTopologyStrategy', 'datacenter1': 3}"


class ClusterNode(CassandraServer):
    """One node of three, each with a third of the tokens."""

    def __init__(self, settings: Settings, number: int) -> None:
        self.address = ADDRESSES[number]
        home = settings.embedded.home / f"node-{number + 1}"
        embedded = settings.embedded.model_copy(update={"home": home})
        super().__init__(settings.model_copy(update={"embedded": embedded}))
        self.token = -(2**63) + number * (2**64 // len(ADDRESSES))
        # Of the JVM, from the next start on.
        self.options: list[str] = []

    def command(self) -> list[str]:
        """Let changes of schemas be on disk at once, as nodes are killed."""
        program, *arguments = super().command()
        return [program, flushes_schemas(True), *self.options, *arguments]

    def configuration(self) -> dict[str, object]:
        configuration = super().configuration()
        # All are seeds, so that they may start at once, in any order.
        seeds = ",".join(f"{address}:{configuration['storage_port']}" for address in ADDRESSES)
        provider = {
            "class_name": "org.apache.cassandra.locator.SimpleSeedProvider",
            "parameters": [{"seeds": seeds}],
        }
        return configuration | {
            "seed_provider": [provider],
            "num_tokens": 1,
            "initial_token": str(self.token),
            "commitlog_segment_size": "1MiB",
            "native_transport_max_threads": 16,
            # A node that waits for a turn on two cores must not count as down.
            "phi_convict_threshold": 12,
        }


class ClusterBroker(KafkaServer):
    """One broker of three, each a controller, too: acknowledged messages have at least two copies."""

    def __init__(self, settings: Settings, number: int, ports: list[int], controllers: list[int]) -> None:
        self._node_id = number + 1
        self._controllers = controllers
        kafka = settings.kafka.model_copy(update={"bootstrap_servers": f"127.0.0.1:{ports[number]}"})
        own = {"home": settings.embedded.home / f"broker-{number + 1}", "kafka_controller_port": controllers[number]}
        embedded = settings.embedded.model_copy(update=own)
        super().__init__(settings.model_copy(update={"kafka": kafka, "embedded": embedded}))
        self.cluster_id = "d3JpdGV0aW1lLWNsdXN0ZQ"

    def configuration(self) -> dict[str, object]:
        voters = ",".join(f"{i + 1}@127.0.0.1:{port}" for i, port in enumerate(self._controllers))
        return super().configuration() | {
            "node.id": self._node_id,
            "controller.quorum.voters": voters,
            "default.replication.factor": 3,
            "min.insync.replicas": 2,
            "offsets.topic.replication.factor": 3,
            "transaction.state.log.replication.factor": 3,
            "transaction.state.log.min.isr": 2,
            # After this time, the others consider a killed broker as down.
            "broker.session.timeout.ms": 3000,
            "broker.heartbeat.interval.ms": 500,
        }


class Servers:
    """The nodes and the brokers, and settings of all of them."""

    def __init__(self, home: Path) -> None:
        ports = _free_ports(8)
        brokers, controllers = ports[:3], ports[3:6]
        self.settings = config.load(
            cassandra={
                "contact_points": list(ADDRESSES),
                "port": ports[6],
                "consistency": "QUORUM",
                # Three nodes and three brokers share this machine with other tests.
                "request_timeout_seconds": 60,
            },
            kafka={"bootstrap_servers": ",".join(f"127.0.0.1:{p}" for p in brokers), "replication_factor": 3},
            embedded={
                "home": home,
                "cassandra_storage_port": ports[7],
                "cassandra_heap_mb": 384,
                "kafka_heap_mb": 256,
                "start_timeout_seconds": 240,
            },
        )
        self.nodes = [ClusterNode(self.settings, i) for i in range(3)]
        self.brokers = [ClusterBroker(self.settings, i, brokers, controllers) for i in range(3)]

    @property
    def _all(self) -> list[EmbeddedServer]:
        return [*self.brokers, *self.nodes]

    def start(self) -> None:
        """Start all at once, and wait until each node sees the others."""
        with ThreadPoolExecutor() as pool:
            # A broker's log folder is made first, by a separate program.
            list(pool.map(EmbeddedServer.launch, self._all))
        for server in self._all:
            server.wait_ready()
        self.wait_for_all()

    def wait_for_all(self) -> None:
        """Wait until each node sees the others: one that starved may be away. Start those that a failed test left
        killed.
        """
        for server in self._all:
            server.start()
        with session_at(self.settings, ConsistencyLevel.ALL) as session:
            while not all(_answers(session, address) for address in ADDRESSES):
                time.sleep(0.2)

    def stop(self) -> None:
        """Stop all programs at once, because their data is not needed."""
        for server in self._all:
            server.stop(signal.SIGKILL)


@contextmanager
def session_at(settings: Settings, consistency: int = ConsistencyLevel.QUORUM, **own: Any) -> Iterator[Session]:
    """Open a session to all nodes that does not retry."""
    profile = ExecutionProfile(consistency_level=consistency, request_timeout=30, retry_policy=FallthroughRetryPolicy())
    cluster = Cluster(
        list(ADDRESSES),
        port=settings.cassandra.port,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        reconnection_policy=ConstantReconnectionPolicy(0.5, max_attempts=100_000),
        connect_timeout=60,
        control_connection_timeout=60,
        max_schema_agreement_wait=60,
        protocol_version=5,
        **own,
    )
    try:
        yield cluster.connect()
    finally:
        cluster.shutdown()


def _answers(session: Session, address: str) -> bool:
    """Return whether a node has a table of which each of three nodes has a replica, and sees that the others are up."""
    assert session.cluster is not None
    # A session's own hosts are those that were known when it was opened.
    hosts: list[Host] = [host for host in session.cluster.metadata.all_hosts() if host.address == address]
    if not hosts:
        return False
    try:
        session.execute("SELECT * FROM system_distributed.view_build_status", host=hosts[0])
    except DRIVER_FAULTS:
        return False
    return True


def need_addresses(count: int = len(ADDRESSES)) -> None:
    """Skip a test if servers of this machine cannot have the first addresses."""
    for address in ADDRESSES[:count]:
        with socket.socket() as each:
            try:
                each.bind((address, 0))
            except OSError:
                pytest.skip(f"this machine has no address {address}: on macOS, `sudo ifconfig lo0 alias {address}`")


def _free_ports(count: int) -> list[int]:
    """Return ports that nothing uses at any address, all of them different. They stay reserved while servers are killed
    and started again.
    """
    found: list[int] = []
    while len(found) < count:
        port = free_port()
        with socket.socket() as each, suppress(OSError):
            each.bind(("0.0.0.0", port))
            found.append(port)
    return found
