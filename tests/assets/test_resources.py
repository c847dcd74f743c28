"""The Dagster resources."""

import subprocess
import sys

import pytest
from dagster import asset, materialize
from pyspark.sql import SparkSession

from writetime.core.errors import WritetimeError
from writetime_dagster.assets.failures import retry_if_transient
from writetime_dagster.resources import SparkResource


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
