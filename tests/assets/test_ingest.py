"""The ingest assets on real servers: runs drain a topic, check and commit it, are repeated, and are refused."""

import shutil
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from dagster import (
    AssetCheckResult,
    AssetCheckSeverity,
    AssetExecutionContext,
    AssetKey,
    AssetsDefinition,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    Definitions,
    ExecuteInProcessResult,
    Failure,
    ObserveResult,
    RunRequest,
    SkipReason,
    asset,
    build_sensor_context,
    define_asset_job,
    materialize,
)
from pyspark.sql import DataFrame, SparkSession

from tests.support.topics import alter_topic
from writetime.clients import consumer_groups, database, kafka
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.ingest import dead_letter_topic, drain
from writetime.ingest.event import accept
from writetime.ingest.topics import ensure_ingest_topics
from writetime_dagster.assets import automation, ingest, upkeep
from writetime_dagster.resources import DatabaseResource, KafkaResource, LakeResource, SparkResource

pytestmark = pytest.mark.long

RESOURCES: dict[str, Any] = {
    "spark": SparkResource(),
    "kafka": KafkaResource(),
    "lake": LakeResource(),
    "database": DatabaseResource(),
}
ASSETS = [ingest.user_events, ingest.dead_letters]


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral() as instance:
        yield instance


def produce(settings: Settings, *values: bytes | None, days_ago: int = 0) -> None:
    if days_ago:
        alter_topic(settings, settings.ingest.topic, {"message.timestamp.type": "CreateTime"})
    producer = Producer(kafka.client_config(settings, acks="all"))
    at = int((time.time() - 86_400 * days_ago) * 1000)
    for i, value in enumerate(values):
        producer.produce(settings.ingest.topic, key=f"k{i}".encode(), value=value, timestamp=at)
    assert producer.flush(20) == 0


def event_values(count: int) -> list[bytes]:
    now = datetime.now(UTC)
    return [
        accept({"userId": f"u{i % 7}", "eventType": "t", "payload": {"i": i}}, f"call-{i}", now).value()
        for i in range(count)
    ]


def run(instance: DagsterInstance, *assets: AssetsDefinition, raise_on_error: bool = True) -> ExecuteInProcessResult:
    """A run of these assets, or of both. Each takes seconds, most of them for its checks in Spark."""
    return materialize(assets or ASSETS, instance=instance, resources=RESOURCES, raise_on_error=raise_on_error)


def store(settings: Settings, *, commit: bool = True) -> Counter[str]:
    """Process the messages as a run does, without Spark and the checks; return the number of messages by outcome."""
    ranges = drain.plan(settings)
    receipts = [batch for each in ranges for batch in drain.store_range(settings, each)]
    if commit:
        drain.commit(settings, ranges)
    return Counter(outcome for batch in receipts for outcome in batch["outcome"].to_pylist())


def metadata(result: ExecuteInProcessResult, key: object) -> dict[str, object]:
    [event] = [e for e in result.get_asset_materialization_events() if e.asset_key == key]
    return {name: value.value for name, value in event.materialization.metadata.items()}


def letters_in_lake(spark: SparkSession) -> DataFrame:
    return spark.read.format("delta").load(RESOURCES["lake"].path(ingest.DEAD_LETTERS_TABLE))


def stored_rows(settings: Settings) -> int:
    with database.connect(settings) as session:
        [count] = session.execute(f"SELECT count(*) FROM {settings.cassandra.keyspace}.user_events").one()
    return count


def test_events_are_stored_checked_and_committed(
    settings: Settings, spark: SparkSession, instance: DagsterInstance
) -> None:
    values = event_values(300)
    produce(settings, *values, *values[:50], b"no event", None)
    result = run(instance)
    numbers = metadata(result, ingest.USER_EVENTS)
    assert numbers["events_stored"] == 300 == stored_rows(settings)
    assert numbers["events_duplicate"] == 50
    assert numbers["events_dead"] == 2
    assert numbers["messages"] == 352
    assert numbers["consumer_lag"] == 0
    checks = {e.check_name: e.passed for e in result.get_asset_check_evaluations()}
    assert checks == {
        "messages_are_events": True,
        "all_messages_accounted_for": True,
        "rows_are_in_the_database": True,
        "every_dead_letter_is_explained": True,
    }
    assert metadata(result, ingest.DEAD_LETTERS)["rows_appended"] == 2
    lake = letters_in_lake(spark).collect()
    assert {row.reason.partition(":")[0] for row in lake} == {"the message has no value", "the value is not JSON"}
    assert all(row.origin.startswith(f"{settings.ingest.topic}/") for row in lake)

    again = run(instance)
    assert metadata(again, ingest.USER_EVENTS)["messages"] == 0
    assert metadata(again, ingest.DEAD_LETTERS)["dagster/row_count"] == 2
    # A topic that was created again has other messages.
    kafka.delete_topics(settings, [settings.ingest.dead_letter_topic])
    ensure_ingest_topics(settings)
    produce(settings, b"no event")
    store(settings)
    numbers = metadata(run(instance, ingest.dead_letters), ingest.DEAD_LETTERS)
    assert (numbers["rows_appended"], numbers["dagster/row_count"]) == (1, 3)


class LakeOfNow(LakeResource):
    """A lake that keeps no earlier versions."""

    @property
    def settings(self) -> Settings:
        found = super().settings
        return found.model_copy(update={"lake": found.lake.model_copy(update={"vacuum_hours": 0})})


def test_dead_letters_are_cleaned_up(settings: Settings, spark: SparkSession, instance: DagsterInstance) -> None:
    lake = LakeOfNow()
    for value in (b"no event", b"nor this one"):
        produce(settings, value)
        store(settings)
        run(instance, ingest.dead_letters)
    before = letters_in_lake(spark)
    rows, files = sorted(before.collect()), before.inputFiles()
    assert len(files) == 2
    job = upkeep.clean_up_job(["never-written"])
    assert job.execute_in_process(instance=instance, resources={"lake": lake}).success
    after = letters_in_lake(spark)
    assert sorted(after.collect()) == rows
    assert len(after.inputFiles()) == 1
    assert not any(Path(urlsplit(file).path).exists() for file in files)
    # Later runs add to it as before.
    produce(settings, b"one more")
    store(settings)
    assert metadata(run(instance, ingest.dead_letters), ingest.DEAD_LETTERS)["dagster/row_count"] == 3


def test_dead_letters_without_their_offsets_are_not_added_again(
    settings: Settings, spark: SparkSession, instance: DagsterInstance
) -> None:
    produce(settings, b"no event")
    store(settings)
    run(instance, ingest.dead_letters)
    path, letters = RESOURCES["lake"].path(ingest.DEAD_LETTERS_TABLE), letters_in_lake(spark)
    old, schema = letters.collect(), letters.schema
    shutil.rmtree(path)
    spark.createDataFrame(old, schema).write.format("delta").save(path)
    produce(settings, b"nor this one")
    store(settings)
    with pytest.raises(Failure, match="lacks the offset up to which it has them"):
        run(instance, ingest.dead_letters)
    assert letters_in_lake(spark).count() == 1


def test_a_run_that_was_not_committed_is_repeated_without_harm(
    settings: Settings, spark: SparkSession, instance: DagsterInstance
) -> None:
    produce(settings, *event_values(100))
    assert store(settings, commit=False) == {"stored": 100}
    numbers = metadata(run(instance, ingest.user_events), ingest.USER_EVENTS)
    assert numbers["events_stored"] == 100
    assert numbers["events_duplicate"] == 0
    assert stored_rows(settings) == 100


def test_nothing_is_committed_when_a_stored_row_is_not_in_the_database(
    settings: Settings, spark: SparkSession, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(settings, *event_values(40))
    stored = drain.drain

    def lose_rows(*args: object) -> object:
        receipts = stored(*args)  # type: ignore[arg-type]
        with database.connect(settings) as session:
            session.execute(f"DELETE FROM {settings.cassandra.keyspace}.user_events WHERE user_id = 'u3'")
        return receipts

    monkeypatch.setattr(drain, "drain", lose_rows)
    result = run(instance, raise_on_error=False)
    checks = {e.check_name: e for e in result.get_asset_check_evaluations()}
    assert not checks["rows_are_in_the_database"].passed
    assert checks["rows_are_in_the_database"].severity is AssetCheckSeverity.ERROR
    assert metadata(result, ingest.USER_EVENTS)["offsets_committed"] is False
    committed = consumer_groups.committed_offsets(settings, settings.ingest.topic, settings.ingest.group)
    assert set(committed.values()) == {None}
    assert not result.success, "a blocking check stops what comes after"


def test_nothing_is_committed_when_a_message_is_neither_stored_nor_dead(
    settings: Settings, spark: SparkSession, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the drain has fewer receipts than the topic has messages."""
    produce(settings, *event_values(20))
    whole = drain.drain
    monkeypatch.setattr(drain, "drain", lambda *given: whole(*given).where("offset % 3 != 0"))
    result = run(instance, raise_on_error=False)
    [check] = [e for e in result.get_asset_check_evaluations() if e.check_name == "all_messages_accounted_for"]
    assert (check.passed, check.severity) == (False, AssetCheckSeverity.ERROR)
    assert "row count equal" in str(check.description)
    assert metadata(result, ingest.USER_EVENTS)["offsets_committed"] is False
    committed = consumer_groups.committed_offsets(settings, settings.ingest.topic, settings.ingest.group)
    assert set(committed.values()) == {None}
    assert not result.success


def test_a_dead_letter_of_another_program_fails_a_check(
    settings: Settings, spark: SparkSession, instance: DagsterInstance
) -> None:
    """It has no reason and no origin. The lake has it, as the topic does."""
    producer = Producer(kafka.client_config(settings))
    producer.produce(settings.ingest.dead_letter_topic, b"not ours")
    assert producer.flush(20) == 0
    result = run(instance, ingest.dead_letters, raise_on_error=False)
    [check] = result.get_asset_check_evaluations()
    assert not check.passed
    assert "`origin`" in str(check.description)
    assert metadata(result, ingest.DEAD_LETTERS)["rows_appended"] == 1


def test_many_broken_messages_warn_and_are_still_accounted_for(
    settings: Settings, spark: SparkSession, instance: DagsterInstance
) -> None:
    produce(settings, *event_values(10), *([b"{}"] * 10))
    result = run(instance, ingest.user_events)
    [check] = [e for e in result.get_asset_check_evaluations() if e.check_name == "messages_are_events"]
    assert not check.passed
    assert check.severity is AssetCheckSeverity.WARN
    assert metadata(result, ingest.USER_EVENTS)["offsets_committed"] is True
    assert dead_letter_topic.redrive(settings).count == 10
    assert metadata(run(instance, ingest.user_events), ingest.USER_EVENTS)["events_dead"] == 10


def test_a_drain_is_bounded_and_continues_where_it_was(settings: Settings) -> None:
    produce(settings, *event_values(200))
    small = settings.model_copy(update={"ingest": settings.ingest.model_copy(update={"max_events_per_run": 40})})
    stored = 0
    rounds = 0
    while outcomes := store(small):
        stored += outcomes["stored"]
        rounds += 1
    assert stored == 200 == stored_rows(settings)
    assert rounds > 3


def test_topic_is_observed(settings: Settings) -> None:
    produce(settings, *event_values(25))
    result = ingest.user_events_topic(kafka=KafkaResource())
    assert isinstance(result, ObserveResult)
    assert result.metadata
    assert result.metadata["consumer_lag"] == 25
    assert result.metadata["end_offset"] == 25


def test_messages_that_wait_for_half_of_the_retention_fail_a_check(settings: Settings) -> None:
    def check() -> AssetCheckResult:
        result = ingest.lag_is_far_from_retention(kafka=KafkaResource())
        assert isinstance(result, AssetCheckResult)
        return result

    produce(settings, *event_values(5), days_ago=2)
    assert check().passed
    produce(settings, *event_values(7), days_ago=4)
    late = check()
    assert not late.passed
    # Kafka searches the first message that is young enough, so an old message after a young one is not found.
    assert 0 < int(str(late.metadata["messages_waiting_too_long"].value)) <= 12
    store(settings)
    assert check().passed


def test_a_retention_that_cannot_be_read_proves_nothing(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: Future[object] = Future()
    refused.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
    monkeypatch.setattr(AdminClient, "describe_configs", lambda _, asked, **__: dict.fromkeys(asked, refused))
    check = ingest.lag_is_far_from_retention(kafka=KafkaResource())
    assert isinstance(check, AssetCheckResult)
    assert (check.passed, check.severity) == (False, AssetCheckSeverity.WARN)
    assert f"not verified: the retention of topic {settings.ingest.topic} cannot be read" in str(check.description)


def answer_of_the_sensor(instance: DagsterInstance) -> object:
    with build_sensor_context(instance=instance, resources={"kafka": KafkaResource()}) as context:
        return ingest.user_events_lag(context)


def run_that_fails(instance: DagsterInstance, broken: AssetKey) -> None:
    """A run of a job `ingest` in which one asset fails."""

    def fail(context: AssetExecutionContext) -> None:
        if context.asset_key == broken:
            raise RuntimeError("a fault")

    assets = [
        asset(key=ingest.USER_EVENTS)(fail),
        asset(key=ingest.DEAD_LETTERS, deps=[ingest.USER_EVENTS])(fail),
    ]
    job = Definitions(assets, jobs=[define_asset_job("ingest")]).resolve_job_def("ingest")
    assert not job.execute_in_process(instance=instance, raise_on_error=False).success


def test_a_fault_of_the_dead_letters_does_not_delay_events(
    settings: Settings, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their table is left out for a while."""
    produce(settings, *event_values(5))
    run_that_fails(instance, ingest.DEAD_LETTERS)
    asked = answer_of_the_sensor(instance)
    assert isinstance(asked, RunRequest)
    assert asked.asset_selection == [ingest.USER_EVENTS]
    monkeypatch.setattr(automation, "PAUSE_SECONDS", 0.0)
    asked = answer_of_the_sensor(instance)
    assert isinstance(asked, RunRequest)
    assert asked.asset_selection is None


def test_sensor_requests_a_run_while_there_is_lag(
    settings: Settings, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tick() -> object:
        return answer_of_the_sensor(instance)

    quiet = tick()
    assert isinstance(quiet, SkipReason)
    assert "no messages to store" in str(quiet.skip_message)
    produce(settings, *event_values(5))
    assert isinstance(tick(), RunRequest)

    under_way = instance.add_run(DagsterRun(job_name="ingest", status=DagsterRunStatus.STARTED))
    skipped = tick()
    assert isinstance(skipped, SkipReason)
    assert "under way" in str(skipped.skip_message)
    instance.report_run_failed(under_way)
    run_that_fails(instance, ingest.USER_EVENTS)
    skipped = tick()
    assert isinstance(skipped, SkipReason)
    assert "failed" in str(skipped.skip_message)
    monkeypatch.setattr(automation, "PAUSE_SECONDS", 0.0)
    again = tick()
    assert isinstance(again, RunRequest), "a failed run must not be the last"
    assert again.run_key is None


@pytest.mark.parametrize(("first", "committed"), [(5, 2), (0, 7)], ids=["by retention", "by the broker"])
def test_lost_messages_fail_the_check_and_a_run(
    settings: Settings, instance: DagsterInstance, first: int, committed: int
) -> None:
    """Although no message waits: retention has deleted all, or the topic ends before the group's offset."""
    topic, group = settings.ingest.topic, settings.ingest.group
    producer = Producer(kafka.client_config(settings, acks="all"))
    for value in event_values(5):
        producer.produce(topic, value=value, partition=0)
    assert producer.flush(20) == 0
    if first:
        admin = AdminClient(kafka.client_config(settings))
        [deleted] = admin.delete_records([TopicPartition(topic, 0, first)]).values()
        deleted.result(15)
    consumer_groups.commit_offsets(settings, topic, group, {0: committed})
    assert KafkaResource().progress(topic, group).total_lag == 0
    check = ingest.lag_is_far_from_retention(kafka=KafkaResource())
    assert isinstance(check, AssetCheckResult)
    assert (check.passed, check.severity) == (False, AssetCheckSeverity.ERROR)
    with pytest.raises(WritetimeError) as refused:
        drain.plan(settings)
    assert check.description == str(refused.value)
    assert isinstance(answer_of_the_sensor(instance), RunRequest)


def test_upsert_passes_its_checks_with_an_event_twice(
    settings: Settings, spark: SparkSession, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WRITETIME_INGEST__MODE", "upsert")
    values = event_values(20)
    produce(settings, *values, *values[:5])
    numbers = metadata(run(instance, ingest.user_events), ingest.USER_EVENTS)
    assert numbers["events_stored"] == 25
    assert numbers["offsets_committed"] is True
    assert stored_rows(settings) == 20


def test_a_missing_topic_is_named(settings: Settings) -> None:
    absent = settings.model_copy(update={"ingest": settings.ingest.model_copy(update={"topic": "absent"})})
    with pytest.raises(WritetimeError, match=r"topic absent does not exist; run `writetime init`"):
        drain.plan(absent)
