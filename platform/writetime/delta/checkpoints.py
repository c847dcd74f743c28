"""Checkpoints of the log of a Delta table, which hold the actions of all commits up to theirs.

delta-rs writes each as one file. Other engines also write several parts, or a file that names others, its sidecars
(PROTOCOL.md, "Checkpoints": classic, multi-part and UUID-named; "V2 Spec"). `_last_checkpoint` is a hint only.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow.parquet as pq
from pyarrow import fs

from writetime.core.errors import plain_text
from writetime.core.outages import kind_of
from writetime.delta.commits import Action, digest_of
from writetime.delta.parquet import fault_of
from writetime.delta.storage import Storage

# The name of a checkpoint: its version, and for several files the part and the number of parts, or a UUID.
_NAME = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.([0-9a-f-]{36}))?\.(?:parquet|json)")
_LOG = "_delta_log"
HINT = f"{_LOG}/_last_checkpoint"
"""The file that names the last checkpoint."""

# A tag in `HINT`: the digest of the checkpoint's file.
_DIGEST = "writetime.digest"
# More than any version.
_NEWEST = 1 << 62


def read_checkpoint(storage: Storage, version: int, action: str) -> tuple[int, list[Action]]:
    """Return the version of the last checkpoint up to a version, and its actions of one kind, `add` or `remove`; -1 and
    none if there is no checkpoint.

    Raises:
        WritetimeError: a file of the checkpoint cannot be read.
    """
    at, paths = _hinted(storage, version) or _listed(storage, version)
    try:
        return at, actions_in(storage, paths, action)
    except (OSError, ValueError) as e:
        fault = f"cannot be read: {plain_text(e)}"
        raise kind_of(e)(fault_of(storage, paths[0] if paths else _LOG, fault, of_log=True)) from e


def last_checkpoint(storage: Storage) -> int:
    """Return the version of the last checkpoint, -1 if there is none."""
    return (_hinted(storage, _NEWEST) or _listed(storage, _NEWEST))[0]


def _hinted(storage: Storage, version: int) -> tuple[int, list[str]] | None:
    """Return the checkpoint that `_last_checkpoint` names, if it is a single file that exists."""
    at = int(read_hint(storage).get("version", -1))
    path = checkpoint_name(at)
    return (at, [path]) if 0 <= at <= version and storage.filesystem().get_file_info(path).is_file else None


def read_hint(storage: Storage) -> dict[str, Any]:
    """Return the content of `_last_checkpoint`; nothing if it is missing or damaged, because Delta's protocol lets
    readers ignore it then.
    """
    try:
        with storage.filesystem().open_input_stream(HINT) as stream:
            found = json.loads(stream.read())
        return found if isinstance(found["version"], int) else {}
    except (FileNotFoundError, ValueError, TypeError, LookupError):
        return {}


def checkpoint_name(version: int) -> str:
    """Return the path of a checkpoint that is a single file."""
    return f"{_LOG}/{version:020d}.checkpoint.parquet"


def seal_checkpoint(storage: Storage, version: int) -> None:
    """Make a new checkpoint durable, and add its digest to `_last_checkpoint`, if this names it."""
    path, hint = checkpoint_name(version), read_hint(storage)
    storage.sync(path)
    if hint.get("version") == version:
        hint["tags"] = (hint.get("tags") or {}) | {_DIGEST: _digest_of(storage, path)}
        with storage.writing(HINT) as stream:
            stream.write(json.dumps(hint).encode())
        storage.sync(HINT)
    storage.sync(_LOG)


def is_changed(storage: Storage, version: int) -> bool:
    """Return whether `_last_checkpoint` has another digest of a checkpoint than its file."""
    hint = read_hint(storage)
    wanted = (hint.get("tags") or {}).get(_DIGEST) if hint.get("version") == version else None
    return wanted is not None and wanted != _digest_of(storage, checkpoint_name(version))


def _digest_of(storage: Storage, path: str) -> str:
    with storage.filesystem().open_input_stream(path) as stream:
        return str(digest_of(stream.read()))


def _listed(storage: Storage, version: int) -> tuple[int, list[str]]:
    """Return the last checkpoint whose files are all in the log."""
    complete = complete_checkpoints(storage)
    at = max((each for each in complete if each <= version), default=-1)
    return at, complete.get(at, [])


def complete_checkpoints(storage: Storage) -> dict[int, list[str]]:
    """Return the files of each checkpoint whose files are all in the log, by version."""
    complete: dict[int, list[str]] = {}
    parts: dict[tuple[int, int], list[str]] = {}
    for info in storage.filesystem().get_file_info(fs.FileSelector(_LOG, allow_not_found=True)):
        if not (match := _NAME.fullmatch(info.base_name)):
            continue
        at = int(match[1])
        if match[2] is None:
            complete[at] = [info.path]
            continue
        several = parts.setdefault((at, int(match[3])), [])
        several.append(info.path)
        if len(several) == int(match[3]):
            complete.setdefault(at, several)
    return complete


def actions_in(storage: Storage, paths: Iterable[str], action: str) -> list[Action]:
    """Return the actions of one kind in the files of a checkpoint.

    Raises:
        OSError, ValueError: a file is missing or damaged.
    """
    return [found for path in paths for found in _actions(storage, path, action)]


def _actions(storage: Storage, path: str, action: str) -> Iterator[Action]:
    """Return the actions of a file, and of its sidecars."""
    filesystem = storage.filesystem()
    if path.endswith(".json"):
        with filesystem.open_input_stream(path) as stream:
            rows = [json.loads(line) for line in stream.read().splitlines() if line]
    else:
        with pq.ParquetFile(path, filesystem=filesystem) as file:
            names = [name for name in (action, "sidecar") if name in file.schema_arrow.names]
            rows = file.read(names).to_pylist()
    for row in rows:
        if found := row.get(action):
            yield found
        elif sidecar := row.get("sidecar"):
            yield from _actions(storage, f"{_LOG}/_sidecars/{sidecar['path'].rpartition('/')[2]}", action)
