"""Sorts changes in the order of the database: by token, partition key and position.

Not which write wins: see `precedence`.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from writetime.changes.model import KINDS, RANGE_TOMBSTONE
from writetime.core.arrow import bytes_of, decoded, numbers, one_chunk, pc
from writetime.merge import kernels


@dataclass(frozen=True)
class Order:
    """The groups of changes with equal token, key and position, numbered in their order.

    The items are the changes, then the ends of the range tombstones among them. So the bounds of range tombstones have
    places between the rows.
    """

    kinds: np.ndarray  # of each change, as `changes.ROW`, ...
    ranges: np.ndarray  # the changes that are range tombstones
    group: np.ndarray  # of each item
    head: np.ndarray  # one item of each group
    partition: np.ndarray  # of each group
    positions: pa.Array  # of each item

    @property
    def groups(self) -> int:
        """The number of groups."""
        return len(self.head)

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return int(self.partition[-1]) + 1 if len(self.partition) else 0

    def change(self, items: np.ndarray) -> np.ndarray:
        """Return the changes that items belong to."""
        if not len(self.ranges):
            return items
        return np.concatenate([np.arange(len(self.kinds)), self.ranges])[items]


def order_changes(changes: pa.Table) -> Order:
    """Order changes; each column has at most one chunk."""
    kinds = kind_codes(one_chunk(changes["kind"]))
    ranges = np.flatnonzero(kinds == RANGE_TOMBSTONE)
    tokens, keys, positions = (one_chunk(changes[name]) for name in ("token", "key", "position"))
    first = numbers(tokens)
    if len(ranges):
        taken = pa.array(ranges)
        keys, positions = decoded(keys), decoded(positions)
        positions = pa.concat_arrays([positions, one_chunk(changes["end"]).take(taken)])
        keys = pa.concat_arrays([keys, keys.take(taken)])
        first = np.concatenate([first, first[ranges]])
    group, head, partition = group_by(first, keys, positions)
    return Order(kinds, ranges, group, head, partition, positions)


def group_by(first: np.ndarray, second: pa.Array, third: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sort items by three keys, and number the groups of equal items, like `kernels.group_items`. The second and third
    key are bytes or text, and null counts as empty.
    """
    return kernels.group_items(np.argsort(first, kind="stable"), first, *_sortable(second), *_sortable(third))


def _sortable(array: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return codes in the order of the values, if that costs little; else bytes."""
    nothing = np.empty(0, np.int32)
    if array.null_count == len(array):
        return np.zeros(len(array), np.int32), nothing, nothing.view(np.uint8)
    if not pa.types.is_dictionary(array.type):
        return nothing, *bytes_of(array)
    # Equal values have one rank, at any place in the dictionary.
    ranks = pc.rank(array.dictionary, tiebreaker="min").to_numpy().astype(np.int32)
    return ranks[array.indices.to_numpy()], nothing, nothing.view(np.uint8)


def kind_codes(kinds: pa.Array) -> np.ndarray:
    """Return the kinds as numbers: `changes.ROW`, `changes.STATIC`, ..."""
    if pa.types.is_dictionary(kinds.type):
        return kind_codes(kinds.dictionary)[kinds.indices.to_numpy()]
    return pc.index_in(kinds, pa.array(KINDS)).to_numpy(zero_copy_only=False).astype(np.int8)
