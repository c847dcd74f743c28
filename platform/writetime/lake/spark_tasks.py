"""Runs the lake's work in Spark. Only descriptions of tasks and of files pass through Spark. Tasks read and write the
rows as files.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from writetime.core.errors import WritetimeError
from writetime.files.merging import CaughtTask, sendable


def in_spark(session: SparkSession) -> Callable[[Callable[[Any], Any], Iterable[Any]], list[Any]]:
    """Return a function that runs the lake's tasks like the built-in `map`, but each as a task of Spark.

    If the process of a task dies, the tasks of a `CaughtTask` run again, each as a job of its own, so that only this
    one fails.
    """

    def job(function: Callable[[Any], Any], tasks: list[Any]) -> list[Any]:
        found = session.sparkContext.parallelize(tasks, len(tasks)).map(partial(_run, function)).collect()
        for _, fault in found:
            if fault is not None:
                raise fault
        return [value for value, _ in found]

    def alone(function: Callable[[Any], Any], task: Any) -> Any:
        try:
            return job(function, [task])[0]
        except Exception as e:
            return task, None, e

    def run(function: Callable[[Any], Any], tasks: Iterable[Any]) -> list[Any]:
        described = list(tasks)
        if not described:
            return []
        try:
            return job(function, described)
        except Exception:
            if not isinstance(function, CaughtTask):
                raise
        return [alone(function, task) for task in described]

    return run


def _run(function: Callable[[Any], Any], task: Any) -> tuple[Any, Exception | None]:
    """Run a task. Return a known error as it is. Otherwise Spark would replace it by its own error with the text."""
    try:
        return function(task), None
    except (WritetimeError, OSError) as e:
        return None, sendable(e)
