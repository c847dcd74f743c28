"""Decodes a segment from its published position on, with current and past schemas. Faults join its progress."""

import logging
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from uuid import UUID

import pyarrow as pa

from writetime.capture.node_schemas import Schemas
from writetime.capture.progress import SegmentProgress
from writetime.core.errors import Transient, reason_of
from writetime.schema.table import TableSchema
from writetime.storage.commitlog import CommitLogReader, SegmentReport, Window, valid_index
from writetime.storage.file_errors import CorruptFile, MissingFile, StorageError, TornTail
from writetime.storage.segment import END, Segment, SyncMarker

log = logging.getLogger(__name__)


# How often a segment is read before an unknown fault counts as a fault of the segment.
_ATTEMPTS = 3


# The columns whose value `false` keeps writes out of the captured log.
_SWITCHES = {"system_schema.keyspaces": "durable_writes", "system_schema.tables": "cdc"}


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

    @property
    def captured(self) -> list[TableSchema]:
        """The schemas of the tables whose changes are published, as of the last `refresh`."""
        return self._schemas.tables.captured

    @property
    def faults(self) -> dict[str, str]:
        """Why tables with CDC are not captured, by their names."""
        return self._schemas.tables.faults

    @property
    def captured_and_live(self) -> list[tuple[TableSchema, bool]]:
        """The same schemas, each with whether the node has the table now."""
        tables = self._schemas.tables
        return [(schema, schema.id in tables.live) for schema in tables.captured]

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
        """Yield the changes up to an offset by windows, each with the segment's progress after it.

        If there is a fault, the last progress has it. The changes before it are valid.

        Raises:
            MissingFile: the segment no longer exists.
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
        """Count the mutations of a window that could not be read to their ends, and remove them from the report.

        Raises:
            _Fault: there are such mutations, and the node's schemas have not been read since.
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
