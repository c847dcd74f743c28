"""Replay queues in Dagster, on real servers: partitions, runs, rows in the lake, a backfill, lag, and the check."""

import json
import logging
import sys
import uuid
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from dagster import (
    AssetCheckResult,
    AssetCheckSeverity,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    Definitions,
    ExecuteInProcessResult,
    Failure,
    JobDefinition,
    ObserveResult,
    RetryRequested,
    SensorResult,
    build_op_context,
    build_sensor_context,
)
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from writetime.clients import database
from writetime.clients.zookeeper import NoZooKeeper
from writetime.core.config import Settings
from writetime.core.errors import Transient, WritetimeError
from writetime.replay import Publisher, Subscriber
from writetime.replay.retention import Trimmed
from writetime_dagster.assets import automation, failures, replay
from writetime_dagster.assets.failures import for_each_queue
from writetime_dagster.assets.replay import FailedRun
from writetime_dagster.resources import DatabaseResource, LakeResource, SparkResource

pytestmark = pytest.mark.long

RESOURCES: dict[str, Any] = {"spark": SparkResource(), "database": DatabaseResource(), "lake": LakeResource()}
QUEUE = "my-flights"
BATCHES = [[b"1-0", b"1-1"], [], [b"3-0"], [b"4-0", b"\xff"]]


@pytest.fixture(autouse=True)
def own_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a queue of its own: ZooKeeper and the lake keep those of earlier ones."""
    monkeypatch.setattr(sys.modules[__name__], "QUEUE", f"my-flights.{uuid.uuid4().hex[:8]}")


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral() as made:
        yield made


def tick(instance: DagsterInstance) -> list[tuple[str, str]]:
    """The runs that the sensor asks for, its partitions and its cursor kept as Dagster's daemon does."""
    cursors, name = instance.daemon_cursor_storage, replay.name_of(QUEUE)
    cursor = cursors.get_cursor_values({name}).get(name)
    with build_sensor_context(instance, cursor, resources={"database": RESOURCES["database"]}) as context:
        answer = replay.new_batches(QUEUE)(context)
    assert isinstance(answer, SensorResult), answer
    cursors.set_cursor_values({name: answer.cursor or ""})
    for request in answer.dynamic_partitions_requests or []:
        instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
    return [(r.tags[replay.RANGE_START], r.tags[replay.RANGE_END]) for r in answer.run_requests or []]


def job() -> JobDefinition:
    made = Definitions.merge(Definitions(resources=RESOURCES), replay.definitions([QUEUE], {}))
    return made.get_job_def(replay.name_of(QUEUE))


def run(instance: DagsterInstance, first: str, last: str) -> ExecuteInProcessResult:
    """A run as the sensor asks for it, and a backfill, too."""
    tags = {replay.RANGE_START: first, replay.RANGE_END: last}
    return job().execute_in_process(instance=instance, tags=tags, raise_on_error=False)


def rows() -> list[tuple[int, int, bytes]]:
    read = DeltaTable(RESOURCES["lake"].path(replay.table_of(QUEUE))).to_pyarrow_table()
    return sorted((r["n"], r["position"], r["payload"]) for r in read.to_pylist())


def wanted(batches: list[list[bytes]]) -> list[tuple[int, int, bytes]]:
    return [(n, i, item) for n, items in enumerate(batches, 1) for i, item in enumerate(items)]


@pytest.mark.usefixtures("queue_tables")
def test_batches_come_into_the_lake(
    settings: Settings, spark: SparkSession, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WRITETIME_REPLAY__BATCHES_PER_RUN", "3")
    # tests/assets/test_tables.py has runs that are tried again.
    monkeypatch.setattr(failures, "RETRIES", 0)
    assert tick(instance) == []
    with Publisher(settings, QUEUE) as publisher:
        for items in BATCHES:
            publisher.publish(items)
        assert_one_run_at_a_time(instance, monkeypatch)
        assert_reported_by_partition(run(instance, "1", "3"))
        assert rows() == wanted(BATCHES[:3])
        assert tick(instance) == [("4", "4")]
        # A backfill of two partitions: one is in the lake already, one is not.
        assert run(instance, "3", "4").success
        assert rows() == wanted(BATCHES)
        assert tick(instance) == []
        publisher.publish([b"5-0"])
    assert tick(instance) == [("5", "5")]
    assert_lag_by_processor(settings)
    told = checked()
    assert (told.passed, told.metadata["batches"].value, told.metadata["items"].value) == (True, 5, 6)
    delete_batches_that_the_lake_has(monkeypatch)
    # Deleted batches are not requested again.
    instance.wipe_assets([replay.batches_key(QUEUE)])
    assert tick(instance) == [("4", "5")]
    assert not run(instance, "3", "4").success
    assert rows() == wanted(BATCHES)
    # A batch that differs from the published one fails the run and the check.
    with database.connect(settings) as session:
        session.execute(f"TRUNCATE {settings.cassandra.keyspace}.replay_blocks", timeout=60)
    assert not run(instance, "5", "5").success
    assert rows() == wanted(BATCHES)
    told = checked()
    assert (told.passed, told.metadata["faults"].value) == (False, 2)
    with Publisher(settings, QUEUE) as publisher:
        publisher.publish([b"6-0"])
    assert_damaged_batches_hold_no_other(instance, monkeypatch)
    assert rows() == [*wanted(BATCHES), (6, 0, b"6-0")]


@pytest.mark.usefixtures("queue_tables")
def test_rows_that_are_not_the_items_do_not_come_into_the_lake(
    settings: Settings, spark: SparkSession, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Publisher(settings, QUEUE) as publisher:
        publisher.publish([b"1-0", b"1-1"])
    assert tick(instance) == [("1", "1")]
    whole = replay.read
    with monkeypatch.context() as broken:
        broken.setattr(replay, "read", lambda *given: whole(*given).where("position != 0"))
        result = run(instance, "1", "1")
    [check] = result.get_asset_check_evaluations()
    assert (result.success, check.passed, check.severity) == (False, False, AssetCheckSeverity.ERROR)
    assert "row count equal" in str(check.description)
    assert not DeltaTable.is_deltatable(RESOURCES["lake"].path(replay.table_of(QUEUE)))
    assert run(instance, "1", "1").success
    assert rows() == [(1, 0, b"1-0"), (1, 1, b"1-1")]


def assert_one_run_at_a_time(instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of so many batches; failed ones are requested again after a pause."""
    assert tick(instance) == [("1", "3")]
    under_way = instance.add_run(DagsterRun(job_name=replay.name_of(QUEUE), status=DagsterRunStatus.STARTED))
    assert tick(instance) == []
    instance.report_run_failed(under_way)
    assert tick(instance) == []
    with monkeypatch.context() as later:
        later.setattr(automation, "PAUSE_SECONDS", 0.0)
        assert tick(instance) == [("1", "3")]


def assert_damaged_batches_hold_no_other(instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches 4 and 5 are damaged, 3 and 4 failed together, 5 failed alone, and 6 is new."""
    assert tick(instance) == []
    monkeypatch.setattr(automation, "PAUSE_SECONDS", 0.0)
    assert tick(instance) == [("6", "6")]
    assert run(instance, "6", "6").success
    assert tick(instance) == []
    monkeypatch.setattr(replay, "PAUSE_SECONDS", 0.0)
    assert tick(instance) == [("4", "4")]
    assert not run(instance, "4", "4").success
    # Both have failed alone.
    assert tick(instance) == []


def assert_reported_by_partition(result: ExecuteInProcessResult) -> None:
    """A run of the first three batches."""
    assert result.success
    events = result.get_asset_materialization_events()
    assert sorted((e.partition, e.materialization.metadata["items"].value) for e in events) == [
        ("1", 2),
        ("2", 0),
        ("3", 1),
    ]
    assert [check.passed for check in result.get_asset_check_evaluations()] == [True]


def assert_lag_by_processor(settings: Settings) -> None:
    """Of the lake, and of a subscriber that fails at the fourth batch of five."""
    with Subscriber(settings, QUEUE, "billing") as subscriber, pytest.raises(ZeroDivisionError):
        subscriber.run(lambda batch: 1 // (4 - batch.n))
    observed = replay.queue_in_database(QUEUE)(database=RESOURCES["database"])
    assert isinstance(observed, ObserveResult)
    assert observed.metadata is not None
    seconds = observed.metadata["lag_seconds/billing"]
    lake_seconds = observed.metadata["lag_seconds/lake"]
    assert {**observed.metadata} == {
        "newest_batch": 5,
        "processors": 2,
        "lag_batches": 2,
        "lag_batches/billing": 2,
        "lag_batches/lake": 1,
        "lag_seconds": seconds,
        "lag_seconds/billing": seconds,
        "lag_seconds/lake": lake_seconds,
    }


def checked() -> AssetCheckResult:
    """The result of the check that all batches are complete."""
    told = replay.batches_are_complete(QUEUE)(database=RESOURCES["database"])
    assert isinstance(told, AssetCheckResult)
    return told


def delete_batches_that_the_lake_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention waits for the lake, too."""
    monkeypatch.setenv("WRITETIME_REPLAY__KEEP_DAYS", json.dumps({QUEUE: 1e-9}))
    context = build_op_context()
    replay.trim_queues_op(context, database=RESOURCES["database"])
    trimmed = context.get_output_metadata("result")
    assert trimmed is not None
    assert trimmed["batches_deleted"] == 3


def trimming(error: Exception) -> Callable[[Settings, str], Trimmed]:
    """Retention that fails for the queue `bad` only."""

    def trim(settings: Settings, queue: str) -> Trimmed:
        assert queue in settings.replay.keep_days
        if queue == "bad":
            raise error
        return Trimmed(gone=5, deleted=2, due=5, waits_for=None)

    return trim


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("a bug"), "RuntimeError: a bug"),
        (RecursionError("too deep"), "RecursionError: too deep"),
        (WritetimeError("batch 3 is damaged"), "batch 3 is damaged"),
    ],
)
def test_an_error_of_one_queue_leaves_the_answers_of_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, reason: str
) -> None:
    caplog.set_level(logging.ERROR)
    monkeypatch.setenv("WRITETIME_REPLAY__KEEP_DAYS", json.dumps({"first": 1, "bad": 1, "last": 1}))
    monkeypatch.setattr(replay, "trim", trimming(error))
    context = build_op_context()
    with pytest.raises(Failure) as failed:
        replay.trim_queues_op(context, database=RESOURCES["database"])
    assert failed.value.description == f"batches of some queues were not deleted: queue bad: {reason}"
    metadata: Any = context.get_output_metadata("result")
    assert metadata["batches_deleted"] == 4
    assert metadata["by_queue"].value.keys() == {"first", "last"}
    [logged] = [record for record in caplog.records if record.message == f"queue bad: {reason}"]
    # Of an error that no code expects, the traceback is of use.
    assert bool(logged.exc_info) == (not isinstance(error, WritetimeError))


@pytest.mark.parametrize("error", [Transient("no answer"), NoZooKeeper("no answer")])
def test_a_server_that_is_away_fails_all_queues(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setenv("WRITETIME_REPLAY__KEEP_DAYS", json.dumps({"first": 1, "bad": 1}))
    monkeypatch.setattr(replay, "trim", trimming(error))
    with pytest.raises(RetryRequested):
        replay.trim_queues_op(build_op_context(), database=RESOURCES["database"])


def test_queues_that_fail_never_count_as_answered() -> None:
    def act(name: str) -> int:
        return {"a": 1, "c": 3}[name]

    answers, faults = for_each_queue(["a", "b", "c", "d"], act)
    assert answers == {"a": 1, "c": 3}
    assert faults == {"b": "KeyError: 'b'", "d": "KeyError: 'd'"}


def test_stretches() -> None:
    assert replay.stretch([], 3) == []
    assert replay.stretch([2, 3, 5], 3) == [2, 3]
    assert replay.stretch([2, 3, 4, 5], 3) == [2, 3, 4]


def test_a_damaged_batch_is_stepped_over() -> None:
    """Runs become shorter, until each damaged batch fails alone. All others are copied meanwhile."""
    damaged, missing, failed, now = {250, 251, 1300}, list(range(1, 2001)), [], 0.0
    for tick in range(2000):
        now += 30.0
        found = replay.due(missing, 500, failed, now)
        if damaged & set(found):
            failed.insert(0, FailedRun(range(found[0], found[-1] + 1), now))
        else:
            missing = [n for n in missing if n not in found]
        if tick == 10:
            # The runs that contain no damaged batch are done first.
            assert missing == [*range(1, 501), *range(1001, 1501)]
    assert missing == sorted(damaged)
    alone = [run.ended for run in failed if run.batches == range(1300, 1301)]
    # From then on it is tried each hour, and not more often.
    assert 12 < len(alone) < 17
    assert min(after - before for before, after in pairwise(alone[::-1])) >= 3600
    assert len(failed) - len(alone) < 70
    # Batches that come later do not wait for the damaged ones.
    assert replay.due([*missing, 2001, 2002], 500, failed, now) == [2001, 2002]


def test_the_assets_of_the_queues() -> None:
    assert not replay.definitions([], {}).assets
    made = Definitions.merge(
        Definitions(resources=RESOURCES), replay.definitions(["a.b", "c"], {})
    ).get_repository_def()
    graph = made.asset_graph
    edges = {
        (p.to_user_string(), key.to_user_string())
        for key in graph.get_all_asset_keys()
        for p in graph.get(key).parent_keys
    }
    assert edges == {("queues/a.b", "replay/a.b"), ("queues/c", "replay/c")}
    for key in graph.get_all_asset_keys():
        assert graph.get(key).description, key
        assert graph.get(key).kinds, key
    assert {"batches_a_b", "batches_c", "queues_lag", "queues_check", "queues_trim"} <= set(made.job_names)
    assert sorted(s.name for s in made.sensor_defs) == ["batches_a_b", "batches_c"]
    assert [s.name for s in made.schedule_defs] == ["queues_trim_schedule"]
    # The check reads all batches, so it is not for each five minutes.
    assert {node.name for node in made.get_job("queues_lag").nodes} == {"batches_a_b_lag", "batches_c_lag"}
    with pytest.raises(WritetimeError, match=r"cannot distinguish a.b and a-b"):
        replay.definitions(["a.b", "c", "a-b"], {})
