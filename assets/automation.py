"""The builders of jobs, schedules and sensors, and the code that they share.

Schedules skip a tick while one of their runs is under way. The jobs `observe` and `audit` join the jobs of all stages.
`dagster.automation` turns all schedules and sensors on. The jobs of one stage are in the module of its assets.
"""

import copy
import operator
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial, reduce, wraps
from typing import Any

import dagster as dg

from writetime.core.config import InvalidSettings, Settings
from writetime.core.errors import WritetimeError, reason_of
from writetime_dagster.assets.naming import changed
from writetime_dagster.resources.run_reports import ALERT_AGAIN

PAUSE_SECONDS = 900.0
"""How long a sensor waits after a failed run."""
# How often a round sends an alert again if it finds the same faults as the one before.
_ALERT_AGAIN_SECONDS = 3600
# The jobs of the stages that only read. A round is one run for all stages: one schedule, process and log instead of
# five.
_ROUNDS = {
    "observe": (
        ("tables_lag", "agents", "ingest_lag", "queue_health", "queues_lag"),
        "*/5 * * * *",
        "Observe tables, topics, agents and queues, and check that nothing is stuck, late or held up.",
    ),
    "audit": (
        ("verify", "queue_audit", "queues_check"),
        "30 3 * * *",
        "Verify views against the database, and check that queues have lost nothing. Reads all rows, items and "
        "batches.",
    ),
}
asset_job = partial(dg.define_asset_job, executor_def=dg.in_process_executor)
"""Returns a job of assets and checks. Its steps share a process, and so one Spark session."""
_NOT_BEGUN = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING]
_UNFINISHED = [*_NOT_BEGUN, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]


def is_under_way(instance: dg.DagsterInstance, job_name: str, since: float = 0.0, *, runs: int = 1) -> bool:
    """Return whether at least `runs` runs of a job are queued or running that were requested after `since` (seconds
    since 1970).
    """
    return len(_unfinished(instance, job_name, since)) >= runs


def assets_under_way(instance: dg.DagsterInstance, job_name: str) -> set[dg.AssetKey]:
    """Return the assets that the queued and running runs of a job are working on: those whose steps have begun and have
    not succeeded, such as a step that waits for its next attempt. If a run has not begun, all of its assets count.
    """
    found: set[dg.AssetKey] = set()
    for run in _unfinished(instance, job_name):
        found |= _not_done(instance, run.run_id, begun=run.status not in _NOT_BEGUN)
    return found


def _unfinished(instance: dg.DagsterInstance, job_name: str, since: float = 0.0) -> list[dg.DagsterRun]:
    """Return the runs of a job that are queued or running, and were requested after `since`."""
    # Without the name of the job: with it, SQLite reads all runs that the job ever had.
    found = instance.get_runs(dg.RunsFilter(statuses=_UNFINISHED, created_after=datetime.fromtimestamp(since, UTC)))
    return [run for run in found if run.job_name == job_name]


def failed_lately(instance: dg.DagsterInstance, job_name: str) -> bool:
    """Return whether the last run of a job failed recently. A sensor then waits, so it does not retry a lasting fault
    at each tick.
    """
    [last] = instance.get_run_records(dg.RunsFilter(job_name=job_name), limit=1) or [None]
    if last is None or last.dagster_run.status is not dg.DagsterRunStatus.FAILURE:
        return False
    return time.time() - (last.end_time or 0) < PAUSE_SECONDS


def assets_that_failed_lately(instance: dg.DagsterInstance, job_name: str) -> set[dg.AssetKey]:
    """Return the assets that failed in a recent run of a job and have not been materialized since. A sensor leaves them
    out, so an asset with a lasting fault does not stop the others. If the process of a run died, all assets that it had
    not finished count as failed.
    """
    since = time.time() - PAUSE_SECONDS
    recent = dg.RunsFilter(
        job_name=job_name, statuses=[dg.DagsterRunStatus.FAILURE], updated_after=datetime.fromtimestamp(since, UTC)
    )
    failed: dict[dg.AssetKey, float] = {}
    for run in instance.get_run_records(recent):
        ended = run.end_time or 0.0
        if ended > since:
            for key in _not_done(instance, run.dagster_run.run_id, begun=False):
                failed[key] = max(failed.get(key, 0.0), ended)
    for record in instance.get_asset_records(list(failed)) if failed else []:
        last = record.asset_entry.last_materialization
        if last is not None and last.timestamp > failed[record.asset_entry.asset_key]:
            del failed[record.asset_entry.asset_key]
    return set(failed)


def _not_done(instance: dg.DagsterInstance, run_id: str, *, begun: bool) -> set[dg.AssetKey]:
    """Return the assets of a run whose steps have not succeeded, or only those whose steps have begun."""
    kinds = {
        dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED,
        dg.DagsterEventType.STEP_START,
        dg.DagsterEventType.STEP_SUCCESS,
    }
    records = instance.get_records_for_run(run_id, of_type=kinds).records
    events = [record.event_log_entry.get_dagster_event() for record in records]
    planned = {event.asset_key: event.step_key for event in events if event.asset_key}
    started = {event.step_key for event in events if event.is_step_start}
    done = {event.step_key for event in events if event.is_step_success}
    return {key for key, step in planned.items() if step not in done and (step in started or not begun)}


def with_rounds(definitions: dg.Definitions) -> dg.Definitions:
    """Return the definitions with the jobs `observe` and `audit`, which join jobs of stages, and their schedules."""
    # A job of assets has its selection, and a job of ops is built already.
    jobs = {job.name: job for job in definitions.jobs or [] if not isinstance(job, dg.JobDefinition)}
    rounds = dg.Definitions()
    for name, (parts, cron, description) in _ROUNDS.items():
        if selections := [jobs[part].selection for part in parts if part in jobs]:
            again = {ALERT_AGAIN: str(_ALERT_AGAIN_SECONDS)}
            whole = asset_job(name, reduce(operator.or_, selections), description=description, run_tags=again)
            timed = on_schedule(name, cron, f"All stages: {description}")
            rounds = dg.Definitions.merge(rounds, dg.Definitions(jobs=[whole], schedules=[timed]))
    return dg.Definitions.merge(definitions, rounds)


def switched(definitions: dg.Definitions, settings: Settings) -> dg.Definitions:
    """Return the definitions with all schedules and sensors on if `dagster.automation` is true. A schedule or sensor
    that someone turned on or off in the web UI keeps that state.
    """
    if not settings.dagster.automation:
        return definitions
    schedules = [copy.copy(found) for found in definitions.schedules or []]
    sensors = [copy.copy(found) for found in definitions.sensors or []]
    for found in schedules:
        assert isinstance(found, dg.ScheduleDefinition)
        found._default_status = dg.DefaultScheduleStatus.RUNNING
    for found in sensors:
        assert isinstance(found, dg.SensorDefinition)
        found._default_status = dg.DefaultSensorStatus.RUNNING
    return changed(definitions, schedules=schedules, sensors=sensors)


def on_schedule(
    job: str,
    cron: str,
    description: str,
    left: Callable[[Settings], Sequence[dg.AssetKey]] | None = None,
) -> dg.ScheduleDefinition:
    """Return a schedule that starts a job, by its name, unless a run of it is under way. It is off until an operator
    turns it on. `left` returns the assets of the job that need a run, by the settings of the resource of Kafka. Without
    it, a run materializes all of them.
    """

    @dg.schedule(
        name=f"{job}_schedule",
        job_name=job,
        cron_schedule=cron,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=description,
        required_resource_keys={"kafka"} if left else None,
    )
    def tick(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        if is_under_way(context.instance, job):
            return dg.SkipReason(f"a run of the job `{job}` is under way")
        if left is None:
            return dg.RunRequest()
        if not (keys := left(context.resources.kafka.settings)):
            return dg.SkipReason("`writetime follow` does this for all tables")
        return dg.RunRequest(asset_selection=list(keys))

    return tick


def step_job(name: str, description: str, steps: Sequence[dg.OpDefinition]) -> dg.JobDefinition:
    """Return a job of steps that are no assets, and do not depend on each other."""
    graph = dg.GraphDefinition(name, node_defs=steps, description=description)
    return graph.to_job(executor_def=dg.in_process_executor)


def sensor_of(
    seconds: int,
    description: str,
    *,
    fault: str | None = None,
    name: str | None = None,
    job: str | None = None,
    records: Iterable[dg.AssetKey] = (),
) -> Callable[[Callable[..., Any]], dg.SensorDefinition]:
    """Return a decorator of the function of a sensor, which is off until an operator turns it on.

    Args:
        seconds: the time between two ticks.
        description: what it does.
        fault: what the tick says if it is skipped because a server or a file cannot be read. Without it, the tick
            fails, as it does for invalid settings.
        name: the sensor's; by default that of the function.
        job: the name of the job that it starts.
        records: the assets of which it records events, if it starts no job.
    """

    def build(tick: Callable[..., Any]) -> dg.SensorDefinition:
        @wraps(tick)
        def guarded(context: dg.SensorEvaluationContext, **resources: Any) -> Any:
            try:
                return tick(context, **resources)
            except (WritetimeError, OSError) as e:
                # A skip hides a fault that only an operator can end.
                if fault is None or isinstance(e, InvalidSettings):
                    raise
                return dg.SkipReason(f"{fault}: {reason_of(e)}")

        return dg.sensor(
            name=name,
            job_name=job,
            minimum_interval_seconds=seconds,
            default_status=dg.DefaultSensorStatus.STOPPED,
            description=description,
            asset_selection=dg.AssetSelection.assets(*records) if records else None,
        )(guarded)

    return build
