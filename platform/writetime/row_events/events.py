"""The event of a row: its fields, and how the events of a batch follow from the rows before and after it, which
`changed_rows` computes.

- `event_id`: see `ids`
- `kind`: CREATE, UPDATE or DELETE, or ERASE instead of any of them after the erasure of the row. Then the
  fields from `token` on are null. It stays at its place in the stream, because positions count events.
- `sequence`: the batch, counted from 1. A row has at most one event in a batch, so its events are in this order.
- `generation`: the time at which the stream began, or was rebuilt from the state, in seconds since 1970. A consumer
  that reads a larger one discards its rows.
- `as_of`: the time at which expiry was evaluated
- `token`, `key` (the serialised partition key) and `position`: the place of the row
- `write_time`: the latest write to the row, in microseconds, even if the row changed because data expired. It is null
  in events from before this field was added.
- `before`, `after`: the row as `SELECT *` returns it and as the view has it; null if it does not exist
"""

from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa

from writetime.core.arrow import one_chunk, take
from writetime.delta.parquet import conform
from writetime.files.row_form import to_micros
from writetime.lake.projection import EventBatch
from writetime.lake.table import view_schema
from writetime.merge.live import live
from writetime.row_events.compare import OrderedRows, changed
from writetime.row_events.ids import event_ids
from writetime.row_events.write_times import write_times
from writetime.schema.table import TableSchema

CREATE, UPDATE, DELETE = range(3)
KINDS = ("CREATE", "UPDATE", "DELETE")
ERASE = "ERASE"


def event_schema(schema: TableSchema) -> pa.Schema:
    """Return the Arrow schema of a table's row events."""
    row = pa.struct(list(view_schema(schema)))
    return pa.schema(
        [
            ("event_id", pa.string()),
            ("kind", pa.string()),
            ("sequence", pa.int64()),
            ("generation", pa.int64()),
            ("as_of", pa.timestamp("us", "UTC")),
            ("token", pa.int64()),
            ("key", pa.binary()),
            ("position", pa.binary()),
            ("write_time", pa.int64()),
            ("before", row),
            ("after", row),
        ]
    )


def placed_rows(state: pa.Table, schema: TableSchema, as_of: int) -> OrderedRows:
    """Return the rows that live in a state at a time (microseconds), with their places. Values have the stored form."""
    return indexed_rows(state, schema, as_of)[0]


def indexed_rows(state: pa.Table, schema: TableSchema, as_of: int) -> tuple[OrderedRows, np.ndarray]:
    """Return the result of `placed_rows`, and the index of the entry of each row in the state."""
    values, index = live(state, schema, as_of // 1_000_000)
    return OrderedRows(values, *(take(one_chunk(state[name]), index) for name in ("token", "key", "position"))), index


def fitted_rows(state: pa.Table, schema: TableSchema, as_of: int, unfit: Counter[str] | None = None) -> OrderedRows:
    """Return the result of `placed_rows` in the row form, which row events have; `unfit` is as for `row_form.fit`."""
    rows = placed_rows(state, schema, as_of)
    return replace(rows, values=to_micros(rows.values, schema, unfit))


def row_events(
    before: OrderedRows, after: OrderedRows, schema: TableSchema, batch: EventBatch, state: pa.Table | None = None
) -> pa.Table:
    """Return the events that lead from the rows before a batch to the rows after it, in the order of the database.
    `fitted_rows` returns both, and those before may have an older schema of the table. Without the `state` after the
    batch, `write_time` is null.
    """
    wanted = view_schema(schema)
    before = OrderedRows(
        conform(before.values, wanted, f"rows of {schema.full_name}"), before.tokens, before.keys, before.positions
    )
    found = changed(before, after)
    kinds = np.where(found.before < 0, CREATE, np.where(found.after < 0, DELETE, UPDATE)).astype(np.int8)
    merged = np.where(found.after < 0, found.before, found.after + len(before.tokens))
    token, key, position = (
        pa.concat_arrays([getattr(before, name), getattr(after, name)]).take(pa.array(merged))
        for name in ("tokens", "keys", "positions")
    )
    count = len(kinds)
    columns = [
        event_ids(schema, batch.generation, batch.sequence, key, position),
        pa.DictionaryArray.from_arrays(pa.array(kinds), list(KINDS)).dictionary_decode(),
        pa.array(np.full(count, batch.sequence)),
        pa.array(np.full(count, batch.generation)),
        pa.array(np.full(count, batch.as_of)).cast(pa.timestamp("us", "UTC")),
        token,
        key,
        position,
        pa.nulls(count, pa.int64()) if state is None else write_times(state, schema, token, key, position),
        _images(before.values, found.before),
        _images(after.values, found.after),
    ]
    return pa.Table.from_arrays(columns, schema=event_schema(schema))


def _images(rows: pa.Table, index: np.ndarray) -> pa.StructArray:
    columns = [take(one_chunk(column), index) for column in rows.columns]
    return pa.StructArray.from_arrays(columns, fields=list(rows.schema), mask=pa.array(index < 0))
