"""Memory that compiled code writes to."""

import mmap

import numpy as np


def room(count: int, dtype: type[np.generic]) -> np.ndarray:
    """Return an array of zeros whose pages take memory only once they are written to, and go back when the array goes.

    Room is for the worst case, of which little is used. The heap would hand out again what other buffers had,
    and keep all pages that any of them ever wrote to.
    """
    return np.frombuffer(mmap.mmap(-1, max(1, count * np.dtype(dtype).itemsize)), dtype, count)
