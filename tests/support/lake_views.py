"""Compares both views of a table with the rows that the database returns."""

from collections import Counter
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from cassandra.cluster import Session

from tests.support import answers
from tests.support.avro import numbers
from tests.support.expected import assert_same
from tests.support.lake_answers import view_rows
from tests.support.look_ups import partitions_of
from tests.support.made import rewrite
from tests.support.merged import normal, with_one_form
from tests.support.row_form import row_form
from writetime.delta.parquet import PARTITION
from writetime.files.key_ranges import TokenRange, joined
from writetime.files.merging import Source, merge_files
from writetime.files.row_form import to_micros
from writetime.lake import state, views
from writetime.lake.bucket_contents import levels_of
from writetime.lake.table import LakeTable, view_schema
from writetime.lookup import reading
from writetime.lookup.reading import RowReader
from writetime.merge import live_rows
from writetime.merge.value_order import has_forms
from writetime.schema.table import TableSchema


def assert_views(session: Session, schema: TableSchema, table: LakeTable) -> int:
    """Compare the virtual and the compacted view with `SELECT *`; return how many rows it has.

    Args:
        session: one whose rows hold bytes (`answers.raw_session`).
        schema: what the table is in the database.
        table: the table in the lake; its changes are folded.
    """
    wanted = with_one_form(to_micros(answers.decoded(answers.rows(session, schema), schema), schema), schema)
    assert table.schema().columns == schema.columns, f"{schema.full_name} has other columns in the lake"
    # The lake may have other names than the database.
    names = [c.name for c in schema.columns]
    virtual = pa.concat_tables([view_schema(table.schema()).empty_table(), *views.virtual(table)])
    assert_same(with_one_form(virtual.rename_columns(names), schema), wanted)
    state.fold(table)
    rewrite(table)
    compacted = table.view.load().table.to_pyarrow_table().sort_by(PARTITION).select(virtual.column_names)
    assert_same(with_one_form(compacted.rename_columns(names), schema), wanted)
    return wanted.num_rows


def answered(port: int, schema: TableSchema) -> pa.Table:
    """The database's rows, in the stored form."""
    with answers.raw_session(port) as session:
        return answers.decoded(answers.rows(session, schema), schema)


def assert_lake(table: LakeTable, wanted: pa.Table, schema: TableSchema) -> Counter[str]:
    """Compare state and views with the answer; return the rows whose values do not fit, by column."""
    labels = {c.name: c.label for c in table.schema().columns}
    assert labels.keys() == {c.name for c in schema.columns}
    schema = table.schema()
    buckets = views.bucket_views(table)
    found = [live_rows(b.contents.merged(schema), schema, b.as_of // 1_000_000) for b in buckets]
    assert_same(with_one_form(pa.concat_tables(found), schema), with_one_form(wanted, schema))
    plain = wanted.cast(pa.schema([(f.name, numbers(f.type)) for f in wanted.schema])).to_pylist()
    rows = [{c.name: row_form(row[c.name], c.type) for c in schema.columns} for row in plain]
    values = [{labels[name]: value for name, (value, _) in row.items()} for row in rows]
    unfit: Counter[str] = Counter()
    assert _normal(view_rows(views.virtual(table, unfit=unfit)), schema) == _normal(values, schema)
    assert unfit == +Counter(name for row in rows for name, (_, lost) in row.items() if lost)
    state.fold(table)
    assert rewrite(table) == len(rows)
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


def compacted(table: LakeTable) -> list[pa.Table]:
    """The compacted view, as delta-rs reads it; it has no order."""
    return [table.view.read([column.label for column in table.schema().columns])]


def looked_up(table: LakeTable, second: int) -> pa.Table:
    """Look up all partitions of a table at once, one after the other, and by ranges of tokens, with expiry judged at
    this second."""
    reader, partitions = RowReader(table), partitions_of(table)
    with patch.object(reading, "time_now", lambda: second * 1_000_000):
        at_once = reader.at(joined(partitions)).values
        parts = [reader.at(each).values for each in partitions]
        ranges = [rows.values for rows in reader.between(TokenRange(-(1 << 63), (1 << 63) - 1))]
    assert_same(pa.concat_tables([at_once.slice(0, 0), *parts]), at_once)
    assert_same(pa.concat_tables([at_once.slice(0, 0), *ranges]), at_once)
    return at_once


def held(table: LakeTable) -> pa.Table:
    """The whole state, merged, without the dropped tombstones."""
    return merge_files([Source(table.state.storage, tuple(levels_of(table.state.load())))], table.schema())
