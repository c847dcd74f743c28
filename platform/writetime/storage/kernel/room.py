"""Memory that compiled code writes to."""

import mmap

import numpy as np


def room(count: int, dtype: type[np.generic]) -> np.ndarray:
    """Return an array of zeros whose pages take memory only once they are written to, and are released with the array.

    Its size is the worst case, of which little is used. The heap would return memory of other buffers, and keep all
    pages that any of them ever wrote to.
    """
    return np.frombuffer(mmap.mmap(-1, max(1, count * np.dtype(dtype).itemsize)), dtype, count)
