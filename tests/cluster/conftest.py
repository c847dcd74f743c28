"""Three nodes and three brokers for the tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.cluster.servers import Servers, need_addresses


@pytest.fixture(scope="package")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """All running; they stop with the last test of the folder."""
    need_addresses()
    found = Servers(tmp_path_factory.mktemp("cluster"))
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.fixture
def servers(started: Servers) -> Servers:
    """Those, each of which sees the others."""
    started.wait_for_all()
    return started
