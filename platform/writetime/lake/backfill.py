"""Backfill: SSTable snapshots of one or many nodes, appended to the changes of a lake table, bucket by bucket.

A bucket is a token range, so it is read from every SSTable at the position in the index. Each bucket is its own
transaction, named by the snapshot: only failed buckets run again, and completed ones are skipped. Replicas are no
problem: the merge keeps one version of each cell.
"""

import hashlib
import json
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyarrow.fs import FileSystem, FileType

from writetime.clients.database import DRIVER_FAULTS, connect
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.lake.buckets import token_range
from writetime.lake.changes import ChangeWriter
from writetime.lake.evolution import join_schemas
from writetime.lake.history import raise_history
from writetime.lake.horizon import raise_snapshot, require_newer
from writetime.lake.merging import Runner
from writetime.lake.parquet import WrittenFile
from writetime.lake.state import Staged
from writetime.lake.table import LakeTable
from writetime.schema.cql import parse_table
from writetime.schema.system import read_schema
from writetime.schema.table import TableSchema
from writetime.storage.batch import Origin
from writetime.storage.file_errors import Missing
from writetime.storage.infer import infer_schema
from writetime.storage.locations import Location, find_sstables, parse_name, read_file, resolve
from writetime.storage.sstable import SSTable


@dataclass(frozen=True)
class SnapshotFiles:
    """The SSTables of snapshots of one table.

    `id` is the same for the same files. `taken_at` (microseconds) is when the last of them was complete.
    `lists_dropped` is whether the schema has the dropped columns and the times of their drops.
    """

    paths: tuple[str, ...]
    id: str
    schema: TableSchema
    taken_at: int
    lists_dropped: bool = True


@dataclass(frozen=True)
class BackfillTask:
    """Read one bucket of all SSTables and write it, to be committed as transaction `app_id`."""

    bucket: int
    paths: tuple[str, ...]
    writer: ChangeWriter
    app_id: str


def find_snapshots(paths: Sequence[str], schema: TableSchema | None = None) -> SnapshotFiles:
    """Find the SSTables below these folders, which are snapshots of one table, by one or many nodes.

    Args:
        paths: the folders; local, or URIs that pyarrow or fsspec can read.
        schema: the table; defaults to the `schema.cql` of the snapshots.

    Raises:
        WritetimeError: there are no SSTables, or no schema, or the snapshots are of different tables.
    """
    files: list[tuple[str, int, int]] = []
    schemas: list[TableSchema] = []
    taken_at = 0
    # The `schema.cql` of ScyllaDB (2026.1) does not list dropped columns.
    lists_dropped = True
    for path in paths:
        locations = list(find_sstables(path))
        if not locations:
            of_nothing = _of_empty_table(path)
            schemas.append(of_nothing[0])
            taken_at = max(taken_at, of_nothing[1])
            continue
        files += [_data_file(path, location) for location in locations]
        taken_at = max(taken_at, _taken_at(locations))
        if schema is None:
            schemas.append(_schema(locations))
            lists_dropped = lists_dropped and not locations[0].exists("Scylla.db")
    if other := [s for s in schemas if s.full_name != schemas[0].full_name]:
        raise WritetimeError(f"the snapshots are of {schemas[0].full_name} and of {other[0].full_name}")
    if len(ids := sorted({str(s.id) for s in schemas if s.id is not None})) > 1:
        raise WritetimeError(
            f"the snapshots are of two tables that had the name {schemas[0].full_name} one after the other, with the "
            f"ids {' and '.join(ids)}: name those of one"
        )
    digest = hashlib.sha256(repr(sorted(files)).encode()).hexdigest()[:16]
    return SnapshotFiles(tuple(path for path, _, _ in files), digest, schema or schemas[0], taken_at, lists_dropped)


def complete_schema(settings: Settings, snapshot: SnapshotFiles) -> SnapshotFiles:
    """Return snapshots with the dropped columns of their table. They come from the database if the files do not list
    them.

    Raises:
        WritetimeError: the database does not answer, has no such table, or has another one of that name.
    """
    if snapshot.lists_dropped:
        return snapshot
    name = snapshot.schema.full_name
    try:
        with connect(settings) as session:
            known = read_schema(session, name)
    except (WritetimeError, *DRIVER_FAULTS) as e:
        raise WritetimeError(
            f"the schema.cql of ScyllaDB does not list the columns of {name} that were dropped, and the database could "
            f"not be asked for them ({e}); start it, or pass as --schema a file with CREATE TABLE and, for each "
            "dropped column, ALTER TABLE .. DROP .. USING TIMESTAMP"
        ) from None
    if None not in (ids := (snapshot.schema.id, known.id)) and ids[0] != ids[1]:
        raise WritetimeError(
            f"the snapshot is of an earlier table {name}, with the id {ids[0]}; the one in the database has the id "
            f"{ids[1]}"
        )
    joined = join_schemas(replace(snapshot.schema, dropped=()), known)
    names = {c.name for c in joined.columns} | {d.name for d in joined.dropped}
    unknown = tuple(d for d in snapshot.schema.dropped if d.name not in names)
    return replace(snapshot, schema=replace(joined, dropped=joined.dropped + unknown), lists_dropped=True)


def backfill(
    table: LakeTable,
    snapshot: SnapshotFiles,
    buckets: Iterable[int] | None = None,
    run: Runner = map,
    staged: Staged | None = None,
) -> Iterator[tuple[int, int]]:
    """Append snapshots to the changes; yield each completed bucket, and the number of changes that it added.

    Args:
        table: the table to append to; its schema has followed `snapshot.schema`.
        snapshot: the result of `find_snapshots`.
        buckets: the buckets to read; all by default. A bucket that was completed before adds nothing.
        run: runs the tasks, one per bucket.
        staged: is called with the new files of all buckets before any is committed; if it raises, none is committed.

    Raises:
        CorruptFile, Missing: an SSTable cannot be read. The buckets that were yielded stay completed.
        WritetimeError: the snapshot is from before the horizon, see `horizon.require_newer`.
    """
    schema = table.schema()
    wanted = range(table.buckets) if buckets is None else buckets
    writer = ChangeWriter.of(table, schema)
    now = table.changes.load()
    todo = []
    for bucket in wanted:
        if now.transaction(_app_id(snapshot, bucket)) is None:
            todo.append(BackfillTask(bucket, snapshot.paths, writer, _app_id(snapshot, bucket)))
        else:
            yield bucket, 0
    if todo:
        require_newer(table, now, snapshot.taken_at)
        raise_history(table, snapshot.taken_at)
        raise_snapshot(table, snapshot.taken_at)
    written = run(_write, todo)
    if staged:
        written = list(written)
        staged([file for _, files in written for file in files])
    for task, files in written:
        new = table.changes.append(files, task.app_id, 1)
        yield task.bucket, sum(file.rows for file in files) if new else 0


def _write(task: BackfillTask) -> tuple[BackfillTask, list[WrittenFile]]:
    return task, task.writer.write(_read(task))


def _read(task: BackfillTask) -> Iterator[pa.RecordBatch]:
    tokens = token_range(task.bucket, task.writer.buckets)
    read_at = datetime.now(UTC)
    for path in task.paths:
        filesystem, inner = resolve(path)
        named = parse_name(filesystem, inner)
        assert named is not None
        sstable = SSTable(named[0], task.writer.schema)
        for split in sstable.splits(1 << 62, tokens):
            yield from sstable.scan(split=split, tokens=tokens, origin=Origin("sstable", path, read_at))


def _app_id(snapshot: SnapshotFiles, bucket: int) -> str:
    return f"backfill/{snapshot.id}/{bucket}"


def _data_file(path: str, location: Location) -> tuple[str, int, int]:
    """Return the address of an SSTable's data file, and its identity: size and checksum."""
    data = location.path("Data.db")
    address = data
    if "://" in path:
        scheme, _, rest = path.partition("://")
        # Options of the address, such as the endpoint of a store other than Amazon's.
        query = rest.partition("?")[2]
        address = f"{scheme}://{data}" + (f"?{query}" if query else "")
    checksum = int(location.read("Digest.crc32")) if location.exists("Digest.crc32") else 0
    return address, location.filesystem.get_file_info(data).size, checksum


def _of_empty_table(path: str) -> tuple[TableSchema, int]:
    """Return the schema of the snapshot of a table without SSTables, and when it was taken: its manifest lists no
    files.
    """
    filesystem, folder = resolve(path)
    manifest = _read_manifest(filesystem, folder)
    if manifest is not None and not manifest.files:
        try:
            return parse_table(read_file(filesystem, posixpath.join(folder, "schema.cql")).decode()), manifest.taken_at
        except Missing:
            pass
    raise WritetimeError(f"{path} holds no SSTables: name the folder of a table's snapshot") from None


@dataclass(frozen=True)
class _Manifest:
    """The contents of a snapshot's `manifest.json`: its files, the time at which it was taken (microseconds), and the
    table's id, which ScyllaDB writes here and Cassandra in `schema.cql`.
    """

    files: list[Any]
    taken_at: int
    table_id: UUID | None = None


def _read_manifest(filesystem: FileSystem, folder: str) -> _Manifest | None:
    """Read a snapshot's `manifest.json`, as Cassandra writes it (`service.snapshot.SnapshotManifest`) or ScyllaDB
    (2026.1, with times in seconds); None if it is missing or has another form.
    """
    try:
        found = json.loads(read_file(filesystem, posixpath.join(folder, "manifest.json")))
        if "snapshot" in found:
            table_id = UUID(found["table"]["table_id"])
            return _Manifest(found["sstables"], int(found["snapshot"]["created_at"]) * 1_000_000, table_id)
        return _Manifest(found["files"], round(datetime.fromisoformat(found["created_at"]).timestamp() * 1_000_000))
    except (Missing, KeyError, TypeError, ValueError):
        return None


def _schema(locations: Sequence[Location]) -> TableSchema:
    path = posixpath.join(locations[0].folder, "schema.cql")
    if locations[0].filesystem.get_file_info(path).type != FileType.File:
        raise WritetimeError(
            f"{locations[0].folder} has no schema.cql, and SSTables do not have the names of key columns: pass a file "
            "with CREATE TABLE as --schema"
        )
    schema = infer_schema(locations)
    manifest = _read_manifest(locations[0].filesystem, locations[0].folder)
    return schema if schema.id or manifest is None else replace(schema, id=manifest.table_id)


def _taken_at(locations: Sequence[Location]) -> int:
    """Return when a snapshot was taken (`manifest.json`), else when its last file was written, which is not earlier."""
    location = locations[0]
    if (manifest := _read_manifest(location.filesystem, location.folder)) is not None:
        return manifest.taken_at
    paths = [each.path("Data.db") for each in locations]
    return max((info.mtime_ns or 0) // 1000 for info in location.filesystem.get_file_info(paths))
