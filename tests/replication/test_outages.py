"""`follow` replicates a table to a cluster that hangs, or whose connections end. Oracle: the rows of the target, and
the ids that were published.
"""

import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.replication.conftest import Clusters
from tests.support.captured import REPLICATION
from tests.support.following import following, has_published, rows_shown
from tests.support.proxy import Proxy
from tests.support.published import publish, schema_of
from tests.support.servers import frozen
from tests.support.waiting import wait_for
from writetime.clients import database
from writetime.clients.database import DRIVER_FAULTS
from writetime.clients.reconnection import ReconnectingCluster
from writetime.core.config import Settings, TableEntry
from writetime.core.server_settings import Cassandra, NamedCluster
from writetime.follow import program
from writetime.follow.program import Follower
from writetime.follow.steps import Step
from writetime.follow.turns import turns
from writetime.servers.process import free_port

pytestmark = pytest.mark.long

_LOOK_SECONDS = 0.3
_HOUR = 3600.0
_LONG_SECONDS = 1.0
# More than tables have turns at once.
_MANY = 5
few_turns = partial(turns, places=2, long_places=2, long_seconds=_LONG_SECONDS)


@dataclass
class Published:
    """Tables whose changes are published without a source, and that `follow` replicates through a proxy."""

    settings: Settings
    clusters: Clusters
    proxy: Proxy
    tables: Sequence[str]
    rows: int = 0

    @property
    def names(self) -> list[str]:
        return [f"{self.settings.cassandra.keyspace}.{table}" for table in self.tables]

    def publish(self, count: int) -> None:
        """Publish more rows of each table."""
        first, self.rows = self.rows, self.rows + count
        for table in self.tables:
            publish(self.settings, schema_of(self.settings, table), *range(first, self.rows))

    def wait_for_views_and_events(self) -> None:
        for name in self.names:
            wait_for(lambda name=name: rows_shown(self.settings, name) == self.rows, _LOOK_SECONDS)
            wait_for(lambda name=name: has_published(self.settings, name, self.rows), _LOOK_SECONDS)

    def wait_for_target(self) -> None:
        session = self.clusters.target.session()

        def is_complete(name: str) -> bool:
            # The table may be in the middle of its creation.
            with suppress(*DRIVER_FAULTS):
                return sorted(row.id for row in session.execute(f"SELECT id FROM {name}")) == [*range(self.rows)]
            return False

        for name in self.names:
            wait_for(partial(is_complete, name), _LOOK_SECONDS)


@pytest.fixture
def make(clusters: Clusters, kafka: Settings, tmp_path: Path) -> Iterator[Callable[[float, int], Published]]:
    """Return a function that makes tables, given the time limit of a request to the target (seconds), and a number."""
    keyspace = f"f{uuid.uuid4().hex[:12]}"
    clusters.target.write_one(f"CREATE KEYSPACE {keyspace} WITH replication = {REPLICATION}")
    with Proxy(Cassandra(port=clusters.target.port), random.Random(1)) as proxy:

        def made(request_seconds: float, count: int) -> Published:
            own = clusters.settings(tmp_path)
            tables = [f"t{number}" for number in range(count)]
            changes = {
                "kafka": kafka.kafka,
                "cassandra": own.cassandra.model_copy(update={"keyspace": keyspace, "port": free_port()}),
                "clusters": {"target": NamedCluster(port=proxy.port, request_timeout_seconds=request_seconds)},
                "follow": own.follow.model_copy(update={"events_seconds": 0.2, "view_seconds": 0.2}),
                "tables": {keyspace: dict.fromkeys(tables, TableEntry(replicate_to="target").model_dump())},
            }
            return Published(own.model_copy(update=changes), clusters, proxy, tables)

        yield made
    clusters.target.write_one(f"DROP KEYSPACE {keyspace}")


def replications(follower: Follower, names: Sequence[str]) -> list[Step]:
    wait_for(lambda: follower.tables.keys() == set(names))
    return [each.replication.step for each in follower.tables.values() if each.replication]


def test_the_views_and_the_row_events_do_not_wait_for_a_target(
    make: Callable[[float, int], Published], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go on during attempts of more replications than tables have turns at once. These end after an hour, or when
    the target answers.
    """
    monkeypatch.setattr(program, "turns", few_turns)
    # The driver would end the connections within a minute.
    monkeypatch.setattr(database, "ReconnectingCluster", partial(ReconnectingCluster, idle_heartbeat_interval=0))
    made = make(_HOUR, _MANY)
    made.publish(3)
    with following(made.settings, *made.names) as follower:
        steps = replications(follower, made.names)
        made.wait_for_target()
        wait_for(lambda: not any(step.is_behind for step in steps))
        with frozen(made.clusters.target):
            made.publish(10)
            made.wait_for_views_and_events()
            wait_for(lambda: all(step.is_behind for step in steps))
            # By now, a turn that has lasted since then is a long one.
            time.sleep(_LONG_SECONDS)
            made.publish(10)
            made.wait_for_views_and_events()
            assert {(step.is_behind, step.failures, step.fault) for step in steps} == {(True, 0, None)}
        made.wait_for_target()


OUTAGES: dict[str, Callable[[Published], AbstractContextManager[None]]] = {
    "connections end": lambda made: made.proxy.down(),
    "it hangs": lambda made: frozen(made.clusters.target),
}


@pytest.mark.parametrize("outage", OUTAGES)
def test_the_replication_catches_up_by_itself(make: Callable[[float, int], Published], outage: str) -> None:
    """Also if the target does not answer when the program starts."""
    made = make(1.0, 1)
    made.publish(3)
    with ExitStack() as running:
        with OUTAGES[outage](made):
            follower = running.enter_context(following(made.settings, *made.names))
            [step] = replications(follower, made.names)
            made.wait_for_views_and_events()
            wait_for(lambda: step.fault)
        made.wait_for_target()
        wait_for(lambda: step.fault is None)
        with OUTAGES[outage](made):
            made.publish(10)
            made.wait_for_views_and_events()
            wait_for(lambda: step.fault)
            made.publish(10)
            made.wait_for_views_and_events()
        made.wait_for_target()
        wait_for(lambda: not step.is_behind)
        assert step.fault is None
