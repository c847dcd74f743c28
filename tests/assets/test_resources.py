"""The Dagster resources."""

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
