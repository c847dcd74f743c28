"""The changes of a log against the database's answers of the base table."""

import time
from collections import Counter

import pyarrow as pa

from tests.merge.conftest import History
from tests.merge.test_cql import assert_answers
from tests.scylla_cdc.conftest import Logged
from tests.scylla_cdc.databases import CdcDatabase
from tests.support import answers
from writetime.changes.model import change_schema
from writetime.merge import merge
from writetime.schema.table import TableSchema
from writetime.scylla_cdc.offsets import interval
from writetime.scylla_cdc.source import open_source


def origins(changes: pa.Table | pa.RecordBatch) -> list[str]:
    """Which rows of the log the changes were made of."""
    return [f"{o['file']}/{o['offset']}" for o in changes["origin"].to_pylist()]


def read_all(cdc: CdcDatabase, schema: TableSchema) -> pa.Table:
    with open_source(cdc.settings, schema.full_name) as source:
        batches = list(source.read(interval(source, None, None, None)))
    changes = pa.Table.from_batches(batches, schema=change_schema(schema))
    changes.validate(full=True)
    return changes


def asked(cdc: CdcDatabase, schema: TableSchema, changes: pa.Table) -> History:
    with answers.raw_session(cdc.settings.cassandra.port) as session:
        rows = answers.rows(session, schema)
    return History(schema, [], changes, rows, [], int(time.time()))


def test_a_log_gives_the_rows_that_the_database_returns(cdc: CdcDatabase, logged: list[Logged]) -> None:
    kinds: Counter[str] = Counter()
    for table in logged:
        changes = read_all(cdc, table.schema)
        assert Counter(origins(changes)) == Counter(table.origins)
        kinds.update(changes["kind"].to_pylist())
        assert_answers(merge([changes], table.schema), asked(cdc, table.schema, changes))
    assert set(kinds) == {"row", "static", "range_tombstone", "partition_tombstone"}
