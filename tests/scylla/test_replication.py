"""Replicates tables from Cassandra to a running ScyllaDB, and from it to Cassandra.

Oracle: the answers of the source, and `verify --against --times`.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from cassandra.cluster import Session

from tests.scylla.following import captured, settings_for
from tests.scylla.statements import LiveGenerator
from tests.scylla.workload import TYPES, write_to
from tests.support import answers
from tests.support.format_server import FormatServer
from tests.support.generate import KEYSPACE, SEED, Generator
from tests.support.replicated import Replicated
from writetime.core.config import Settings
from writetime.core.server_settings import Cassandra, NamedCluster
from writetime.replication.replicating import replicator
from writetime.schema.system import read_schema
from writetime.schema.table import Column, TableSchema
from writetime.schema.table_options import Lookup, read_lookups
from writetime.schema.types import Collection, Native
from writetime.verify.clusters import verify_clusters
from writetime.verify.left_to_do import prepare

_TABLES, _PHASES, _STATEMENTS = 3, 3, 60
_LIST = Column("list", Collection("list", (Native("text"),)))


@pytest.fixture(scope="module")
def cassandra_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FormatServer]:
    node = FormatServer(tmp_path_factory.mktemp("cassandra"), "nb")
    try:
        node.start()
        yield node
    finally:
        node.stop()


@contextmanager
def keyspace_in(sessions: list[Session], keyspace: str) -> Iterator[None]:
    """A keyspace with the types of random tables, in clusters that may have it."""
    for session in sessions:
        session.execute(
            f"CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = "
            "{'class': 'NetworkTopologyStrategy', 'datacenter1': 1}",
            timeout=120,
        )
        for statement in TYPES:
            session.execute(statement.replace("{ks}", keyspace), timeout=120)
    yield
    for session in sessions:
        session.execute(f"DROP KEYSPACE {keyspace}", timeout=120)


def assert_same(settings: Settings, source: Session, target: Session, schema: TableSchema) -> None:
    """Compare all values as bytes, except for the forms of equal keys, such as two kinds of not-a-number; then all
    with the write times and expiries that both databases report.
    """
    keys = len(schema.partition_key) + len(schema.clustering)
    wanted, found = ([row[keys:] for row in answers.rows(session, schema)] for session in (source, target))
    more, fewer = [row for row in found if row not in wanted], [row for row in wanted if row not in found]
    create = schema.create_statement()
    assert not more + fewer, f"{create}: {len(more)} more, {len(fewer)} fewer:\n{more[:2]}\n{fewer[:2]}"
    report = verify_clusters(settings, "target", schema.full_name, 0, with_times=True)
    assert not report.differences, f"{create}: {report}"
    assert report.database_rows == len(wanted)


def to_scylla(live: Settings, node: FormatServer, home: Path, sstables: str | None = None) -> Settings:
    """Settings of a source, of a lake in a folder, and of ScyllaDB as the cluster `target`."""
    return live.model_copy(
        update={
            "cassandra": Cassandra(port=node.port),
            "clusters": {"target": NamedCluster(**dict(live.cassandra), sstables=sstables)},
            "lake": live.lake.model_copy(update={"path": str(home / "lake"), "buckets": 2}),
        }
    )


def test_from_cassandra(
    live: Settings, session: Session, raw: Session, cassandra_node: FormatServer, tmp_path: Path
) -> None:
    with (
        answers.raw_session(cassandra_node.port) as source,
        keyspace_in([source, session], KEYSPACE),
    ):
        settings = to_scylla(live, cassandra_node, tmp_path)
        for number in range(_TABLES):
            generator = Generator(100 * SEED + number)
            made = generator.schema(f"random{number}")
            made = replace(made, regular=(*made.regular, _LIST))
            replicated = Replicated(cassandra_node, settings)
            schema, places = replicated.create(made.name, made.create_statement()), generator.places(made)
            for _ in range(_PHASES):
                replicated.write(generator.writes(made, _STATEMENTS, places))
                replicated.capture()
                replicated.replicate()
                assert_same(settings, source, raw, schema)


def test_counters_as_sstables(
    live: Settings, session: Session, raw: Session, cassandra_node: FormatServer, tmp_path: Path
) -> None:
    name = f"{KEYSPACE}.counters"
    with (
        answers.raw_session(cassandra_node.port) as source,
        keyspace_in([source, session], KEYSPACE),
    ):
        settings = to_scylla(live, cassandra_node, tmp_path, sstables=str(tmp_path / "sstables"))
        replicated = Replicated(cassandra_node, settings)
        columns = "(k int, c int, s counter STATIC, n counter, PRIMARY KEY (k, c))"
        schema = replicated.create("counters", f"CREATE TABLE {name} {columns}")
        for number in range(3):
            # In ScyllaDB, a deletion covers later writes to a counter, too.
            rows = range(number, 9)
            replicated.write([f"UPDATE {name} SET n = n + {k}, s = s - 2 WHERE k = {k} AND c = 1" for k in rows])
            replicated.write([f"DELETE FROM {name} WHERE k = {number}"])
            replicated.capture()
            replicated.replicate()
            assert_same(settings, source, raw, schema)


def rename_and_compare(replicated: Replicated, node: FormatServer, target: Session) -> None:
    """Rename a key column in the source, which then has an index more, and another option."""
    name = replicated.lake.name
    node.write_one(f"ALTER TABLE {name} RENAME k TO k2")
    node.write_one(f"CREATE INDEX of_v ON {name} (v)")
    target.execute(f"CREATE INDEX only_here ON {name} (c)", timeout=120)
    change = f"ALTER TABLE {name} WITH default_time_to_live = 300000"
    assert prepare(replicated.settings, "target", name) == (
        [f"ALTER TABLE {name} RENAME k TO k2"],
        [
            f"default_time_to_live is 100000 in target, and was 300000: {change}",
            "target lacks the index of_v (v)",
        ],
    )
    # An index of ScyllaDB has a view.
    assert read_lookups(target, name) == [Lookup("index", "only_here", "c")]
    replicated.write([f"INSERT INTO {name} (k2, c, v) VALUES (7, 1, 1) USING TTL 0"])
    replicated.capture()
    replicated.replicate()


def test_options_and_names_of_keys(
    live: Settings, session: Session, raw: Session, cassandra_node: FormatServer, tmp_path: Path
) -> None:
    name = f"{KEYSPACE}.options"
    with (
        answers.raw_session(cassandra_node.port) as source,
        keyspace_in([source, session], KEYSPACE),
    ):
        settings = to_scylla(live, cassandra_node, tmp_path)
        replicated = Replicated(cassandra_node, settings)
        schema = replicated.create(
            "options",
            f"CREATE TABLE {name} (k int, c int, v int, l list<int>, PRIMARY KEY (k, c)) "
            "WITH default_time_to_live = 100000 AND gc_grace_seconds = 7000 AND comment = 'it''s'",
        )
        for number, ttl in enumerate((0, 300_000)):
            replicated.write(
                [
                    f"INSERT INTO {name} (k, c, v, l) VALUES ({k}, {number}, 1, [1, 2]){using}"
                    for k, using in enumerate(("", " USING TTL 0", " USING TTL 400000"))
                ]
            )
            replicated.capture()
            replicated.replicate()
            assert_same(settings, source, raw, schema)
            cassandra_node.write_one(f"ALTER TABLE {name} WITH default_time_to_live = {ttl}")
        rename_and_compare(replicated, cassandra_node, session)
        assert_same(settings, source, raw, read_schema(cassandra_node.session(), name))


def test_to_cassandra(
    live: Settings, session: Session, raw: Session, cassandra_node: FormatServer, tmp_path: Path
) -> None:
    keyspace = live.cassandra.keyspace
    generator = LiveGenerator(SEED)
    with answers.raw_session(cassandra_node.port) as target, keyspace_in([target], keyspace):
        for statement in TYPES:
            session.execute(statement.replace("{ks}", keyspace), timeout=120)
        made = generator.schema("replicated", clusterings=2, statics=1)
        made = replace(made, regular=(*made.regular, _LIST))
        create = made.create_statement().replace(f"{KEYSPACE}.", f"{keyspace}.")
        joiner = "AND" if made.clustering else "WITH"
        session.execute(f"{create} {joiner} cdc = {{'enabled': true}}", timeout=120)
        schema = read_schema(session, f"{keyspace}.{made.name}")
        settings = settings_for(live, schema.full_name, tmp_path)
        cluster = NamedCluster(port=cassandra_node.port, sstables=str(tmp_path / "sstables"))
        settings = settings.model_copy(update={"clusters": {"target": cluster}})
        for _ in range(_PHASES):
            table = captured(settings, schema.full_name, lambda: write_to(raw, generator, schema, _STATEMENTS))
            with replicator(settings, table, "target") as opened:
                opened.replicate(table)
            # A row that has expired may be there for a second.
            time.sleep(2)
            assert_same(settings, raw, target, schema)
