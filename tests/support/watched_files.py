"""Calls of a lake's file system, on a local disk."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from pyarrow import fs

from writetime.delta.storage import Storage

READS = ("open_input_file", "open_input_stream")
WRITES = ("open_output_stream", "delete_file", "delete_dir", "move")


class WatchedFolder(fs.SubTreeFileSystem):
    """A folder that notes the calls that read or write files before it makes them: the method, and the path."""

    def __init__(self, address: str, note: Callable[[str, str], None]) -> None:
        super().__init__(address, fs.LocalFileSystem())
        self._address = address
        self._note = note


def _watched(name: str) -> Callable[..., Any]:
    def call(folder: Any, path: str, *arguments: Any, **named: Any) -> Any:
        folder._note(name, f"{folder._address}/{path}")
        return getattr(fs.SubTreeFileSystem, name)(folder, path, *arguments, **named)

    return call


for _name in READS + WRITES:
    setattr(WatchedFolder, _name, _watched(_name))


@contextmanager
def watched_files(note: Callable[[str, str], None]) -> Iterator[None]:
    """Call a function for each call of a folder of the lake in a `with` block."""
    with patch.object(Storage, "filesystem", lambda storage: WatchedFolder(storage.address, note)):
        yield
