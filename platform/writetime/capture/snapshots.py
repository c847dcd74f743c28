"""Publishes snapshots of captured tables along with their live changes. A snapshot has the data from before the capture
began.

The node takes the snapshots of all tables that lack one in one call, because each call of its tool starts a program. It
takes them after it has reported that the tables are captured, so later writes are in the commit log. (An operator takes
the snapshots of ScyllaDB's tables, and the agent does not delete them.)

Then the agent reads and publishes the SSTables of one table after the other, in small portions, with one portion
between two of its rounds. So live changes wait for at most one portion. The progress is saved in `snapshots.json` once
the broker has acknowledged a portion. After a crash, the agent continues with the same piece of an SSTable. Snapshots
that were taken together are deleted together. Slow work runs in a thread.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, Protocol, TypeVar
from uuid import UUID

import pyarrow as pa

from writetime.capture.change_publisher import ChangePublisher, Unpublishable
from writetime.capture.metrics import AgentMetrics, counts_of
from writetime.capture.node_schemas import Node
from writetime.capture.progress import SNAPSHOTS_FILE
from writetime.capture.state_files import read_json, write_json
from writetime.clients.node_snapshots import delete, jmx_port, listed, new_tag, take
from writetime.core.config import Settings
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError, reason_of
from writetime.core.instants import instant_text
from writetime.lake.backfill import find_snapshots
from writetime.schema.table import SchemaError, TableSchema
from writetime.schema.values import BadValue
from writetime.scylla_cdc.log import SUFFIX
from writetime.storage.batch import Origin
from writetime.storage.file_errors import MissingFile, StorageError
from writetime.storage.locations import Location, find_sstables, without_secrets
from writetime.storage.split import Split
from writetime.storage.sstable import SSTable

log = logging.getLogger(__name__)

# Uncompressed bytes of an SSTable per portion, and per piece, which is repeated after a crash.
_PORTION_BYTES = 1 << 18
_PIECE_BYTES = 1 << 24
# How often a snapshot is read again after an unknown fault.
_ATTEMPTS = 3
# Tables per call, because the length of a command is limited.
_TOGETHER = 100

_T = TypeVar("_T")


@dataclass(frozen=True)
class TakenSnapshot:
    """The snapshot of a table: its folders or their addresses, and the time at which it was taken (microseconds). If an
    operator took it earlier, `begun_at` is the time of the first of its folders.
    """

    folders: Sequence[str]
    taken_at: int
    begun_at: int | None = None


class Taker(Protocol):
    """Takes and deletes snapshots, in its own thread. Raises a WritetimeError or an OSError if it cannot."""

    def take(self, tables: Mapping[str, UUID], tag: str) -> Mapping[str, TakenSnapshot]:
        """Take a snapshot of tables in one call, under a tag."""
        ...

    def delete(self, tables: Sequence[str], tag: str) -> None:
        """Delete the snapshots of a tag in the keyspaces of tables."""
        ...


class NodeTaker:
    """Takes snapshots of a Cassandra node, with its own nodetool."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def take(self, tables: Mapping[str, UUID], tag: str) -> Mapping[str, TakenSnapshot]:
        """Flush and snapshot the tables."""
        query = "SELECT name, value FROM system_views.settings WHERE name = 'data_file_directories'"
        folders = listed(self._node.pairs(query).get("data_file_directories") or "")
        found = take(folders, self._jmx_port(), tables, tag)
        taken_at = time.time_ns() // 1000
        return {table: TakenSnapshot([str(path) for path in paths], taken_at) for table, paths in found.items()}

    def delete(self, tables: Sequence[str], tag: str) -> None:
        """Delete them on the node."""
        delete(self._jmx_port(), tables, tag)

    def _jmx_port(self) -> int:
        return jmx_port(self._node.pairs("SELECT name, value FROM system_views.system_properties"))


class NamedTaker:
    """Finds the snapshots that the settings name. ScyllaDB takes none over the network, so an operator took them with
    nodetool on each node.

    `since` returns the time from which a table's log has all writes (microseconds). `begun_at` is the time at which the
    snapshots began, if their files do not have it.
    """

    def __init__(self, folders: Mapping[str, Sequence[str]], since: Callable[[str], int], begun_at: int | None) -> None:
        self._folders = folders
        self._since = since
        self._begun_at = begun_at

    def take(self, tables: Mapping[str, UUID], tag: str) -> Mapping[str, TakenSnapshot]:
        """Find the snapshots. Raise a WritetimeError if one is missing, is older than the start of the log, or belongs
        to another table, perhaps an earlier one with the same name.
        """
        del tag
        return {table: self._find(table, table_id) for table, table_id in tables.items()}

    def delete(self, tables: Sequence[str], tag: str) -> None:
        """Do nothing, because the snapshots belong to the operator."""

    def _find(self, table: str, table_id: UUID) -> TakenSnapshot:
        folders, times = self._folders[table], list[int]()
        for folder in folders:
            shown, files = without_secrets(folder), find_snapshots([folder])
            if files.schema.full_name != table:
                raise WritetimeError(f"{shown} is a snapshot of {files.schema.full_name}, not of {table}")
            if files.schema.id not in (None, table_id):
                raise WritetimeError(
                    f"{shown} is a snapshot of an earlier table {table}, with the id {files.schema.id}; the table in "
                    f"the database has the id {table_id}: take a snapshot of it (nodetool snapshot, on each node), and "
                    "name its folders in capture.snapshot_folders"
                )
            begun_at = self._begun_at or files.taken_at
            if begun_at < self._since(table):
                raise WritetimeError(
                    f"{shown} was taken at {instant_text(begun_at)}, by its files or --snapshot-at, and the log of "
                    f"{table} has all writes from {instant_text(self._since(table))} on: neither has the writes in "
                    "between; take another snapshot (nodetool snapshot, on each node), or, if this one was begun "
                    "later, pass that time as --snapshot-at"
                )
            times.append(begun_at)
        return TakenSnapshot(folders, max(times), min(times))


@dataclass(frozen=True)
class SnapshotProgress:
    """The progress of one table's snapshot: `wanted` with this tag (since `begun_at`, microseconds), `taken` (at a
    time), `published`, and `done` when it is deleted.

    `read` is the number of its `sstables` that are read completely, and `pieces` that of the next SSTable's pieces.
    `changes` counts their changes, and `published` those that are acknowledged.
    """

    table: str
    tag: str
    status: Literal["wanted", "taken", "published", "done"] = "wanted"
    folders: Sequence[str] = ()
    begun_at: int = 0
    taken_at: int = 0
    sstables: int = 0
    read: int = 0
    pieces: int = 0
    changes: int = 0
    published: int = 0


class Snapshots:
    """The snapshots of an agent's tables, by `capture.snapshot`.

    `announce` publishes the agent's progress, and waits until the broker has it, because a snapshot must be announced
    before its changes. `node` is the id of the node of the snapshots. It is None for ScyllaDB's tables. Then the origin
    of the changes has the name of the table's log, and the start of the snapshot as its time of capture, because an
    operator's snapshot may be older than a TRUNCATE and published after it. A failed snapshot is tried again after
    `again_seconds`.
    """

    def __init__(
        self,
        settings: Settings,
        taker: Taker,
        node: str | None,
        metrics: AgentMetrics,
        announce: Callable[[threading.Event], bool],
        *,
        again_seconds: float = 60.0,
    ) -> None:
        self._again_seconds = again_seconds
        self._mode = settings.capture.snapshot
        self._taker = taker
        self._node = node
        self._metrics = metrics
        self._announce = announce
        self._path = settings.capture.state_dir / SNAPSHOTS_FILE
        stored = read_json(self._path) or {}
        self._tables = {UUID(key): SnapshotProgress(**value) for key, value in stored.items()}
        if self._mode == "always":
            # A published snapshot may not be deleted yet. It keeps its tag, so that it can be deleted.
            self._tables = {
                i: SnapshotProgress(p.table, p.tag) if p.status == "published" else p
                for i, p in self._tables.items()
                if p.status != "done"
            }
        self._faults: dict[UUID, str] = {}
        self._unknown: Counter[UUID] = Counter()
        self._not_before: dict[UUID, float] = {}
        # The tables of a failed call for several tables. Each gets its own call.
        self._alone: set[UUID] = set()
        self._worker = ThreadPoolExecutor(1, "snapshots")
        self._work = self._all()
        self._candidates: list[tuple[TableSchema, bool]] = []
        self._publisher: ChangePublisher | None = None
        self._stop = threading.Event()

    def step(
        self, tables: Iterable[tuple[TableSchema, bool]], publisher: ChangePublisher, stop: threading.Event
    ) -> bool:
        """Publish a portion of the snapshots of captured tables (existing or dropped), if there is one. Return whether
        there may be another one at once. Raise a WritetimeError if the broker fails: continue from the acknowledged
        changes.
        """
        if self._mode not in ("initial", "always"):
            return False
        self._candidates = list(tables)
        self._publisher, self._stop = publisher, stop
        try:
            return next(self._work)
        except BaseException:
            self._work = self._all()
            raise

    def is_pending(self, table_id: UUID) -> bool:
        """Return whether changes of a snapshot of this table are not yet published."""
        found = self._tables.get(table_id)
        return self._mode in ("initial", "always") and (found is None or found.status in ("wanted", "taken"))

    def taken_at(self, table_id: UUID) -> int:
        """Return the time at which the snapshot of a table was taken (microseconds); 0 if there is none."""
        found = self._tables.get(table_id)
        return found.taken_at if found else 0

    def covers_until(self, table_id: UUID) -> int:
        """Return a time (microseconds), or 0. The snapshot of a table has all writes before that time."""
        found = self._tables.get(table_id)
        return found.begun_at if found else 0

    def take_again(self, table_id: UUID, truncated_at: int) -> None:
        """Take the snapshot of a table again if it is not published yet and began before the table was truncated
        (microseconds).
        """
        found = self._tables.get(table_id)
        if found is not None and found.status in ("wanted", "taken") and 0 < found.begun_at < truncated_at:
            log.info("%s was truncated, so its snapshot %s is taken again", found.table, found.tag)
            self._keep({table_id: SnapshotProgress(found.table, found.tag)})
            # This snapshot may be the one that is being read.
            self._work = self._all()

    def status(self) -> dict[str, Any]:
        """Return the status of each snapshot, by table."""
        return {
            progress.table: {
                "status": "failed" if table_id in self._faults else progress.status,
                "sstables": progress.sstables,
                "sstables_read": progress.read,
                "changes": progress.published,
            }
            for table_id, progress in self._tables.items()
        }

    def close(self) -> None:
        """Wait until the node has finished its work."""
        self._worker.shutdown(cancel_futures=True)

    def _all(self) -> Iterator[bool]:
        """Take the wanted snapshots, then publish one table after the other, then delete them; yield whether to
        continue at once.
        """
        while True:
            due = [schema for schema, is_live in self._candidates if self._is_due(schema, is_live=is_live)]
            wanted = [schema for schema in due if self._status(schema) == "wanted"]
            taken = [schema for schema in due if self._status(schema) == "taken"]
            if wanted:
                yield from self._take(wanted)
            elif taken:
                yield from self._publish(taken[0])
            elif due:
                yield from self._delete(self._tables[id_of(due[0])].tag)
            else:
                yield False

    def _is_due(self, schema: TableSchema, *, is_live: bool) -> bool:
        # The snapshot of a dropped table can still be read.
        table_id, status = id_of(schema), self._status(schema)
        if status == "done" or (status == "wanted" and not is_live):
            return False
        return table_id not in self._faults and time.monotonic() >= self._not_before.get(table_id, 0.0)

    def _status(self, schema: TableSchema) -> str:
        found = self._tables.get(id_of(schema))
        return found.status if found else "wanted"

    def _take(self, wanted: list[TableSchema]) -> Iterator[bool]:
        alone = [schema for schema in wanted if id_of(schema) in self._alone]
        group = alone[:1] or wanted[:_TOGETHER]
        ids = {schema.full_name: id_of(schema) for schema in group}
        tag = new_tag()
        # The agent may have been killed after it took them and before it recorded this, or some files are missing.
        used = {progress.tag for progress in self._tables.values() if progress.status in ("taken", "published")}
        for stale in {self._tables[i].tag for i in ids.values() if i in self._tables} - used:
            if fault := (yield from self._forget(stale, list(ids))):
                # The record keeps its tag, so that it does not stay on the node forever.
                self._not_taken(ids, f"the earlier snapshot {stale} cannot be deleted: {fault}")
                return
        begun = {i: SnapshotProgress(name, tag, begun_at=time.time_ns() // 1000) for name, i in ids.items()}
        self._keep(begun)
        try:
            taken = yield from self._in_thread(partial(self._taker.take, ids, tag))
        except Exception as e:
            self._not_taken(ids, reason_of(e))
            return
        log.info("the snapshot %s of %s is taken", tag, ", ".join(ids))
        self._alone -= set(ids.values())
        for table_id, progress in begun.items():
            found = taken[progress.table]
            at = {"begun_at": found.begun_at or progress.begun_at, "taken_at": found.taken_at}
            begun[table_id] = replace(progress, status="taken", folders=list(found.folders), **at)
        self._keep(begun)

    def _not_taken(self, ids: Mapping[str, UUID], fault: str) -> None:
        """Take the snapshots of some tables later. A fault of one table must not delay the others."""
        if len(ids) > 1:
            self._alone.update(ids.values())
            tables = pluralize(len(ids), "table")
            log.warning("snapshots of %s cannot be taken in one call, so each gets its own: %s", tables, fault)
        else:
            self._later(ids.values(), f"{next(iter(ids))}: its snapshot cannot be taken: {fault}")

    def _publish(self, schema: TableSchema) -> Iterator[bool]:
        table_id = id_of(schema)
        progress = self._tables[table_id]
        if not self._announce(self._stop):
            # The agent stops. Without this, `_all` would begin with the same table again at once.
            yield False
            return
        try:
            locations = [location for folder in progress.folders for location in find_sstables(folder)]
            if progress.sstables not in (0, len(locations)):
                raise MissingFile(f"of {pluralize(progress.sstables, 'SSTable')}, only {len(locations)} exist")
            progress = replace(progress, sstables=len(locations))
            for location in locations[progress.read :]:
                sstable, pieces = yield from self._in_thread(partial(_open, location, schema))
                for piece in pieces[progress.pieces :]:
                    origin = self._origin(location, progress)
                    for changes in sstable.scan(split=piece, window=_PORTION_BYTES, origin=origin):
                        progress = self._send(schema, changes, progress)
                        yield True
                    progress = replace(progress, pieces=progress.pieces + 1)
                    self._keep({table_id: progress})
                progress = replace(progress, read=progress.read + 1, pieces=0)
                self._keep({table_id: progress})
        except MissingFile as e:
            self._later([table_id], f"{progress.table}: the snapshot {progress.tag} is gone, a new one is taken: {e}")
            self._keep({table_id: SnapshotProgress(progress.table, progress.tag)})
            return
        except (StorageError, SchemaError, BadValue, Unpublishable) as e:
            self._fail(table_id, progress, str(e))
            return
        except (WritetimeError, MemoryError):
            raise
        except Exception as e:
            # The disk failed, or the fault is unknown. No other table waits for it.
            self._unknown[table_id] += not isinstance(e, OSError)
            log.debug("%s", progress.table, exc_info=True)
            if self._unknown[table_id] >= _ATTEMPTS:
                self._fail(table_id, progress, reason_of(e))
            else:
                self._later([table_id], f"{progress.table}: its snapshot cannot be read: {reason_of(e)}")
            return
        changes = pluralize(progress.changes, "change")
        if progress.changes != progress.published:
            self._fail(table_id, progress, f"of {changes} that were read, {progress.published} were published")
            return
        log.info("%s: its snapshot of %s is read and published", progress.table, changes)
        self._keep({table_id: replace(progress, status="published")})

    def _origin(self, location: Location, progress: SnapshotProgress) -> Origin:
        is_named = self._node is None
        captured_at = datetime.fromtimestamp(progress.begun_at / 1e6, UTC) if is_named else datetime.now(UTC)
        return Origin("sstable", location.path("Data.db"), captured_at, self._node or progress.table + SUFFIX)

    def _send(self, schema: TableSchema, changes: pa.RecordBatch, progress: SnapshotProgress) -> SnapshotProgress:
        assert self._publisher is not None
        sent = self._publisher.send(schema, changes).all()
        if not self._publisher.flush(self._stop):
            raise WritetimeError(f"{schema.full_name}: a portion of its snapshot was not acknowledged before the stop")
        self._metrics.published(counts_of(schema.full_name, changes))
        return replace(progress, changes=progress.changes + changes.num_rows, published=progress.published + sent)

    def _delete(self, tag: str) -> Iterator[bool]:
        """Delete the snapshots of a tag, which are all published."""
        tables = {i: progress for i, progress in self._tables.items() if progress.tag == tag}
        fault = yield from self._forget(tag, [progress.table for progress in tables.values()])
        published = {i: progress for i, progress in tables.items() if progress.status == "published"}
        if fault:
            self._later(published, f"the snapshot {tag} cannot be deleted: {fault}")
        else:
            self._keep({i: replace(progress, status="done") for i, progress in published.items()})

    def _forget(self, tag: str, tables: list[str]) -> Generator[bool, None, str | None]:
        """Let the node delete the snapshots of a tag. If it cannot, return the reason."""
        try:
            yield from self._in_thread(partial(self._taker.delete, tables, tag))
        except Exception as e:
            return reason_of(e)
        return None

    def _in_thread(self, call: Callable[[], _T]) -> Generator[bool, None, _T]:
        job = self._worker.submit(call)
        while not job.done():
            yield False
        return job.result()

    def _keep(self, changed: Mapping[UUID, SnapshotProgress]) -> None:
        self._tables |= changed
        self._metrics.snapshots(self.status())
        write_json(self._path, {str(key): asdict(value) for key, value in self._tables.items()})

    def _later(self, table_ids: Iterable[UUID], fault: str) -> None:
        """Report the fault, and retry after a while."""
        self._metrics.error("snapshot")
        log.error("%s; trying again", fault)
        self._not_before |= dict.fromkeys(table_ids, time.monotonic() + self._again_seconds)

    def _fail(self, table_id: UUID, progress: SnapshotProgress, fault: str) -> None:
        """Give a snapshot up. The agent takes a new one when it is started again."""
        self._metrics.error("snapshot")
        log.error(
            "%s: its snapshot %s is given up: %s; repair the table (nodetool scrub) and start the agent again, or "
            "bring another snapshot into the lake with `writetime backfill` and set capture.snapshot to never",
            *(progress.table, progress.tag, fault),
        )
        self._faults[table_id] = fault
        self._keep({table_id: SnapshotProgress(progress.table, progress.tag)})


def id_of(schema: TableSchema) -> UUID:
    """Return the table's id; every schema of a node has one."""
    assert schema.id is not None
    return schema.id


def _open(location: Location, schema: TableSchema) -> tuple[SSTable, list[Split]]:
    """Open an SSTable and cut it into pieces. This reads all of its index."""
    sstable = SSTable(location, schema)
    return sstable, sstable.splits(_PIECE_BYTES)
