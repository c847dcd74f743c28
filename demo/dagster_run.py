"""Runs jobs in this process, on the instance that the web UI shows, and reads their results."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from dagster import DagsterInstance, DagsterRunStatus, ExecuteInProcessResult, RunsFilter

from writetime.clients.spark import spark_session
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime_dagster.resources.run_reports import ended

# The tags by which the web UI finds the runs of a job, and the tag of the demo's runs.
_TAGS = {".dagster/repository": "__repository__@writetime", "writetime/demo": "true"}
_UNFINISHED = [DagsterRunStatus.NOT_STARTED, DagsterRunStatus.STARTING, DagsterRunStatus.STARTED]


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
    """The instance of `DAGSTER_HOME`, and one session of Spark for all runs.

    Each run that the web UI starts has a separate process, which loads the definitions and starts Spark. This takes
    longer than most runs of the demo.
    """

    def __init__(self, settings: Settings, log_file: Path) -> None:
        self._settings = settings
        self._log_file = log_file

    def __enter__(self) -> Self:
        with _output_in(self._log_file):
            # This import reads the settings, which the demo has checked by now.
            from demo.definitions import defs

            self._jobs = defs.get_repository_def()
            self._instance = DagsterInstance.get()
            end_killed_runs(self._instance)
            self._session = spark_session(self._settings)
            self._session.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._session.__exit__(*error)
        self._instance.dispose()

    def launch(self, job: str, config: dict[str, Any] | None = None, tags: dict[str, str] | None = None) -> RunResult:
        """Run a job of `demo/workspace.yaml`.

        Raises:
            WritetimeError: the run did not succeed.
        """
        began = time.monotonic()
        with _output_in(self._log_file):
            found = self._jobs.get_job(job).execute_in_process(
                run_config=config,
                instance=self._instance,
                raise_on_error=False,
                tags={**_TAGS, **(tags or {})},
            )
        run = self._instance.get_run_by_id(found.run_id)
        assert run is not None
        report = ended(self._instance, run)
        if not found.success:
            where = f"see {report}, {self._log_file}, or the run in the web UI"
            raise WritetimeError(f"the run {found.run_id} of job {job} ended as {run.status.value}; {where}")
        return _result(found, job, time.monotonic() - began, report)


def end_killed_runs(instance: DagsterInstance) -> None:
    """End the runs of a demo that was killed. No daemon ends them, and they would keep their slots in pools."""
    for run in instance.get_runs(RunsFilter(tags=_TAGS, statuses=_UNFINISHED)):
        instance.report_run_canceled(run)
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)


@contextmanager
def _output_in(log_file: Path) -> Iterator[None]:
    """Send the output of this process and of its children to a file: the logs of Dagster and Spark."""
    kept = [os.dup(number) for number in (1, 2)]
    with log_file.open("ab") as log:
        for number in (1, 2):
            os.dup2(log.fileno(), number)
    try:
        yield
    finally:
        for number, before in zip((1, 2), kept, strict=True):
            os.dup2(before, number)
            os.close(before)


def _result(found: ExecuteInProcessResult, job: str, seconds: float, report: Path) -> RunResult:
    materializations = [event.materialization for event in found.get_asset_materialization_events()]
    evaluations = {f"{e.asset_key.to_user_string()}: {e.check_name}": e for e in found.get_asset_check_evaluations()}
    return RunResult(
        job,
        {m.asset_key.to_user_string(): {name: v.value for name, v in m.metadata.items()} for m in materializations},
        {name: evaluation.passed for name, evaluation in evaluations.items()},
        {name: {key: v.value for key, v in evaluation.metadata.items()} for name, evaluation in evaluations.items()},
        seconds,
        report,
    )
