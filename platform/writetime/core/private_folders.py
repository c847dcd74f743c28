"""Folders that only their user can read: they hold rows."""

import atexit
import functools
import os
import shutil
import stat
import tempfile
from pathlib import Path

# The folder of all default paths.
_HOME = ".writetime"


def restrict_home(path: Path) -> None:
    """Let only this user enter the folder `.writetime` that a path is in, if it is in one. It is created if it is
    missing. Folders of other names have the rights that their owner gives them.
    """
    parts = path.absolute().parts
    if _HOME not in parts:
        return
    home = Path(*parts[: parts.index(_HOME) + 1])
    home.parent.mkdir(parents=True, exist_ok=True)
    home.mkdir(mode=stat.S_IRWXU, exist_ok=True)
    found = home.stat()
    if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != stat.S_IRWXU:
        home.chmod(stat.S_IRWXU)


@functools.cache
def private_temporary_folder() -> str:
    """Return a folder for temporary files of this process, which exists until the process ends."""
    folder = tempfile.mkdtemp(prefix="writetime-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
