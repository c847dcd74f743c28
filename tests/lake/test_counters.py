"""Counters from disk to view: the lake and the database return the same values.

Oracle: the database: rows by CQL; for generated shards, Cassandra's own merge of contexts.
"""

import io
import os
import random
import shutil
from pathlib import Path

import fastavro
import orjson
import pytest
from cassandra.cluster import Session
from pyspark.sql import SparkSession

from tests.support import oracle
from tests.support.commands import run
from tests.support.event_replay import events, replayed
from tests.support.generated import NODES
from tests.support.lake_answers import cql_rows, unordered, view_rows
from tests.support.lake_views import compacted
from tests.support.made import settings_at
from writetime.clients import node_snapshots
from writetime.clients.database import connect
from writetime.clients.node_snapshots import take_snapshot
from writetime.core.config import Settings
from writetime.lake import state, views
from writetime.lake.backfill import backfill, find_snapshots
from writetime.lake.table import LakeTable, create_table
from writetime.row_events.messages import encode_events, event_avro
from writetime.row_events.stream import extend
from writetime.runtime.nodetool import nodetool
from writetime.schema.system import read_schema
from writetime.schema.table import TableSchema
from writetime.sources.sstable import SSTableSource
from writetime.verify.comparison import verify

pytestmark = pytest.mark.long

SEED = int(os.environ.get("GENERATOR_SEED", "1"))
PARTITIONS = int(os.environ.get("COUNTER_PARTITIONS", "60"))
FILES = 5


def crafted(chooser: random.Random) -> list[str]:
    """Lines for `oracle.craft_counters`: shards of several nodes, old and new, and deletions of every kind."""

    def shards() -> str:
        nodes = sorted(chooser.sample([*NODES, "7fffffff-0000-4000-8000-000000000000"], chooser.randint(1, 3)))
        kinds = ["global", "global", "global", "remote"]
        clocks, counts = [-2, -1, 1, 2, 3], [-7, 0, 5, 1 << 40, (1 << 63) - 1]
        return ",".join(":".join(map(str, (n, *map(chooser.choice, (kinds, clocks, counts))))) for n in nodes)

    lines = []
    for file in range(1, FILES + 1):
        for k in range(PARTITIONS):
            at = [chooser.randint(1, 12) for _ in range(5)]
            if chooser.random() < 0.1:
                lines.append(f"{file} {k} partition {at[0]}")
            if chooser.random() < 0.15:
                lines.append(f"{file} {k} range {at[1]} 0 1")
            for n, c in enumerate(("-", "0", "1", "2"), 1):
                column = "s" if c == "-" else "n"
                what = chooser.choices(["cell", "dead", "row", None], [6, 1, 0 if c == "-" else 1, 2])[0]
                if what:
                    parts = {"cell": f"{column} {c} {shards()}", "dead": f"{column} {c}", "row": c}
                    lines.append(f"{file} {k} {what} {at[n]} {parts[what]}")
    return lines


def test_shards_of_many_nodes(settings: Settings, tmp_path: Path) -> None:
    keyspace = settings.cassandra.keyspace
    table = f"{keyspace}.counters"
    oracle.craft_counters(tmp_path / "made", crafted(random.Random(SEED)))
    own = settings_at(tmp_path / "lake", buckets=2)
    with connect(settings) as session:
        session.execute(f"CREATE TABLE {table} (k int, c int, n counter, s counter STATIC, PRIMARY KEY (k, c))")
        schema = read_schema(session, table)
        shutil.copytree(tmp_path / "made", tmp_path / "given")
        _, port = node_snapshots.local_node(session)
        nodetool(port, "import", keyspace, "counters", str(tmp_path / "given"))
        wanted = cql_rows(session, schema)
        assert len(wanted) > PARTITIONS
        lake = create_table(own, schema)
        files = sorted(map(str, (tmp_path / "made").glob("*-Data.db")))
        list(backfill(lake, find_snapshots(files, schema)))
        assert view_rows(views.virtual(lake)) == wanted
        state.fold(lake)
        # The file that the database compacts gives the same rows, alone and together with the files it came from.
        nodetool(port, "compact", keyspace, "counters")
        assert cql_rows(session, schema) == wanted
        (folder,) = take_snapshot(settings, table, "compacted")
        found = find_snapshots([str(folder)])
        assert len(found.paths) == 1
        list(backfill(lake, found))
        assert view_rows(views.virtual(lake)) == wanted
        state.fold(lake)
        assert view_rows(views.virtual(lake)) == wanted
        alone = create_table(settings_at(tmp_path / "alone", buckets=1), schema)
        list(backfill(alone, found))
        assert view_rows(views.virtual(alone)) == wanted


def count(session: Session, table: str, chooser: random.Random, times: int) -> None:
    """Count up and down, and delete now and then."""
    for _ in range(times):
        k, c, by = chooser.randint(0, 5), chooser.randint(0, 3), chooser.randint(-5, 5)
        row = f"k = {k} AND c = {c}"
        statements = [f"UPDATE {table} SET n = n + {by} WHERE {row}"] * 8
        statements += [f"UPDATE {table} SET s = s - {by} WHERE k = {k}"] * 2
        statements += [f"DELETE {what} FROM {table} WHERE {row}" for what in ("n", "")]
        session.execute(chooser.choice(statements))


def test_from_cql_to_views_events_and_verify(settings: Settings, spark: SparkSession) -> None:
    keyspace = settings.cassandra.keyspace
    table = f"{keyspace}.counters"
    chooser = random.Random(SEED)
    snapshots: list[str] = []
    with connect(settings) as session:
        session.execute(f"CREATE TABLE {table} (k int, c int, n counter, s counter STATIC, PRIMARY KEY (k, c))")
        schema = read_schema(session, table)
        lake, wanted = create_table(settings, schema), []
        for number in range(3):
            count(session, table, chooser, 50)
            snapshots += run("snapshot", table).split()
            run("backfill", table, *chooser.sample(snapshots, len(snapshots)))
            wanted = cql_rows(session, schema)
            assert view_rows(views.virtual(lake)) == wanted
            extend(lake)
            assert replayed(lake) == wanted
            if number == 1:
                _, port = node_snapshots.local_node(session)
                nodetool(port, "compact", keyspace, "counters")
        run("maintain", table)
        assert unordered(compacted(lake)) == sorted(map(repr, wanted))
        run("rebuild", table)
        assert view_rows(views.virtual(lake)) == wanted
        assert verify(settings, lake, 0).differences == []
        session.execute(f"UPDATE {table} SET n = n + 1 WHERE k = 100 AND c = 1")
        assert [d.lagging for d in verify(settings, lake, 0).differences] == [True]
    # A counter in a view is a number; in a change it has its shards.
    assert_events_have_numbers(lake, schema)
    assert_shards_add_up_in_spark(spark, snapshots[-1])
    lines = [orjson.loads(line) for line in run("sstable", snapshots[-1], "--fields", "k,n").splitlines()]
    for cell in (line["n"] for line in lines if "shards" in line.get("n", {})):
        (shard,) = cell["shards"]
        assert (shard["count"], shard["write_time"], shard["kind"]) == (cell["value"], cell["write_time"], "global")


def assert_events_have_numbers(lake: LakeTable, schema: TableSchema) -> None:
    """As another library reads the messages."""
    assert event_avro(schema)["fields"][-2]["type"][1]["fields"][-1]["type"] == ["null", "long"]
    for part in events(lake):
        batch = part.combine_chunks().to_batches()[0]
        for data, after in zip(encode_events(batch, schema).to_pylist(), part["after"].to_pylist(), strict=True):
            read = fastavro.schemaless_reader(io.BytesIO(data[10:]), event_avro(schema), None)
            assert isinstance(read, dict)
            assert read["after"] == after


def assert_shards_add_up_in_spark(spark: SparkSession, snapshot: str) -> None:
    spark.dataSource.register(SSTableSource)
    frame = spark.read.format("sstable").option("fields", "n").load(snapshot)
    added = "aggregate(n.shards, 0L, (total, shard) -> total + shard.count) AS added"
    cells = frame.where("n.write_time IS NOT NULL").selectExpr("n.value", "n.tombstone", added).collect()
    assert {cell.tombstone for cell in cells} == {False, True}
    assert all(cell.value == cell.added and (cell.value is None) == cell.tombstone for cell in cells)
