"""Spark for assets."""

from typing import Any

from dagster import InitResourceContext
from dagster_pyspark import LazyPySparkResource
from dagster_pyspark.resources import spark_session_from_config
from pydantic import Field, PrivateAttr
from pyspark.sql import SparkSession

from writetime import config
from writetime.spark import launch_spark, spark_conf


class SparkResource(LazyPySparkResource):
    """A Spark session that starts when a step first asks for `spark_session` and stops at the end of the run.

    A session that was active before (tests share one) is used and left running. `spark_config` overrides the settings.
    """

    spark_config: dict[str, Any] = Field(default={})
    _started: bool = PrivateAttr(default=False)

    def _init_session(self) -> None:
        if self._spark_session is None:
            self._started = SparkSession.getActiveSession() is None
            conf = {**spark_conf(config.load()), **self.spark_config}
            launch_spark(conf)
            self._spark_session = spark_session_from_config(conf)

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        """Stop the session if this resource started it."""
        del context
        if self._started:
            self.spark_session.stop()
            self._spark_session, self._started = None, False
