"""Finds the places at which an SSTable's data can be cut into pieces that are read separately: between partitions, and
in large partitions at the start of a block of rows.

A piece that starts inside a partition needs more than its own bytes:

- The key of the partition. The reader of the piece reads it from the data.
- The range tombstone that is open at the start of the piece. The index has its times, but not its start position. So
  the piece in which a range tombstone opens creates the change for it, and reads beyond its own end to the bound that
  closes the range. Later pieces create no change for it.

Only one range tombstone is open at a time. So reading beyond the ends costs at most one more pass over all data, and
that pass only skips rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from writetime.schema.types import MarshalKey
from writetime.storage.index import PartitionIndex
from writetime.storage.locations import Location
from writetime.storage.row_index import Blocks, read_blocks


@dataclass(frozen=True)
class Cut:
    """A place between partitions, or between the rows of one: its offset in the uncompressed data, the offset of the
    partition if it is between its rows, and the write and deletion time of the range tombstone that is open there.
    """

    offset: int
    partition: int | None = None
    open: tuple[int, int] | None = None


@dataclass(frozen=True)
class Split:
    """A piece of an SSTable's data."""

    start: Cut
    end: Cut


def cuts(
    location: Location,
    clustering: tuple[MarshalKey, ...],
    index: PartitionIndex,
    bounds: tuple[int, int],
    target_bytes: int,
) -> Iterator[Cut]:
    """Yield places between two offsets. Each is the first at least `target_bytes` after the previous one. The errors
    are those of `read_blocks`.
    """
    positions = index.positions
    start, end = bounds
    known: tuple[int, Blocks | None] = -1, None
    while (wanted := start + target_bytes) < end:
        following = int(np.searchsorted(positions, wanted))
        cut = Cut(int(positions[following]) if following < len(positions) else end)
        first = int(positions[following - 1])
        if cut.offset > wanted and cut.offset - first > target_bytes:
            if known[0] != following:
                known = following, read_blocks(location, clustering, index, following - 1)
            if (blocks := known[1]) is not None:
                block = int(np.searchsorted(blocks.offsets, wanted - first))
                if block < len(blocks.offsets) and first + int(blocks.offsets[block]) < cut.offset:
                    cut = Cut(first + int(blocks.offsets[block]), first, blocks.open_at(block))
        if cut.offset >= end:
            return
        yield cut
        start = cut.offset
