"""A node that is down for a while, or killed: the agent connects again, and publishes its writes.

Oracle: the database: the node's rows by CQL.
"""

import random
import signal
import time

import pytest

from tests.support.captured import Captured
from tests.support.generate import SEED
from tests.support.proxy import Proxy
from writetime.clients import database

# Time runs so much faster here: between attempts to connect, and in outages.
_FASTER = 60
# How many there are, and how long the first one is. By default the driver would give up a node after two minutes.
_OUTAGES, _OUTAGES_LONG = 3, 30
_LONGEST_SECONDS, _LONGEST_SECONDS_LONG = 240, 600
_KILLS = 30


def test_an_agent_publishes_again_after_each_outage(
    captured: Captured, monkeypatch: pytest.MonkeyPatch, is_long: bool
) -> None:
    shortest, longest = database.RECONNECT_SECONDS
    monkeypatch.setattr(database, "RECONNECT_SECONDS", (shortest / _FASTER, longest / _FASTER))
    rng = random.Random(SEED)
    outages, most = (_OUTAGES_LONG, _LONGEST_SECONDS_LONG) if is_long else (_OUTAGES, _LONGEST_SECONDS)
    with Proxy(captured.settings.cassandra, rng) as proxy:
        cassandra = captured.settings.cassandra.model_copy(update={"port": proxy.port})
        captured.settings = captured.settings.model_copy(update={"cassandra": cassandra})
        with captured.agent():
            captured.settle()
            for i in range(outages):
                seconds = most if i == 0 else most ** rng.random()
                with proxy.down():
                    time.sleep(seconds / _FASTER)
                captured.settle()
    captured.assert_same("marks")


@pytest.mark.long_only("kills and starts its node again and again")
def test_an_agent_publishes_again_after_each_kill_of_its_node(captured: Captured) -> None:
    with captured.agent():
        captured.settle()
        for _ in range(_KILLS):
            captured.node.nodetool("flush", "system_schema")
            captured.node.stop(signal.SIGKILL)
            captured.node.start()
            captured.settle()
    captured.assert_same("marks")
