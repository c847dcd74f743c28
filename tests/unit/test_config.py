from pathlib import Path

import pytest

from writetime import config
from writetime.errors import WritetimeError


@pytest.fixture
def settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "writetime.toml"
    monkeypatch.setenv("WRITETIME_CONFIG", str(path))
    path.write_text("")
    return path


def test_file_over_default_and_environment_over_file(settings_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings_file.write_text('[kafka]\nbootstrap_servers = "a:1"\nreplication_factor = 3\n')
    monkeypatch.setenv("WRITETIME_KAFKA__BOOTSTRAP_SERVERS", "b:2")
    settings = config.load()
    assert settings.kafka.bootstrap_servers == "b:2"
    assert settings.kafka.replication_factor == 3
    assert settings.cassandra.keyspace == "writetime"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[kafka]\nbootstrap_server = 'a:1'\n", "kafka.bootstrap_server"),
        ("[ingest]\nmode = 'fast'\n", "ingest.mode"),
        ("[cassandra]\nkeyspace = 'My Keyspace'\n", "cassandra.keyspace"),
        ("[cassandra]\nusername = 'u'\n", "username and password belong together"),
        ("[cassandra]\ntls_key_file = 'k'\n", "need tls_ca_file"),
        ("[capture]\nsource = 'scylla-cdc'\n", "needs tables"),
        ("[capture]\ntables = ['shop.orders']\n", "named for scylla-cdc only"),
        ("[capture]\nsource = 'scylla-cdc'\ntables = ['orders']\n", "orders is not named as keyspace.table"),
        ("[capture]\nsource = 'scylla-cdc'\ntables = ['s.orders']\n", "needs snapshot_folders of s.orders"),
        ("[capture]\nsnapshot_folders = {'s.orders' = ['/backup']}\n", "s.orders, which is not among tables"),
        ("[nothing]\n", "nothing"),
        ("[kafka\n", "is not valid TOML"),
    ],
)
def test_mistakes_are_named(settings_file: Path, text: str, says: str) -> None:
    settings_file.write_text(text)
    with pytest.raises(WritetimeError, match=says):
        config.load()


def test_missing_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WRITETIME_CONFIG", str(tmp_path / "absent.toml"))
    with pytest.raises(WritetimeError, match=r"absent\.toml"):
        config.load()


def test_secrets_do_not_show(settings_file: Path) -> None:
    settings_file.write_text(
        '[cassandra]\nusername = "u"\npassword = "hush"\n[kafka.client]\n"sasl.password" = "hush"\n'
    )
    settings = config.load()
    assert "hush" not in repr(settings)
    assert "hush" not in settings.model_dump_json()
