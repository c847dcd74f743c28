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
from writetime.core.errors import Transient, WritetimeError
from writetime.delta.bucketed_table import Conflict
from writetime.delta.versions import TableVersion
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
from writetime.replication.sstable_carrier import SSTableCarrier, TransferLost, require_replicable
from writetime.replication.target_table import (
    follow_schema,
    is_table,
    require_empty,
    require_same_clock,
    with_names_of_keys,
)
from writetime.schema.table import TableSchema
from writetime.schema.types import Native

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.5
# After this time, nodes that have not imported SSTables are an error.
_IMPORT_SECONDS = 600.0
# A first load has a transfer per so many bytes of the lake, so that one that was killed does not begin from zero. Each
# takes seconds.
_LOAD_BYTES = 1 << 30
_END_OF_TIME = (1 << 63) - 1


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
        *,
        load_bytes: int = _LOAD_BYTES,
    ) -> None:
        """Replicate a part of a table through a session of a cluster, whose name is for positions and errors. The
        settings are those of the source, and have the cluster's folder for SSTables. A first load has a transfer per so
        many bytes of the lake.
        """
        self._load_bytes = load_bytes
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
        self.is_waiting = False
        """Whether the last call has left changes for the next one, because nodes have to import SSTables."""

    @property
    def position(self) -> ReplicationPosition | None:
        """The newest position."""
        return self._read()

    def replicate(
        self,
        table: LakeTable,
        *,
        again: bool = False,
        wait: bool = True,
        proceed: Callable[[], None] = lambda: None,
    ) -> int:
        """Write the changes that the target lacks, and return the number of rows and deletions that were written.

        Args:
            table: the table.
            again: write the whole table first.
            wait: wait for nodes on other machines that have to import SSTables. If not, see `is_waiting`.
            proceed: is called before each request, and may raise.

        Raises:
            Conflict: another program replicates the table.
            Transient: the target does not answer, or the lake cannot be read now. The next call continues.
            WritetimeError: the table, or a value, cannot be written to the target, or the target lacks changes.
        """
        try:
            with driver_faults_named(self._needed_by):
                self._proceed, self.has_carried = proceed, False
                written = self._replicate(table, again=again)
                while wait and self.is_waiting:
                    proceed()
                    time.sleep(_PAUSE_SECONDS)
                    written += self._replicate(table, again=False)
                return written
        except UnknownWrite as e:
            raise UnknownWrite(f"the cluster {self._cluster} did not answer ({e}): this is tried again") from None

    def _replicate(self, table: LakeTable, *, again: bool) -> int:
        self.is_waiting = False
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
            if position is not None and position.transfer is not None and target.carrier is not None:
                # A node must not import it any more.
                target.carrier.remove(position.transfer)
            # What is there may be rows that the lake no longer knows were deleted.
            require_empty(self._session, self._name, self._cluster)
            position = self._at(changes, target, loaded=())
            self._write(position)
        self._require_same(table, position, changes, target)
        self._continue_transfer(position, target)
        written = 0
        if not self.is_waiting:
            written = self._load(table, self._known(), target)
        if not self.is_waiting:
            written += self._write_changes(table, state, changes, target)
        return written

    def _known(self) -> ReplicationPosition:
        position = self._read()
        assert position is not None
        return position

    def _followed(self, table: LakeTable, changes: TableVersion) -> _Target:
        """Return the table in the target, after its columns follow those of a version of the changes."""
        schema = table.schema(changes)
        if self._target is None or self._target.source != schema or not is_table(self._session, self._target.schema):
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
        """Write what is left of the first load. Changes that came since it began are in it, or in the next batch."""
        if position.loaded is None:
            return 0
        written, left = 0, [bucket for bucket in range(table.buckets) if bucket not in position.loaded]
        held = sum(file.size for version in (table.state.load(), table.changes.load()) for file in version.files)
        size = 1 if target.carrier is None else max(table.buckets * self._load_bytes // max(held, self._load_bytes), 1)
        for start in range(0, len(left), size):
            some = left[start : start + size]
            loaded = (*(self._known().loaded or ()), *some)
            then = position.model_copy(update={"loaded": loaded, "written_at": time_now()})
            written += self._write_buckets(table, some, then, target)
            if self.is_waiting:
                return written
        log.info("%s: %s has the whole table", self._name, self._cluster)
        self._write(position.model_copy(update={"loaded": None, "written_at": time_now()}))
        return written

    def _write_buckets(
        self, table: LakeTable, buckets: Sequence[int], then: ReplicationPosition, target: _Target
    ) -> int:
        parts = [_Part(partial(self._bucket, table, bucket, target)) for bucket in buckets]
        if target.carrier is not None:
            try:
                transfer, count = target.carrier.write(parts)
            except Transient:
                raise
            except WritetimeError as e:
                # Such as an expiry that the version of the SSTables cannot hold.
                if any(target.carrier.is_needed_by(part.state()) for part in parts):
                    raise
                log.warning("%s: a part of the first load goes by CQL: %s", self._name, e)
            else:
                self._begin_transfer(transfer, then, target)
                return count
        written = sum(self._send(part.state(), target) for part in parts)
        self._write(then)
        return written

    def _begin_transfer(self, transfer: str, then: ReplicationPosition, target: _Target) -> None:
        """Let the nodes import a transfer. The position names it first, so that other programs continue it, too."""
        assert target.carrier is not None
        position = self._known().model_copy(update={"transfer": transfer, "then": then, "written_at": time_now()})
        try:
            self._write(position)
        except Conflict:
            target.carrier.remove(transfer)
            raise
        self._continue_transfer(position, target)

    def _continue_transfer(self, position: ReplicationPosition, target: _Target) -> None:
        """Import the transfer of a position, if it has one. When all nodes have done so, go on to the next position."""
        if position.transfer is None or position.then is None:
            return
        if target.carrier is None:
            raise WritetimeError(
                f"{self._cluster} has not imported all SSTables of {self._name}: set [clusters.{self._cluster}] "
                "sstables again, and run this again"
            )
        try:
            until = position.written_at / 1_000_000 + _IMPORT_SECONDS
            if not target.carrier.is_imported(position.transfer, until=until):
                self.is_waiting = True
                return
            then = position.then.model_copy(update={"written_at": time_now()})
            self.has_carried = position.loaded is None
        except TransferLost as e:
            log.warning("%s: SSTables for %s are written again: %s", self._name, self._cluster, e)
            then = position.model_copy(update={"transfer": None, "then": None})
            # It may be another table now.
            self._target = None
            self.is_waiting = True
        except WritetimeError:
            # Another program may have finished it meanwhile, and removed it.
            if self._positions.read() != position:
                self._is_read = False
                raise Conflict(f"another program replicates {self._name} to {self._cluster}: run this again") from None
            raise
        self._write(then)
        target.carrier.remove(position.transfer)

    def _bucket(self, table: LakeTable, bucket: int, target: _Target) -> pa.Table:
        """Return a bucket as it is now: files are deleted an hour after they were replaced."""
        self._proceed()
        found = contents(table, table.state.load(), table.changes.load()).get(bucket)
        merged = merge([], target.source) if found is None else found.merged(target.source)
        return self._part.of(merged, target.source)

    def _write_changes(self, table: LakeTable, state: TableVersion, changes: TableVersion, target: _Target) -> int:
        position = self._known()
        files = files_since(table, changes, position.version)
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
            transfer, count = target.carrier.write(carried)
            self._begin_transfer(transfer, self._at(changes, target), target)
            return written + count
        if changes.version > position.version:
            self._write(self._at(changes, target))
        return written

    def _with_deletions(
        self, table: LakeTable, state: TableVersion, changes: TableVersion, found: PendingChanges, target: _Target
    ) -> pa.Table:
        """Merge changes, and select the part of them. Where they are older than `gc_grace_seconds` of the target, it
        may have dropped deletions that cover them, so they are merged with the state. So are counters: a cell has one
        write time there, and a deletion would not cover the older ones of its parts.
        """
        merged = found.merged(target.source)
        oldest = time_now() - target.schema.gc_grace_seconds * 1_000_000
        if any(column.type == Native("counter") for column in target.source.static + target.source.regular):
            oldest = _END_OF_TIME
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
