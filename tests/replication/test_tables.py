"""Single rules of the replication of a table to another cluster. Oracle: the answers of the source."""

import hashlib
import re
import time

import pytest
from cassandra.cluster import Session

from tests.replication.conftest import Clusters
from tests.support.generate import KEYSPACE
from tests.support.replicated import Replicated
from writetime.changes.starts import Start, Truncation
from writetime.core.errors import WritetimeError
from writetime.delta.bucketed_table import Conflict
from writetime.lake import state
from writetime.lake.generation import renew
from writetime.lake.replica_positions import Positions
from writetime.lake.views import time_now
from writetime.replication import replicating
from writetime.replication.replicated_part import ReplicatedPart
from writetime.replication.replicating import replicator

pytestmark = pytest.mark.long

_TABLE = f"{KEYSPACE}.t"
_COLUMNS = """(k int, c int, d text, s int STATIC, v int, w text, m map<text, int>, e set<int>, u inner,
 PRIMARY KEY (k, c, d)) WITH CLUSTERING ORDER BY (c DESC, d ASC)"""


@pytest.fixture
def table(clusters: Clusters, replicated: Replicated) -> Replicated:
    for node in (clusters.source, clusters.target):
        node.write_one(f"DROP TABLE IF EXISTS {_TABLE}")
    replicated.create("t", f"CREATE TABLE {_TABLE} {_COLUMNS}")
    return replicated


def same(clusters: Clusters, table: Replicated) -> None:
    clusters.assert_same(table.lake.schema())


def test_ranges_that_meet_leave_the_static_row(clusters: Clusters, table: Replicated) -> None:
    table.write(
        [f"INSERT INTO {_TABLE} (k, c, d, s, v) VALUES (1, {c}, 'x', 1, {c}) USING TIMESTAMP 5" for c in range(9)]
    )
    table.capture()
    table.replicate()
    # Together they cover all rows.
    table.write([f"DELETE FROM {_TABLE} USING TIMESTAMP 10 WHERE k = 1 AND c {bound} 4" for bound in ("<", ">=")])
    table.capture()
    table.replicate()
    same(clusters, table)
    assert clusters.target.session().execute(f"SELECT s FROM {_TABLE}").one().s == 1


def test_each_kind_of_part(clusters: Clusters, table: Replicated) -> None:
    row = "k = 1 AND c = 1 AND d = 'x'"
    statements = [
        f"INSERT INTO {_TABLE} (k, c, d, m, e, u) VALUES (1, 1, 'x', {{'a': 1, 'b': 2}}, {{1, 2}}, {{a: 1, b: 'x'}}) "
        "USING TIMESTAMP 10",
        f"UPDATE {_TABLE} USING TIMESTAMP 20 AND TTL 50000 SET m['c'] = 3, e = e + {{3}}, u.a = 2 WHERE {row}",
        f"DELETE m['a'] FROM {_TABLE} USING TIMESTAMP 30 WHERE {row}",
        f"UPDATE {_TABLE} USING TIMESTAMP 30 SET e = e - {{1}}, u.b = null, m[''] = 0 WHERE {row}",
        f"UPDATE {_TABLE} USING TIMESTAMP 40 SET m = {{'z': 9}} WHERE {row}",
        f"DELETE u FROM {_TABLE} USING TIMESTAMP 40 WHERE {row}",
        f"UPDATE {_TABLE} USING TIMESTAMP 50 SET w = '', v = null WHERE {row}",
    ]
    for statement in statements:
        table.write([statement])
        table.capture()
        table.replicate()
        same(clusters, table)


def test_a_row_that_expired_before_it_is_replicated(clusters: Clusters, table: Replicated) -> None:
    insert = f"INSERT INTO {_TABLE} (k, c, d) VALUES (1, 1, 'x')"
    table.write([f"{insert} USING TIMESTAMP 5"])
    table.capture()
    table.replicate()
    table.write([f"{insert} USING TIMESTAMP 10 AND TTL 1"])
    time.sleep(2)
    table.capture()
    table.replicate()
    time.sleep(2)
    same(clusters, table)
    assert not list(clusters.target.session().execute(f"SELECT * FROM {_TABLE}"))


def test_an_older_write_that_comes_later(clusters: Clusters, table: Replicated) -> None:
    """The target has dropped the deletion that covers it, and the lake has it."""
    session: Session = clusters.target.session()
    table.write([f"INSERT INTO {_TABLE} (k, c, d, v) VALUES (1, 1, 'x', 1) USING TIMESTAMP 5"])
    table.write([f"DELETE FROM {_TABLE} USING TIMESTAMP 10 WHERE k = 1"])
    table.capture()
    table.replicate()
    state.fold(table.lake)
    session.execute(f"ALTER TABLE {_TABLE} WITH gc_grace_seconds = 0")
    clusters.target.nodetool("flush")
    clusters.target.nodetool("compact", KEYSPACE, "t")
    # The source still has the deletion, too.
    table.write([f"INSERT INTO {_TABLE} (k, c, d, v) VALUES (1, 1, 'x', 2) USING TIMESTAMP 7"])
    table.capture()
    table.replicate()
    assert not list(session.execute(f"SELECT * FROM {_TABLE}"))


def test_columns_follow(clusters: Clusters, table: Replicated) -> None:
    table.write([f"INSERT INTO {_TABLE} (k, c, d, v, w) VALUES (1, 1, 'x', 1, 'w')"])
    table.capture()
    table.replicate()
    for statement, written in (
        (f"ALTER TABLE {_TABLE} ADD n frozen<outer>", "n) VALUES (2, 1, 'x', {several: {'a': 1}})"),
        (f"ALTER TABLE {_TABLE} ADD t text STATIC", "t) VALUES (2, 1, 'x', 't')"),
        (f"ALTER TYPE {KEYSPACE}.inner ADD again int", "u) VALUES (2, 1, 'x', {again: 7})"),
        (f"ALTER TABLE {_TABLE} DROP w", "v) VALUES (3, 1, 'x', 3)"),
        (f"ALTER TABLE {_TABLE} ADD w text", "w) VALUES (4, 1, 'x', 'again')"),
        (f"ALTER TABLE {_TABLE} DROP w; ALTER TABLE {_TABLE} ADD w text", "w) VALUES (5, 1, 'x', 'again')"),
    ):
        clusters.source.write(statement.split("; "))
        table.write([f"INSERT INTO {_TABLE} (k, c, d, {written}"])
        table.capture()
        table.replicate()
        same(clusters, table)


def test_a_load_that_ends_early(clusters: Clusters, table: Replicated, monkeypatch: pytest.MonkeyPatch) -> None:
    table.write([f"INSERT INTO {_TABLE} (k, c, d, v) VALUES ({k}, 1, 'x', {k})" for k in range(40)])
    table.capture()
    sends = []

    def send(*arguments: object) -> None:
        sends.append(1)
        if len(sends) == 2:
            raise KeyboardInterrupt
        original(*arguments)  # type: ignore[arg-type]

    original = replicating.send
    monkeypatch.setattr(replicating, "send", send)
    with pytest.raises(KeyboardInterrupt):
        table.replicate()
    table.write([f"UPDATE {_TABLE} SET v = {k + 1} WHERE k = {k} AND c = 1 AND d = 'x'" for k in range(40)])
    table.capture()
    position = Positions(table.lake, "target").read()
    assert position is not None
    assert position.loaded == (0,)
    # The bucket that is not loaded, and then the changes since the load began.
    table.replicate()
    same(clusters, table)
    assert table.replicate() == 0


def test_two_programs(clusters: Clusters, table: Replicated) -> None:
    table.write([f"INSERT INTO {_TABLE} (k, c, d, v) VALUES (1, 1, 'x', 1)"])
    table.capture()
    with (
        replicator(table.settings, table.lake, "target") as one,
        replicator(table.settings, table.lake, "target") as other,
    ):
        one.replicate(table.lake)
        other.replicate(table.lake)
        table.write([f"INSERT INTO {_TABLE} (k, c, d, v) VALUES (2, 1, 'x', 1)"])
        table.capture()
        one.replicate(table.lake)
        table.write([f"INSERT INTO {_TABLE} (k, c, d, v) VALUES (3, 1, 'x', 1)"])
        table.capture()
        with pytest.raises(Conflict):
            other.replicate(table.lake)
        assert other.replicate(table.lake)
    same(clusters, table)


def test_after_a_truncation_it_stops(clusters: Clusters, table: Replicated) -> None:
    table.write([f"INSERT INTO {_TABLE} (k, c, d, v) VALUES (1, 1, 'x', 1)"])
    table.capture()
    table.replicate()
    assert renew(table.lake, {"a": Start(truncation=Truncation(time_now(), 1, 0))})
    with pytest.raises(WritetimeError, match=f"TRUNCATE it in target, and run `writetime replicate {_TABLE} --again`"):
        table.replicate()
    clusters.target.write_one(f"TRUNCATE {_TABLE}")
    clusters.source.write_one(f"TRUNCATE {_TABLE}")
    table.write([f"INSERT INTO {_TABLE} (k, c, d, v) VALUES (2, 1, 'x', 1)"])
    table.capture()
    table.replicate(again=True)
    same(clusters, table)


def test_a_first_load_needs_an_empty_table(clusters: Clusters, table: Replicated) -> None:
    clusters.target.write_one(f"CREATE TABLE {_TABLE} {_COLUMNS}")
    clusters.target.write_one(f"INSERT INTO {_TABLE} (k, c, d) VALUES (9, 1, 'x')")
    with pytest.raises(WritetimeError, match=r"has rows in target.*TRUNCATE it in target"):
        table.replicate()


def test_another_part_needs_another_load(clusters: Clusters, table: Replicated) -> None:
    table.write([f"INSERT INTO {_TABLE} (k, c, d, w) VALUES (1, 1, 'x', 'clear')"])
    table.capture()
    table.replicate()
    masked = ReplicatedPart(mask={"w": "hash"})
    with replicator(table.settings, table.lake, "target", masked) as opened:
        with pytest.raises(WritetimeError, match=r"replicate_mask of generated\.t has changed"):
            opened.replicate(table.lake)
        clusters.target.write_one(f"TRUNCATE {_TABLE}")
        assert opened.replicate(table.lake, again=True)
    assert clusters.target.session().execute(f"SELECT w FROM {_TABLE}").one().w != "clear"


def test_all_has_expired_and_was_dropped(clusters: Clusters, table: Replicated) -> None:
    clusters.source.write_one(f"ALTER TABLE {_TABLE} WITH gc_grace_seconds = 0")
    table.write([f"INSERT INTO {_TABLE} (k, c, d) VALUES (1, 1, 'x')"])
    table.capture()
    table.replicate()
    table.write([f"DELETE FROM {_TABLE} WHERE k = 1"])
    table.capture()
    state.fold(table.lake)
    state.drop_tombstones(table.lake, time_now())
    clusters.target.write_one(f"ALTER TABLE {_TABLE} WITH gc_grace_seconds = 0")
    table.replicate()
    same(clusters, table)


def test_a_target_that_was_created_again(clusters: Clusters, table: Replicated) -> None:
    table.write([f"INSERT INTO {_TABLE} (k, c, d, v) VALUES (1, 1, 'x', 1)"])
    table.capture()
    table.replicate()
    clusters.target.write_one(f"DROP TABLE {_TABLE}")
    with pytest.raises(WritetimeError, match="was dropped and created again in target"):
        table.replicate()


def test_a_part_with_masked_columns(clusters: Clusters, table: Replicated) -> None:
    row = "c = 1 AND d = 'x'"
    part = ReplicatedPart("k % 2 = 1", {"w": "hash", "m": "null", "v": "null"})
    with replicator(table.settings, table.lake, "target", part) as opened:
        table.write(
            [
                f"INSERT INTO {_TABLE} (k, c, d, s, v, w, m) VALUES ({k}, 1, 'x', {k}, {k}, 'w{k}', {{'a': 1}})"
                for k in range(4)
            ]
        )
        table.capture()
        opened.replicate(table.lake)
        table.write([f"UPDATE {_TABLE} SET w = null WHERE k = 1 AND {row}", f"DELETE FROM {_TABLE} WHERE k = 2"])
        table.capture()
        opened.replicate(table.lake)
    found = clusters.target.session().execute(f"SELECT k, s, v, w, m FROM {_TABLE}")
    hashed = hashlib.sha256(b"w3").hexdigest()
    assert {tuple(each) for each in found} == {(1, 1, None, None, None), (3, 3, None, hashed, None)}


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (ReplicatedPart("v = 1"), "replicate_where uses other columns than those of the partition key"),
        (ReplicatedPart("k ="), "or is no condition"),
        (ReplicatedPart(mask={"k": "null"}), "replicate_mask names k, which is no static or regular column"),
        (ReplicatedPart(mask={"v": "hash"}), 'set replicate_mask.v = "null"'),
    ],
)
def test_a_part_that_cannot_be_selected(table: Replicated, part: ReplicatedPart, reason: str) -> None:
    with pytest.raises(WritetimeError, match=re.escape(reason)):
        part.require_fit(table.lake.schema())


def test_a_refused_write_names_its_partition(clusters: Clusters, table: Replicated) -> None:
    table.replicate()
    # An index refuses large values.
    clusters.target.write_one(f"CREATE INDEX ON {_TABLE} (w)")
    table.write([f"INSERT INTO {_TABLE} (k, c, d, w) VALUES (7, 1, 'x', '{70_000 * 'w'}')"])
    table.capture()
    with pytest.raises(WritetimeError, match=r"Cannot index value .*the serialised key 0x00000007"):
        table.replicate()


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ("k int PRIMARY KEY, l list<int>", "its column l is a list"),
        ("k int PRIMARY KEY, n counter", "its column n is a counter"),
    ],
)
def test_refused_columns(clusters: Clusters, replicated: Replicated, columns: str, reason: str) -> None:
    clusters.source.write_one(f"DROP TABLE IF EXISTS {KEYSPACE}.refused")
    replicated.create("refused", f"CREATE TABLE {KEYSPACE}.refused ({columns})")
    with pytest.raises(WritetimeError, match=reason):
        replicated.replicate()


def test_a_target_with_other_columns(clusters: Clusters, table: Replicated) -> None:
    clusters.target.write_one(f"CREATE TABLE {_TABLE} (k int, c int, d text, v text, PRIMARY KEY (k, c, d))")
    with pytest.raises(WritetimeError, match=re.escape("has other columns in target")):
        table.replicate()
