"""The sensors that report the runs whose own processes could not report them.

`writetime_dagster.resources.run_reports` writes the reports.
"""

from dagster import (
    DagsterRunStatus,
    DefaultSensorStatus,
    RunFailureSensorContext,
    RunStatusSensorContext,
    run_failure_sensor,
    run_status_sensor,
)

from writetime_dagster.resources.run_reports import ended


@run_failure_sensor(
    name="failed_runs",
    default_status=DefaultSensorStatus.RUNNING,
    description="Reports each failed run whose process could not report it: it was killed, or it could not start.",
)
def failed_runs(context: RunFailureSensorContext) -> None:
    """Report a failed run."""
    context.log.info("report: %s", ended(context.instance, context.dagster_run))


@run_status_sensor(
    name="finished_runs",
    run_status=DagsterRunStatus.SUCCESS,
    default_status=DefaultSensorStatus.RUNNING,
    description="Reports each successful run with a process per step, as such a process does not report the run.",
)
def finished_runs(context: RunStatusSensorContext) -> None:
    """Report a successful run."""
    context.log.info("report: %s", ended(context.instance, context.dagster_run))


@run_status_sensor(
    name="canceled_runs",
    run_status=DagsterRunStatus.CANCELED,
    default_status=DefaultSensorStatus.RUNNING,
    description="Reports each run that an operator or a time limit ended, if its process could not.",
)
def canceled_runs(context: RunStatusSensorContext) -> None:
    """Report a canceled run."""
    context.log.info("report: %s", ended(context.instance, context.dagster_run))
