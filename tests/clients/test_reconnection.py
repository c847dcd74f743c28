"""A session goes on after each fault of a node, however the node refuses connections meanwhile."""

import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from cassandra.cluster import Session
from cassandra.pool import Host

from tests.support.proxy import Proxy, answer_frame
from writetime.capture.node_schemas import Node, Unreachable
from writetime.clients import database, reconnection
from writetime.clients.database import DRIVER_FAULTS
from writetime.core.config import Settings
from writetime.core.server_settings import Cassandra
from writetime.core.waiting import wait_until
from writetime.servers.process import free_port

pytestmark = pytest.mark.long

# CQL protocol 4: operations, and the body of SUPPORTED.
ERROR, AUTHENTICATE, SUPPORTED = 0x00, 0x03, 0x06
OPTIONS, STARTUP, AUTH_RESPONSE = 0x05, 0x01, 0x0F
OPTIONS_BODY = b"\x00\x02\x00\x0bCQL_VERSION\x00\x01\x00\x053.0.0\x00\x0bCOMPRESSION\x00\x00"
CLASS_BODY = b"\x00\x0dAuthenticator"
# The step of a connection that an error answers, and the error's code.
ERRORS = {
    "options: protocol error": (OPTIONS, 0x000A),
    "startup: overloaded": (STARTUP, 0x1001),
    "startup: bootstrapping": (STARTUP, 0x1002),
    "login: bad credentials": (AUTH_RESPONSE, 0x0100),
    "login: unavailable": (AUTH_RESPONSE, 0x1000),
    "login: server error": (AUTH_RESPONSE, 0x0000),
}


def error_at(step: int, code: int) -> Callable[[bytes], bytes]:
    """Answer a connection like a node up to a step, and that step with an error."""

    def answer(request: bytes) -> bytes:
        if request[4] == step:
            return answer_frame(request, ERROR, code.to_bytes(4, "big") + b"\x00\x05a bug" + bytes(20))
        if request[4] == OPTIONS:
            return answer_frame(request, SUPPORTED, OPTIONS_BODY)
        return answer_frame(request, AUTHENTICATE, CLASS_BODY)

    return answer


REFUSALS: dict[str, Callable[[bytes], bytes]] = {
    "no answer": lambda _: b"",
    "no frames": lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n",
    **{name: error_at(*error) for name, error in ERRORS.items()},
}
# A reconnection every two seconds at most, on a busy machine.
AGAIN_SECONDS = 60.0
HOST_ID = "SELECT host_id FROM system.local"


@pytest.fixture
def proxy(settings: Settings) -> Iterator[Proxy]:
    with Proxy(settings.cassandra, random.Random(1)) as found:
        yield found


@pytest.fixture
def session(settings: Settings, proxy: Proxy) -> Iterator[Session]:
    with session_at(settings, contact_points=["127.0.0.1"], port=proxy.port) as found:
        yield found


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


@contextmanager
def session_at(settings: Settings, **changes: object) -> Iterator[Session]:
    # A node without logins ignores them.
    own = {"request_timeout_seconds": 2.0, "username": "me", "password": "hush", **changes}
    cassandra = Cassandra.model_validate(settings.cassandra.model_dump() | own)
    with database.connect(settings.model_copy(update={"cassandra": cassandra})) as found:
        yield found


def answers(session: Session) -> bool:
    try:
        return bool(session.execute("SELECT release_version FROM system.local").one())
    except DRIVER_FAULTS:
        return False


def wait_for(session: Session, answer: bool, seconds: float = AGAIN_SECONDS) -> float:
    begun = time.monotonic()
    assert wait_until(lambda: answers(session) is answer, seconds, 0.1), f"still {not answer} after {seconds} s"
    return time.monotonic() - begun


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_session_goes_on_after_refused_connections(session: Session, proxy: Proxy, refusal: str) -> None:
    wait_for(session, True)
    with proxy.answering(REFUSALS[refusal]):
        wait_for(session, False)
        # Attempts of pool and control connection.
        seen = proxy.answered
        assert wait_until(lambda: proxy.answered >= seen + 4, AGAIN_SECONDS)
    wait_for(session, True)
    assert wait_until(lambda: is_open(session), AGAIN_SECONDS), "no events of the database arrive"


def is_open(session: Session) -> bool:
    """Return whether the connection is open that receives the events."""
    assert session.cluster is not None
    connection = session.cluster.control_connection._connection
    return not (connection.is_closed or connection.is_defunct)


def host_of(session: Session) -> Host:
    assert session.cluster is not None
    [host] = session.cluster.metadata.all_hosts()
    return host


def shut_down(session: Session) -> None:
    """A pool that fails while its node is being marked up."""
    [pool] = session.get_pools()
    pool.shutdown()


def forget(session: Session) -> None:
    """A pool that cannot be opened while another session has one."""
    closing = session.remove_pool(host_of(session))
    assert closing is not None
    closing.result()


def mark_down(session: Session) -> None:
    """A node that is marked down, without a handler that connects to it."""
    forget(session)
    host_of(session).set_down()


@pytest.mark.parametrize("fault", [shut_down, forget, mark_down])
@pytest.mark.parametrize("others", [0, 1])
def test_a_node_that_the_driver_gave_up_is_connected_again(
    session: Session, monkeypatch: pytest.MonkeyPatch, fault: Callable[[Session], None], others: int
) -> None:
    """The states are those that races between events leave."""
    monkeypatch.setattr(reconnection, "GIVEN_UP_SECONDS", 3.0)
    assert session.cluster is not None
    other = [session.cluster.connect() for _ in range(others)]
    fault(session)
    assert not answers(session)
    for each in (session, *other):
        wait_for(each, True)


def is_known(node: Node, host_ids: list[dict[str, Any]]) -> bool:
    try:
        return node.rows(HOST_ID) == host_ids
    except Unreachable:
        return False


def test_a_node_with_another_address_is_found_by_its_name(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, stack: ExitStack
) -> None:
    resolve, address, port = socket.getaddrinfo, "127.0.0.7", free_port()

    def resolve_name(host: Any, *arguments: Any) -> Any:
        return resolve(address if host == "node.example" else host, *arguments)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_name)
    with Proxy(settings.cassandra, random.Random(1), address, port):
        session = stack.enter_context(session_at(settings, contact_points=["node.example"], port=port))
        node = Node(session, None)
        host_ids = node.rows(HOST_ID)
    for address in ("127.0.0.8", "127.0.0.7", "127.0.0.9"):
        wait_for(session, False)
        with Proxy(settings.cassandra, random.Random(1), address, port):
            wait_for(session, True)
            assert wait_until(lambda: is_known(node, host_ids), AGAIN_SECONDS), "the agent's node is not found"
            assert node.address == address
