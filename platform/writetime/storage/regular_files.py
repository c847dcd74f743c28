"""Opens local files that another program made, such as a node's segments and SSTables.

A folder of another program may have anything under the name of a file. To open a named pipe waits for a writer, a
device has no end, and a link leads to a file that nobody meant. So such files are opened without waiting, links are not
followed, and only regular files are read. Hard links are regular files: a node makes them in `cdc_raw` and in
snapshots. A folder on the way to the file may be a link.
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from writetime.core.counts import pluralize
from writetime.storage.file_errors import StorageError

_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}
_BLOCK_BYTES = 1 << 20


class NotRegular(StorageError):
    """A file that is not a regular one. The text has its path and its kind, and the remedy."""

    def __init__(self, path: str, mode: int) -> None:
        kind = _KINDS.get(stat.S_IFMT(mode), "a file of an unknown kind")
        super().__init__(f"{path} is {kind}, not a regular file: move it away, or put the file itself there")


def irregular(path: str | Path) -> NotRegular | None:
    """Return the error of a path at which there is something other than a regular file; None if there is not."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        # To open it gives this error again, if it lasts.
        return None
    return None if stat.S_ISREG(mode) else NotRegular(str(path), mode)


def open_regular(path: str | Path) -> BinaryIO:
    """Open a regular file for reading, unbuffered.

    Raises:
        NotRegular: it is a link, a pipe, a device, a socket or a folder.
        OSError: it cannot be opened.
    """
    # A device is not opened at all, because that may have an effect on it.
    if (fault := irregular(path)) is not None:
        raise fault
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        # Something else may have taken the name meanwhile.
        if (fault := irregular(path)) is not None:
            raise fault from None
        raise
    if not stat.S_ISREG(mode := os.fstat(handle).st_mode):
        os.close(handle)
        raise NotRegular(str(path), mode)
    return os.fdopen(handle, "rb", buffering=0)


def read_regular(path: str | Path) -> bytes:
    """Return the content of a regular file. The errors are those of `open_regular`."""
    with open_regular(path) as file:
        return file.read()


def copy_regular(path: Path, write: Callable[[bytes], object]) -> int:
    """Pass the content of a regular file to `write`, in blocks, and at most as many bytes as it has at the start.
    Return that number. The errors are those of `open_regular`, and `StorageError` if the file has become shorter.
    """
    with open_regular(path) as file:
        size = left = os.fstat(file.fileno()).st_size
        while left and (block := file.read(min(left, _BLOCK_BYTES))):
            write(block)
            left -= len(block)
    if left:
        raise StorageError(f"{path} has {pluralize(size - left, 'byte')} now, and had {size} when its copy began")
    return size
