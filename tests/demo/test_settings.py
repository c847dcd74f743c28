from pathlib import Path

import pytest

from demo import settings as demo_settings
from demo.settings import SHIPPED, ensure_settings, number_of
from writetime import servers
from writetime.core import config
from writetime.core.errors import WritetimeError
from writetime.lake.followed_tables import cdc_option


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "writetime.toml"
    monkeypatch.setenv("WRITETIME_CONFIG", str(path))
    monkeypatch.setattr(demo_settings, "datacenter_of", lambda host, port: ("dc1", 2))
    return path


def test_without_scylladb_the_settings_are_those_of_the_demo(path: Path) -> None:
    ensure_settings(path, None)
    assert path.read_text() == SHIPPED.read_text()
    path.write_text("")
    ensure_settings(path, None)
    assert path.read_text() == ""


def test_with_scylladb_its_logs_are_captured_and_no_cassandra_is_started(path: Path) -> None:
    ensure_settings(path, "127.0.0.9:9042")
    settings = config.load()
    assert (settings.cassandra.contact_points, settings.cassandra.port) == (["127.0.0.9"], 9042)
    assert settings.cassandra.replication == {"class": "NetworkTopologyStrategy", "dc1": 2}
    assert settings.capture.tables == ["writetime.flights", "writetime.user_events", "writetime.plane_positions"]
    assert cdc_option(settings) == "{'enabled': true}"
    assert [server.name for server in servers.servers(settings)] == ["zookeeper", "kafka"]
    # It is the same database the next time.
    ensure_settings(path, "127.0.0.9:9042")


@pytest.mark.parametrize(
    ("address", "reason"),
    [("127.0.0.8:9042", "names the database 127.0.0.9 port 9042, not 127.0.0.8:9042"), ("scylla", "is not an address")],
)
def test_another_or_a_missing_database_is_refused(path: Path, address: str, reason: str) -> None:
    ensure_settings(path, "127.0.0.9:9042")
    with pytest.raises(WritetimeError, match=reason):
        ensure_settings(path, address)


def test_a_number_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert number_of("DEMO_FLIGHTS", 20_000) == 20_000
    monkeypatch.setenv("DEMO_FLIGHTS", "1000")
    assert number_of("DEMO_FLIGHTS", 20_000) == 1000
    for text in ("abc", "-5", "0", ""):
        monkeypatch.setenv("DEMO_FLIGHTS", text)
        with pytest.raises(WritetimeError, match=f"DEMO_FLIGHTS={text} is not a positive whole number, such as 20000"):
            number_of("DEMO_FLIGHTS", 20_000)
