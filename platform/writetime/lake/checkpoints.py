"""Checkpoints of the log of a Delta table, which hold the actions of all commits up to theirs.

delta-rs writes each as one file. Other engines also write several parts, or a file that names others, its sidecars
(PROTOCOL.md, "Checkpoints": classic, multi-part and UUID-named; "V2 Spec"). `_last_checkpoint` is a hint only.
"""

import json
import re
from collections.abc import Iterator

import pyarrow.parquet as pq
from pyarrow import fs

from writetime.core.errors import plain_text
from writetime.core.outages import kind_of
from writetime.lake.commits import Action, actions_of
from writetime.lake.lake_storage import Storage

# The name of a checkpoint: its version, and for several files the part and the number of parts, or a UUID.
_NAME = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.([0-9a-f-]{36}))?\.(?:parquet|json)")
_LOG = "_delta_log"


def read_checkpoint(storage: Storage, version: int, action: str) -> tuple[int, list[Action]]:
    """Return the version of the last checkpoint up to a version, and its actions of one kind, `add` or `remove`; -1 and
    none if there is no checkpoint.

    Raises:
        WritetimeError: a file of the checkpoint cannot be read.
    """
    at, paths = _hinted(storage, version) or _listed(storage, version)
    try:
        return at, [found for path in paths for found in _actions(storage, path, action)]
    except (OSError, ValueError) as e:
        raise kind_of(e)(f"{storage.address}: its checkpoint {at} cannot be read: {plain_text(e)}") from e


def _hinted(storage: Storage, version: int) -> tuple[int, list[str]] | None:
    """Return the checkpoint that `_last_checkpoint` names, if it is a single file that exists."""
    filesystem = storage.filesystem()
    try:
        with filesystem.open_input_stream(f"{_LOG}/_last_checkpoint") as stream:
            at = json.loads(stream.read())["version"]
    except FileNotFoundError:
        return None
    path = f"{_LOG}/{at:020d}.checkpoint.parquet"
    return (at, [path]) if at <= version and filesystem.get_file_info(path).is_file else None


def _listed(storage: Storage, version: int) -> tuple[int, list[str]]:
    """Return the last checkpoint whose files are all in the log."""
    complete: dict[int, list[str]] = {}
    parts: dict[tuple[int, int], list[str]] = {}
    for info in storage.filesystem().get_file_info(fs.FileSelector(_LOG)):
        if not (match := _NAME.fullmatch(info.base_name)) or int(match[1]) > version:
            continue
        at = int(match[1])
        if match[2] is None:
            complete[at] = [info.path]
            continue
        several = parts.setdefault((at, int(match[3])), [])
        several.append(info.path)
        if len(several) == int(match[3]):
            complete.setdefault(at, several)
    at = max(complete, default=-1)
    return at, complete.get(at, [])


def _actions(storage: Storage, path: str, action: str) -> Iterator[Action]:
    """Return the actions of a file, and of its sidecars."""
    filesystem = storage.filesystem()
    if path.endswith(".json"):
        with filesystem.open_input_stream(path) as stream:
            rows = actions_of(stream.read())
    else:
        with pq.ParquetFile(path, filesystem=filesystem) as file:
            names = [name for name in (action, "sidecar") if name in file.schema_arrow.names]
            rows = file.read(names).to_pylist()
    for row in rows:
        if found := row.get(action):
            yield found
        elif sidecar := row.get("sidecar"):
            yield from _actions(storage, f"{_LOG}/_sidecars/{sidecar['path'].rpartition('/')[2]}", action)
