"""The report of each run that has ended, in Markdown, and an alert if something is wrong.

What belongs here: Dagster's record of a run as text, and the sensors that send it. Not here: how a webhook is called
(`writetime.core.alerts`).
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from dagster import (
    AssetCheckEvaluation,
    AssetCheckSeverity,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    DefaultSensorStatus,
    EventLogEntry,
    MetadataValue,
    RunFailureSensorContext,
    RunStatusSensorContext,
    TimestampMetadataValue,
    run_failure_sensor,
    run_status_sensor,
)

from writetime.core import alerts, config

# The tag with the path of the report, on a run that has ended.
REPORT = "writetime/report"
_EVENTS = {
    DagsterEventType.ASSET_MATERIALIZATION,
    DagsterEventType.ASSET_OBSERVATION,
    DagsterEventType.ASSET_CHECK_EVALUATION,
    DagsterEventType.STEP_FAILURE,
}


def report(instance: DagsterInstance, run: DagsterRun) -> str:
    """Return the report of a run: the outcome of each asset, its numbers, and its checks."""
    stats = instance.get_run_stats(run.run_id)
    began = datetime.fromtimestamp(stats.start_time or 0, UTC)
    seconds = (stats.end_time or 0) - (stats.start_time or 0)
    entries = list(instance.all_logs(run.run_id, of_type=_EVENTS))
    lines = [
        f"# {run.job_name}: {run.status.value.lower()}",
        "",
        f"Run `{run.run_id}`, started {began:%Y-%m-%d %H:%M:%S} UTC, {seconds:.0f} s.",
    ]
    if checks := _checks(entries):
        passed = sum(check.passed for check in checks)
        lines += ["", f"## Checks: {passed} of {len(checks)} passed", "", "| asset | check | |", "|---|---|---|"]
        lines += [f"| {c.asset_key.to_user_string()} | {c.check_name} | {_verdict(c)} |" for c in checks]
    if failures := _failures(entries):
        lines += ["", "## Failures", "", *(f"- `{step}`: {message}" for step, message in failures)]
    for entry in entries:
        event = entry.get_dagster_event()
        if event.event_type is DagsterEventType.ASSET_MATERIALIZATION:
            found = event.step_materialization_data.materialization
        elif event.event_type is DagsterEventType.ASSET_OBSERVATION:
            found = event.asset_observation_data.asset_observation
        else:
            continue
        partition = f", {found.partition}" if found.partition else ""
        lines += ["", f"## {found.asset_key.to_user_string()}{partition}", "", "| | |", "|---|---|"]
        lines += [f"| {name} | {_text(value)} |" for name, value in found.metadata.items()]
    return "\n".join(lines) + "\n"


def complaints(entries: Sequence[EventLogEntry]) -> list[str]:
    """Return the faults of a run that has ended, one per line: failed steps, and checks that did not pass."""
    failed = [
        f"{check.asset_key.to_user_string()}: {check.check_name} {_verdict(check)}"
        for check in _checks(entries)
        if not check.passed
    ]
    return [f"{step}: {message}" for step, message in _failures(entries)] + failed


def ended(instance: DagsterInstance, run: DagsterRun) -> Path:
    """Write the report of a run that has ended, tag the run with the report's path, and return the path. Send an alert
    if something is wrong.
    """
    settings = config.load()
    path = settings.alerts.reports / f"{run.job_name}-{run.run_id}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(report(instance, run))
    instance.add_run_tags(run.run_id, {REPORT: str(path.resolve())})
    found = complaints(list(instance.all_logs(run.run_id, of_type=_EVENTS)))
    if found or run.status is not DagsterRunStatus.SUCCESS:
        title = f"run {run.run_id} of job {run.job_name}: {run.status.value.lower()}"
        alerts.send(settings, title, found)
    return path


@run_failure_sensor(
    name="failed_runs",
    default_status=DefaultSensorStatus.RUNNING,
    description="Writes the report of each run that failed, and sends an alert to `alerts.webhook` and to the log.",
)
def failed_runs(context: RunFailureSensorContext) -> None:
    """Report a failed run."""
    context.log.info("report: %s", ended(context.instance, context.dagster_run))


@run_status_sensor(
    name="finished_runs",
    run_status=DagsterRunStatus.SUCCESS,
    default_status=DefaultSensorStatus.RUNNING,
    description="Writes the report of each successful run, and sends an alert if one of its checks did not pass.",
)
def finished_runs(context: RunStatusSensorContext) -> None:
    """Report a successful run."""
    context.log.info("report: %s", ended(context.instance, context.dagster_run))


@run_status_sensor(
    name="canceled_runs",
    run_status=DagsterRunStatus.CANCELED,
    default_status=DefaultSensorStatus.RUNNING,
    description="Writes the report of each run that an operator or a time limit ended, and sends an alert.",
)
def canceled_runs(context: RunStatusSensorContext) -> None:
    """Report a canceled run."""
    context.log.info("report: %s", ended(context.instance, context.dagster_run))


def _checks(entries: Sequence[EventLogEntry]) -> list[AssetCheckEvaluation]:
    events = [entry.get_dagster_event() for entry in entries]
    of_checks = [e for e in events if e.event_type is DagsterEventType.ASSET_CHECK_EVALUATION]
    return [event.asset_check_evaluation_data for event in of_checks]


def _failures(entries: Sequence[EventLogEntry]) -> list[tuple[str, str]]:
    events = [entry.get_dagster_event() for entry in entries]
    found = []
    for event in events:
        if event.event_type is DagsterEventType.STEP_FAILURE:
            data = event.step_failure_data
            # A `Failure` has a description; any other exception is given by its last line.
            said = data.user_failure_data.description if data.user_failure_data else None
            message = said or (data.error.message if data.error else "")
            found.append((str(event.step_key), " ".join(message.split())))
    return found


def _verdict(check: AssetCheckEvaluation) -> str:
    if check.passed:
        return "passed"
    verdict = "**failed**" if check.severity is AssetCheckSeverity.ERROR else "warns"
    return f"{verdict}: {check.description}" if check.description else verdict


def _text(value: MetadataValue) -> str:
    if isinstance(value, TimestampMetadataValue):
        return f"{datetime.fromtimestamp(value.value, UTC):%Y-%m-%d %H:%M:%S} UTC"
    if isinstance(value.value, float):
        return f"{value.value:,.3f}".rstrip("0").rstrip(".")
    if isinstance(value.value, int) and not isinstance(value.value, bool):
        return f"{value.value:,}"
    return re.sub(r"\s+", " ", str(value.value)).replace("|", "\\|")[:300]
