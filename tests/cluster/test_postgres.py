"""Dagster's instance in Postgres, by the ready file."""

import shutil
from pathlib import Path

import pytest
from dagster import DagsterInstance, DagsterRunStatus
from dagster_postgres import PostgresEventLogStorage, PostgresRunStorage

from tests.support.made import SCHEMA, add, settings_at, write
from tests.support.postgres import Postgres
from tests.support.settings import write_settings
from writetime.lake.table import create_table
from writetime_dagster.assets.table_jobs import maintain_job
from writetime_dagster.resources import LakeResource, SparkResource

FILE = Path(__file__).parents[2] / "deploy/dagster-postgres.yaml"


def test_a_run_is_in_postgres(postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(FILE, tmp_path / "dagster.yaml")
    monkeypatch.setenv("WRITETIME_DAGSTER_POSTGRES", postgres.url.replace("postgresql", "postgresql+psycopg2"))
    settings = settings_at(tmp_path / "lake")
    write_settings(settings, tmp_path / "writetime.toml")
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    add(create_table(settings, SCHEMA), [write(1, 1, 5, v="x")], 1)
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        assert isinstance(instance.run_storage, PostgresRunStorage)
        assert isinstance(instance.event_log_storage, PostgresEventLogStorage)
        resources = {"spark": SparkResource(), "lake": LakeResource()}
        assert maintain_job(["shop.items"]).execute_in_process(instance=instance, resources=resources).success
    # As another machine sees it.
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        [run] = instance.get_runs()
        assert (run.job_name, run.status) == ("maintain", DagsterRunStatus.SUCCESS)
        assert instance.all_logs(run.run_id)
        assert instance.run_retries_enabled
