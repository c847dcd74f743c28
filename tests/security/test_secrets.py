"""Secrets are never shown: not by commands that fail, and not by runs, their metadata, or Spark."""

import logging
import os
import subprocess
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from pydantic import SecretStr

from tests.security.conftest import SECRETS, Secured
from tests.support.settings import write_settings
from writetime.cli.main import main
from writetime.clients import kafka
from writetime.core import config
from writetime.core.config import Settings
from writetime.core.logs import log_clients
from writetime.ingest.event import accept
from writetime.replay import coordination

pytestmark = pytest.mark.long

# The start of all secrets of these tests.
HUSH = "hush-of-"
PLACES = [
    "unknown://user:hush-of-a-backup@host/x",
    "s3://user:hush-of-a-backup@bucket/x?region=x&scheme=http&endpoint_override=127.0.0.1:1",
]
COMMANDS = [
    *(["--help"], ["status"], ["status", "--agents"], ["init"], ["sink"], ["land"], ["dead-letters", "list"]),
    *(["view", "shop.orders"], ["verify", "shop.orders"], ["snapshot", "shop.orders"]),
    *(["backfill", "shop.orders", place] for place in PLACES),
    *(["replay", "lag", "flights"], ["queue", "inspect", "jobs"], ["queue", "enqueue", "jobs", "1"]),
]


def with_wrong_passwords(settings: Settings) -> Settings:
    def wrong(section: Any) -> Any:
        password = SecretStr(section.password.get_secret_value() + "-and-wrong")
        return section.model_copy(update={"password": password})

    client = settings.kafka.client | {"sasl.password": SecretStr(f"{SECRETS['kafka']}-and-wrong")}
    return settings.model_copy(
        update={
            "cassandra": wrong(settings.cassandra),
            "zookeeper": wrong(settings.zookeeper),
            "kafka": settings.kafka.model_copy(update={"client": client}),
        }
    )


def out_of_reach(settings: Settings) -> Settings:
    options = {
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": SECRETS["storage"],
        "AWS_REGION": "nowhere",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ALLOW_HTTP": "true",
        "max_retries": "0",
    }
    registry = {"url": "http://127.0.0.1:1", "username": "u", "password": SECRETS["registry"]}
    return settings.model_copy(
        update={
            "cassandra": settings.cassandra.model_copy(update={"port": 1}),
            "kafka": settings.kafka.model_copy(update={"bootstrap_servers": "127.0.0.1:1"}),
            "zookeeper": settings.zookeeper.model_copy(update={"hosts": "127.0.0.1:1"}),
            "schema_registry": config.SchemaRegistry.model_validate(registry),
            "lake": config.Lake.model_validate({"path": "s3://bucket/lake", "storage_options": options}),
        }
    )


def test_commands_that_fail(
    secured: Secured,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    # The logs of clients, too, as in services.
    monkeypatch.setattr("writetime.cli.main.silence_clients", log_clients)
    monkeypatch.setattr(kafka, "TIMEOUT_SECONDS", 2.0)
    monkeypatch.setattr(coordination, "TIMEOUT_SECONDS", 2)
    file = tmp_path / "writetime.toml"
    monkeypatch.setenv("WRITETIME_CONFIG", str(file))
    said = ""
    for settings in (with_wrong_passwords(secured.settings), out_of_reach(secured.settings)):
        talkative = settings.kafka.client | {"debug": SecretStr("conf,security")}
        kafka_section = settings.kafka.model_copy(update={"client": talkative})
        write_settings(settings.model_copy(update={"kafka": kafka_section}), file)
        assert HUSH in file.read_text()
        failed = 0
        for command in COMMANDS:
            result = CliRunner().invoke(main, command)
            failed += result.exit_code != 0
            said += result.output + "".join(traceback.format_exception(result.exception))
        assert failed > len(COMMANDS) / 2
    # Clients are cached, and these would continue to retry.
    kafka._admin_of.cache_clear()
    out, err = capfd.readouterr()
    assert "sasl.password" in caplog.text
    for text in (said, out, err, caplog.text):
        assert HUSH not in text


def test_a_run_that_fails(secured: Secured, in_force: Settings, tmp_path: Path) -> None:
    home = tmp_path / "dagster"
    home.mkdir()
    event = accept({"userId": "ada", "eventType": "secret"}, None, datetime.now(UTC))
    producer = Producer(kafka.client_config(in_force))
    producer.produce(in_force.ingest.topic, event.value(), event.key())
    assert producer.flush(30) == 0
    cassandra = with_wrong_passwords(in_force).cassandra
    conf = in_force.spark.conf | {"spark.ui.enabled": SecretStr("true"), "spark.ui.port": SecretStr("0")}
    wrong = in_force.model_copy(
        update={"cassandra": cassandra, "spark": in_force.spark.model_copy(update={"conf": conf})}
    )
    write_settings(wrong, tmp_path / "wrong.toml")
    environment = {**os.environ, "DAGSTER_HOME": str(home), "WRITETIME_CONFIG": str(tmp_path / "wrong.toml")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.security.failing_run"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert "success: False" in done.stdout, done.stderr[-2000:]
    assert "and/or password are incorrect" in done.stderr
    assert "spark.hadoop.fs.s3a.secret.key" in done.stdout
    assert "spark-submit" in done.stdout or "SparkSubmit" in done.stdout
    kept = [path for path in home.rglob("*") if path.is_file()]
    assert any(b"password are incorrect" in path.read_bytes() for path in kept)
    assert not [path for path in kept if HUSH.encode() in path.read_bytes()]
    assert HUSH not in done.stdout + done.stderr
