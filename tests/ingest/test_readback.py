"""Stored rows are read back by their keys, and no other rows."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from cassandra.concurrent import execute_concurrent_with_args
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from tests.ingest.sinking import AT, with_ingest
from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.ingest.drain import RECEIPT_SCHEMA
from writetime.ingest.readback import ROWS_PER_STATEMENT, read_back, rows_wanted

Key = tuple[str, datetime, str]


def key(number: int, at: datetime = AT, user: str = "u") -> Key:
    return user, at, str(UUID(int=number))


def receipts(keys: list[Key], outcome: str = "stored") -> list[tuple[Any, ...]]:
    return [(0, n, outcome, "", event_id, user, "t", at) for n, (user, at, event_id) in enumerate(keys)]


@pytest.mark.parametrize("by_day", [False, True])
def test_a_statement_reads_a_bounded_number_of_rows_of_one_partition(*, by_day: bool) -> None:
    keys = [key(n // 2, AT + timedelta(hours=n // 20)) for n in range(500)]
    keys += [key(n, user="v") for n in range(3)]
    fields = ("user_id", "event_timestamp", "event_id")
    found = list(rows_wanted((dict(zip(fields, own, strict=True)) for own in sorted(keys)), by_day=by_day))
    assert max(len(rows) for _, rows in found) <= ROWS_PER_STATEMENT
    # 250 rows of the first user, on two days.
    assert [len(rows) for _, rows in found] == ([100, 90, 60, 3] if by_day else [100, 100, 50, 3])
    assert [(place[0], at, str(event_id)) for place, rows in found for at, event_id in rows] == sorted({*keys})
    assert all(place[1:] == ((rows[0][0].date(),) if by_day else ()) for place, rows in found)


@pytest.mark.parametrize("bucket", ["none", "day"])
def test_rows_between_the_events_of_a_run_are_not_read(settings: Settings, spark: SparkSession, bucket: str) -> None:
    own = with_ingest(settings, bucket=bucket)
    # They are spread over two days.
    between = [key(n, AT + timedelta(minutes=5 * n)) for n in range(600)]
    at_once = [key(10_000 + n) for n in range(250)]
    ends = [key(20_000, AT), key(20_001, AT + timedelta(days=30)), key(1, datetime(9999, 12, 31, tzinfo=UTC), "wörld")]
    by_day = ", day" if bucket == "day" else ""
    table = f"{own.cassandra.keyspace}.{own.ingest.table}"
    with connect(own) as session:
        insert = session.prepare(
            f"INSERT INTO {table} (user_id, event_timestamp, event_id, event_type, origin{by_day}) "
            f"VALUES (?, ?, ?, 't', 'here'{', ?' if by_day else ''})"
        )
        rows = [
            (user, at, UUID(event_id), *((at.date(),) if by_day else ()))
            for user, at, event_id in [*between, *at_once, *ends]
        ]
        execute_concurrent_with_args(session, insert, rows)
    stored = [*at_once, *ends, between[7]]
    # The same events twice, far apart: they are in different partitions of Spark.
    taken = [*receipts([*stored, key(30_000)]), *receipts(between, "duplicate"), *receipts(stored)]
    frame = spark.createDataFrame(taken, from_arrow_schema(RECEIPT_SCHEMA)).repartition(4)
    found = read_back(frame, own).collect()
    assert sorted(row.event_id for row in found) == sorted(event_id for _, _, event_id in {*stored})
    assert {(row.event_type, row.origin) for row in found} == {("t", "here")}
