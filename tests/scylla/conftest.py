"""Shared by the tests of a running ScyllaDB; they are skipped without one."""

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cassandra.cluster import Session

from tests.scylla.node import Node
from tests.scylla.workload import TYPES
from tests.support import scylla_server
from tests.support.generate import SEED
from writetime.clients.database import connect
from writetime.core.config import Settings


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip these tests by the name of the option that they lack."""
    here = Path(__file__).parent
    for item in items:
        if item.path.parent != here:
            continue
        fixtures = getattr(item, "fixturenames", ())
        if "tool" in fixtures:
            if not config.getoption("--scylla-sstable"):
                item.add_marker(pytest.mark.skip(reason="--scylla-sstable is missing (make test-scylla SSTABLE=...)"))
        elif not config.getoption("--scylla"):
            item.add_marker(pytest.mark.skip(reason="no ScyllaDB is named: --scylla HOST:PORT (make test-scylla)"))
        elif item.path.name == "test_rights.py" and not config.getoption("--scylla-login"):
            reason = "the database has no rights: --scylla-login is missing (make test-scylla LOGIN=...)"
            item.add_marker(pytest.mark.skip(reason=reason))
        elif "nodes" in fixtures:
            for option, variable in (("--scylla-data", "DATA"), ("--scylla-nodetool", "NODETOOL")):
                if not config.getoption(option):
                    reason = f"no snapshot can be taken: {option} is missing (make test-scylla {variable}=...)"
                    item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module")
def live(server_settings: Settings, make_keyspace: Callable[[Settings], None]) -> Settings:
    """Settings with a keyspace for the tests of one module."""
    own = server_settings.cassandra.model_copy(update={"keyspace": scylla_server.new_name("live")})
    settings = server_settings.model_copy(update={"cassandra": own})
    make_keyspace(settings)
    return settings


@pytest.fixture(scope="module")
def session(live: Settings) -> Iterator[Session]:
    """A session of the database."""
    with connect(live) as opened:
        print(f"ScyllaDB {scylla_server.version(opened)}, SEED {SEED}")
        yield opened


@pytest.fixture(scope="module")
def types(live: Settings, session: Session) -> None:
    """Create the types that tables use."""
    for statement in TYPES:
        session.execute(statement.replace("{ks}", live.cassandra.keyspace), timeout=120)


@pytest.fixture(scope="module")
def raw(live: Settings) -> Iterator[Session]:
    """A session whose rows hold bytes: the driver cannot decode every row that a condition or SELECT answers."""
    with scylla_server.raw_session(live) as session:
        yield session


@pytest.fixture(scope="module")
def nodes(pytestconfig: pytest.Config) -> list[Node]:
    """All nodes of the cluster, whose files are on this machine."""
    folders, commands = (
        str(pytestconfig.getoption(option)).split(",") for option in ("--scylla-data", "--scylla-nodetool")
    )
    return [Node(Path(data), shlex.split(command)) for data, command in zip(folders, commands, strict=True)]
