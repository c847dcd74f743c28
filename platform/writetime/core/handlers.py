"""Handlers that a command names: functions in the user's modules."""

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from writetime.core.errors import WritetimeError


def load_handler(path: str) -> Callable[[Any], Any]:
    """Return the function that `module:function` names; modules of the working folder are found, too.

    Raises:
        WritetimeError: there is no such function.
    """
    module, _, name = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        handler = getattr(importlib.import_module(module), name)
    except SystemExit:
        raise WritetimeError(
            f"handler {path}: its module calls sys.exit when it is imported; do that only if __name__ is '__main__'"
        ) from None
    except (ImportError, AttributeError, ValueError) as e:
        raise WritetimeError(f"handler {path}: {e}; name it as module:function") from None
    if not callable(handler):
        raise WritetimeError(f"handler {path} is not a function")
    return handler
