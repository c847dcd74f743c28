"""Where an SSTable's data can be cut into pieces that are read separately: between partitions, and inside large ones at
the start of a block of rows.

Beside its bytes, a piece needs the key of the partition that it starts in, which it reads itself, and the range
tombstone that is open where it starts. The index has that tombstone, but not its start. So the piece in which a range
tombstone opens makes the change of it, and reads on to where it is closed; the pieces after it make none. Because only
one is open at a time, reading on costs at most one more pass over all pieces together, and that only past rows.
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
    """A place between partitions, or between the rows of one.

    Attributes:
        offset: in the uncompressed data.
        partition: the offset of the partition that the place is inside, if it is.
        open: write time and deletion time of the range tombstone that is open there, if one is.
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
    """Yield places between two offsets, each the first that is at least `target_bytes` after the one before.

    Raises:
        CorruptFile: the index of a large partition's rows cannot be read.
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
