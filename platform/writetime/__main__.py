"""The program `writetime`, also as `python -m writetime`."""

import os
import sys
import threading
import time
from codecs import lookup
from importlib.abc import MetaPathFinder
from io import TextIOWrapper

from writetime.cli.main import main
from writetime.core.logs import hide_passwords_of_bugs

# Modules that no command needs. pyarrow and numba import them if they are installed, which takes a quarter of the time
# of a look-up.
_NOT_USED = {"view": ("coverage", "pandas", "scipy")}
# How long these commands wait, at their end, for threads that handlers have started: Python would wait forever.
_THREAD_SECONDS = 5.0
_RUN_HANDLERS = ("work", "replay")


class _Absent(MetaPathFinder):
    """An import hook that hides modules."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """Raise ModuleNotFoundError for these modules; return None for others, so that the next finder finds them."""
        del path, target
        if fullname in self._names:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def run() -> None:
    """Run the command that the arguments name."""
    if names := _NOT_USED.get("".join(sys.argv[1:2])):
        sys.meta_path.insert(0, _Absent(names))
    _show_all_characters()
    hide_passwords_of_bugs()
    status = 1
    try:
        main()
    except SystemExit as e:
        status = e.code if isinstance(e.code, int) else int(e.code is not None)
        raise
    finally:
        if sys.argv[1:2] and sys.argv[1] in _RUN_HANDLERS:
            threading.Thread(target=_end, args=(status,), daemon=True).start()


def _end(status: int) -> None:
    time.sleep(_THREAD_SECONDS)
    os._exit(status)


def _show_all_characters() -> None:
    """Show a character that the terminal's encoding does not have as an escape: it must not end the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    run()
