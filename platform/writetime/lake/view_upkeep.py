"""Deletes what a view leaves behind: files and deletion vectors that no recent version names.

delta-rs' vacuum does not know vectors, and would delete live ones.
"""

import time
from contextlib import suppress

from pyarrow import fs

from writetime.lake.live_files import has_vectors
from writetime.lake.table import LakeTable

STREAM_HOURS = 1
"""Files of `changes`, and of a view with deletion vectors, that were replaced, and commits of all parts, are deleted
after this time. A task, or another engine's query of these tables, that takes longer has to be repeated.
"""

_HOUR = 3600
# A stream deletes what it has removed within this time before the hour that all of it stays.
_WINDOW = 900


def trim_view(table: LakeTable) -> int:
    """Delete the files and vectors that refreshes removed over an hour ago; return how many. It costs time in
    proportion to what was removed since, and runs between refreshes.
    """
    now = time.time()
    due = {path for path, at in _removed(table) if 0 <= now - at - STREAM_HOURS * _HOUR < _WINDOW}
    return _delete(table, due - _needed(table, now - STREAM_HOURS * _HOUR))


def vacuum_view(table: LakeTable, hours: float) -> list[str]:
    """Delete all files that no version of the last `hours` names, including those of failed tasks; return them. In a
    view with deletion vectors, an hour counts.
    """
    until = time.time() - (STREAM_HOURS if has_vectors(table.view.load()) else hours) * _HOUR
    found = table.view.storage.filesystem().get_file_info(fs.FileSelector("", recursive=True))
    old = {
        info.path
        for info in found
        if info.is_file and not info.path.startswith("_delta_log/") and info.mtime.timestamp() <= until
    }
    gone = old - _needed(table, until)
    _delete(table, gone)
    return sorted(gone)


def _needed(table: LakeTable, until: float) -> set[str]:
    """Return the files that a version since a time (seconds) names."""
    live = table.view_files.load().files.values()
    named = {each.file.path for each in live} | {each.vector.path for each in live if each.vector}
    return {path for path in named if path} | {path for path, at in _removed(table) if at > until}


def _removed(table: LakeTable) -> list[tuple[str, float]]:
    """Return the files that were removed, including those of vectors, and when (seconds)."""
    found = []
    for path, vector, millis in table.view_files.removed():
        found.append((path, millis / 1000))
        if vector and vector.path:
            found.append((vector.path, millis / 1000))
    return found


def _delete(table: LakeTable, paths: set[str]) -> int:
    filesystem = table.view.storage.filesystem()
    deleted = 0
    for path in paths:
        with suppress(FileNotFoundError):
            filesystem.delete_file(path)
            deleted += 1
    return deleted
