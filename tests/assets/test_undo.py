"""The jobs that plan and apply an undo."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.made import add, new_table, write
from writetime.lake.horizon import raise_complete_snapshot
from writetime_dagster.assets.undo import undo_jobs
from writetime_dagster.resources import LakeResource, SparkResource

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
