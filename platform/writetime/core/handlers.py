"""Handlers that a command names: functions in the user's modules."""

import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable
from typing import Any

from writetime.core.errors import WritetimeError, reason_of

# Python's own modules, installed ones, and the import system.
_LIBRARIES = (*(sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")), "<frozen ")


def load_handler(path: str) -> Callable[[Any], Any]:
    """Return the function that `module:function` names; modules of the working folder are found, too. Raises
    WritetimeError: there is no such function, or its module raises when it is imported.
    """
    module, _, name = path.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), name]):
        raise WritetimeError(f"handler {path}: name it as module:function")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        imported = importlib.import_module(module)
    except SystemExit:
        raise WritetimeError(
            f"handler {path}: its module calls sys.exit when it is imported; do that only if __name__ is '__main__'"
        ) from None
    except ModuleNotFoundError as e:
        if e.name is None or not f"{module}.".startswith(f"{e.name}."):
            raise _failed(path, e) from None
        raise WritetimeError(f"handler {path}: {e}; name it as module:function") from None
    except KeyboardInterrupt:
        raise
    except BaseException as e:
        raise _failed(path, e) from None
    handler = vars(imported).get(name)
    if not callable(handler):
        missing = "is not a function" if name in vars(imported) else f"is not in {imported.__file__ or module}"
        raise WritetimeError(f"handler {path}: {name} {missing}; name it as module:function")
    return handler


def _failed(path: str, error: BaseException) -> WritetimeError:
    """Return the error of a module that cannot be imported, with the line that caused it."""
    reason = " ".join(reason_of(error).split())
    return WritetimeError(f"handler {path}: its module cannot be imported: {_place(error)}: {reason}")


def _place(error: BaseException) -> str:
    """Return file and line of the user's code, where the error was raised or where that code called the libraries."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno or 1}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    found = (own or frames)[-1]
    return f"{found.filename}:{found.lineno}"
