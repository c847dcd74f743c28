"""Landing as an asset, and the sensor that starts it."""

import dataclasses
from collections.abc import Iterator

from dagster import DagsterInstance, RunConfig, RunRequest, build_sensor_context, materialize
from pyspark.sql import SparkSession

from assets.automation import TABLE_TAG
from assets.capture import LANDED, captured_changes, landed_changes
from assets.lake import TableConfig
from resources import KafkaResource, LakeResource, SparkResource
from tests.lake.answers import view_rows
from tests.lake.made import SCHEMA, batch, write
from writetime.capture.publisher import ChangePublisher
from writetime.config import Settings
from writetime.lake import views
from writetime.lake.table import open_table


def requests(instance: DagsterInstance, table: str) -> list[RunRequest]:
    """What the sensor asks for, of one table."""
    context = build_sensor_context(instance=instance, resources={"kafka": KafkaResource()})
    found = captured_changes(context)
    assert isinstance(found, Iterator)
    return [r for r in found if isinstance(r, RunRequest) and r.tags[TABLE_TAG] == table]


LANDED_STEP = "capture__landed_changes"


def test_landing_by_the_sensor(settings: Settings, spark: SparkSession) -> None:
    schema = dataclasses.replace(SCHEMA, keyspace=settings.cassandra.keyspace)
    publisher = ChangePublisher(settings)
    publisher.send(schema, batch([write(i, 0, 5, v=str(i)) for i in range(20)], schema))
    assert publisher.flush()
    with DagsterInstance.ephemeral() as instance:
        (request,) = requests(instance, schema.full_name)
        assert request.tags["writetime/lag"] == "20"
        result = materialize(
            [landed_changes],
            instance=instance,
            resources={"spark": SparkResource(), "lake": LakeResource(), "kafka": KafkaResource()},
            run_config=RunConfig({LANDED_STEP: TableConfig(table=schema.full_name)}),
        )
        [event] = result.asset_materializations_for_node(LANDED_STEP)
        assert event.asset_key == LANDED
        assert (event.metadata["changes_landed"].value, event.metadata["changes_not_landed"].value) == (20, 0)
        assert requests(instance, schema.full_name) == []
    rows = view_rows(views.virtual(open_table(settings, schema.full_name)))
    assert sorted(row["id"] for row in rows) == list(range(20))
