"""Compares rows of two sides: by digests, and place by place."""

from typing import Any

import numpy as np
import pyarrow as pa

from writetime.core.arrow import bytes_of, one_chunk, take
from writetime.core.printing import json_value
from writetime.row_events.compare import Matched, Rows, changed
from writetime.row_events.ids import siphash
from writetime.schema.avro import encode, joined, nullable
from writetime.schema.table import TableSchema


def digest(rows: Rows, schema: TableSchema) -> str:
    """Return a digest of rows in any order: the sum of the SipHash of each one's place and other columns.

    The key columns count by their places, because equal decimals (1.0 and 1.00) have one place and may come in any
    form.
    """
    content = [nullable(encode(one_chunk(rows.values[c.name]), c.type)) for c in schema.static + schema.regular] or [
        pa.array([b""] * len(rows.tokens), pa.large_binary())
    ]
    places = joined([p.cast(pa.large_binary()) for p in (rows.keys, rows.positions)])
    zero = np.uint64(0)
    hashes = siphash(zero, zero, *bytes_of(places.cast(pa.binary())), *bytes_of(joined(content).cast(pa.binary())))
    return "".join(f"{int(word):016x}" for word in hashes.sum(axis=0, dtype=np.uint64))


def between(rows: Rows, first: int, last: int) -> Rows:
    """Return the rows whose tokens are in a range, both ends included."""
    tokens = rows.tokens.to_numpy()
    start, end = np.searchsorted(tokens, first), np.searchsorted(tokens, last, "right")
    parts = (rows.tokens, rows.keys, rows.positions)
    return Rows(rows.values.slice(start, end - start), *(part.slice(start, end - start) for part in parts))


def differing(one: Rows, other: Rows, schema: TableSchema) -> Matched:
    """Return the places that differ, except for the forms of key columns; the first rows are `before`."""
    names = [c.name for c in schema.static + schema.regular]
    before, after = (Rows(r.values.select(names), r.tokens, r.keys, r.positions) for r in (one, other))
    return changed(before, after)


def tokens_of(one: Rows, other: Rows, found: Matched) -> set[int]:
    """Return the tokens of places that differ."""
    tokens = set(take(one.tokens, found.before).to_pylist()) | set(take(other.tokens, found.after).to_pylist())
    return tokens - {None}


def json_row(rows: Rows, index: int) -> dict[str, Any] | None:
    """Return a row with values as JSON has them; None for the index -1, at which there is none."""
    if index < 0:
        return None
    return {name: json_value(rows.values[name][index]) for name in rows.values.column_names}
