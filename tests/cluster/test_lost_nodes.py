"""Programs use each of two nodes again after it was lost, and nothing is lost that was accepted. A node that was down
gets the writes that it missed, and so does its agent.
"""

import itertools
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from cassandra import ConsistencyLevel, Unavailable, WriteTimeout
from cassandra.cluster import Session
from cassandra.metadata import Murmur3Token
from cassandra.query import SimpleStatement

from tests.cluster.servers import ADDRESSES, ClusterNode, need_addresses
from tests.support.all_programs import AGAIN_SECONDS, Platform, running_platform
from tests.support.messages import messages
from tests.support.servers import frozen
from tests.support.waiting import wait_for
from writetime.capture.commitlog_agent import run
from writetime.clients import database
from writetime.clients.kafka import NoTopic
from writetime.core.config import Settings
from writetime.core.waiting import wait_until
from writetime.ingest.topics import ensure_ingest_topics
from writetime.runtime.nodetool import nodetool
from writetime.servers.process import free_port
from writetime.wire.topic_names import changes_topic

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
def started(
    kafka: Settings, zookeeper: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Settings, list[ClusterNode]]]:
    """Two nodes that run, and their settings."""
    need_addresses(2)
    settings = settings_of(kafka, tmp_path_factory.mktemp("nodes"))
    nodes = [ClusterNode(settings, number) for number in range(2)]
    try:
        for node in nodes:
            node.launch()
        for node in nodes:
            node.wait_ready()
        database.apply_schema(settings)
        ensure_ingest_topics(settings)
        yield settings, nodes
    finally:
        for node in nodes:
            node.stop(signal.SIGKILL)


@pytest.fixture(scope="module")
def two_nodes(started: tuple[Settings, list[ClusterNode]]) -> Settings:
    return started[0]


@pytest.fixture(scope="module")
def nodes(started: tuple[Settings, list[ClusterNode]]) -> list[ClusterNode]:
    return started[1]


@pytest.fixture(scope="module")
def platform(two_nodes: Settings, nodes: list[ClusterNode]) -> Iterator[Platform]:
    settings, home = two_nodes, two_nodes.embedded.home
    table = f"{settings.cassandra.keyspace}.rows"
    with database.connect(settings) as session:
        session.execute(f"CREATE TABLE {table} (id int PRIMARY KEY) WITH cdc = true", timeout=60)
    agents = {f"agent-{node.address}": agent_of(settings, node) for node in nodes}
    with running_platform(settings, settings, home, table, agents) as found:
        yield found


def assert_nodes_are_used(platform: Platform) -> None:
    def used() -> bool:
        # `follow` does not connect to the database.
        return all(
            len(found) >= CONNECTIONS and {address for _, address in found} == {*ADDRESSES[:2]}
            for name, found in platform.connections().items()
            if name != "follow"
        )

    assert wait_until(used, AGAIN_SECONDS), platform.described(platform.connections())


def by_hints(_first: ClusterNode, _session: Session, _table: str) -> None:
    """The other node sends them by itself."""


def by_read_repair(first: ClusterNode, session: Session, table: str) -> None:
    del first
    for n in range(10):
        session.execute(at(ConsistencyLevel.ALL, f"SELECT * FROM {table} WHERE id = {n}"), timeout=60)


def by_repair(first: ClusterNode, session: Session, table: str) -> None:
    del session
    nodetool(first.jmx_port, "repair", "--full", *table.split("."))


def at(level: int, statement: str) -> SimpleStatement:
    return SimpleStatement(statement, consistency_level=level)


@contextmanager
def agent_of_one(settings: Settings) -> Iterator[None]:
    """An agent in a thread."""
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, settings, stop)
        try:
            yield
        finally:
            stop.set()
        running.result()


def published(settings: Settings, table: str) -> set[int]:
    """The keys of the changes of a table that are in Kafka."""
    try:
        return {int.from_bytes(key, "big") for _, key, _ in messages(settings, changes_topic(table))}
    except NoTopic:
        return set()


@contextmanager
def first_with_agent_of_second(
    settings: Settings, nodes: list[ClusterNode], home: Path, table: str, keyspace: str = ""
) -> Iterator[Session]:
    """A session at the first node, with a captured table, while an agent of the second node runs."""
    capture = agent_of(settings, nodes[1]).capture.model_copy(update={"state_dir": home / "agent"})
    only_first = settings.cassandra.model_copy(update={"contact_points": [nodes[0].address]})
    with database.connect(settings.model_copy(update={"cassandra": only_first})) as session:
        if keyspace:
            session.execute(keyspace, timeout=60)
        session.execute(f"CREATE TABLE {table} (id int PRIMARY KEY) WITH cdc = true", timeout=60)
        with agent_of_one(settings.model_copy(update={"capture": capture})):
            yield session


def wait_for_nodes(session: Session) -> None:
    wait_for(lambda: all(host.is_up for host in session.hosts or []))


@pytest.mark.long_only("starts two nodes, and one of them three times")
@pytest.mark.parametrize("send", [by_hints, by_read_repair, by_repair])
def test_writes_that_a_node_missed_reach_its_log(
    two_nodes: Settings, nodes: list[ClusterNode], tmp_path: Path, send: Callable[[ClusterNode, Session, str], None]
) -> None:
    first, second = nodes
    table = f"{two_nodes.cassandra.keyspace}.{send.__name__}"
    with first_with_agent_of_second(two_nodes, nodes, tmp_path, table) as session:
        session.execute(at(ConsistencyLevel.ALL, f"INSERT INTO {table} (id) VALUES (0)"), timeout=60)
        wait_for(lambda: published(two_nodes, table) == {0})
        nodetool(first.jmx_port, "enablehandoff" if send is by_hints else "disablehandoff")
        second.stop()
        for n in range(1, 10):
            session.execute(at(ConsistencyLevel.ONE, f"INSERT INTO {table} (id) VALUES ({n})"), timeout=60)
        second.start()
        wait_for_nodes(session)
        send(first, session, table)
        wait_for(lambda: published(two_nodes, table) == {*range(10)})


def keys_of(node: ClusterNode) -> Iterator[int]:
    """Numbers whose only replica is the second node, if each has one. It has the tokens up to its own."""
    # The driver's metadata has no replicas, because sessions do not read schemas.
    return (n for n in itertools.count() if Murmur3Token.hash_fn(n.to_bytes(4, "big")) <= node.token)


def restart(session: Session, node: ClusterNode, *options: str) -> None:
    node.options = list(options)
    node.stop()
    node.start()
    wait_for_nodes(session)


def is_in_batch_log(session: Session, batch: SimpleStatement) -> bool:
    """Execute a batch whose replica is down. Return whether the node keeps it to replay it: while the node has not
    noticed that the replica is down, it sends the batch log there.
    """
    with suppress(WriteTimeout, Unavailable):
        session.execute(batch, timeout=60)
    return session.execute("SELECT count(*) FROM system.batches", timeout=60)[0].count > 0


@pytest.mark.long_only("starts two nodes, and each again")
def test_batches_that_a_node_missed_reach_its_log(
    two_nodes: Settings, nodes: list[ClusterNode], tmp_path: Path
) -> None:
    """Only the batch log of the other node has them."""
    first, second = nodes
    keyspace = f"{two_nodes.cassandra.keyspace}_one"
    table, replication = f"{keyspace}.t", "{'class': 'NetworkTopologyStrategy', 'datacenter1': 1}"
    statement = f"CREATE KEYSPACE {keyspace} WITH replication = {replication}"
    with first_with_agent_of_second(two_nodes, nodes, tmp_path, table, statement) as session:
        before, *missed = itertools.islice(keys_of(second), 3)
        session.execute(f"INSERT INTO {table} (id) VALUES ({before})", timeout=60)
        wait_for(lambda: published(two_nodes, table) == {before})
        restart(session, first, "-Dcassandra.batchlog.replay_timeout_in_ms=86400000")
        nodetool(first.jmx_port, "disablehandoff")
        second.stop(signal.SIGKILL)
        inserts = "; ".join(f"INSERT INTO {table} (id) VALUES ({n})" for n in missed)
        batch = at(ConsistencyLevel.ANY, f"BEGIN BATCH {inserts}; APPLY BATCH")
        wait_for(lambda: is_in_batch_log(session, batch))
        second.start()
        wait_for_nodes(session)
        assert [row.id for row in session.execute(f"SELECT id FROM {table}", timeout=60)] == [before]
        restart(session, first)
        wait_for(lambda: published(two_nodes, table) == {before, *missed})
        found = {row.id for row in session.execute(f"SELECT id FROM {table}", timeout=60)}
        assert found == {before, *missed}


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
