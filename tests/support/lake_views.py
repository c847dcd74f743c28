"""Compares both views of a table with the database's answer."""

import pyarrow as pa
from cassandra.cluster import Session

from tests.merge.test_cql import with_one_form
from tests.support import answers
from tests.support.expected import assert_same
from writetime.lake import state, views
from writetime.lake.parquet import PARTITION
from writetime.lake.row_form import fit
from writetime.lake.table import LakeTable, view_schema
from writetime.schema.table import TableSchema


def assert_views(session: Session, schema: TableSchema, table: LakeTable) -> int:
    """Compare the virtual and the compacted view with `SELECT *`; return how many rows it has.

    Args:
        session: one whose rows hold bytes (`answers.raw_session`).
        schema: what the table is in the database.
        table: the table in the lake; its changes are folded.
    """
    wanted = with_one_form(fit(answers.decoded(answers.rows(session, schema), schema), schema), schema)
    assert table.schema().columns == schema.columns, f"{schema.full_name} has other columns in the lake"
    virtual = pa.concat_tables([view_schema(schema).empty_table(), *views.virtual(table)])
    assert_same(with_one_form(virtual, schema), wanted)
    state.fold(table)
    views.refresh(table)
    compacted = table.view.load().table.to_pyarrow_table().sort_by(PARTITION).select(virtual.column_names)
    assert_same(with_one_form(compacted, schema), wanted)
    return wanted.num_rows
