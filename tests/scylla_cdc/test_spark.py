"""The data source in Spark: batches, and streams that end, fail and continue."""

import random
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.streaming.query import StreamingQuery

from tests.scylla_cdc.conftest import Logged
from tests.scylla_cdc.databases import SECOND, CdcDatabase, now, stream_set
from tests.scylla_cdc.logs import asked, origins
from tests.support.merged import assert_answers
from tests.support.spark_streams import run_stream
from writetime.changes.model import change_schema
from writetime.core.waiting import wait_until
from writetime.merge import merge
from writetime.scylla_cdc.offsets import Offset
from writetime.sources.scylla_cdc import ScyllaCdcSource

pytestmark = pytest.mark.long

ORIGIN = "concat_ws('/', origin.file, origin.offset) AS origin"


def test_a_batch(spark: SparkSession, cdc: CdcDatabase, logged: list[Logged]) -> None:
    table = logged[1]
    frame = spark.read.format("scylla_cdc").options(**cdc.options(), table=table.schema.full_name, tasks="3")
    changes = frame.load().toArrow().cast(change_schema(table.schema))
    assert_answers(merge([changes], table.schema), asked(cdc, table.schema, changes))


def test_parts_of_a_log(cdc: CdcDatabase, logged: list[Logged]) -> None:
    table = logged[1]
    middle = str(table.sets[1].time)

    def read(**options: str) -> tuple[list[str], Counter[str]]:
        source = ScyllaCdcSource({**cdc.options(), "table": table.schema.full_name, **options})
        reader = source.reader(source.schema())
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        return source.schema().names, Counter(o for batch in batches for o in origins(batch))

    _, first = read(to=middle)
    fields, second = read(**{"from": middle, "fields": "kind,origin", "tasks": "3"})
    assert fields == ["kind", "origin"]
    assert first + second == Counter(table.origins)
    assert read(**{"from": middle, "to": middle}) == (change_schema(table.schema).names, Counter())


def test_a_stream_keeps_the_snapshot_that_closes_a_gap(cdc: CdcDatabase, late: Logged) -> None:
    late.sets = [stream_set(random.Random(1), now() - 1000 * SECOND, [0, (1 << 63) - 1])]
    cdc.announce_tablets(late.schema, late.sets)
    options = {**cdc.options(), "table": late.schema.full_name, "log_ttl_seconds": "300", "window_seconds": "1"}
    options["batch_seconds"] = "1"
    began = now() - 900 * SECOND
    place: Any = asdict(Offset(began, late.sets[0].time // 1000 * 1000, began, str(late.schema.id)))
    for named in ({"snapshot_at": str(now())}, {}):
        source = ScyllaCdcSource({**options, **named})
        reader = source.streamReader(source.schema())
        end = reader.latestOffset(place, ReadAllAvailable())
        assert end["until"] == place["until"] + SECOND
        assert [list(reader.read(part)) for part in reader.partitions(place, end)]
        place = end


class Sink:
    """Keeps the rows of each batch of a stream; of a repeated batch, those of the last time."""

    def __init__(self) -> None:
        self.batches: dict[int, list[str]] = {}
        self.fail_at: int | None = None

    def __call__(self, frame: DataFrame, batch: int) -> None:
        found = [r.origin for r in frame.selectExpr(ORIGIN).collect()]
        if batch == self.fail_at:
            raise RuntimeError("killed between reading and committing")
        self.batches[batch] = found

    @property
    def origins(self) -> Counter[str]:
        return Counter(origin for batch in list(self.batches.values()) for origin in batch)


def start(spark: SparkSession, cdc: CdcDatabase, table: Logged, sink: Sink, folder: Path, **options: str) -> Any:
    given = {"table": table.schema.full_name, "tasks": "2", **options}
    given["from"] = str(min(group.time for group in table.groups))
    stream = spark.readStream.format("scylla_cdc").options(**cdc.options(), **given).load()
    return stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder))


def test_a_stream_reads_each_row_once_whatever_fails(
    spark: SparkSession, cdc: CdcDatabase, logged: list[Logged], tmp_path: Path
) -> None:
    """Windows of 10 s over two changes of the streams; a bounded run that fails between reading and committing, and one
    that never ends."""
    table = logged[2]
    sink = Sink()
    sink.fail_at = 1
    options = {"window_seconds": "10", "batch_seconds": "60"}
    writer = start(spark, cdc, table, sink, tmp_path / "a", **options)
    with pytest.raises(StreamingQueryException, match="killed between"):
        run_stream(writer.trigger(availableNow=True).start, StreamingQuery.awaitTermination)
    assert sorted(sink.batches) == [0]
    sink.fail_at = None

    def wait_for_all(query: StreamingQuery) -> None:
        wait_until(lambda: sink.origins == Counter(table.origins) or not query.isActive, 300)
        if (fault := query.exception()) is not None:
            raise fault

    writer = start(spark, cdc, table, sink, tmp_path / "a", **options)
    run_stream(writer.trigger(processingTime="1 second").start, wait_for_all).stop()
    assert len(sink.batches) > 1
    assert sink.origins == Counter(table.origins)
