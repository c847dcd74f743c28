"""Landing as an asset, and the sensor that starts it."""

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

from dagster import (
    AssetCheckSeverity,
    DagsterInstance,
    ExecuteInProcessResult,
    ObserveResult,
    RunConfig,
    RunRequest,
    build_sensor_context,
    materialize,
)
from pyspark.sql import SparkSession

from assets.automation import TABLE_TAG
from assets.capture import LANDED, captured_changes, changes_topics, landed_changes
from assets.lake import TableConfig
from resources import KafkaResource, LakeResource, SparkResource
from tests.lake.answers import view_rows
from tests.lake.made import SCHEMA, batch, write
from writetime.capture import watermarks
from writetime.capture.metrics import Lag, summary
from writetime.capture.progress import Totals
from writetime.capture.publisher import ChangePublisher
from writetime.capture.watermarks import SourceMarks, TableMark, ensure_watermarks_topic
from writetime.config import Settings
from writetime.lake import views
from writetime.lake.table import open_table
from writetime.lake.views import time_now
from writetime.publishing import Sender


def requests(instance: DagsterInstance, table: str) -> list[RunRequest]:
    """What the sensor asks for, of one table."""
    context = build_sensor_context(instance=instance, resources={"kafka": KafkaResource()})
    found = captured_changes(context)
    assert isinstance(found, Iterator)
    return [r for r in found if isinstance(r, RunRequest) and r.tags[TABLE_TAG] == table]


LANDED_STEP = "capture__landed_changes"


def landed_by_dagster(instance: DagsterInstance, table: str) -> ExecuteInProcessResult:
    """Run the asset."""
    return materialize(
        [landed_changes],
        instance=instance,
        resources={"spark": SparkResource(), "lake": LakeResource(), "kafka": KafkaResource()},
        run_config=RunConfig({LANDED_STEP: TableConfig(table=table)}),
    )


def freshness(result: ExecuteInProcessResult) -> tuple[bool, Any]:
    """What the check of the asset says, and until when all is captured."""
    [check] = result.get_asset_check_evaluations()
    assert (check.check_name, check.severity) == ("lake_is_fresh", AssetCheckSeverity.WARN)
    until = check.metadata.get("captured_until")
    return check.passed, until and until.value


def say(settings: Settings, table: str, until: int) -> None:
    """Say as an agent does that all that its node wrote before an instant is published."""
    sender = Sender(settings, "test")
    watermarks.send(sender, "node", SourceMarks({table: TableMark(until)}))
    assert sender.flush()


def test_landing_by_the_sensor(settings: Settings, spark: SparkSession) -> None:
    schema = dataclasses.replace(SCHEMA, keyspace=settings.cassandra.keyspace)
    publisher = ChangePublisher(settings)
    publisher.send(schema, batch([write(i, 0, 5, v=str(i)) for i in range(20)], schema))
    assert publisher.flush()
    with DagsterInstance.ephemeral() as instance:
        (request,) = requests(instance, schema.full_name)
        assert request.tags["writetime/lag"] == "20"
        result = landed_by_dagster(instance, schema.full_name)
        # No node has said how far it is.
        assert freshness(result) == (False, None)
        [event] = result.asset_materializations_for_node(LANDED_STEP)
        assert event.asset_key == LANDED
        assert (event.metadata["changes_landed"].value, event.metadata["changes_not_landed"].value) == (20, 0)
        assert requests(instance, schema.full_name) == []
    rows = view_rows(views.virtual(open_table(settings, schema.full_name)))
    assert sorted(row["id"] for row in rows) == list(range(20))


def test_agents_are_observed(settings: Settings) -> None:
    """By what each said last: here two nodes, of which one is held."""
    ensure_watermarks_topic(settings)
    sender = Sender(settings, "test")
    one = {"at": time.time(), "errors": {"node": 1}, "changes": {"k.t": {"row": 5}}, "held_by": None, "snapshots": {}}
    one |= {
        "lag": dataclasses.asdict(Lag(lag_bytes=7, oldest_segment_seconds=2, backlog_bytes=5, backlog_limit_bytes=10))
    }
    one |= {"totals": dataclasses.asdict(Totals(segments=3, mutations_set_aside=2))}
    other = one | {
        "held_by": "a reason",
        "lag": dataclasses.asdict(Lag(lag_bytes=1, oldest_segment_seconds=9, aside_segments=1)),
    }
    for source, status in (("observed-1", one), ("observed-2", other)):
        watermarks.send(sender, source, SourceMarks(status=status))
    assert sender.flush()
    try:
        result = changes_topics(kafka=KafkaResource())
        assert isinstance(result, ObserveResult)
        metadata: Any = result.metadata
        by_agent = metadata["by_agent"].value
        assert (by_agent["observed-1"], by_agent["observed-2"]) == (one, other)
        assert metadata["held_by"].value["observed-2"] == "a reason"
        numbers = {name: metadata[name] for name in summary([])}
    finally:
        for source in ("observed-1", "observed-2"):
            watermarks.retire(settings, source)
    alone = summary([one, other])
    assert (alone["agents"], alone["agents_held"], alone["lag_bytes"], alone["aside_segments"]) == (2, 1, 8, 1)
    assert (alone["oldest_segment_seconds"], alone["backlog_share"], alone["mutations_set_aside"]) == (9, 0.5, 4)
    assert (alone["errors"], alone["changes"]) == (2, 10)
    # Other tests' agents may be there, too.
    assert all(numbers[name] >= round(alone[name], 3) for name in alone if name != "silent_seconds")


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
