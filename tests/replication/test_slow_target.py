"""A target that takes its time to answer. Oracle: the rests of TTLs that both clusters report for one second."""

import random
import time
from pathlib import Path

import pytest

from tests.replication.conftest import Clusters
from tests.support.generate import KEYSPACE
from tests.support.proxy import Proxy
from tests.support.replicated import Replicated
from writetime.core.server_settings import NamedCluster
from writetime.replication.replicating import replicator

pytestmark = pytest.mark.long

_TABLE = f"{KEYSPACE}.slow"
# Each partition is a request, and 32 are sent at once. So both buckets take some seconds.
_PARTITIONS, _DELAY_SECONDS, _TTL_SECONDS = 400, 1.0, 5_000
# A request waits until another one is answered; and expiries are whole seconds.
_LATER_SECONDS = 4


def test_ttls_do_not_grow_while_the_target_is_slow(clusters: Clusters, tmp_path: Path) -> None:
    for node in (clusters.source, clusters.target):
        node.write_one(f"DROP TABLE IF EXISTS {_TABLE}")
    with Proxy(NamedCluster(port=clusters.target.port), random.Random(1)) as proxy:
        slow = {"target": NamedCluster(port=proxy.port)}
        settings = clusters.settings(tmp_path).model_copy(update={"clusters": slow})
        replicated = Replicated(clusters.source, settings)
        schema = replicated.create("slow", f"CREATE TABLE {_TABLE} (k int PRIMARY KEY, v int)")
        with replicator(settings, replicated.lake, "target") as opened:
            for keys in (range(1), range(_PARTITIONS)):
                replicated.write(
                    [f"INSERT INTO {_TABLE} (k, v) VALUES ({k}, {k}) USING TTL {_TTL_SECONDS}" for k in keys]
                )
                replicated.capture()
                begun = time.monotonic()
                opened.replicate(replicated.lake)
                # Not before the statements are prepared, each of which takes an answer.
                proxy.delay = _DELAY_SECONDS
    assert time.monotonic() - begun > 2 * _LATER_SECONDS
    wanted, found = clusters.rests_of_ttls(schema, "v")
    assert found.keys() == wanted.keys()
    later = {found[key] - wanted[key] for key in wanted}
    assert 0 <= min(later) <= max(later) <= _LATER_SECONDS
