"""The options and the names of keys of a table in another cluster. Oracle: the answers of the source."""

import re

import pytest

from tests.replication.conftest import LATER_SECONDS, Clusters
from tests.support.format_server import FormatServer
from tests.support.generate import KEYSPACE
from tests.support.replicated import Replicated
from writetime.core.errors import WritetimeError
from writetime.replication.replicating import replicator
from writetime.servers.process import free_port
from writetime.verify.clusters import verify_clusters
from writetime.verify.left_to_do import prepare

pytestmark = pytest.mark.long

_TABLE = f"{KEYSPACE}.options"
_COLUMNS = "(k int, c int, s int STATIC, v int, m map<text, int>, u inner, PRIMARY KEY (k, c))"
_TTL = LATER_SECONDS // 2


@pytest.fixture
def table(clusters: Clusters, replicated: Replicated) -> Replicated:
    for node in (clusters.source, clusters.target):
        node.write_one(f"DROP MATERIALIZED VIEW IF EXISTS {_TABLE}_view")
        node.write_one(f"DROP TABLE IF EXISTS {_TABLE}")
    options = f"default_time_to_live = {_TTL} AND gc_grace_seconds = 7000 AND comment = 'it''s'"
    replicated.create("options", f"CREATE TABLE {_TABLE} {_COLUMNS} WITH {options}")
    return replicated


def options(node: FormatServer) -> tuple[object, ...]:
    query = "SELECT default_time_to_live, gc_grace_seconds, comment FROM system_schema.tables "
    return tuple(node.session().execute(f"{query} WHERE keyspace_name = '{KEYSPACE}' AND table_name = 'options'").one())


def writes(k: int) -> list[str]:
    """Rows, static ones, parts of columns and markers, with the default TTL, with none, and with another one."""
    return [
        statement
        for number, using in enumerate(("", " USING TTL 0", " USING TTL 400000"))
        for statement in (
            f"INSERT INTO {_TABLE} (k, c, s, v, m, u) VALUES ({k + number}, 1, 1, 1, {{'a': 1}}, {{a: 1}}){using}",
            f"INSERT INTO {_TABLE} (k, c) VALUES ({k + number}, 2){using}",
            f"UPDATE {_TABLE}{using} SET m['b'] = 2, u.b = 'x' WHERE k = {k + number} AND c = 3",
        )
    ]


def test_a_default_ttl_is_for_clients_only(clusters: Clusters, table: Replicated) -> None:
    table.write(writes(10))
    table.capture()
    table.replicate()
    clusters.assert_same(table.lake.schema())
    assert options(clusters.target) == options(clusters.source) == (_TTL, 7000, "it's")
    # The target keeps the TTL that is no longer that of the source.
    for number, ttl in enumerate((0, 300_000)):
        clusters.source.write_one(f"ALTER TABLE {_TABLE} WITH default_time_to_live = {ttl}")
        table.write(writes(20 + 10 * number))
        table.capture()
        table.replicate()
        clusters.assert_same(table.lake.schema())
    assert options(clusters.target)[0] == _TTL


def test_the_source_is_down(clusters: Clusters, table: Replicated) -> None:
    table.write(writes(1))
    table.capture()
    down = table.settings.cassandra.model_copy(update={"port": free_port()})
    with replicator(table.settings.model_copy(update={"cassandra": down}), table.lake, "target") as opened:
        opened.replicate(table.lake)
    clusters.assert_same(table.lake.schema())
    assert options(clusters.target) == (0, 7000, "")
    _, left = prepare(table.settings, "target", _TABLE)
    assert len(left) == 2
    for each in left:
        clusters.target.write_one(each.partition(": ")[2])
    assert options(clusters.target) == options(clusters.source)
    assert prepare(table.settings, "target", _TABLE) == ([], [])


def test_what_is_left_to_do(clusters: Clusters, table: Replicated) -> None:
    table.capture()
    table.replicate()
    clusters.source.write_one(f"ALTER TABLE {_TABLE} WITH gc_grace_seconds = 8000")
    clusters.source.write_one(f"CREATE INDEX values_of_m ON {_TABLE} (m)")
    clusters.source.write_one(f"CREATE INDEX of_v ON {_TABLE} (v)")
    clusters.target.write_one(f"CREATE INDEX of_v_by_another_name ON {_TABLE} (v)")
    clusters.source.write_one(
        f"CREATE MATERIALIZED VIEW {_TABLE}_view AS SELECT k, c, v FROM {_TABLE} "
        "WHERE k IS NOT NULL AND c IS NOT NULL AND v IS NOT NULL PRIMARY KEY (v, k, c)"
    )
    assert prepare(table.settings, "target", _TABLE)[1] == [
        f"gc_grace_seconds is 7000 in target, and was 8000: ALTER TABLE {_TABLE} WITH gc_grace_seconds = 8000",
        "target lacks the index values_of_m (values(m))",
        "target lacks the materialized view options_view (k IS NOT NULL AND c IS NOT NULL AND v IS NOT NULL)",
    ]


def test_renamed_key_columns(clusters: Clusters, table: Replicated) -> None:
    table.write(writes(1))
    table.capture()
    table.replicate()
    clusters.source.write_one(f'ALTER TABLE {_TABLE} RENAME k TO "Key" AND c TO c2')
    table.write([f'INSERT INTO {_TABLE} ("Key", c2, v) VALUES (9, 1, 1)', f'DELETE FROM {_TABLE} WHERE "Key" = 2'])
    table.capture()
    with replicator(table.settings, table.lake, "target") as opened:
        opened.replicate(table.lake)
        with pytest.raises(WritetimeError, match="has other columns in the cluster target"):
            verify_clusters(table.settings, "target", _TABLE, 0)
        done, left = prepare(table.settings, "target", _TABLE)
        assert (done, left) == ([f'ALTER TABLE {_TABLE} RENAME k TO "Key" AND c TO c2'], [])
        assert verify_clusters(table.settings, "target", _TABLE, 0, with_times=True).proven
        table.write([f'UPDATE {_TABLE} SET v = 2 WHERE "Key" = 9 AND c2 > 0 AND c2 < 2'])
        table.write([f'INSERT INTO {_TABLE} ("Key", c2, v) VALUES (8, 1, 1)', f'DELETE FROM {_TABLE} WHERE "Key" = 3'])
        table.write([f'DELETE FROM {_TABLE} WHERE "Key" = 9 AND c2 > 0'])
        table.capture()
        # Its statements have the old names.
        with pytest.raises(WritetimeError, match=r"[Uu]n(defined|known|recognized)"):
            opened.replicate(table.lake)
    table.replicate()
    assert verify_clusters(table.settings, "target", _TABLE, 0, with_times=True).proven
    assert prepare(table.settings, "target", _TABLE) == ([], [])


def test_sstables_have_no_names_of_keys(clusters: Clusters, carried: Replicated) -> None:
    name = f"{KEYSPACE}.keys"
    for node in (clusters.source, clusters.target):
        node.write_one(f"DROP TABLE IF EXISTS {name}")
    carried.create("keys", f"CREATE TABLE {name} (k int, c int, l list<int>, PRIMARY KEY (k, c))")
    for number, (before, after) in enumerate((("k", "k2"), ("k2", "k3"))):
        carried.write([f"INSERT INTO {name} ({before}, c, l) VALUES ({number}, 1, [1, 2])"])
        carried.capture()
        carried.replicate()
        clusters.source.write_one(f"ALTER TABLE {name} RENAME {before} TO {after}")
        assert prepare(carried.settings, "by_sstables", name)[0]
        found = verify_clusters(carried.settings, "target", name, 0, with_times=True)
        assert (found.proven, found.against_rows) == (True, number + 1)


def test_names_that_changed_places(clusters: Clusters, table: Replicated) -> None:
    table.replicate()
    clusters.source.write_one(f"ALTER TABLE {_TABLE} RENAME c TO x")
    clusters.source.write_one(f"ALTER TABLE {_TABLE} RENAME k TO c")
    with pytest.raises(WritetimeError, match="another column has the name c: give the key column another name in the"):
        prepare(table.settings, "target", _TABLE)


@pytest.mark.parametrize("keys", ["b int, a int", "a int, other text"])
def test_other_keys_than_renamed_ones(clusters: Clusters, replicated: Replicated, keys: str) -> None:
    """Names in another order, and another type."""
    for node in (clusters.source, clusters.target):
        node.write_one(f"DROP TABLE IF EXISTS {KEYSPACE}.keys")
    replicated.create("keys", f"CREATE TABLE {KEYSPACE}.keys (a int, b int, v int, PRIMARY KEY (a, b))")
    names = ", ".join(each.split()[0] for each in keys.split(", "))
    clusters.target.write_one(f"CREATE TABLE {KEYSPACE}.keys ({keys}, v int, PRIMARY KEY ({names}))")
    with pytest.raises(WritetimeError, match=re.escape("has other columns in target")):
        replicated.replicate()
