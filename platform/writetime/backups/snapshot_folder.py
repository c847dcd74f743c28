"""One folder of SSTables: a snapshot of one table by one node, as the databases leave it."""

import json
import posixpath
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from pyarrow.fs import FileInfo, FileType

from writetime.backups.backup import BackupFile, NodeBackup
from writetime.core.errors import Transient, WritetimeError
from writetime.schema.cql import parse_table
from writetime.schema.table import TableSchema
from writetime.storage.file_errors import MissingFile
from writetime.storage.folders import Folder
from writetime.storage.infer import infer_schema
from writetime.storage.locations import Location, exists, find_sstables
from writetime.storage.statistics import newest_write

# The tags that `writetime snapshot` and the agent choose, and those that nodetool chooses if none is given: the time in
# milliseconds. Both are chosen right before the snapshot is taken.
_OUR_TAG = re.compile(r"writetime-(\d{8}T\d{6})-[0-9a-f]{8}")
_TAG_OF_NODETOOL = re.compile(r"\d{13}")


@dataclass(frozen=True)
class Manifest:
    """The contents of a snapshot's `manifest.json`: the names of its data files, the time at which it was taken
    (microseconds), which Cassandra writes since 4.1, and the table's id, which ScyllaDB writes here and Cassandra in
    `schema.cql`.
    """

    files: frozenset[str]
    taken_at: int | None
    table_id: UUID | None = None


def read_manifest(folder: Folder) -> Manifest | None:
    """Read a snapshot's `manifest.json`, as Cassandra writes it (`service.snapshot.SnapshotManifest`) or ScyllaDB
    (2026.1, with times in seconds); None if it is missing. Raise Transient if it is not a whole manifest: the snapshot
    may be a partial copy.
    """
    path = posixpath.join(folder.path, "manifest.json")
    try:
        return _manifest(json.loads(folder.read("manifest.json")))
    except MissingFile:
        return None
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as e:
        raise Transient(
            f"{folder.shown_path(path)} is not the manifest of a snapshot ({type(e).__name__}: {e}), so it is not "
            "known which SSTables the snapshot has: if it is being copied, run this again later; otherwise copy the "
            "snapshot again, or take another one"
        ) from None


def _manifest(found: dict[str, Any]) -> Manifest:
    if "snapshot" in found:
        names = [file["toc_name"] for file in found["sstables"]]
        table_id = UUID(found["table"]["table_id"])
        return Manifest(_data_names(names), int(found["snapshot"]["created_at"]) * 1_000_000, table_id)
    if not isinstance(found["files"], list):
        raise TypeError("a list of files was expected")
    created_at = found.get("created_at")
    taken_at = round(datetime.fromisoformat(created_at).timestamp() * 1_000_000) if created_at else None
    return Manifest(_data_names(found["files"]), taken_at)


def _data_names(names: Sequence[str]) -> frozenset[str]:
    """Return the data files of a table's own SSTables. Those of its secondary indexes are in folders below."""
    texts = (str.replace(name, "-TOC.txt", "-Data.db") for name in names)
    return frozenset(text for text in texts if text.endswith("-Data.db") and "/" not in text)


def time_of_tag(tag: str) -> int | None:
    """Return the time in a snapshot's tag (microseconds), if the tag was made from it."""
    if match := _OUR_TAG.fullmatch(tag):
        with suppress(ValueError):
            return round(datetime.strptime(match[1], "%Y%m%dT%H%M%S").replace(tzinfo=UTC).timestamp()) * 1_000_000
    return int(tag) * 1000 if _TAG_OF_NODETOOL.fullmatch(tag) else None


def read_snapshot(folder: Folder, node: str = "", *, with_schema: bool = True) -> NodeBackup:
    """Read the metadata of a snapshot, without its rows. Raise a WritetimeError if there are no SSTables, or no schema,
    and Transient if the snapshot is not complete.

    `folder` is that of the snapshot, or the path of one component of an SSTable. `node` is the name of the node, if the
    place shows it.
    """
    locations = sstables_in(folder)
    is_folder = folder.filesystem.get_file_info(folder.path).type == FileType.Directory
    of_sstables = folder if is_folder else folder.of(locations[0].folder)
    manifest = read_manifest(of_sstables)
    if not locations and manifest is None:
        raise WritetimeError(f"{folder.shown} holds no SSTables: name the folder of a table's snapshot")
    files = data_files(folder, locations, node)
    lacking, unlisted = _compared(folder, manifest, files) if is_folder else ({}, {})
    dated = manifest.taken_at if manifest and manifest.taken_at else time_of_tag(posixpath.basename(of_sstables.path))
    taken_at = newest_write_of(of_sstables, files) if dated is None else dated
    complete_at = manifest.taken_at if manifest and manifest.taken_at else last_written(of_sstables)
    is_part = is_folder and manifest is None
    return NodeBackup(
        *(node, files, taken_at, max(taken_at, complete_at)),
        dated=dated is not None,
        schema=_schema(of_sstables, locations, manifest, is_part=is_part) if with_schema else None,
        # The `schema.cql` of ScyllaDB (2026.1) does not list dropped columns.
        lists_dropped=not (with_schema and locations and locations[0].exists("Scylla.db")),
        is_part=is_part,
        is_whole=is_folder and manifest is not None,
        lacking=lacking,
        unlisted=unlisted,
    )


def sstables_in(folder: Folder) -> list[Location]:
    """Return the SSTables in a folder, or that of a component's path. Raise Transient if one of them is not complete,
    because a program may be copying it, and a WritetimeError if there is no such folder, or as `find_sstables`.
    """
    try:
        return list(find_sstables(folder.address))
    except MissingFile as e:
        if folder.filesystem.get_file_info(folder.path).type == FileType.NotFound:
            raise
        raise Transient(str(e)) from None


def data_files(folder: Folder, locations: Sequence[Location], node: str) -> tuple[BackupFile, ...]:
    """Return the data files of SSTables. They have marks only if the node is known, because two nodes may have files
    with the same name, size and time.
    """
    infos = folder.filesystem.get_file_info([location.path("Data.db") for location in locations])
    return tuple(
        BackupFile(folder.address_of(info.path), location, info.size or 0, node, time_mark(info) if node else "")
        for location, info in zip(locations, infos, strict=True)
    )


def newest_write_of(folder: Folder, files: Sequence[BackupFile]) -> int:
    """Return the newest write time in the SSTables of a folder (microseconds), 0 if there are none. It stands for the
    time of a snapshot that is not known, because the snapshot is not older. A copy changes the times of the files.
    """
    newest = max((newest_write(file.location) for file in files), default=0)
    # A client may have given a write a time in the future.
    return max(0, min(newest, last_written(folder) or time.time_ns() // 1000))


def last_written(folder: Folder) -> int:
    """Return the time at which the last file of a folder was written (microseconds), or copied."""
    return max(((info.mtime_ns or 0) // 1000 for info in folder.files().values()), default=0)


def _compared(
    folder: Folder, manifest: Manifest | None, files: Sequence[BackupFile]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the files that a manifest lists and a folder lacks, and those that it does not list, by their names."""
    there = {posixpath.basename(file.location.path("Data.db")) for file in files}
    listed = manifest.files if manifest else frozenset()

    def shown(names: Iterable[str]) -> dict[str, str]:
        return {name: folder.shown_path(posixpath.join(folder.path, name)) for name in sorted(names)}

    return shown(listed - there), shown(there - listed)


def time_mark(info: FileInfo) -> str:
    """Return a mark of a file from its name and time; empty if the store has no times."""
    return "" if info.mtime_ns is None else f"{info.base_name}@{info.mtime_ns}"


def _schema(
    folder: Folder, locations: Sequence[Location], manifest: Manifest | None, *, is_part: bool
) -> TableSchema | None:
    """Return the schema of a snapshot. Of the data folders of a node, one has it."""
    if not exists(folder.filesystem, posixpath.join(folder.path, "schema.cql")):
        if is_part:
            return None
        raise WritetimeError(
            f"{folder.shown} has no schema.cql, and SSTables do not have the names of key columns: pass a file "
            "with CREATE TABLE as --schema"
        )
    schema = infer_schema(locations) if locations else parse_table(folder.read("schema.cql").decode())
    return schema if schema.id or manifest is None else replace(schema, id=manifest.table_id)
