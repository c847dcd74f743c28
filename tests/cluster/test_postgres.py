"""Dagster's instance in Postgres, by the ready file."""

import shutil
from pathlib import Path

import pytest
from dagster import DagsterInstance, DagsterRunStatus
from dagster_postgres import PostgresEventLogStorage, PostgresRunStorage

from tests.support.postgres import Postgres
from writetime_dagster.assets.upkeep import clean_up_job
from writetime_dagster.resources import LakeResource

FILE = Path(__file__).parents[2] / "deploy/dagster-postgres.yaml"


def test_a_run_is_in_postgres(postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(FILE, tmp_path / "dagster.yaml")
    monkeypatch.setenv("WRITETIME_DAGSTER_POSTGRES", postgres.url.replace("postgresql", "postgresql+psycopg2"))
    monkeypatch.setenv("WRITETIME_LAKE__PATH", str(tmp_path / "lake"))
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        assert isinstance(instance.run_storage, PostgresRunStorage)
        assert isinstance(instance.event_log_storage, PostgresEventLogStorage)
        # A job without Spark, whose start would take most of the time.
        made = clean_up_job(["never-written"])
        assert made.execute_in_process(instance=instance, resources={"lake": LakeResource()}).success
    # As another machine sees it.
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        [run] = instance.get_runs()
        assert (run.job_name, run.status) == ("clean_up", DagsterRunStatus.SUCCESS)
        assert instance.all_logs(run.run_id)
        assert instance.run_retries_enabled
