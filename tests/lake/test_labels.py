"""Columns with similar names get labels, and each engine reads them by their labels.

Oracle: the rows that the test wrote; other engines read them by their labels.
"""

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from pyspark.sql import SparkSession

from tests.support import odd_names
from tests.support.examples import is_long_run
from tests.support.lake_answers import view_rows
from tests.support.made import add, new_table, rewrite, write
from tests.support.odd_names import NAMES
from tests.support.view_readers import by_duckdb
from writetime.changes.model import field_name
from writetime.cli.view import filtered
from writetime.lake import state, views
from writetime.lake.labels import labelled, newly_labelled, recorded_labels
from writetime.lake.table import LakeTable
from writetime.schema.cql import parse_table
from writetime.schema.names import distinct
from writetime.schema.table import TableSchema

pytestmark = pytest.mark.long

ALIKE = ["name", "Name", "NAME", "Kind", "kind", "key", "column_key", "token_bucket", "Token_Bucket", "a.value", "a"]
ALIKE += ["marker.expiry", "writetime_row", "END", "ı", "with space, and more", "`tick`"]


def schema_of(names: list[str]) -> TableSchema:
    columns = "".join(f'"{name}" int, ' for name in names)
    return parse_table(f"CREATE TABLE shop.items (id int, n int, {columns}PRIMARY KEY (id, n))")


def put(table: LakeTable, names: list[str], number: int) -> dict[str, Any]:
    """Add a row with another number in each column; return the row as a view has it."""
    schema = table.schema()
    values = {name: 100 * number + i for i, name in enumerate(names)}
    fields = {field_name(c): values[c.name] for c in schema.regular if c.name in values}
    assert add(table, [write(number, 1, number, **fields)], number, schema)
    labels = {c.name: c.label for c in schema.columns}
    return {labels[name]: value for name, value in [("id", number), ("n", 1), *values.items()]}


def test_each_engine_reads_names_that_are_alike(tmp_path: Path, spark: SparkSession) -> None:
    first = ALIKE[1::2]
    table = new_table(tmp_path, schema_of(first))
    row = put(table, first, 1)
    before = {c.name: c.label for c in table.schema().columns}
    joined = table.follow(schema_of(ALIKE))
    labels = {c.name: c.label for c in joined.columns}
    assert before.items() <= labels.items()
    assert {c.name: c.label for c in table.schema().columns} == labels
    rows = [dict.fromkeys(labels.values()) | row, put(table, ALIKE, 2)]
    assert view_rows(views.virtual(table)) == rows
    state.fold(table)
    assert rewrite(table) == len(rows)
    at = table.view.storage.address
    by_spark = [row.asDict() for row in spark.read.format("delta").load(at).collect()]
    by_polars, by_arrow = pl.read_delta(at).to_dicts(), table.view.load().table.to_pyarrow_table().to_pylist()
    for found in (by_duckdb(at).to_pylist(), by_spark, by_polars, by_arrow):
        plain = [{name: value for name, value in each.items() if name != "token_bucket"} for each in found]
        assert sorted(plain, key=lambda each: each["id"]) == rows
    for name in labels.values():
        query = f"SELECT `{name.replace('`', '``')}` AS it FROM delta.`{at}` WHERE id = 2"
        assert spark.sql(query).collect()[0].it == rows[1][name]
    # Dropped names keep their data.
    assert table.follow(schema_of(ALIKE)) == joined


def test_a_table_from_before_there_were_labels() -> None:
    schema = schema_of(["Name", "kind", "column_token"])
    found = labelled(schema, recorded_labels(None, schema))
    assert [c.label for c in found.columns] == [c.name for c in schema.columns]
    assert [field_name(c) for c in found.regular] == ["Name", "column_token", "column_kind"]


# SQL of DuckDB has no U+0000.
@given(NAMES.filter(lambda names: "\0" not in "".join(names)))
@settings(max_examples=50 if is_long_run() else 2)
@example(["writetime_row", "WRITETIME_ROW_2", "rowid", "select", "true", "*", "name", "Name"])
def test_a_condition_on_any_column(names: list[str]) -> None:
    schema = newly_labelled(odd_names.table(names))
    labels = [c.label for c in schema.columns]
    rows = pa.table([pa.array([i, -i - 1, None]) for i in range(len(labels))], names=labels)
    assert distinct(labels) == labels
    for i, label in enumerate(labels):
        quoted = label.replace('"', '""')
        assert filtered(rows, f'"{quoted}" = {i}').equals(rows.slice(0, 1))
        assert filtered(rows, f'"{quoted}" IS NULL').equals(rows.slice(2, 1))
