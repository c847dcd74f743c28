"""The latest of cells, markers and deletions, by the database's rules (`Cells.resolveRegular`,
`LivenessInfo.supersedes`, `DeletionTime.supersedes`).

The larger write time wins. At a tie a tombstone beats a cell that expires, which beats one that does not; then the
later deletion or expiry; then the smaller TTL; then the larger value, as serialised, compared as unsigned bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from writetime.merge import kernels
from writetime.merge.order import bytes_of, numbers

NEVER = -(1 << 63)
"""The write time of no deletion: less than any the database allows."""

# A marker with this TTL says that the row expired (`LivenessInfo.EXPIRED_LIVENESS_TTL`).
EXPIRED_TTL = (1 << 31) - 1
_LIVE, _EXPIRING, _TOMBSTONE = range(3)


@dataclass(frozen=True)
class Times:
    """What decides between cells, markers or deletions, as numbers: one entry each."""

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
        """Return the latest entry of each group, -1 where there is none.

        Args:
            group: the group of each entry.
            groups: how many there are.
            values: gives bytes or text that decide between entries that are equal but for their values.
            of_tombstones: whether they decide between tombstones too.
        """
        decided = _TOMBSTONE + of_tombstones
        best, tied = kernels.latest(
            group, self.present, self.write_time, self.rank, self.deletion_time, self.ttl, groups, decided
        )
        if values is not None and len(tied):
            return kernels.largest(group, tied, *bytes_of(values(tied)), best)
        return best


def cell_times(cells: pa.StructArray, after: int = NEVER) -> Times:
    """Return the times of cells; those written at or before `after` count as absent."""
    write_time = numbers(cells.field("write_time"))
    present = _present(cells) & (write_time > after)
    expiring = cells.field("ttl")
    rank = np.full(len(cells), _LIVE, np.int8)
    if expiring.null_count < len(cells):
        rank[_valid(expiring)] = _EXPIRING
    tombstone = cells.field("tombstone")
    if pc.any(tombstone).as_py():
        rank[tombstone.fill_null(False).to_numpy(zero_copy_only=False)] = _TOMBSTONE
    return Times(present, write_time, rank, numbers(cells.field("deletion_time")), numbers(expiring))


def marker_times(markers: pa.StructArray) -> Times:
    """Return the times of row markers."""
    ttl = numbers(markers.field("ttl"))
    rank = np.where(ttl == EXPIRED_TTL, _TOMBSTONE, np.where(_valid(markers.field("ttl")), _EXPIRING, _LIVE))
    write_time = numbers(markers.field("write_time"))
    return Times(_present(markers), write_time, rank.astype(np.int8), numbers(markers.field("expiry")), ttl)


def deletion_times(tombstones: pa.StructArray) -> Times:
    """Return the times of the deletions of rows, ranges, partitions or columns."""
    write_time, deletion_time = (numbers(tombstones.field(name)) for name in ("write_time", "deletion_time"))
    rank, ttl = np.full(len(tombstones), _TOMBSTONE, np.int8), np.zeros(len(tombstones), np.int32)
    return Times(_present(tombstones), write_time, rank, deletion_time, ttl)


def take(array: pa.Array, indices: np.ndarray) -> pa.Array:
    """Take entries of an array, null where the index is -1."""
    missing = indices < 0
    return _take(array, pa.array(indices, mask=missing if missing.any() else None))


def _take(array: pa.Array, indices: pa.Array) -> pa.Array:
    if array.null_count == len(array):
        return pa.nulls(len(indices), array.type)
    if not pa.types.is_struct(array.type):
        return array.take(indices)
    # Much of most structs is null, which taking them whole would copy entry by entry.
    taken = [_take(array.field(i), indices) for i in range(array.type.num_fields)]
    absent = indices.is_null() if not array.null_count else array.is_null().take(indices).fill_null(True)
    return pa.StructArray.from_arrays(taken, fields=list(array.type), mask=absent)


def _present(array: pa.Array) -> np.ndarray:
    return _valid(array) if array.null_count else np.ones(len(array), bool)


def _valid(array: pa.Array) -> np.ndarray:
    return array.is_valid().to_numpy(zero_copy_only=False)
