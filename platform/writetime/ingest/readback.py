"""Reads the stored rows of receipts back from the database: a receipt is our claim, a row is the database's."""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from cassandra.concurrent import execute_concurrent_with_args
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from writetime.clients.database import connect, timestamp_as_written
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError

ROW_SCHEMA = pa.schema(
    [
        pa.field("user_id", pa.string()),
        pa.field("event_timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("event_id", pa.string()),
        pa.field("event_type", pa.string()),
        pa.field("origin", pa.string()),
    ]
)
_PARTITIONS_PER_TASK_CALL = 500


def read_back(receipts: DataFrame, settings: Settings) -> DataFrame:
    """Return the rows of `user_events` in the partitions and time ranges of the receipts' stored events.

    Raises (when computed):
        WritetimeError: a read failed.
    """
    by_day = settings.ingest.bucket == "day"
    day = F.to_date("event_timestamp") if by_day else F.lit(None).cast("date")
    partitions = (
        receipts.where("outcome = 'stored'")
        .groupBy("user_id", day.alias("day"))
        .agg(F.min("event_timestamp").alias("first"), F.max("event_timestamp").alias("last"))
    )
    table = f"{settings.cassandra.keyspace}.{settings.ingest.table}"
    day_clause = " AND day = ?" if by_day else ""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with connect(settings) as session:
            select = session.prepare(
                "SELECT user_id, event_timestamp, event_id, event_type, origin "
                f"FROM {table} "
                f"WHERE user_id = ?{day_clause} AND event_timestamp >= ? AND event_timestamp <= ?"
            )
            for batch in batches:
                keys = [
                    (r["user_id"], *((r["day"],) if by_day else ()), r["first"], r["last"]) for r in batch.to_pylist()
                ]
                for i in range(0, len(keys), _PARTITIONS_PER_TASK_CALL):
                    chunk = keys[i : i + _PARTITIONS_PER_TASK_CALL]
                    for key, answer in zip(chunk, execute_concurrent_with_args(session, select, chunk), strict=True):
                        if not answer.success:
                            raise WritetimeError(
                                f"{table}, user {key[0]!r} cannot be read back: {answer.result_or_exc}"
                            )
                        yield _to_arrow(answer.result_or_exc)

    return partitions.mapInArrow(read, from_arrow_schema(ROW_SCHEMA))


def _to_arrow(rows: Iterable[Any]) -> pa.RecordBatch:
    values = [
        {**r._asdict(), "event_id": str(r.event_id), "event_timestamp": timestamp_as_written(r.event_timestamp)}
        for r in rows
    ]
    return pa.RecordBatch.from_pylist(values, ROW_SCHEMA)
