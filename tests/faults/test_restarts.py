"""A server crashes and restarts while events are produced and stored."""

from collections.abc import Callable

import pytest

from tests.faults.stage import MODES, Stage
from tests.support.servers import kill
from writetime.servers.cassandra import CassandraServer
from writetime.servers.kafka import KafkaServer
from writetime.servers.process import EmbeddedServer

pytestmark = pytest.mark.long

# More than a sink stores until the crash, if each answer is late.
EVENTS, EVENTS_LONG = 600, 1500


@pytest.mark.cassandra_only("kills the embedded database")
@pytest.mark.parametrize("mode", MODES)
def test_cassandra_crash_mid_run(stage: Callable[..., Stage], mode: str, is_long: bool) -> None:
    s = stage(mode=mode)
    s.proxy.delay = 0.05
    s.ledger.events(EVENTS_LONG if is_long else EVENTS, users=50, repeated=0.05)
    s.sink()
    s.wait_for_writes(s.rng.randrange(20, 60))
    _crash(CassandraServer(s.settings), s)
    s.proxy.delay = 0.0
    s.finish()


def test_broker_crash_mid_run(stage: Callable[..., Stage], is_long: bool) -> None:
    s = stage(mode="lwt-batch")
    s.proxy.delay = 0.05
    s.ledger.events(EVENTS_LONG if is_long else EVENTS, users=50, repeated=0.05)
    s.ledger.flush()
    s.sink()
    s.wait_for_writes(s.rng.randrange(20, 60))
    _crash(KafkaServer(s.settings), s)
    s.proxy.delay = 0.0
    s.ledger.events(150, users=50)
    s.finish()


def _crash(server: EmbeddedServer, s: Stage) -> None:
    """Kill a server while events are on their way, and start it again."""
    try:
        s.ledger.events(150, users=50)
        kill(server, s.settings)
        s.ledger.events(150, users=50)
    finally:
        server.start()
