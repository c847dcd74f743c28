"""Finds the latest of cells, markers and deletions, by the database's rules (`Cells.resolveRegular`,
`LivenessInfo.supersedes`, `DeletionTime.supersedes`).

The larger write time wins. At a tie, these criteria follow, in this order:

1. A tombstone wins over a cell that expires, which wins over one that does not.
2. The later deletion or expiry wins.
3. The smaller TTL wins.
4. The larger serialised value wins, compared as unsigned bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from writetime.core.arrow import bytes_of, mask_of, numbers, numbers_present, pc, valid
from writetime.merge import kernels

NEVER = -(1 << 63)
"""The write time of a missing deletion: less than any that the database allows."""

# A marker with this TTL marks an expired row (`LivenessInfo.EXPIRED_LIVENESS_TTL`).
EXPIRED_TTL = (1 << 31) - 1
_LIVE, _EXPIRING, _TOMBSTONE = range(3)


@dataclass(frozen=True)
class Times:
    """The numbers that decide between cells, markers or deletions. Each has one entry."""

    present: np.ndarray
    write_time: np.ndarray
    rank: np.ndarray
    deletion_time: np.ndarray
    ttl: np.ndarray

    def latest(
        self,
        group: np.ndarray,
        groups: int,
        values: Callable[[np.ndarray], pa.Array] | None = None,
        *,
        of_tombstones: bool = False,
    ) -> np.ndarray:
        """Return the latest entry of each group, -1 if there is none. `values` returns bytes or text that decide
        between entries that are otherwise equal, also between tombstones if `of_tombstones`.
        """
        times = self.present, self.write_time, self.rank, self.deletion_time, self.ttl
        best, tied = kernels.latest(group, *times, groups, _TOMBSTONE + of_tombstones)
        if values is not None and len(tied):
            return kernels.largest(group, tied, *bytes_of(values(tied)), best)
        return best


def cell_times(cells: pa.StructArray, after: int = NEVER) -> Times:
    """Return the times of cells. Cells that were written at or before `after` count as missing."""
    write_time = numbers_present(cells.field("write_time"))
    present = valid(cells) & (write_time > after)
    expiring = cells.field("ttl")
    rank = np.full(len(cells), _LIVE, np.int8)
    if expiring.null_count < len(cells):
        rank[valid(expiring)] = _EXPIRING
    tombstone = cells.field("tombstone")
    if pc.any(tombstone).as_py():
        rank[mask_of(tombstone.fill_null(False))] = _TOMBSTONE
    return Times(present, write_time, rank, numbers(cells.field("deletion_time")), numbers(expiring))


def marker_times(markers: pa.StructArray) -> Times:
    """Return the times of row markers."""
    ttl = numbers(markers.field("ttl"))
    rank = np.where(ttl == EXPIRED_TTL, _TOMBSTONE, np.where(valid(markers.field("ttl")), _EXPIRING, _LIVE))
    write_time = numbers(markers.field("write_time"))
    return Times(valid(markers), write_time, rank.astype(np.int8), numbers(markers.field("expiry")), ttl)


def deletion_times(tombstones: pa.StructArray) -> Times:
    """Return the times of the deletions of rows, ranges, partitions or columns."""
    write_time, deletion_time = (numbers(tombstones.field(name)) for name in ("write_time", "deletion_time"))
    rank, ttl = np.full(len(tombstones), _TOMBSTONE, np.int8), np.zeros(len(tombstones), np.int32)
    return Times(valid(tombstones), write_time, rank, deletion_time, ttl)
