"""The assets of row events, on a real lake and Kafka: each event is computed, checked and published once, and old
events are merged.
"""

from dataclasses import replace
from typing import Any

import pytest
from dagster import DagsterInstance, materialize
from pyspark.sql import SparkSession

from tests.assets.runs import numbers
from tests.support.event_replay import replayed
from tests.support.lake_answers import view_rows
from tests.support.made import SCHEMA, add, write
from writetime.clients.great_expectations import gxe
from writetime.core.config import Settings
from writetime.lake import state, views
from writetime.lake.followed_tables import FollowedTable
from writetime.lake.table import create_table
from writetime.row_events import publish as publishing
from writetime.row_events import stream
from writetime.row_events.stream_files import merged_to
from writetime_dagster.assets import expectations, row_events
from writetime_dagster.assets.naming import key_of
from writetime_dagster.assets.table_jobs import maintain_job
from writetime_dagster.resources import KafkaResource, LakeResource, SparkResource

pytestmark = pytest.mark.long

RESOURCES = {"spark": SparkResource(), "lake": LakeResource(), "kafka": KafkaResource()}


class Events:
    """A table of the lake, and the assets of its row events."""

    def __init__(self, settings: Settings) -> None:
        self.schema = replace(SCHEMA, keyspace=settings.cassandra.keyspace)
        self.table = create_table(settings, self.schema)
        self.name = self.schema.full_name
        self.assets = [
            row_events.build_row_events_asset(FollowedTable(self.name)),
            row_events.build_row_events_topic_asset(FollowedTable(self.name)),
        ]

    def add(self, rows: list[dict[str, Any]], number: int) -> None:
        add(self.table, rows, number, self.schema)

    def run(self) -> tuple[dict[str, object], dict[str, object]]:
        """The reports of the two assets."""
        result = materialize(self.assets, instance=DagsterInstance.ephemeral(), resources=RESOURCES)
        assert all(check.passed for check in result.get_asset_check_evaluations())
        return numbers(result, key_of(self.name, "row_events")), numbers(result, key_of(self.name, "row_topic"))

    def assert_replayed(self) -> None:
        """A reader of the events gets the rows of the view."""
        assert replayed(self.table) == view_rows(views.virtual(self.table))


def test_events_to_topic(settings: Settings, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Events(settings)
    made.add([write(i, 1, 5, v="a") for i in range(30)], 1)
    events, topic = made.run()
    assert (events["events"], events["events_create"], topic["events_published"]) == (30, 30, 30)
    made.add([write(i, 1, 6, v="b") for i in range(20, 35)], 2)
    events, topic = made.run()
    assert (events["events_create"], events["events_update"], events["events_delete"]) == (5, 10, 0)
    assert topic["events_published"] == 15
    # Rows that are not as expected are in no commit, so no later run publishes them either.
    made.add([write(40, 1, 6, v="b")], 3)
    fail_of_events_that_are_not_as_expected(made, monkeypatch)
    events, topic = made.run()
    assert (events["events_create"], topic["events_published"]) == (1, 1)
    # Old events give way to the rows that they led to; none is published again, and none is lost.
    merge_old_events(made, monkeypatch)
    made.assert_replayed()
    made.add([write(0, 1, 7, v="c")], 4)
    events, topic = made.run()
    assert (events["events_update"], topic["events_published"]) == (1, 1)
    made.assert_replayed()
    events, topic = made.run()
    assert (events["events"], topic["events_published"]) == (0, 0)
    assert_claims_of_the_publisher_are_not_believed(made, monkeypatch)


def fail_of_events_that_are_not_as_expected(made: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(expectations, "of_events", lambda _: [gxe.ExpectTableRowCountToEqual(value=99)])
        failed = materialize(
            made.assets, instance=DagsterInstance.ephemeral(), resources=RESOURCES, raise_on_error=False
        )
    assert not failed.success
    assert [check.passed for check in failed.get_asset_check_evaluations()] == [False]


def merge_old_events(made: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the job `maintain`."""
    monkeypatch.setenv("WRITETIME_ROW_EVENTS__KEEP_DAYS", "0")
    upkeep = {name: RESOURCES[name] for name in ("spark", "lake")}
    state.fold(made.table)
    upkept = maintain_job([made.name]).execute_in_process(resources=upkeep)
    [observed] = upkept.get_asset_observation_events()
    assert observed.asset_observation_data.asset_observation.metadata["tombstones"].value == 0
    assert merged_to(made.table.row_events.load()) == 3
    assert made.table.state.load().files


def assert_claims_of_the_publisher_are_not_believed(made: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its claim is compared with the topic, and with the whole lake."""
    made.add([write(i, 1, 8, v="d") for i in range(3)], 5)
    stream.extend(made.table)
    monkeypatch.setattr(row_events, "publish", lambda *_: 3)
    monkeypatch.setattr(publishing, "TIMEOUT_SECONDS", 0.0)
    result = materialize(made.assets[1:], instance=DagsterInstance.ephemeral(), resources=RESOURCES)
    [check] = result.get_asset_check_evaluations()
    assert not check.passed
    assert [check.metadata[name].value for name in ("events_in_topic", "events_waiting")] == [0, 3]
