"""Functions that numba compiles. It keeps the compiled code on disk until the function's own file changes, so compiled
functions call none of another file, except for those of `storage.kernel.memory`.
"""

import functools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

njit: Any = numba.njit(cache=True, nogil=True)
"""Compile a function for other compiled ones."""


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that only reads its arrays, so that it is not compiled again for read-only ones."""
    compiled = njit(function)

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        return compiled(*(_read_only(a) if isinstance(a, np.ndarray) else a for a in arguments))

    return call


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view
