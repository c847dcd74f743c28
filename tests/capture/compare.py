"""Compares a table of the lake, its state and its views with the database's answer in raw bytes."""

from collections import Counter
from typing import Any

import pyarrow as pa

from tests.capture.test_avro import numbers
from tests.lake.answers import view_rows
from tests.lake.test_row_form import row_form
from tests.merge import answers
from tests.merge.test_cql import normal, with_one_form
from tests.storage.expected import assert_same
from writetime.lake import state, views
from writetime.lake.merging import merge_files
from writetime.lake.table import LakeTable
from writetime.merge import live_rows
from writetime.merge.values import has_forms
from writetime.schema.table import TableSchema


def answered(port: int, schema: TableSchema) -> pa.Table:
    """What the database answers, in the stored form."""
    with answers.raw_session(port) as session:
        return answers.decoded(answers.rows(session, schema), schema)


def assert_lake(table: LakeTable, wanted: pa.Table, schema: TableSchema) -> Counter[str]:
    """Compare state and views with the answer; return the rows whose values do not fit, by column."""
    labels = {c.name: c.label for c in table.schema().columns}
    assert labels.keys() == {c.name for c in schema.columns}
    schema = table.schema()
    buckets = views.bucket_views(table)
    found = [live_rows(merge_files(b.sources, schema), schema, b.as_of // 1_000_000) for b in buckets]
    assert_same(with_one_form(pa.concat_tables(found), schema), with_one_form(wanted, schema))
    plain = wanted.cast(pa.schema([(f.name, numbers(f.type)) for f in wanted.schema])).to_pylist()
    rows = [{c.name: row_form(row[c.name], c.type) for c in schema.columns} for row in plain]
    values = [{labels[name]: value for name, (value, _) in row.items()} for row in rows]
    unfit: Counter[str] = Counter()
    assert _normal(view_rows(views.virtual(table, unfit=unfit)), schema) == _normal(values, schema)
    assert unfit == +Counter(name for row in rows for name, (_, lost) in row.items() if lost)
    state.fold(table)
    assert views.refresh(table) == len(rows)
    assert view_rows([table.view.load().table.to_pyarrow_table()]) or not rows
    return unfit


def _normal(rows: list[dict[str | None, Any]] | list[dict[str, Any]], schema: TableSchema) -> list[dict[Any, Any]]:
    """Give equal decimals in clustering columns the same form, as it is not documented which one the database keeps."""
    several = {c.label for c in schema.clustering if has_forms(c.type)}
    return [{n: normal(_as_shown(v)) if n in several else _as_shown(v) for n, v in row.items()} for row in rows]


def _as_shown(value: Any) -> Any:
    """Make text of floating point numbers and lists of durations, as `view_rows` does."""
    if isinstance(value, list | dict):
        return [_as_shown(v) for v in (value.values() if isinstance(value, dict) else value)]
    return value.hex() if isinstance(value, float) else value
