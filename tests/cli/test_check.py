"""`writetime check`, and the warning of all commands about refused entries."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.support.settings import write_settings
from writetime.cli import check
from writetime.cli.main import main
from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.servers.process import free_port

INVALID = '[tables.shop.orders]\nmax_lag = "many"\n'


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another program has."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current settings file."""
    path = tmp_path / "writetime.toml"
    monkeypatch.setenv("WRITETIME_CONFIG", str(path))
    return path


def test_each_fault_is_a_line_with_its_remedy(file: Path, taken: int) -> None:
    """Without servers: nothing waits for another check."""
    file.write_text(
        f"{INVALID}[cassandra]\nport = {free_port()}\n[kafka]\nbootstrap_servers = '127.0.0.1:{taken}'\n"
        f"[zookeeper]\nhosts = '127.0.0.1:{free_port()}'\n[embedded]\nservers = ['kafka']\n"
        # Servers of `make demo` may run in the working folder.
        f"home = '{file.parent}'\n"
        f"kafka_controller_port = {free_port()}\n"
        "[capture]\nstate_dir = '/dev/null/capture'\n"
    )
    answer = run("check")
    assert answer.exit_code == 1
    lines = dict(line.split(maxsplit=1) for line in answer.stdout.splitlines())
    assert list(lines) == ["tables", "database", "capture", "kafka", "zookeeper", "ports", "disk"]
    assert lines["tables"].startswith("shop.orders is refused: [tables.shop.orders] max_lag: Input should be")
    assert "or set cassandra.contact_points" in lines["database"]
    assert "or set kafka.bootstrap_servers" in lines["kafka"]
    assert "or set zookeeper.hosts" in lines["zookeeper"]
    assert f"{taken} of kafka belongs to another program: stop it, or change kafka.bootstrap_servers" in lines["ports"]
    assert "/dev/null is not a writable folder" in lines["disk"]


def test_each_invalid_setting_is_a_line(file: Path) -> None:
    file.write_text("[kafka]\nbroker = 'b'\n[lake]\nbuckets = 'many'\n[alerts]\nowners = ['data']\n")
    answer = run("check")
    assert answer.exit_code == 1
    unknown, invalid, owner = answer.stdout.splitlines()
    assert unknown.endswith("kafka.broker: there is no such setting")
    assert "lake.buckets: Input should be a valid integer" in invalid
    assert "alerts.owners.0: Value error, 'data' is not an owner that Dagster accepts" in owner


def test_each_passed_check_is_a_short_line(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On real servers, with a table whose changes are not logged at first."""
    # Other tests leave topics with bad options on this broker.
    monkeypatch.setattr(check, "topic_names", lambda _: [])
    name = f"{settings.cassandra.keyspace}.orders"
    tables = {settings.cassandra.keyspace: {"orders": {}}}
    write_settings(settings.model_copy(update={"tables": tables}), tmp_path / "writetime.toml")
    with connect(settings) as session:
        session.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)")
        answer = run("check")
        remedy = f"ALTER TABLE {name} WITH cdc = true"
        assert answer.stdout.splitlines() == [
            f"database   {name} is captured, but the database does not log its changes: {remedy}"
        ]
        assert answer.exit_code == 1
        session.execute(remedy)
        answer = run("check")
    assert answer.exit_code == 0, answer.output
    checks = [line.split()[0] for line in answer.stdout.splitlines()]
    assert checks == [
        "settings",
        "secrets",
        "tables",
        "database",
        "capture",
        "kafka",
        "zookeeper",
        "ports",
        "disk",
        "java",
    ]


def test_every_command_warns_of_entries_that_are_refused(file: Path, tmp_path: Path) -> None:
    file.write_text(f"{INVALID}[embedded]\nhome = '{tmp_path}'\n")
    answer = run("down")
    assert answer.exit_code == 0
    [warning] = answer.stderr.splitlines()
    assert warning.startswith("Warning: tables are refused, and left out: shop.orders: [tables.shop.orders] max_lag")
    file.write_text(f"[embedded]\nhome = '{tmp_path}'\n")
    assert run("down").stderr == ""


MISSING = "'/missing/file.pem'"
# So that `check` waits for no server.
NO_ZOOKEEPER = f"[zookeeper]\ntls_ca_file = {MISSING}\n"


@pytest.mark.parametrize(
    ("section", "command", "says"),
    [
        ("[kafka.client]\n'foo.bar' = '1'\n", "land", 'kafka.client: No such configuration property: "foo.bar"'),
        ("[kafka.client]\n'linger.ms' = 'x'\n", "dead-letters list", "kafka.client: Invalid value"),
        ("[kafka.client]\n'security.protocol' = 'ssl'\n'ssl.ca.location' = '/x'\n", "land", "kafka.client: Failed"),
        ("[kafka.client]\nerror_cb = 'x'\n", "land", "kafka.client: expected error_cb property"),
        (f"[cassandra]\ntls_ca_file = {MISSING}\n", "init", "cassandra.tls_ca_file: /missing/file.pem cannot be read"),
        ("[cassandra]\ntls_ca_file = '/dev/null'\n", "init", "cassandra.tls_ca_file: /dev/null has no certificates"),
        (
            f"[ingest]\ntls_certificate_file = {MISSING}\ntls_key_file = {MISSING}\n",
            "serve",
            "ingest.tls_certificate_file: /missing/file.pem cannot be read",
        ),
        ("[lake]\npath = 's3a://'\n", "view a.b", "lake.path"),
        ("[lake]\nbuckets = 7\n", "backfill a.b x", "lake.buckets"),
        ("[capture]\nfinished = 'archive'\n", "agent", 'finished = "archive" needs archive'),
        ("[ingest]\ngroup = ''\n", "sink", "ingest.group"),
        ("[cassandra]\nport = 70000\n", "cql x", "cassandra.port"),
        ("[replay]\npublish_timeout_seconds = inf\n", "replay lag q", "replay.publish_timeout_seconds"),
        ("[embedded]\nkafka_controller_port = 19092\n", "up", "kafka_controller_port and kafka.bootstrap_servers are"),
    ],
)
def test_check_refuses_the_values_that_commands_refuse(file: Path, section: str, command: str, says: str) -> None:
    """With the reason that the command gives. No server runs at the default ports of this installation."""
    home = f"[embedded]\nhome = '{file.parent}'\n"
    section = section.replace("[embedded]\n", home) if "[embedded]" in section else home + section
    file.write_text(NO_ZOOKEEPER + section)
    answer, refused = run("check"), run(*command.split())
    assert refused.exit_code == answer.exit_code == 1
    assert says in answer.stdout
    assert says in refused.output, refused.output


def test_a_secret_that_others_can_read_is_a_fault(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = file.parent / "secrets"
    secrets.mkdir()
    password = secrets / "cassandra__password"
    password.write_text("hush")
    file.write_text(NO_ZOOKEEPER + "[cassandra]\nusername = 'u'\n[alerts]\nwebhook = 'https://chat.example/token'\n")
    monkeypatch.setenv("WRITETIME_SECRETS", str(secrets))
    for path in (password, file):
        path.chmod(0o644)
        assert f"every user of this machine can read {path}" in run("check").stdout
        path.chmod(0o640)
    answer = run("check").stdout
    assert "every user" not in answer
    assert "zookeeper  zookeeper.tls_ca_file: /missing/file.pem cannot be read" in answer


def test_a_node_that_will_refuse_writes_is_a_fault(settings: Settings, tmp_path: Path) -> None:
    """On a real node, whose `cdc_total_space` is less than the size of the file."""
    cdc_raw = tmp_path / "cdc_raw"
    cdc_raw.mkdir()
    capture = settings.capture.model_copy(update={"cdc_raw": cdc_raw})
    write_settings(settings.model_copy(update={"capture": capture}), tmp_path / "writetime.toml")
    with (cdc_raw / "CommitLog-8-1.log").open("wb") as file:
        file.truncate(1 << 40)
    answer = run("check")
    assert answer.exit_code == 1
    assert f"capture    {cdc_raw} holds" in answer.stdout
    assert "the node refuses writes, or deletes segments: start `writetime agent`" in answer.stdout
