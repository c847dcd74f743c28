"""The data sources in Spark, and the commands in the shell: the same changes as read directly."""

from collections import Counter
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tests.storage.conftest import Written
from tests.storage.databases import cql_with_ids
from tests.storage.generate import KEYSPACE
from writetime.changes import change_schema
from writetime.cli import main
from writetime.storage.commitlog import CommitLogReader
from writetime.storage.segment import find_segments
from writetime.storage.sstable import SSTable


def test_sstables_in_spark(spark: SparkSession, written: Written) -> None:
    for schema in written.schemas[:3]:
        (location,) = written.sstables[schema.name]
        direct = list(SSTable(location).scan())
        frame = spark.read.format("sstable").option("split_bytes", "200").load(location.folder)
        assert frame.count() == sum(b.num_rows for b in direct)
        kinds = Counter(k for b in direct for k in b.column("kind").to_pylist())
        assert {r["kind"]: r["count"] for r in frame.groupBy("kind").count().collect()} == kinds
        token = direct[0].column("token")[0].as_py()
        few = spark.read.format("sstable").option("fields", "token,position").option("first_token", token)
        found = few.option("last_token", token).load(location.folder)
        assert found.columns == ["token", "position"]
        assert found.count() == sum(t == token for b in direct for t in b.column("token").to_pylist())


def test_commit_logs_in_spark(spark: SparkSession, written: Written, tmp_path: Path) -> None:
    schemas = [s for s in written.all_schemas if s.keyspace == KEYSPACE]
    schema = schemas[0]
    reader = CommitLogReader(schemas, [schema.full_name], on_unknown_table="skip")
    segments = find_segments(str(written.server.cdc_raw))
    direct = sum(batch.num_rows for segment in segments for _, batch in reader.read(segment))
    options = {"schema": cql_with_ids(schemas), "table": schema.full_name, "on_unknown_table": "skip"}
    frame = spark.read.format("commitlog").options(**options).load(str(written.server.cdc_raw))
    assert frame.count() == direct
    for _ in range(2):  # the second run has nothing to add
        stream = spark.readStream.format("commitlog").options(**options, segments_per_batch="1")
        query = (
            stream.load(str(written.server.cdc_raw))
            .select("token", "position", "origin.offset")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("path", str(tmp_path / "out"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert spark.read.parquet(str(tmp_path / "out")).count() == direct


def test_the_commands(written: Written, tmp_path: Path) -> None:
    schema = written.schemas[0]
    (location,) = written.sstables[schema.name]
    rows = sum(batch.num_rows for batch in SSTable(location).scan())
    lines = CliRunner().invoke(main, ["sstable", location.folder, "--fields", "kind,key,token"])
    assert lines.exit_code == 0
    assert len([orjson.loads(line) for line in lines.stdout.splitlines()]) == rows
    stats = orjson.loads(CliRunner().invoke(main, ["sstable", location.folder, "--stats"]).stdout)
    assert next(iter(stats.values()))["changes"] == rows
    output = tmp_path / "changes.parquet"
    assert CliRunner().invoke(main, ["sstable", location.folder, "--output", str(output)]).exit_code == 0
    assert pq.read_metadata(output).num_rows == rows
    live = [s for s in written.all_schemas if s.keyspace == KEYSPACE]
    cql = tmp_path / "schema.cql"
    cql.write_text(cql_with_ids(live))
    table = next(s for s in live if s.name == schema.name)
    output = tmp_path / "changes.arrow"
    arguments = ["commitlog", str(written.server.cdc_raw), "--schema", str(cql), "--table", table.full_name]
    answer = CliRunner().invoke(main, [*arguments, "--output", str(output)])
    assert answer.exit_code == 0, answer.output
    assert "its schema is not known" in answer.stderr

    assert pa.ipc.open_file(output).read_all().schema.names == change_schema(table).names
