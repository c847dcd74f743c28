"""Answers of nodes without the newest schema, such as a node that was down while a table was altered."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from cassandra.cluster import Session

from tests.cluster.servers import REPLICATION, Servers
from writetime.clients.database import connect, node_of, nodes_agree
from writetime.core.errors import Transient, WritetimeError
from writetime.schema.system import read_schema
from writetime.verify.database_table import DatabaseTable


@contextmanager
def _disagreement(asked: Session, session: Session) -> Iterator[None]:
    """Make the node that the first session asks about schemas believe that a peer has another one."""
    assert asked.cluster is not None
    asked_host = asked.cluster.get_control_connection_host()
    assert asked_host is not None
    host = node_of(session, asked_host.address)
    peer = session.execute("SELECT * FROM system.peers_v2", host=host).one()
    update = "UPDATE system.peers_v2 SET schema_version = %s WHERE peer = %s AND peer_port = %s"
    session.execute(update, [uuid.uuid4(), peer.peer, peer.peer_port], host=host)
    try:
        yield
    finally:
        session.execute(update, [peer.schema_version, peer.peer, peer.peer_port], host=host)


@pytest.mark.long_only("starts three nodes and three brokers")
def test_a_column_that_a_node_does_not_know_yet_is_queried_again(servers: Servers) -> None:
    name = f"k{uuid.uuid4().hex[:10]}"
    with connect(servers.settings) as session, connect(servers.settings) as compared:
        session.execute(f"CREATE KEYSPACE {name} WITH replication = {REPLICATION}", timeout=60)
        session.execute(f"CREATE TABLE {name}.t (k int PRIMARY KEY, v int)", timeout=60)
        schema = read_schema(session, f"{name}.t")
        changed = replace(schema, regular=(*schema.regular, replace(schema.regular[0], name="added")))
        assert nodes_agree(compared)
        table = DatabaseTable(compared, changed)
        with pytest.raises(WritetimeError, match="Undefined column name added") as fault:
            table.rows(0, 1)
        assert not isinstance(fault.value, Transient)
        with _disagreement(compared, session), pytest.raises(Transient, match="added"):
            table.rows(0, 1)
        assert nodes_agree(compared)
