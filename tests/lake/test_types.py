"""Every type of `schema/mapping.py` goes through the lake, and other engines read the tables without conversion."""

from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.support.made import settings_at
from tests.support.view_readers import by_duckdb
from writetime.changes.model import change_schema
from writetime.delta.bucketed_table import BucketedTable
from writetime.delta.parquet import HOT_LAYOUT, conform, read_file, without_empty, write_file
from writetime.lake.table import LakeTable, create_table, view_schema
from writetime.schema.cql import parse_table

NATIVES = [
    *("ascii", "bigint", "blob", "boolean", "date", "decimal", "double", "duration", "float", "inet", "int"),
    *("smallint", "text", "time", "timestamp", "timeuuid", "tinyint", "uuid", "varint"),
]
SCHEMA = parse_table(
    'CREATE TYPE ks.inner (a int, b text); CREATE TYPE ks.outer ("Mixed Case" date, x frozen<inner>);'
    "CREATE TABLE ks.every (id int, n timestamp, s text STATIC, "
    + ", ".join(f"{name}_ {name}" for name in NATIVES)
    + ", l list<int>, st set<text>, m map<text, timestamp>, u outer, fl frozen<list<date>>, fm frozen<map<int, text>>, "
    "mm frozen<map<frozen<map<text, int>>, int>>, t frozen<tuple<int, text>>, fu frozen<outer>, v vector<float, 2>, "
    '"with space, and more" int, PRIMARY KEY (id, n))'
)
EDGES: dict[pa.DataType, list[Any]] = {
    pa.int8(): [-128, 127],
    pa.int16(): [-(1 << 15), (1 << 15) - 1],
    pa.int32(): [-(1 << 31), (1 << 31) - 1],
    pa.int64(): [-(1 << 63), (1 << 63) - 1],
    pa.float32(): [float("inf"), -0.0],
    pa.float64(): [float("nan"), 5e-324],
    pa.bool_(): [True, False],
    pa.string(): ["", "中\x00é"],
    pa.binary(): [b"", b"\x00\xff"],
    pa.date32(): [-(1 << 31), (1 << 31) - 1],
    # The years that are allowed: see `mapping`.
    pa.timestamp("us", "UTC"): [-9_223_372_022_400_000_000, 9_223_372_036_854_775_000],
}


def values(arrow: pa.DataType, count: int) -> pa.Array:
    """An array of values at the edges of a type, and null."""
    if pa.types.is_struct(arrow):
        children = [values(field.type, count) for field in arrow]
        return pa.StructArray.from_arrays(children, fields=list(arrow), mask=pa.array([i == 3 for i in range(count)]))
    if pa.types.is_map(arrow):
        keys = _filled(values(arrow.key_type, count))
        return pa.MapArray.from_arrays(
            pa.array([*range(count), count], pa.int32()), keys, values(arrow.item_type, count), arrow
        )
    if pa.types.is_list(arrow):
        offsets = pa.array([0, 2, *([2] * (count - 2)), count], pa.int32())
        return pa.ListArray.from_arrays(offsets, values(arrow.value_type, count), arrow)
    low, high = EDGES[arrow]
    numbers = pa.types.is_temporal(arrow)
    wanted = [low, high, None, high] * (count // 4)
    return (
        pa.array(wanted, pa.int32() if arrow == pa.date32() else pa.int64()).cast(arrow)
        if numbers
        else pa.array(wanted, arrow)
    )


def _filled(array: pa.Array) -> pa.Array:
    return array.take(pa.array([0, 1, 1, 1] * (len(array) // 4))) if array.null_count else array


def _lasting(array: pa.Array) -> pa.Array:
    """Cells without the fields for their expiry."""
    if not pa.types.is_struct(array.type):
        return array
    kept = [f.name for f in array.type if f.name not in {"ttl", "expiry", "deletion_time"}]
    return pa.StructArray.from_arrays([_lasting(array.field(name)) for name in kept], kept, mask=array.is_null())


@pytest.fixture(scope="module", params=["changes", "state", "view"])
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[BucketedTable, pa.Table]:
    """One of a table's Delta tables, and the rows that it holds."""
    table: LakeTable = create_table(settings_at(tmp_path_factory.mktemp("lake"), buckets=2), SCHEMA)
    part: BucketedTable = getattr(table, request.param)
    schema = view_schema(SCHEMA) if request.param == "view" else change_schema(SCHEMA)
    rows = pa.Table.from_arrays([values(field.type, 4) for field in schema], schema=schema)
    if request.param == "state":
        # As levels are written, with fields that the files do not have.
        parts = pa.table({name: _lasting(rows[name].combine_chunks()) for name in schema.names[:-1]})
        rows = conform(parts, schema, "made")
        assert without_empty(rows).schema.equals(parts.schema)
        written = write_file(part.storage, without_empty(rows), 1, None, layout=HOT_LAYOUT)
    else:
        written = write_file(part.storage, rows, 1, None)
    rows.validate(full=True)
    part.append([written], "test", 1)
    return part, rows


def test_arrow(stored: tuple[BucketedTable, pa.Table]) -> None:
    part, rows = stored
    (file,) = part.load().files
    assert _text(read_file(part.storage, file.path, rows.schema)) == _text(rows)
    read = part.load().table.to_pyarrow_table()
    assert _text(conform(read, rows.schema, "read")) == _text(rows)
    assert read.drop_columns(["token_bucket"]).schema.equals(rows.schema)


def test_duckdb(stored: tuple[BucketedTable, pa.Table]) -> None:
    part, rows = stored
    found = by_duckdb(part.storage.address)
    assert _text(conform(found, rows.schema, "duckdb")) == _text(rows)


def test_polars(stored: tuple[BucketedTable, pa.Table]) -> None:
    part, rows = stored
    found = pl.read_delta(part.storage.address).to_arrow()
    assert _text(conform(found, rows.schema, "polars")) == _text(rows)


def test_spark(stored: tuple[BucketedTable, pa.Table], spark: SparkSession) -> None:
    part, rows = stored
    frame = spark.read.format("delta").load(part.storage.address)
    found = frame.toArrow()
    assert _text(conform(found, rows.schema, "spark")) == _text(rows)


def _text(table: pa.Table) -> list[str]:
    """The values as text, with numbers for dates and times, whose range is beyond Python's."""
    return [f"{name}: {_plain(table[name].combine_chunks())}" for name in table.column_names]


def _plain(array: Any) -> list[Any]:
    return [_scalar(scalar) for scalar in array]


def _scalar(scalar: Any) -> Any:
    if not scalar.is_valid:
        return None
    if pa.types.is_struct(scalar.type):
        return [_scalar(scalar[i]) for i in range(scalar.type.num_fields)]
    if pa.types.is_list(scalar.type) or pa.types.is_map(scalar.type):
        return _plain(scalar.values)
    return scalar.value if pa.types.is_temporal(scalar.type) else scalar.as_py()
