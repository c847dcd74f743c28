"""The driver's exceptions, and the platform's handling of them, without a database."""

import socket
from types import SimpleNamespace
from typing import Any

import pytest
from cassandra import Unauthorized
from cassandra.cluster import Session
from cassandra.protocol import OverloadedErrorMessage

from writetime.capture.node_schemas import Node, Unreachable
from writetime.clients.database import DatabaseUnreachable, connect, is_without_answer, node_of
from writetime.core import config


def _metadata(hosts: list[SimpleNamespace]) -> SimpleNamespace:
    return SimpleNamespace(all_hosts=lambda: hosts, get_host=lambda _: hosts[0])


class _ShuttingDown:
    """A session of one node that is shutting down, as Cassandra answers then."""

    def __init__(self) -> None:
        self.hosts = [SimpleNamespace(address="127.0.0.1", is_up=True, endpoint=None)]
        self.cluster = SimpleNamespace(connection_factory=self.execute, metadata=_metadata(self.hosts))

    def get_pools(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(host=host) for host in self.hosts]

    def execute(self, *_: Any, **__: Any) -> None:
        raise OverloadedErrorMessage(0x1001, "Server is shutting down", None)


def test_a_node_that_shuts_down_is_unreachable() -> None:
    session: Session = _ShuttingDown()  # type: ignore[assignment]
    node = Node(session, None)
    with pytest.raises(Unreachable, match="Server is shutting down"):
        node.rows("SELECT host_id FROM system.local")
    # Schemas are requested only then.
    assert not node.events.heard()


class _Connecting:
    """A session that has connected the first of two nodes, and connects the other later."""

    def __init__(self) -> None:
        self.hosts = [SimpleNamespace(address=f"127.0.0.{i}") for i in (1, 2)]
        self.cluster = SimpleNamespace(metadata=_metadata(self.hosts))
        self.asked = 0

    def get_pools(self) -> list[SimpleNamespace]:
        self.asked += 1
        return [SimpleNamespace(host=host) for host in self.hosts[: 1 if self.asked < 3 else 2]]


def test_a_node_is_connected_before_it_is_queried() -> None:
    session = _Connecting()
    assert node_of(session, "127.0.0.2").address == "127.0.0.2"  # type: ignore[arg-type]
    assert session.asked == 3


@pytest.mark.parametrize(
    ("message", "passes"),
    [
        # Of `CassandraAuthorizer.authorize`, `Roles.hasSuperuserStatus` and `CassandraAuthorizer.checkPermission`.
        ("Unable to perform authorization of permissions: Cannot achieve consistency level LOCAL_ONE", True),
        ("Unable to perform authorization of super-user permission: Operation timed out", True),
        ("User writer has no MODIFY permission on <table ks.t> or any of its parents", False),
    ],
)
def test_rights_that_cannot_be_read_are_an_outage(message: str, passes: bool) -> None:
    assert is_without_answer(Unauthorized(f'Error from server: code=2100 [Unauthorized] message="{message}"')) is passes


def test_names_without_addresses_are_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    settings = config.load(cassandra=config.Cassandra(contact_points=["db1", "db2"], port=9042))
    named = r"no database answers at db1:9042, db2:9042 \(their names cannot be resolved\); .*cassandra\.contact_points"
    with pytest.raises(DatabaseUnreachable, match=named), connect(settings):
        pass
