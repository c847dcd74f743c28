"""Logs of tables, read completely."""

import time

import pyarrow as pa

from tests.scylla_cdc.databases import CdcDatabase
from tests.support import answers
from tests.support.merged import History
from writetime.changes.model import change_schema
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
