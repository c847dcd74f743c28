"""Replication with SSTables: a table at once, and lists and counters afterwards. Oracle: the answers of the source."""

import re
import threading
import time
from pathlib import Path

import pytest

from tests.replication.conftest import Clusters
from tests.support.generate import KEYSPACE
from tests.support.programs import Program
from tests.support.replicated import Replicated
from tests.support.settings import write_settings
from writetime.bulk_load import node_import
from writetime.core.config import TableEntry
from writetime.core.errors import WritetimeError
from writetime.follow.replication import TableReplication
from writetime.lake.followed_tables import FollowedTable
from writetime.lake.replica_positions import Positions
from writetime.replication import replicating, sstable_carrier
from writetime.replication.cluster_sessions import ClusterSessions
from writetime.replication.replicated_part import ReplicatedPart
from writetime.replication.replicating import replicator
from writetime.verify.clusters import verify_clusters

pytestmark = pytest.mark.long

_TABLE = f"{KEYSPACE}.carried"
_LISTS = "(k int, c int, s list<int> STATIC, l list<text>, v int, w text, PRIMARY KEY (k, c))"
_COUNTERS = "(k int, c int, s counter STATIC, n counter, m counter, PRIMARY KEY (k, c))"


@pytest.fixture(autouse=True)
def without_table(clusters: Clusters) -> None:
    for node in (clusters.source, clusters.target):
        node.write_one(f"DROP TABLE IF EXISTS {_TABLE}")


@pytest.fixture
def lists(carried: Replicated) -> Replicated:
    carried.create("carried", f"CREATE TABLE {_TABLE} {_LISTS}")
    carried.write([f"INSERT INTO {_TABLE} (k, c, l, s, v) VALUES ({k}, 1, ['a', 'b'], [{k}], {k})" for k in range(40)])
    carried.capture()
    return carried


@pytest.fixture
def sends(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the batches that go by CQL."""
    found: list[int] = []
    original = replicating.send

    def send(*arguments: object) -> None:
        found.append(1)
        original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(replicating, "send", send)
    return found


def test_elements_keep_their_places(clusters: Clusters, lists: Replicated, sends: list[int]) -> None:
    for statement in (
        "UPDATE {t} SET l = l + ['c'], s = [7] + s WHERE k = 1 AND c = 1",
        "UPDATE {t} SET l = ['z'] + l WHERE k = 1 AND c = 1",
        "UPDATE {t} USING TTL 50000 SET l[1] = 'second' WHERE k = 1 AND c = 1",
        "DELETE l[0] FROM {t} WHERE k = 1 AND c = 1",
        "UPDATE {t} SET l = ['new'] WHERE k = 2 AND c = 1",
        "DELETE l FROM {t} WHERE k = 3 AND c = 1",
    ):
        lists.write([statement.format(t=_TABLE)])
        lists.capture()
        lists.replicate()
        clusters.assert_same(lists.lake.schema())
    assert not sends


def test_changes_without_lists_go_by_cql(clusters: Clusters, carried: Replicated, sends: list[int]) -> None:
    carried.create("carried", f"CREATE TABLE {_TABLE} {_LISTS}")
    carried.replicate()
    carried.write([f"UPDATE {_TABLE} SET v = 5 WHERE k = 1 AND c = 1", f"DELETE FROM {_TABLE} WHERE k = 2"])
    carried.capture()
    carried.replicate()
    clusters.assert_same(carried.lake.schema())
    assert sends


def test_batches_of_sstables_are_seconds_apart(clusters: Clusters, lists: Replicated) -> None:
    del clusters
    entry = FollowedTable(_TABLE, TableEntry(replicate_to="by_sstables"))
    sessions = ClusterSessions(lists.settings)
    replication = TableReplication(lists.settings, entry, "by_sstables", sessions, threading.Event())
    try:
        # After the first load, and after a batch.
        for is_soon in (True, False):
            replication.run()
            assert replication.step.fault is None
            replication.begin()
            time.sleep(2 * lists.settings.follow.events_seconds)
            assert replication.step.is_due is is_soon
            lists.write([f"UPDATE {_TABLE} SET l = l + ['c'] WHERE k = 1 AND c = 1"])
            lists.capture()
    finally:
        sessions.close()


def test_counters(clusters: Clusters, carried: Replicated) -> None:
    carried.create("carried", f"CREATE TABLE {_TABLE} {_COUNTERS}")
    query = f"SELECT k, c, s, n, m FROM {_TABLE}"
    for number in range(3):
        carried.write(
            [f"UPDATE {_TABLE} SET n = n + {k}, m = m - 2, s = s + 1 WHERE k = {k} AND c = 1" for k in range(9)]
        )
        carried.write([f"DELETE m FROM {_TABLE} WHERE k = {number} AND c = 1", f"DELETE FROM {_TABLE} WHERE k = 8"])
        carried.capture()
        carried.replicate()
        found, wanted = (sorted(node.session().execute(query)) for node in (clusters.target, clusters.source))
        assert found == wanted
        assert len(found) == 8
    report = verify_clusters(carried.settings, "by_sstables", _TABLE, 0, with_times=True)
    assert report.proven
    assert report.database_rows == 8


def test_killed_at_each_step(clusters: Clusters, lists: Replicated, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ends before the SSTables, before their import or after it, and then a run to the end."""
    steps = [(sstable_carrier, "write_sstables"), (sstable_carrier, "import_here"), (Positions, "write")]
    for number, (owner, name) in enumerate(steps):

        def fail(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(owner, name, fail)
            with pytest.raises(KeyboardInterrupt):
                lists.replicate()
        lists.replicate()
        clusters.assert_same(lists.lake.schema())
        lists.write([f"UPDATE {_TABLE} SET l = l + ['{number}'] WHERE k = {k} AND c = 1" for k in range(5)])
        lists.capture()
    lists.replicate()
    clusters.assert_same(lists.lake.schema())


def test_a_part_with_masked_columns(clusters: Clusters, lists: Replicated) -> None:
    part = ReplicatedPart("k % 2 = 1", {"v": "null", "w": "hash"})
    folder = lists.settings.clusters["by_sstables"].sstables
    with replicator(lists.settings, lists.lake, "by_sstables", part) as opened:
        opened.replicate(lists.lake)
        lists.write([f"UPDATE {_TABLE} SET l = l + ['c'], v = 1 WHERE k = {k} AND c = 1" for k in (1, 2)])
        lists.capture()
        opened.replicate(lists.lake)
    found = {row.k: (row.l, row.v) for row in clusters.target.session().execute(f"SELECT k, l, v FROM {_TABLE}")}
    assert found == {k: (["a", "b", "c"] if k == 1 else ["a", "b"], None) for k in range(1, 40, 2)}
    assert folder is not None
    assert not [file for file in Path(folder).rglob("*") if file.is_file()]


def test_nodes_of_other_machines(
    clusters: Clusters, lists: Replicated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They import the SSTables by a program of their own."""
    cluster = lists.settings.clusters["by_sstables"]
    monkeypatch.setattr(node_import, "is_here", lambda _: False)
    (tmp_path / "node").mkdir()
    write_settings(
        lists.settings.model_copy(update={"cassandra": cluster, "clusters": {}}), tmp_path / "node/writetime.toml"
    )
    program = Program(tmp_path / "node", "import", "import", "--follow", str(cluster.sstables))
    program.start()
    try:
        lists.replicate()
        lists.write([f"UPDATE {_TABLE} SET l = l + ['c'] WHERE k = 1 AND c = 1"])
        lists.capture()
        lists.replicate()
    finally:
        program.end()
    clusters.assert_same(lists.lake.schema())
    assert "2 SSTables imported" in program.tail()


def test_a_table_with_an_index(clusters: Clusters, lists: Replicated) -> None:
    lists.replicate()
    clusters.target.write_one(f"CREATE INDEX ON {_TABLE} (v)")
    lists.write([f"UPDATE {_TABLE} SET l = l + ['c'] WHERE k = 1 AND c = 1"])
    lists.capture()
    with pytest.raises(WritetimeError, match=re.escape(f"{_TABLE} has the index")):
        lists.replicate()
