"""Spark for assets."""

from collections.abc import Callable, Iterable
from typing import Any

import dagster as dg
from pydantic import Field, PrivateAttr
from pyspark.sql import SparkSession

from writetime.clients.spark import spark_conf, start_session
from writetime.lake.spark_tasks import in_spark
from writetime_dagster.resources.base import WritetimeResource


class SparkResource(WritetimeResource):
    """A Spark session that starts when a step first reads `spark_session`, and stops at the end of the run.

    A session that was already active (tests share one) is used and left running. `spark_config` overrides the settings.
    """

    section = "spark"

    spark_config: dict[str, Any] = Field(default={})
    _session: SparkSession | None = PrivateAttr(default=None)
    _is_own: bool = PrivateAttr(default=False)

    def overrides(self) -> dict[str, Any]:
        """Return nothing: the session itself takes `spark_config`."""
        return {}

    @property
    def spark_session(self) -> SparkSession:
        """The session."""
        if self._session is None:
            is_first = SparkSession.getActiveSession() is None
            self._session = start_session({**spark_conf(self.settings), **self.spark_config})
            self._is_own = is_first
        return self._session

    def run(self, function: Callable[[Any], Any], tasks: Iterable[Any]) -> list[Any]:
        """Run the lake's tasks in Spark, like `in_spark`. Without a task, no session starts."""
        described = list(tasks)
        return in_spark(self.spark_session)(function, described) if described else []

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Stop the session if this resource started it, and report the run, unless another resource has."""
        try:
            if self._is_own and self._session is not None:
                self._session.stop()
                self._session, self._is_own = None, False
        finally:
            super().teardown_after_execution(context)
