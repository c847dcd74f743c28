"""Schedules, sensors, a backfill and a run that the web UI starts, run by Dagster's own daemon."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus
from dagster._cli import cli
from dagster._core.scheduler.instigation import ScheduleInstigatorData
from dagster_graphql import DagsterGraphQLClient
from pydantic import SecretStr

from tests.support.settings import write_settings
from tests.support.waiting import PATIENCE_SECONDS, wait_for
from tests.support.webhooks import receiving
from writetime.clients.database import connect
from writetime.clients.node_snapshots import take_snapshot
from writetime.core.config import Alerts, Settings
from writetime.servers.process import free_port, port_answers
from writetime.workqueue import Enqueuer
from writetime_dagster.assets.backfill import token_ranges

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
WORKSPACE = """
load_from:
  - grpc_server:
      host: 127.0.0.1
      port: {port}
      location_name: writetime
"""


@contextmanager
def program(log: Path, *arguments: str) -> Iterator[None]:
    """A program of Dagster that runs inside the block."""
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-m", *arguments], cwd=ROOT, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def dagster(*arguments: str) -> None:
    """Run a command of Dagster in this process, which has imported Dagster."""
    with chdir(ROOT):
        answer = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert answer.exit_code == 0, answer.output


def at(workspace: Path) -> list[str]:
    return ["-w", str(workspace), "-l", "writetime"]


def ended(instance: DagsterInstance, job: str, tag: str) -> list[DagsterRun]:
    """The runs of a job that something started, once they have ended."""
    return [run for run in instance.get_runs() if run.job_name == job and tag in run.tags and run.is_finished]


@pytest.fixture
def posted() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A webhook, and the bodies that were posted to it."""
    with receiving() as (url, found):
        yield url + "token", found


@pytest.fixture
def reports(settings: Settings, queue_tables: None, posted: tuple[str, list[dict[str, Any]]], tmp_path: Path) -> Path:
    """A table with a snapshot, work that is stuck, and a folder for the reports of runs, in the settings file."""
    table = f"{settings.cassandra.keyspace}.items"
    with connect(settings) as session:
        session.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)")
        for i in range(40):
            session.execute(f"INSERT INTO {table} (id, v) VALUES ({i}, 'v')")
    folders = [str(folder) for folder in take_snapshot(settings, table, "now")]
    made = settings.model_copy(
        update={
            "tables": {settings.cassandra.keyspace: {"items": {"capture": False, "snapshots": folders}}},
            "alerts": Alerts(reports=tmp_path / "reports", webhook=SecretStr(posted[0])),
            "workqueue": settings.workqueue.model_copy(update={"stuck_seconds": 0.001}),
        }
    )
    write_settings(made, tmp_path / "writetime.toml")
    with Enqueuer(made) as enqueuer:
        enqueuer.enqueue("nobody works", {"to": "ada"})
    return tmp_path / "reports"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of Dagster's instance."""
    home = tmp_path / "dagster"
    home.mkdir()
    shutil.copy(ROOT / "dagster.yaml", home)
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    return home


@pytest.fixture
def workspace(reports: Path, home: Path, tmp_path: Path) -> Iterator[Path]:
    """A workspace whose code location runs, as in deploy/containers. Of `workspace.yaml`, each command and the daemon
    would start one of their own, which loads Dagster again.
    """
    port = free_port()
    file = tmp_path / "workspace.yaml"
    file.write_text(WORKSPACE.format(port=port))
    server = ["dagster", "api", "grpc", "-m", "writetime_dagster.assets.definitions", "-h", "127.0.0.1"]
    with program(tmp_path / "code.log", *server, "-p", str(port)):
        wait_for(lambda: port_answers(port))
        yield file


@pytest.fixture
def instance(workspace: Path, home: Path) -> Iterator[DagsterInstance]:
    """Dagster with a schedule and a sensor that are on, as if for long: the daemon makes up for the ticks that it has
    missed."""
    dagster("schedule", "start", "observe_schedule", *at(workspace))
    dagster("sensor", "start", "stuck_work", *at(workspace))
    with DagsterInstance.from_config(str(home)) as instance:
        for state in instance.all_instigator_state():
            if isinstance(state.instigator_data, ScheduleInstigatorData):
                since = ScheduleInstigatorData(state.instigator_data.cron_schedule, time.time() - 900)
                instance.update_instigator_state(state.with_data(since))
        yield instance


@pytest.fixture
def webserver(workspace: Path, tmp_path: Path) -> Iterator[DagsterGraphQLClient]:
    """The interface that the pages of the web UI call."""
    port = free_port()
    with program(tmp_path / "web.log", "dagster_webserver", "-w", str(workspace), "-h", "127.0.0.1", "-p", str(port)):
        wait_for(lambda: port_answers(port))
        yield DagsterGraphQLClient("127.0.0.1", port_number=port)


def test_schedule_sensors_backfill_and_web_ui(
    settings: Settings,
    reports: Path,
    workspace: Path,
    instance: DagsterInstance,
    webserver: DagsterGraphQLClient,
    posted: tuple[str, list[dict[str, Any]]],
    tmp_path: Path,
) -> None:
    log = tmp_path / "daemon.log"
    webserver.submit_job_execution("queue_health", repository_location_name="writetime", tags={"by": "hand"})
    with program(log, "dagster._daemon", "run", "-w", str(workspace)):
        share = token_ranges.get_partition_keys()[5]
        dagster("job", "backfill", "-j", "backfill", "--partitions", share, "--noprompt", *at(workspace))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            observed = ended(instance, "observe", "dagster/schedule_name")
            looked = ended(instance, "queue_health", "dagster/sensor_name")
            filled = ended(instance, "backfill", "dagster/backfill")
            by_hand = ended(instance, "queue_health", "by")
            if observed and looked and filled and by_hand:
                break
            assert time.monotonic() < deadline, log.read_text()[-5000:]
            time.sleep(1)
    found = observed + looked + filled + by_hand
    assert {run.status for run in found} == {DagsterRunStatus.SUCCESS}
    written = {path.stem for path in reports.glob("*.md")}
    assert {f"{run.job_name}-{run.run_id}" for run in found} <= written
    # Work is stuck. The sensors of ended runs send no second alert.
    titles = [alert["title"] for alert in posted[1]]
    for run in (looked[0], by_hand[0]):
        assert f"run {run.run_id} of job queue_health: 1 check did not pass" in titles
    assert len(set(titles)) == len(titles)
    assert os.listdir(tmp_path / "lake" / f"{settings.cassandra.keyspace}.items")
