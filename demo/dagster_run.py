"""Launches jobs as the web UI does, each in Dagster's run worker, and reads their results from the instance."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from dagster import DagsterEventType, DagsterInstance, serialize_value
from dagster._core.instance.ref import InstanceRef
from dagster_graphql import DagsterGraphQLClient, DagsterGraphQLClientError

from writetime.core.errors import WritetimeError
from writetime.servers.process import free_port, port_answers
from writetime_dagster.resources.run_reports import ended

# No step is silent for so long unless its process has stopped.
SILENT_SECONDS = 1800
_START_SECONDS = 300.0
# No daemon runs beside the demo to empty a queue, so each run starts at once.
_NO_QUEUE = {"run_coordinator": {"module": "dagster._core.run_coordinator", "class": "DefaultRunCoordinator"}}


@dataclass(frozen=True)
class RunResult:
    """The result of a run: the metadata of its assets by key, its checks by asset and name (passed or not), its
    duration, and its report.
    """

    job: str
    metadata: dict[str, dict[str, Any]]
    checks: dict[str, bool]
    check_metadata: dict[str, dict[str, Any]]
    seconds: float
    report: Path


class Dagster:
    """The instance of `DAGSTER_HOME`, and a web server that launches runs on it, as a click in the web UI would.

    All runs share one server: each shell command would load the definitions again, which takes longer than most runs.
    """

    def __init__(self, log_file: Path) -> None:
        self._log_file = log_file
        self._port = free_port()

    def __enter__(self) -> Self:
        instance = InstanceRef.from_dir(os.environ["DAGSTER_HOME"], overrides=_NO_QUEUE)
        command = [sys.executable, "-m", "dagster_webserver", "-w", "demo/workspace.yaml", "-h", "127.0.0.1"]
        command += ["--instance-ref", serialize_value(instance)]
        with self._log_file.open("ab") as log:
            self._server = subprocess.Popen([*command, "-p", str(self._port)], stdout=log, stderr=log)
        deadline = time.monotonic() + _START_SECONDS
        while not port_answers(self._port):
            if self._server.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise WritetimeError(f"Dagster's web server did not start; see {self._log_file}")
            time.sleep(0.2)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.terminate()
        self._server.wait(60)

    def launch(self, job: str, config: dict[str, Any] | None = None, tags: dict[str, str] | None = None) -> RunResult:
        """Run a job of `demo/workspace.yaml` in its own process, and wait for its end.

        Raises:
            WritetimeError: the run did not succeed.
        """
        began = time.monotonic()
        client = DagsterGraphQLClient("127.0.0.1", port_number=self._port, timeout=300)
        try:
            run_id = client.submit_job_execution(job, "writetime", run_config=config or {}, tags=tags)
        except DagsterGraphQLClientError as e:
            raise WritetimeError(f"the job {job} cannot be launched: {e}; see {self._log_file}") from None
        instance = DagsterInstance.get()
        events, since = 0, time.monotonic()
        while (run := instance.get_run_by_id(run_id)) is not None and not run.is_finished:
            time.sleep(0.5)
            if (count := len(instance.all_logs(run_id))) != events:
                events, since = count, time.monotonic()
            elif time.monotonic() - since > SILENT_SECONDS:
                raise WritetimeError(
                    f"the run {run_id} of job {job} is silent; see {self._log_file}, and terminate it in the web UI"
                )
        if run is None:
            raise WritetimeError(f"the run {run_id} of job {job} is gone; see {self._log_file}")
        report = ended(instance, run)
        if not run.is_success:
            where = f"see {report}, {self._log_file}, or the run in the web UI"
            raise WritetimeError(f"the run {run_id} of job {job} ended as {run.status.value}; {where}")
        return _result(instance, run_id, job, time.monotonic() - began, report)


def _result(instance: DagsterInstance, run_id: str, job: str, seconds: float, report: Path) -> RunResult:
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
    return RunResult(job, metadata, checks, check_metadata, seconds, report)
