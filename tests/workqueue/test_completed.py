"""Completed items are read in batches of bounded size, and a bucket that cannot be read does not stop the others."""

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from tests.workqueue.conftest import with_queue
from writetime.clients.prepared_statements import UnknownWrite
from writetime.core.config import Settings
from writetime.workqueue import Enqueuer, NewItem, Worker, completed
from writetime.workqueue.inspect import inspecting, worker_faults
from writetime.workqueue.items import ItemPartition
from writetime.workqueue.queue_tables import CompletedItem, QueueTables

pytestmark = pytest.mark.long


@pytest.fixture
def places(queue_settings: Settings, jobs: str) -> list[ItemPartition]:
    """The buckets of a queue with 180 completed items and a delayed one, and dead ones between them."""
    settings = with_queue(queue_settings, jobs, {"shards": 2, "max_attempts": 1})

    def handle(item: Any) -> dict[str, int]:
        return {"twice": 2 * item.payload} if item.payload % 10 else item.payload["no number"]

    with Enqueuer(settings) as enqueuer:
        enqueuer.enqueue_many(jobs, [NewItem(n) for n in range(200)])
        enqueuer.enqueue(jobs, 201, delay_seconds=366 * 86_400)
    Worker(settings, {jobs: handle}).run(until_idle=True)
    with inspecting(settings) as audit:
        return list(audit.buckets(jobs))


def test_a_bucket_is_read_in_batches(queue_settings: Settings, places: list[ItemPartition]) -> None:
    batches = [batch for place in places for batch in completed.read_place(queue_settings, place, batch_rows=70)]
    assert max(batch.num_rows for batch in batches) == 70
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert sorted((int(row["payload"]), row["result"]) for row in rows) == [
        (n, f'{{"twice":{2 * n}}}') for n in range(200) if n % 10
    ]
    assert {(row["attempts"], row["fault"]) for row in rows} == {(1, None)}
    batches = [batch for place in places for batch in completed.read_place(queue_settings, place, batch_characters=200)]
    assert sum(batch.num_rows for batch in batches) == len(rows)
    assert max(batch.num_rows for batch in batches) < 20


def test_a_bucket_that_cannot_be_read_does_not_stop_the_others(
    queue_settings: Settings, places: list[ItemPartition], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = QueueTables.completed
    error: list[Exception] = [ValueError("injected")]

    async def break_one(self: QueueTables, place: ItemPartition) -> AsyncIterator[CompletedItem]:
        async for item in original(self, place):
            yield item
            if place == places[0]:
                raise error[0]

    monkeypatch.setattr(QueueTables, "completed", break_one)
    rows = [[row for b in completed.read_place(queue_settings, p) for row in b.to_pylist()] for p in places]
    assert [row["fault"] for row in rows[0]][-1:] == ["ValueError: injected"]
    assert {row["fault"] for of_place in rows[1:] for row in of_place} == {None}
    [fault] = [row for row in worker_faults(queue_settings) if row.queue == places[0].queue and row.worker == "lake"]
    assert (fault.place, fault.reason) == (f"shard 0, bucket {places[0].bucket}", "ValueError: injected")
    error[0] = UnknownWrite("no answer")
    with pytest.raises(UnknownWrite):
        list(completed.read_place(queue_settings, places[0]))


@pytest.mark.parametrize("kept", range(3))
def test_a_bucket_that_is_dropped_meanwhile_does_not_replace_its_items_in_the_lake(
    queue_settings: Settings, jobs: str, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """It has some pages of items. A worker deletes `queue_items`, then `queue_state`, then the rest."""
    settings = with_queue(queue_settings, jobs, {"shards": 1}, bucket_seconds=10**9)
    with Enqueuer(settings) as enqueuer:
        enqueuer.enqueue_many(jobs, [NewItem(n) for n in range(250)])
    Worker(settings, {jobs: lambda item: None}).run(until_idle=True)
    with inspecting(settings) as audit:
        [place] = audit.buckets(jobs)
    original = QueueTables.completed

    async def drop(self: QueueTables, place: ItemPartition) -> AsyncIterator[CompletedItem]:
        cql = self._cql
        deletions = iter([cql.drop_items, cql.drop_state, cql.drop_buckets][: 3 - kept])
        async for item in original(self, place):
            for deletion in deletions:
                await self._run(deletion, (round(time.time() * 1e6) + 10**8, *place))
            yield item

    monkeypatch.setattr(QueueTables, "completed", drop)
    rows = [row for batch in completed.read_place(settings, place) for row in batch.to_pylist()]
    assert len(rows) < 250
    assert "was dropped while it was read" in rows[-1]["fault"]


def test_items_of_a_partly_read_bucket_do_not_count(spark: SparkSession) -> None:
    item = {"item_id": "i", "key": None, "payload": "1", "result": None, "attempts": 1, "worker": "w"}
    at = datetime(2024, 1, 1, tzinfo=UTC)
    places = [ItemPartition("q", 0, 1), ItemPartition("q", 0, 2), ItemPartition("q", 1, 1)]
    found = [{**place._asdict(), **item, "completed_at": at, "fault": None} for place in places]
    found.append({**places[1]._asdict(), **dict.fromkeys(item), "completed_at": None, "fault": "refused"})
    rows = spark.createDataFrame(found, from_arrow_schema(completed._READ))
    assert completed.faults(rows) == {places[1]: "refused"}
    sound = completed.sound(rows)
    assert sound.columns == completed.SCHEMA.names
    assert sorted((row.queue, row.shard, row.bucket) for row in sound.collect()) == [places[0], places[2]]
