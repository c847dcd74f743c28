"""The sensors that report the runs whose own processes could not report them.

`writetime_dagster.resources.run_reports` writes the reports.
"""

from pathlib import Path

import dagster as dg

from writetime_dagster.resources.run_reports import ended

_SENSORS = {
    "failed_runs": (
        dg.DagsterRunStatus.FAILURE,
        "Reports each failed run whose process could not report it: it was killed, or it could not start.",
    ),
    "finished_runs": (
        dg.DagsterRunStatus.SUCCESS,
        "Reports each successful run with a process per step, as such a process does not report the run.",
    ),
    "canceled_runs": (
        dg.DagsterRunStatus.CANCELED,
        "Reports each run that an operator or a time limit ended, if its process could not.",
    ),
}


def sensors(settings_file: Path | None = None) -> dict[str, dg.SensorDefinition]:
    """Return the sensors by their names. They read a settings file, by default that of `config_path`."""

    def report(context: dg.RunStatusSensorContext) -> None:
        context.log.info("report: %s", ended(context.instance, context.dagster_run, settings_file))

    running = dg.DefaultSensorStatus.RUNNING
    return {
        name: dg.run_status_sensor(status, name=name, description=description, default_status=running)(report)
        for name, (status, description) in _SENSORS.items()
    }
