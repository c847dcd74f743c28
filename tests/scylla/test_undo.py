"""Undoes what an interval did to a table of a running ScyllaDB. Oracle: a second table, without the bad statements."""

import random
import time
from pathlib import Path

from cassandra.cluster import Session

from tests.scylla.following import settings_for
from tests.scylla.node import Node
from tests.support.lake_answers import cql_rows, view_rows
from tests.support.programs import agent
from tests.support.scylla_server import new_name
from tests.support.waiting import wait_for
from writetime.core.config import Settings
from writetime.lake import views
from writetime.lake.backfill import backfill, find_snapshots
from writetime.lake.horizon import captured_until
from writetime.lake.table import is_in_lake, open_table
from writetime.landing.landing import Landing
from writetime.landing.topics import is_published
from writetime.schema.system import read_schema
from writetime.undo.applying import apply_plan
from writetime.undo.damage import Interval
from writetime.undo.plan import make_plan

_COLUMNS = "(k int, c int, s text STATIC, v int, w text, m map<text, int>, e set<int>, l list<int>, PRIMARY KEY (k, c))"
_GOOD = [
    "INSERT INTO {t} (k, c, s, v, l) VALUES ({k}, {c}, 's{n}', {n}, [{n}, 1]) USING TIMESTAMP {at}",
    "UPDATE {t} USING TIMESTAMP {at} AND TTL 86400 SET m['x{n}'] = {n}, e = e + {{{n}}} WHERE k = {k} AND c = {c}",
    "UPDATE {t} USING TIMESTAMP {at} SET w = 'w{n}' WHERE k = {k} AND c = {c}",
    "UPDATE {t} USING TIMESTAMP {at} AND TTL 86400 SET l = l + [{n}, 7] WHERE k = {k} AND c = {c}",
    "DELETE m['x{n}'] FROM {t} USING TIMESTAMP {at} WHERE k = {k} AND c = {c}",
]
_BAD = [
    "DELETE FROM {t} USING TIMESTAMP {at} WHERE k = {k}",
    "DELETE FROM {t} USING TIMESTAMP {at} WHERE k = {k} AND c > {c}",
    "DELETE FROM {t} USING TIMESTAMP {at} WHERE k = {k} AND c = {c}",
    "DELETE m, v, l FROM {t} USING TIMESTAMP {at} WHERE k = {k} AND c = {c}",
    "INSERT INTO {t} (k, c, s, v, m) VALUES ({k}, {c}, 'bad', -1, {{'bad': -1}}) USING TIMESTAMP {at}",
]


def _write(session: Session, texts: list[str], chooser: random.Random, count: int, *tables: str) -> None:
    for _ in range(count):
        values = {"k": chooser.randrange(20), "c": chooser.randrange(4), "n": chooser.randrange(5)}
        text = chooser.choice(texts)
        at = time.time_ns() // 1000
        for table in tables:
            session.execute(text.format(t=table, at=at, **values))


def _land_until(session: Session, settings: Settings, instant: int, table: str, other: str) -> None:
    """Land a table up to an instant. A row is written meanwhile, to another table, too: a watermark without changes is
    committed every five minutes.
    """

    def has_landed() -> bool:
        at = time.time_ns() // 1000
        for each in (table, other):
            session.execute(f"INSERT INTO {each} (k, c, v) VALUES (100, 0, 1) USING TIMESTAMP {at}")
        if is_published(settings, table):
            Landing(settings, table).drain()
        return is_in_lake(settings, table) and captured_until(open_table(settings, table).changes.load()) > instant

    wait_for(has_landed)


def test_undone(live: Settings, session: Session, nodes: list[Node], tmp_path: Path) -> None:
    damaged, wanted = (f"{live.cassandra.keyspace}.{new_name('t')}" for _ in range(2))
    settings = settings_for(live, damaged, tmp_path)
    session.execute(f"CREATE TABLE {damaged} {_COLUMNS} WITH cdc = {{'enabled': true}}", timeout=120)
    session.execute(f"CREATE TABLE {wanted} {_COLUMNS}", timeout=120)
    schema, schema_wanted = (read_schema(session, table) for table in (damaged, wanted))
    chooser = random.Random(1)

    with agent(settings):
        _write(session, _GOOD, chooser, 300, damaged, wanted)
        _land_until(session, settings, time.time_ns() // 1000, damaged, wanted)
        first = time.time_ns() // 1000
        _write(session, _BAD, chooser, 25, damaged)
        last = time.time_ns() // 1000
        _land_until(session, settings, last + 200_000, damaged, wanted)
        table = open_table(settings, damaged)
        plan = make_plan(table, Interval(first, last))
        assert plan.counts["deleted"]
        assert plan.counts["added"]
        apply_plan(settings, table, plan)
        assert cql_rows(session, schema) == cql_rows(session, schema_wanted)
        # The log has the undo at its write time, up to which it was read already, so a snapshot brings it.
        assert list(backfill(table, find_snapshots([str(node.snapshot(schema, "undone")) for node in nodes])))
        assert view_rows(views.virtual(open_table(settings, damaged))) == cql_rows(session, schema)
