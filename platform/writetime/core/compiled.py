"""Functions that numba compiles. numba keeps the compiled code on disk until the function's own file changes. So a
compiled function must not call one of another file, except for those of `storage.kernel.memory`.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

_log = logging.getLogger(__name__)


def cached(function: Callable[..., Any], **options: Any) -> Any:
    """Compile a function with these options of numba. Compile it once for all processes, or in each process if no
    folder can keep the code.
    """
    compiler: Any = numba.njit
    try:
        return compiler(cache=True, **options)(function)
    except RuntimeError as e:
        if "no locator available" not in str(e):
            raise
    _warn_of_no_cache()
    return compiler(**options)(function)


@functools.cache
def _warn_of_no_cache() -> None:
    _log.warning(
        "no folder can keep compiled code, so each start takes some seconds more: name a folder that can be written in "
        "NUMBA_CACHE_DIR"
    )


def njit(function: Callable[..., Any]) -> Any:
    """Compile a function for other compiled ones."""
    return cached(function, nogil=True)


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
