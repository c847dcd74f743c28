"""The report of each run, in Markdown, and an alert if something is wrong.

The process of a run reports it when it releases the resources, before the event that ends the run. Sensors
(`writetime_dagster.assets.runs`) react to this event. They see which runs are reported, and report the others.
`writetime.core.alerts` sends the alert.
"""

import hashlib
import json
import logging
import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg

from writetime.core import alerts, config
from writetime.core.counts import pluralize
from writetime.core.errors import naming, reason_of
from writetime.core.private_folders import restrict_home

log = logging.getLogger(__name__)

# Tags of a run that is reported: the path of the report, and the status in it.
REPORT, REPORTED_STATUS = "writetime/report", "writetime/reported_status"
# Tag of the runs of some jobs: the seconds after which an alert about the same faults is sent again.
# Tags of such a run once it is reported: a digest of its faults, and the time at which their alert was sent.
ALERT_AGAIN = "writetime/alert_again_seconds"
_WRONG, _ALERTED_AT = "writetime/wrong", "writetime/alerted_at"
_EVENTS = {
    dg.DagsterEventType.ASSET_MATERIALIZATION,
    dg.DagsterEventType.ASSET_OBSERVATION,
    dg.DagsterEventType.ASSET_CHECK_EVALUATION,
    dg.DagsterEventType.STEP_FAILURE,
    dg.DagsterEventType.RUN_FAILURE,
    dg.DagsterEventType.ENGINE_EVENT,
}
# What changes from run to run: instants, ages and counts; not the numbers in names, and those of partitions and shards.
_NUMBER = re.compile(r"\d{4}-\d\d-\d\d|(?<![\w/.-])(?<!partition )(?<!shard )\d[\d.,:]*")
_ENDS_OF_STEPS = {dg.DagsterEventType.STEP_SUCCESS, dg.DagsterEventType.STEP_SKIPPED, dg.DagsterEventType.STEP_FAILURE}


def report(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str:
    """Return the report of a run: the outcome of each asset, its numbers, and its checks."""
    stats = instance.get_run_stats(run.run_id)
    began = datetime.fromtimestamp(stats.start_time or 0, UTC)
    # The daemon may end a run before its process has begun.
    seconds = max(0.0, (stats.end_time or time.time()) - (stats.start_time or 0))
    entries = list(instance.all_logs(run.run_id, of_type=_EVENTS))
    lines = [
        f"# {run.job_name}: {run.status.value.lower()}",
        "",
        f"Run `{run.run_id}`, started {began:%Y-%m-%d %H:%M:%S} UTC, {seconds:.0f} s.",
    ]
    if checks := _checks(entries):
        passed = sum(check.passed for check in checks)
        lines += ["", f"## Checks: {passed} of {len(checks)} passed", "", "| asset | check | |", "|---|---|---|"]
        lines += [f"| {c.asset_key.to_user_string()} | {c.check_name} | {_cell(_verdict(c))} |" for c in checks]
    if failures := _failures(entries):
        lines += ["", "## Failures", "", *(f"- `{step}`: {message}" for step, message in failures)]
    for entry in entries:
        event = entry.get_dagster_event()
        if event.event_type is dg.DagsterEventType.ASSET_MATERIALIZATION:
            found = event.step_materialization_data.materialization
        elif event.event_type is dg.DagsterEventType.ASSET_OBSERVATION:
            found = event.asset_observation_data.asset_observation
        else:
            continue
        partition = f", {found.partition}" if found.partition else ""
        lines += ["", f"## {found.asset_key.to_user_string()}{partition}", "", "| | |", "|---|---|"]
        lines += [f"| {name} | {_text(value)} |" for name, value in found.metadata.items()]
    return "\n".join(lines) + "\n"


def complaints(entries: Sequence[dg.EventLogEntry]) -> list[str]:
    """Return the faults of a run, one per line: failed steps, and checks that did not pass."""
    failed = [
        f"{check.asset_key.to_user_string()}: {check.check_name} {_verdict(check)}"
        for check in _checks(entries)
        if not check.passed
    ]
    return [f"{step}: {message}" for step, message in _failures(entries)] + failed


def ended(instance: dg.DagsterInstance, run: dg.DagsterRun, settings_file: Path | None = None) -> Path:
    """Report a run that has ended, unless its own process has reported this end. Return the path of the report."""
    if _reported(run) == run.status.value:
        return Path(run.tags[REPORT])
    return _report(instance, run, settings_file)


def ending(context: dg.InitResourceContext, settings_file: Path | None = None) -> None:
    """Report the run whose resources are released, once. Do nothing outside a run, or in the process of one step."""
    instance, run_id = context.instance, context.run_id
    run = instance.get_run_by_id(run_id) if instance and run_id else None
    if instance is None or run is None or _reported(run):
        return
    if not instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_WORKER_STARTING):
        _report(instance, run.with_status(_status(instance, run)), settings_file)


def _reported(run: dg.DagsterRun) -> str | None:
    """Return the status that was reported of a run. A run that repeats another one inherits its tags."""
    return run.tags.get(REPORTED_STATUS) if run.run_id in run.tags.get(REPORT, "") else None


def _status(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dg.DagsterRunStatus:
    """Return the status that a run is about to have."""
    if run.status is dg.DagsterRunStatus.CANCELING:
        return dg.DagsterRunStatus.CANCELED
    ends = [entry.get_dagster_event() for entry in instance.all_logs(run.run_id, of_type=_ENDS_OF_STEPS)]
    failed = any(event.is_step_failure for event in ends)
    plan = instance.get_execution_plan_snapshot(str(run.execution_plan_snapshot_id))
    # A step that did not end was interrupted, or could not start. Keys with brackets stand for any number of steps.
    missing = {key for key in plan.step_keys_to_execute if "[" not in key} - {event.step_key for event in ends}
    return dg.DagsterRunStatus.FAILURE if failed or missing else dg.DagsterRunStatus.SUCCESS


def _report(instance: dg.DagsterInstance, run: dg.DagsterRun, settings_file: Path | None) -> Path:
    """Write the report of a run, send an alert if something is wrong, and tag the run. Return the report's path.

    If the report cannot be written, the alert is sent nevertheless. The tags are written last. So if the process is
    killed earlier, the alert may come twice, but it is never lost.
    """
    # Without the other fields of resources: the run is also reported if one of them is invalid.
    settings = config.load(settings_file)
    path = (settings.alerts.reports / f"{run.job_name}-{run.run_id}.md").absolute()
    fault = _write(path, report(instance, run))
    found = complaints(list(instance.all_logs(run.run_id, of_type=_EVENTS)))
    wrong = _digest(run.status, found)
    alerted_at, is_known = _alerted_before(instance, run, wrong), True
    if alerted_at is None and (found or run.status is not dg.DagsterRunStatus.SUCCESS):
        # A run whose checks do not pass succeeds, unless they are blocking.
        unmet = f"{pluralize(len(found), 'check')} did not pass"
        outcome = unmet if run.status is dg.DagsterRunStatus.SUCCESS else run.status.value.lower()
        title = f"run {run.run_id} of job {run.job_name}: {outcome}"
        is_known = alerts.send(settings, title, [*found, *fault], run.run_id).result()
    tags = {REPORT: str(path), REPORTED_STATUS: run.status.value}
    if ALERT_AGAIN in run.tags and is_known:
        tags |= {_WRONG: wrong, _ALERTED_AT: str(alerted_at or time.time())}
    instance.add_run_tags(run.run_id, tags)
    return path


def _digest(status: dg.DagsterRunStatus, complaints: Sequence[str]) -> str:
    """Return a digest of the faults of a run. Ages and lags do not count: they change from run to run."""
    said = [_NUMBER.sub("#", complaint) for complaint in complaints]
    return hashlib.sha256(json.dumps([status.value, sorted(said)]).encode()).hexdigest()[:16]


def _alerted_before(instance: dg.DagsterInstance, run: dg.DagsterRun, wrong: str) -> float | None:
    """Return the time (seconds since 1970) of the alert about this run's faults, if the run before found the same
    faults and the alert is not due again. Else return None.
    """
    if (again := run.tags.get(ALERT_AGAIN)) is None:
        return None
    before = instance.get_runs(dg.RunsFilter(job_name=run.job_name), cursor=run.run_id, limit=1)
    if not before or before[0].tags.get(_WRONG) != wrong:
        return None
    alerted_at = float(before[0].tags[_ALERTED_AT])
    return alerted_at if time.time() - alerted_at < float(again) else None


def _write(path: Path, text: str) -> list[str]:
    """Write a report. If that fails, log why, and return it as a line for an alert."""
    try:
        restrict_home(path.parent)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Messages of other programs may have characters that UTF-8 cannot encode.
        with naming(path):
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as e:
        fault = f"the report could not be written: {reason_of(e)}; make the folder `alerts.reports` writable"
        log.error("%s", fault)
        return [fault]
    return []


def _checks(entries: Sequence[dg.EventLogEntry]) -> list[dg.AssetCheckEvaluation]:
    events = [entry.get_dagster_event() for entry in entries]
    of_checks = [e for e in events if e.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION]
    return [event.asset_check_evaluation_data for event in of_checks]


def _failures(entries: Sequence[dg.EventLogEntry]) -> list[tuple[str, str]]:
    """Return the failures, with their reasons: the steps, or the run itself if no step did."""
    steps: list[tuple[str, str]] = []
    # If the daemon cannot start a run, only this has the reason.
    of_engine: list[tuple[str, str]] = []
    of_run: list[tuple[str, str]] = []
    for event in (entry.get_dagster_event() for entry in entries):
        if event.event_type is dg.DagsterEventType.STEP_FAILURE:
            data = event.step_failure_data
            # A `Failure` has a description; any other exception is given by its last line.
            said = data.user_failure_data.description if data.user_failure_data else None
            message = said or (data.error.message if data.error else "")
            steps.append((str(event.step_key), " ".join(message.split())))
        elif event.event_type is dg.DagsterEventType.RUN_FAILURE:
            # Another process that ends a run gives no error.
            error = event.job_failure_data.error if event.event_specific_data else None
            of_run.append(("run", " ".join((error.message if error else event.message or "").split())))
        elif event.event_type is dg.DagsterEventType.ENGINE_EVENT and event.engine_event_data.error:
            reason = f"{event.message}: {event.engine_event_data.error.message}"
            of_engine.append(("run", " ".join(reason.split())))
    return steps or (of_engine + of_run if of_run else [])


def _verdict(check: dg.AssetCheckEvaluation) -> str:
    if check.passed:
        return "passed"
    verdict = "**failed**" if check.severity is dg.AssetCheckSeverity.ERROR else "warns"
    return f"{verdict}: {check.description}" if check.description else verdict


def _text(value: dg.MetadataValue) -> str:
    if isinstance(value, dg.TimestampMetadataValue):
        return f"{datetime.fromtimestamp(value.value, UTC):%Y-%m-%d %H:%M:%S} UTC"
    if isinstance(value.value, float):
        return f"{value.value:,.3f}".rstrip("0").rstrip(".")
    if isinstance(value.value, int) and not isinstance(value.value, bool):
        return f"{value.value:,}"
    return _cell(str(value.value))[:300]


def _cell(text: str) -> str:
    """Return a text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")
