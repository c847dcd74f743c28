"""The assets of the work queue on a real database: they observe queues, drain them on Spark, copy items to the lake,
and check them.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import pytest
from cassandra.cluster import Cluster, Session
from dagster import (
    AssetCheckEvaluation,
    AssetCheckResult,
    DagsterInstance,
    MetadataValue,
    RunRequest,
    SkipReason,
    build_sensor_context,
    materialize,
)
from pyspark.sql import SparkSession

from tests.support.settings import write_settings
from writetime.clients import database
from writetime.core.config import Settings
from writetime.workqueue import Enqueuer, Item, NewItem, Worker, completed
from writetime.workqueue.inspect import InLake, QueueInspector
from writetime.workqueue.items import ItemPartition
from writetime.workqueue.queue_tables import QueueTables
from writetime_dagster.assets import workqueue
from writetime_dagster.assets.definitions import defs
from writetime_dagster.resources import DatabaseResource, LakeResource, SparkResource

pytestmark = pytest.mark.long

_T = TypeVar("_T")
RESOURCES = {"spark": SparkResource(), "database": DatabaseResource(), "lake": LakeResource()}
# One of them fails.
ITEMS = 30
COMPLETED = ITEMS - 1


def handle(item: Item) -> dict[str, int]:
    """The handler, which Spark's workers find by its name."""
    if item.payload == 13:
        raise ValueError("no luck")
    return {"twice": item.payload * 2}


def health(instance: DagsterInstance) -> tuple[Mapping[str, MetadataValue], Sequence[AssetCheckEvaluation]]:
    """The observations and checks of the job `queue_health`."""
    result = defs.get_job_def("queue_health").execute_in_process(instance=instance, resources=RESOURCES)
    [event] = result.get_asset_observation_events()
    return event.asset_observation_data.asset_observation.metadata, result.get_asset_check_evaluations()


@pytest.mark.usefixtures("queue_tables")
def test_a_queue_is_drained_checked_and_copied_to_the_lake(
    settings: Settings, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = settings.workqueue.model_copy(update={"lease_seconds": 10.0})
    settings = settings.model_copy(update={"workqueue": own})
    write_settings(settings, tmp_path / "writetime.toml")
    queues = {"jobs": {"shards": 2, "max_attempts": 1, "max_depth": ITEMS - 1}}
    monkeypatch.setenv("WRITETIME_WORKQUEUE__QUEUES", json.dumps(queues))
    with Enqueuer(RESOURCES["database"].settings) as enqueuer:
        enqueuer.enqueue_many("jobs", [NewItem(n, key=str(n % 7)) for n in range(ITEMS)])
    with DagsterInstance.ephemeral() as instance:
        drain_a_queue_that_is_stuck(instance, monkeypatch)
        for _ in range(2):
            result = materialize([workqueue.completed_events], instance=instance, resources=RESOURCES)
            [event] = result.get_asset_materialization_events()
            assert event.materialization.metadata["dagster/row_count"].value == COMPLETED
        # A bucket that cannot be read keeps its rows, and fails the check.
        with monkeypatch.context() as patch:
            patch.setattr(completed, "faults", lambda _: {ItemPartition("jobs", 0, 5): "a bad row"})
            result = materialize([workqueue.completed_events], instance=instance, resources=RESOURCES)
        [check] = result.get_asset_check_evaluations()
        assert not check.passed
        assert (
            check.description == "queue jobs: 1 of its buckets cannot be read, such as bucket 5 of shard 0: a bad row"
        )
    lost = looked_for_losses()
    assert lost.passed
    assert [lost.metadata[name].value for name in ("completed", "dead", "open")] == [COMPLETED, 1, 0]
    rows = spark.read.format("delta").load(RESOURCES["lake"].path(workqueue.COMPLETED_TABLE)).collect()
    assert {(r.payload, r.result) for r in rows} == {(str(n), f'{{"twice":{n * 2}}}') for n in range(ITEMS) if n != 13}
    assert compared_with_the_lake() == (True, [COMPLETED, COMPLETED, 0, 0])
    assert_lakes_that_differ_are_found(settings, monkeypatch)
    assert compared_with_the_lake() == (True, [COMPLETED, COMPLETED, 0, 0])
    # A dead item without its letter is reported.
    with database.connect(settings) as session:
        session.execute(f"TRUNCATE {settings.cassandra.keyspace}.queue_dead_letters", timeout=60)
    assert not looked_for_losses().passed


def tick(instance: DagsterInstance, cursor: str | None = None) -> tuple[object, str | None]:
    """The runs that the sensor of stuck work requests, and its cursor after that."""
    with build_sensor_context(instance, resources={"database": RESOURCES["database"]}, cursor=cursor) as context:
        return workqueue.stuck_work(context), context.cursor


def drain_a_queue_that_is_stuck(instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sensor and its check find it before, and nothing after."""
    # Too deep, and then too old, too.
    asked, cursor = tick(instance)
    assert isinstance(asked, RunRequest)
    assert_reported_once(instance, cursor)
    observed, [check] = health(instance)
    assert (observed["depth"].value, check.passed) == (ITEMS, False)
    assert check.description == f"queue jobs: {ITEMS} items not finished"
    monkeypatch.setenv("WRITETIME_WORKQUEUE__STUCK_SECONDS", "0.001")
    asked, cursor = tick(instance, cursor)
    assert isinstance(asked, RunRequest), "it is stuck for another reason, too"
    _, [check] = health(instance)
    assert [check.metadata[name].value for name in ("stuck_queues", "deep_queues")] == [1, 1]
    run_config = {"ops": {"drain_queue_op": {"config": {"queue": "jobs", "handler": f"{__name__}:handle"}}}}
    assert defs.get_job_def("drain_queue").execute_in_process(run_config, instance, resources=RESOURCES).success
    asked, cursor = tick(instance, cursor)
    assert isinstance(asked, SkipReason)
    # So the next time that it is stuck is new.
    assert not cursor
    observed, [check] = health(instance)
    assert (observed["depth"].value, check.passed) == (0, True)


def assert_reported_once(instance: DagsterInstance, cursor: str | None) -> None:
    """One request as long as the same is stuck, and another one each hour."""
    asked, same = tick(instance, cursor)
    assert isinstance(asked, SkipReason)
    assert "work of jobs is stuck" in str(asked.skip_message)
    assert same == cursor
    an_hour_before = {"at": time.time() - 3601}
    assert isinstance(tick(instance, json.dumps(json.loads(cursor or "") | an_hour_before))[0], RunRequest)


def looked_for_losses() -> AssetCheckResult:
    """The result of the check that no item is lost."""
    found = workqueue.no_item_is_lost(database=RESOURCES["database"])
    assert isinstance(found, AssetCheckResult)
    return found


def compared_with_the_lake() -> tuple[bool, list[Any]]:
    """The result of the check of the lake, and its numbers."""
    names = ("completed", "in_the_lake", "not_in_the_lake_yet", "buckets_differing")
    check = workqueue.lake_has_what_is_completed(database=RESOURCES["database"], lake=RESOURCES["lake"])
    assert isinstance(check, AssetCheckResult)
    return check.passed, [check.metadata[name].value for name in names]


def assert_lakes_that_differ_are_found(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing item may still arrive while its bucket is open; a surplus item is an error at once."""
    have = completed.in_lake(settings, workqueue.COMPLETED_TABLE)
    # A run reads only the table's log.
    assert workqueue._written(RESOURCES["lake"]) == {place: found.read_at for place, found in have.items()}
    lacking = {place: InLake(found.items - 1, found.read_at) for place, found in have.items()}
    with monkeypatch.context() as patch:
        patch.setattr(completed, "in_lake", lambda *_: lacking)
        assert compared_with_the_lake() == (True, [COMPLETED, COMPLETED - len(have), len(have), 0])
        buckets = f"{settings.cassandra.keyspace}.queue_buckets"
        close = f"UPDATE {buckets} SET closed = 1 WHERE queue = %s AND shard = %s AND bucket = %s"
        with database.connect(settings) as session:
            for place in have:
                session.execute(close, place)
        assert compared_with_the_lake() == (False, [COMPLETED, COMPLETED - len(have), 0, len(have)])
        more = {place: InLake(found.items + 1, 0) for place, found in have.items()}
        patch.setattr(completed, "in_lake", lambda *_: more)
        assert compared_with_the_lake() == (False, [COMPLETED, COMPLETED + len(have), 0, len(have)])


@pytest.mark.usefixtures("queue_tables")
def test_a_fault_of_a_worker_fails_the_check(settings: Settings, tmp_path: Path) -> None:
    write_settings(settings, tmp_path / "writetime.toml")
    check = workqueue.no_work_is_stuck(database=RESOURCES["database"])
    assert isinstance(check, AssetCheckResult)
    assert check.passed
    with database.connect(settings) as session:
        session.execute(
            f"INSERT INTO {settings.cassandra.keyspace}.queue_faults (queue, worker, place, at, times, reason) "
            "VALUES ('jobs', 'w', 'shard 3', toTimestamp(now()), 4, 'injected')"
        )
    check = workqueue.no_work_is_stuck(database=RESOURCES["database"])
    assert isinstance(check, AssetCheckResult)
    assert not check.passed
    assert check.description == "queue jobs, shard 3: injected"


def enqueue_to(*queues: str) -> None:
    """Enqueue an item to each of these queues."""
    with Enqueuer(RESOURCES["database"].settings) as enqueuer:
        for queue in queues:
            enqueuer.enqueue(queue, 1)


def failing_for_broken(function: Callable[..., _T]) -> Callable[..., _T]:
    """The function, but for the queue `broken`."""

    def call(own: Any, queue: str, *rest: Any, **named: Any) -> _T:
        if queue == "broken":
            raise LookupError("injected")
        return function(own, queue, *rest, **named)

    return call


@pytest.mark.usefixtures("queue_tables")
def test_a_queue_that_cannot_be_read_is_named_and_others_are_observed(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_settings(settings, tmp_path / "writetime.toml")
    monkeypatch.setattr(QueueTables, "buckets", failing_for_broken(QueueTables.buckets))
    enqueue_to("broken", "sound")
    with DagsterInstance.ephemeral() as instance:
        observed, [check] = health(instance)
    assert observed["depth_by_queue"].value == {"sound": 1}
    assert not check.passed
    assert check.description == "queue broken cannot be read: LookupError: injected"


def counted_connections(monkeypatch: pytest.MonkeyPatch) -> list[Cluster]:
    """The connections from now on."""
    found: list[Cluster] = []
    connect_once = Cluster.connect

    def connect(self: Cluster) -> Session:
        found.append(self)
        return connect_once(self)

    monkeypatch.setattr(Cluster, "connect", connect)
    return found


@pytest.mark.usefixtures("queue_tables")
def test_a_check_of_many_queues_connects_once(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_settings(settings, tmp_path / "writetime.toml")
    enqueue_to("one", "two", "three")
    connections = counted_connections(monkeypatch)
    of_database = {"database": RESOURCES["database"]}
    account = workqueue.no_item_is_lost(**of_database)
    brought = workqueue.lake_has_what_is_completed(**of_database, lake=RESOURCES["lake"])
    assert isinstance(account, AssetCheckResult)
    assert isinstance(brought, AssetCheckResult)
    assert (account.passed, account.metadata["open"].value, brought.passed) == (True, 3, True)
    assert len(connections) == 2


@pytest.mark.usefixtures("queue_tables")
def test_a_look_at_many_queues_with_delayed_items_is_cheap(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_settings(settings, tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_WORKQUEUE__QUEUES", '{"deep": {"shards": 1, "max_depth": 29}}')
    with Enqueuer(RESOURCES["database"].settings) as enqueuer:
        for queue in ("deep", "one", "two"):
            enqueuer.enqueue_many(queue, [NewItem(n, delay_seconds=n * 86_400) for n in range(30)])
    connections = counted_connections(monkeypatch)
    places: list[ItemPartition] = []

    async def item_ids(self: QueueTables, place: ItemPartition, *bounds: Any) -> list[UUID]:
        places.append(place)
        return await read_ids(self, place, *bounds)

    read_ids = QueueTables.item_ids
    monkeypatch.setattr(QueueTables, "item_ids", item_ids)
    old, deep, faults = workqueue._stuck(RESOURCES["database"])
    # Only the depth of a queue that has a limit needs more than the first item, and those that are not due for long.
    assert (old, deep, faults) == ({}, {"deep": 30}, {})
    assert len(connections) == 1
    assert sorted(Counter(place.queue for place in places).items()) == [("deep", 31), ("one", 1), ("two", 1)]


@pytest.mark.usefixtures("queue_tables")
def test_a_queue_that_cannot_be_copied_fails_a_check(
    settings: Settings, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The items of the others are in the lake."""
    write_settings(settings, tmp_path / "writetime.toml")
    monkeypatch.setattr(QueueInspector, "buckets", failing_for_broken(QueueInspector.buckets))
    enqueue_to("broken", "sound")
    Worker(settings, {"sound": handle}).run(until_idle=True)
    result = materialize([workqueue.completed_events], resources=RESOURCES)
    [event] = result.get_asset_materialization_events()
    assert event.materialization.metadata["dagster/row_count"].value == 1
    [check] = result.get_asset_check_evaluations()
    assert not check.passed
    assert check.description == "queue broken cannot be read: LookupError: injected"
