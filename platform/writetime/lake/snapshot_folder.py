"""One folder of SSTables: a snapshot of one table by one node, as the databases leave it."""

import json
import posixpath
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from pyarrow.fs import FileInfo, FileType

from writetime.core.errors import WritetimeError
from writetime.lake.backup import BackupFile, NodeBackup
from writetime.schema.cql import parse_table
from writetime.schema.table import TableSchema
from writetime.storage.file_errors import Missing
from writetime.storage.folders import Folder
from writetime.storage.infer import infer_schema
from writetime.storage.locations import Location, exists, find_sstables


@dataclass(frozen=True)
class Manifest:
    """The contents of a snapshot's `manifest.json`: its files, the time at which it was taken (microseconds), which
    Cassandra writes since 4.1, and the table's id, which ScyllaDB writes here and Cassandra in `schema.cql`.
    """

    files: list[Any]
    taken_at: int | None
    table_id: UUID | None = None


def read_manifest(folder: Folder) -> Manifest | None:
    """Read a snapshot's `manifest.json`, as Cassandra writes it (`service.snapshot.SnapshotManifest`) or ScyllaDB
    (2026.1, with times in seconds); None if it is missing or has another form.
    """
    try:
        found = json.loads(folder.read("manifest.json"))
        if "snapshot" in found:
            table_id = UUID(found["table"]["table_id"])
            return Manifest(found["sstables"], int(found["snapshot"]["created_at"]) * 1_000_000, table_id)
        created_at = found.get("created_at")
        taken_at = created_at and round(datetime.fromisoformat(created_at).timestamp() * 1_000_000)
        return Manifest(found["files"], taken_at)
    except (Missing, AttributeError, KeyError, TypeError, ValueError):
        return None


def read_snapshot(folder: Folder, node: str = "", *, with_schema: bool = True) -> NodeBackup:
    """Read the metadata of a snapshot, without its rows.

    Args:
        folder: the folder of the snapshot, or the path of one component of an SSTable.
        node: the name of the node, if the place shows it.
        with_schema: whether to read the schema, too.

    Raises:
        WritetimeError: there are no SSTables, or no schema.
    """
    locations = list(find_sstables(folder.address))
    if not locations:
        return _of_empty_table(folder, node)
    manifest = read_manifest(replace(folder, path=locations[0].folder))
    files, newest = data_files(folder, locations, node)
    # The last file was written before the snapshot was taken.
    dated = manifest.taken_at if manifest is not None else None
    taken_at = newest if dated is None else dated
    found = NodeBackup(
        node, files, taken_at, taken_at, dated=dated is not None, lacking=manifest and _lacking(folder, manifest, files)
    )
    if not with_schema:
        return found
    # The `schema.cql` of ScyllaDB (2026.1) does not list dropped columns.
    lists_dropped = not locations[0].exists("Scylla.db")
    return replace(found, schema=_schema(locations, manifest), lists_dropped=lists_dropped)


def data_files(folder: Folder, locations: Sequence[Location], node: str) -> tuple[tuple[BackupFile, ...], int]:
    """Return the data files of SSTables, and the time at which the last of them was written (microseconds). They have
    marks only if the node is known, because two nodes may have files with the same name, size and time.
    """
    infos = folder.filesystem.get_file_info([location.path("Data.db") for location in locations])
    files = tuple(
        BackupFile(folder.address_of(info.path), location, info.size or 0, node, time_mark(info) if node else "")
        for location, info in zip(locations, infos, strict=True)
    )
    return files, max(((info.mtime_ns or 0) // 1000 for info in infos), default=0)


def _lacking(folder: Folder, manifest: Manifest, files: Sequence[BackupFile]) -> dict[str, str]:
    """Return the data files that a manifest lists and a folder does not have. Files of indexes are in other folders."""
    if folder.filesystem.get_file_info(folder.path).type != FileType.Directory:
        # One SSTable was named.
        return {}
    texts = (file.get("toc_name", "") if isinstance(file, dict) else file for file in manifest.files)
    names = {str(text).replace("-TOC.txt", "-Data.db") for text in texts}
    lacking = names - {posixpath.basename(file.location.path("Data.db")) for file in files}
    return {
        name: folder.shown_path(posixpath.join(folder.path, name))
        for name in sorted(lacking)
        if name.endswith("-Data.db") and "/" not in name
    }


def time_mark(info: FileInfo) -> str:
    """Return a mark of a file from its name and time; empty if the store has no times."""
    return "" if info.mtime_ns is None else f"{info.base_name}@{info.mtime_ns}"


def _of_empty_table(folder: Folder, node: str) -> NodeBackup:
    """Return the snapshot of a table without SSTables: its manifest lists no files."""
    manifest = read_manifest(folder)
    if manifest is not None and not manifest.files:
        with suppress(Missing):
            schema = parse_table(folder.read("schema.cql").decode())
            written_at = (folder.infos(["manifest.json"])["manifest.json"].mtime_ns or 0) // 1000
            taken_at = manifest.taken_at or written_at
            return NodeBackup(node, (), taken_at, taken_at, dated=True, schema=schema)
    raise WritetimeError(f"{folder.shown} holds no SSTables: name the folder of a table's snapshot") from None


def _schema(locations: Sequence[Location], manifest: Manifest | None) -> TableSchema:
    path = posixpath.join(locations[0].folder, "schema.cql")
    if not exists(locations[0].filesystem, path):
        raise WritetimeError(
            f"{locations[0].folder} has no schema.cql, and SSTables do not have the names of key columns: pass a file "
            "with CREATE TABLE as --schema"
        )
    schema = infer_schema(locations)
    return schema if schema.id or manifest is None else replace(schema, id=manifest.table_id)
