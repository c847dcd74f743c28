"""Finds damaged files in the log of a Delta table, and ends the log before them. A killed commit leaves none (see
`commits.put_new`).

delta-rs counts an empty commit as one without actions, and panics at others that it cannot read.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import count

from pyarrow import fs

from writetime.core.errors import Transient, WritetimeError
from writetime.delta.checkpoints import (
    HINT,
    actions_in,
    checkpoint_name,
    complete_checkpoints,
    is_changed,
    last_checkpoint,
    read_hint,
)
from writetime.delta.commits import actions_of, commit_name, read_commit
from writetime.delta.parquet import Unreadable, fault_of
from writetime.delta.storage import Storage

_LOG = "_delta_log"
_VERSION = re.compile(r"(\d{20})\.(?:json|checkpoint\..*)")
_SET_ASIDE = ".damaged"


def require_sound_log(storage: Storage) -> None:
    """Read the last checkpoint and the commits since then, which delta-rs reads to open a table.

    Raises:
        Unreadable: one of them is damaged.
    """
    at = last_checkpoint(storage)
    if is_changed(storage, at):
        raise Unreadable(fault_of(storage, checkpoint_name(at), "is changed", of_log=True))
    for _ in _sound_versions(storage, at + 1):
        pass


def fault_in_log(storage: Storage) -> str | None:
    """Return why delta-rs cannot open a table, with the file and the remedy; None if this is not in its log."""
    checkpoints = complete_checkpoints(storage)
    at = max(checkpoints, default=-1)
    if at >= 0 and not _is_sound(storage, at, checkpoints[at]):
        return fault_of(storage, checkpoints[at][0], "is damaged", of_log=True)
    hint = read_hint(storage).get("version")
    if hint is not None and hint not in checkpoints:
        return fault_of(storage, checkpoint_name(hint), f"does not exist, and {HINT} names it", of_log=True)
    versions = {int(name[:20]) for name in _names(storage) if _VERSION.fullmatch(name) and name.endswith(".json")}
    gap = next((v for v in range(at + 1, max(versions, default=-1)) if v not in versions), None)
    return None if gap is None else fault_of(storage, commit_name(gap), "does not exist", of_log=True)


def repair_log(storage: Storage) -> int:
    """End a log before its first damaged or missing commit, if delta-rs needs this to open the table. Files that are
    damaged, and all later ones, get other names, so that readers ignore them. Return the number of the commits that the
    log loses, as far as their files exist.

    The programs that follow the table must be stopped.

    Raises:
        WritetimeError: no version can be read.
    """
    names = _names(storage)
    versions = {name: int(match[1]) for name in names if (match := _VERSION.fullmatch(name))}
    checkpoints = complete_checkpoints(storage)
    sound = {at for at, paths in checkpoints.items() if _is_sound(storage, at, paths)}
    ends = {start: _end(storage, start) for start in {-1, *sound}}
    end = max(ends.values())
    if end < 0:
        whole = "restore it, or load the table again, as docs/backup.md describes"
        raise WritetimeError(f"{storage.address} has no version that can be read: {whole}")
    damaged = {path.rpartition("/")[2] for at in checkpoints.keys() - sound for path in checkpoints[at]}
    for name in sorted(names):
        # delta-rs trusts the name of the last checkpoint.
        if versions.get(name, -1) > end or name in damaged or name == "_last_checkpoint":
            storage.filesystem().move(f"{_LOG}/{name}", f"{_LOG}/{name}{_SET_ASIDE}")
    return sum(version > end and name.endswith(".json") for name, version in versions.items())


def _names(storage: Storage) -> set[str]:
    found = storage.filesystem().get_file_info(fs.FileSelector(_LOG, allow_not_found=True))
    return {info.base_name for info in found if info.is_file}


def _is_sound(storage: Storage, version: int, paths: list[str]) -> bool:
    try:
        return bool(actions_in(storage, paths, "metaData")) and not is_changed(storage, version)
    except Transient:
        raise
    except (OSError, ValueError):
        return False


def _end(storage: Storage, start: int) -> int:
    """Return the last version that can be read from a checkpoint on, or from the first commit on (-1)."""
    with suppress(Unreadable):
        for version in _sound_versions(storage, start + 1):
            start = version
    return start


def _sound_versions(storage: Storage, start: int) -> Iterator[int]:
    """Yield the versions from one on, up to the first whose commit does not exist.

    Raises:
        Unreadable: a commit is damaged.
    """
    for version in count(start):
        commit = read_commit(storage, version)
        if commit is None:
            return
        actions_of(storage, version, commit)
        yield version
