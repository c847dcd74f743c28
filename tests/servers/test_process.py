"""The process of a server is found again and stopped; no real server is needed."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from writetime import servers
from writetime.cli.main import main
from writetime.core import config
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.runtime import jars
from writetime.servers import process
from writetime.servers.kafka import KafkaServer
from writetime.servers.process import EmbeddedServer, ServerFolder, free_port
from writetime.servers.zookeeper import ZooKeeperServer


class Sleeping(EmbeddedServer):
    name = "kafka"

    def command(self) -> list[str]:
        return ["sleep", "60"]

    def fault(self) -> str | None:
        return None


@contextmanager
def sleeping(home: Path) -> Iterator[Sleeping]:
    server = Sleeping(home, {}, 10)
    try:
        assert server.start()
        yield server
    finally:
        server.stop(signal.SIGKILL)


@pytest.fixture
def embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings of an embedded ZooKeeper and Kafka, which the shell command uses."""
    monkeypatch.setenv("WRITETIME_EMBEDDED__HOME", str(tmp_path))
    monkeypatch.setenv("WRITETIME_EMBEDDED__SERVERS", '["zookeeper", "kafka"]')
    monkeypatch.setenv("WRITETIME_EMBEDDED__KAFKA_CONTROLLER_PORT", str(free_port()))
    monkeypatch.setenv("WRITETIME_KAFKA__BOOTSTRAP_SERVERS", f"127.0.0.1:{free_port()}")
    monkeypatch.setenv("WRITETIME_ZOOKEEPER__HOSTS", f"127.0.0.1:{free_port()}")
    monkeypatch.delenv("WRITETIME_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    return config.load()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems keep the time of the start")
def test_a_server_is_found_after_the_clock_was_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with sleeping(tmp_path) as server:
        created = psutil.Process.create_time
        monkeypatch.setattr(psutil.Process, "create_time", lambda self: created(self) + 3600)
        assert server.pid() is not None


def test_another_process_of_the_same_number_is_not_the_server(tmp_path: Path) -> None:
    with sleeping(tmp_path) as server:
        file = server.folder / "server.pid"
        recorded = file.read_text()
        own = subprocess.Popen(["sleep", "60"])
        file.write_text(f"{own.pid} {recorded.split()[1]}0")
        assert server.pid() is None
        file.write_text(recorded)
    own.kill()
    own.wait()


def test_a_server_that_nothing_reaps_is_stopped(tmp_path: Path) -> None:
    code = "import subprocess, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        server = ServerFolder(tmp_path)
        (tmp_path / "server.pid").write_text(f"{pid} {process._identity(pid)}")
        began = time.monotonic()
        assert server.stop()
        assert time.monotonic() - began < 5
        assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        assert not server.stop()
        parent.kill()


def test_a_server_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "STOP_SECONDS", 0.2)
    monkeypatch.setattr(Sleeping, "command", lambda _: ["sh", "-c", "trap '' TERM; echo ready; sleep 5; sleep 5"])
    with sleeping(tmp_path) as server:
        while server.log_file.read_text() != "ready\n":
            time.sleep(0.01)
        assert server.stop()
        assert server.pid() is None


def test_down_stops_a_server_that_the_settings_no_longer_name(
    embedded: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WRITETIME_EMBEDDED__SERVERS", '["zookeeper"]')
    monkeypatch.setenv("WRITETIME_KAFKA__BOOTSTRAP_SERVERS", "broker.example:9092")
    with sleeping(embedded.embedded.home):
        status = CliRunner().invoke(main, ["status"])
        assert "kafka      runs, but is not in embedded.servers: `writetime down` stops it" in status.output
        down = CliRunner().invoke(main, ["down"])
        assert down.output.splitlines() == ["kafka      stopped", "zookeeper  was not running"]


def test_down_elsewhere_reports_where_it_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WRITETIME_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(main, ["down"])
    assert answer.exit_code == 1
    assert answer.stderr.startswith(f"Error: there are no settings at {tmp_path}/writetime.toml, and no servers in ")


@pytest.mark.parametrize("fault", ["port", "jars"])
def test_up_starts_nothing_if_one_cannot_start(fault: str, embedded: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(*names: str) -> list[Path]:
        raise WritetimeError(f"no jars of {names}")

    started: list[str] = []
    monkeypatch.setattr(jars, "fetch", fetch if fault == "jars" else lambda *_: [])
    for kind in (ZooKeeperServer, KafkaServer):
        monkeypatch.setattr(kind, "_launch", lambda self: started.append(self.name))
        monkeypatch.setattr(kind, "fault", lambda _: None)
    with socket.socket() as used:
        if fault == "port":
            used.bind(("127.0.0.1", int(embedded.kafka.bootstrap_servers.split(":")[1])))
            used.listen()
        with pytest.raises(WritetimeError, match=r"in use|no jars of \('zookeeper', 'kafka'\)"):
            servers.up(embedded)
    assert started == []
