"""Runs the lake's work in Spark, on a classic session or by Spark Connect. Only descriptions of tasks and of files pass
through Spark. Tasks read and write the rows as files.
"""

import base64
import pickle
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from writetime.core.errors import WritetimeError, hide_passwords, reason_of
from writetime.files.merging import CaughtTask, sendable

# A session has one partition per task that it runs at once, if the frame has enough rows.
_ROWS_FOR_ALL = 1 << 16


def in_spark(session: SparkSession) -> Callable[[Callable[[Any], Any], Iterable[Any]], list[Any]]:
    """Return a function that runs the lake's tasks like the built-in `map`, but at once, and each as a task of Spark.

    It is a `Runner`. A task that raises an error has failed in Spark, too: a cluster tries it `spark.task.maxFailures`
    times, and a session of one machine once. The tasks of a `CaughtTask` fail only with their process. Then all run
    again, each as a job of its own, so that only this one fails.
    """
    job = _classic_job if isinstance(session, SparkSession) else _connect_job

    def run(function: Callable[[Any], Any], tasks: Iterable[Any]) -> list[Any]:
        described = list(tasks)
        if not described:
            return []
        try:
            return checked(function, described)
        except Exception:
            if not isinstance(function, CaughtTask):
                raise
        return [alone(function, task) for task in described]

    def checked(function: Callable[[Any], Any], tasks: list[Any]) -> list[Any]:
        marked = _MarkedErrors(function, secrets.token_hex(16))
        try:
            return job(session, marked, tasks)
        except Exception as e:
            if (known := marked.found_in(str(e))) is None:
                raise
            raise known from None

    def alone(function: Callable[[Any], Any], task: Any) -> Any:
        try:
            return checked(function, [task])[0]
        except Exception as e:
            return task, None, e

    return run


def tasks_at_once(session: SparkSession) -> int:
    """Return how many tasks a session runs at once, by a small job: Connect has no other way to learn this."""
    return session.range(_ROWS_FOR_ALL).select(F.spark_partition_id()).distinct().count()


@dataclass(frozen=True)
class _MarkedErrors:
    """Runs a function on a task. A known error gets its pickled form between two marks, because Spark replaces each
    error by its own with the text, to which it adds some. A server may cut that text, so without the second mark there
    is no known error. No data of a task can have the mark, so nothing else is unpickled.
    """

    function: Callable[[Any], Any]
    mark: str

    def __call__(self, task: Any) -> Any:
        try:
            return self.function(task)
        except (WritetimeError, OSError) as e:
            hide_passwords(e)
            pickled = base64.b64encode(pickle.dumps(sendable(e))).decode()
            raise RuntimeError(f"{reason_of(e)} ({self.mark}:{pickled}:{self.mark})") from e

    def found_in(self, text: str) -> Exception | None:
        """Return the known error of a task whose failure Spark reports."""
        match = re.search(rf"{self.mark}:([\w+/=]+):{self.mark}", text)
        return None if match is None else pickle.loads(base64.b64decode(match[1]))


def _classic_job(session: SparkSession, function: Callable[[Any], Any], tasks: list[Any]) -> list[Any]:
    return session.sparkContext.parallelize(tasks, len(tasks)).map(function).collect()


def _connect_job(session: SparkSession, function: Callable[[Any], Any], tasks: list[Any]) -> list[Any]:
    pickled = [cloudpickle.dumps(task) for task in tasks]

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                result = cloudpickle.dumps(function(pickle.loads(pickled[number])))
                yield pa.RecordBatch.from_pydict({"number": [number], "result": [result]})

    numbers = session.range(0, len(tasks), 1, len(tasks))
    found = numbers.mapInArrow(run, "number long, result binary").collect()
    results = {row["number"]: pickle.loads(row["result"]) for row in found}
    return [results[number] for number in range(len(tasks))]
