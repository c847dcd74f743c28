"""The data sources in Spark, and the commands: they return the same changes as the readers."""

from collections import Counter
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.storage.handmade import MANY
from tests.storage.written import Written
from tests.support.examples import is_long_run
from tests.support.format_server import cql_with_ids
from tests.support.generate import KEYSPACE
from tests.support.rewriting import break_chunk, copy
from tests.support.spark_streams import run_stream
from writetime.changes.model import change_schema
from writetime.cli.main import main
from writetime.sources.sstable import SSTableSource
from writetime.storage.commitlog import CommitLogReader
from writetime.storage.segment import find_segments
from writetime.storage.sstable import SSTable

# Spark reads by the readers that other tests try with each format.
_FORMATS = ["nb", "oa", "da"] if is_long_run() else ["nb"]
pytestmark = [pytest.mark.parametrize("written", _FORMATS, indirect=True, scope="session"), pytest.mark.long]


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
        assert few.option("last_token", token).option("first_token", token + 1).load(location.folder).count() == 0


def test_commit_logs_in_spark(spark: SparkSession, written: Written, tmp_path: Path) -> None:
    schemas = [s for s in written.all_schemas if s.keyspace == KEYSPACE]
    schema = schemas[0]
    reader = CommitLogReader(schemas, [schema.full_name], on_unknown_table="skip")
    segments = find_segments(str(written.server.cdc_raw))
    direct = sum(batch.num_rows for segment in segments for _, batch in reader.read(segment))
    options = {"schema": cql_with_ids(schemas), "table": schema.full_name, "on_unknown_table": "skip"}
    frame = spark.read.format("commitlog").options(**options).load(str(written.server.cdc_raw))
    assert frame.count() == direct
    assert spark.read.format("commitlog").options(**options).load(str(tmp_path)).count() == 0
    for _ in range(2):  # the second run has nothing to add
        stream = spark.readStream.format("commitlog").options(**options, segments_per_batch="1")
        writer = (
            stream.load(str(written.server.cdc_raw))
            .select("token", "position", "origin.offset")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("path", str(tmp_path / "out"))
            .trigger(availableNow=True)
        )
        run_stream(writer.start, StreamingQuery.awaitTermination)
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


def test_a_wide_partition_is_read_by_many_tasks(spark: SparkSession, written: Written) -> None:
    schema, (location,) = written.handmade("wide")
    frame = spark.read.format("sstable").option("split_bytes", "4000").option("schema", cql_with_ids([schema]))
    read = frame.load(location.folder).selectExpr("origin.offset", "kind", "spark_partition_id() AS task").collect()
    direct = [
        (origin["offset"], kind)
        for batch in SSTable(location, schema).scan(["kind", "origin"])
        for origin, kind in zip(batch["origin"].to_pylist(), batch["kind"].to_pylist(), strict=True)
    ]
    assert sorted((row["offset"], row["kind"]) for row in read) == sorted(direct)
    assert len({row["task"] for row in read}) > 2 * len(SSTable(location).index.positions)


def test_a_schema_given_to_spark(spark: SparkSession, written: Written) -> None:
    _, (location,) = written.handmade("many")
    reader = spark.read.format("sstable")
    frame = reader.schema("v struct<value string, write_time bigint, ttl int, deletion_time bigint, tombstone boolean>")
    assert frame.load(location.folder).where("length(v.value) > 150").count() == MANY
    parts = reader.schema("token bigint, v struct<value string, write_time bigint>").load(location.folder)
    whole = spark.read.format("sstable").option("fields", "token,v").load(location.folder)
    by_option = spark.read.format("sstable").option("fields", "token,v.value,v.write_time").load(location.folder)
    wanted = whole.selectExpr("token", "v.value", "v.write_time").collect()
    assert parts.selectExpr("token", "v.value", "v.write_time").collect() == wanted
    assert by_option.schema == parts.schema
    assert by_option.selectExpr("token", "v.value", "v.write_time").collect() == wanted
    for wrong, message in (
        ("token int", "have the field token as bigint; the schema given to Spark has it as int"),
        ("token bigint, other int", "have no field other"),
        ("v struct<value string, other int>", "have no field v.other"),
        ("v struct<value int>", "have the field v as struct<value:string>; the schema given to Spark has it as"),
    ):
        with pytest.raises(Exception, match=message):
            spark.read.format("sstable").schema(wrong).load(location.folder).count()


def test_parts_that_spark_leaves_out(
    spark: SparkSession, written: Written, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, (location,) = written.handmade("many")
    here = copy(location, tmp_path / "many")
    break_chunk(here, 2)
    with pytest.raises(Exception, match="chunk 2 does not match its CRC32"):
        spark.read.format("sstable").load(here.folder).count()
    options = {"on_corrupt": "skip-partition", "split_bytes": "5000"}
    found = spark.read.format("sstable").options(**options).load(here.folder).count()
    source = SSTableSource(options | {"path": here.folder})
    reader = source.reader(source.schema())
    assert found == sum(batch.num_rows for piece in reader.partitions() for batch in reader.read(piece))
    assert MANY // 2 < found < MANY
    assert "left out" in caplog.text
    assert "chunk 2 does not match its CRC32" in caplog.text


def test_a_file_system_of_fsspec_in_spark(spark: SparkSession, written: Written) -> None:
    _, (location,) = written.handmade("many")
    for scheme in ("file", "local"):
        frame = spark.read.format("sstable").option("split_bytes", "5000").load(f"{scheme}://{location.folder}")
        assert frame.count() == MANY
        assert frame.select("origin.file").first() == (f"{scheme}://{location.path('Data.db')}",)
