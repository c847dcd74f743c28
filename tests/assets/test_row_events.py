"""The row events' assets, on a real lake and Kafka: found, checked, published, each once; old ones merged."""

from dataclasses import replace

import pytest
from dagster import DagsterInstance, materialize
from pyspark.sql import SparkSession

from tests.assets.runs import numbers
from tests.support.event_replay import replayed
from tests.support.lake_answers import view_rows
from tests.support.made import SCHEMA, add, write
from writetime.clients.quality import gxe
from writetime.core.config import Settings
from writetime.lake import state, views
from writetime.lake.followed_tables import FollowedTable
from writetime.lake.table import create_table
from writetime.row_events import publish as publishing
from writetime.row_events import stream
from writetime.row_events.trimming import merged_to
from writetime_dagster.assets import expectations, row_events
from writetime_dagster.assets.naming import key_of
from writetime_dagster.assets.table_jobs import maintain_job
from writetime_dagster.resources import KafkaResource, LakeResource, SparkResource

RESOURCES = {"spark": SparkResource(), "lake": LakeResource(), "kafka": KafkaResource()}


def test_events_to_topic(settings: Settings, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = replace(SCHEMA, keyspace=settings.cassandra.keyspace)
    table = create_table(settings, schema)
    name = schema.full_name
    assets = [row_events.events(FollowedTable(name)), row_events.topic(FollowedTable(name))]

    def run() -> tuple[dict[str, object], dict[str, object]]:
        result = materialize(
            assets,
            instance=DagsterInstance.ephemeral(),
            resources=RESOURCES,
        )
        assert all(check.passed for check in result.get_asset_check_evaluations())
        return numbers(result, key_of(name, "row_events")), numbers(result, key_of(name, "row_topic"))

    add(table, [write(i, 1, 5, v="a") for i in range(30)], 1, schema)
    events, topic = run()
    assert (events["events"], events["events_create"], topic["events_published"]) == (30, 30, 30)
    add(table, [write(i, 1, 6, v="b") for i in range(20, 35)], 2, schema)
    events, topic = run()
    assert (events["events_create"], events["events_update"], events["events_delete"]) == (5, 10, 0)
    assert topic["events_published"] == 15
    # What is not as expected is in no commit, so no later run publishes it either.
    add(table, [write(40, 1, 6, v="b")], 3, schema)
    with monkeypatch.context() as patch:
        patch.setattr(expectations, "of_events", lambda rows: [gxe.ExpectTableRowCountToEqual(value=rows + 1)])
        failed = materialize(assets, instance=DagsterInstance.ephemeral(), resources=RESOURCES, raise_on_error=False)
    assert not failed.success
    assert [check.passed for check in failed.get_asset_check_evaluations()] == [False]
    events, topic = run()
    assert (events["events_create"], topic["events_published"]) == (1, 1)
    # Old events give way to the rows that they led to; none is published again, and none is lost.
    monkeypatch.setenv("WRITETIME_ROW_EVENTS__KEEP_DAYS", "0")
    upkeep = {name: RESOURCES[name] for name in ("spark", "lake")}
    state.fold(table)
    upkept = maintain_job([name]).execute_in_process(resources=upkeep)
    [observed] = upkept.get_asset_observation_events()
    assert observed.asset_observation_data.asset_observation.metadata["tombstones"].value == 0
    assert merged_to(table.row_events.load()) == 3
    assert table.state.load().files
    assert replayed(table) == view_rows(views.virtual(table))
    add(table, [write(0, 1, 7, v="c")], 4, schema)
    events, topic = run()
    assert (events["events_update"], topic["events_published"]) == (1, 1)
    assert replayed(table) == view_rows(views.virtual(table))
    events, topic = run()
    assert (events["events"], topic["events_published"]) == (0, 0)
    # What the publisher claims is not taken for what the topic has, nor for all that the lake has.
    add(table, [write(i, 1, 8, v="d") for i in range(3)], 5, schema)
    stream.extend(table)
    monkeypatch.setattr(row_events, "publish", lambda *_: 3)
    monkeypatch.setattr(publishing, "TIMEOUT_SECONDS", 0.0)
    result = materialize(assets[1:], instance=DagsterInstance.ephemeral(), resources=RESOURCES)
    [check] = result.get_asset_check_evaluations()
    assert not check.passed
    assert [check.metadata[name].value for name in ("events_in_topic", "events_waiting")] == [0, 3]
