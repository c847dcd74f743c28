"""Finds SSTables that were moved into the folders of captured tables. No segment has their rows.

`nodetool import` moves files into a table's folder, and `nodetool refresh` gives new names to files that an operator
put there (`SSTableImporter`). A flush, a compaction and a stream write the file in the folder. A move keeps the
modification time of `Data.db`, and sets its change time. So a new name was moved there in two cases:

- The file was written before the last look at the folder.
- The file was changed after it was written, and has no other link. A link for a snapshot or an incremental backup also
  changes a file. It may be deleted again, but then it also changed the folder of the snapshots or backups.

Files that `nodetool import --copy-data` copies are not found.
"""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from writetime.capture.node_schemas import NodeTable

# Between two looks.
_SECONDS = 0.1
# Looks take at most this share of the time.
_SHARE = 0.01
# The kernel's time for files may be that of its last tick.
_CLOCK_ERROR_NS = 50_000_000


@dataclass(frozen=True)
class _Folder:
    """The names in a folder of a table, its modification time, and the time of the last look (nanoseconds)."""

    names: frozenset[str]
    modified: int
    looked_at: int


class Imports:
    """The folders of captured tables, as of the last look. A look costs one system call per table, and lists only the
    folders that have changed.
    """

    def __init__(self) -> None:
        self._folders: dict[Path, _Folder] = {}
        self._next = 0.0

    def look(
        self, data_folders: Sequence[str], tables: Sequence[NodeTable], *, always: bool
    ) -> Iterator[tuple[NodeTable, str]]:
        """Yield tables with the path of an SSTable that was moved into its folder since the last look. Do nothing if
        the last look was just now, unless `always`.
        """
        if not always and time.monotonic() < self._next:
            return
        began = time.monotonic()
        folders = {Path(f) / t.keyspace / f"{t.name}-{t.id.hex}": t for f in data_folders for t in tables}
        for path, table in folders.items():
            before = self._folders.get(path)
            if (present := _look(path, before)) is None:
                continue
            if before is not None and (moved := _moved_in(path, before, present)) is not None:
                yield table, moved
            # The caller has recorded it.
            self._folders[path] = present
        self._folders = {path: self._folders[path] for path in folders if path in self._folders}
        now = time.monotonic()
        self._next = now + max(_SECONDS, (now - began) / _SHARE)


def _look(path: Path, before: _Folder | None) -> _Folder | None:
    """Return what a folder has now; None if it cannot be read."""
    now = time.time_ns()
    try:
        modified = path.stat().st_mtime_ns
        if before is not None and before.modified == modified:
            return replace(before, looked_at=now)
        names = frozenset(name for name in os.listdir(path) if name.endswith("-Data.db"))
    except OSError:
        # The table was dropped, or the agent may not read the node's files.
        return None
    # A change just after this look may leave the modification time as it is.
    return _Folder(names, modified if now - modified > _CLOCK_ERROR_NS else 0, now)


def _moved_in(path: Path, before: _Folder, now: _Folder) -> str | None:
    """Return the path of a file that is new, and was not written here."""
    for name in now.names - before.names:
        try:
            found = (path / name).stat()
        except OSError:
            # For example, a compaction has deleted it.
            continue
        written = found.st_mtime_ns + _CLOCK_ERROR_NS
        is_changed = found.st_nlink == 1 and found.st_ctime_ns > written and not _is_linked_since(path, written)
        if written < before.looked_at or is_changed:
            return str(path / name)
    return None


def _is_linked_since(path: Path, written: int) -> bool:
    """Return whether links for snapshots or backups may have been made or deleted after a time."""
    for folder in (path / "snapshots", path / "backups"):
        try:
            if folder.stat().st_mtime_ns + 2 * _CLOCK_ERROR_NS >= written:
                return True
        except FileNotFoundError:
            continue
    return False
