"""Decodes a segment on from where it was published, with the schemas of now and of then; faults become its progress."""

import logging
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from uuid import UUID

import pyarrow as pa

from writetime.capture.progress import SegmentProgress
from writetime.capture.schemas import Schemas
from writetime.schema.table import TableSchema
from writetime.storage.commitlog import CommitLogReader, SegmentReport
from writetime.storage.errors import CorruptFile, Missing, StorageError
from writetime.storage.segment import END, Place, Segment

log = logging.getLogger(__name__)

Window = list[tuple[TableSchema, pa.RecordBatch]]


class _Hidden(StorageError):
    """A write to a table without a schema, behind which changes of others may be hidden."""


class Decoder:
    """Reads the segments of a node, by its id if that is known; `refresh` it after it was asked how far they may be
    read."""

    def __init__(self, node_id: str | None, schemas: Schemas) -> None:
        self._node_id = node_id
        self._schemas = schemas
        self._reader: CommitLogReader | None = None
        self._captured: set[UUID | None] = set()

    @property
    def captured(self) -> list[TableSchema]:
        """The schemas of the tables whose changes are published, as of the last `refresh`."""
        return self._schemas.tables.captured

    @property
    def captured_and_live(self) -> list[tuple[TableSchema, bool]]:
        """Those schemas, each with whether the node has the table now."""
        tables = self._schemas.tables
        return [(schema, schema.id in tables.live) for schema in tables.captured]

    def refresh(self, *, always: bool = False) -> bool:
        """Take up the schemas of the node; return whether any is new."""
        new = self._schemas.refresh(always=always) or self._reader is None
        if new:
            known = self._schemas.tables.known
            self._captured = {schema.id for schema in self._schemas.tables.captured}
            names = {schema.full_name for schema in known if schema.id in self._captured}
            self._reader = CommitLogReader(known, names, on_unknown_table="skip")
        return new

    def read(self, segment: Segment, until: int, progress: SegmentProgress) -> Iterator[tuple[SegmentProgress, Window]]:
        """Yield the changes up to an offset by windows, each with the segment's progress after it.

        A fault is in the progress that comes last; what came before it is good.

        Raises:
            Missing: the segment is gone.
        """
        for tolerant in (False, True):
            if progress.broken:
                break
            try:
                for progress, window in self._windows(segment, until, progress, tolerant=tolerant):  # noqa: B020, PLR1704
                    yield progress, window
                break
            except Missing:
                raise
            except StorageError as e:
                if tolerant or not isinstance(e, _Hidden | CorruptFile):
                    log.error("not all of %s can be published: %s", segment.name, e)
                    progress = replace(progress, reason=str(e), broken=True)
                else:
                    log.warning("%s; reading on with the schemas of now", e)
                    self.refresh(always=True)
        yield replace(progress, finished=until == END), []

    def _windows(
        self, segment: Segment, until: int, progress: SegmentProgress, *, tolerant: bool
    ) -> Iterator[tuple[SegmentProgress, Window]]:
        assert self._reader is not None
        report = SegmentReport(progress.position, Place(*progress.place) if progress.place else None)
        read_before = progress.mutations
        unknown: Counter[UUID] = Counter()
        for found in self._reader.windows(
            segment, start=progress.position, until=until, report=report, node=self._node_id
        ):
            progress = self._with_unknown(segment, progress, report.unknown_tables - unknown, tolerant=tolerant)
            unknown = Counter(report.unknown_tables)
            window = [(schema, changes) for schema, changes in found if schema.id in self._captured]
            progress = replace(
                _reached(progress, report),
                mutations=read_before + report.mutations,
                decoded=progress.decoded + sum(changes.num_rows for _, changes in window),
            )
            yield progress, window
        yield _reached(progress, report), []

    def _with_unknown(
        self, segment: Segment, progress: SegmentProgress, found: Counter[UUID], *, tolerant: bool
    ) -> SegmentProgress:
        """Count mutations that could not be read to their ends.

        Raises:
            _Hidden: there are some, and the node was not asked for its schemas since.
        """
        for table_id, count in found.items():
            reason = self._schemas.tables.unreadable(table_id)
            if reason is None:
                continue
            if not tolerant:
                raise _Hidden(f"{segment.path}: {reason}")
            log.error("%s: %d mutations are set aside: %s", segment.path, count, reason)
            before = progress.set_aside.get(str(table_id), 0)
            set_aside = progress.set_aside | {str(table_id): before + count}
            progress = replace(progress, set_aside=set_aside, set_aside_at=time.time_ns() // 1000, reason=reason)
        return progress


def _reached(progress: SegmentProgress, report: SegmentReport) -> SegmentProgress:
    place = (report.place.position, report.place.offset) if report.place else None
    return replace(progress, position=report.position, place=place)
