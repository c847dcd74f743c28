"""The merge of counters (`Cells.resolveCounter`, `CounterContext.merge`).

A counter is the sum of one shard per node: the shard with the greatest clock. A deletion of the cell hides all its
shards, regardless of their times (CASSANDRA-7346). Deletions of rows, ranges and partitions cover earlier writes, as
for any cell.

So a state keeps for each node the shards that no other shard exceeds in both clock and write time, because a later
deletion may cover the shard with the greater clock. In a deleted cell, a state keeps the shards that are later than the
cell's deletion, because a deletion of a row, range or partition may cover that deletion and not these shards.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from writetime.changes.model import GLOBAL, LOCAL
from writetime.core.arrow import mask_of, numbers, pc, take
from writetime.merge.precedence import NEVER, cell_times
from writetime.merge.tombstones import Deletion
from writetime.schema.table import SchemaError

# The node id of the shard that stands for a counter without shards.
_NOBODY = "00000000-0000-0000-0000-000000000000"


def mergeable_counters(cells: pa.StructArray, what: str) -> pa.StructArray:
    """Return counters in a form that can be merged: an empty list of shards becomes one shard of no node, which counts
    0.

    The database returns 0 for it (`CounterContext.total`). With a shard it is merged, and covered, like any other.

    Raises:
        SchemaError: a cell has no list of shards, as in changes of earlier versions. Or a shard is local, as in
            Cassandra 2.0 and older: local shards are added, so a second shard cannot be distinguished from a repeat.
    """
    shards = cells.flatten()[-1]
    live = pc.and_not(cells.is_valid(), cells.field("tombstone").fill_null(False))
    if pc.any(pc.and_(live, shards.is_null())).as_py():
        raise SchemaError(
            f"the counter {what} has no shards, as in changes of earlier versions: bring the table in again"
        )
    if pc.any(pc.equal(shards.flatten().field("kind"), LOCAL)).as_py():
        raise SchemaError(
            f"the counter {what} has local shards, of Cassandra 2.0 or older: they are added, so a repeat cannot be "
            "distinguished from a second shard; leave the table out"
        )
    empty = pc.and_(live, pc.equal(pc.list_value_length(shards).fill_null(1), 0))
    return _with_nobody(cells, empty) if pc.any(empty).as_py() else cells


def _with_nobody(cells: pa.StructArray, empty: pa.Array) -> pa.StructArray:
    *others, lists = cells.flatten()
    count, zeros = len(cells), pa.array(np.zeros(len(cells), np.int64))
    parts = [pa.repeat(_NOBODY, count), pa.repeat(GLOBAL, count), zeros, zeros, cells.field("write_time")]
    nobody = pa.StructArray.from_arrays(parts, fields=list(lists.type.value_type))
    alone = pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32)), nobody, type=lists.type)
    found = pc.if_else(empty, alone, lists)
    return pa.StructArray.from_arrays([*others, found], fields=list(cells.type), mask=cells.is_null())


def newest_shards(cells: pa.StructArray, dropped_at: int) -> np.ndarray:
    """Return the greatest write time of the shards of each cell, `NEVER` if there is none after `dropped_at`."""
    lists = cells.flatten()[-1]
    cell = np.repeat(np.arange(len(cells)), numbers(pc.list_value_length(lists)))
    return greatest(cell, numbers(lists.flatten().field("write_time")), len(cells), dropped_at)


def merge_counter(
    cells: pa.StructArray, group: np.ndarray, deleted: Deletion, dropped_at: int
) -> tuple[pa.StructArray, np.ndarray]:
    """Merge a counter column; arguments and result are those of `columns.merge_column`."""
    groups = len(deleted.write_time)
    tombstone, written = _tombstones(cells, group, deleted, dropped_at)
    is_deleted = tombstone >= 0
    covered = np.maximum(np.where(is_deleted, written, deleted.write_time), dropped_at)
    lists = cells.flatten()[-1]
    shards = lists.flatten()
    group = np.repeat(group, numbers(pc.list_value_length(lists)))
    kept, first = _unbeaten(shards, group, covered)
    group = group[kept]
    counts = np.bincount(group, minlength=groups)
    live = (counts > 0) & ~is_deleted
    # The sum wraps around, as in the database.
    value = np.zeros(groups, np.int64)
    np.add.at(value, group[first], numbers(shards.field("count"))[kept[first]])
    newest = greatest(group, numbers(shards.field("write_time"))[kept], groups, NEVER)
    some = live | is_deleted
    parts = [
        pa.array(value, mask=~live),
        pa.array(np.where(is_deleted, written, newest), mask=~some),
        pa.nulls(groups, pa.int32()),
        take(cells.field("deletion_time"), tombstone),
        pa.array(is_deleted, mask=~some),
        _lists(shards.take(pa.array(kept)), counts, lists.type),
    ]
    return pa.StructArray.from_arrays(parts, fields=list(cells.type), mask=pa.array(~some)), some


def _tombstones(
    cells: pa.StructArray, group: np.ndarray, deleted: Deletion, dropped_at: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the cell that deletes the counter of each group, -1 if none does, and its write time."""
    times = cell_times(cells, dropped_at)
    dead = times.present & mask_of(cells.field("tombstone").fill_null(False))
    dead &= times.write_time > deleted.write_time[group]
    best = replace(times, present=dead).latest(group, len(deleted.write_time))
    return best, numbers(take(cells.field("write_time"), best))


def _unbeaten(shards: pa.StructArray, group: np.ndarray, covered: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the shards that no other shard exceeds in both order and write time, sorted, and which of them are the
    greatest of their nodes.
    """
    write_time, clock, count = (numbers(shards.field(name)) for name in ("write_time", "clock", "count"))
    ids = shards.field("id").dictionary_encode()
    node = _ranks(ids.dictionary)[ids.indices.to_numpy()]
    # Of remote shards (2.0 and older), those with negative clocks are greater; the smaller the clock, the greater the
    # shard.
    rank = np.where(mask_of(pc.equal(shards.field("kind"), GLOBAL)), 2, clock < 0)
    clock = np.where(rank == 1, ~clock, clock)
    left = np.flatnonzero(write_time > covered[group])
    keys: Iterable[np.ndarray] = (write_time, count, clock, rank)
    # The complement reverses the order, and nothing overflows.
    order = left[np.lexsort([*(~key[left] for key in keys), node[left], group[left]])]
    first = np.ones(len(order), bool)
    first[1:] = (group[order[1:]] != group[order[:-1]]) | (node[order[1:]] != node[order[:-1]])
    # A shard with the greatest write time so far among the greater ones of its node is kept.
    times, when = np.unique(write_time[order], return_inverse=True)
    place = np.cumsum(first) * len(times) + when
    unbeaten = np.ones(len(order), bool)
    unbeaten[1:] = place[1:] > np.maximum.accumulate(place)[:-1]
    return order[unbeaten], first[unbeaten]


def _ranks(texts: pa.Array) -> np.ndarray:
    ranks = np.empty(len(texts), np.int64)
    ranks[pc.sort_indices(texts).to_numpy()] = np.arange(len(texts))
    return ranks


def greatest(group: np.ndarray, write_time: np.ndarray, groups: int, after: int) -> np.ndarray:
    """Return the greatest write time of each group, `NEVER` if there is none after a time."""
    found = np.full(groups, NEVER)
    np.maximum.at(found, group, np.where(write_time > after, write_time, NEVER))
    return found


def _lists(shards: pa.StructArray, counts: np.ndarray, arrow: pa.DataType) -> pa.ListArray:
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), shards, type=arrow, mask=pa.array(counts == 0))
