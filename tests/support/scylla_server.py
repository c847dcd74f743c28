"""A running ScyllaDB: its settings, and keyspaces with and without tablets."""

import json
import uuid
from contextlib import AbstractContextManager
from typing import Any

import pytest
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import Session

from demo.settings import address_of, datacenter_of
from tests.support import answers
from tests.support.waiting import PATIENCE_SECONDS
from writetime.clients.database import connect
from writetime.core.config import Settings


def uses_tablets(config: pytest.Config) -> bool:
    """Whether the keyspaces of this run use tablets."""
    return config.getoption("--scylla-tablets") == "on"


def cassandra_section(address: str, login: str | None) -> dict[str, Any]:
    """Return the section `[cassandra]` for the cluster of a node at host:port, with a keyspace that is new. The login
    is name:password.
    """
    host, port = address_of(address)
    name, _, password = (login or "").partition(":")
    datacenter, nodes = datacenter_of(host, port, PlainTextAuthProvider(name, password) if login else None)
    return {
        "contact_points": [host],
        "port": port,
        "local_datacenter": datacenter,
        "keyspace": new_name("wt"),
        "replication": {"class": "NetworkTopologyStrategy", datacenter: min(nodes, 3)},
        # A node that is busy, or built without optimisation, takes longer than the default to create a table.
        "request_timeout_seconds": 60.0,
        **({"username": name, "password": password} if login else {}),
    }


def raw_session(settings: Settings) -> AbstractContextManager[Session]:
    """Open a session whose rows hold bytes (`answers.raw_session`)."""
    cassandra = settings.cassandra
    login = None
    if cassandra.username is not None and cassandra.password is not None:
        login = PlainTextAuthProvider(cassandra.username, cassandra.password.get_secret_value())
    return answers.raw_session(cassandra.port, cassandra.contact_points[0], login)


def version(session: Session) -> str:
    """Return ScyllaDB's version."""
    return one(session, "SELECT version FROM system.versions").version


def new_name(prefix: str) -> str:
    """Return a name that no other run has."""
    return f"{prefix}_{uuid.uuid4().hex[:10]}"


def create_keyspace(settings: Settings, *, tablets: bool) -> None:
    """Create the keyspace of settings.

    With tablets, its tables begin with one. By default they begin with some 10 on each shard. ScyllaDB splits no table
    while a shard has more than 100 in all (`tablets_per_shard_goal`).
    """
    replication = json.dumps(settings.cassandra.replication).replace('"', "'")
    options = "{'enabled': true, 'initial': 1}" if tablets else "{'enabled': false}"
    with connect(settings) as session:
        session.execute(
            f"CREATE KEYSPACE IF NOT EXISTS {settings.cassandra.keyspace} WITH replication = {replication} "
            f"AND tablets = {options}",
            timeout=PATIENCE_SECONDS,
        )


def drop_keyspace(settings: Settings) -> None:
    """Drop the keyspace of settings."""
    with connect(settings) as session:
        session.execute(f"DROP KEYSPACE IF EXISTS {settings.cassandra.keyspace}", timeout=PATIENCE_SECONDS)


def one(session: Session, query: str) -> Any:
    """Return the first row that a query answers."""
    return next(iter(session.execute(query)))
