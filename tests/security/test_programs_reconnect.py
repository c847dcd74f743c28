"""Whole programs go on by themselves after each fault of their node, and nothing is lost that was accepted."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from tests.security.conftest import OTHER_ADDRESS, Secured
from tests.security.logins import change_password, end_connections, restore_password, set_auth_reads
from tests.security.servers import LOOPBACK, SecuredCassandra
from tests.support.all_programs import AGAIN_SECONDS, Platform, running_platform
from writetime.clients import database
from writetime.core.config import Settings
from writetime.core.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.cassandra_only("the agent reads the node's commit log")]

# How long a fault lasts after all connections have ended: several attempts of each connection of each program.
LASTS_SECONDS = 15.0
TABLE = "reconnecting.rows"
# A consistency level that one node cannot reach.
UNREACHABLE = "THREE"


def with_addresses(settings: Settings) -> Settings:
    cassandra = settings.cassandra.model_copy(update={"contact_points": [*LOOPBACK, OTHER_ADDRESS]})
    return settings.model_copy(update={"cassandra": cassandra})


@pytest.fixture(scope="module")
def platform(secured: Secured, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    home = tmp_path_factory.mktemp("programs")
    own, admin = with_addresses(secured.settings), with_addresses(secured.admin)
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    with database.connect(admin) as session:
        session.execute(f"CREATE KEYSPACE reconnecting WITH replication = {replication}")
        session.execute(f"CREATE TABLE {TABLE} (id int PRIMARY KEY) WITH cdc = true")
    with running_platform(own, admin, home, TABLE, {"agent": own}) as found:
        yield found
    with database.connect(admin) as session:
        session.execute("DROP KEYSPACE reconnecting")


@pytest.fixture(scope="module")
def node(secured: Secured) -> Iterator[SecuredCassandra]:
    found = secured.servers[0]
    assert isinstance(found, SecuredCassandra)
    yield found
    if found.address not in LOOPBACK:
        found.stop()
        found.address = LOOPBACK[0]
        found.start()


def restart(node: SecuredCassandra) -> None:
    node.stop()
    node.start()


def assert_logins_are_refused(platform: Platform, reason: str) -> None:
    with pytest.raises(database.DatabaseUnreachable, match=reason), database.connect(platform.settings):
        pass


@contextmanager
def another_password(
    platform: Platform, node: SecuredCassandra, end: Callable[[SecuredCassandra], None]
) -> Iterator[None]:
    with database.connect(platform.admin) as admin:
        change_password(admin)
    try:
        end(node)
        yield
        assert_logins_are_refused(platform, "incorrect")
    finally:
        with database.connect(platform.admin) as admin:
            restore_password(admin)


@contextmanager
def unreadable_roles(platform: Platform, node: SecuredCassandra, restarts: bool) -> Iterator[None]:
    """The node reads logins and rights of more replicas than are up, as if the others were still down."""
    try:
        if restarts:
            node.auth_reads = UNREACHABLE
            restart(node)
        else:
            set_auth_reads(node, UNREACHABLE)
            end_connections(node)
        yield
        assert_logins_are_refused(platform, f"Unable to perform authentication: .*{UNREACHABLE}")
    finally:
        node.auth_reads = "LOCAL_QUORUM"
        set_auth_reads(node, node.auth_reads)


@contextmanager
def frozen(platform: Platform, node: SecuredCassandra) -> Iterator[None]:
    """The node stops without closing its connections, until all programs have given them up."""
    pid = node.pid()
    assert pid is not None
    open_before = platform.connections()
    os.kill(pid, signal.SIGSTOP)
    try:

        def given_up() -> bool:
            # The agent's own connection for events of schemas has no heartbeat, because it polls them, too.
            found = platform.connections()
            return all(len(before & found[name]) <= (name == "agent") for name, before in open_before.items())

        assert wait_until(given_up, AGAIN_SECONDS), "connections stay open"
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def moved(platform: Platform, node: SecuredCassandra) -> Iterator[None]:
    """The node gets another address."""
    node.stop()
    node.address = OTHER_ADDRESS if node.address in LOOPBACK else LOOPBACK[0]
    yield
    node.start()


FAULTS: dict[str, Callable[[Platform, SecuredCassandra], AbstractContextManager[None]]] = {
    "another password": lambda platform, node: another_password(platform, node, end_connections),
    "another password and a restart": lambda platform, node: another_password(platform, node, restart),
    "unreadable roles": lambda platform, node: unreadable_roles(platform, node, restarts=False),
    "unreadable roles after a restart": lambda platform, node: unreadable_roles(platform, node, restarts=True),
    "frozen": frozen,
    "another address": moved,
    "the first address again": moved,
}


LONG_ONLY = {"unreadable roles after a restart": pytest.mark.long_only("restarts the node once more")}


@pytest.mark.parametrize("fault", [pytest.param(name, marks=LONG_ONLY.get(name, ())) for name in FAULTS])
def test_programs_go_on_after_a_fault_of_their_node(platform: Platform, node: SecuredCassandra, fault: str) -> None:
    with platform.sending() as sender:
        sender.wait_until_accepted()
        with FAULTS[fault](platform, node):
            time.sleep(LASTS_SECONDS)
        sender.wait_until_accepted()


def test_programs_go_on_after_rights_that_could_not_be_read(platform: Platform, node: SecuredCassandra) -> None:
    """Their connections stay, and requests are refused."""
    with platform.sending() as sender:
        sender.wait_until_accepted()
        set_auth_reads(node, UNREACHABLE)
        try:
            sender.wait_until_refused("item", "batch")
            time.sleep(LASTS_SECONDS)
        finally:
            set_auth_reads(node, "LOCAL_QUORUM")
        sender.wait_until_accepted()
