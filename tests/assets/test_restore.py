"""The job `restore` writes SSTables with the cells of the table."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.made import SCHEMA, add, new_table, write
from writetime.merge import merge
from writetime.storage.locations import find_sstables
from writetime.storage.sstable import SSTable
from writetime_dagster.assets.restore import restore_job
from writetime_dagster.resources import DatabaseResource, LakeResource, SparkResource

pytestmark = pytest.mark.slow


def test_the_job_writes_the_state_of_an_instant(spark: SparkSession, tmp_path: Path) -> None:
    del spark
    table, folder = new_table(tmp_path / "lake"), tmp_path / "out"
    add(table, [write(i, 0, 10 * i, v=f"v{i}") for i in range(40)], 0)
    config = {"table": table.name, "to": str(folder), "as_of": "195"}
    run = restore_job().execute_in_process(
        run_config={"ops": {"write_sstables": {"config": config}}},
        resources={
            "lake": LakeResource(folder=str(tmp_path / "lake")),
            "spark": SparkResource(),
            "database": DatabaseResource(),
        },
    )
    (output,) = [e.step_output_data for e in run.all_node_events if e.is_successful_output]
    assert output.metadata["changes"].value == 20
    batches = [batch for location in find_sstables(str(folder)) for batch in SSTable(location, SCHEMA).scan()]
    assert sorted(merge(batches, SCHEMA)["id"].to_pylist()) == list(range(20))
