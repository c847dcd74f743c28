"""Memory that compiled code writes to."""

import mmap
from collections.abc import Sequence

import numpy as np

# Arrays share mappings, as a process may have 65,530 of them by default (`vm.max_map_count`). A mapping stays small,
# as Linux refuses one that is larger than the memory of the machine.
_MAPPING = 256 << 20
# A line of the processor's cache.
_ALIGNMENT = 64


def room(count: int, dtype: type[np.generic]) -> np.ndarray:
    """Return an array of zeros whose pages take memory only once they are written to, and are released with the array.

    Its size is that of the worst case, and only a small part is used. The heap would return memory of other buffers,
    and keep all pages that any of them ever wrote to.
    """
    return rooms([(count, dtype)])[0]


def rooms(wanted: Sequence[tuple[int, type[np.generic]]], mapping: int = _MAPPING) -> list[np.ndarray]:
    """Return several arrays like those of `room`, by their counts and types. They share a few mappings, which are
    released together. `mapping` is the size of a full mapping (bytes).
    """
    arrays: list[np.ndarray] = []
    starts: list[int] = []
    end = 0
    for i, (count, dtype) in enumerate(wanted):
        starts.append(end)
        end += -(-count * np.dtype(dtype).itemsize // _ALIGNMENT) * _ALIGNMENT
        if end >= mapping or i == len(wanted) - 1:
            memory = mmap.mmap(-1, max(1, end))
            group = zip(wanted[i + 1 - len(starts) : i + 1], starts, strict=True)
            arrays += [np.frombuffer(memory, dtype, count, start) for (count, dtype), start in group]
            starts, end = [], 0
    return arrays
