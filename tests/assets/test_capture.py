"""Landing as an asset, and the sensor that starts it."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from dagster import (
    AssetCheckResult,
    AssetCheckSeverity,
    AssetKey,
    AssetMaterialization,
    DagsterEvent,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    Definitions,
    ExecuteInProcessResult,
    JobDefinition,
    ObserveResult,
    RunRequest,
    build_sensor_context,
    materialize,
)
from dagster._core.definitions.sensor_definition import SensorExecutionData
from dagster._core.events import StepSuccessData
from pyspark.sql import SparkSession

from tests.support.lake_answers import view_rows
from tests.support.made import SCHEMA, batch, write
from tests.support.published import command, produce, publish, published, schema_of
from writetime.capture.change_publisher import ChangePublisher
from writetime.capture.metrics import AgentLag, summary
from writetime.capture.progress import Totals
from writetime.clients import kafka, topic_retention
from writetime.clients.kafka import TopicEnds
from writetime.core.config import Settings, TableEntry
from writetime.core.errors import Transient
from writetime.lake import views
from writetime.lake.followed_tables import FollowedTable
from writetime.lake.table import open_table
from writetime.lake.views import time_now
from writetime.landing import landing
from writetime.landing.landed_offsets import not_landed
from writetime.landing.tasks import LandedFiles, MessageRange, write_part
from writetime.wire import watermarks
from writetime.wire.publishing import Sender
from writetime.wire.topic_names import changes_topic
from writetime.wire.watermarks import SourceMarks, TableMark, WatermarkTopic, ensure_watermarks_topic
from writetime_dagster.assets import automation, capture, changes, followed, table_jobs
from writetime_dagster.assets.naming import key_of
from writetime_dagster.assets.table_jobs import captured_changes, definitions
from writetime_dagster.assets.tables import assets_of
from writetime_dagster.resources import DatabaseResource, KafkaResource, LakeResource, SparkResource

pytestmark = pytest.mark.long

RESOURCES = {"spark": SparkResource, "lake": LakeResource, "kafka": KafkaResource, "database": DatabaseResource}


def tick(instance: DagsterInstance, *tables: str, cursor: str | None = None, **seconds: float) -> SensorExecutionData:
    """The sensor's answer for some tables."""
    of = list(map(FollowedTable, tables))
    sensor = captured_changes(of, **seconds)
    with build_sensor_context(instance=instance, resources={"kafka": KafkaResource()}, cursor=cursor) as context:
        return sensor.evaluate_tick(context)


def requests(instance: DagsterInstance, table: str) -> list[RunRequest]:
    """The run that the sensor requests for one table."""
    found = list(tick(instance, table).run_requests or [])
    assert all(request.asset_selection == [key_of(table, "changes")] for request in found)
    return found


def land(instance: DagsterInstance, *tables: str) -> tuple[list[str], bool]:
    """Execute the run that the sensor requests; return the tables, and whether the run succeeded."""
    [request] = tick(instance, *tables).run_requests or []
    selection = list(request.asset_selection or [])
    result = land_job(*tables).execute_in_process(instance=instance, asset_selection=selection, raise_on_error=False)
    return [name for name in tables if key_of(name, "changes") in selection], result.success


def land_job(*tables: str) -> JobDefinition:
    """The job of some tables."""
    of = [assets_of(FollowedTable(name)) for name in tables]
    whole = Definitions.merge(
        Definitions(
            assets=[asset for assets, _ in of for asset in assets],
            asset_checks=[check for _, checks in of for check in checks],
            resources={name: resource() for name, resource in RESOURCES.items()},
        ),
        definitions(list(map(FollowedTable, tables))),
    )
    return whole.resolve_job_def("land")


def landed_by_dagster(instance: DagsterInstance, table: str, *, raise_on_error: bool = True) -> ExecuteInProcessResult:
    """Run the asset."""
    return materialize(
        [changes.build_changes_asset(FollowedTable(table)), changes.build_lag_checks(FollowedTable(table))],
        instance=instance,
        resources={"spark": SparkResource(), "lake": LakeResource(), "kafka": KafkaResource()},
        raise_on_error=raise_on_error,
    )


def freshness(result: ExecuteInProcessResult) -> tuple[bool, Any]:
    """The result of the check of the asset, and the instant until which all writes are captured."""
    checks = {check.check_name: check for check in result.get_asset_check_evaluations()}
    assert checks["all_messages_landed"].passed
    assert checks["lag_is_bounded"].passed
    check = checks["lake_is_fresh"]
    assert check.severity == AssetCheckSeverity.WARN
    until = check.metadata.get("captured_until")
    return check.passed, until and until.value


def say(settings: Settings, table: str, until: int) -> None:
    """Say as an agent does that all that its node wrote before an instant is published."""
    sender = Sender(settings, "test")
    watermarks.send(sender, "node", SourceMarks({table: TableMark(until)}))
    assert sender.flush()


def waiting_too_long(table: str) -> int:
    """The counts of the topic's check."""
    check: Any = capture.build_retention_check(FollowedTable(table))(kafka=KafkaResource())
    count = check.metadata["messages_waiting_too_long"].value
    assert check.passed == (count == 0)
    return count


def test_landing_by_the_sensor(settings: Settings, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = dataclasses.replace(SCHEMA, keyspace=settings.cassandra.keyspace)
    publisher = ChangePublisher(settings)
    publisher.send(schema, batch([write(i, 0, 5, v=str(i)) for i in range(20)], schema))
    assert publisher.flush()
    assert waiting_too_long(schema.full_name) == 0
    # As if half of the retention were over.
    monkeypatch.setattr(topic_retention, "RETENTION_ALARM", 0.0)
    assert waiting_too_long(schema.full_name) == 20
    with DagsterInstance.ephemeral() as instance:
        (request,) = requests(instance, schema.full_name)
        assert request.tags["writetime/lag"] == "20"
        result = landed_by_dagster(instance, schema.full_name)
        # No node has reported its position.
        assert freshness(result) == (False, None)
        [event] = [e.materialization for e in result.get_asset_materialization_events()]
        assert event.asset_key == key_of(schema.full_name, "changes")
        assert (event.metadata["changes_landed"].value, event.metadata["changes_not_landed"].value) == (20, 0)
        topic = capture.build_changes_topic_asset(FollowedTable(schema.full_name))
        observed: Any = topic(kafka=KafkaResource())
        assert (observed.metadata["messages"], observed.metadata["changes_not_landed"]) == (20, 0)
        assert requests(instance, schema.full_name) == []
        assert waiting_too_long(schema.full_name) == 0
    rows = view_rows(views.virtual(open_table(settings, schema.full_name)))
    assert sorted(row["id"] for row in rows) == list(range(20))


def test_an_incomplete_batch_fails_the_check_and_does_not_land(
    settings: Settings, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    (name,) = published(settings, "a")

    def loses_one(part: MessageRange) -> LandedFiles:
        last = max(part.ends)
        return write_part(dataclasses.replace(part, ends={**part.ends, last: part.ends[last] - 1}))

    monkeypatch.setattr(landing, "write_part", loses_one)
    with DagsterInstance.ephemeral() as instance:
        result = landed_by_dagster(instance, name, raise_on_error=False)
    [check] = [each for each in result.get_asset_check_evaluations() if each.check_name == "all_messages_landed"]
    assert (result.success, check.passed) == (False, False)
    assert "3 messages gave 2 changes" in str(check.description)
    assert open_table(settings, name).changes.load().files == []
    assert not_landed(settings, name) == 3


def test_a_table_that_cannot_land_does_not_slow_the_others(
    settings: Settings, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is left out for a while after its failure; the others land at each tick."""
    broken, sound = published(settings, "a", "b")
    produce(settings, changes_topic(broken), (b"x", b"no change"))
    with DagsterInstance.ephemeral() as instance:
        assert land(instance, broken, sound) == ([broken, sound], False)
        skipped = tick(instance, broken, sound)
        assert skipped.run_requests == []
        assert f"landing of {broken} failed" in (skipped.skip_message or "")
        for i in (4, 5):
            publish(settings, schema_of(settings, "b"), i)
            # A later run that succeeds is no reason to try the other one again.
            assert land(instance, broken, sound) == ([sound], True)
        publish(settings, schema_of(settings, "b"), 6)
        with monkeypatch.context() as later:
            later.setattr(automation, "PAUSE_SECONDS", 0.0)
            assert land(instance, broken, sound) == ([broken, sound], False)
        assert requests(instance, broken) == []
        # A run by hand has landed it meanwhile.
        instance.report_runless_asset_event(AssetMaterialization(key_of(broken, "changes")))
        assert len(requests(instance, broken)) == 1


def requested(tick: SensorExecutionData) -> list[AssetKey]:
    return [key for request in tick.run_requests or [] for key in request.asset_selection or []]


def test_a_table_that_takes_long_does_not_delay_the_others(settings: Settings) -> None:
    """Once its run has taken long, the others get another run; most runs are not worth that."""
    slow, sound = published(settings, "a", "b")
    of_slow = land_job(slow, sound).get_subset(asset_selection={key_of(slow, "changes")})
    with DagsterInstance.ephemeral() as instance:
        run = instance.create_run_for_job(of_slow, status=DagsterRunStatus.STARTED)
        step_of(instance, run, DagsterEventType.STEP_START)
        assert "is under way" in (tick(instance, slow, sound).skip_message or "")
        later = partial(tick, instance, patience_seconds=0.0)
        assert requested(later(slow, sound)) == [key_of(sound, "changes")]
        assert f"are landing {slow}" in (later(slow).skip_message or "")
        step_of(instance, run, DagsterEventType.STEP_SUCCESS)
        assert requested(later(slow, sound)) == [key_of(slow, "changes"), key_of(sound, "changes")]


def step_of(instance: DagsterInstance, run: DagsterRun, kind: DagsterEventType) -> None:
    """Report an event of the only step of a run."""
    [planned] = instance.all_logs(run.run_id, of_type=DagsterEventType.ASSET_MATERIALIZATION_PLANNED)
    data = StepSuccessData(1.0) if kind is DagsterEventType.STEP_SUCCESS else None
    instance.report_dagster_event(
        DagsterEvent(kind.value, run.job_name, step_key=planned.step_key, event_specific_data=data), run.run_id
    )


def test_a_table_whose_topic_has_no_leader_does_not_delay_the_others(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, sound = published(settings, "a", "b")
    end = 3

    def ends(settings: Settings, wanted: Callable[[str], bool]) -> TopicEnds:
        found = kafka.ends_of_topics(settings, wanted)
        faults = {changes_topic(lost): Transient(f"no leader of {lost}")}
        return dataclasses.replace(found, ends={changes_topic(sound): {0: end}}, faults=faults)

    monkeypatch.setattr(table_jobs, "ends_of_topics", ends)
    with DagsterInstance.ephemeral() as instance:
        assert requested(tick(instance, lost, sound)) == [key_of(sound, "changes")]
        end = 0
        skipped = tick(instance, lost, sound)
        assert requested(skipped) == []
        assert f"no leader of {lost}" in (skipped.skip_message or "")


def test_a_tick_queries_kafka_equally_often_for_many_tables(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = published(settings, "a", "b", "c")
    # Ticks share the topic of the watermarks, and the first one after ten minutes opens it again.
    monkeypatch.setattr(followed, "_topics", {})
    followed.shared_watermarks(settings).read()
    asked, ask = 0, kafka.ask_cluster

    def count(*arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        return ask(*arguments)

    monkeypatch.setattr(kafka, "ask_cluster", count)
    with DagsterInstance.ephemeral() as instance:
        assert len(requested(tick(instance, names[0]))) == 1
        of_one, asked = asked, 0
        assert len(requested(tick(instance, *names))) == 3
    assert asked == of_one


def test_a_run_reads_the_watermarks_once_for_agents_and_all_tables(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = published(settings, "a", "b")
    opened, begin = 0, WatermarkTopic.__init__

    def count(topic: WatermarkTopic, settings: Settings) -> None:
        nonlocal opened
        opened += 1
        begin(topic, settings)

    monkeypatch.setattr(WatermarkTopic, "__init__", count)
    monkeypatch.setattr(followed, "_topics", {})
    for table in map(FollowedTable, names):
        observed: Any = capture.build_changes_topic_asset(table)(kafka=KafkaResource())
        assert observed.metadata["messages"]
        checks: Any = changes.build_lag_checks(table)(lake=LakeResource(), kafka=KafkaResource())
        assert len(list(checks)) == 3
    assert isinstance(capture.agents(kafka=KafkaResource()), ObserveResult)
    assert isinstance(capture.no_agent_is_held_up(kafka=KafkaResource()), AssetCheckResult)
    assert opened == 1


def test_each_table_has_its_turn_although_the_lake_is_slow(settings: Settings) -> None:
    names = published(settings, "a", "b", "c")
    cursor: str | None = None
    with DagsterInstance.ephemeral() as instance:
        for name in [*names, names[0]]:
            found = tick(instance, *names, cursor=cursor, lake_seconds=-1.0)
            assert requested(found) == [key_of(name, "changes")]
            cursor = found.cursor


def test_a_table_that_no_agent_has_published_stops_nothing(settings: Settings, spark: SparkSession) -> None:
    """No changes arrive, and a check names the remedy."""
    name = f"{settings.cassandra.keyspace}.none"
    observed: Any = capture.build_changes_topic_asset(FollowedTable(name))(kafka=KafkaResource())
    assert observed.metadata["messages"] == 0
    assert waiting_too_long(name) == 0
    with DagsterInstance.ephemeral() as instance:
        result = landed_by_dagster(instance, name)
    assert result.success
    assert freshness(result) == (False, None)
    checks = {check.check_name: check for check in result.get_asset_check_evaluations()}
    assert "start `writetime agent`" in str(checks["lake_is_fresh"].metadata["fix"].value)


def behind(table: FollowedTable) -> dict[str, AssetCheckResult]:
    """The results of the checks of how far the lake is behind."""
    found: Any = changes.build_lag_checks(table)(lake=LakeResource(), kafka=KafkaResource())
    return {check.check_name: check for check in found}


def test_changes_that_do_not_land_fail_the_checks(settings: Settings) -> None:
    """More than the entry allows wait; and once landing has set the table aside, they do not go on."""
    (name,) = published(settings, "a")
    for most in (2, 3):
        [bounded, goes_on] = [
            behind(FollowedTable(name, TableEntry(max_lag=most)))[check]
            for check in ("lag_is_bounded", "landing_goes_on")
        ]
        assert (bounded.passed, bounded.severity) == (most == 3, AssetCheckSeverity.WARN)
        assert goes_on.passed
    produce(settings, changes_topic(name), (b"x", b"no change"))
    assert command("land", name).exit_code == 1
    found = behind(FollowedTable(name))["landing_goes_on"]
    assert (found.passed, found.severity) == (False, AssetCheckSeverity.ERROR)
    assert "offset" in str(found.description)


class Agents:
    """Two agents that report, of which one is held."""

    def __init__(self, settings: Settings) -> None:
        ensure_watermarks_topic(settings)
        self.sender = Sender(settings, "test")
        lag = AgentLag(lag_bytes=7, oldest_segment_seconds=2, backlog_bytes=5, backlog_limit_bytes=10)
        self.sound = status_of(lag)
        self.held = status_of(AgentLag(lag_bytes=1, oldest_segment_seconds=9, aside_segments=1), held_by="a reason")
        self.report("observed-1", self.sound)
        self.report("observed-2", self.held)

    def report(self, source: str, status: dict[str, Any]) -> None:
        watermarks.send(self.sender, source, SourceMarks(status=status))
        assert self.sender.flush()


def status_of(lag: AgentLag, **more: Any) -> dict[str, Any]:
    """An agent's report."""
    found = {"at": time.time(), "errors": {"node": 1}, "changes": {"k.t": {"row": 5}}, "held_by": None, "snapshots": {}}
    totals = dataclasses.asdict(Totals(segments=3, mutations_set_aside=2))
    return found | {"lag": dataclasses.asdict(lag), "totals": totals} | more


@pytest.fixture
def agents(settings: Settings) -> Iterator[Agents]:
    yield Agents(settings)
    for source in ("observed-1", "observed-2"):
        watermarks.retire(settings, source)


def test_agents_are_observed(agents: Agents) -> None:
    """By the last report of each."""
    result = capture.agents(kafka=KafkaResource())
    assert isinstance(result, ObserveResult)
    metadata: Any = result.metadata
    by_agent = metadata["by_agent"].value
    assert (by_agent["observed-1"], by_agent["observed-2"]) == (agents.sound, agents.held)
    assert metadata["held_by"].value["observed-2"] == "a reason"
    alone = summary([agents.sound, agents.held])
    assert (alone["agents"], alone["agents_held"], alone["lag_bytes"], alone["aside_segments"]) == (2, 1, 8, 1)
    assert (alone["oldest_segment_seconds"], alone["backlog_share"], alone["mutations_set_aside"]) == (9, 0.5, 4)
    assert (alone["errors"], alone["changes"]) == (2, 10)
    # Other tests' agents may be there, too.
    numbers = {name: metadata[name] for name in summary([])}
    assert all(numbers[name] >= round(alone[name], 3) for name in alone if name != "silent_seconds")


def test_an_agent_that_is_held_fails_the_check(agents: Agents) -> None:
    """So do a table that is not captured, and a snapshot that failed."""
    check: Any = capture.no_agent_is_held_up(kafka=KafkaResource())
    assert not check.passed
    assert check.metadata["held_by"].value["observed-2"] == "a reason"
    snapshots = {"k.u": {"status": "failed"}, "k.v": {"status": "done"}}
    agents.report("observed-1", agents.sound | {"not_captured": {"k.t": "a view"}, "snapshots": snapshots})
    check = capture.no_agent_is_held_up(kafka=KafkaResource())
    found = check.metadata["tables_with_faults"].value["observed-1"]
    assert found.keys() == {"k.t", "k.u"}
    assert found["k.t"] == "a view"


def test_a_quiet_table_is_fresh_and_a_silent_node_is_not(settings: Settings, spark: SparkSession) -> None:
    """Of a table that nobody writes to the sensor asks for a run now and then, as the watermark moves all the same."""
    schema = dataclasses.replace(SCHEMA, keyspace=settings.cassandra.keyspace)
    name, stale = schema.full_name, settings.capture.stale_seconds
    publisher = ChangePublisher(settings)
    publisher.announce(schema)
    ensure_watermarks_topic(settings)
    with DagsterInstance.ephemeral() as instance:
        old = time_now() - round(2 * stale * 1e6)
        say(settings, name, old)
        assert freshness(landed_by_dagster(instance, name)) == (False, old / 1e6)
        assert requests(instance, name) == []
        # Less than half of the time that is stale.
        say(settings, name, old + round(stale * 0.4e6))
        assert requests(instance, name) == []
        now = time_now()
        say(settings, name, now)
        (request,) = requests(instance, name)
        assert request.tags["writetime/lag"] == "0"
        assert freshness(landed_by_dagster(instance, name)) == (True, now / 1e6)
        assert requests(instance, name) == []
