"""The assets that the unfinished runs of a job are working on."""

import time
from typing import Any

from dagster import (
    AssetExecutionContext,
    AssetKey,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    Definitions,
    asset,
    define_asset_job,
)

from tests.support.sqlite_steps import counted_steps
from writetime_dagster.assets.automation import assets_under_way, failed_lately, is_under_way


def test_assets_of_a_run_are_under_way_from_the_start_of_their_steps_to_their_success() -> None:
    """Before the run begins, all are."""
    seen: list[set[AssetKey]] = []

    def look(context: AssetExecutionContext) -> None:
        seen.append(assets_under_way(context.instance, "job"))

    before: Any = None
    assets = []
    for name in "abc":
        before = asset(name=name, deps=[before] if before else [])(look)
        assets.append(before)
    job = Definitions(assets, jobs=[define_asset_job("job")]).resolve_job_def("job")
    with DagsterInstance.ephemeral() as instance:
        assert job.execute_in_process(instance=instance).success
        assert seen == [{AssetKey(name)} for name in "abc"]
        assert assets_under_way(instance, "job") == set()
        assert not is_under_way(instance, "job")
        instance.create_run_for_job(job)
        assert assets_under_way(instance, "job") == {AssetKey(name) for name in "abc"}
        assert is_under_way(instance, "job", time.time() - 60)
        assert not is_under_way(instance, "job", runs=2)
        assert not is_under_way(instance, "job", time.time() + 60)


def test_a_look_at_the_runs_of_a_job_costs_the_same_after_many_runs() -> None:
    costs: list[int] = []
    with counted_steps() as steps, DagsterInstance.ephemeral() as instance:
        for _ in range(2):
            for _ in range(100 if costs else 5):
                instance.add_run(DagsterRun(job_name="land", status=DagsterRunStatus.SUCCESS))
                instance.add_run(DagsterRun(job_name="observe", status=DagsterRunStatus.SUCCESS))
            began = steps.count
            assert not is_under_way(instance, "land")
            assert not is_under_way(instance, "land", time.time() - 60)
            assert assets_under_way(instance, "land") == set()
            assert not failed_lately(instance, "land")
            costs.append(steps.count - began)
        few, many = costs
        assert 0 < many < 1.5 * few
        instance.add_run(DagsterRun(job_name="observe", status=DagsterRunStatus.STARTED))
        assert not is_under_way(instance, "land")
        instance.add_run(DagsterRun(job_name="land", status=DagsterRunStatus.STARTING))
        assert is_under_way(instance, "land")
        assert not is_under_way(instance, "land", runs=2)
