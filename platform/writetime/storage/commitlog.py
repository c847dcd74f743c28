"""Reads commit log segments as Arrow batches of changes of the tables that are asked for."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal
from uuid import UUID

import numpy as np
import pyarrow as pa

from writetime.schema.table import SchemaError, TableSchema
from writetime.storage import frames
from writetime.storage import layout as L
from writetime.storage.batch import BatchMaker, Origin
from writetime.storage.errors import CorruptFile
from writetime.storage.plan import Buffers, Plan
from writetime.storage.segment import Section, Segment
from writetime.storage.walk_mutations import walk_mutations

# Bytes of mutations that are turned into one batch a table, at least; a larger mutation makes a larger batch.
WINDOW = 1 << 20
_MUTATIONS = 1 << 16


@dataclass
class SegmentReport:
    """How far a segment was read, and what could not be: mutations cut short, by the unknown table that did it."""

    position: int = 0
    mutations: int = 0
    unknown_tables: Counter[UUID] = field(default_factory=Counter)
    torn_at: int | None = None


class CommitLogReader:
    """Reads segments of one node.

    Args:
        schemas: of *all* tables that the segments may hold writes to, as a mutation that also writes to an unknown
        table
            cannot be read further.
        tables: full names of the tables whose changes are wanted; all if None.
        fields: fields of the changes to read, for the only table that is wanted; all if None.
        on_unknown_table: at a write to a table without a schema, `fail`; or `skip` the rest of that mutation and
        count it.
        torn_tail: at a fault in the last section of a segment that is not known to be complete, `fail`; or `stop`, as
            a node that crashed leaves such a tail.

    Raises:
        SchemaError: a table that is wanted has no schema, or a schema has no table id.
    """

    def __init__(
        self,
        schemas: Sequence[TableSchema],
        tables: Collection[str] | None = None,
        *,
        fields: Sequence[str] | None = None,
        on_unknown_table: Literal["fail", "skip"] = "fail",
        torn_tail: Literal["fail", "stop"] = "fail",
    ) -> None:
        if without := [s.full_name for s in schemas if s.id is None]:
            raise SchemaError(f"commit logs name tables by their id, which the schema of {without[0]} does not have")
        if missing := set(tables or ()) - {s.full_name for s in schemas}:
            raise SchemaError(f"there is no schema of {', '.join(sorted(missing))}")
        self._on_unknown_table = on_unknown_table
        self._torn_tail = torn_tail
        self._plans: list[Plan] = []
        first = 0
        for schema in schemas:
            wanted = tables is None or schema.full_name in tables
            self._plans.append(
                Plan(schema, None if wanted and fields is None else set(fields or ()) if wanted else (), first)
            )
            first = self._plans[-1].end
        self._makers = {
            i: BatchMaker(plan, fields)
            for i, plan in enumerate(self._plans)
            if tables is None or plan.schema.full_name in tables
        }
        most = max((len(plan.columns) for plan in self._plans), default=0)
        self._header = np.zeros(2 * most + 1, np.int64)
        self._present = np.zeros(most + 1, np.uint8)
        self._buffers = self._allocate(WINDOW)

    def _allocate(self, capacity: int) -> Buffers:
        buffers = Buffers(self._plans, capacity)
        self._names = [
            (line.index, np.frombuffer(name.encode(), np.uint8))
            for plan in self._plans
            for name, line in plan.columns.items()
        ]
        for index, name in self._names:
            buffers.set_name(index, name)
        clusterings = max((len(plan.clustering) for plan in self._plans), default=0)
        self._open_start = np.empty(4 * capacity + 4 * clusterings + 64, np.uint8)
        return buffers

    def read(
        self,
        segment: Segment,
        *,
        start: int = 0,
        until: int | None = None,
        report: SegmentReport | None = None,
        node: str | None = None,
    ) -> Iterator[tuple[TableSchema, pa.RecordBatch]]:
        """Read the changes of the mutations that end after offset `start` and not after `until`, by batch and table.

        `until` is by default what `_cdc.idx` trusts. After a batch was taken, `report.position` is where to go on.

        Raises:
            Missing: the segment is not there (any more).
            CorruptFile, Unsupported: it cannot be read; nothing of the mutation at fault, or after it, is given.
            SchemaError: see `on_unknown_table`.
        """
        report = report if report is not None else SegmentReport()
        report.position = max(report.position, start)
        index = segment.cdc_index()
        complete = index is not None and index.completed
        if until is None and index is not None:
            until = index.offset
        origin = Origin("commitlog", segment.path, datetime.now(UTC), node)
        for section in segment.sections(until):
            if section.offset + len(section.data) <= start:
                continue
            limit = len(section.data) if until is None else min(until - section.offset, len(section.data))
            trusted = complete or until is not None
            yield from self._section(segment, section, start, limit, origin, report=report, trusted=trusted)
            if report.torn_at is not None:
                return

    def _section(
        self,
        segment: Segment,
        section: Section,
        start: int,
        limit: int,
        origin: Origin,
        *,
        report: SegmentReport,
        trusted: bool,
    ) -> Iterator[tuple[TableSchema, pa.RecordBatch]]:
        mutations = np.empty((_MUTATIONS, 2), np.int64)
        address = section.data.ctypes.data
        at, reason = 0, frames.END
        while reason == frames.END and at < limit:
            count, after, reason = frames.read_frames(address, at, limit, mutations)
            found = mutations[:count]
            found = found[found[:, 1] + 4 + section.offset > start]
            yield from self._walk(segment, section, found, origin, report)
            if after == at:
                break
            at = after
            report.position = max(report.position, section.offset + at)
        if reason in frames.MESSAGES:
            if self._torn_tail == "stop" and section.is_last and not trusted:
                report.torn_at = section.offset + at
            else:
                raise CorruptFile(segment.path, section.offset + at, f"found {frames.MESSAGES[reason]}")

    def _walk(
        self, segment: Segment, section: Section, mutations: np.ndarray, origin: Origin, report: SegmentReport
    ) -> Iterator[tuple[TableSchema, pa.RecordBatch]]:
        first = 0
        while first < len(mutations):
            last = int(np.searchsorted(mutations[:, 1], mutations[first, 0] + self._buffers.capacity, "right"))
            if last == first:
                self._buffers = self._allocate(int(mutations[first, 1] - mutations[first, 0]))
                continue
            self._run(segment, section, mutations[first:last], report)
            for i, maker in self._makers.items():
                if self._buffers.tables[i, L.ROWS]:
                    yield self._plans[i].schema, maker.batch(self._buffers, i, origin)
            report.position = max(report.position, section.offset + int(mutations[last - 1, 1]) + 4)
            report.mutations += last - first
            first = last

    def _run(self, segment: Segment, section: Section, mutations: np.ndarray, report: SegmentReport) -> None:
        address = section.data.ctypes.data
        state = np.zeros(L.WALK_FIELDS, np.int64)
        state[L.START] = address
        state[L.FILE_OFFSET] = section.offset
        state[L.UNSIGNED_DELETION_TIME] = segment.version >= 8
        state[L.OPEN_BYTES] = self._open_start.ctypes.data
        unread = np.zeros(len(mutations), np.int64)
        self._buffers.reset()
        status = walk_mutations(
            state, self._buffers.tables, self._buffers.columns, self._header, self._present, address, mutations, unread
        )
        if status != L.DONE:
            at = section.offset + int(state[L.POSITION]) - address
            raise CorruptFile(segment.path, at, f"found {L.MESSAGES[status]}")
        for i in np.flatnonzero(unread):
            at = int(unread[i]) - address
            table = UUID(bytes=section.data[at : at + 16].tobytes())
            if self._on_unknown_table == "fail":
                raise SchemaError(
                    f"{segment.path}, offset {section.offset + at}: the schema of table {table} is not known"
                )
            report.unknown_tables[table] += 1
