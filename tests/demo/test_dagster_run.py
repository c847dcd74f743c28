"""The runs of a demo that was killed."""

from pathlib import Path

import pytest
from dagster import DagsterInstance, DagsterRunStatus, job, op
from dagster._core.utils import make_new_run_id

from demo import dagster_run


@op
def nothing() -> None:
    """Do nothing."""


@job
def empty() -> None:
    """A job."""
    nothing()


@pytest.mark.parametrize("of_demo", [True, False])
def test_a_killed_run_gives_its_place_in_a_pool_back(tmp_path: Path, of_demo: bool) -> None:
    """A run that is not the demo's continues."""
    tags = dagster_run._TAGS if of_demo else {}
    with DagsterInstance.local_temp(str(tmp_path)) as instance:
        killed = instance.create_run_for_job(empty, tags=tags, status=DagsterRunStatus.STARTED)
        storage = instance.event_log_storage
        storage.set_concurrency_slots("pool", 1)
        assert storage.claim_concurrency_slot("pool", killed.run_id, "nothing").is_claimed
        dagster_run.end_killed_runs(instance)
        after = instance.get_run_by_id(killed.run_id)
        assert after is not None
        assert after.is_finished is of_demo
        assert storage.claim_concurrency_slot("pool", make_new_run_id(), "nothing").is_claimed is of_demo
