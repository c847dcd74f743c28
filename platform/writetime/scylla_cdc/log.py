"""The log table of a base table: its columns, the meaning of its rows, and its times.

Source: `cdc/log.cc` of ScyllaDB, and docs/features/cdc there.
"""

from dataclasses import replace
from uuid import UUID

import numpy as np
import pyarrow as pa

from writetime.core.errors import MissingTable, Transient, WritetimeError
from writetime.core.instants import UUID_EPOCH, instant_text, uuid_micros
from writetime.schema.columnar import decode, fixed_width
from writetime.schema.table import Column, TableSchema
from writetime.schema.types import Collection, CqlType, Native, freeze, is_complex

SUFFIX = "_scylla_cdc_log"
STREAM, TIME, SEQUENCE = "cdc$stream_id", "cdc$time", "cdc$batch_seq_no"
OPERATION, TTL, END_OF_BATCH = "cdc$operation", "cdc$ttl", "cdc$end_of_batch"
DELETED, DELETED_ELEMENTS = "cdc$deleted_", "cdc$deleted_elements_"

PREIMAGE, UPDATE, INSERT, ROW_DELETE, PARTITION_DELETE = range(5)
START_INCLUSIVE, START_EXCLUSIVE, END_INCLUSIVE, END_EXCLUSIVE, POSTIMAGE = range(5, 10)
# Deletions that the server itself issues when the TTL of a row is over.
EXPIRED_ROW, EXPIRED_PARTITION = -3, -4
OPERATIONS = (*range(10), EXPIRED_ROW, EXPIRED_PARTITION)

# The lower half of the first UUID of a time, in the database's order, which compares it as signed bytes.
_FIRST = 0x8080808080808080


class LogError(WritetimeError):
    """A log that cannot be read, or has rows that ScyllaDB does not write."""


class NoTable(LogError, MissingTable):
    """The database has no such table."""


class LogGap(WritetimeError):
    """Changes that the log does not have, or no longer has. Times are in microseconds."""

    def __init__(self, table: str, start: int, end: int, reason: str) -> None:
        super().__init__(
            f"changes of {table} from {instant_text(start)} to {instant_text(end)} cannot be read from its log: "
            f"{reason}. To close the gap, take a snapshot of the table now (nodetool snapshot, on each node), backfill "
            f"it (writetime backfill {table} PATHS), and continue with the option snapshot_at (writetime agent: "
            "--snapshot-at) set to the time at which the snapshot was begun"
        )
        self.start = start
        self.end = end


class StaleSets(LogError, Transient):
    """The node that answered lacks a set of streams that was read before. Query it again."""


class Altered(LogError, Transient):
    """The table or one of its types was altered while it was read: read its schema again."""


def log_table(schema: TableSchema) -> TableSchema:
    """Return the log that a base table should have."""
    own = {OPERATION: "tinyint", TTL: "bigint", END_OF_BATCH: "boolean"}
    columns = [Column(name, Native(kind)) for name, kind in own.items()]
    columns += [replace(c, type=freeze(c.type), reversed=False) for c in schema.partition_key + schema.clustering]
    for column in schema.static + schema.regular:
        columns.append(Column(column.name, logged_type(column.type)))
        columns.append(Column(DELETED + column.name, Native("boolean")))
        if is_complex(column.type):
            columns.append(Column(DELETED_ELEMENTS + column.name, deleted_elements_type(column.type)))
    return TableSchema(
        schema.keyspace,
        schema.name + SUFFIX,
        (Column(STREAM, Native("blob")),),
        (Column(TIME, Native("timeuuid")), Column(SEQUENCE, Native("int"))),
        regular=tuple(columns),
    )


def row_columns(schema: TableSchema) -> list[str]:
    """Return the columns of the log of a table that name a row and its operation."""
    keys = [c.name for c in schema.partition_key + schema.clustering]
    return [STREAM, TIME, SEQUENCE, OPERATION, TTL, END_OF_BATCH, *keys]


def logged_type(cql_type: CqlType) -> CqlType:
    """Return the type of the log's column with a column's values."""
    match cql_type:
        case Collection("list", (element,), False):
            return Collection("map", (Native("timeuuid"), element), frozen=True)
    return freeze(cql_type)


def deleted_elements_type(cql_type: CqlType) -> CqlType:
    """Return the type of the log's column with the deleted elements or fields of a column."""
    match cql_type:
        case Collection("list", _):
            return Collection("set", (Native("timeuuid"),), frozen=True)
        case Collection(_, (key, *_)):
            return Collection("set", (key,), frozen=True)
    return Collection("set", (Native("smallint"),), frozen=True)


def check_log(schema: TableSchema, log: TableSchema) -> None:
    """Compare a log with the columns that its base table requires. Raise a `LogError` if the table is not a log, and
    `Altered` if a column is missing or of another type, as for a moment after ALTER TABLE.
    """
    wanted = log_table(schema)
    found = {c.name: str(c.type) for c in log.columns}
    if [c.name for c in log.partition_key + log.clustering] != [STREAM, TIME, SEQUENCE]:
        raise LogError(f"{log.full_name} is not a CDC log: its primary key is not ({STREAM}, {TIME}, {SEQUENCE})")
    for column in wanted.columns:
        if found.get(column.name) != str(column.type):
            raise Altered(
                f"{log.full_name} has column {column.name} as {found.get(column.name, 'none')}, and should have it as "
                f"{column.type}: {schema.full_name} is being altered, so try again, or the table is not a CDC log"
            )


def operations(page: pa.RecordBatch) -> np.ndarray:
    """Return the operations of log rows, -1 for null."""
    return decode(page[OPERATION], Native("tinyint")).fill_null(-1).to_numpy()


def flags(values: pa.Array) -> np.ndarray:
    """Return which values are true."""
    return decode(values, Native("boolean")).fill_null(False).to_numpy(zero_copy_only=False)


def times(page: pa.RecordBatch) -> np.ndarray:
    """Return the write times of log rows, in microseconds."""
    return uuid_micros(fixed_width(page[TIME], 16, Native("timeuuid"))[0])


def uuid_time(time: UUID) -> int:
    """Return the time of a UUID in microseconds."""
    return (time.time - UUID_EPOCH) // 10


def first_uuid(micros: int) -> UUID:
    """Return the smallest UUID of a time, as the database orders them."""
    ticks = micros * 10 + UUID_EPOCH
    if not 0 <= ticks < 1 << 60:
        raise LogError(f"no UUID has the time {micros} microseconds since 1970")
    high = (ticks & 0xFFFFFFFF) << 32 | (ticks >> 16 & 0xFFFF0000) | 0x1000 | ticks >> 48
    return UUID(int=high << 64 | _FIRST)
