"""From a real table to the lake and back: what the views say is what the database answers."""

import orjson
import pyarrow as pa
from cassandra.cluster import Session
from click.testing import CliRunner

from tests.lake.answers import cql_rows, view_rows
from writetime.cli import main
from writetime.config import Settings
from writetime.database import connect
from writetime.lake import state, views
from writetime.lake.parquet import PARTITION
from writetime.lake.table import LakeTable, open_table
from writetime.schema.table import TableSchema, read_schemas


def run(*arguments: str) -> str:
    """Run a command; return what it printed."""
    answer = CliRunner(catch_exceptions=False).invoke(main, list(arguments))
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def schema_of(session: Session, table: str) -> TableSchema:
    return next(s for s in read_schemas(session, [table.split(".", maxsplit=1)[0]]) if s.full_name == table)


def compacted(table: LakeTable) -> list[pa.Table]:
    """The compacted view, in the order of its buckets."""
    rows = table.view.load().table.to_pyarrow_table()
    return [rows.sort_by(PARTITION).drop_columns([PARTITION])]


def test_snapshot_to_view(settings: Settings) -> None:
    table = f"{settings.cassandra.keyspace}.orders"
    with connect(settings) as session:
        session.execute(
            f"CREATE TABLE {table} (shop int, day date, id uuid, total decimal, tags set<text>, "
            "notes map<text, int>, owner text STATIC, PRIMARY KEY ((shop, day), id)) "
            "WITH CLUSTERING ORDER BY (id DESC)"
        )
        for shop in range(20):
            for n in range(5):
                session.execute(
                    f"INSERT INTO {table} (shop, day, id, total, tags, notes) VALUES (%s, '2024-02-29', uuid(), %s, "
                    "{'a', 'b'}, {'n': %s})",
                    [shop, n, n],
                )
            session.execute(f"UPDATE {table} SET owner = 'o{shop}' WHERE shop = {shop} AND day = '2024-02-29'")
        schema = schema_of(session, table)
        first = run("snapshot", table).split()
        run("backfill", table, *first)
        lake = open_table(settings, table)
        assert view_rows(views.virtual(lake)) == cql_rows(session, schema)
        # Writes of every kind after the first snapshot; the second snapshot overlaps it.
        session.execute(f"DELETE FROM {table} WHERE shop = 3 AND day = '2024-02-29'")
        session.execute(f"UPDATE {table} SET owner = 'new' WHERE shop = 4 AND day = '2024-02-29'")
        ids = [r.id for r in session.execute(f"SELECT id FROM {table} WHERE shop = 5 AND day = '2024-02-29'")]
        for order in ids[:2]:
            where = f"WHERE shop = 5 AND day = '2024-02-29' AND id = {order}"
            session.execute(f"UPDATE {table} SET tags = tags - {{'a'}}, notes['x'] = 9 {where}")
            session.execute(f"DELETE total FROM {table} {where}")
        second = run("snapshot", table).split()
        run("backfill", table, *second, *first)
        wanted = cql_rows(session, schema)
        assert view_rows(views.virtual(lake)) == wanted
        assert "0 changes added" in run("backfill", table, *second, *first)
        run("maintain", table)
        assert view_rows(compacted(lake)) == wanted
        assert view_rows(views.virtual(lake)) == wanted
        assert state.fold(lake) == 0
        printed = run("view", table, "--format", "jsonl", "--where", "shop = 5").splitlines()
        assert [orjson.loads(line)["id"] for line in printed] == [row["id"] for row in wanted if row["shop"] == 5]
