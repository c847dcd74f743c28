"""Runs of `dagster job execute` that are killed: the next run ends them, and waits without CPU; real processes."""

import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus

from tests.support.waiting import wait_for
from writetime_dagster.resources import dead_runs

pytestmark = pytest.mark.long

DEFINITIONS = """
import pathlib, time
from dagster import Definitions, in_process_executor, job, op
from writetime_dagster.resources import KafkaResource, SparkResource

HERE = pathlib.Path(__file__).parent

@op(pool="drain")
def hold(kafka: KafkaResource):
    (HERE / "held").touch()
    while not (HERE / "free").exists():
        time.sleep(0.1)

@op(pool="drain")
def hold_with_spark(spark: SparkResource):
    hold_it()

def hold_it():
    (HERE / "held").touch()
    while not (HERE / "free").exists():
        time.sleep(0.1)

@job(executor_def=in_process_executor)
def with_kafka():
    hold()

@job(executor_def=in_process_executor)
def with_spark():
    hold_with_spark()

resources = {"kafka": KafkaResource(), "spark": SparkResource()}
defs = Definitions(jobs=[with_kafka, with_spark], resources=resources)
"""
INSTANCE = "concurrency:\n  pools:\n    default_limit: 1\n    granularity: op\ntelemetry:\n  enabled: false\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "dagster.yaml").write_text(INSTANCE)
    (tmp_path / "own.py").write_text(DEFINITIONS)
    (tmp_path / "writetime.toml").write_text("")
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "writetime.toml"))
    return tmp_path


def start(folder: Path, job: str) -> subprocess.Popen[bytes]:
    command = [Path(sys.executable).with_name("dagster"), "job", "execute", "-f", "own.py", "-a", "defs", "-j", job]
    with (folder / f"{job}.log").open("ab") as log:
        return subprocess.Popen(command, cwd=folder, stderr=log, stdout=log, env=os.environ)


def statuses() -> list[DagsterRunStatus]:
    """The statuses of all runs, oldest first."""
    with DagsterInstance.get() as instance:
        return [run.status for run in reversed(instance.get_runs())]


@pytest.mark.parametrize("job", ["with_kafka", "with_spark"])
@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "later"])
def test_a_killed_run_is_ended_by_the_next_one(folder: Path, job: str, *, waits: bool) -> None:
    first = start(folder, job)
    wait_for((folder / "held").exists)
    second = start(folder, "with_kafka") if waits else None
    if second is not None:
        wait_for(lambda: len(statuses()) == 2 and statuses()[1] is DagsterRunStatus.STARTED, 0.5)
        assert cpu_share(second, 20) < 0.1
        assert statuses() == [DagsterRunStatus.STARTED] * 2
    first.kill()
    first.wait()
    (folder / "free").touch()
    second = second or start(folder, "with_kafka")
    try:
        assert second.wait(180) == 0
    finally:
        second.kill()
    assert statuses() == [DagsterRunStatus.FAILURE, DagsterRunStatus.SUCCESS]


def cpu_share(process: subprocess.Popen[bytes], seconds: float) -> float:
    """The share of a core that a process takes, once it only waits."""
    time.sleep(5)
    watched = psutil.Process(process.pid)
    before, began = sum(watched.cpu_times()[:2]), time.monotonic()
    time.sleep(seconds)
    return (sum(watched.cpu_times()[:2]) - before) / (time.monotonic() - began)


def test_only_dead_processes_of_this_host_end_their_runs() -> None:
    pid, begun = os.getpid(), psutil.Process().create_time()
    no_pid = 2**22 + 1
    found: dict[str, tuple[str, str, int, float] | None] = {
        "alive": (dead_runs.host_tag(), "alive", pid, begun),
        "number used again": (dead_runs.host_tag(), "number used again", pid, begun - 60),
        "gone": (dead_runs.host_tag(), "gone", no_pid, begun),
        "elsewhere": ("elsewhere", "elsewhere", no_pid, begun),
        "repeats a dead run": (dead_runs.host_tag(), "gone", no_pid, begun),
        "of the daemon": None,
    }
    with DagsterInstance.ephemeral() as instance:
        ids = {name: str(uuid.uuid4()) for name in found}
        for name, own in found.items():
            tags = (
                {} if own is None else {dead_runs.HOST: own[0], dead_runs.PROCESS: json.dumps([ids[own[1]], *own[2:]])}
            )
            instance.add_run(DagsterRun(name, run_id=ids[name], status=DagsterRunStatus.STARTED, tags=tags))
        ended = dead_runs.end_dead_runs(instance)
    assert {name for name, run_id in ids.items() if run_id in ended} == {"number used again", "gone"}
