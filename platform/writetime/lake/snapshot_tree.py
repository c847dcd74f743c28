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
from collections.abc import Iterator
from dataclasses import replace

from pyarrow import fs

from writetime.lake.backup import BackupFile, Found, NodeBackup, newest_table
from writetime.lake.snapshot_folder import data_files, read_manifest, read_snapshot
from writetime.storage.folders import Folder
from writetime.storage.locations import find_sstables

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
        taken = {
            (_taken_at(tagged), node): tagged
            for node, folder in chosen
            for tagged in (folder.below("snapshots", tag) for tag in tags[node])
        }
        newest = {node: taken[at, node] for at, node in sorted(taken)}
        # One schema is enough, and it costs a header per SSTable.
        last = max(taken)[1] if with_schema and taken else None
        backups = [_read(node, newest.get(node), increments[node], with_schema=node == last) for node, _ in chosen]
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


def _read(node: str, newest: Folder | None, increments: Folder, *, with_schema: bool) -> NodeBackup:
    """Read the newest snapshot of a node, and the SSTables that it flushed."""
    snapshot = newest and read_snapshot(newest, node, with_schema=with_schema)
    flushed: tuple[BackupFile, ...] = ()
    flushed_at = 0
    if increments.filesystem.get_file_info(increments.path).type == fs.FileType.Directory:
        flushed, flushed_at = data_files(increments, list(find_sstables(increments.address)), node)
    if not snapshot:
        return NodeBackup(node, flushed, flushed_at, flushed_at, dated=False)
    complete_at = max(snapshot.complete_at, flushed_at)
    return replace(snapshot, files=snapshot.files + flushed, complete_at=complete_at, flushed_at=flushed_at)


def _marked(file: BackupFile, place: Folder) -> BackupFile:
    """Return a file whose mark has the place, too: nodes of several places may have one name, such as `data`."""
    return replace(file, mark=file.mark and f"{file.mark} {place.shown}")


def _taken_at(folder: Folder) -> int:
    """Return the time at which a snapshot was taken, or else at which its newest file was written (microseconds)."""
    if (manifest := read_manifest(folder)) is not None and manifest.taken_at is not None:
        return manifest.taken_at
    return max(((info.mtime_ns or 0) // 1000 for info in folder.files().values()), default=0)
