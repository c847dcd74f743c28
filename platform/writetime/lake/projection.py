"""Projections of a table's changes: the view and the row events, which follow the changes batch by batch.

A batch leads from one commit of `changes`, as of one time, to the next. Its files and its position take effect in one
commit. So a reader always sees the rows of one time, a batch that is killed before its commit leaves nothing, and of
two batches at once, one fails.
"""

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from writetime.core.errors import Transient, WritetimeError, reason_of
from writetime.delta.bucketed_table import BucketedTable, Conflict, takes_fields
from writetime.delta.commits import digest_of
from writetime.delta.deletion_vectors import DeletionVector
from writetime.delta.table_changes import TableChange
from writetime.delta.versions import CommitId, TableVersion
from writetime.lake.state import files_since, generation_of, has_lost
from writetime.lake.table import LakeTable, created_of, find_version

AS_OF = "writetime.as_of"
"""The time of a projection (microseconds), for readers of its log."""

CLOCKS_DIFFER = 60_000_000
"""The most difference between the clocks of machines that take turns (microseconds)."""

# A number in each of our commits to the view: the digest of the files that it leaves.
_DIGEST = "writetime-files"
_log = logging.getLogger(__name__)


class TooLate(WritetimeError):
    """The rows as of the last batch no longer exist, because it was too long ago."""


class OtherChanges(TooLate):
    """The last batch has read a commit that `changes` does not have."""


@dataclass(frozen=True)
class EventBatch:
    """A batch, and the generation of its projection. `as_of` is in microseconds."""

    generation: int
    sequence: int
    as_of: int


@dataclass(frozen=True)
class Position:
    """The position of a projection: its last batch, and the commits of `changes` and `state` that this batch has read.
    This version of `state` holds no more changes than that of `changes`.
    """

    batch: EventBatch
    changes: CommitId
    state: CommitId


@dataclass(frozen=True)
class Projection:
    """A projection: the name of its Delta table in `LakeTable`, with which the names of its numbers begin.

    If it `lists_files`, each commit records which files, with which deletion vectors, it leaves. So the next one knows
    whether another program has changed them since.
    """

    name: str
    lists_files: bool

    def of(self, table: LakeTable) -> BucketedTable:
        """Return the Delta table of the projection."""
        return getattr(table, self.name)

    def named(self, number: str) -> str:
        """Return the name of a number in a commit, a transaction of Delta."""
        return f"{self.name}/{number}"

    def position(self, version: TableVersion | None) -> Position | None:
        """Return the position that a version records; None before its first batch, or without a version."""
        if version is None:
            return None
        generation, sequence, as_of = (
            version.transaction(self.named(number)) for number in ("generation", "sequence", "as_of")
        )
        changes, state = (version.commit_of(self.named(part)) for part in ("changes", "state"))
        if generation is None or sequence is None or as_of is None or changes is None or state is None:
            return None
        return Position(EventBatch(generation, sequence, as_of), changes, state)

    def is_ours(self, version: TableVersion) -> bool:
        """Return whether the files are those of Writetime's last commit, so that no other program has added, removed,
        marked or restored any. This is assumed of a projection that does not list its files.
        """
        if not self.lists_files:
            return True
        return version.transaction(_DIGEST) == _digest({path: file.vector for path, file in version.by_path.items()})

    def with_fields(
        self, table: LakeTable, before: TableVersion, wanted: pa.Schema, created: int
    ) -> tuple[TableVersion, pa.Schema | None]:
        """Give the projection the fields that its rows have; return its version with them, and None.

        If it has values in another form, as from an earlier release, or belongs to another table of the name than
        `created`, it must begin again. Then change nothing, and return these fields: the commit of the next batch must
        set them, and replace all files. If they were set before, a kill would leave a projection without the rows up to
        its position.
        """
        if not takes_fields(before.fields, wanted) or created_of(before) != created:
            return before, wanted
        delta = self.of(table)
        # Another program may have restored a version from before a column was added.
        return (delta.load() if delta.add_fields(wanted) else before), None

    def commit(
        self,
        table: LakeTable,
        before: TableVersion,
        change: TableChange,
        position: Position | None = None,
        also: Mapping[str, int] = {},
    ) -> None:
        """Commit a change of files together with the position that it leads to, by the steps of `BucketedTable.commit`.
        Without a position, as if files are packed, the rows stay those of the position of `before`. `also` are further
        numbers to store with the commit. Raise `Conflict` if a file of the change, or one of the numbers, has changed
        since `before`, as by another batch, or another program has changed the files: run this again.
        """
        delta, numbers = self.of(table), dict(also)
        if position:
            batch = position.batch
            own = {"generation": batch.generation, "sequence": batch.sequence, "as_of": batch.as_of}
            numbers |= {self.named(number): value for number, value in own.items()}
            numbers |= position.changes.numbers(self.named("changes")) | position.state.numbers(self.named("state"))

        def digest(now: TableVersion) -> Mapping[str, int]:
            if not self.lists_files:
                return {}
            # Changes that another program has made since must not count as Writetime's own.
            if now.by_path != before.by_path and not self.is_ours(now):
                raise delta.conflict()
            return {_DIGEST: _digest(change.files_after(now.by_path))}

        as_of = position.batch.as_of if position else before.transaction(self.named("as_of")) or 0
        try:
            delta.commit(before, change, numbers, numbers_after=digest, info={AS_OF: str(as_of)})
        except Conflict as e:
            if position is None:
                raise
            raise Conflict(f"batch {position.batch.sequence} is not added: {e}") from None
        self.publish(table)

    def publish(self, table: LakeTable) -> None:
        """Publish the newest version of the projection as an Iceberg table, if `lake.iceberg` is on. It costs a few
        requests if it is published. A fault is logged, and does not stop the projection: a later call repairs it.
        """
        try:
            self.publish_files(table)
            if (iceberg := table.iceberg.get(self.name)) and table.registers:
                iceberg.register(at_once=False)
        except Exception as e:
            # An error that is not ours may be a bug, so its traceback is logged.
            bug = not isinstance(e, WritetimeError | OSError)
            what = "%s: the Iceberg table of %s is not published: %s"
            _log.error(what, table.name, self.name, reason_of(e), exc_info=bug)

    def settle(self, table: LakeTable) -> None:
        """Do the same as `publish`, and raise its faults, as `IcebergTable.publish` and `register`."""
        self.publish_files(table)
        if (iceberg := table.iceberg.get(self.name)) and table.registers:
            iceberg.register()

    def publish_files(self, table: LakeTable) -> None:
        """Do the same as `settle`, without the catalog. Raise as `IcebergTable.publish`."""
        if (iceberg := table.iceberg.get(self.name)) and self.of(table).exists():
            iceberg.publish()

    def move_on(self, table: LakeTable) -> None:
        """Move to the present version of the changes, by a batch without rows as of the same time, because the log of
        the last version will be deleted. Data that has expired waits for the next batch.

        Nothing is done if the changes or the schema are others since then, if there is no later version, or if the log
        of the last version no longer exists. If another program has changed the files, the position stays, and the next
        batch writes all rows. Raise `Transient` if the lake cannot be read now.
        """
        before = self.of(table).find()
        last = self.position(before)
        if before and last and self.is_ours(before) and (position := moved_on(table, last)):
            # A process that was first has recorded a later position.
            with suppress(Conflict):
                self.commit(table, before, TableChange(is_new_data=False), position)


VIEW = Projection("view", lists_files=True)
ROW_EVENTS = Projection("row_events", lists_files=False)


def positions(table: LakeTable) -> Iterable[Position]:
    """Return the positions of the projections that the table has."""
    found = (each.position(each.of(table).find()) for each in (VIEW, ROW_EVENTS))
    return [position for position in found if position]


def require_same_changes(table: LakeTable, last: Position, changes: TableVersion) -> None:
    """Check that the last batch has read a commit of the changes, given a version of these that was loaded just now.
    Raise `OtherChanges` if it has not.
    """
    if not table.changes.has_commit(last.changes, changes):
        lost = has_lost(last.changes, changes)
        raise OtherChanges(f"commit {last.changes.version} of {table.changes.storage.address} {lost}")


def read_again(part: BucketedTable, commit: CommitId) -> TableVersion:
    """Return a version of a part that the last batch has read.

    Raises:
        TooLate: its log was deleted.
        Transient: the lake cannot be read now.
    """
    try:
        return part.load(commit.version)
    except Transient:
        raise
    except WritetimeError as e:
        raise TooLate(str(e)) from None


def as_of_next(last: Position, instant: int) -> int:
    """Return the time of the batch after the last one, at a time by this machine's clock (microseconds).

    It is not before that of the last batch, because clocks differ. But if the last batch is far ahead, its clock was
    wrong, and data that expired only by that clock must return.
    """
    return max(instant, last.batch.as_of) if last.batch.as_of <= instant + CLOCKS_DIFFER else instant


def moved_on(table: LakeTable, last: Position) -> Position | None:
    """Return the position of an empty next batch at the present versions; None as in `Projection.move_on`. Raise
    `Transient` if the lake cannot be read now.
    """
    # The state first: it never holds more than the changes that are read after it.
    state, changes = table.state.load(), table.changes.load()
    known = find_version(table.changes, last.changes.version)
    if not known or not table.changes.has_commit(last.changes, changes):
        return None
    is_same = generation_of(known) == generation_of(changes) and table.schema(known) == table.schema(changes)
    if known.version >= changes.version or not is_same or files_since(table, changes, known.version):
        return None
    batch = EventBatch(last.batch.generation, last.batch.sequence + 1, last.batch.as_of)
    return Position(batch, changes.commit_id, state.commit_id)


def _digest(vectors: Mapping[str, DeletionVector | None]) -> int:
    """Return a number that identifies live files with their vectors."""
    named = sorted(
        (path, vector.place if vector else "", vector.offset if vector else 0) for path, vector in vectors.items()
    )
    return digest_of(repr(named).encode())
