"""Schedules that skip a tick while one of their runs is under way. All stages use them.

What belongs here: code that schedules and sensors share. Not here: jobs, which are beside their assets.
"""

import time
from collections.abc import Callable, Sequence

from dagster import (
    AssetKey,
    DagsterInstance,
    DagsterRunStatus,
    DefaultScheduleStatus,
    JobDefinition,
    RunRequest,
    RunsFilter,
    ScheduleDefinition,
    ScheduleEvaluationContext,
    SkipReason,
    schedule,
)
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

_PAUSE_SECONDS = 900.0
_UNFINISHED = [
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]


def is_under_way(instance: DagsterInstance, job_name: str) -> bool:
    """Return whether a run of a job is queued or running."""
    return bool(instance.get_runs(RunsFilter(job_name=job_name, statuses=_UNFINISHED), limit=1))


def failed_lately(instance: DagsterInstance, job_name: str) -> bool:
    """Return whether the last run of a job failed recently, so that a lasting fault is not tried all the time."""
    [last] = instance.get_run_records(RunsFilter(job_name=job_name), limit=1) or [None]
    if last is None or last.dagster_run.status is not DagsterRunStatus.FAILURE:
        return False
    return time.time() - (last.end_time or 0) < _PAUSE_SECONDS


def on_schedule(
    job: JobDefinition | UnresolvedAssetJobDefinition,
    cron: str,
    description: str,
    left: Callable[[], Sequence[AssetKey]] | None = None,
) -> ScheduleDefinition:
    """Return a schedule that starts a job, unless a run of it is under way. It is off until an operator turns it on.
    `left` returns those assets of the job that a run is needed for; without it, these are all.
    """

    @schedule(
        name=f"{job.name}_schedule",
        job=job,
        cron_schedule=cron,
        default_status=DefaultScheduleStatus.STOPPED,
        description=description,
    )
    def tick(context: ScheduleEvaluationContext) -> RunRequest | SkipReason:
        if is_under_way(context.instance, job.name):
            return SkipReason(f"a run of the job `{job.name}` is under way")
        if left is None:
            return RunRequest()
        if not (keys := left()):
            return SkipReason("`writetime follow` does this for all tables")
        return RunRequest(asset_selection=list(keys))

    return tick
