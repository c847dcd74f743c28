"""Another engine writes to a view: its deletion vectors are read, and the next refresh corrects the view.

Oracle: another engine's rows and marks, and the rows that the test wrote.
"""

import base64
import dataclasses
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyroaring import BitMap
from pyspark.sql import SparkSession

from tests.support.generate import SEED
from tests.support.lake_answers import unordered
from tests.support.made import add, cell, new_table, settings_at, write
from tests.support.view_readers import READERS, Reader
from writetime.core.config import Settings
from writetime.delta import bucketed_table, deletion_vectors
from writetime.delta.bucketed_table import BucketedTable
from writetime.delta.deletion_vectors import DeletionVector, read_vector, write_vectors
from writetime.delta.parquet import PARTITION
from writetime.delta.table_changes import TableChange
from writetime.lake import views
from writetime.lake.projection import VIEW
from writetime.lake.spark_tasks import in_spark
from writetime.lake.table import LakeTable, open_table
from writetime.lake.view_retention import removed_files
from writetime.schema.table import Column
from writetime.schema.types import Native
from writetime.view.refreshing import refresh

pytestmark = pytest.mark.long

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


def assert_right(table: LakeTable, readers: Mapping[str, Reader] = READERS) -> None:
    wanted = unordered(views.virtual(table))
    names = [column.label for column in table.schema().columns]
    for read in readers.values():
        assert unordered([read(table.view.storage.address).select(names)]) == wanted


def test_rows_that_spark_marks_are_read_and_come_back(
    table: LakeTable, settings: Settings, spark: SparkSession
) -> None:
    at, chooser = table.view.storage.address, random.Random(SEED)
    gone = {0, _ROWS - 1, *chooser.sample(range(_ROWS), 30)}
    spark.sql(f"DELETE FROM delta.`{at}` WHERE id IN ({', '.join(map(str, gone))})")
    live = table.view.load()
    left = []
    for each in live.files:
        ids = pq.ParquetFile(Path(at, each.path)).read(["id"])["id"].to_pylist()
        marked = set(read_vector(table.view.storage, each.vector))
        assert len(marked) == each.marked
        left += [value for row, value in enumerate(ids) if row not in marked]
    assert sorted(left) == sorted(set(range(_ROWS)) - gone)
    assert live.rows == _ROWS - len(gone)
    add(table, [write(7, 1, 8, v="c")], 3)
    assert refresh(settings, table).whole
    assert_right(table)


@pytest.mark.parametrize("form", [None, "parquet", "json"])
def test_a_checkpoint_of_several_files(
    table: LakeTable, settings: Settings, tmp_path: Path, spark: SparkSession, form: str | None
) -> None:
    """Spark writes parts of large tables, or sidecars that a file of either format names."""
    at, of_delta, readers = table.view.storage.address, "spark.databricks.delta", READERS
    options = {f"{of_delta}.checkpoint.partSize": "2"}
    if form:
        options[f"{of_delta}.checkpointV2.topLevelFileFormat"] = form
        spark.sql(f"ALTER TABLE delta.`{at}` SET TBLPROPERTIES ('delta.checkpointPolicy' = 'v2')")
        # Polars does not know these.
        readers = {name: read for name, read in READERS.items() if name != "polars"}
    before = table.view.load()
    for name, value in options.items():
        spark.conf.set(name, value)
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, at).checkpoint()
    for name in options:
        spark.conf.unset(name)
    several = "_sidecars/0*.parquet" if form else "0*.checkpoint.*.*.parquet"
    assert len(sorted(Path(at, "_delta_log").glob(several))) > 1
    opened = open_table(settings, table.name)
    assert opened.view.load().files == before.files
    assert removed_files(opened)
    # Now one of delta-rs follows.
    with patch.object(bucketed_table, "CHECKPOINT_EVERY", 2):
        for number in (3, 4):
            add(opened, [write(number, 1, 7, v="c")], number)
            assert not refresh(settings, opened).whole
    assert_right(opened, readers)
    opened = open_table(settings, table.name)
    assert refresh(settings_at(tmp_path, view="rewritten"), opened).whole
    assert_right(opened, readers)
    assert spark.read.format("delta").load(at).count() == _ROWS


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


@pytest.mark.parametrize("since", ["an update", "a deletion", "a new column"])
def test_a_view_that_is_restored(table: LakeTable, settings: Settings, since: str) -> None:
    """delta-rs restores files and marks, and fields as well."""
    version = table.view.load().version
    if since == "a new column":
        schema = table.schema()
        table.follow(dataclasses.replace(schema, regular=(*schema.regular, Column("x", Native("int")))))
    else:
        gone = {"tombstone": {"write_time": 9, "deletion_time": 9}, "marker": None}
        add(table, [write(7, 1, 9, v="c") if since == "an update" else write(7, 1, 9) | gone], 3)
        assert refresh(settings, table).marked == 1
    DeltaTable(table.view.storage.address).restore(version)
    columns = {"x": cell(5, 9)} if since == "a new column" else {}
    add(table, [write(8, 1, 9, v="d") | columns], 4, table.schema())
    assert refresh(settings, table).whole == (since != "a new column")
    assert_right(table)


def test_rows_of_another_program(table: LakeTable, settings: Settings) -> None:
    """It knows no buckets."""
    other = pa.table({PARTITION: pa.array([None], pa.int32()), "id": pa.array([7], pa.int32())})
    write_deltalake(table.view.storage.address, other, mode="append", schema_mode="merge")
    assert refresh(settings, table).whole
    assert_right(table)


def test_a_vector_in_the_log(table: LakeTable, settings: Settings) -> None:
    """A short vector may be in the commit itself, as text (PROTOCOL.md, "Deletion Vectors": the storage type `i`)."""
    storage, before = table.view.storage, table.view.load()
    file = max(before.files, key=lambda each: each.rows)
    rows = BitMap([0, 3, file.rows - 1])
    written = write_vectors(storage, {file.path: rows})[file.path]
    data = Path(storage.address, str(written.path)).read_bytes()[written.offset + 4 :][: written.size]
    # Four bytes are five letters.
    text = base64.b85encode(data + bytes(-len(data) % 4)).translate(deletion_vectors._TO_Z85).decode()
    change = TableChange(mark=[(file, DeletionVector("i", text, 0, len(data), 3))])
    VIEW.commit(table, before, change)
    for name, read in READERS.items():
        assert read(storage.address).num_rows == before.rows + file.marked - 3, name
    found = BucketedTable(storage).load().by_path[file.path].vector
    assert read_vector(storage, found) == rows
    assert refresh(settings, table, whole=True).rows == _ROWS
    assert_right(table)


def test_refreshed_in_spark(table: LakeTable, settings: Settings, spark: SparkSession) -> None:
    add(table, [write(i, 1, 8, v="c") for i in range(0, _ROWS, 3)], 3)
    assert refresh(settings, table, in_spark(spark)).written == 67
    assert_right(table)
    assert refresh(settings, table, in_spark(spark), whole=True).rows == _ROWS
    assert_right(table)
