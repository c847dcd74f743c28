"""Reads the stored rows of receipts back from the database: a receipt is our claim, a row is the database's."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import groupby, islice
from typing import Any
from uuid import UUID

import pyarrow as pa
from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent_with_args
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from writetime.clients.database import connect, timestamp_as_written
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError, reason_of

ROW_SCHEMA = pa.schema(
    [
        pa.field("user_id", pa.string()),
        pa.field("event_timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("event_id", pa.string()),
        pa.field("event_type", pa.string()),
        pa.field("origin", pa.string()),
    ]
)
# ScyllaDB accepts no more in one statement (max_clustering_key_restrictions_per_query).
ROWS_PER_STATEMENT = 100
_STATEMENTS_AT_ONCE = 100
# A partition key of the table, and clustering keys in the partition.
_Wanted = tuple[tuple[Any, ...], list[tuple[datetime, UUID]]]


def read_back(receipts: DataFrame, settings: Settings) -> DataFrame:
    """Return the rows of `user_events` of the events that the receipts report as stored.

    Each row is read by its whole key, because any number of rows may lie between two events of a user.

    Raises (when computed):
        WritetimeError: a read failed.
    """
    by_day = settings.ingest.bucket == "day"
    key = ["user_id", "event_timestamp", "event_id"]
    # In mode `upsert`, an event may be stored twice, also from two Kafka partitions.
    stored = receipts.where("outcome = 'stored'").select(*key).repartition("user_id").sortWithinPartitions(*key)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with connect(settings) as session:
            wanted = rows_wanted((row for batch in batches for row in batch.to_pylist()), by_day=by_day)
            yield from _read(session, settings, wanted)

    return stored.mapInArrow(read, from_arrow_schema(ROW_SCHEMA))


def rows_wanted(stored: Iterable[dict[str, Any]], *, by_day: bool) -> Iterator[_Wanted]:
    """Yield partition keys of the table, each with as many clustering keys as one statement may read.

    `stored` are events in the order of user, timestamp and id; an event that occurs twice is read once.
    """

    def partition(row: dict[str, Any]) -> tuple[Any, ...]:
        return (row["user_id"], *((row["event_timestamp"].date(),) if by_day else ()))

    for place, rows in groupby(stored, partition):
        events = (event for event, _ in groupby((row["event_timestamp"], row["event_id"]) for row in rows))
        while some := [(at, UUID(event_id)) for at, event_id in islice(events, ROWS_PER_STATEMENT)]:
            yield place, some


def _read(session: Session, settings: Settings, wanted: Iterator[_Wanted]) -> Iterator[pa.RecordBatch]:
    table, by_day = f"{settings.cassandra.keyspace}.{settings.ingest.table}", settings.ingest.bucket == "day"
    select = session.prepare(
        f"SELECT user_id, event_timestamp, event_id, event_type, origin FROM {table} "
        f"WHERE user_id = ?{' AND day = ?' if by_day else ''} AND (event_timestamp, event_id) IN ?"
    )
    while some := [(*place, events) for place, events in islice(wanted, _STATEMENTS_AT_ONCE)]:
        rows: list[Any] = []
        answers = execute_concurrent_with_args(session, select, some, raise_on_first_error=False)
        for values, (success, answer) in zip(some, answers, strict=True):
            if not success:
                raise WritetimeError(
                    f"{table}, user {values[0]!r} cannot be read back, run it again: {reason_of(answer)}"
                )
            rows.extend(answer)
        yield _to_arrow(rows)


def _to_arrow(rows: Iterable[Any]) -> pa.RecordBatch:
    values = [
        {**r._asdict(), "event_id": str(r.event_id), "event_timestamp": timestamp_as_written(r.event_timestamp)}
        for r in rows
    ]
    return pa.RecordBatch.from_pylist(values, ROW_SCHEMA)
