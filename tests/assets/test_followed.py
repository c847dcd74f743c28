"""Tables that `writetime follow` follows: Dagster shows their progress, and starts nothing for them."""

import json
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetCheckEvaluation,
    AssetObservation,
    DagsterInstance,
    RunRequest,
    SensorDefinition,
    SensorResult,
    SkipReason,
    build_schedule_context,
    build_sensor_context,
    materialize,
)
from dagster._core.definitions.definitions_load_context import DefinitionsLoadContext, DefinitionsLoadType

from tests.assets.runs import numbers
from tests.support.made import add, write
from tests.support.messages import decoded
from tests.support.published import schema_of
from tests.support.settings import write_settings
from writetime.core import config
from writetime.core.config import Settings, TableEntry
from writetime.lake.followed_tables import FollowedTable
from writetime.lake.table import create_table
from writetime.landing.reports import Reporter
from writetime.row_events.publish import EventPublisher, PublisherFenced
from writetime.row_events.stream import extend
from writetime.servers.process import free_port
from writetime.wire.topic_names import row_events_topic
from writetime.wire.watermarks import LandingReport, StepReport, WatermarkTopic
from writetime_dagster.assets import followed, row_events
from writetime_dagster.assets.followed import progress
from writetime_dagster.assets.naming import key_of
from writetime_dagster.assets.wiring import platform
from writetime_dagster.resources import KafkaResource, LakeResource

EXPECT = [{"type": "expect_column_values_to_not_be_null", "column": "v"}]


@pytest.fixture
def settings(kafka: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The keyspace names tables that no other test has, and no database answers that it has no such tables."""
    keyspace = {"keyspace": f"d{uuid.uuid4().hex[:12]}", "port": free_port()}
    tables = {keyspace["keyspace"]: {"a": {"expect": EXPECT}, "b": {}}}
    own = kafka.model_copy(update={"cassandra": kafka.cassandra.model_copy(update=keyspace), "tables": tables})
    write_settings(own, tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    return own


def tables_of(settings: Settings) -> list[FollowedTable]:
    keyspace = settings.cassandra.keyspace
    return [FollowedTable(f"{keyspace}.a", TableEntry(expect=EXPECT)), FollowedTable(f"{keyspace}.b")]


def report(settings: Settings, table: str, at: float, **view: Any) -> None:
    """Report as `writetime follow` does."""
    steps = {
        "row events": StepReport(rows=20, batch=7, delay=0.25),
        "publishing": StepReport(rows=20),
        "view": StepReport(rows=20, **view),
        "upkeep": StepReport(),
    }
    reporter = Reporter(settings)
    reporter.send(table, LandingReport(at, changes=20, steps=steps, steps_at=at))
    reporter.flush()


def look(sensor: SensorDefinition, instance: DagsterInstance, cursor: str | None) -> SensorResult:
    with build_sensor_context(instance=instance, resources={"kafka": KafkaResource()}, cursor=cursor) as context:
        found = sensor(context)
    assert isinstance(found, SensorResult)
    return found


def test_progress_is_observed(settings: Settings) -> None:
    tables = tables_of(settings)
    sensor, now = progress(tables), time.time()
    with DagsterInstance.ephemeral() as instance:
        report(settings, tables[0].name, now, fault="not as expected: 25", unexpected=True, behind_since=now - 3)
        first = look(sensor, instance, None)
        observed = {e.asset_key: e for e in first.asset_events if isinstance(e, AssetObservation)}
        parts = ("changes", "row_events", "row_topic", "view", "state")
        assert set(observed) == {key_of(tables[0].name, part) for part in parts}
        events = observed[key_of(tables[0].name, "row_events")].metadata
        assert events["rows_of_the_last_batch"].value == 7
        assert events["milliseconds_of_the_last_batch"].value == 250
        assert observed[key_of(tables[0].name, "view")].metadata["behind_seconds"].value == 3.0
        assert first.skip_reason == SkipReason(f"recorded: {tables[0].name}")
        [check] = [e for e in first.asset_events if isinstance(e, AssetCheckEvaluation)]
        assert (check.asset_key, check.passed) == (key_of(tables[0].name, "view"), False)
        assert check.metadata["fault"].value == "not as expected: 25"
        # Nothing is recorded twice.
        assert look(sensor, instance, first.cursor).asset_events == []
        report(settings, tables[0].name, now + 1)
        [check] = [e for e in look(sensor, instance, first.cursor).asset_events if isinstance(e, AssetCheckEvaluation)]
        assert check.passed
    assert json.loads(first.cursor or "")["recorded"][tables[0].name][0] == now


def test_progress_without_news_is_recorded_from_time_to_time(settings: Settings) -> None:
    """Reports come each half a minute, and Dagster keeps all that is recorded."""
    tables = tables_of(settings)
    name, sensor, now = tables[0].name, progress(tables), time.time()
    cursor: str | None = None

    def recorded(at: float, **view: Any) -> int:
        nonlocal cursor
        report(settings, name, at, **view)
        found = look(sensor, instance, cursor)
        cursor = found.cursor
        return len(found.asset_events)

    with DagsterInstance.ephemeral() as instance:
        assert recorded(now) == 6
        # A step with much to do is always a little behind.
        assert recorded(now + 30, behind_since=now + 29) == 0
        assert recorded(now + 60) == 0
        assert recorded(now + 90, fault="no disk") == 6
        assert recorded(now + 120, fault="no disk") == 0
        assert recorded(now + 150) == 6
        assert recorded(now + 180, fault="25", unexpected=True) == 6
        assert recorded(now + 210, fault="25", unexpected=True, behind_since=now - 100) == 6
        assert recorded(now + 240, fault="25", unexpected=True, behind_since=now - 100) == 0
        assert recorded(now + 510, fault="25", unexpected=True, behind_since=now - 100) == 6


def test_ticks_read_only_new_reports(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """And once in a while all of it, as Kafka may have lost its data."""
    begun: list[Settings] = []

    def begin(settings: Settings) -> WatermarkTopic:
        begun.append(settings)
        return WatermarkTopic(settings)

    monkeypatch.setattr(followed, "WatermarkTopic", begin)
    monkeypatch.setattr(followed, "_topics", {})
    tables = tables_of(settings)
    with DagsterInstance.ephemeral() as instance:
        for number in range(3):
            report(settings, tables[0].name, time.time(), fault=str(number))
            assert look(progress(tables), instance, None).asset_events
            assert key_of(tables[0].name, "view") not in followed.left(settings, tables)
        assert len(begun) == 1
    followed.shared_watermarks(settings, 0.0)
    assert len(begun) == 2


def selected(instance: DagsterInstance, name: str) -> set[str]:
    """The last parts of the keys that a schedule asks for."""
    # Not the tables that this process loaded for other tests.
    with DefinitionsLoadContext.scoped(DefinitionsLoadContext(DefinitionsLoadType.INITIALIZATION)):
        repository = platform(config.load()).get_repository_def()
    now, resources = datetime.now(UTC), {"kafka": KafkaResource()}
    with build_schedule_context(instance, scheduled_execution_time=now, resources=resources) as context:
        found: list[RunRequest] = list(repository.get_schedule_def(name).evaluate_tick(context).run_requests or [])
    return {key.path[-1] for request in found for key in request.asset_selection or ()}


def test_schedules_leave_out_followed_tables(settings: Settings, tmp_path: Path) -> None:
    tables = tables_of(settings)
    parts = ("state", "view", "row_events", "row_topic")
    of_b = {f"b_{part}" for part in parts}
    with DagsterInstance.local_temp(str(tmp_path)) as instance:
        assert selected(instance, "catch_up_schedule") == of_b | {f"a_{part}" for part in parts}
        report(settings, tables[0].name, time.time())
        assert selected(instance, "catch_up_schedule") == of_b
        report(settings, tables[1].name, time.time())
        assert selected(instance, "catch_up_schedule") == set()
        # One that no longer reports is no longer followed.
        report(settings, tables[1].name, time.time() - 1000)
        assert selected(instance, "catch_up_schedule") == of_b


def test_an_asset_of_a_followed_table_is_materialized_by_hand(settings: Settings, tmp_path: Path) -> None:
    """It publishes for the publisher that `writetime follow` keeps open, and the next one of that continues."""
    lake = settings.lake.model_copy(update={"path": str(tmp_path / "lake"), "cache": str(tmp_path / "cache")})
    settings = settings.model_copy(update={"lake": lake})
    write_settings(settings, tmp_path / "writetime.toml")
    followed_table = tables_of(settings)[0]
    schema = schema_of(settings, "a")
    table, publisher = create_table(settings, schema), EventPublisher(settings, schema.full_name)

    def event(number: int) -> None:
        add(table, [write(number, 1, 5, v="a")], number, schema)
        assert extend(table) == 1

    event(1)
    assert publisher.publish(table) == 1
    report(settings, schema.full_name, time.time())
    assert key_of(schema.full_name, "row_topic") not in followed.left(settings, [followed_table])
    event(2)
    asset, resources = (
        row_events.build_row_events_topic_asset(followed_table),
        {"lake": LakeResource(), "kafka": KafkaResource()},
    )
    result = materialize([asset], instance=DagsterInstance.ephemeral(), resources=resources)
    assert all(check.passed for check in result.get_asset_check_evaluations())
    assert numbers(result, key_of(schema.full_name, "row_topic"))["events_published"] == 1
    event(3)
    with pytest.raises(PublisherFenced):
        publisher.publish(table)
    assert EventPublisher(settings, schema.full_name).publish(table) == 1
    events = decoded(settings, row_events_topic(schema.full_name))
    assert sorted(each["after"]["id"] for each in events) == [1, 2, 3]
