"""`follow` replicates a table to a cluster that hangs, or whose connections end. Oracle: the rows of the target, and
the ids that were published.
"""

import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.replication.conftest import Clusters
from tests.support.captured import REPLICATION
from tests.support.following import following, has_published, rows_shown
from tests.support.proxy import Proxy
from tests.support.published import publish, schema_of
from tests.support.servers import frozen
from tests.support.waiting import wait_for
from writetime.clients.database import DRIVER_FAULTS
from writetime.core.config import Settings, TableEntry
from writetime.core.server_settings import Cassandra
from writetime.follow.program import Follower
from writetime.follow.steps import Step
from writetime.servers.process import free_port

pytestmark = pytest.mark.long

_LOOK_SECONDS = 0.3
_HOUR = 3600.0


@dataclass
class Published:
    """A table whose changes are published without a source, and that `follow` replicates through a proxy."""

    settings: Settings
    clusters: Clusters
    proxy: Proxy
    rows: int = 0

    @property
    def name(self) -> str:
        return f"{self.settings.cassandra.keyspace}.a"

    def publish(self, count: int) -> None:
        """Publish more rows."""
        first, self.rows = self.rows, self.rows + count
        publish(self.settings, schema_of(self.settings, "a"), *range(first, self.rows))

    def wait_for_view_and_events(self) -> None:
        wait_for(lambda: rows_shown(self.settings, self.name) == self.rows, _LOOK_SECONDS)
        wait_for(lambda: has_published(self.settings, self.name, self.rows), _LOOK_SECONDS)

    def wait_for_target(self) -> None:
        session = self.clusters.target.session()

        def is_complete() -> bool:
            # The table may be in the middle of its creation.
            with suppress(*DRIVER_FAULTS):
                return sorted(row.id for row in session.execute(f"SELECT id FROM {self.name}")) == [*range(self.rows)]
            return False

        wait_for(is_complete, _LOOK_SECONDS)


@pytest.fixture
def make(clusters: Clusters, kafka: Settings, tmp_path: Path) -> Iterator[Callable[[float], Published]]:
    """Return a function that makes a table, given the time limit of a request to the target (seconds)."""
    keyspace = f"f{uuid.uuid4().hex[:12]}"
    clusters.target.write_one(f"CREATE KEYSPACE {keyspace} WITH replication = {REPLICATION}")
    with Proxy(Cassandra(port=clusters.target.port), random.Random(1)) as proxy:

        def made(request_seconds: float) -> Published:
            own = clusters.settings(tmp_path)
            changes = {
                "kafka": kafka.kafka,
                "cassandra": own.cassandra.model_copy(update={"keyspace": keyspace, "port": free_port()}),
                "clusters": {"target": Cassandra(port=proxy.port, request_timeout_seconds=request_seconds)},
                "follow": own.follow.model_copy(update={"events_seconds": 0.2, "view_seconds": 0.2}),
                "tables": {keyspace: {"a": TableEntry(replicate_to="target").model_dump()}},
            }
            return Published(own.model_copy(update=changes), clusters, proxy)

        yield made
    clusters.target.write_one(f"DROP KEYSPACE {keyspace}")


def step_of(follower: Follower, name: str) -> Step:
    wait_for(lambda: name in follower.tables)
    replication = follower.tables[name].replication
    assert replication is not None
    return replication.step


def test_the_view_and_the_row_events_do_not_wait_for_a_target(make: Callable[[float], Published]) -> None:
    """They go on during an attempt of the replication, which ends after an hour, or when the target answers."""
    table = make(_HOUR)
    table.publish(3)
    with following(table.settings, table.name) as follower:
        step = step_of(follower, table.name)
        table.wait_for_target()
        wait_for(lambda: not step.is_behind)
        with frozen(table.clusters.target):
            for _ in range(2):
                table.publish(10)
                table.wait_for_view_and_events()
            assert (step.is_behind, step.failures, step.fault) == (True, 0, None)
        table.wait_for_target()


OUTAGES: dict[str, Callable[[Published], AbstractContextManager[None]]] = {
    "connections end": lambda table: table.proxy.down(),
    "it hangs": lambda table: frozen(table.clusters.target),
}


@pytest.mark.parametrize("outage", OUTAGES)
def test_the_replication_catches_up_by_itself(make: Callable[[float], Published], outage: str) -> None:
    """Also if the target does not answer when the program starts."""
    table = make(1.0)
    table.publish(3)
    with ExitStack() as running:
        with OUTAGES[outage](table):
            follower = running.enter_context(following(table.settings, table.name))
            step = step_of(follower, table.name)
            table.wait_for_view_and_events()
            wait_for(lambda: step.fault)
        table.wait_for_target()
        wait_for(lambda: step.fault is None)
        with OUTAGES[outage](table):
            table.publish(10)
            table.wait_for_view_and_events()
            wait_for(lambda: step.fault)
            table.publish(10)
            table.wait_for_view_and_events()
        table.wait_for_target()
        wait_for(lambda: not step.is_behind)
        assert step.fault is None
