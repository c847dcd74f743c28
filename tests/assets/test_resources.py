"""The Dagster resources."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance, EnvVar, asset, materialize
from pyspark.sql import SparkSession

from writetime.core.config import InvalidSettings
from writetime.core.errors import WritetimeError
from writetime_dagster.assets.failures import retry_if_transient
from writetime_dagster.resources import DatabaseResource, KafkaResource, LakeResource, SparkResource, ZooKeeperResource


def test_spark_that_cannot_start_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of the run, too, where it would be started only to be stopped."""
    started: list[object] = []

    def fail(conf: object) -> None:
        started.append(conf)
        raise WritetimeError("there is no Java 17")

    monkeypatch.setattr("writetime_dagster.resources.spark.start_session", fail)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)

    @asset
    @retry_if_transient()
    def rows(spark: SparkResource) -> None:
        spark.spark_session.range(1).collect()

    result = materialize([rows], resources={"spark": SparkResource()}, raise_on_error=False)
    assert not result.success
    assert len(started) == 1


WITHOUT_PRIVATE_PARTS = """
import logging, sys
from types import SimpleNamespace
from dagster import Failure
from dagster._core import errors
from dagster._core.definitions import definitions_load_context
from dagster._core.execution.plan.instance_concurrency_context import InstanceConcurrencyContext as Waiting

del errors.DagsterUserCodeProcessError, definitions_load_context.DefinitionsLoadContext
if sys.argv[1] == "a method":
    del Waiting.interval_to_next_pending_claim_check
logging.basicConfig(format="%(message)s", level="WARNING")
from writetime_dagster.assets.failures import ToCorrect
from writetime_dagster.resources import private_dagster

for _ in range(2):
    private_dagster.pass_on("key", "text")
    assert private_dagster.loaded_with("key") is None
    private_dagster.sleep_in_pools(print)
if sys.argv[1] == "an attribute":
    assert Waiting.interval_to_next_pending_claim_check(SimpleNamespace(_pending_claims=set())) == 0.0
try:
    raise ToCorrect("the disk is full")
except Failure as e:
    assert (e.description, e.allow_retries) == ("the disk is full", False)
"""


@pytest.mark.parametrize("missing", ["a method", "an attribute"])
def test_a_dagster_without_its_private_parts(missing: str) -> None:
    """Each is logged once, with what the platform does without it."""
    command = [sys.executable, "-c", WITHOUT_PRIVATE_PARTS, missing]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = [line for line in done.stderr.splitlines() if line.startswith("this release of Dagster lacks ")]
    parts = ["DagsterUserCodeProcessError", "DefinitionsLoadContext", "InstanceConcurrencyContext"]
    assert [line.split()[5].rstrip(":") for line in found] == parts


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A settings file whose servers do not exist."""
    path = tmp_path / "writetime.toml"
    path.write_text(
        '[cassandra]\ncontact_points = ["of-file"]\nport = 1\nusername = "of-file"\npassword = "of-file"\n'
        '[kafka]\nbootstrap_servers = "of-file:1"\nclient = {"security.protocol" = "SSL"}\n'
        f'[zookeeper]\nhosts = "of-file:1"\n[lake]\npath = "of-file"\n[alerts]\nreports = "{tmp_path / "reports"}"\n'
    )
    monkeypatch.setenv("WRITETIME_CONFIG", str(path))
    return path


@pytest.mark.usefixtures("file")
def test_fields_replace_settings_one_by_one() -> None:
    """Also those of the other resources of an asset."""
    kafka, lake = KafkaResource(client={"client.id": "other"}), LakeResource(folder="other")
    found = kafka.settings_with(
        lake, DatabaseResource(contact_points=["other"]), ZooKeeperResource(hosts="other:2", username="a", password="b")
    )
    assert (found.cassandra.contact_points, found.cassandra.port, found.cassandra.username) == (["other"], 1, "of-file")
    assert (found.kafka.bootstrap_servers, found.lake.path, found.zookeeper.hosts) == ("of-file:1", "other", "other:2")
    client = {name: value.get_secret_value() for name, value in found.kafka.client.items()}
    assert client == {"security.protocol": "SSL", "client.id": "other"}
    assert (kafka.settings.lake.path, lake.settings.lake.path) == ("of-file", "other")
    assert lake.path("a").endswith("/other/a")


@pytest.mark.usefixtures("file")
@pytest.mark.parametrize(
    ("resource", "name"),
    [
        (DatabaseResource(port=0), "cassandra.port"),
        (DatabaseResource(contact_points=[]), "cassandra.contact_points"),
        (KafkaResource(bootstrap_servers="no port"), "kafka.bootstrap_servers"),
        (ZooKeeperResource(username="alone"), "zookeeper: "),
        (LakeResource(folder=""), "lake.path"),
    ],
    ids=["port", "contact_points", "bootstrap_servers", "username", "folder"],
)
def test_an_invalid_field_is_refused_like_a_setting(resource: Any, name: str) -> None:
    with pytest.raises(InvalidSettings, match=name):
        _ = resource.settings


@asset
def rows_of_another_server(database: DatabaseResource) -> None:
    assert "of-variable" not in repr(database)
    cassandra = database.settings.cassandra
    assert cassandra.password is not None
    assert cassandra.password.get_secret_value() == "of-variable"
    with database.connect():
        pass


@pytest.mark.parametrize("at_launch", [True, False], ids=["launchpad", "definitions"])
def test_a_step_connects_to_the_address_of_a_field(
    file: Path, at_launch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The password of a variable is in no event, and in no configuration."""
    monkeypatch.setenv("OTHER_PASSWORD", "of-variable")
    fields: dict[str, Any] = {"contact_points": ["127.0.0.1"], "port": 2}
    if at_launch:
        fields["password"] = {"env": "OTHER_PASSWORD"}
        resource, config = DatabaseResource(), {"resources": {"database": {"config": fields}}}
    else:
        resource, config = DatabaseResource(**fields, password=EnvVar("OTHER_PASSWORD")), {}
    with DagsterInstance.ephemeral() as instance:
        result = materialize(
            [rows_of_another_server],
            instance=instance,
            resources={"database": resource},
            run_config=config,
            raise_on_error=False,
        )
        [failure] = result.get_step_failure_events()
        text = f"{instance.get_run_by_id(result.run_id)} {instance.all_logs(result.run_id)} {resource!r}"
    assert "127.0.0.1:2" in str(failure.step_failure_data.error)
    assert "of-variable" not in text


def test_a_run_with_an_invalid_field_is_reported(file: Path) -> None:
    @asset
    @retry_if_transient()
    def rows(database: DatabaseResource) -> None:
        with database.connect():
            pass

    result = materialize(
        [rows],
        resources={"database": DatabaseResource()},
        run_config={"resources": {"database": {"config": {"port": 0}}}},
        raise_on_error=False,
    )
    assert not result.success
    [report] = (file.parent / "reports").iterdir()
    assert "cassandra.port" in report.read_text()


def test_a_settings_file_that_is_missing_is_named_by_its_field(tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    with pytest.raises(WritetimeError, match=f"settings_file names {other}, which is not a file"):
        _ = LakeResource(settings_file=str(other)).settings
