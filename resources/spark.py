"""Spark for assets."""

from collections.abc import Callable, Iterable
from typing import Any

from dagster import InitResourceContext
from dagster_pyspark import LazyPySparkResource
from pydantic import Field, PrivateAttr
from pyspark.sql import SparkSession

from writetime.clients.spark import spark_conf, start_session
from writetime.core import config
from writetime.lake.spark_tasks import in_spark
from writetime_dagster.resources import dead_runs, run_reports


class SparkResource(LazyPySparkResource):
    """A Spark session that starts when a step first reads `spark_session`, and stops at the end of the run.

    A session that was already active (tests share one) is used and left running. `spark_config` overrides the settings.
    """

    spark_config: dict[str, Any] = Field(default={})
    _started: bool = PrivateAttr(default=False)

    def _init_session(self) -> None:
        if self._spark_session is None:
            is_first = SparkSession.getActiveSession() is None
            self._spark_session = start_session({**spark_conf(config.load()), **self.spark_config})
            self._started = is_first

    def run(self, function: Callable[[Any], Any], tasks: Iterable[Any]) -> list[Any]:
        """Run the lake's tasks in Spark, like `in_spark`. Without a task, no session starts."""
        described = list(tasks)
        return in_spark(self.spark_session)(function, described) if described else []

    def setup_for_execution(self, context: InitResourceContext) -> None:
        """Let the run be recognised as dead once its process is gone."""
        super().setup_for_execution(context)
        dead_runs.begin(context)

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        """Stop the session if this resource started it, and report the run, unless another resource has."""
        try:
            if self._started and self._spark_session is not None:
                self._spark_session.stop()
                self._spark_session, self._started = None, False
        finally:
            run_reports.ending(context)
