"""Trees of snapshots: data folders of nodes, or copies of them, with `<keyspace>/<table>-<id>/snapshots/<tag>/` and
`<keyspace>/<table>-<id>/backups/` at some depth. The path before the keyspace names the node.

`Directories` of Apache Cassandra (5.0) has these paths: `snapshots` and `backups` (which `incremental_backups` fills
with a link to each flushed SSTable), and the table's id without dashes. ScyllaDB has the same ones.

The database itself takes snapshots before it drops or truncates a table. Their rows no longer count. Their tags are
`truncated-..` and `dropped-..` (`ColumnFamilyStore.SNAPSHOT_TRUNCATE_PREFIX` and `SNAPSHOT_DROP_PREFIX` of
Cassandra), `pre-drop-..` and `<milliseconds>-<table>` (`database::drop_table_on_all_shards` and `database::truncate` of
ScyllaDB).
"""

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from pyarrow import fs

from writetime.backups.backup import BackupFile, Found, NodeBackup, newest_table
from writetime.backups.snapshot_folder import (
    data_files,
    last_written,
    newest_write_of,
    read_manifest,
    read_snapshot,
    sstables_in,
    time_of_tag,
)
from writetime.storage.folders import Folder

_TABLE = re.compile(r"(?P<name>\w+)-(?P<id>[0-9a-f]{32})")
# Folders between the place and a keyspace: `<node>/var/lib/cassandra/data/<keyspace>`.
_DEPTH = 6


def find(place: Folder, table: str, *, with_schema: bool = True) -> Found | None:
    """Find the newest snapshot of each node, and its incremental backups; None if the place has none of the table."""
    folders = list(_table_folders(place, table))
    if not folders:
        return None
    table_id = newest_table(table, (folder.path[-32:] for _, folder in folders))
    chosen = [(node, folder) for node, folder in folders if folder.path.endswith(table_id)]
    tags = {node: _tags(folder, table) for node, folder in chosen}
    increments = {node: folder.below("backups") for node, folder in chosen}
    names = [f"{node}/snapshots/{tag}" for node, of_node in tags.items() for tag in of_node]
    # All components are listed, because an SSTable counts only once it has the last one.
    names += [f"{node}/backups/{name}" for node, folder in increments.items() for name in folder.files()]
    if not names:
        return None

    def read() -> list[NodeBackup]:
        newest = _newest(chosen, tags)
        # One schema is enough, and it costs a header per SSTable.
        last = max(newest, key=lambda node: _age_of_schema(node, *newest[node])) if with_schema and newest else None
        backups = [
            _read(node, newest[node][1] if node in newest else None, increments[node], with_schema=node == last)
            for node, _ in chosen
        ]
        return [replace(each, files=tuple(_marked(file, place) for file in each.files)) for each in backups]

    return Found(tuple(names), read)


def _table_folders(place: Folder, table: str) -> Iterator[tuple[str, Folder]]:
    """Yield the folders of the table with the names of their nodes. In a data folder, only the table's keyspace is
    listed.
    """
    keyspace, _, name = table.partition(".")
    waiting = [(place, 0)]
    while waiting:
        folder, depth = waiting.pop()
        below = folder.folders()
        tables = folder.below(keyspace).folders() if keyspace in below else []
        found = [n for n in tables if (match := _TABLE.fullmatch(n)) and match["name"] == name]
        if found:
            node = posixpath.relpath(folder.path, place.path)
            yield from ((node, folder.below(keyspace, n)) for n in found)
        elif depth < _DEPTH:
            # A folder above the keyspaces may have the name of one, such as `data`.
            waiting += [(folder.below(n), depth + 1) for n in below if not _TABLE.fullmatch(n) and n != "snapshots"]


def _tags(folder: Folder, table: str) -> list[str]:
    own = re.compile(rf"(?:truncated|dropped|pre-drop)-.*|\d+-{re.escape(table.partition('.')[2])}")
    return [tag for tag in folder.below("snapshots").folders() if not own.fullmatch(tag)]


def _newest(chosen: list[tuple[str, Folder]], tags: Mapping[str, list[str]]) -> dict[str, tuple[int, Folder]]:
    """Return the newest snapshot of each node, with its time (microseconds), or else that of its newest write."""
    taken = [(node, folder.below("snapshots", tag)) for node, folder in chosen for tag in tags[node]]
    manifests = [read_manifest(tagged) for _, tagged in taken]
    # Of the data folders of a node, one has the manifest. Nodes take a snapshot of a cluster under one tag.
    known = {
        posixpath.basename(tagged.path): manifest.taken_at
        for (_, tagged), manifest in zip(taken, manifests, strict=True)
        if manifest and manifest.taken_at
    }
    newest: dict[str, tuple[int, Folder]] = {}
    for (node, tagged), manifest in zip(taken, manifests, strict=True):
        tag = posixpath.basename(tagged.path)
        dated = manifest.taken_at if manifest and manifest.taken_at else time_of_tag(tag) or known.get(tag)
        at = dated or newest_write_of(tagged, data_files(tagged, sstables_in(tagged), node))
        if node not in newest or newest[node][0] <= at:
            newest[node] = at, tagged
    return newest


def _age_of_schema(node: str, taken_at: int, snapshot: Folder) -> tuple[bool, int, str]:
    """Return what orders snapshots by the age of their schema. Some have none."""
    return "schema.cql" in snapshot.files(), taken_at, node


def _read(node: str, newest: Folder | None, increments: Folder, *, with_schema: bool) -> NodeBackup:
    """Read the newest snapshot of a node, and the SSTables that it flushed."""
    snapshot = newest and read_snapshot(newest, node, with_schema=with_schema)
    flushed: tuple[BackupFile, ...] = ()
    flushed_at = copied_at = 0
    if increments.filesystem.get_file_info(increments.path).type == fs.FileType.Directory:
        flushed = data_files(increments, sstables_in(increments), node)
        flushed_at, copied_at = newest_write_of(increments, flushed), last_written(increments)
    if not snapshot:
        complete_at = max(flushed_at, copied_at)
        return NodeBackup(node, flushed, flushed_at, complete_at, dated=False, is_part=True, is_whole=False)
    complete_at = max(snapshot.complete_at, copied_at)
    return replace(snapshot, files=snapshot.files + flushed, complete_at=complete_at, flushed_at=flushed_at)


def _marked(file: BackupFile, place: Folder) -> BackupFile:
    """Return a file whose mark has the place, too: nodes of several places may have one name, such as `data`."""
    return replace(file, mark=file.mark and f"{file.mark} {place.shown}")
