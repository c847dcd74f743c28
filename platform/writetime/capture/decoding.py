"""Decodes a segment from its published position on, with current and past schemas, hands its changes over to the
broker, and compares its counts at its end. Faults join its progress.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from uuid import UUID

import pyarrow as pa

from writetime.capture.change_publisher import ChangePublisher, Choose, Sent
from writetime.capture.node_schemas import Schemas
from writetime.capture.progress import SegmentProgress
from writetime.core.counts import pluralize
from writetime.core.errors import Transient, reason_of
from writetime.schema.table import TableSchema
from writetime.storage.commitlog import CommitLogReader, SegmentReport, Window, count_mutations, valid_index
from writetime.storage.file_errors import CorruptFile, MissingFile, StorageError, TornTail
from writetime.storage.segment import END, Segment, SyncMarker

log = logging.getLogger(__name__)

# How often a segment is read before an unknown fault counts as a fault of the segment.
_ATTEMPTS = 3
# The columns whose value `false` keeps writes out of the captured log.
_SWITCHES = {"system_schema.keyspaces": "durable_writes", "system_schema.tables": "cdc"}

# The decoded changes of a table, and those of them that were handed over.
Handed = list[tuple[TableSchema, pa.RecordBatch, Sent]]


@dataclass(frozen=True)
class Switch:
    """A schema change in the log after which writes to a keyspace or table are not captured, and its write time
    (microseconds). `column` is the one that is false.
    """

    keyspace: str
    table: str | None
    column: str
    at: int


class _Fault(StorageError):
    """Changes that cannot be read with the known schemas, but perhaps with the node's current ones."""


class Decoder:
    """Reads the segments of a node, whose id may be unknown. Call `refresh` after reading their trusted offsets."""

    def __init__(self, node_id: str | None, schemas: Schemas) -> None:
        self._node_id = node_id
        self._schemas = schemas
        self._reader: CommitLogReader | None = None
        self._captured: set[UUID | None] = set()
        # Those that were read, until the agent records them.
        self.switches: list[Switch] = []

    def refresh(self, *, always: bool = False) -> bool:
        """Read the schemas of the node; return whether any is new."""
        new = self._schemas.refresh(always=always) or self._reader is None
        if new:
            known = self._schemas.tables.known
            self._captured = {schema.id for schema in self._schemas.tables.captured}
            # The segments of an archive have no watermark.
            switches = _SWITCHES if self._node_id is not None else {}
            names = {s.full_name for s in known if s.id in self._captured or s.full_name in switches}
            # Release the old reader's memory for the new one. If building that fails, the next call builds it.
            self._reader = None
            self._reader = CommitLogReader(known, names, on_unknown_table="skip", on_corrupt="skip-mutation")
        return new

    def read(self, segment: Segment, until: int, progress: SegmentProgress) -> Iterator[tuple[SegmentProgress, Window]]:
        """Yield the changes up to an offset by windows, each with the segment's progress after it. If there is a fault,
        the last progress has it, and the changes before it are valid. Raise MissingFile if the segment no longer
        exists.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            if progress.broken:
                break
            try:
                for progress, window in self._windows(segment, until, progress, tolerant=attempt > 1):  # noqa: B020, PLR1704
                    yield progress, window
                break
            except (MissingFile, Transient, OSError, MemoryError):
                # The disk or the node failed. The segment itself has no fault.
                raise
            except Exception as e:
                if until == END and _was_never_written(segment, e):
                    break
                is_final = not isinstance(e, _Fault) and (
                    attempt > 1 if isinstance(e, CorruptFile) else isinstance(e, StorageError) or attempt == _ATTEMPTS
                )
                if is_final:
                    log.error("not all of %s can be published: %s", segment.name, reason_of(e))
                    progress = replace(progress.without(reason_of(e), None), broken=True)
                else:
                    log.warning("%s; continuing with the current schemas", reason_of(e))
            # Outside the handler, because the error keeps the old reader in memory.
            if not is_final:
                self.refresh(always=True)
        yield replace(progress, finished=until == END), []

    def _windows(
        self, segment: Segment, until: int, progress: SegmentProgress, *, tolerant: bool
    ) -> Iterator[tuple[SegmentProgress, Window]]:
        assert self._reader is not None
        report = SegmentReport(progress.position, SyncMarker(*progress.place) if progress.place else None)
        read_before = progress.mutations
        for found in self._reader.windows(
            segment, start=progress.position, until=until, report=report, node=self._node_id
        ):
            progress = self._with_faults(segment, progress, report, tolerant=tolerant)
            for schema, changes in found:
                if (column := _SWITCHES.get(schema.full_name)) is not None:
                    self.switches += _switches(changes, column)
            window = [(schema, changes) for schema, changes in found if schema.id in self._captured]
            progress = replace(
                _reached(progress, report),
                mutations=read_before + report.mutations,
                decoded=progress.decoded + sum(changes.num_rows for _, changes in window),
            )
            yield progress, window
        yield _reached(progress, report), []

    def _with_faults(
        self, segment: Segment, progress: SegmentProgress, report: SegmentReport, *, tolerant: bool
    ) -> SegmentProgress:
        """Count the mutations of a window that could not be read to their ends, and remove them from the report. Raise
        _Fault if there are some, and the node's schemas have not been read since.
        """
        tables = self._schemas.tables
        missing = [
            (fault.table.id, fault.reason, tables.captured_with(fault.table.id) if fault.hides else [fault.table.id])
            for fault in report.faults
            if fault.hides or fault.table.id in self._captured
        ]
        for table_id in report.unknown_tables.elements():
            if (reason := tables.unreadable(table_id)) is not None:
                missing.append((table_id, f"{segment.path}: {reason}", tables.captured_with(table_id)))
        report.faults, report.unknown_tables = [], Counter()
        if missing and not tolerant:
            raise _Fault(missing[0][1])
        for table_id, reason, lacking in missing:
            if str(table_id) not in progress.set_aside:
                log.error("changes are set aside, and later ones are published: %s", reason)
            count = progress.set_aside.get(str(table_id), 0) + 1
            progress = replace(
                progress.without(reason, lacking),
                set_aside=progress.set_aside | {str(table_id): count},
                set_aside_at=time.time_ns() // 1000,
            )
        return progress


def hand_over(
    decoder: Decoder,
    publisher: ChangePublisher,
    segment: Segment,
    until: int,
    progress: SegmentProgress,
    *,
    choose: Choose | None = None,
) -> Iterator[tuple[SegmentProgress, Handed]]:
    """Hand over the changes up to an offset, and yield them by windows, each with the progress after it. That progress
    is valid once the broker has acknowledged all changes before it; with `choose`, also those that it did not return.
    Raise MissingFile if the segment no longer exists, and a WritetimeError if Kafka refuses this change or an earlier
    one.
    """
    published = progress.published
    refused: dict[UUID | None, str] = {}
    for reached, window in decoder.read(segment, until, progress):
        handed = [(schema, changes, publisher.send(schema, changes, choose)) for schema, changes in window]
        for schema, _, sent in handed:
            published += sent.changes.num_rows
            if sent.refused is not None and schema.id not in refused:
                refused[schema.id] = sent.refused
                if str(schema.id) not in (progress.lacking or ()):
                    log.error("not all of %s can be published: %s", segment.name, sent.refused)
        after = reached.without(next(iter(refused.values())), refused) if refused else reached
        yield replace(after, published=published), handed


def unbalanced(segment: Segment, progress: SegmentProgress) -> str | None:
    """Return the mismatch of the counts of a segment that was read to its end, if there is one. If it was deleted
    since, its mutations cannot be counted again. All of them were read, so only a change that was not published is
    missing.
    """
    try:
        found = count_mutations(segment, END)
    except MissingFile:
        log.warning("%s was deleted after it was read to its end; its mutations are not counted again", segment.name)
        found = progress.mutations
    except StorageError as e:
        return str(e)
    if found != progress.mutations:
        return f"it has {pluralize(found, 'mutation')}, of which {progress.mutations} were read"
    # If there is a reason, it names the missing changes already.
    if progress.reason is None and progress.decoded != progress.published:
        return f"of {pluralize(progress.decoded, 'change')} that were decoded, {progress.published} were published"
    return None


def _was_never_written(segment: Segment, fault: Exception) -> bool:
    """Return whether a segment has no header, and no index that shows changes. A node that is killed when it makes a
    segment leaves such a file.
    """
    if not isinstance(fault, TornTail) or fault.offset != 0:
        return False
    index = valid_index(segment)
    return index is None or not (index.completed or index.offset)


def _reached(progress: SegmentProgress, report: SegmentReport) -> SegmentProgress:
    place = (report.place.position, report.place.offset) if report.place else None
    return replace(progress, position=report.position, place=place)


def _switches(changes: pa.RecordBatch, column: str) -> Iterator[Switch]:
    for row in changes.to_pylist():
        cell = row[column]
        if cell is not None and cell["value"] is False:
            yield Switch(row["keyspace_name"], row.get("table_name"), column, cell["write_time"])
