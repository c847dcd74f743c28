"""Completed items as rows: a bounded PySpark op over buckets, one task per shard and bucket.

A bucket that cannot be read stops no other one: it yields a row with the reason as `fault`, and is in `writetime
status`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.core.errors import Transient, WritetimeError, reason_of
from writetime.delta.bucketed_table import is_delta_table
from writetime.delta.storage import lake_storage
from writetime.workqueue.faults import report_fault
from writetime.workqueue.inspect import InLake
from writetime.workqueue.items import LAST_ID, NO_ID, ItemPartition
from writetime.workqueue.queue_tables import CompletedItem, QueueTables
from writetime.workqueue.statements import unicode_of

log = logging.getLogger(__name__)

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
# In the row of a fault, the other values are null.
_READ = pa.schema(
    [
        *(field if field.name in PARTITION else field.with_nullable(True) for field in SCHEMA),
        pa.field("fault", pa.string()),
    ]
)
# The years 1 to 9999, in milliseconds: Python and SQL have no other times.
_FIRST_TIME, _LAST_TIME = -62_135_596_800_000, 253_402_300_799_999


def read(spark: SparkSession, settings: Settings, places: list[ItemPartition]) -> DataFrame:
    """Return the completed items of partitions, one row per item; `bucket` is in milliseconds since 1970.

    Pass it to `sound` and `faults`.
    """
    tasks = spark.createDataFrame([tuple(place) for place in places], "queue string, shard int, bucket long")

    def run_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                yield from read_place(settings, ItemPartition(row["queue"], row["shard"], row["bucket"]))

    return tasks.repartition(max(1, len(places))).mapInArrow(run_task, from_arrow_schema(_READ))


def sound(rows: DataFrame) -> DataFrame:
    """Return the items of the places that were read completely."""
    broken = rows.where("fault IS NOT NULL").select(PARTITION)
    return rows.where("fault IS NULL").join(broken, PARTITION, "left_anti").select(SCHEMA.names)


def faults(rows: DataFrame) -> dict[ItemPartition, str]:
    """Return the places that could not be read, with the reasons."""
    found = rows.where("fault IS NOT NULL").select(*ItemPartition._fields, "fault").collect()
    return {ItemPartition(row.queue, row.shard, row.bucket): row.fault for row in found}


def in_lake(settings: Settings, table: str) -> dict[ItemPartition, InLake]:
    """Count the completed items of each bucket in a table of the lake; nothing if it does not exist yet."""
    storage = lake_storage(settings).folder(table)
    if not is_delta_table(storage):
        return {}
    names = [*ItemPartition._fields, "read_at"]
    found: dict[ItemPartition, InLake] = {}
    # Uses a file system that is not Python's, see `BucketedTable.read`.
    dataset = DeltaTable(storage.address, storage_options=dict(storage.options)).to_pyarrow_dataset(
        filesystem=storage.filesystem()
    )
    for batch in dataset.to_batches(columns=names):
        counted = pa.Table.from_batches([batch]).group_by(names).aggregate([([], "count_all")])
        for row in counted.to_pylist():
            place = ItemPartition(row["queue"], row["shard"], row["bucket"])
            before = found.get(place, InLake(0, row["read_at"]))
            found[place] = InLake(before.items + row["count_all"], min(before.read_at, row["read_at"]))
    return found


def read_place(
    settings: Settings, place: ItemPartition, *, batch_rows: int = 1000, batch_characters: int = 4 << 20
) -> Iterator[pa.RecordBatch]:
    """Yield the completed items of one partition in batches. A batch is full at a number of rows, or of characters of
    payloads and results. If the partition cannot be read, yield the fault last. Raises `Transient` if the database does
    not answer.
    """
    with connect(settings) as session, asyncio.Runner() as runner:
        tables = QueueTables(session, settings)
        batches = _batches(tables, place, batch_rows, batch_characters)
        try:
            while (batch := runner.run(_next(batches))) is not None:
                yield batch
        except Transient:
            raise
        except Exception as e:
            reason = reason_of(e)
            log.error("%s: not read: %s", place, reason, exc_info=None if isinstance(e, WritetimeError) else e)
            at = f"shard {place.shard}, bucket {place.bucket}"
            runner.run(report_fault(tables, place.queue, "lake", at, times=1, reason=reason))
            yield pa.RecordBatch.from_pylist([{**place._asdict(), "fault": reason}], _READ)


async def _next(batches: AsyncIterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    return await anext(batches, None)


async def _batches(
    tables: QueueTables, place: ItemPartition, batch_rows: int, batch_characters: int
) -> AsyncIterator[pa.RecordBatch]:
    rows: list[dict[str, Any]] = []
    count = size = 0
    async for item in tables.completed(place):
        count += 1
        rows.append(_row(place, item))
        size += len(item.payload) + len(item.result or "")
        if len(rows) >= batch_rows or size >= batch_characters:
            yield pa.RecordBatch.from_pylist(rows, _READ)
            rows, size = [], 0
    # A worker that drops a bucket deletes its items first. Those that were read before must not replace all of them.
    if count and not await tables.items(place, NO_ID, LAST_ID, 1):
        raise WritetimeError("the bucket was dropped while it was read; the lake keeps the items that it had of it")
    if rows:
        yield pa.RecordBatch.from_pylist(rows, _READ)


def _row(place: ItemPartition, item: CompletedItem) -> dict[str, Any]:
    return {
        **place._asdict(),
        "item_id": str(item.item_id),
        "key": unicode_of(item.key),
        "payload": unicode_of(item.payload),
        "result": unicode_of(item.result),
        "attempts": item.attempts,
        "worker": unicode_of(item.worker),
        "completed_at": min(max(item.at, _FIRST_TIME), _LAST_TIME) * 1000,
    }
