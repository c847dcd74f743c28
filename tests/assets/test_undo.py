"""The jobs that plan and apply an undo."""

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.made import SCHEMA, add, new_table, write
from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.lake.horizon import raise_complete_snapshot
from writetime.lake.table import create_table
from writetime.lake.views import time_now
from writetime_dagster.assets.undo import undo_jobs
from writetime_dagster.resources import DatabaseResource, LakeResource, SparkResource

pytestmark = pytest.mark.slow


def test_a_plan_is_an_asset_with_its_counts(spark: SparkSession, tmp_path: Path) -> None:
    del spark
    table = new_table(tmp_path / "lake")
    add(table, [write(i, 0, 10, v="good") for i in range(40)], 0)
    add(table, [write(i, 0, 10_000, v="bad") for i in range(5)], 1)
    add(table, [write(i, 1, 10_000, v="bad") for i in range(3)], 2)
    raise_complete_snapshot(table, 1_000_000)
    config = {"table": table.name, "first": "9000", "last": "11000"}
    plan_undo, _ = undo_jobs()
    run = plan_undo.execute_in_process(
        run_config={"ops": {"write_plan": {"config": config}}},
        resources={"lake": LakeResource(folder=str(tmp_path / "lake")), "spark": SparkResource()},
    )
    (materialization,) = [
        event.step_materialization_data.materialization for event in run.get_asset_materialization_events()
    ]
    found = {name: value.value for name, value in materialization.metadata.items()}
    assert {name: found[name] for name in ("overwritten", "deleted", "added", "written_since", "whole_rows")} == {
        # Each row has a marker, too, but it is no other one.
        "overwritten": 5,
        "deleted": 0,
        "added": 3,
        "written_since": 0,
        "whole_rows": 3,
    }
    assert materialization.asset_key.path[-1] == "items_undo_plan"
    assert '"good"' in str(found["examples"])


@pytest.mark.long
def test_a_plan_is_applied_by_its_id(settings: Settings, spark: SparkSession) -> None:
    del spark
    schema = replace(SCHEMA, keyspace=settings.cassandra.keyspace)
    table = create_table(settings, schema)
    add(table, [write(1, 0, 10, v="good"), write(1, 0, 10_000, v="bad")], 0, schema)
    raise_complete_snapshot(table, time_now())
    resources = {"lake": LakeResource(), "spark": SparkResource(), "database": DatabaseResource()}
    plan_undo, apply_undo = undo_jobs()
    config = {"table": table.name, "first": "9000", "last": "11000"}
    planned = plan_undo.execute_in_process({"ops": {"write_plan": {"config": config}}}, resources=resources)
    metadata = planned.get_asset_materialization_events()[0].materialization.metadata
    config = {"table": table.name, "plan": metadata["plan"].value}
    with connect(settings) as session:
        session.execute(schema.create_statement())
        session.execute(f"INSERT INTO {table.name} (id, n, v) VALUES (1, 0, 'bad') USING TIMESTAMP 10000")
        applied = apply_undo.execute_in_process({"ops": {"write_cells": {"config": config}}}, resources=resources)
        (output,) = [e.step_output_data for e in applied.all_node_events if e.is_successful_output]
        assert output.metadata["rows"].value == 1
        assert session.execute(f"SELECT v FROM {table.name}").one().v == "good"
