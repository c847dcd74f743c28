"""Files that are not regular ones, under the names of files that a program reads."""

import os
import socket
from collections.abc import Callable
from pathlib import Path


def _socket(path: Path) -> None:
    # A socket's address has at most some 100 bytes.
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"/proc/self/fd/{handle}/{path.name}")
    finally:
        os.close(handle)


def _link(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def _link_to_copy(path: Path) -> None:
    copy = path.with_name(f"copy of {path.name}")
    copy.write_bytes(b"")
    path.symlink_to(copy)


ODD_FILES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "pipe": ("a named pipe", os.mkfifo),
    "socket": ("a socket", _socket),
    "folder": ("a folder", os.mkdir),
    "device": ("a symbolic link", _link("/dev/zero")),
    "terminal": ("a symbolic link", _link("/dev/tty")),
    "nothing": ("a symbolic link", _link("missing")),
    "loop": ("a symbolic link", lambda path: path.symlink_to(path.name)),
    "copy": ("a symbolic link", _link_to_copy),
}
"""By name: what a message calls it, and a function that makes it at a path."""
