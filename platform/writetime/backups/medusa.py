"""Backups of Cassandra Medusa: a folder per node, with a folder per backup, which has a manifest.

Source: github.com/thelastpickle/cassandra-medusa (2026). `medusa/storage/node_backup.py` has the paths,
`backup_node.py` the manifest and the condition for differential backups, `index.py` the index, and `cassandra_utils.py`
the schema.

    <prefix>/<node>/<backup>/meta/manifest.json, schema.cql, tokenmap.json
    <prefix>/<node>/data/<keyspace>/<table>-<id>/<component>              differential backups share their files
    <prefix>/<node>/<backup>/data/<keyspace>/<table>-<id>/<component>     a full backup has its own
    <prefix>/index/backup_index/<backup>/started_<node>_<seconds>.timestamp, finished_<node>_<seconds>.timestamp

The manifest is written last, so a backup without one is not complete. It has the path, size and MD5 of each file (in
some stores another checksum, or none for files of an earlier backup). The path begins at the bucket.
"""

import json
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyarrow import fs

from writetime.backups.backup import BackupFile, Found, NodeBackup, newest_table, parsing, schema_of
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError
from writetime.storage.file_errors import MissingFile
from writetime.storage.folders import Folder
from writetime.storage.locations import is_needed, parse_name

_INDEX, _DATA = "index", "data"
_MANIFEST, _REMOVAL = "a manifest of Cassandra Medusa", "delete the backup with `medusa delete-backup`"
_TABLE = re.compile(r"(?P<name>\w+)-(?P<id>[0-9a-f]{32})")


@dataclass(frozen=True)
class _Backup:
    """A complete backup of a node. Its times are seconds, by the index: it was begun at each of `started`, and its
    manifest was written at `finished`, if the index has this. `copied_at` is the modification time of the manifest
    (microseconds), which a copy of the place changes.
    """

    node: str
    name: str
    started: tuple[int, ...] = ()
    finished: int | None = None
    copied_at: int = 0

    @property
    def meta(self) -> str:
        return f"{self.node}/{self.name}/meta"

    @property
    def manifest(self) -> str:
        return f"{self.meta}/manifest.json"

    @property
    def time(self) -> int | None:
        """A second at which the backup was in progress. A node takes one backup after the other."""
        return max(self.started, default=None) if self.finished is None else self.finished

    @property
    def order(self) -> tuple[float, str]:
        """The order of the backups of a node. Without an index, it is a guess, which `_read` refuses."""
        return (self.copied_at / 1e6 if self.time is None else self.time), self.name


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
    manifests = place.infos([_Backup(node, backup).manifest for node, backup in names])
    complete: dict[str, list[str]] = {}
    for node, name in names:
        if _Backup(node, name).manifest in manifests:
            complete.setdefault(name, []).append(node)
    if not complete:
        return None
    of_nodes: dict[str, list[_Backup]] = {}
    for name, nodes in complete.items():
        for node, times in _times(place, name, nodes).items():
            copied_at = (manifests[_Backup(node, name).manifest].mtime_ns or 0) // 1000
            of_nodes.setdefault(node, []).append(_Backup(node, name, *times, copied_at))
    newest = {node: max(backups, key=lambda b: b.order) for node, backups in of_nodes.items()}
    return Found(
        tuple(backup.manifest for backup in newest.values()),
        lambda: _read(place, of_nodes, list(newest.values()), table, with_schema=with_schema),
    )


def _times(place: Folder, name: str, nodes: Sequence[str]) -> dict[str, tuple[tuple[int, ...], int | None]]:
    """Return the seconds at which the backups of a name were begun and finished, by their nodes, from the index.

    A backup that was begun again has several entries. `medusa build-indices` adds entries with the times of the files,
    which a copy of the place has changed, so the first entry of the end counts.
    """

    def times(kind: str, node: str, infos: Sequence[fs.FileInfo]) -> tuple[int, ...]:
        pattern = re.compile(rf"{kind}_{re.escape(node)}_(\d+)\.timestamp")
        return tuple(int(match[1]) for info in infos if (match := pattern.fullmatch(info.base_name)))

    index = place.below(_INDEX, "backup_index", name)
    found = index.listed(lambda infos: all(times("finished", node, infos) for node in nodes))
    return {node: (times("started", node, found), min(times("finished", node, found), default=None)) for node in nodes}


def _read(
    place: Folder, of_nodes: Mapping[str, list[_Backup]], backups: list[_Backup], table: str, *, with_schema: bool
) -> list[NodeBackup]:
    _require_times(place, of_nodes, backups)
    sections = {backup: _sections(place, backup, table) for backup in backups}
    ids = {table_id for of_backup in sections.values() for table_id in of_backup}
    if not ids:
        raise WritetimeError(f"{place.shown} is a place of Cassandra Medusa, and none of its backups has {table}")
    table_id = newest_table(table, ids)
    chosen = {backup: objects[table_id] for backup, objects in sections.items() if table_id in objects}
    last = max(chosen, key=lambda backup: backup.order)
    cql = f"{last.meta}/schema.cql"
    schema = schema_of(place.read(cql).decode(), table, place.below(cql), table_id) if with_schema else None
    missing = _missing(place, last, {backup.node for backup in backups})
    return [
        NodeBackup(
            backup.node,
            _files(place, backup, objects),
            # The first one is not later than any of the files.
            min(backup.started) * 1_000_000,
            # Without an entry of the end, the time of the manifest. A copy makes it later, which only shortens history.
            backup.copied_at if backup.finished is None else backup.finished * 1_000_000,
            dated=True,
            schema=schema if backup is last else None,
            # The driver that writes it does not list dropped columns.
            lists_dropped=False,
            missing_nodes=missing if backup is last else (),
        )
        for backup, objects in chosen.items()
    ]


def _require_times(place: Folder, of_nodes: Mapping[str, list[_Backup]], chosen: list[_Backup]) -> None:
    """Refuse backups without times in the index: a copy of the place changes the times of all files."""
    unordered = [b for backups in of_nodes.values() if len(backups) > 1 for b in backups if b.time is None]
    for backup in unordered + [backup for backup in chosen if not backup.started]:
        folder = place.below(_INDEX, "backup_index", backup.name)
        raise WritetimeError(
            f"{folder.shown} has no file started_{backup.node}_<seconds>.timestamp, so it is not known when the backup "
            f"{backup.name} was taken: copy the folder {_INDEX} of the place, too, or delete the backup with `medusa "
            "delete-backup`"
        )


def _sections(place: Folder, backup: _Backup, table: str) -> dict[str, list[dict[str, Any]]]:
    """Read the files of a table that a manifest lists, by the table's ids, without the files of its indexes."""
    keyspace, _, name = table.partition(".")
    found: dict[str, list[dict[str, Any]]] = {}
    text = place.read(backup.manifest)
    with parsing(place, backup.manifest, _MANIFEST, _REMOVAL):
        content = json.loads(text)
        if not isinstance(content, list):
            raise TypeError("a list was expected")
        for section in content:
            match = _TABLE.fullmatch(section["columnfamily"])
            if section["keyspace"] != keyspace or match is None or match["name"] != name:
                continue
            own = [o for o in section["objects"] if posixpath.basename(posixpath.dirname(o["path"])) == match[0]]
            # Each of these fields is read later.
            found.setdefault(match["id"], []).extend({k: o[k] for k in ("path", "size", "MD5")} for o in own)
    return found


def _files(place: Folder, backup: _Backup, objects: Sequence[dict[str, Any]]) -> tuple[BackupFile, ...]:
    """Return the data files of a manifest. Raise MissingFile if a file that the readers need does not exist, or has
    another size than in the manifest.
    """
    paths: dict[str, dict[str, Any]] = {}
    with parsing(place, backup.manifest, _MANIFEST, _REMOVAL):
        for found in objects:
            parts = found["path"].split("/")
            if backup.node not in parts:
                raise KeyError(found["path"])
            paths[posixpath.join(place.path, *parts[parts.index(backup.node) :])] = found
    folders = {posixpath.dirname(path) for path in paths}
    there = {info.path: info.size for folder in folders for info in place.of(folder).files().values()}
    files: list[BackupFile] = []
    for path, found in paths.items():
        named = parse_name(place.filesystem, path)
        if named is None or not is_needed(named[1]):
            continue
        if there.get(path) != found["size"]:
            raise MissingFile(
                f"{place.shown_path(path)} does not exist or has not the {pluralize(found['size'], 'byte')} that the "
                f"manifest {place.shown_path(posixpath.join(place.path, backup.manifest))} lists: copy it again, or "
                "take another backup"
            )
        if named[1] == "Data.db":
            mark = f"md5:{found['MD5']}" if found["MD5"] else ""
            files.append(BackupFile(place.address_of(path), named[0], found["size"], backup.node, mark))
    return tuple(files)


def _missing(place: Folder, last: _Backup, nodes: set[str]) -> tuple[str, ...]:
    """Return the nodes of the cluster that have no backup, by the map of tokens of the last backup."""
    path = f"{last.meta}/tokenmap.json"
    if not place.infos([path]):
        return ()
    text = place.read(path)
    with parsing(place, path, "a map of tokens of Cassandra Medusa", _REMOVAL):
        return tuple(sorted(set(json.loads(text)) - nodes))
