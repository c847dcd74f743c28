"""From a real table to the lake and back: the views and the database return the same rows."""

from pathlib import Path

import orjson
import pytest
from cassandra.cluster import Session

from tests.support.commands import run
from tests.support.lake_answers import cql_rows, unordered, view_rows
from tests.support.lake_views import compacted
from tests.support.made import rewrite
from writetime.clients.database import connect
from writetime.clients.node_snapshots import take_snapshot
from writetime.core.config import Lake, Settings
from writetime.lake import state, views
from writetime.lake.backfill import backfill, find_snapshots
from writetime.lake.table import create_table, open_table
from writetime.schema.system import read_schema

pytestmark = pytest.mark.long


def make_orders(session: Session, keyspace: str) -> None:
    # A type that is used inside of another one only: the snapshot's schema.cql lacks it.
    session.execute(f"CREATE TYPE {keyspace}.line (item int, note text)")
    session.execute(
        f"CREATE TABLE {keyspace}.orders (shop int, day date, id uuid, total decimal, tags set<text>, "
        f"notes map<text, int>, lines list<frozen<{keyspace}.line>>, owner text STATIC, PRIMARY KEY ((shop, day), id)) "
        "WITH CLUSTERING ORDER BY (id DESC)"
    )
    for shop in range(20):
        for n in range(5):
            session.execute(
                f"INSERT INTO {keyspace}.orders (shop, day, id, total, tags, notes, lines) "
                "VALUES (%s, '2024-02-29', uuid(), %s, {'a', 'b'}, {'n': %s}, [{item: %s, note: 'x'}])",
                [shop, n, n, n],
            )
        where = f"WHERE shop = {shop} AND day = '2024-02-29'"
        session.execute(f"UPDATE {keyspace}.orders SET owner = 'o{shop}' {where}")


def write_of_every_kind(session: Session, table: str) -> None:
    session.execute(f"DELETE FROM {table} WHERE shop = 3 AND day = '2024-02-29'")
    session.execute(f"UPDATE {table} SET owner = 'new' WHERE shop = 4 AND day = '2024-02-29'")
    ids = [r.id for r in session.execute(f"SELECT id FROM {table} WHERE shop = 5 AND day = '2024-02-29'")]
    for order in ids[:2]:
        where = f"WHERE shop = 5 AND day = '2024-02-29' AND id = {order}"
        session.execute(f"UPDATE {table} SET tags = tags - {{'a'}}, notes['x'] = 9 {where}")
        session.execute(f"DELETE total FROM {table} {where}")


def test_snapshot_to_view(settings: Settings) -> None:
    table = f"{settings.cassandra.keyspace}.orders"
    with connect(settings) as session:
        make_orders(session, settings.cassandra.keyspace)
        schema = read_schema(session, table)
        first = run("snapshot", table).split()
        run("backfill", table, *first)
        lake = open_table(settings, table)
        assert view_rows(views.virtual(lake)) == cql_rows(session, schema)
        # The second snapshot overlaps the first one.
        write_of_every_kind(session, table)
        second = run("snapshot", table).split()
        run("backfill", table, *second, *first)
        wanted = cql_rows(session, schema)
        assert view_rows(views.virtual(lake)) == wanted
        assert "0 changes added" in run("backfill", table, *second, *first)
        run("maintain", table)
        assert unordered(compacted(lake)) == sorted(map(repr, wanted))
        assert view_rows(views.virtual(lake)) == wanted
        assert state.fold(lake) == 0
        printed = run("view", table, "--format", "jsonl", "--where", "shop = 5").splitlines()
        assert [orjson.loads(line)["id"] for line in printed] == [row["id"] for row in wanted if row["shop"] == 5]


# The statements before each of three snapshots.
ALTERED = [
    [
        "CREATE TYPE pair (a int)",
        "CREATE TABLE changing (id int, n int, v text, gone int, p pair, f frozen<pair>, st int STATIC, "
        "PRIMARY KEY (id, n))",
        "INSERT INTO changing (id, n, v, gone, p, f, st) VALUES (1, 1, 'a', 1, {a: 1}, {a: 1}, 1)",
        "INSERT INTO changing (id, n, v, gone) VALUES (2, 1, 'b', 2)",
    ],
    [
        "ALTER TYPE pair ADD b text",
        "ALTER TABLE changing ADD extra set<int>",
        "ALTER TABLE changing DROP gone",
        "ALTER TABLE changing DROP st",
        "UPDATE changing SET p.b = 'x', extra = {7} WHERE id = 1 AND n = 1",
        "INSERT INTO changing (id, n, f) VALUES (3, 1, {a: 3, b: 'y'})",
    ],
    [
        "ALTER TABLE changing ADD gone int",
        "ALTER TABLE changing ADD st int STATIC",
        "INSERT INTO changing (id, n, gone, st) VALUES (3, 2, 5, 6)",
    ],
]


# The second one is in order but for one that comes last.
ORDERS, ORDERS_LONG = ([2, 0, 1], [1, 2, 0]), ([0, 1, 2], [2, 0, 1], [1, 2, 0])


def test_schema_changes(settings: Settings, tmp_path: Path, is_long: bool) -> None:
    table = f"{settings.cassandra.keyspace}.changing"
    snapshots = []
    with connect(settings) as session:
        session.execute(f"USE {settings.cassandra.keyspace}")
        for number, statements in enumerate(ALTERED):
            for statement in statements:
                session.execute(statement)
            snapshots += [str(folder) for folder in take_snapshot(settings, table, f"at{number}")]
        wanted = cql_rows(session, read_schema(session, table))
    assert {row["gone"] for row in wanted} == {None, 5}
    for order in ORDERS_LONG if is_long else ORDERS:
        own = settings.model_copy(update={"lake": Lake(path=str(tmp_path / f"lake{order[0]}"), buckets=1)})
        for i, number in enumerate(order):
            found = find_snapshots([snapshots[number]])
            added = sum(count for _, count in backfill(create_table(own, found.schema), found))
            # A later snapshot has the SSTables of an earlier one, too.
            assert (added > 0) == (number == max(order[: i + 1]))
            state.fold(open_table(own, table))
        lake = open_table(own, table)
        rewrite(lake)
        assert view_rows(views.virtual(lake)) == wanted
        names = list(wanted[0])
        assert unordered(part.select(names) for part in compacted(lake)) == sorted(map(repr, wanted))
