"""Each service ends cleanly when its terminal is closed: at SIGHUP, as at SIGTERM."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.running import handles_signals
from tests.support.settings import write_settings
from tests.support.waiting import PATIENCE_SECONDS, wait_for
from writetime.clients import database
from writetime.core.config import Settings

pytestmark = [pytest.mark.long, pytest.mark.cassandra_only("the agent reads the node's commit log")]

SERVICES = {
    "serve": ["serve"],
    "sink": ["sink"],
    "agent": ["agent"],
    "follow": ["follow", "{table}"],
    "work": ["work", "--queue", "hangup", "--handler", "quiet:handle"],
    "replay work": ["replay", "work", "hangup", "p", "--handler", "quiet:handle"],
    "publish-segments": ["publish-segments", "{folder}", "--follow"],
}


@pytest.mark.parametrize("sig", [signal.SIGHUP, signal.SIGTERM])
@pytest.mark.parametrize("service", SERVICES)
def test_a_service_ends_cleanly(service: str, sig: signal.Signals, settings: Settings, tmp_path: Path) -> None:
    write_settings(settings, tmp_path / "writetime.toml")
    (tmp_path / "quiet.py").write_text("def handle(item): pass\n")
    (tmp_path / "segments").mkdir()
    table = f"{settings.cassandra.keyspace}.hangup"
    database.apply_schema(settings)
    with database.connect(settings) as session:
        session.execute(f"CREATE TABLE IF NOT EXISTS {table} (id int PRIMARY KEY) WITH cdc = true")
    words = [word.format(table=table, folder=tmp_path / "segments") for word in SERVICES[service]]
    environment = {**os.environ, "WRITETIME_CONFIG": str(tmp_path / "writetime.toml")}
    log = tmp_path / "log"
    with log.open("wb") as out:
        command = [sys.executable, "-m", "writetime", *words]
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=tmp_path)
    try:
        wait_for(lambda: process.poll() is not None or _is_ready(service, process.pid, log), 0.1)
        process.send_signal(sig)
        assert process.wait(PATIENCE_SECONDS) == 0, log.read_text()
    finally:
        process.kill()
    assert "Traceback" not in log.read_text()


def _is_ready(service: str, pid: int, log: Path) -> bool:
    # The ingress handles SIGHUP just after SIGTERM.
    return handles_signals(pid) and (service != "serve" or "listening" in log.read_text())
