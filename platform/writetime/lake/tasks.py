"""Runs the lake's tasks in Spark, each as a task of its own."""

from collections.abc import Callable, Iterable
from typing import Any

from pyspark.sql import SparkSession


def in_spark(session: SparkSession) -> Callable[[Callable[[Any], Any], Iterable[Any]], list[Any]]:
    """Return what runs tasks like the built-in `map`, but on the session's executors.

    Only the description of a task and of what it wrote go through Spark; rows go from file to file.
    """

    def run(function: Callable[[Any], Any], tasks: Iterable[Any]) -> list[Any]:
        described = list(tasks)
        if not described:
            return []
        return session.sparkContext.parallelize(described, len(described)).map(function).collect()

    return run
