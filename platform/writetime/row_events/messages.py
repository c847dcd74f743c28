"""Row events as Avro: the schema that follows from a table's, and the messages.

Key columns are required, and all other columns are nullable with the default null. So a new schema of the table always
reads messages of an older one. Two kinds of key columns are nullable, too:

- The clustering columns of a table with static columns. If a partition has static cells and no row, its one row has no
  clustering key.
- Columns with timestamps. A timestamp that does not fit into microseconds is null, and `key` and `position` distinguish
  such rows.

A row may lack another key column: its value has no bytes (`blobAsInt(0x)`), or is a map with such a key. The event of
such a row has a schema of its own, in which every key column is nullable, so that other rows keep theirs.

A message's key is the serialised partition key. Its value is in Avro's single-object encoding (the topic
`writetime.schemas` has the schemas by their fingerprints), or in Confluent's wire format. The schema's property
`format` is the version of the format of the messages; it is not part of the fingerprint.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from writetime.core.arrow import mask_of, pc
from writetime.core.format_version import FORMAT_VERSION
from writetime.row_events.events import KINDS
from writetime.schema.avro import encode
from writetime.schema.fingerprints import single_object_header
from writetime.schema.mapping import arrow_type, avro_name, avro_type, stored_type
from writetime.schema.table import Column, TableSchema


def event_avro(schema: TableSchema, *, null_keys: bool = False) -> dict[str, Any]:
    """Return the Avro schema of a table's row events, or of those of rows that lack a required key column."""
    namespace = f"row_events.{avro_name(schema.keyspace)}.{avro_name(schema.name)}"
    row = {"type": "record", "name": "row", "fields": [_field(c, schema, namespace, null_keys) for c in schema.columns]}
    fields = [
        {"name": "event_id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "kind", "type": {"type": "enum", "name": "kind", "symbols": list(KINDS)}},
        {"name": "sequence", "type": "long"},
        {"name": "generation", "type": "long"},
        {"name": "as_of", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "token", "type": "long"},
        {"name": "key", "type": "bytes"},
        {"name": "position", "type": "bytes"},
        {"name": "write_time", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}], "default": None},
        {"name": "before", "type": ["null", row], "default": None},
        {"name": "after", "type": ["null", "row"], "default": None},
    ]
    return {"type": "record", "name": "event", "namespace": namespace, "fields": fields, "format": FORMAT_VERSION}


def lacking_keys(events: pa.RecordBatch, schema: TableSchema) -> np.ndarray:
    """Return which events have a row that lacks a required key column."""
    found = np.zeros(len(events), bool)
    for rows in (events["before"], events["after"]):
        for column, values in zip(schema.columns, rows.flatten(), strict=True):
            if values.null_count > rows.null_count and _required(column, schema):
                found |= mask_of(pc.and_(rows.is_valid(), values.is_null()))
    return found


def encode_events(
    events: pa.RecordBatch, schema: TableSchema, header: bytes | None = None, *, null_keys: bool = False
) -> pa.Array:
    """Return the value of the message of each event of one batch. `header` is the start of each message, by default
    that of the single-object encoding. `null_keys` is as for `event_avro`; without it, no event has a row that lacks a
    required key column.
    """
    avro = event_avro(schema, null_keys=null_keys)
    *fields, before, after = avro["fields"]
    # The encoder knows no names of types.
    with_rows = {**avro, "fields": [*fields, before, {**after, "type": before["type"]}]}
    return encode(events.to_struct_array(), with_rows, header or single_object_header(avro))


def _field(column: Column, schema: TableSchema, namespace: str, null_keys: bool) -> dict[str, Any]:
    name = avro_name(column.name)
    # A separate namespace, so that the records of two columns never share a name.
    cql = avro_type(column.type, name, f"{namespace}.{name}")
    field: dict[str, Any] = {"name": name, "doc": f"{column.name} {column.type}"}
    if _required(column, schema) and not null_keys:
        return field | {"type": cql}
    return field | {"type": ["null", cql], "default": None}


def _required(column: Column, schema: TableSchema) -> bool:
    """Return whether events have a value of the column, under any schema that the table had before, unless it is empty.

    A partition with static cells and no row has an event without clustering columns. Such events stay in the stream
    after the last static column is dropped, and ScyllaDB does not record whether a dropped column was static.
    """
    if stored_type(column.type) != arrow_type(column.type):
        # Not every timestamp fits.
        return False
    may_lack_clustering = bool(schema.static or schema.dropped)
    return column in schema.partition_key or (column in schema.clustering and not may_lack_clustering)
