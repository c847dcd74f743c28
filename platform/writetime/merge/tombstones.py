"""The effect of a table's deletions on partitions, ranges of positions, and rows.

A deletion is (write time, deletion time), and is ordered by both (`DeletionTime.supersedes`). At each position, the
greatest deletion that covers it counts. So the canonical form has:

- the greatest deletion of each partition;
- range tombstones that do not overlap, each over the positions at which its deletion is the greatest, and only where it
  is greater than that of the partition (`RangeTombstoneMarker.Merger`);
- row tombstones only where they are greater than both (`Row.Merger`).
"""

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from writetime.changes.model import PARTITION_TOMBSTONE, RANGE_TOMBSTONE, TOMBSTONE
from writetime.merge import kernels
from writetime.merge.order import Order
from writetime.merge.precedence import NEVER, Times, deletion_times


@dataclass(frozen=True)
class Deletion:
    """One deletion per group; a missing one is at `NEVER`."""

    write_time: np.ndarray
    deletion_time: np.ndarray

    def exceeds(self, other: "Deletion") -> np.ndarray:
        """Return where this deletion supersedes the other."""
        later = self.deletion_time > other.deletion_time
        return (self.write_time > other.write_time) | ((self.write_time == other.write_time) & later)

    def where(self, mask: np.ndarray, other: "Deletion") -> "Deletion":
        """Return this deletion where the mask is true, else the other."""
        return Deletion(
            np.where(mask, self.write_time, other.write_time), np.where(mask, self.deletion_time, other.deletion_time)
        )

    @classmethod
    def none(cls, count: int) -> "Deletion":
        """Return missing deletions."""
        return cls(np.full(count, NEVER), np.full(count, NEVER))

    def at(self, indices: np.ndarray) -> "Deletion":
        """Return the deletions at these indices, none where the index is -1."""
        none = Deletion.none(len(indices))
        if not len(self.write_time):
            return none
        return Deletion(self.write_time[indices], self.deletion_time[indices]).where(indices >= 0, none)

    def array(self) -> pa.StructArray:
        """Return the deletions as the field `tombstone` of changes."""
        arrays = [pa.array(self.write_time), pa.array(self.deletion_time)]
        return pa.StructArray.from_arrays(arrays, fields=list(TOMBSTONE), mask=pa.array(self.write_time == NEVER))


@dataclass(frozen=True)
class Tombstones:
    """The canonical tombstones of the groups, and the write times that they delete."""

    kept: Deletion  # of a group's partition, range or row
    end: np.ndarray  # the group where a range tombstone ends that starts in this group, -1 if none does
    deleted: Deletion  # covers all of a group's cells


def find_tombstones(order: Order, tombstones: pa.StructArray) -> Tombstones:
    """Fold the tombstones of changes."""
    none, end = Deletion.none(order.groups), np.full(order.groups, -1)
    if tombstones.null_count == len(tombstones):
        return Tombstones(none, end, none)
    times = deletion_times(tombstones)
    single = _fold(order, times)
    kinds = order.kinds[order.change(order.head)]
    of_partition = np.full(order.partitions, -1)
    groups = np.flatnonzero(kinds == PARTITION_TOMBSTONE)
    of_partition[order.partition[groups]] = groups
    partition = single.at(of_partition[order.partition])
    if not len(order.ranges):
        rows_only = single.exceeds(partition) | (kinds == PARTITION_TOMBSTONE)
        return Tombstones(single.where(rows_only, none), end, single.where(single.exceeds(partition), partition))
    ranges = _ranges(order, times)
    open_ = ranges.exceeds(partition)
    outer = ranges.where(open_, partition)
    is_row = kinds != RANGE_TOMBSTONE
    kept_row = is_row & (single.exceeds(outer) | (kinds == PARTITION_TOMBSTONE))
    starts, ends = _segments(order, ranges, open_)
    end[starts] = ends
    kept = single.where(kept_row, ranges.at(np.where(end >= 0, np.arange(order.groups), -1)))
    return Tombstones(kept, end, single.where(is_row & single.exceeds(outer), outer))


def _fold(order: Order, times: Times) -> Deletion:
    """Return the greatest deletion of each partition and row in its own group."""
    single = replace(times, present=times.present & (order.kinds != RANGE_TOMBSTONE))
    return Deletion(times.write_time, times.deletion_time).at(single.latest(order.group, order.groups))


def _ranges(order: Order, times: Times) -> Deletion:
    """Return the greatest of the range tombstones that cover each group."""
    write_time, deletion_time = times.write_time[order.ranges], times.deletion_time[order.ranges]
    greatest_first = np.lexsort((deletion_time, write_time))[::-1]
    starts = order.group[order.ranges][greatest_first]
    ends = order.group[len(order.kinds) :][greatest_first]
    covering = kernels.paint(starts, ends, order.groups)
    return Deletion(write_time[greatest_first], deletion_time[greatest_first]).at(covering)


def _segments(order: Order, ranges: Deletion, open_: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first groups and the ends of the longest stretches with one deletion. Both are at bounds, not rows."""
    same = (
        (open_[1:] == open_[:-1])
        & (ranges.write_time[1:] == ranges.write_time[:-1])
        & (ranges.deletion_time[1:] == ranges.deletion_time[:-1])
        & (order.partition[1:] == order.partition[:-1])
    )
    firsts = np.flatnonzero(np.concatenate([[True], ~same]))
    ends = np.append(firsts[1:], order.groups)
    mask = open_[firsts]
    return firsts[mask], ends[mask]
