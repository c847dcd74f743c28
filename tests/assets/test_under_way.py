"""The assets that the unfinished runs of a job are working on."""

import time
from typing import Any

from dagster import (
    AssetExecutionContext,
    AssetKey,
    DagsterInstance,
    Definitions,
    asset,
    define_asset_job,
)

from writetime_dagster.assets.automation import assets_under_way, is_under_way


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
