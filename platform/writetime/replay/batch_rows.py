"""Batches as rows, one per item: a bounded PySpark op, with separate tasks for ranges of batches."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from writetime.core.config import Settings
from writetime.replay.batch_reading import replay
from writetime.replay.batches import Batch, Seal

SCHEMA = pa.schema(
    [
        pa.field("queue", pa.string(), nullable=False),
        pa.field("n", pa.int64(), nullable=False),
        pa.field("position", pa.int32(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("published_at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("producer", pa.string()),
        pa.field("sequence", pa.int64()),
    ]
)
SPLIT_BYTES = 16 << 20
# The fixed cost of a batch in bytes, because it needs separate requests.
_BATCH_BYTES = 64 << 10
_ROWS = 8192
_ROW_BYTES = 16 << 20


def read(spark: SparkSession, settings: Settings, seals: Sequence[Seal], split_bytes: int = SPLIT_BYTES) -> DataFrame:
    """Return the items of consecutive batches of one queue; `position` is an item's place in its batch.

    `seals` are those of the batches, as `sealed` returns them. Each task reads about `split_bytes`, never a part of a
    batch, and compares every batch with its count and SHA-256. No cursor is touched.
    """
    ranges = list(_ranges(seals, split_bytes))
    tasks = spark.createDataFrame(ranges, "queue string, first long, last long")

    def run_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                yield from _rows(replay(settings, row["queue"], row["first"], row["last"]))

    parted = tasks.repartitionByRange(max(1, len(ranges)), "first")
    return parted.mapInArrow(run_task, from_arrow_schema(SCHEMA))


def _ranges(seals: Iterable[Seal], split_bytes: int) -> Iterator[tuple[str, int, int]]:
    part: tuple[str, int, int] | None = None
    size = 0
    for seal in seals:
        if part is not None and size + seal.size > split_bytes:
            yield part
            part, size = None, 0
        part = (seal.queue, part[1] if part else seal.n, seal.n)
        size += seal.size + _BATCH_BYTES
    if part is not None:
        yield part


def _rows(batches: Iterable[Batch]) -> Iterator[pa.RecordBatch]:
    rows: list[tuple[Any, ...]] = []
    size = 0
    for batch in batches:
        seal = batch.seal
        for position, item in enumerate(batch.items):
            rows.append((seal.queue, seal.n, position, item, seal.published_at, seal.producer, seal.sequence))
            size += len(item)
            if len(rows) >= _ROWS or size >= _ROW_BYTES:
                yield _record_batch(rows)
                rows, size = [], 0
    if rows:
        yield _record_batch(rows)


def _record_batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(zip(*rows, strict=True), SCHEMA.types, strict=True)
    return pa.RecordBatch.from_arrays([pa.array(values, kind) for values, kind in columns], schema=SCHEMA)
