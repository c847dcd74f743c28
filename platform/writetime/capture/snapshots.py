"""Snapshots of captured tables, published beside their live changes: what a table had before its capture began.

One table after the other. A snapshot is taken by the node, once the agent knows that the table is captured: so what it
has not is in the commit log from there on. Its SSTables are read and published by small portions, one between two
rounds of the agent, so live changes wait for one portion at most. How far that is, is kept in `snapshots.json` once
the broker has acknowledged it: after a crash it goes on with the piece of an SSTable that it was in. Then the snapshot
is deleted. What takes the node long is done in a thread.
"""

import logging
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar
from uuid import UUID

import pyarrow as pa

from writetime.capture.decoding import Decoder
from writetime.capture.durable import read_json, write_json
from writetime.capture.metrics import AgentMetrics, counts_of
from writetime.capture.publisher import ChangePublisher, Unpublishable
from writetime.capture.schemas import Node
from writetime.config import Settings
from writetime.errors import WritetimeError
from writetime.lake.snapshot import delete, jmx_port, listed, take
from writetime.schema.table import SchemaError, TableSchema
from writetime.schema.values import BadValue
from writetime.storage.batch import Origin
from writetime.storage.errors import Missing, StorageError
from writetime.storage.files import Location, find_sstables
from writetime.storage.split import Split
from writetime.storage.sstable import SSTable

log = logging.getLogger(__name__)

# Uncompressed bytes of an SSTable: of a portion, and of a piece, which is repeated after a crash.
_PORTION_BYTES = 1 << 18
_PIECE_BYTES = 1 << 24
_AGAIN_SECONDS = 60.0

# What may happen while the node is asked to do something.
_FAULTS = (WritetimeError, OSError, subprocess.SubprocessError)

_T = TypeVar("_T")


@dataclass(frozen=True)
class SnapshotProgress:
    """Of one table's snapshot: `wanted` under this tag, `taken` (at an instant in microseconds), `published`, and
    `done` when it is deleted.

    Of its `sstables` so many are `read`, and so many `pieces` of the one after; `changes` came out of them, and so
    many are `published`.
    """

    table: str
    tag: str
    state: Literal["wanted", "taken", "published", "done"] = "wanted"
    folders: Sequence[str] = ()
    taken_at: int = 0
    sstables: int = 0
    read: int = 0
    pieces: int = 0
    changes: int = 0
    published: int = 0


class Snapshots:
    """The snapshots of a node's tables, by `capture.snapshot`. `announce` says how far the node is, and waits until the
    broker has it: landing has to learn of a snapshot before it meets changes of it."""

    def __init__(
        self, settings: Settings, node: Node, metrics: AgentMetrics, announce: Callable[[threading.Event], bool]
    ) -> None:
        self._mode = settings.capture.snapshot
        self._node = node
        self._node_id = node.id()
        self._metrics = metrics
        self._announce = announce
        self._path = settings.capture.state / "snapshots.json"
        stored: dict[str, dict[str, Any]] = read_json(self._path) or {}
        self._tables = {
            UUID(key): SnapshotProgress(**value)
            for key, value in stored.items()
            if not (self._mode == "always" and value["state"] == "done")
        }
        self._faults: dict[UUID, str] = {}
        self._not_before: dict[UUID, float] = {}
        self._worker = ThreadPoolExecutor(1, "snapshots")
        self._work = self._all()
        self._candidates: list[tuple[TableSchema, bool]] = []
        self._publisher: ChangePublisher | None = None
        self._stop = threading.Event()
        self.published: Counter[str] = Counter()

    def step(self, decoder: Decoder, publisher: ChangePublisher, stop: threading.Event) -> bool:
        """Publish a portion, if there is one; return whether there may be another at once.

        Raises:
            WritetimeError: the broker does not do its part: go on from what was acknowledged.
        """
        if self._mode not in ("initial", "always"):
            return False
        self._candidates = [(schema, decoder.is_live(schema)) for schema in decoder.captured]
        self._publisher, self._stop = publisher, stop
        try:
            return next(self._work)
        except BaseException:
            self._work = self._all()
            raise

    def is_pending(self, schema: TableSchema) -> bool:
        """Return whether changes of a snapshot of this table are yet to be published."""
        found = self._tables.get(_id(schema))
        return self._mode in ("initial", "always") and (found is None or found.state in ("wanted", "taken"))

    def taken_at(self, schema: TableSchema) -> int:
        """Return when the snapshot of a table was taken (microseconds); 0 if there is none."""
        found = self._tables.get(_id(schema))
        return found.taken_at if found else 0

    def status(self) -> dict[str, Any]:
        """Return what is to be seen of each snapshot, by table."""
        return {
            progress.table: {
                "state": "failed" if table_id in self._faults else progress.state,
                "sstables": progress.sstables,
                "sstables_read": progress.read,
                "changes": progress.published,
            }
            for table_id, progress in self._tables.items()
        }

    def close(self) -> None:
        """Wait for what the node is asked to do."""
        self._worker.shutdown(cancel_futures=True)

    def _all(self) -> Iterator[bool]:
        """Work on one table after the other; yield whether to go on at once."""
        while True:
            schema = self._next()
            if schema is None:
                yield False
                continue
            table_id = _id(schema)
            progress = self._tables.get(table_id)
            if progress is None or progress.state == "wanted":
                yield from self._take(schema, table_id, progress)
            elif progress.state == "taken":
                yield from self._publish(schema, table_id, progress)
            else:
                yield from self._delete(table_id, progress)

    def _next(self) -> TableSchema | None:
        """Return the next table with something to do. Of one that was dropped, what was taken can still be read."""
        for schema, is_live in self._candidates:
            table_id = _id(schema)
            progress = self._tables.get(table_id)
            if progress is not None and progress.state == "done":
                continue
            if not is_live and (progress is None or progress.state == "wanted"):
                continue
            if table_id not in self._faults and time.monotonic() >= self._not_before.get(table_id, 0.0):
                return schema
        return None

    def _take(self, schema: TableSchema, table_id: UUID, before: SnapshotProgress | None) -> Iterator[bool]:
        tag = f"writetime-{datetime.now(UTC):%Y%m%dT%H%M%S}-{table_id.hex[:8]}"
        progress = before or SnapshotProgress(schema.full_name, tag)
        self._keep(table_id, progress)

        def ask() -> list[Path]:
            data_folders, port = self._told_by_node()
            if before is not None:
                # It may have been taken, and the agent was killed before it knew.
                delete(port, progress.table, progress.tag)
            return take(data_folders, port, progress.table, table_id, progress.tag)

        try:
            folders = yield from self._in_thread(ask)
        except _FAULTS as e:
            self._later(table_id, f"{progress.table}: its snapshot cannot be taken: {e}")
            return
        log.info("%s: the snapshot %s is taken", progress.table, progress.tag)
        taken_at = time.time_ns() // 1000
        self._keep(table_id, replace(progress, state="taken", folders=[str(f) for f in folders], taken_at=taken_at))

    def _publish(self, schema: TableSchema, table_id: UUID, progress: SnapshotProgress) -> Iterator[bool]:
        if not self._announce(self._stop):
            return
        try:
            locations = [location for folder in progress.folders for location in find_sstables(folder)]
            if progress.sstables not in (0, len(locations)):
                raise Missing(f"{len(locations)} SSTables of {progress.sstables} are there")
            progress = replace(progress, sstables=len(locations))
            for location in locations[progress.read :]:
                sstable, pieces = yield from self._in_thread(partial(_open, location, schema))
                for piece in pieces[progress.pieces :]:
                    origin = Origin("sstable", location.path("Data.db"), datetime.now(UTC), self._node_id)
                    for changes in sstable.scan(split=piece, window=_PORTION_BYTES, origin=origin):
                        progress = self._send(schema, changes, progress)
                        yield True
                    progress = replace(progress, pieces=progress.pieces + 1)
                    self._keep(table_id, progress)
                progress = replace(progress, read=progress.read + 1, pieces=0)
                self._keep(table_id, progress)
        except Missing as e:
            self._later(table_id, f"{progress.table}: the snapshot {progress.tag} is gone, a new one is taken: {e}")
            self._keep(table_id, SnapshotProgress(progress.table, progress.tag))
            return
        except (StorageError, SchemaError, BadValue, Unpublishable) as e:
            self._fail(table_id, progress, str(e))
            return
        if progress.changes != progress.published:
            self._fail(table_id, progress, f"{progress.changes} changes were read, but {progress.published} published")
            return
        log.info("%s: %d changes of its snapshot were read and published", progress.table, progress.published)
        self._keep(table_id, replace(progress, state="published"))

    def _send(self, schema: TableSchema, changes: pa.RecordBatch, progress: SnapshotProgress) -> SnapshotProgress:
        """Publish a portion; return the progress after it, once it is acknowledged."""
        assert self._publisher is not None
        sent = self._publisher.send(schema, changes).all()
        if not self._publisher.flush(self._stop):
            raise WritetimeError(f"{schema.full_name}: a portion of its snapshot was not acknowledged before the stop")
        self._metrics.published(counts_of(schema.full_name, changes))
        self.published[schema.full_name] += sent
        return replace(progress, changes=progress.changes + changes.num_rows, published=progress.published + sent)

    def _delete(self, table_id: UUID, progress: SnapshotProgress) -> Iterator[bool]:
        try:
            yield from self._in_thread(lambda: delete(self._told_by_node()[1], progress.table, progress.tag))
        except _FAULTS as e:
            self._later(table_id, f"{progress.table}: its snapshot {progress.tag} cannot be deleted: {e}")
            return
        self._keep(table_id, replace(progress, state="done"))

    def _in_thread(self, call: Callable[[], _T]) -> Generator[bool, None, _T]:
        job = self._worker.submit(call)
        while not job.done():
            yield False
        return job.result()

    def _told_by_node(self) -> tuple[list[str], int]:
        """Return the node's data folders, and its JMX port."""
        folders = self._node.setting("data_file_directories") or ""
        return listed(folders), jmx_port(self._node.pairs("SELECT name, value FROM system_views.system_properties"))

    def _keep(self, table_id: UUID, progress: SnapshotProgress) -> None:
        self._tables[table_id] = progress
        write_json(self._path, {str(key): asdict(value) for key, value in self._tables.items()})

    def _later(self, table_id: UUID, fault: str) -> None:
        """Say what went wrong, and try again after a while."""
        self._metrics.error("snapshot")
        log.error("%s; trying again", fault)
        self._not_before[table_id] = time.monotonic() + _AGAIN_SECONDS

    def _fail(self, table_id: UUID, progress: SnapshotProgress, fault: str) -> None:
        """Give a snapshot up until the agent is started again, which takes a new one."""
        self._metrics.error("snapshot")
        log.error(
            "%s: its snapshot %s is given up: %s; mend the table (nodetool scrub) and start the agent again, or bring "
            "another snapshot into the lake by `writetime backfill` and set capture.snapshot to never",
            *(progress.table, progress.tag, fault),
        )
        self._faults[table_id] = fault
        self._keep(table_id, SnapshotProgress(progress.table, progress.tag))


def _id(schema: TableSchema) -> UUID:
    """Return the table's id, which every schema of a node has."""
    assert schema.id is not None
    return schema.id


def _open(location: Location, schema: TableSchema) -> tuple[SSTable, list[Split]]:
    """Open an SSTable and cut it into pieces, which reads all of its index."""
    sstable = SSTable(location, schema)
    return sstable, sstable.splits(_PIECE_BYTES)
