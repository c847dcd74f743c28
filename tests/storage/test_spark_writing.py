"""SSTables that Spark writes from changes.

Oracle: the merge of the changes in the SSTables that the database wrote.
"""

from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.storage.written import Written
from tests.support.examples import is_long_run
from tests.support.expected import assert_same
from tests.support.format_server import cql_with_ids
from writetime.lake.labels import newly_labelled
from writetime.merge.folding import merge
from writetime.schema.table import TableSchema
from writetime.storage.locations import find_sstables
from writetime.storage.sstable import SSTable

# Other tests write each format.
_FORMATS = ["nb", "oa"] if is_long_run() else ["nb"]
pytestmark = [pytest.mark.parametrize("written", _FORMATS, indirect=True, scope="session"), pytest.mark.long]


def _read(spark: SparkSession, folder: str, schema: TableSchema) -> DataFrame:
    return spark.read.format("sstable").option("schema", cql_with_ids([schema])).load(folder)


def _write(frame: DataFrame, folder: Path, schema: TableSchema, **options: str) -> None:
    frame.write.format("sstable").mode("append").options(schema=cql_with_ids([schema]), **options).save(str(folder))


def _state(schema: TableSchema, folder: str) -> pa.Table:
    schema = newly_labelled(schema)
    found = [batch for at in find_sstables(folder) for batch in SSTable(at, schema).scan()]
    return merge(found, schema).drop_columns(["origin"])


def test_changes_in_any_order(spark: SparkSession, written: Written, tmp_path: Path) -> None:
    schemas = [*(written.schemas if is_long_run() else written.schemas[:1]), written.handmade("wide")[0]]
    for schema in schemas:
        (location, *_) = written.sstables.get(schema.name) or written.handmade(schema.name)[1]
        out = tmp_path / schema.name
        frame = _read(spark, location.folder, schema).repartition(2, "position")
        _write(frame, out, schema, version=written.version, block_size="200")
        assert 1 <= len(list(find_sstables(str(out)))) <= 2
        state = _state(schema, str(out))
        assert state.num_rows
        assert_same(state, _state(schema, location.folder))


def test_sstables_of_token_ranges(spark: SparkSession, written: Written, tmp_path: Path) -> None:
    schema, (location,) = written.handmade("many")
    frame = _read(spark, location.folder, schema).repartitionByRange(2, "token")
    for number in (1, 2):
        # The second time, it adds SSTables of the same changes.
        _write(frame, tmp_path, schema, version="me", compressor="ZstdCompressor")
        found = list(find_sstables(str(tmp_path)))
        assert len(found) == 2 * number
        assert_same(_state(schema, str(tmp_path)), _state(schema, location.folder))
    tokens = [
        [token for b in SSTable(at, schema).scan(["token"]) for token in b["token"].to_pylist()] for at in found[:2]
    ]
    assert all(one[-1] < other[0] for one, other in pairwise(sorted(tokens)))


def test_a_task_that_fails_leaves_no_sstable(spark: SparkSession, written: Written, tmp_path: Path) -> None:
    schema, (location,) = written.handmade("many")
    frame = _read(spark, location.folder, schema).repartition(2, "key")
    fail = "IF(spark_partition_id() = 1, raise_error('the input is lost'), kind) AS kind"
    with pytest.raises(Exception, match="the input is lost"):
        _write(frame.selectExpr(fail, *(f"`{name}`" for name in frame.columns if name != "kind")), tmp_path, schema)
    # Spark may stop the other task only after it has removed the job's folder, below which no reader looks.
    assert [path for path in tmp_path.glob("*") if not path.name.startswith("_writing-")] == []
    assert list(find_sstables(str(tmp_path))) == []


def test_modes_and_options_that_are_refused(spark: SparkSession, written: Written, tmp_path: Path) -> None:
    schema, (location,) = written.handmade("many")
    frame = _read(spark, location.folder, schema)
    for mode, text in (
        ("error", '"ErrorIfExists" mode. Please use either the "Append"'),
        ("ignore", '"Ignore" mode. Please use either the "Append"'),
        ("overwrite", r'overwrites no SSTables: write with mode\("append"\)'),
    ):
        with pytest.raises(Exception, match=text):
            frame.write.format("sstable").mode(mode).option("schema", cql_with_ids([schema])).save(str(tmp_path))
    with pytest.raises(Exception, match="needs the option schema to write"):
        frame.write.format("sstable").mode("append").save(str(tmp_path))
    assert list(tmp_path.rglob("*")) == []
