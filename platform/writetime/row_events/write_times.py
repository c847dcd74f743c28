"""The latest write to each row of a state: the write times of its cells and of the deletions that cover it.

Merging drops only data that a write at least as late replaces, so the latest write to a place is always kept.
"""

import numpy as np
import pyarrow as pa

from writetime.changes.model import PARTITION_TOMBSTONE, RANGE_TOMBSTONE, ROW, STATIC, field_name, udt_fields
from writetime.core.arrow import numbers, one_chunk, pc
from writetime.merge.order import group_by, kind_codes
from writetime.schema.table import TableSchema
from writetime.schema.types import Collection, CqlType, is_complex

_NONE = np.iinfo(np.int64).min


def write_times(
    state: pa.Table, schema: TableSchema, tokens: pa.Array, keys: pa.Array, positions: pa.Array
) -> pa.Array:
    """Return the latest write time (microseconds) to each place in a state, the result of `merge`; null if it has none.

    A place, with its token, serialised partition key and position in the partition, has the writes to its row, to the
    static columns and the partition that it is in, and the range tombstones that cover it.
    """
    kinds = kind_codes(one_chunk(state["kind"]))
    latest = latest_writes(state, schema)
    rows, ranges = np.flatnonzero(kinds == ROW), np.flatnonzero(kinds == RANGE_TOMBSTONE)
    partitions = np.flatnonzero((kinds == STATIC) | (kinds == PARTITION_TOMBSTONE))
    found = np.full(len(tokens), _NONE)

    def ranks(several: list[np.ndarray], ends: np.ndarray, *, whole: bool) -> list[np.ndarray]:
        """Rank the places, those of entries, and the ends of ranges; by partition only if `whole`."""
        entries = pa.array(np.concatenate([*several, ends]))
        taken = (one_chunk(state[name]).take(entries) for name in ("token", "key"))
        first, second = (pa.concat_arrays([own, other]) for own, other in zip((tokens, keys), taken, strict=True))
        third = pa.repeat(pa.scalar(b"", pa.binary()), len(first))
        if not whole:
            starts = one_chunk(state["position"]).take(pa.array(np.concatenate(several)))
            third = pa.concat_arrays([positions, starts, one_chunk(state["end"]).take(pa.array(ends))])
        group, _, _ = group_by(numbers(first), second, third)
        return np.split(group, np.cumsum([len(tokens), *map(len, several)]))

    if len(partitions):
        own, of_entries, _ = ranks([partitions], ranges[:0], whole=True)
        np.maximum(found, _by_rank(of_entries, latest[partitions], own), out=found)
    own, of_rows, starts, ends = ranks([rows, ranges], ranges, whole=False)
    np.maximum(found, _by_rank(of_rows, latest[rows], own), out=found)
    if len(ranges):
        order = np.argsort(starts, kind="stable")
        at = np.searchsorted(starts[order], own, side="right") - 1
        last = order[np.maximum(at, 0)]
        covered = (at >= 0) & (own < ends[last])
        np.maximum(found, np.where(covered, latest[ranges][last], _NONE), out=found)
    return pa.array(found, mask=found == _NONE)


def _by_rank(ranks: np.ndarray, times: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the latest time of the entries of each wanted rank."""
    best = np.full(max(ranks.max(initial=-1), wanted.max(initial=-1)) + 1, _NONE)
    np.maximum.at(best, ranks, times)
    return best[wanted]


def latest_writes(state: pa.Table, schema: TableSchema) -> np.ndarray:
    """Return the latest write time (microseconds) of each entry of a state."""
    best = np.maximum(*(_times(one_chunk(state[name])) for name in ("marker", "tombstone")))
    for column in schema.static + schema.regular:
        np.maximum(best, latest_of_column(one_chunk(state[field_name(column)]), column.type), out=best)
    return best


def latest_of_column(column: pa.StructArray, cql_type: CqlType) -> np.ndarray:
    """Return the latest write time of a column in each entry of a state, the least number where there is none."""
    if not is_complex(cql_type):
        return _times(column)
    tombstones, parts = column.flatten()
    best = _times(tombstones)
    if not isinstance(cql_type, Collection):
        for cells, _ in zip(parts.flatten(), udt_fields(cql_type), strict=True):
            np.maximum(best, _times(cells), out=best)
        return best
    row = np.repeat(np.arange(len(parts)), numbers(pc.list_value_length(parts)))
    np.maximum.at(best, row, _times(parts.flatten()))
    return best


def _times(structs: pa.StructArray) -> np.ndarray:
    """Return the write time of each struct, the least number where there is none."""
    if structs.null_count == len(structs):
        return np.full(len(structs), _NONE)
    times = structs.flatten()[structs.type.get_field_index("write_time")]
    return times.fill_null(_NONE).to_numpy().copy()
