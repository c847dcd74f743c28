from pathlib import Path

import pytest
from pydantic import SecretStr

from writetime.core import config
from writetime.core.errors import WritetimeError


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
        ("[cassandra]\nusername = 'u'\n", "username and password must be set together"),
        ("[cassandra]\ntls_key_file = 'k'\n", "need tls_ca_file"),
        ("[capture]\nsource = 'scylla-cdc'\n", "needs tables"),
        ("[capture]\ntables = ['shop.orders']\n", "only for scylla-cdc"),
        ("[capture]\nsource = 'scylla-cdc'\ntables = ['orders']\n", "orders is not named as keyspace.table"),
        ("[capture]\nsource = 'scylla-cdc'\ntables = ['s.orders']\n", "needs snapshot_folders of s.orders"),
        ("[capture]\nsnapshot_folders = {'s.orders' = ['/backup']}\n", "s.orders, which is not among tables"),
        ("[zookeeper]\nusername = 'u'\n", "username and password must be set together"),
        ("[zookeeper]\ntls_certificate_file = 'c'\ntls_key_file = 'k'\n", "need tls_ca_file"),
        ("[kafka.client]\n'enable.ssl.certificate.verification' = 'false'\n", "accept any server as a broker"),
        ("[kafka.client]\n'ssl.endpoint.identification.algorithm' = 'none'\n", "accept any server as a broker"),
        ("[schema_registry]\nurl = 'https://u:p@registry'\n", "schema_registry.url"),
        ("[ingest]\nhost = '0.0.0.0'\n", "callers need tokens"),
        ("[ingest]\nhost = 'ingest.example'\n", "callers need tokens"),
        ("[ingest]\nhost = '::'\n", "callers need tokens"),
        ("[ingest]\ntokens = ['too-short']\n", "ingest.tokens.0"),
        ("[ingest]\ntls_key_file = 'k'\n", "tls_key_file must be set together"),
        (
            "[alerts]\nowners = ['team:data', 'data']\n",
            "alerts.owners.1: .*'data' is not an owner that Dagster accepts",
        ),
        ("[alerts]\nowners = ['data@shop.technology']\n", "alerts.owners.0: .* 2 to 7 letters"),
        ("[replay]\nqueues = ['a', 'a b']\n", "replay.queues.1"),
        ("[replay]\nqueues = ['a.b', 'c', 'a-b']\n", "replay: .*Dagster cannot distinguish a.b and a-b"),
        ("[nothing]\n", "nothing: there is no such setting$"),
        ("[casandra]\n", r"casandra: there is no such setting; is it cassandra\?"),
        ("[lake]\nbucket = 4\n", r"lake.bucket: there is no such setting; is it buckets\?"),
        ("[workqueue.queues.mails]\nshard = 4\n", "workqueue.queues.mails.shard: there is no such setting$"),
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


def test_an_ingress_with_tokens_may_be_open(settings_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings_file.write_text("[ingest]\nhost = '0.0.0.0'\n")
    monkeypatch.setenv("WRITETIME_INGEST__TOKENS", '["a-token-of-sixteen", "another-of-sixteen"]')
    assert [token.get_secret_value() for token in config.load().ingest.tokens][1] == "another-of-sixteen"


def test_secrets_in_files(settings_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings_file.write_text(
        "[cassandra]\nusername = 'u'\npassword = 'of the file'\n[kafka.client]\n'client.id' = 'c'\n"
    )
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "cassandra__password").write_text("of the folder\n")
    (tmp_path / "secrets" / "kafka__client").write_text('{"sasl.password": "hush"}')
    (tmp_path / "secrets" / "ingest__tokens").write_text('["a-token-of-sixteen"]')
    monkeypatch.setenv("WRITETIME_SECRETS", str(tmp_path / "secrets"))
    settings = config.load()
    assert settings.cassandra.password is not None
    assert settings.cassandra.password.get_secret_value() == "of the folder"
    assert {k: v.get_secret_value() for k, v in settings.kafka.client.items()} == {
        "client.id": "c",
        "sasl.password": "hush",
    }
    assert len(settings.ingest.tokens) == 1
    monkeypatch.setenv("WRITETIME_CASSANDRA__PASSWORD", "of the environment")
    assert (config.load().cassandra.password or SecretStr("")).get_secret_value() == "of the environment"
    (tmp_path / "secrets" / "ingest__tokens").write_text("no-json-but-a-secret")
    with pytest.raises(WritetimeError, match=r"secrets/ingest__tokens is not JSON: .* at character 1") as caught:
        config.load()
    assert "no-json-but-a-secret" not in str(caught.value)
    monkeypatch.setenv("WRITETIME_SECRETS", str(tmp_path / "absent"))
    with pytest.raises(WritetimeError, match="absent"):
        config.load()


def test_secrets_do_not_show(settings_file: Path) -> None:
    settings_file.write_text(
        '[cassandra]\nusername = "u"\npassword = "hush"\n[kafka.client]\n"sasl.password" = "hush"\n'
    )
    settings = config.load()
    assert "hush" not in repr(settings)
    assert "hush" not in settings.model_dump_json()


def test_tombstones_need_keys_of_rows() -> None:
    with pytest.raises(WritetimeError, match='tombstones need the format "debezium" or "flat"'):
        config.load(row_events={"tombstones": True})
    assert config.load(row_events={"tombstones": True, "format": "flat"}).row_events.json_schemas


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        (
            "WRITETIME_KAFK__BOOTSTRAP_SERVERS",
            "b:1",
            "KAFK__.*: there is no section kafk; is it kafka__",
        ),
        ("WRITETIME_NOTHING__AT_ALL", "x", "there is no section nothing$"),
        ("writetime_lakee__path", "x", "there is no section lakee; is it lake__path"),
        ("WRITETIME_KAFKA_BOOTSTRAP_SERVERS", "b:1", "two underscores separate .* is it kafka__bootstrap_servers"),
        ("WRITETIME_KAFKA__BOOTSTRAP", "b:1", "kafka.bootstrap: there is no such setting"),
        ("WRITETIME_KAFKA__CLIENT", "{bad", "WRITETIME_KAFKA__CLIENT is not JSON: .* at character 2"),
        ("WRITETIME_CASSANDRA", "{bad", "WRITETIME_CASSANDRA is not JSON"),
    ],
)
def test_a_variable_is_used_or_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(WritetimeError, match=says) as caught:
        config.load()
    assert "{bad" not in str(caught.value)


def test_other_variables_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of other parts, and those that Kubernetes sets for services named writetime and writetime-ingest."""
    monkeypatch.setenv("WRITETIME_TOKEN", "x")
    monkeypatch.setenv("WRITETIME_PORT", "tcp://10.0.0.1:80")
    monkeypatch.setenv("WRITETIME_INGEST_PORT", "tcp://10.0.0.1:18080")
    monkeypatch.setenv("WRITETIME_INGEST_SERVICE_HOST", "10.0.0.1")
    config.load()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("kafk__client", b"{}", "kafk__client: there is no section kafk; is it kafka__client"),
        ("kafka_client", b"{}", "two underscores"),
        ("kafka__client", b"{bad", "kafka__client is not JSON"),
        ("cassandra__password", b"\xff\xfe", "cassandra__password is not UTF-8"),
    ],
)
def test_a_secret_is_used_or_refused(
    settings_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, says: str
) -> None:
    (tmp_path / "secrets" / "..data").mkdir(parents=True)
    (tmp_path / "secrets" / "token-of-another-program").write_text("x")
    monkeypatch.setenv("WRITETIME_SECRETS", str(tmp_path / "secrets"))
    config.load()
    (tmp_path / "secrets" / name).write_bytes(content)
    with pytest.raises(WritetimeError, match=says):
        config.load()


def test_a_byte_order_mark_is_no_fault(settings_file: Path) -> None:
    settings_file.write_text("[lake]\nbuckets = 4\n", "utf-8-sig")
    assert config.load().lake.buckets == 4
