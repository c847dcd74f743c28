"""Deletes the remains of a view: files and deletion vectors that no recent version names.

delta-rs' vacuum does not support vectors, and would delete live ones.
"""

import time
from collections.abc import Iterable
from urllib.parse import unquote

from pyarrow import fs

from writetime.core.outages import is_outage
from writetime.delta.checkpoints import read_checkpoint
from writetime.delta.commits import actions_of, read_commit
from writetime.delta.deletion_vectors import DeletionVector
from writetime.delta.storage import Storage
from writetime.iceberg.metadata_files import FOLDER
from writetime.lake.table import LakeTable

STREAM_HOURS = 1
"""Files of `changes`, and of a view with deletion vectors, that were replaced, and commits of all parts, are deleted
after this time. A task, or another engine's query of these tables, that takes longer has to be repeated.
"""

TRIMMED = "view/trimmed"
"""The number of a commit: the time (milliseconds) up to which all files that refreshes removed are deleted."""

_HOUR = 3600
DUE_SECONDS = 900
"""A refresh trims the view if removed files have been due for longer than this. After a failure, it waits as long."""


def is_trim_due(trimmed: int) -> bool:
    """Return whether a view is due for trimming, given the time (milliseconds) up to which it was trimmed."""
    return time.time() - STREAM_HOURS * _HOUR - trimmed / 1000 >= DUE_SECONDS


def trim_view(table: LakeTable, trimmed: int) -> int:
    """Delete the files and vectors that refreshes removed more than an hour ago. `trimmed` is the time (milliseconds)
    up to which they are deleted already. Return this time for the next call.

    A refresh calls this before its commit, because a checkpoint leaves out files that were removed more than two hours
    ago. The call reads one checkpoint and the commits since then, and deletes the files that are due.
    """
    until = int((time.time() - STREAM_HOURS * _HOUR) * 1000)
    # The clock may have been set back.
    after = trimmed if trimmed <= until else 0
    removed = removed_files(table)
    due = {path for path, at in removed if after < at <= until}
    delete_files(table.view.storage, due - _needed(table, removed, until))
    return until


def vacuum_view(table: LakeTable, hours: float) -> list[str]:
    """Delete all files that no version of the last `hours` names, including those of failed tasks; return them. In a
    view with deletion vectors, one hour applies.
    """
    seconds = time.time() - (STREAM_HOURS if table.view.load().has_vectors else hours) * _HOUR
    found = table.view.storage.filesystem().get_file_info(fs.FileSelector("", recursive=True))
    # Also if this program has no Iceberg tables: another one may, and files of the newest snapshot may be old.
    kept = ("_delta_log/", f"{FOLDER}/")
    old = {
        info.path
        for info in found
        if info.is_file and not info.path.startswith(kept) and info.mtime.timestamp() <= seconds
    }
    return delete_files(table.view.storage, old - _needed(table, removed_files(table), int(seconds * 1000)))


def _needed(table: LakeTable, removed: Iterable[tuple[str, int]], until: int) -> set[str]:
    """Return the files that a version since a time (milliseconds) names."""
    live = table.view.load().files
    named = {file.path for file in live} | {file.vector.path for file in live if file.vector}
    return {path for path in named if path} | {path for path, at in removed if at > until}


def removed_files(table: LakeTable) -> list[tuple[str, int]]:
    """Return the files that the log still lists as removed, with the times (milliseconds). Files that got another
    vector are among them, and so are the files of vectors.
    """
    storage, now = table.view.storage, table.view.load().version
    at, actions = read_checkpoint(storage, now, "remove")
    for version in range(at + 1, now + 1):
        if commit := read_commit(storage, version):
            actions += [each["remove"] for each in actions_of(storage, version, commit) if "remove" in each]
    found = []
    for action in actions:
        vector, millis = DeletionVector.of_action(action.get("deletionVector")), action["deletionTimestamp"] or 0
        found += [(path, millis) for path in (unquote(action["path"]), vector and vector.path) if path]
    return found


def delete_files(storage: Storage, paths: Iterable[str]) -> list[str]:
    """Delete files, and return those that existed. If one cannot be deleted, continue with the others, unless the store
    does not answer.
    """
    filesystem = storage.filesystem()
    gone: list[str] = []
    fault: OSError | None = None
    for path in sorted(paths):
        try:
            filesystem.delete_file(path)
            gone.append(path)
        except FileNotFoundError:
            # Another process was first.
            continue
        except OSError as e:
            if is_outage(e):
                raise
            fault = e
    if fault is not None:
        raise fault
    return gone
