"""The files in an agent's state folder: small files that survive a crash, written completely or not at all.

Each has the CRC32 of its content, or of each of its lines. A changed position would skip writes without a word.
"""

import fcntl
import json
import os
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from writetime.core.errors import WritetimeError, naming
from writetime.core.private_folders import restrict_home
from writetime.storage.regular_files import copy_regular, read_regular

T = TypeVar("T")

_CHECKSUM = "crc32"
_CHANGED = "its content does not match its CRC32"


def lock_and_read(folder: Path, read: Callable[[Path], T]) -> tuple[int, T]:
    """Lock a state folder and read its content. Return the handle that releases the lock when closed, and the content.
    Raise a WritetimeError if another agent has it, or its content is damaged.
    """
    handle = lock_folder(folder)
    try:
        return handle, read(folder)
    except BaseException:
        os.close(handle)
        raise


def lock_folder(folder: Path) -> int:
    """Create a state folder if it is missing, and lock it; return the handle that releases the lock when closed. Raise
    a WritetimeError if another agent has it.
    """
    restrict_home(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return _lock(os.open(folder / "lock", os.O_RDWR | os.O_CREAT), f"another agent uses the state folder {folder}")


def lock_segments(folder: Path) -> int:
    """Lock a node's folder of segments without a file in it, because the node would count such a file. Return the
    handle that releases the lock when closed. Raise a WritetimeError if another agent has it, with any state folder.
    """
    reason = f"another agent publishes and deletes the segments in {folder}: stop it first"
    return _lock(os.open(folder, os.O_RDONLY), reason)


def _lock(handle: int, reason: str) -> int:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise WritetimeError(reason) from None
    return handle


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file in one step. After a crash it has either the old content or all of the new content."""
    _replace(path, json.dumps({_CHECKSUM: _crc(content)} | content, indent=1))


def _crc(content: Any) -> int:
    return zlib.crc32(json.dumps(content).encode())


def _replace(path: Path, text: str) -> None:
    beside = path.with_name(path.name + ".new")
    with naming(path), beside.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_folder(path.parent)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the content of a JSON file; None without it. Raise a WritetimeError if it is not as it was written."""
    try:
        content = json.loads(read_regular(path))
    except FileNotFoundError:
        return None
    except ValueError as e:
        raise damaged(path, str(e)) from None
    if not isinstance(content, dict) or content.pop(_CHECKSUM, None) != _crc(content):
        raise damaged(path, _CHANGED)
    return content


def damaged(path: Path, fault: str) -> WritetimeError:
    """Return the error of a file that an agent did not leave so, with the remedy."""
    return WritetimeError(
        f"{path} is damaged ({fault}): restore all files of {path.parent} from one copy, or start with another state "
        "folder, and bring a snapshot that is taken after that into the lake with `writetime backfill`"
    )


def write_lines(path: Path, values: Iterable[Any]) -> None:
    """Write a file of lines of JSON in one step, as `write_json` does."""
    _replace(path, _lines_of(values))


def append_lines(path: Path, values: Iterable[Any]) -> None:
    """Append lines of JSON to a file. After a crash or an error it has some of them, and the last one may lack its end:
    then write it again.
    """
    with naming(path), path.open("a") as file:
        file.write(_lines_of(values))
        file.flush()
        os.fsync(file.fileno())


def _lines_of(values: Iterable[Any]) -> str:
    return "".join(f"{json.dumps([_crc(value), value])}\n" for value in values)


def _value_of(line: str) -> Any:
    found = json.loads(line)
    if not isinstance(found, list) or len(found) != 2 or found[0] != _crc(found[1]):
        raise ValueError(_CHANGED)
    return found[1]


def read_lines(path: Path) -> tuple[list[Any], bool]:
    """Return the lines of a file of lines of JSON, without a last one that lacks its end, and whether lines may be
    appended: there is such a file, and all of its lines have their ends. Raise a WritetimeError if a line is not as it
    was written.
    """
    try:
        *lines, rest = read_regular(path).decode().split("\n")
        return [_value_of(line) for line in lines], not rest
    except FileNotFoundError:
        return [], False
    except ValueError as e:
        raise damaged(path, str(e)) from None


def copy_file(source: Path, target: Path) -> None:
    """Copy a file in one step: once this returns, the whole copy is on the disk, and the source may be deleted. Raise
    a StorageError if the source is not a regular file, or became shorter.
    """
    partial = target.with_name(f"{target.name}.part")
    with naming(target), partial.open("wb") as copy:
        copy_regular(source, copy.write)
        copy.flush()
        os.fsync(copy.fileno())
    partial.replace(target)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Sync renames and deletions in a folder to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with naming(folder):
            os.fsync(handle)
    finally:
        os.close(handle)
