"""Backups of Cassandra Medusa: a folder per node, with a folder per backup, which has a manifest.

Source: github.com/thelastpickle/cassandra-medusa (2026). `medusa/storage/node_backup.py` has the paths,
`backup_node.py` the manifest and the condition for differential backups, `index.py` the index, and `cassandra_utils.py`
the schema.

    <prefix>/<node>/<backup>/meta/manifest.json, schema.cql, tokenmap.json
    <prefix>/<node>/data/<keyspace>/<table>-<id>/<component>              differential backups share their files
    <prefix>/<node>/<backup>/data/<keyspace>/<table>-<id>/<component>     a full backup has its own
    <prefix>/index/backup_index/<backup>/started_<node>_<seconds>.timestamp

The manifest is written last, so a backup without one is not complete. It has the path, size and MD5 of each file (in
some stores another checksum, or none for files of an earlier backup). The path begins at the bucket.
"""

import json
import posixpath
import re
from dataclasses import dataclass
from typing import Any

from writetime.core.errors import WritetimeError
from writetime.lake.backup import BackupFile, Found, NodeBackup, newest_table, schema_of
from writetime.schema.table import TableSchema
from writetime.storage.folders import Folder
from writetime.storage.locations import parse_name

_INDEX, _DATA = "index", "data"
_TABLE = re.compile(r"(?P<name>\w+)-(?P<id>[0-9a-f]{32})")


@dataclass(frozen=True)
class _Backup:
    """A complete backup of a node. `finished_at` is the time at which its manifest was written (nanoseconds)."""

    node: str
    name: str
    finished_at: int

    @property
    def meta(self) -> str:
        return f"{self.node}/{self.name}/meta"

    @property
    def manifest(self) -> str:
        return f"{self.meta}/manifest.json"


def find(place: Folder, table: str, *, with_schema: bool = True) -> Found | None:
    """Find the newest complete backup of each node. Return None if the place (the folder of a prefix) has no backup of
    Medusa.
    """
    names = [
        (node, backup)
        for node in place.folders()
        if node != _INDEX
        for backup in place.below(node).folders()
        if backup != _DATA
    ]
    manifests = place.infos([_Backup(node, backup, 0).manifest for node, backup in names])
    newest: dict[str, _Backup] = {}
    for node, name in names:
        if info := manifests.get(_Backup(node, name, 0).manifest):
            found = _Backup(node, name, info.mtime_ns or 0)
            newest[node] = max(newest.get(node, found), found, key=lambda b: (b.finished_at, b.name))
    if not newest:
        return None
    backups = list(newest.values())
    return Found(tuple(b.manifest for b in backups), lambda: _read(place, backups, table, with_schema=with_schema))


def _read(place: Folder, backups: list[_Backup], table: str, *, with_schema: bool) -> list[NodeBackup]:
    sections = {backup: _sections(place, backup, table) for backup in backups}
    ids = {table_id for of_backup in sections.values() for table_id in of_backup}
    if not ids:
        raise WritetimeError(f"{place.shown} is a place of Cassandra Medusa, and none of its backups has {table}")
    table_id = newest_table(table, ids)
    chosen = {backup: objects[table_id] for backup, objects in sections.items() if table_id in objects}
    started = _started(place, list(chosen))
    last = max(chosen, key=lambda backup: backup.finished_at)
    schema = _schema(place, last, table, table_id) if with_schema else None
    missing = _missing(place, last, {backup.node for backup in backups})
    return [
        NodeBackup(
            backup.node,
            tuple(_file(place, backup, found) for found in objects if found["path"].endswith("-Data.db")),
            started[backup],
            backup.finished_at // 1000,
            dated=True,
            schema=schema if backup is last else None,
            # The driver that writes it does not list dropped columns.
            lists_dropped=False,
            missing_nodes=missing if backup is last else (),
        )
        for backup, objects in chosen.items()
    ]


def _sections(place: Folder, backup: _Backup, table: str) -> dict[str, list[dict[str, Any]]]:
    """Read the files of a table that a manifest lists, by the table's ids, without the files of its indexes."""
    keyspace, _, name = table.partition(".")
    found: dict[str, list[dict[str, Any]]] = {}
    content = _json(place, backup.manifest, "manifest")
    if not isinstance(content, list):
        raise _corrupt(place, backup.manifest, "manifest", TypeError("a list was expected"))
    try:
        for section in content:
            match = _TABLE.fullmatch(section["columnfamily"])
            if section["keyspace"] != keyspace or match is None or match["name"] != name:
                continue
            own = [o for o in section["objects"] if posixpath.basename(posixpath.dirname(o["path"])) == match[0]]
            # Each of these fields is read later.
            found.setdefault(match["id"], []).extend({k: o[k] for k in ("path", "size", "MD5")} for o in own)
    except (KeyError, TypeError, AttributeError) as e:
        raise _corrupt(place, backup.manifest, "manifest", e) from None
    return found


def _json(place: Folder, path: str, what: str) -> Any:
    try:
        return json.loads(place.read(path))
    except ValueError as e:
        raise _corrupt(place, path, what, e) from None


def _corrupt(place: Folder, path: str, what: str, fault: Exception) -> WritetimeError:
    return WritetimeError(
        f"{place.shown_path(posixpath.join(place.path, path))} is not a {what} of Cassandra Medusa "
        f"({type(fault).__name__}: {fault}): restore this file, or delete the backup with `medusa delete-backup`, so "
        "that the previous backup is used"
    )


def _file(place: Folder, backup: _Backup, found: dict[str, Any]) -> BackupFile:
    parts = found["path"].split("/")
    if backup.node not in parts:
        raise _corrupt(place, backup.manifest, "manifest", KeyError(found["path"]))
    path = posixpath.join(place.path, *parts[parts.index(backup.node) :])
    named = parse_name(place.filesystem, path)
    assert named is not None
    mark = f"md5:{found['MD5']}" if found["MD5"] else ""
    return BackupFile(place.address_of(path), named[0], found["size"], backup.node, mark)


def _started(place: Folder, backups: list[_Backup]) -> dict[_Backup, int]:
    """Return the time (microseconds) at which each backup began, from the index. Without an index, return the time at
    which its schema was written, which is before the snapshot.
    """
    names = {b.name: set(place.below(_INDEX, "backup_index", b.name).files()) for b in backups}
    schemas = place.infos([f"{b.meta}/schema.cql" for b in backups])
    found = {}
    for backup in backups:
        pattern = re.compile(rf"started_{re.escape(backup.node)}_(\d+)\.timestamp")
        times = [int(match[1]) for name in names[backup.name] if (match := pattern.fullmatch(name))]
        written = schemas.get(f"{backup.meta}/schema.cql")
        if not times and written is None:
            raise WritetimeError(
                f"{place.shown_path(posixpath.join(place.path, backup.meta))} has no schema.cql, so the time of the "
                "backup is not known: restore this file, or delete the backup with `medusa delete-backup`"
            )
        # A backup that was started again has several entries. The first one is not later than any of its files.
        found[backup] = min(times) * 1_000_000 if times else (written.mtime_ns or 0) // 1000 if written else 0
    return found


def _schema(place: Folder, backup: _Backup, table: str, table_id: str) -> TableSchema:
    path = f"{backup.meta}/schema.cql"
    return schema_of(place.read(path).decode(), table, place.below(path), table_id)


def _missing(place: Folder, last: _Backup, nodes: set[str]) -> tuple[str, ...]:
    """Return the nodes of the cluster that have no backup, by the map of tokens of the last backup."""
    path = f"{last.meta}/tokenmap.json"
    if not place.infos([path]):
        return ()
    return tuple(sorted(set(_json(place, path, "map of tokens")) - nodes))
