"""A bounded drain of a queue on Spark: each task is a worker, and owns shards like any other worker."""

from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from writetime.core.config import Settings
from writetime.workqueue.worker import Handler, Worker

_SCHEMA = pa.schema([pa.field("outcome", pa.string()), pa.field("count", pa.int64())])


def drain(spark: SparkSession, settings: Settings, queue: str, handler: Handler, tasks: int) -> Counter[str]:
    """Process the items of a queue with one worker per task; return the outcomes of all.

    A task that is repeated finds the remaining items. Other workers of the queue may run meanwhile.
    """

    def run_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for _ in range(batch.num_rows):
                outcomes = Worker(settings, {queue: handler}).run(until_idle=True)
                rows = [{"outcome": outcome, "count": count} for outcome, count in outcomes.items()]
                yield pa.RecordBatch.from_pylist(rows, _SCHEMA)

    numbers = spark.range(tasks).repartition(tasks)
    rows = numbers.mapInArrow(run_task, from_arrow_schema(_SCHEMA)).collect()
    total: Counter[str] = Counter()
    for row in rows:
        total[row["outcome"]] += row["count"]
    return total
