"""`make demo` with few flights."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomlkit
from kazoo.client import KazooClient

from tests.support.metrics import scraped, used
from tests.support.settings import write_settings
from writetime.core.config import Settings
from writetime.servers.process import free_port

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


@pytest.fixture
def own(settings: Settings, tmp_path: Path) -> Iterator[Settings]:
    """Settings as the demo's file has them, in a separate keyspace."""
    shipped = tomlkit.parse((ROOT / "demo" / "writetime.toml").read_text()).unwrap()
    of_demo = {settings.cassandra.keyspace: shipped["tables"]["writetime"]}
    capture = settings.capture.model_copy(update={"state_dir": tmp_path / "capture", "metrics_port": free_port()})
    follow = settings.follow.model_copy(update={"metrics_port": free_port()})
    workqueue = settings.workqueue.model_copy(update={"metrics_port": free_port()})
    replay = settings.replay.model_copy(update=shipped["replay"])
    alerts = settings.alerts.model_copy(update={"reports": tmp_path / "reports"})
    made = settings.model_copy(
        update={
            "tables": of_demo,
            "capture": capture,
            "follow": follow,
            "workqueue": workqueue,
            "replay": replay,
            "alerts": alerts,
        }
    )
    write_settings(made, tmp_path / "writetime.toml")
    # ZooKeeper's nodes have no keyspace.
    client = KazooClient(settings.zookeeper.hosts)
    client.start()
    client.delete("/queues/flights", recursive=True)
    yield made
    client.delete("/queues/flights", recursive=True)
    client.stop()
    client.close()


def run_demo(own: Settings, home: Path) -> tuple[int, str, set[str]]:
    """Run it; return its exit status, its output, and the metrics that its programs exported."""
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(home),
        "DEMO_FLIGHTS": "400",
        "DEMO_LIVE_SECONDS": "5",
        "PYTHONFAULTHANDLER": "1",
    }
    demo = subprocess.Popen(
        [sys.executable, "-m", "demo"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    ports = (own.ingest.port, own.capture.metrics_port, own.follow.metrics_port, own.workqueue.metrics_port)
    with scraped([port for port in ports if port is not None]) as metrics:
        try:
            printed, _ = demo.communicate(timeout=1200)
        except subprocess.TimeoutExpired:
            # With all its child processes, which would otherwise run during other tests.
            os.killpg(demo.pid, signal.SIGABRT)
            printed, _ = demo.communicate()
    return demo.returncode, printed, metrics


# Eight runs of Dagster, while other tests run.
@pytest.mark.usefixtures("queue_tables")
@pytest.mark.timeout(1500)
def test_the_demo_adds_up_and_is_proven(own: Settings, tmp_path: Path) -> None:
    home = tmp_path / "state" / "dagster"
    home.mkdir(parents=True)
    (home / "dagster.yaml").write_text((ROOT / "dagster.yaml").read_text())
    status, printed, metrics = run_demo(own, home)
    log = home / "demo.log"
    assert status == 0, printed + (log.read_text()[-5000:] if log.exists() else "")
    assert "view = database = published figures; nothing lost, nothing twice" in printed
    passed = re.search(r"checks between the stages: (\d+) of (\d+) passed", printed)
    assert passed
    assert int(passed[1]) == int(passed[2]) > 20
    assert re.search(r"403 enqueued = 400 enriched \+ 3 dead", printed)
    assert re.search(r"live +row event +p50 .* ms \(\d+ writes\)\n +view +p50 .* ms \(\d+ writes\)", printed)
    assert "view = database = published figures" in (home.parent / "demo.html").read_text()
    reports = {path.name.partition("-")[0] for path in (tmp_path / "reports").iterdir()}
    assert reports == {"replay_flights", "ingest", "board", "snapshot", "backfill", "catch_up", "verify"}
    # Under load, the metrics of alarms and panels exist; tests/faults/test_messages.py checks the sink's.
    assert metrics >= used("ingress") | used("capture") | used("follow") | used("worker")
