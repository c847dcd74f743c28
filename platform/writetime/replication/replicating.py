"""Writes the changes of a table to another cluster: first all of its state, then each batch of new changes.

A batch is merged first, so that each cell is written once. It may be written again after a failure, which changes
nothing: the newer of two writes wins in the target, as in the source, whatever their order.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from cassandra.cluster import Session

from writetime.clients.database import find_replicas
from writetime.clients.prepared_statements import UnknownWrite, driver_faults_named
from writetime.clients.scylla_node import is_scylla
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.delta.versions import DataFile, TableVersion
from writetime.files.key_ranges import places_of
from writetime.lake.bucket_contents import PendingChanges, StateFiles, combined
from writetime.lake.horizon import captured_until, complete_snapshot, registered_sources, written_until
from writetime.lake.replica_positions import Positions, ReplicationPosition
from writetime.lake.state import contents, files_since, generation_of, has_lost, in_parts
from writetime.lake.table import LakeTable
from writetime.lake.views import time_now
from writetime.merge import merge
from writetime.replication.cell_statements import CellStatements
from writetime.replication.cluster_sessions import connected
from writetime.replication.replicated_part import ReplicatedPart
from writetime.replication.requests import WriteBatch, batches_of, send
from writetime.replication.row_writes import RowWrites
from writetime.replication.source_options import source_options
from writetime.replication.sstable_carrier import SSTableCarrier, require_replicable
from writetime.replication.target_table import (
    follow_schema,
    require_empty,
    require_same_clock,
    with_names_of_keys,
)
from writetime.schema.table import TableSchema

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Target:
    """The table in the target: its schema there, by the schema of the source, its statements, and its SSTables, if the
    cluster has a folder for them.
    """

    source: TableSchema
    schema: TableSchema
    writes: RowWrites
    carrier: SSTableCarrier | None


@dataclass(frozen=True)
class _Part:
    """Merged changes that are computed when they are carried."""

    state: Callable[[], pa.Table]


class TableReplicator:
    """Replicates a table to a cluster. It keeps its position and its prepared statements, so one thread may use it."""

    def __init__(
        self,
        settings: Settings,
        session: Session,
        table: LakeTable,
        cluster: str,
        part: ReplicatedPart = ReplicatedPart(),  # noqa: B008 Frozen.
    ) -> None:
        """Replicate a part of a table through a session of a cluster, whose name is for positions and errors. The
        settings are those of the source, and have the cluster's folder for SSTables.
        """
        self._settings = settings
        self._session, self._name, self._cluster, self._part = session, table.name, cluster, part
        self._needed_by = f"the replication of {table.name} to {cluster}"
        self._positions = Positions(table, cluster)
        self._is_read = False
        self._position: ReplicationPosition | None = None
        self._target: _Target | None = None
        self._proceed: Callable[[], None] = lambda: None
        find_replicas(session, table.name.partition(".")[0])
        self._is_clock_right = False
        self._sstables = settings.clusters[cluster].sstables
        self.has_carried = False
        """Whether the last call has written a batch as SSTables, which costs seconds of each node."""

    @property
    def position(self) -> ReplicationPosition | None:
        """The newest position."""
        return self._read()

    def replicate(self, table: LakeTable, *, again: bool = False, proceed: Callable[[], None] = lambda: None) -> int:
        """Write the changes that the target lacks, and return the number of rows and deletions that were written.
        With `again`, the whole table is written first. `proceed` is called before each request, and may raise.

        Raises:
            Conflict: another program replicates the table.
            Transient: the target does not answer, or the lake cannot be read now. The next call continues.
            WritetimeError: the table, or a value, cannot be written to the target, or the target lacks changes.
        """
        try:
            with driver_faults_named(self._needed_by):
                self._proceed, self.has_carried = proceed, False
                return self._replicate(table, again=again)
        except UnknownWrite as e:
            raise UnknownWrite(f"the cluster {self._cluster} did not answer ({e}): this is tried again") from None

    def _replicate(self, table: LakeTable, *, again: bool) -> int:
        # The state first: it never holds more than the changes that are read after it.
        state, changes = table.state.load(), table.changes.load()
        if generation_of(state) != generation_of(changes):
            # Landing is about to rebuild the state.
            return 0
        if not self._is_clock_right:
            require_same_clock(self._session, self._cluster)
            self._is_clock_right = True
        target = self._followed(table, changes)
        try:
            position = self._read()
        except WritetimeError:
            if not again:
                raise
            position = None
        if position is None or again:
            # What is there may be rows that the lake no longer knows were deleted.
            require_empty(self._session, self._name, self._cluster)
            position = self._at(changes, target, loaded=())
            self._write(position)
        self._require_same(table, position, changes, target)
        written = 0
        if position.loaded is not None:
            written = self._load(table, position, target)
        files = files_since(table, changes, position.version)
        written += self._write_changes(table, state, files, changes, target)
        if changes.version > position.version:
            self._write(self._at(changes, target))
        return written

    def _followed(self, table: LakeTable, changes: TableVersion) -> _Target:
        """Return the table in the target, after its columns follow those of a version of the changes."""
        schema = table.schema(changes)
        if self._target is None or self._target.source != schema:
            self._part.require_fit(schema)
            written = self._part.schema(schema)
            to_scylla = is_scylla(self._session)
            if self._sstables is None:
                require_replicable(written, self._cluster, to_scylla=to_scylla)
            found = follow_schema(
                self._session,
                schema,
                self._cluster,
                to_scylla=to_scylla,
                options=lambda: source_options(self._settings, schema),
            )
            statements = CellStatements(self._session, with_names_of_keys(written, found))
            carrier = self._carrier(written, found, to_scylla=to_scylla)
            self._target = _Target(schema, found, RowWrites(statements, written), carrier)
        return self._target

    def _carrier(self, written: TableSchema, found: TableSchema, *, to_scylla: bool) -> SSTableCarrier | None:
        if self._sstables is None:
            return None
        # An SSTable names no table, and no columns that were dropped.
        own = replace(written, id=None, dropped=())
        return SSTableCarrier(self._session, self._sstables, own, str(found.id), to_scylla=to_scylla)

    def _read(self) -> ReplicationPosition | None:
        if not self._is_read:
            self._position = self._positions.read()
            self._is_read = True
        return self._position

    def _write(self, position: ReplicationPosition) -> None:
        self._is_read = False
        self._positions.write(position)
        self._position, self._is_read = position, True

    def _at(self, changes: TableVersion, target: _Target, loaded: tuple[int, ...] | None = None) -> ReplicationPosition:
        commit = changes.commit_id
        return ReplicationPosition(
            generation=generation_of(changes),
            version=commit.version,
            digest=commit.digest,
            complete_until=captured_until(changes) if registered_sources(changes) else complete_snapshot(changes),
            written_at=time_now(),
            target_id=str(target.schema.id),
            part=self._part.text,
            loaded=loaded,
        )

    def _require_same(
        self, table: LakeTable, position: ReplicationPosition, changes: TableVersion, target: _Target
    ) -> None:
        """Raise a WritetimeError if the target does not have what the position says."""
        if position.generation != generation_of(changes):
            fault = f"{self._name} was truncated, or dropped and created again"
        elif position.target_id != str(target.schema.id):
            fault = f"{self._name} was dropped and created again in {self._cluster}"
        elif position.part != self._part.text:
            fault = f"replicate_where or replicate_mask of {self._name} has changed"
        elif not table.changes.has_commit(position.commit, changes):
            lost = has_lost(position.commit, changes)
            fault = f"commit {position.version} of {table.changes.storage.address} {lost}"
        else:
            return
        raise WritetimeError(
            f"{fault}, so it is no longer replicated: TRUNCATE it in {self._cluster}, and run `writetime replicate "
            f"{self._name} --again`"
        )

    def _load(self, table: LakeTable, position: ReplicationPosition, target: _Target) -> int:
        """Write the whole table: as SSTables, or by CQL. Changes that came since the load began are in it, or in the
        next batch.
        """
        if target.carrier is None:
            written = self._load_by_cql(table, position, target)
        else:
            parts = [_Part(partial(self._bucket, table, bucket, target)) for bucket in range(table.buckets)]
            written = target.carrier.carry(parts, f"{position.version}-load", self._proceed)
        log.info("%s: %s has the whole table", self._name, self._cluster)
        self._write(position.model_copy(update={"loaded": None, "written_at": time_now()}))
        return written

    def _load_by_cql(self, table: LakeTable, position: ReplicationPosition, target: _Target) -> int:
        written, loaded = 0, list(position.loaded or ())
        for bucket in range(table.buckets):
            if bucket in loaded:
                continue
            written += self._send(self._bucket(table, bucket, target), target)
            loaded.append(bucket)
            self._write(position.model_copy(update={"loaded": tuple(loaded), "written_at": time_now()}))
        return written

    def _bucket(self, table: LakeTable, bucket: int, target: _Target) -> pa.Table:
        """Return a bucket as it is now: files are deleted an hour after they were replaced."""
        found = contents(table, table.state.load(), table.changes.load()).get(bucket)
        merged = merge([], target.source) if found is None else found.merged(target.source)
        return self._part.of(merged, target.source)

    def _write_changes(
        self,
        table: LakeTable,
        state: TableVersion,
        files: Sequence[DataFile],
        changes: TableVersion,
        target: _Target,
    ) -> int:
        parts, files_of = in_parts(table.changes.storage, files, table.buckets)
        of_state = StateFiles(table, state, parts=parts)
        written, carried = 0, []
        for part, found in files_of.items():
            waiting = of_state.waiting(part, found)
            merged = self._with_deletions(table, state, changes, waiting, target)
            if target.carrier is not None and target.carrier.is_needed_by(merged):
                # They wait for those of the other parts, which may not fit into memory together.
                carried.append(_Part(partial(self._with_deletions, table, state, changes, waiting, target)))
            else:
                written += self._send(merged, target)
        if carried:
            assert target.carrier is not None
            assert self._position is not None
            name = f"{self._position.version}-{changes.version}"
            written += target.carrier.carry(carried, name, self._proceed)
            self.has_carried = True
        return written

    def _with_deletions(
        self, table: LakeTable, state: TableVersion, changes: TableVersion, found: PendingChanges, target: _Target
    ) -> pa.Table:
        """Merge changes, and select the part of them. Where they are older than `gc_grace_seconds` of the target, it
        may have dropped deletions that cover them, so they are merged with the state.
        """
        merged = found.merged(target.source)
        oldest = time_now() - target.schema.gc_grace_seconds * 1_000_000
        late = merged.filter(pa.array(written_until(merged, target.source, oldest)))
        # Of none, all has expired, and was dropped.
        if late.num_rows and (held := list(contents(table, state, changes).values())):
            merged = merge([merged, combined(held).merged(target.source, places_of(late))], target.source)
        return self._part.of(merged, target.source)

    def _send(self, merged: pa.Table, target: _Target) -> int:
        """Write merged changes to the target; return their number."""
        batches = batches_of(target.writes.of(merged, time.time))
        send(self._session, self._allowed(batches), self._needed_by)
        return merged.num_rows

    def _allowed(self, batches: Iterable[WriteBatch]) -> Iterator[WriteBatch]:
        for batch in batches:
            self._proceed()
            yield batch


@contextmanager
def replicator(
    settings: Settings,
    table: LakeTable,
    cluster: str,
    part: ReplicatedPart = ReplicatedPart(),  # noqa: B008 Frozen.
) -> Iterator[TableReplicator]:
    """Yield a replicator of a table to one of `[clusters]`, with a session of its own. Raises as `connect`."""
    with connected(settings, cluster) as session:
        yield TableReplicator(settings, session, table, cluster, part)
