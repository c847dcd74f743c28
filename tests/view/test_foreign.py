"""Another engine works on a view: its deletion vectors are read, and the next refresh makes the view right again."""

import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.support.generate import SEED
from tests.support.lake_answers import unordered
from tests.support.made import add, new_table, settings_at, write
from tests.support.view_readers import READERS
from writetime.core.config import Settings
from writetime.lake import views
from writetime.lake.spark_tasks import in_spark
from writetime.lake.table import LakeTable, open_table
from writetime.lake.vectors import read_vector
from writetime.view.refreshing import refresh

_ROWS = 200


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_at(tmp_path)


@pytest.fixture
def table(tmp_path: Path, settings: Settings) -> LakeTable:
    """A table whose view has vectors."""
    made = new_table(tmp_path)
    add(made, [write(i, 1, 5, v="a", w=i) for i in range(_ROWS)], 1)
    refresh(settings, made)
    add(made, [write(i, 1, 6, v="b") for i in range(0, _ROWS, 50)], 2)
    assert refresh(settings, made).marked == 4
    return made


def assert_right(table: LakeTable) -> None:
    wanted = unordered(views.virtual(table))
    names = [column.label for column in table.schema().columns]
    for read in READERS.values():
        assert unordered([read(table.view.storage.address).select(names)]) == wanted


def test_vectors_of_spark_are_read(table: LakeTable, spark: SparkSession) -> None:
    at, chooser = table.view.storage.address, random.Random(SEED)
    gone = {0, _ROWS - 1, *chooser.sample(range(_ROWS), 30)}
    spark.sql(f"DELETE FROM delta.`{at}` WHERE id IN ({', '.join(map(str, gone))})")
    live = table.view_files.load()
    left = []
    for each in live.files.values():
        ids = pq.ParquetFile(Path(at, each.file.path)).read(["id"])["id"].to_pylist()
        marked = set(read_vector(table.view.storage, each.vector))
        assert len(marked) == each.marked
        left += [value for row, value in enumerate(ids) if row not in marked]
    assert sorted(left) == sorted(set(range(_ROWS)) - gone)
    assert live.rows == _ROWS - len(gone)


def test_rows_that_another_engine_deletes_come_back(table: LakeTable, settings: Settings, spark: SparkSession) -> None:
    spark.sql(f"DELETE FROM delta.`{table.view.storage.address}` WHERE id = 3")
    add(table, [write(7, 1, 8, v="c")], 3)
    assert refresh(settings, table).whole
    assert_right(table)


def test_a_checkpoint_of_several_parts(table: LakeTable, settings: Settings, spark: SparkSession) -> None:
    """Spark writes such ones of large tables."""
    at, size = table.view.storage.address, "spark.databricks.delta.checkpoint.partSize"
    before = table.view_files.load()
    spark.conf.set(size, "2")
    try:
        jvm: Any = spark._jvm
        jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, at).checkpoint()
    finally:
        spark.conf.unset(size)
    parts = sorted(Path(at, "_delta_log").glob("*.checkpoint.*.*.parquet"))
    assert len(parts) > 1
    opened = open_table(settings, table.name)
    assert opened.view_files.load().files == before.files
    add(opened, [write(i, 1, 7, v="c") for i in range(1, _ROWS, 50)], 3)
    assert not refresh(settings, opened).whole
    assert_right(opened)


@pytest.mark.parametrize(
    "statement",
    [
        "OPTIMIZE delta.`{at}`",
        "UPDATE delta.`{at}` SET v = 'other' WHERE id = 3",
        # The same number of rows, in files of ours.
        "RESTORE TABLE delta.`{at}` TO VERSION AS OF {before}",
    ],
)
def test_files_of_another_engine(table: LakeTable, settings: Settings, spark: SparkSession, statement: str) -> None:
    # Two files of one partition, which OPTIMIZE joins.
    add(table, [write(9, 1, 8, v="c")], 3)
    refresh(settings, table)
    version = table.view.load().version
    spark.sql(statement.format(at=table.view.storage.address, before=version - 1))
    assert table.view.load().version > version
    add(table, [write(7, 1, 8, v="c")], 4)
    assert refresh(settings, table).whole
    assert_right(table)
    add(table, [write(8, 1, 8, v="c")], 5)
    assert not refresh(settings, table).whole
    assert_right(table)


def test_refreshed_in_spark(table: LakeTable, settings: Settings, spark: SparkSession) -> None:
    add(table, [write(i, 1, 8, v="c") for i in range(0, _ROWS, 3)], 3)
    assert refresh(settings, table, in_spark(spark)).written == 67
    assert_right(table)
    assert refresh(settings, table, in_spark(spark), whole=True).rows == _ROWS
    assert_right(table)
