"""The job that erases."""

import json
from pathlib import Path

import pytest

from tests.support.made import SCHEMA, add, new_table, write
from writetime.changes.position import PARTITION_POSITION
from writetime.lake.views import virtual
from writetime_dagster.assets.erase import erase_job
from writetime_dagster.resources import KafkaResource, LakeResource

pytestmark = pytest.mark.slow


def test_the_certificate_is_metadata_and_the_keys_are_not(tmp_path: Path) -> None:
    table = new_table(tmp_path / "lake")
    written = write(1, 0, 10, v="gone")
    gone = {name: written[name] for name in ("id", "key", "token")}
    deletion = {"kind": "partition_tombstone", "position": PARTITION_POSITION}
    add(table, [written, write(2, 0, 10, v="stays")], 0)
    add(table, [gone | deletion | {"tombstone": {"write_time": 20, "deletion_time": 0}}], 1)
    (tmp_path / "keys").write_text('{"id": 1}\n')
    config = {"table": SCHEMA.full_name, "keys": str(tmp_path / "keys"), "without_kafka": True}
    run = erase_job().execute_in_process(
        run_config={"ops": {"erase_keys": {"config": config}}},
        resources={"lake": LakeResource(folder=str(tmp_path / "lake")), "kafka": KafkaResource()},
    )
    (output,) = [e.step_output_data for e in run.all_node_events if e.is_successful_output]
    certificate = output.metadata["certificate"].value
    record = json.loads((tmp_path / "lake/erasures/shop.items/00000001.certificate.json").read_text())
    assert certificate == record
    assert record["partitions"] == 1
    assert [row["v"] for part in virtual(table) for row in part.to_pylist()] == ["stays"]
