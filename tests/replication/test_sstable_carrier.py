"""Replication with SSTables: a table at once, and lists and counters afterwards.

Oracle: the answers of the source.
"""

import random
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from cassandra.query import SimpleStatement
from cassandra.timestamps import MonotonicTimestampGenerator

from tests.replication.conftest import Clusters
from tests.support.generate import KEYSPACE, SEED
from tests.support.programs import Program
from tests.support.replicated import Replicated
from tests.support.settings import write_settings
from writetime.bulk_load import node_import
from writetime.bulk_load.sstables import RestoreManifest, Target
from writetime.core.config import TableEntry
from writetime.core.errors import WritetimeError
from writetime.delta.bucketed_table import Conflict
from writetime.follow.replication import TableReplication
from writetime.lake import state
from writetime.lake.followed_tables import FollowedTable
from writetime.lake.replica_positions import Positions, ReplicationPosition
from writetime.replication import replicating, sstable_carrier
from writetime.replication.cluster_sessions import ClusterSessions
from writetime.replication.replicated_part import ReplicatedPart
from writetime.replication.replicating import TableReplicator, replicator
from writetime.verify.clusters import verify_clusters

pytestmark = pytest.mark.long

_TABLE = f"{KEYSPACE}.carried"
_LISTS = "(k int, c int, s list<int> STATIC, l list<text>, v int, w text, PRIMARY KEY (k, c))"
_BATCHES = 6
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


def test_deletions_of_counters(clusters: Clusters, carried: Replicated) -> None:
    """A batch has a deletion alone, of rows whose counters came in an earlier one."""
    carried.create("carried", f"CREATE TABLE {_TABLE} {_COUNTERS}")
    carried.write([f"UPDATE {_TABLE} SET n = n + 5, s = s + 1 WHERE k = 1 AND c = {c}" for c in (1, 2)])
    for statement, left in (("AND c > 1", [(1, 1, 2, 5)]), ("", [])):
        carried.capture()
        carried.replicate()
        carried.write([f"DELETE FROM {_TABLE} WHERE k = 1 {statement}"])
        carried.capture()
        carried.replicate()
        query = f"SELECT k, c, s, n FROM {_TABLE}"
        found, wanted = (list(node.session().execute(query)) for node in (clusters.target, clusters.source))
        assert found == wanted == left


def test_counters_of_clients_whose_clocks_differ(clusters: Clusters, carried: Replicated) -> None:
    """The later state of a part has the earlier write time, and the lake keeps both."""
    carried.create("carried", f"CREATE TABLE {_TABLE} {_COUNTERS}")
    session, now = clusters.source.session(), time.time_ns() // 1000
    for at in (now, now - 10_000, now - 5_000):
        update = SimpleStatement(f"UPDATE {_TABLE} SET n = n + 5 WHERE k = 1 AND c = 1")
        session.cluster.timestamp_generator = lambda at=at: at
        session.execute(update)
        carried.capture()
    session.cluster.timestamp_generator = MonotonicTimestampGenerator()
    carried.replicate()
    query = f"SELECT k, c, s, n FROM {_TABLE}"
    assert list(clusters.target.session().execute(query)) == list(session.execute(query)) == [(1, 1, None, 15)]


def test_random_counters(clusters: Clusters, carried: Replicated) -> None:
    """Clients' clocks differ by some milliseconds. A deleted row is not written to again: what it has then is for the
    database to decide.
    """
    carried.create("carried", f"CREATE TABLE {_TABLE} {_COUNTERS}")
    session, chooser, alive = clusters.source.session(), random.Random(SEED), {(k, c) for k in range(8) for c in (1, 2)}
    query = f"SELECT k, c, s, n, m FROM {_TABLE}"
    try:
        for _ in range(_BATCHES):
            for _ in range(30):
                (k, c), name = chooser.choice(sorted(alive)), chooser.choice("nm")
                at = time.time_ns() // 1000 + chooser.randrange(-50_000, 50_000)
                session.cluster.timestamp_generator = lambda at=at: at
                where = f"WHERE k = {k} AND c = {c}"
                session.execute(f"UPDATE {_TABLE} SET {name} = {name} + {chooser.randrange(-9, 9)} {where}")
                if chooser.random() < 0.1 and len(alive) > 1:
                    session.execute(f"DELETE FROM {_TABLE} {where}")
                    alive.remove((k, c))
            carried.capture()
            if chooser.random() < 0.5:
                state.fold(carried.lake)
            carried.replicate()
            found, wanted = (sorted(node.session().execute(query)) for node in (clusters.target, clusters.source))
            assert found == wanted
    finally:
        session.cluster.timestamp_generator = MonotonicTimestampGenerator()


def test_a_load_of_several_transfers_continues(
    clusters: Clusters, lists: Replicated, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = lists.settings, clusters.target.session(), lists.lake, "by_sstables"
    original, imports = sstable_carrier.import_here, []

    def import_here(*of_import: Any) -> list[str]:
        imports.append(1)
        if len(imports) == 2:
            raise KeyboardInterrupt
        return original(*of_import)

    monkeypatch.setattr(sstable_carrier, "import_here", import_here)
    with pytest.raises(KeyboardInterrupt):
        TableReplicator(*arguments, load_bytes=1).replicate(lists.lake)
    position = Positions(lists.lake, "by_sstables").read()
    assert position is not None
    assert (position.loaded, position.transfer is None) == ((0,), False)
    TableReplicator(*arguments, load_bytes=1).replicate(lists.lake)
    assert len(imports) == 3
    clusters.assert_same(lists.lake.schema())


def test_a_load_again_after_a_kill_and_a_truncation(
    clusters: Clusters, lists: Replicated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SSTables of the earlier load were imported before the truncation."""
    writes = []

    def write(self: Positions, position: ReplicationPosition) -> None:
        writes.append(position)
        if len(writes) == 3:
            raise KeyboardInterrupt
        original(self, position)

    original = Positions.write
    with monkeypatch.context() as patched:
        patched.setattr(Positions, "write", write)
        with pytest.raises(KeyboardInterrupt):
            lists.replicate()
    assert [each.transfer is None for each in writes] == [True, False, True]
    clusters.target.write_one(f"TRUNCATE {_TABLE}")
    lists.replicate(again=True)
    clusters.assert_same(lists.lake.schema())
    assert not [file for file in (tmp_path / "sstables").rglob("*") if file.is_file()]


def test_a_ring_that_changes_during_an_import(
    clusters: Clusters, lists: Replicated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SSTables are written again, for the nodes of now."""
    looks, writes = [], []

    def target_of(*arguments: Any) -> Target:
        looks.append(1)
        if len(looks) == 2:
            raise WritetimeError("other token ranges")
        return original(*arguments)

    def write_sstables(*arguments: Any) -> RestoreManifest:
        writes.append(1)
        return write(*arguments)

    original, write = sstable_carrier.target_of, sstable_carrier.write_sstables
    monkeypatch.setattr(sstable_carrier, "target_of", target_of)
    monkeypatch.setattr(sstable_carrier, "write_sstables", write_sstables)
    lists.replicate()
    assert len(writes) == 2
    clusters.assert_same(lists.lake.schema())


@pytest.mark.parametrize("change", ["v = 5", "l = l + ['c']"], ids=["by CQL", "as SSTables"])
def test_a_table_that_is_created_again_while_it_is_replicated(
    clusters: Clusters, lists: Replicated, change: str
) -> None:
    with replicator(lists.settings, lists.lake, "by_sstables") as opened:
        opened.replicate(lists.lake)
        clusters.target.write_one(f"DROP TABLE {_TABLE}")
        clusters.target.write_one(f"CREATE TABLE {_TABLE} {_LISTS}")
        lists.write([f"UPDATE {_TABLE} SET {change} WHERE k = 1 AND c = 1"])
        lists.capture()
        with pytest.raises(WritetimeError, match="was dropped and created again in by_sstables"):
            opened.replicate(lists.lake)


def test_two_programs(clusters: Clusters, lists: Replicated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program finishes the transfer that one waits for, and then writes the next one."""
    with monkeypatch.context() as patched, replicator(lists.settings, lists.lake, "by_sstables") as one:
        patched.setattr(node_import, "is_here", lambda _: False)
        assert one.replicate(lists.lake, wait=False)
        assert one.is_waiting
        patched.undo()
        lists.replicate()
        lists.write([f"UPDATE {_TABLE} SET l = l + ['c'] WHERE k = {k} AND c = 1" for k in range(9)])
        lists.capture()
        with pytest.raises(Conflict):
            one.replicate(lists.lake)
        assert one.replicate(lists.lake)
    clusters.assert_same(lists.lake.schema())
    assert lists.replicate() == 0


def test_another_program_removes_the_sstables_meanwhile(lists: Replicated, monkeypatch: pytest.MonkeyPatch) -> None:
    imports = []

    def import_here(*arguments: Any) -> list[str]:
        imports.append(1)
        if len(imports) > 1:
            return original(*arguments)
        lists.replicate()
        raise WritetimeError("an SSTable is missing")

    original = sstable_carrier.import_here
    monkeypatch.setattr(sstable_carrier, "import_here", import_here)
    with replicator(lists.settings, lists.lake, "by_sstables") as one, pytest.raises(Conflict):
        one.replicate(lists.lake)


@pytest.mark.parametrize("has_list", [False, True])
def test_what_sstables_cannot_hold_goes_by_cql(
    clusters: Clusters, carried: Replicated, monkeypatch: pytest.MonkeyPatch, has_list: bool
) -> None:
    def refuse(*_: object) -> None:
        raise WritetimeError("an expiry after 2038")

    monkeypatch.setattr(sstable_carrier, "write_sstables", refuse)
    carried.create("carried", f"CREATE TABLE {_TABLE} (k int PRIMARY KEY, v int, l list<int>)")
    carried.write(
        [f"INSERT INTO {_TABLE} (k, v{', l' if has_list else ''}) VALUES (1, 1{', [1]' if has_list else ''})"]
    )
    carried.capture()
    if has_list:
        with pytest.raises(WritetimeError, match="an expiry after 2038"):
            carried.replicate()
    else:
        carried.replicate()
        clusters.assert_same(carried.lake.schema())


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
    assert re.findall(r"\d SSTables? imported", program.tail()) == ["2 SSTables imported", "1 SSTable imported"]


def test_a_table_with_an_index(clusters: Clusters, lists: Replicated) -> None:
    lists.replicate()
    clusters.target.write_one(f"CREATE INDEX ON {_TABLE} (v)")
    lists.write([f"UPDATE {_TABLE} SET l = l + ['c'] WHERE k = 1 AND c = 1"])
    lists.capture()
    with pytest.raises(WritetimeError, match=re.escape(f"{_TABLE} has the index")):
        lists.replicate()
