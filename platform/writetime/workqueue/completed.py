"""Completed items as rows: a bounded PySpark op over buckets, one task per shard and bucket."""

import asyncio
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.workqueue.items import Place
from writetime.workqueue.queue_tables import Tables

SCHEMA = pa.schema(
    [
        pa.field("queue", pa.string(), nullable=False),
        pa.field("bucket", pa.int64(), nullable=False),
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("item_id", pa.string(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("payload", pa.string(), nullable=False),
        pa.field("result", pa.string()),
        pa.field("attempts", pa.int32(), nullable=False),
        pa.field("worker", pa.string()),
        pa.field("completed_at", pa.timestamp("us", "UTC"), nullable=False),
    ]
)
PARTITION = ["queue", "bucket", "shard"]


def read(spark: SparkSession, settings: Settings, places: list[Place]) -> DataFrame:
    """Return the completed items of partitions, one row per item; `bucket` is in milliseconds since 1970."""
    tasks = spark.createDataFrame([tuple(place) for place in places], "queue string, shard int, bucket long")

    def run_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                yield asyncio.run(_read(settings, Place(row["queue"], row["shard"], row["bucket"])))

    return tasks.repartition(max(1, len(places))).mapInArrow(run_task, from_arrow_schema(SCHEMA))


async def _read(settings: Settings, place: Place) -> pa.RecordBatch:
    with connect(settings) as session:
        tables = Tables(session, settings)
        rows = [
            {
                **place._asdict(),
                "item_id": str(item_id),
                "key": item.key,
                "payload": item.payload,
                "result": state.result,
                "attempts": state.attempts,
                "worker": state.worker,
                "completed_at": state.at,
            }
            for item_id, item, state in await tables.completed(place)
        ]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)
