"""Answers of nodes that do not have the same schema yet, as one that was down while a table was changed."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from cassandra.cluster import Session

from tests.cluster.servers import REPLICATION, Servers
from writetime.clients.database import connect, nodes_agree
from writetime.core.errors import Transient, WritetimeError
from writetime.schema.system import read_schema
from writetime.verify.database import DatabaseTable


@contextmanager
def _disagreement(session: Session) -> Iterator[None]:
    """Make each node believe that its first peer has another schema."""
    assert session.cluster is not None
    update = "UPDATE system.peers_v2 SET schema_version = %s WHERE peer = %s AND peer_port = %s"
    restored = []
    for host in session.cluster.metadata.all_hosts():
        peer = session.execute("SELECT * FROM system.peers_v2", host=host).one()
        session.execute(update, [uuid.uuid4(), peer.peer, peer.peer_port], host=host)
        restored.append((host, [peer.schema_version, peer.peer, peer.peer_port]))
    try:
        yield
    finally:
        for host, values in restored:
            session.execute(update, values, host=host)


def test_a_column_that_a_node_does_not_know_yet_is_asked_for_again(servers: Servers) -> None:
    name = f"k{uuid.uuid4().hex[:10]}"
    with connect(servers.settings) as session:
        session.execute(f"CREATE KEYSPACE {name} WITH replication = {REPLICATION}", timeout=60)
        session.execute(f"CREATE TABLE {name}.t (k int PRIMARY KEY, v int)", timeout=60)
        schema = read_schema(session, f"{name}.t")
        changed = replace(schema, regular=(*schema.regular, replace(schema.regular[0], name="added")))
        assert nodes_agree(session)
        table = DatabaseTable(session, changed)
        with pytest.raises(WritetimeError, match="Undefined column name added") as fault:
            table.rows(0, 1)
        assert not isinstance(fault.value, Transient)
        with connect(servers.settings) as other, _disagreement(other), pytest.raises(Transient, match="added"):
            table.rows(0, 1)
        assert nodes_agree(session)
