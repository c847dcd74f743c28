"""The errors of tasks whose text a Spark Connect server adds to, or cuts. No server is needed."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from writetime.core.errors import Transient
from writetime.lake.spark_tasks import in_spark


class SparkError(Exception):
    """As the client raises it."""


class Connect:
    """A session by Connect: it runs the tasks in this process, and reports an error with an edited text."""

    def __init__(self, edited: Callable[[str], str]) -> None:
        self._edited = edited
        self._tasks: Iterator[pa.RecordBatch] = iter([])

    def range(self, *bounds: int) -> "Connect":
        return self

    def mapInArrow(self, run: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], _: str) -> "Connect":
        self._tasks = run(iter([pa.RecordBatch.from_pydict({"id": [0]})]))
        return self

    def collect(self) -> list[Any]:
        try:
            return [row for batch in self._tasks for row in batch.to_pylist()]
        except RuntimeError as e:
            raise SparkError(self._edited(f"Job aborted: {e}")) from None


def fail(reason: str) -> None:
    raise Transient(reason)


def run(edited: Callable[[str], str]) -> None:
    in_spark(cast(SparkSession, Connect(edited)))(fail, ["no broker answers"])


def test_text_around_an_error_does_not_matter() -> None:
    with pytest.raises(Transient, match=r"^no broker answers$"):
        run(lambda text: f"PythonException: {text}\n\nJVM stacktrace: {text}")


@pytest.mark.parametrize("lost", [2, 40, 80, 150])
def test_an_error_of_which_a_part_is_lost_stays_that_of_spark(lost: int) -> None:
    with pytest.raises(SparkError, match="no broker answers"):
        run(lambda text: text[:-lost])
