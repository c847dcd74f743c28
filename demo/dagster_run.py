"""Launches a job through Dagster's run worker and reads its results from the instance."""

import os
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from dagster import DagsterEventType, DagsterInstance

from assets.runs import ended
from writetime.errors import WritetimeError

# No step is silent for so long unless its process has died.
SILENT_SECONDS = 1800


@dataclass(frozen=True)
class RunResult:
    """What a run has left: the metadata of its assets by key, its checks by asset and name (passed or not), how long it
    took, and its report."""

    job: str
    metadata: dict[str, dict[str, Any]]
    checks: dict[str, bool]
    check_metadata: dict[str, dict[str, Any]]
    seconds: float
    report: Path


def launch(
    job: str, log_file: Path, config: dict[str, Any] | None = None, tags: dict[str, str] | None = None
) -> RunResult:
    """Run a job of `workspace.yaml` in a process of its own, as the web UI does, and wait for its end.

    Raises:
        WritetimeError: the run did not succeed.
    """
    run_id = str(uuid.uuid4())
    began = time.monotonic()
    command = [sys.executable, "-m", "dagster", "job", "launch", "-w", "workspace.yaml", "-l", "writetime", "-j", job]
    command += ["--run-id", run_id, "--config-json", orjson.dumps(config or {}).decode()]
    command += ["--tags", orjson.dumps(tags or {}).decode()]
    with log_file.open("ab") as log:
        subprocess.run(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, check=False, env=os.environ)
    instance = DagsterInstance.get()
    # The command returns once the run worker is started.
    events, since = 0, time.monotonic()
    while (run := instance.get_run_by_id(run_id)) is not None and not run.is_finished:
        time.sleep(0.5)
        if (count := len(instance.all_logs(run_id))) != events:
            events, since = count, time.monotonic()
        elif time.monotonic() - since > SILENT_SECONDS:
            raise WritetimeError(f"the run {run_id} of job {job} is silent; see {log_file}, and end it in `make ui`")
    if run is None:
        raise WritetimeError(f"the run {run_id} of job {job} was not started; see {log_file}")
    report = ended(instance, run)
    if not run.is_success:
        where = f"see {report}, {log_file}, or the run in `make ui`"
        raise WritetimeError(f"the run {run_id} of job {job} ended as {run.status.value}; {where}")
    metadata: dict[str, dict[str, Any]] = {}
    checks: dict[str, bool] = {}
    check_metadata: dict[str, dict[str, Any]] = {}
    for record in instance.all_logs(
        run_id, of_type={DagsterEventType.ASSET_MATERIALIZATION, DagsterEventType.ASSET_CHECK_EVALUATION}
    ):
        event = record.get_dagster_event()
        if event.event_type is DagsterEventType.ASSET_MATERIALIZATION:
            materialization = event.step_materialization_data.materialization
            values = {name: value.value for name, value in materialization.metadata.items()}
            metadata[materialization.asset_key.to_user_string()] = values
        else:
            evaluation = event.asset_check_evaluation_data
            name = f"{evaluation.asset_key.to_user_string()}: {evaluation.check_name}"
            checks[name] = evaluation.passed
            check_metadata[name] = {key: value.value for key, value in evaluation.metadata.items()}
    return RunResult(job, metadata, checks, check_metadata, time.monotonic() - began, report)
