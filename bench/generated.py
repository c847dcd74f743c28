"""Generated rows of five value columns, and their changes: writes, with a TTL or without, and deletions.

A row has a number. In the table `ROWS` each row is a partition; in `WIDE` a partition has `PARTITION_ROWS` rows.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numba
import numpy as np
import pyarrow as pa

from writetime.changes.model import TOMBSTONE, change_schema
from writetime.changes.position import AT, PARTITION_POSITION, position_encoder
from writetime.lake.changes import ChangeWriter
from writetime.lake.table import LakeTable
from writetime.schema.cql import parse_table
from writetime.schema.serialise import serialiser
from writetime.schema.table import TableSchema
from writetime.schema.types import Native
from writetime.storage.kernel.primitives import token_at

COLUMNS = {"a": pa.int32(), "b": pa.int64(), "c": pa.float64(), "d": pa.string(), "e": pa.string()}
_VALUES = "a int, b bigint, c double, d text, e text"
ROWS = parse_table(f"CREATE TABLE bench.rows (id bigint PRIMARY KEY, {_VALUES})")
WIDE = parse_table(f"CREATE TABLE bench.wide (id bigint, n int, {_VALUES}, PRIMARY KEY (id, n))")
PARTITION_ROWS = 100_000
CHUNK = 200_000
_njit: Any = numba.njit


def rows_of(schema: TableSchema, numbers: np.ndarray, random: np.random.Generator) -> pa.Table:
    """Return rows with random values."""
    values = {name: pa.array(random.integers(0, 1 << 30, len(numbers))).cast(to) for name, to in COLUMNS.items()}
    return pa.table({**_keys(schema, numbers), **values})


def keys_of(schema: TableSchema, numbers: np.ndarray) -> pa.Table:
    """Return the primary keys of rows."""
    return pa.table(_keys(schema, numbers))


def writes(
    schema: TableSchema,
    rows: pa.Table,
    times: np.ndarray,
    *,
    chosen: Mapping[str, np.ndarray] | None = None,
    expiry: tuple[int | np.ndarray, int | np.ndarray] | None = None,
) -> pa.RecordBatch:
    """Return the changes that write rows.

    Args:
        schema: the table.
        rows: the rows.
        times: their write times.
        chosen: for each column the rows in which it is written; all by default.
        expiry: the TTL of all cells, and the second at which they expire; or those of the cells of each row.
    """
    count, full = len(times), change_schema(schema)
    fields = _places(schema, rows, "row")
    for name in COLUMNS:
        kind: Any = full.field(name).type
        ttl, ends = (
            pa.nulls(count, kind.field(part).type)
            if number is None
            else pa.array(np.broadcast_to(number, count), kind.field(part).type)
            for part, number in zip(("ttl", "deletion_time"), expiry or (None, None), strict=True)
        )
        parts = [rows[name].combine_chunks(), pa.array(times), ttl, ends, pa.repeat(False, count)]
        mask = None if chosen is None else pa.array(~chosen[name])
        fields[name] = pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
    return _changes(full, fields, count)


def deletions(schema: TableSchema, keys: pa.Table, times: np.ndarray) -> pa.RecordBatch:
    """Return the changes that delete rows. As in the database, a row that is a partition gets a partition deletion."""
    fields = _places(schema, keys, "row" if schema.clustering else "partition_tombstone")
    parts = [pa.array(times), pa.array(times // 1_000_000)]
    fields["tombstone"] = pa.StructArray.from_arrays(parts, fields=list(TOMBSTONE))
    return _changes(change_schema(schema), fields, len(times))


def whole(schema: TableSchema, count: int) -> Iterator[pa.Table]:
    """Yield all rows of a table, in parts."""
    for start in range(0, count, CHUNK):
        numbers = np.arange(start, min(start + CHUNK, count))
        yield rows_of(schema, numbers, np.random.default_rng([start, 0]))


def first_writes(schema: TableSchema, count: int) -> Iterator[pa.RecordBatch]:
    """Yield the changes that write the rows of `whole`, with the write times from 1 on."""
    at = 1
    for rows in whole(schema, count):
        yield writes(schema, rows, np.arange(at, at + rows.num_rows))
        at += rows.num_rows


def updates(rows: int, count: int, at: int, columns: int = 1) -> Iterator[pa.RecordBatch]:
    """Yield partial updates of random rows of `ROWS`. Each writes random columns.

    Args:
        rows: the number of rows of the table.
        count: the number of updates.
        at: the first write time.
        columns: the number of columns that each update writes.
    """
    random = np.random.default_rng(at)
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        found = rows_of(ROWS, random.integers(0, rows, size), random)
        places = random.random((size, len(COLUMNS))).argsort(axis=1)
        chosen = {name: places[:, i] < columns for i, name in enumerate(COLUMNS)}
        yield writes(ROWS, found, np.arange(at + start, at + start + size), chosen=chosen)


def add(table: LakeTable, schema: TableSchema, batches: Iterable[pa.RecordBatch], number: int) -> None:
    """Append batches to the changes of a table in the lake, with increasing numbers."""
    assert table.changes.append(ChangeWriter.of(table, schema).write(batches), "bench", number)


def _keys(schema: TableSchema, numbers: np.ndarray) -> dict[str, pa.Array]:
    if not schema.clustering:
        return {"id": pa.array(numbers)}
    partitions, places = np.divmod(numbers, PARTITION_ROWS)
    return {"id": pa.array(partitions), "n": pa.array(places.astype(np.int32))}


def _places(schema: TableSchema, rows: pa.Table, kind: str) -> dict[str, pa.Array]:
    """Return the fields with the positions of changes."""
    count = rows.num_rows
    keys = rows["id"].to_numpy().astype(">i8")
    offsets = pa.py_buffer(np.arange(0, 8 * count + 1, 8, dtype=np.int32))
    clustering = {}
    if kind == "partition_tombstone":
        position = pa.repeat(pa.scalar(PARTITION_POSITION, pa.binary()), count)
    elif schema.clustering:
        position = _positions().take(rows["n"].combine_chunks())
        clustering = {"n": rows["n"].combine_chunks()}
    else:
        position = pa.repeat(pa.scalar(position_encoder(())([], AT), pa.binary()), count)
    return {
        "kind": pa.repeat(kind, count),
        "id": rows["id"].combine_chunks(),
        "key": pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(keys.tobytes())]),
        "token": pa.array(_tokens(keys.ctypes.data, count)),
        "position": position,
        **clustering,
    }


@functools.cache
def _positions() -> pa.Array:
    """Return the positions of the rows of a partition of `WIDE`."""
    encode, serialise = position_encoder(WIDE.clustering), serialiser(Native("int"))
    return pa.array([encode([serialise(n)], AT) for n in range(PARTITION_ROWS)], pa.binary())


def _changes(full: pa.Schema, fields: Mapping[str, pa.Array], count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([fields.get(f.name, pa.nulls(count, f.type)) for f in full], schema=full)


@_njit
def _tokens(keys: int, count: int) -> np.ndarray:
    tokens = np.empty(count, np.int64)
    for i in range(count):
        tokens[i] = token_at(keys + 8 * i, 8)
    return tokens
