import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from kazoo.client import KazooClient

from tests.support.settings import write_settings
from writetime import servers
from writetime.cli.main import main
from writetime.core import config
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.core.server_settings import Cassandra, Kafka
from writetime.servers.process import free_port
from writetime.servers.zookeeper import ZooKeeperServer


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Settings:
    return config.load(zookeeper={"hosts": f"127.0.0.1:{free_port()}"}, embedded={"home": tmp_path})


@pytest.mark.cassandra_only("counts the embedded servers, of which Cassandra is one")
def test_up_is_idempotent_and_status_sees_it(settings: Settings) -> None:
    assert [started for _, started in servers.up(settings)] == [False, False, False]
    answer = CliRunner().invoke(main, ["status"])
    assert answer.exit_code == 0, answer.output
    assert answer.output.count("ready") == 3


def test_a_second_instance_runs_with_the_first(settings: Settings, own_zookeeper: Settings) -> None:
    server = ZooKeeperServer(own_zookeeper)
    try:
        assert server.start()
        for hosts in (settings.zookeeper.hosts, own_zookeeper.zookeeper.hosts):
            client = KazooClient(hosts=hosts)
            client.start(timeout=10)
            assert client.exists("/zookeeper")
            client.stop()
    finally:
        assert server.stop()
    assert not server.stop()
    assert "Connection refused" in str(server.fault())


def test_a_killed_server_is_seen_and_started_again(own_zookeeper: Settings) -> None:
    server = ZooKeeperServer(own_zookeeper)
    server.start()
    pid = server.pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    server.stop()
    assert server.pid() is None
    try:
        assert server.start()
    finally:
        server.stop()


def test_a_port_in_use_is_one_line_with_the_fix(own_zookeeper: Settings) -> None:
    port = int(own_zookeeper.zookeeper.hosts.split(":")[1])
    with socket.socket() as s:
        s.bind(("127.0.0.1", port))
        s.listen()
        with pytest.raises(WritetimeError, match=rf"port {port} is in use.*another zookeeper.hosts") as e:
            ZooKeeperServer(own_zookeeper).start()
    assert "\n" not in str(e.value)


def test_a_port_is_given_to_one_process() -> None:
    """Although no server uses it yet, and both search the same folder."""
    port = free_port()
    # As many as there are, so the one that was given is tried, too.
    again = (
        "import sys; from writetime.servers.process import free_port\n"
        "print(*(free_port(range(int(sys.argv[1]), int(sys.argv[1]) + 50)) for _ in range(50)))"
    )
    found = subprocess.run([sys.executable, "-c", again, str(port)], capture_output=True, text=True, check=True)
    assert {*map(int, found.stdout.split())} <= {*range(port + 1, port + 50)}


def test_two_servers_with_one_port_start_nothing(own_zookeeper: Settings, tmp_path: Path) -> None:
    port = free_port()
    same = {"cassandra": Cassandra(port=port), "kafka": Kafka(bootstrap_servers=f"127.0.0.1:{port}")}
    settings = own_zookeeper.model_copy(update=same)
    message = rf"cassandra\.port and kafka\.bootstrap_servers are both port {port}: set another port for one of them"
    with pytest.raises(WritetimeError, match=message):
        servers.up(settings)
    assert list(tmp_path.iterdir()) == []


def test_status_elsewhere_reports_where_it_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WRITETIME_CONFIG")
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(main, ["status"])
    assert answer.exit_code == 1
    assert answer.stderr == (
        f"Error: there are no settings at {tmp_path}/writetime.toml, and no servers in {tmp_path}/.writetime/servers: "
        "go to the folder with writetime.toml, or name this file in WRITETIME_CONFIG\n"
    )


def test_a_server_that_cannot_start_shows_the_end_of_its_log(own_zookeeper: Settings, tmp_path: Path) -> None:
    server = ZooKeeperServer(own_zookeeper)
    server.folder.mkdir(parents=True)
    (server.folder / "data").write_text("a file where the server wants a folder")
    with pytest.raises(WritetimeError, match=r"zookeeper ended while starting; its log .*server\.log ends:"):
        server.start()


def test_addresses_elsewhere_are_refused() -> None:
    settings = config.load(kafka={"bootstrap_servers": "broker.example:9092"})
    with pytest.raises(WritetimeError, match=r"kafka\.bootstrap_servers is broker\.example"):
        servers.servers(settings)
    own = settings.embedded.model_copy(update={"servers": ["cassandra", "zookeeper"]})
    started = servers.servers(settings.model_copy(update={"embedded": own}))
    assert [server.name for server in started] == ["zookeeper", "cassandra"]


def test_the_shell_command_shows_errors_as_one_line(tmp_path: Path) -> None:
    path = tmp_path / "writetime.toml"
    write_settings(config.load(cassandra={"port": free_port()}), path)
    answer = subprocess.run(
        [sys.executable, "-m", "writetime", "init"],
        env={**os.environ, "WRITETIME_CONFIG": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 1
    assert answer.stderr.startswith("Error: no database answers at 127.0.0.1:")
    assert "writetime up" in answer.stderr
    assert "Traceback" not in answer.stderr
