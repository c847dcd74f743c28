"""Backups of Scylla Manager: one place for a cluster, with each SSTable of a node once, and a manifest per backup.

From its sources (github.com/scylladb/scylla-manager, 2026): `backupspec/paths.go` and `manifest.go` have the paths and
the fields, `tags.go` the times, `pkg/service/backup/versioning.go` the suffix of files that a later backup replaced,
`worker_schema.go` and `v3/pkg/util/query/query.go` the schema.

    backup/meta/cluster/<id>/dc/<dc>/node/<id>/task_<id>_tag_sm_<time>UTC_manifest.json.gz
    backup/sst/cluster/<id>/dc/<dc>/node/<id>/keyspace/<keyspace>/table/<table>/<table id>/<component>
    backup/schema/cluster/<id>/task_<id>_tag_sm_<time>UTC_schema_with_internals.json.gz

A manifest has the extension `.tmp` until all nodes are done. It lists the files of each table without their sizes, so
the folder of the table is listed, too.
"""

import gzip
import json
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from writetime.backups.backup import BackupFile, Found, NodeBackup, newest_table, parsing, schema_of
from writetime.backups.snapshot_folder import time_mark
from writetime.core.errors import Transient, WritetimeError
from writetime.schema.table import TableSchema
from writetime.storage.file_errors import MissingFile
from writetime.storage.folders import Folder
from writetime.storage.locations import is_needed, parse_name

_CLUSTERS = ("backup", "meta", "cluster")
_NAME = re.compile(r"task_(?P<task>[0-9a-f-]{36})_tag_(?P<tag>sm_(?P<time>\d{14})UTC)_manifest\.json\.gz")


@dataclass(frozen=True)
class _Manifest:
    """The name of a manifest: its path below the place, its cluster, node and task, and the times at which its backup
    began and the manifest was written (microseconds).
    """

    path: str
    cluster: str
    dc: str
    node: str
    task: str
    tag: str
    taken_at: int
    written_at: int


@dataclass(frozen=True)
class _Entry:
    """The files of a table in a manifest."""

    manifest: _Manifest
    schema: str
    table_id: str
    files: tuple[str, ...]


def find(place: Folder, table: str, *, with_schema: bool = True) -> Found | None:
    """Find the newest backup of each node. Return None if the place has no backup of Scylla Manager.

    The place is the folder or bucket that has `backup`. To select one of several clusters, it is
    `<place>/backup/meta/cluster/<id>`.
    """
    parts = place.path.split("/")
    if tuple(parts[-4:-1]) == _CLUSTERS:
        root, clusters = place.of("/".join(parts[:-4])), [parts[-1]]
    else:
        root, clusters = place, place.below(*_CLUSTERS).folders()
    manifests = _newest(root, clusters)
    if not manifests:
        return None
    return Found(tuple(m.path for m in manifests), lambda: _read(root, manifests, table, with_schema=with_schema))


def _newest(root: Folder, clusters: list[str]) -> list[_Manifest]:
    """Return the newest manifest of each node and task. A task may leave out keyspaces, so another one may have the
    table.
    """
    newest: dict[tuple[str, str, str, str], _Manifest] = {}
    for found in _manifests(root, clusters):
        key = (found.cluster, found.dc, found.node, found.task)
        newest[key] = max(newest.get(key, found), found, key=lambda manifest: manifest.taken_at)
    return list(newest.values())


def _manifests(root: Folder, clusters: list[str]) -> Iterator[_Manifest]:
    nodes = (
        (cluster, dc, node)
        for cluster in clusters
        for dc in root.below(*_CLUSTERS, cluster, "dc").folders()
        for node in root.below(*_CLUSTERS, cluster, "dc", dc, "node").folders()
    )
    for cluster, dc, node in nodes:
        folder = (*_CLUSTERS, cluster, "dc", dc, "node", node)
        for name, info in root.below(*folder).files().items():
            if match := _NAME.fullmatch(name):
                at = datetime.strptime(match["time"], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
                times = round(at.timestamp()) * 1_000_000, (info.mtime_ns or 0) // 1000
                path = posixpath.join(*folder, name)
                yield _Manifest(path, cluster, dc, node, match["task"], match["tag"], *times)


def _read(root: Folder, manifests: list[_Manifest], table: str, *, with_schema: bool) -> list[NodeBackup]:
    newest: dict[tuple[str, str, str], list[_Entry]] = {}
    for manifest in sorted(manifests, key=lambda m: m.taken_at):
        if entries := _entries(root, manifest, table):
            newest[manifest.cluster, manifest.dc, manifest.node] = entries
    if not newest:
        raise WritetimeError(f"{root.shown} is a place of Scylla Manager, and none of its backups has {table}")
    if len(clusters := sorted({cluster for cluster, _, _ in newest})) > 1:
        places = " or ".join(root.below(*_CLUSTERS, cluster).shown for cluster in clusters)
        raise WritetimeError(f"{root.shown} has backups of {table} by several clusters: name one of them, {places}")
    table_id = newest_table(table, (entry.table_id for entries in newest.values() for entry in entries))
    chosen = [entry for entries in newest.values() for entry in entries if entry.table_id == table_id]
    last = max(chosen, key=lambda entry: entry.manifest.taken_at)
    schema = _schema(root, last, table) if with_schema else None
    return [
        NodeBackup(
            entry.manifest.node,
            tuple(_files(root, entry, table)),
            entry.manifest.taken_at,
            entry.manifest.written_at,
            dated=True,
            schema=schema if entry is last else None,
        )
        for entry in chosen
    ]


def _entries(root: Folder, manifest: _Manifest, table: str) -> list[_Entry]:
    """Read the files of a table in a manifest: an entry for each id that the table had."""
    keyspace, _, name = table.partition(".")
    with parsing(root, manifest.path, "a manifest of Scylla Manager", "remove it"):
        content = json.loads(gzip.decompress(root.read(manifest.path)))
        return [
            _Entry(manifest, content.get("schema") or "", entry["version"], tuple(entry["files"]))
            for entry in content["index"]
            if (entry["keyspace"], entry["table"]) == (keyspace, name)
        ]


def _files(root: Folder, entry: _Entry, table: str) -> list[BackupFile]:
    """Find the data files of a manifest in their folder. Raise MissingFile if one of the files does not exist, and
    Transient if a backup that is not complete yet has replaced one.
    """
    keyspace, _, name = table.partition(".")
    manifest = entry.manifest
    node = ("backup", "sst", "cluster", manifest.cluster, "dc", manifest.dc, "node", manifest.node)
    folder = root.below(*node, "keyspace", keyspace, "table", name, entry.table_id)
    there = folder.files() if entry.files else {}
    needed = {name for name in entry.files if (named := parse_name(folder.filesystem, name)) and is_needed(named[1])}
    if missing := sorted(needed - there.keys()):
        raise MissingFile(
            f"{folder.shown_path(posixpath.join(folder.path, missing[0]))} does not exist, and the manifest "
            f"{root.shown_path(posixpath.join(root.path, manifest.path))} lists it: restore it, or take another backup"
        )
    replaced = {n.rpartition(".")[0] for n in there if n.rpartition(".")[2] > manifest.tag and ".sm_" in n}
    files: list[BackupFile] = []
    for info in (there[name] for name in entry.files if name.endswith("-Data.db")):
        if info.base_name in replaced:
            raise Transient(
                f"{folder.shown_path(info.path)} was replaced by a backup that has no manifest yet: run this again "
                "when that backup is complete"
            )
        named = parse_name(folder.filesystem, info.path)
        assert named is not None
        address = folder.address_of(info.path)
        files.append(BackupFile(address, named[0], info.size or 0, manifest.node, time_mark(info)))
    return files


def _schema(root: Folder, entry: _Entry, table: str) -> TableSchema:
    """Read the output of DESCRIBE SCHEMA WITH INTERNALS, which has the table's id and the columns that were dropped.
    Raise a WritetimeError if the backup has no schema, or the schema does not have the table.
    """
    path = entry.schema
    if not path.endswith("_schema_with_internals.json.gz"):
        raise WritetimeError(
            f"the backup {entry.manifest.tag} has no schema_with_internals.json.gz, which Scylla Manager keeps from "
            "ScyllaDB 6.0 on: pass a file with CREATE TABLE as --schema"
        )
    with parsing(root, path, "a schema of Scylla Manager", "remove it"):
        rows = json.loads(gzip.decompress(root.read(path)))
        text = ";\n".join(row["cql_stmt"] for row in rows)
    return schema_of(text, table, root.below(path), entry.table_id)
