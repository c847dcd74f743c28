"""Backfill: it appends the SSTables of snapshots and backups, of one or many nodes, to the changes of a lake table.

It works by bucket. A bucket is a token range, so it is read from each SSTable at its position in the index. The
positions of all buckets are found first, so that each index is read once, and not once per bucket. Each bucket is its
own transaction, and a bucket that cannot be read does not stop the others. So only failed buckets run again, and
SSTables that a bucket has are not read again (`backfilled`).
Replicas need no special handling: the merge keeps one version of each cell.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa

from writetime.backups import medusa, scylla_manager, snapshot_tree
from writetime.backups.backup import BackupFile, Found, NodeBackup
from writetime.backups.snapshot_folder import read_snapshot
from writetime.clients.database import DRIVER_FAULTS, connect, is_without_answer
from writetime.core.config import Settings
from writetime.core.counts import pluralize
from writetime.core.errors import Transient, WritetimeError, reason_of
from writetime.core.instants import instant_text
from writetime.core.outages import is_outage
from writetime.delta.bucketed_table import ERASED
from writetime.delta.buckets import token_range
from writetime.delta.parquet import WrittenFile
from writetime.files.merging import CaughtTask, Runner
from writetime.lake.backfilled import BackfillRecord, SSTableId, delete_old_records
from writetime.lake.changes import ChangeWriter
from writetime.lake.evolution import join_schemas
from writetime.lake.history import raise_history
from writetime.lake.horizon import (
    MAX_SNAPSHOT_SKEW,
    raise_complete_snapshot,
    raise_snapshot,
    registered_sources,
    require_newer,
    truncations,
)
from writetime.lake.state import Staged, erased_of, generation_of
from writetime.lake.table import GENERATION, LakeTable
from writetime.schema.system import read_schema
from writetime.schema.table import TableSchema
from writetime.storage.batch import Origin
from writetime.storage.folders import Folder, Seen
from writetime.storage.locations import parse_name, resolve, without_secrets
from writetime.storage.split import Cut, Split
from writetime.storage.sstable import SSTable

_LAYOUTS = (scylla_manager.find, medusa.find, snapshot_tree.find)


@dataclass(frozen=True)
class SnapshotFiles:
    """The SSTables of snapshots or backups of one table.

    All times are in microseconds. The last snapshot was taken between `taken_at` and `complete_at`. `oldest_at` is the
    time of the first snapshot. If a time is not known, that of the snapshot's newest write stands for it. A snapshot
    with incremental backups counts as taken at the newest write in these. `snapshot_at` is like `oldest_at`, but
    ignores incremental backups, because a truncation leaves them, and older data is in the snapshot. `lists_dropped`:
    the schema has the dropped columns and the times of their drops. `missing_nodes` are nodes of the cluster without a
    backup. `whole` is the number of backups that have all files of a node: at least that of the nodes.
    """

    files: tuple[BackupFile, ...]
    schema: TableSchema
    taken_at: int
    complete_at: int
    oldest_at: int
    snapshot_at: int
    lists_dropped: bool = True
    missing_nodes: tuple[str, ...] = ()
    whole: int = 1

    @property
    def paths(self) -> tuple[str, ...]:
        """The addresses of the data files."""
        return tuple(file.address for file in self.files)


@dataclass(frozen=True)
class PlanTask:
    """Find the parts of one SSTable that can have tokens of some buckets."""

    path: str
    buckets: tuple[int, ...]
    writer: ChangeWriter


@dataclass(frozen=True)
class BackfillTask:
    """Read one bucket of some SSTables and write it. `ranges` has a row per SSTable: the start and end of the part of
    its data that can have tokens of the bucket, or -1 if they are not known.
    """

    bucket: int
    paths: tuple[str, ...]
    ranges: np.ndarray
    writer: ChangeWriter


def find_snapshots(paths: Sequence[str], schema: TableSchema | None = None, table: str | None = None) -> SnapshotFiles:
    """Find the SSTables of one table at these places, by one or many nodes. The schema is by default that of the
    snapshots.

    A place is a path, or a URI that pyarrow or fsspec can read: the folder of a snapshot; or, if the table is named
    (keyspace.table), a place with backups of Scylla Manager (`scylla_manager`), of Cassandra Medusa (`medusa`), or a
    tree of snapshots (`snapshot_tree`), whose newest backup of each node counts.

    Raises:
        WritetimeError: there are no SSTables, or no schema, or the snapshots are of different tables, or too far apart.
        Transient: a snapshot is not complete yet.
    """
    backups = [backup for path in paths for backup in _backups(path, table, with_schema=schema is None)]
    _require_whole(backups)
    newest_first = sorted(backups, key=lambda backup: backup.until, reverse=True)
    with_schemas = [backup for backup in newest_first if backup.schema is not None]
    schemas = [backup.schema for backup in newest_first if backup.schema is not None] if schema is None else [schema]
    if not schemas:
        raise WritetimeError(
            f"{without_secrets(paths[0])} has SSTables of {table}, and no snapshot with schema.cql: pass a file with "
            "CREATE TABLE as --schema, or keep a snapshot with the incremental backups"
        )
    if other := [s for s in schemas if s.full_name != schemas[0].full_name]:
        raise WritetimeError(f"the snapshots are of {schemas[0].full_name} and of {other[0].full_name}")
    if len(ids := sorted({str(s.id) for s in schemas if s.id is not None})) > 1:
        raise WritetimeError(
            f"the snapshots belong to two successive tables named {schemas[0].full_name}, with the ids "
            f"{' and '.join(ids)}: name those of one"
        )
    _require_close(schemas[0], [backup for backup in newest_first if backup.dated])
    timed = [backup for backup in newest_first if not backup.is_part] or newest_first
    return SnapshotFiles(
        tuple(file for backup in backups for file in backup.files),
        schemas[0],
        newest_first[0].until,
        max(newest_first[0].until, *(backup.complete_at for backup in backups)),
        timed[-1].until,
        min(backup.taken_at for backup in timed),
        schema is not None or all(backup.lists_dropped for backup in with_schemas),
        tuple(sorted({node for backup in backups for node in backup.missing_nodes})),
        sum(backup.is_whole for backup in backups),
    )


def backup_names(paths: Sequence[str], table: str, seen: Seen | None = None) -> list[str]:
    """Return the names of the newest backups of a table at places that may get more, without reading them. If the names
    have changed, there is a new backup. `seen` has what the places answered before.

    Raises:
        WritetimeError, OSError: a place cannot be listed.
    """
    places = [Folder.at(path, seen) for path in paths]
    found = [_found(place, table, with_schema=False) for place in places if not _is_snapshot(place)]
    return sorted(name for each in found if each for name in each.names)


def _backups(path: str, table: str | None, *, with_schema: bool) -> list[NodeBackup]:
    place = Folder.at(path)
    if table is None or _is_snapshot(place):
        return [read_snapshot(place, with_schema=with_schema)]
    if found := _found(place, table, with_schema=with_schema):
        return found.read()
    raise WritetimeError(
        f"{place.shown} holds no SSTables of {table}: name the folder of a snapshot, a place of Scylla Manager or "
        "Cassandra Medusa, or a folder with data folders of nodes"
    )


def _is_snapshot(place: Folder) -> bool:
    """Return whether a place is a folder of SSTables, or the path of a file of an SSTable."""
    if not place.exists:
        return True
    return any(
        name in ("manifest.json", "schema.cql") or parse_name(place.filesystem, f"{place.path}/{name}")
        for name in place.files()
    )


def _found(place: Folder, table: str, *, with_schema: bool) -> Found | None:
    for find in _LAYOUTS:
        if found := find(place, table, with_schema=with_schema):
            return found
    return None


def _require_whole(backups: Sequence[NodeBackup]) -> None:
    """Refuse a snapshot that is copied in part, or mixed with another one. A node with several data folders has one
    manifest, in one of them, so its snapshot is several backups.
    """
    lacking = [item for backup in backups for item in backup.lacking.items()]
    unlisted = [item for backup in backups for item in backup.unlisted.items()]
    # Several nodes may have SSTables of one name.
    counts = Counter(name for name, _ in lacking)
    counts.subtract(name for name, _ in unlisted)
    if missing := [address for name, address in lacking if counts[name] > 0]:
        raise Transient(
            f"{missing[0]} is missing or incomplete, but the manifest of its snapshot lists it: if it is being copied, "
            "run this again later; if the node has several data folders, name all of them; otherwise copy the snapshot "
            "again"
        )
    if foreign := [address for name, address in unlisted if counts[name] < 0]:
        raise Transient(
            f"{foreign[0]} is in no manifest.json, which lists the SSTables of a snapshot, so it is not known whether "
            "the snapshot is complete: if it is being copied, run this again later; if the node has several data "
            "folders, name all of them; otherwise copy the snapshot again, with its manifest.json. SSTables that are "
            "no snapshot can be named one by one (FOLDER/*-Data.db)"
        )


def _require_close(schema: TableSchema, newest_first: Sequence[NodeBackup]) -> None:
    """Refuse backups that are too far apart. The older one may have data whose deletion the database dropped before the
    newer one was taken.
    """
    if not newest_first:
        return
    newest, oldest = newest_first[0], newest_first[-1]
    if newest.until - oldest.until > max(schema.gc_grace_seconds * 1_000_000, MAX_SNAPSHOT_SKEW):
        where = f"of node {oldest.node} " if oldest.node else ""
        raise WritetimeError(
            f"{schema.full_name}: the backup {where}was taken at {instant_text(oldest.until)}, more than "
            f"gc_grace_seconds (and a day) before the newest one, at {instant_text(newest.until)}, so deleted data "
            "may come back: take a new backup of that node, or remove its backups if it has left the cluster"
        )


def complete_schema(settings: Settings, snapshot: SnapshotFiles) -> SnapshotFiles:
    """Return snapshots with the dropped columns of their table. If the files do not list these, query the database.

    Raises:
        Transient: the database does not answer.
        WritetimeError: it has no such table, or has another one of that name.
    """
    if snapshot.lists_dropped:
        return snapshot
    name = snapshot.schema.full_name
    try:
        with connect(settings) as session:
            known = read_schema(session, name)
    except (WritetimeError, *DRIVER_FAULTS) as e:
        raise (Transient if is_outage(e) or is_without_answer(e) else WritetimeError)(
            f"the schema of the files does not list the dropped columns of {name}, because ScyllaDB and Cassandra "
            f"Medusa leave them out, and the database could not be queried for them ({e}): start it, or pass as "
            "--schema a file with CREATE TABLE and, for each dropped column, ALTER TABLE .. DROP .. USING TIMESTAMP"
        ) from None
    if None not in (ids := (snapshot.schema.id, known.id)) and ids[0] != ids[1]:
        raise WritetimeError(
            f"the snapshot belongs to an earlier table {name}, with the id {ids[0]}; the one in the database has the "
            f"id {ids[1]}"
        )
    joined = join_schemas(replace(snapshot.schema, dropped=()), known)
    names = {c.name for c in joined.columns} | {d.name for d in joined.dropped}
    unknown = tuple(d for d in snapshot.schema.dropped if d.name not in names)
    return replace(snapshot, schema=replace(joined, dropped=joined.dropped + unknown), lists_dropped=True)


def lacking_nodes(table: LakeTable, snapshot: SnapshotFiles) -> list[str]:
    """Return why rows that only one node has may be missing in snapshots: the nodes without a backup; or that there are
    fewer snapshots than agents, each of which publishes the changes of a node.
    """
    if missing := snapshot.missing_nodes:
        return [f"{node} has no backup, so rows that only this node has are missing: back it up" for node in missing]
    agents, nodes = len(registered_sources(table.changes.load())), snapshot.whole
    if nodes >= agents:
        return []
    return [
        f"{pluralize(agents, 'agent')} publish changes of {table.name}, and the places have whole snapshots of "
        f"{pluralize(nodes, 'node')}, so rows may be missing, and watermarks that wait for a snapshot go on waiting: "
        "name those of all nodes in one backfill, which reads only new SSTables"
    ]


def untaken(table: LakeTable, snapshot: SnapshotFiles, buckets: Iterable[int] | None = None) -> list[str]:
    """Return the addresses of the SSTables that a backfill of these buckets, all by default, would read."""
    taken = BackfillRecord(table, table.changes.load())
    files = taken.identify(snapshot.files)
    new = {file for bucket in _wanted(table, buckets) for file in taken.new_in(bucket, files)}
    return [files[file].address for file in sorted(new)]


def backfill(
    table: LakeTable,
    snapshot: SnapshotFiles,
    buckets: Iterable[int] | None = None,
    run: Runner = map,
    staged: Staged | None = None,
) -> Iterator[tuple[int, int]]:
    """Append snapshots, as `find_snapshots` returns them, to the changes of a table that has followed their schema.
    Yield each completed bucket, and the number of changes that it added. A bucket reads only SSTables that it does not
    have.

    `staged` is called with the new files of all buckets that could be read, before any is committed. If it raises, none
    is committed.

    Raises:
        Transient: as the next one, if all of the faults may pass by themselves.
        WritetimeError: buckets cannot be read; the error names them and the files. Is raised at the end, after all
            other buckets have been yielded and are completed. If a fault is a bug, its own error is raised.
        Conflict: the table was truncated meanwhile, or began a generation: run this again with a later snapshot. Or
            another backfill has added other SSTables to a bucket, or rows were erased: run this again.
        WritetimeError: the snapshot is from before the horizon, see `horizon.require_newer`.
    """
    now = table.changes.load()
    taken = BackfillRecord(table, now)
    files = taken.identify(snapshot.files)
    new: dict[tuple[SSTableId, ...], list[int]] = defaultdict(list)
    for bucket in _wanted(table, buckets):
        new[taken.new_in(bucket, files)].append(bucket)
    yield from ((bucket, 0) for bucket in new.pop((), []))
    if new:
        require_newer(table, now, snapshot.oldest_at, snapshot.taken_at, snapshot.snapshot_at)
    # Where nothing is new, the history stays as it is. An empty table has none.
    if new or not files:
        raise_history(table, snapshot.complete_at)
    raise_snapshot(table, snapshot.taken_at)
    # Rows from before a truncation that the lake records meanwhile, or that are erased meanwhile, would reappear.
    given = {GENERATION: generation_of(now), ERASED: erased_of(now), **truncations(now)}
    several = {bucket: some for some, of_buckets in new.items() for bucket in of_buckets}
    addresses = {some: tuple(files[file].address for file in some) for some in new}
    paths = {bucket: addresses[some] for bucket, some in several.items()}
    writer = ChangeWriter.of(table, table.schema(), now)
    ranges = _ranges(paths, writer, run)
    tasks = [BackfillTask(bucket, each, ranges[bucket], writer) for bucket, each in paths.items()]
    written = run(CaughtTask(_write), tasks)
    if staged:
        written = list(written)
        staged([file for _, added, _ in written for file in added or ()])
    failed: list[tuple[BackfillTask, Exception]] = []
    for task, added, fault in written:
        if fault is not None:
            failed.append((task, fault))
            continue
        is_new = taken.commit(task.bucket, several[task.bucket], files, added, given)
        yield task.bucket, sum(file.rows for file in added) if is_new else 0
    if not lacking_nodes(table, snapshot) and not untaken(table, snapshot):
        raise_complete_snapshot(table, snapshot.snapshot_at)
    delete_old_records(table)
    if failed:
        raise _failure(table, failed)


def _write(task: BackfillTask) -> list[WrittenFile]:
    return task.writer.write(task.writer.left(_read(task)))


def _failure(table: LakeTable, failed: Sequence[tuple[BackfillTask, Exception]]) -> Exception:
    """Return the error that reports buckets that could not be read, by the reason: many buckets may have the same."""
    buckets: dict[str, list[str]] = defaultdict(list)
    for task, fault in failed:
        reason, paths = reason_of(fault), [without_secrets(path) for path in task.paths]
        named = "" if any(path in reason for path in paths) else f" (one of {', '.join(paths)})"
        buckets[reason + named].append(str(task.bucket))
    faults = "; ".join(f"{reason} (in bucket {', '.join(some)})" for reason, some in buckets.items())
    text = (
        f"{table.name}: {len(failed)} of {pluralize(table.buckets, 'bucket')} could not be read; the others are done. "
        f"{faults}. Correct the cause and run the backfill again: it reads only the rest"
    )
    for _, fault in failed:
        if not isinstance(fault, WritetimeError | OSError):
            fault.add_note(text)
            return fault
    return (Transient if all(is_outage(fault) for _, fault in failed) else WritetimeError)(text)


def _ranges(paths: Mapping[int, Sequence[str]], writer: ChangeWriter, run: Runner) -> dict[int, np.ndarray]:
    """Return the rows `BackfillTask.ranges` of each bucket, whose SSTables are given."""
    ranges = {bucket: np.full((len(of_bucket), 2), -1, np.int64) for bucket, of_bucket in paths.items()}
    places: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for bucket, of_bucket in paths.items():
        for i, path in enumerate(of_bucket):
            places[path].append((bucket, i))
    # The task of a single bucket finds the part itself.
    several = {path: where for path, where in places.items() if len(where) > 1}
    tasks = [PlanTask(path, tuple(bucket for bucket, _ in where), writer) for path, where in several.items()]
    for task, found in run(_plan, tasks):
        for (bucket, i), part in zip(several[task.path], found, strict=True):
            ranges[bucket][i] = part
    return ranges


def _plan(task: PlanTask) -> tuple[PlanTask, np.ndarray]:
    ranges = np.full((len(task.buckets), 2), -1, np.int64)
    # A fault must fail only the bucket whose task meets it again.
    with suppress(Exception):
        sstable = _open(task.path, task.writer.schema)
        for i, bucket in enumerate(task.buckets):
            with suppress(Exception):
                ranges[i] = _range(sstable, token_range(bucket, task.writer.buckets))
    return task, ranges


def _open(path: str, schema: TableSchema) -> SSTable:
    filesystem, inner = resolve(path)
    named = parse_name(filesystem, inner)
    assert named is not None
    return SSTable(named[0], schema)


def _range(sstable: SSTable, tokens: tuple[int, int]) -> tuple[int, int]:
    """Return the start and end of the part of the data that can have these tokens. They are equal if no part can."""
    splits = sstable.splits(1 << 62, tokens)
    return (splits[0].start.offset, splits[-1].end.offset) if splits else (0, 0)


def _read(task: BackfillTask) -> Iterator[pa.RecordBatch]:
    tokens = token_range(task.bucket, task.writer.buckets)
    read_at = datetime.now(UTC)
    for path, (start, end) in zip(task.paths, task.ranges.tolist(), strict=True):
        if start == end >= 0:
            continue
        origin = Origin("sstable", without_secrets(path), read_at)
        sstable = _open(path, task.writer.schema)
        first, last = (start, end) if start >= 0 else _range(sstable, tokens)
        yield from sstable.scan(split=Split(Cut(first), Cut(last)), tokens=tokens, origin=origin)


def _wanted(table: LakeTable, buckets: Iterable[int] | None) -> Iterable[int]:
    return range(table.buckets) if buckets is None else buckets
