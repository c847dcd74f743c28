"""Compares rows of two sides: by digests, and place by place."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from writetime.changes.position import STATIC_POSITION
from writetime.core.arrow import bytes_of, mask_of, one_chunk, pc, take
from writetime.core.printing import json_value
from writetime.row_events.compare import Matched, OrderedRows, changed, different_values
from writetime.row_events.ids import siphash
from writetime.schema.avro import encode, joined
from writetime.schema.mapping import avro_type
from writetime.schema.table import TableSchema


def digest(rows: OrderedRows, schema: TableSchema) -> str:
    """Return a digest of rows in any order: the sum of the SipHash of each one's place and other columns.

    The key columns count by their places, because equal decimals (1.0 and 1.00) have one place and may come in any
    form.
    """
    content = [
        encode(one_chunk(rows.values[c.name]), ["null", avro_type(c.type)]) for c in schema.static + schema.regular
    ]
    content += [encode(each, ["null", "bytes"]) for each in rows.lost_bytes.values()]
    content = content or [pa.array([b""] * len(rows.tokens), pa.large_binary())]
    places = joined([p.cast(pa.large_binary()) for p in (rows.keys, rows.positions)])
    zero = np.uint64(0)
    hashes = siphash(zero, zero, *bytes_of(places.cast(pa.binary())), *bytes_of(joined(content).cast(pa.binary())))
    return "".join(f"{int(word):016x}" for word in hashes.sum(axis=0, dtype=np.uint64))


def between(rows: OrderedRows, first: int, last: int) -> OrderedRows:
    """Return the rows whose tokens are in a range, both ends included."""
    tokens = rows.tokens.to_numpy()
    start, end = np.searchsorted(tokens, first), np.searchsorted(tokens, last, "right")
    values, *places = (part.slice(start, end - start) for part in (rows.values, rows.tokens, rows.keys, rows.positions))
    lost_bytes = {name: each.slice(start, end - start) for name, each in rows.lost_bytes.items()}
    return OrderedRows(values, *places, lost_bytes=lost_bytes, within=rows.within)


def differing(one: OrderedRows, other: OrderedRows, schema: TableSchema) -> Matched:
    """Return the places that differ, except for the forms of key columns; the first rows are `before`.

    If one side has only a row of static columns in a partition, and the other side has other rows, the first of these
    is compared with it, by their static columns alone. The rows that one side lacks are separate places.
    """
    names = [c.name for c in schema.static + schema.regular]
    before, after = (replace(r, values=r.values.select(names)) for r in (one, other))
    found = changed(before, after)
    if not schema.static:
        return found
    beside = Matched(
        _with_first(found.before, other, found.after, one), _with_first(found.after, one, found.before, other)
    )
    same = (beside.before != found.before) | (beside.after != found.after)
    for column in schema.static:
        same &= ~different_values(one, beside.before, other, beside.after, column.name)
    return Matched(beside.before[~same], beside.after[~same])


def is_static(rows: OrderedRows, index: np.ndarray) -> np.ndarray:
    """Return which of some rows are static columns alone; none where the index is -1."""
    found = pc.equal(take(rows.positions, index), pa.scalar(STATIC_POSITION, pa.binary()))
    return mask_of(found.fill_null(False))


def _with_first(index: np.ndarray, present: OrderedRows, of_present: np.ndarray, lacking: OrderedRows) -> np.ndarray:
    """Return the index of rows of a side, with the first row of the partition where it lacks a row of static columns
    alone that the other side has.
    """
    alone = (index < 0) & is_static(present, of_present)
    firsts = pc.index_in(take(present.keys, of_present), value_set=lacking.keys)
    return np.where(alone, firsts.fill_null(-1).to_numpy(), index)


def tokens_of(one: OrderedRows, other: OrderedRows, found: Matched) -> set[int]:
    """Return the tokens of places that differ."""
    tokens = set(take(one.tokens, found.before).to_pylist()) | set(take(other.tokens, found.after).to_pylist())
    return tokens - {None}


def json_row(rows: OrderedRows, index: int) -> dict[str, Any] | None:
    """Return a row with values as JSON has them; None for the index -1, at which there is none."""
    if index < 0:
        return None
    return {name: json_value(rows.values[name][index]) for name in rows.values.column_names}
