"""Reads commit log segments as Arrow batches of changes of the requested tables.

The checksum of a frame covers its mutation. So the reader finds the mutations after one that it cannot decode. On
request, it leaves such a mutation out and reports it as a `MutationFault`. It does the same with the changes of one
table if they cannot be built from a readable mutation.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from typing import Literal
from uuid import UUID

import numpy as np
import pyarrow as pa

from writetime.schema.table import SchemaError, TableSchema
from writetime.storage.batch import KEY_BYTES, BatchMaker, Origin
from writetime.storage.file_errors import CorruptFile, TornTail
from writetime.storage.kernel import frames
from writetime.storage.kernel import layout as L
from writetime.storage.kernel.allocate import room, rooms
from writetime.storage.kernel.walk_mutations import walk_mutations
from writetime.storage.plan import Buffers, Plan
from writetime.storage.segment import END, CdcIndex, Segment, Stretch, SyncMarker, stretches

# The size of a batch per table, in bytes of mutations. A larger mutation makes a larger batch.
WINDOW = 1 << 20
_MUTATIONS = 1 << 16

_Change = tuple[TableSchema, pa.RecordBatch]
Window = list[_Change]


@dataclass(frozen=True)
class MutationFault:
    """A mutation with changes that were left out: its `offset` in the segment, the faulty table, and the reason.

    `hides`: all changes of the mutation were left out, and they may belong to any table of the same keyspace.
    """

    offset: int
    table: TableSchema
    reason: str
    hides: bool


@dataclass
class SegmentReport:
    """The offset up to which a segment was read, and its unreadable parts.

    A mutation that writes to an unknown table is truncated at that table. `truncated` counts such mutations by unknown
    table, and `hiding` those whose rest may write to a requested table. `faults` has the mutations with changes that
    were left out. `skipped` has the fault of each segment whose rest was left out.

    `place` is the last marker up to which everything was read. Reading can continue there without missing anything.
    """

    position: int = 0
    place: SyncMarker | None = None
    mutations: int = 0
    unknown_tables: Counter[UUID] = field(default_factory=Counter)
    hiding: Counter[UUID] = field(default_factory=Counter)
    faults: list[MutationFault] = field(default_factory=list)
    torn_at: int | None = None
    skipped: list[str] = field(default_factory=list)


# The numbers of truncated mutations by unknown table, and of those that may hide writes, as in the report.
_Unread = tuple[Counter[UUID], Counter[UUID]]


class CommitLogReader:
    """Reads segments of one node.

    Args:
        schemas: the schemas of all tables that the segments may have writes to. A mutation cannot be read after its
            write to an unknown table.
        tables: the full names of the requested tables; None for all.
        fields: the fields of the changes to read, if one table is requested; None for all.
        on_unknown_table: the action at a write to a table without a schema. `fail`: raise. `skip`: leave out the rest
            of that mutation, and count it. `count`: the same if the rest has no write to a requested table, else raise.
            A write names its table by the id, so a rest without the id has none.
        torn_tail: the action at a fault in the last section of a segment that may be incomplete. `fail`: raise. `stop`:
            end there, because a node that crashed leaves such a tail.
        on_corrupt: the action at any fault. `fail`: raise. `skip-file`: leave out the rest of the segment, and report
            it. `skip-mutation`: like `fail`, but if the frame of a mutation is complete, leave out its unreadable part.

    Raises:
        SchemaError: a requested table has no schema, or a schema has no table id.
    """

    def __init__(
        self,
        schemas: Sequence[TableSchema],
        tables: Collection[str] | None = None,
        *,
        fields: Sequence[str] | None = None,
        on_unknown_table: Literal["fail", "count", "skip"] = "fail",
        torn_tail: Literal["fail", "stop"] = "fail",
        on_corrupt: Literal["fail", "skip-file", "skip-mutation"] = "fail",
    ) -> None:
        if missing := set(tables or ()) - {s.full_name for s in schemas}:
            raise SchemaError(f"there is no schema of {', '.join(sorted(missing))}")
        self._on_unknown_table = on_unknown_table
        self._torn_tail = torn_tail
        self._on_corrupt = on_corrupt
        self._plans: list[Plan] = []
        # The requested tables: their batches by the number of the plan, and their ids.
        self._makers: dict[int, BatchMaker] = {}
        self._ids: dict[str, bytes] = {}
        for i, schema in enumerate(schemas):
            if schema.id is None:
                reason = f"commit logs name tables by their id, which the schema of {schema.full_name} does not have"
                raise SchemaError(reason)
            is_requested = tables is None or schema.full_name in tables
            plan = Plan(schema, fields if is_requested else (), self._plans[-1].end if self._plans else 0)
            self._plans.append(plan)
            if is_requested:
                self._makers[i] = BatchMaker(plan, fields)
                self._ids[schema.full_name] = schema.id.bytes
        most = max((len(plan.stored()) for plan in self._plans), default=0)
        self._header, self._present = rooms([(most, np.int64), (most, np.uint8)])
        self._mutations = room(2 * _MUTATIONS, np.int64).reshape(_MUTATIONS, 2)
        # The plan of the table that was read last.
        self._at_fault = 0
        self._buffers = Buffers(self._plans, WINDOW)

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

        `until` defaults to the trusted offset in `_cdc.idx`, or to the whole segment if there is no such file. For the
        segments of a folder, see `segment.trusted`. At the end, `report.position` is the offset to continue from.

        Raises:
            MissingFile: the segment does not exist, or no longer exists.
            CorruptFile, Unsupported: the segment cannot be read. No change of the faulty mutation, or after it, is
                returned.
            SchemaError: see `on_unknown_table`.
        """
        for window in self.windows(segment, start=start, until=until, report=report or SegmentReport(), node=node):
            yield from window

    def windows(
        self,
        segment: Segment,
        *,
        report: SegmentReport,
        start: int = 0,
        until: int | None = None,
        node: str | None = None,
    ) -> Iterator[Window]:
        """Read like `read`, by windows. A window has all changes of some mutations, which may be none. If a mutation
        needs too much memory, each window has a part of its changes, and only the last part moves the report.

        `report` covers everything up to the end of the last window. If it has the `place` of an earlier report, reading
        begins there.
        """
        try:
            yield from self._windows(segment, start, until, report, node)
        except CorruptFile as e:
            if self._on_corrupt != "skip-file":
                raise
            report.skipped.append(str(e))

    def _windows(
        self, segment: Segment, start: int, until: int | None, report: SegmentReport, node: str | None
    ) -> Iterator[Window]:
        report.position = max(report.position, start)
        index = segment.cdc_index() if until is None else valid_index(segment)
        complete = index is not None and index.completed
        if until is None:
            until = END if index is None or complete else index.offset
        origin = Origin("commitlog", segment.path, datetime.now(UTC), node)
        try:
            for stretch in stretches(segment.sections(start, until, report.place)):
                yield from self._stretch(segment, stretch, (start, until), origin, report)
        except TornTail as e:
            if self._torn_tail == "fail" or complete or until < END:
                raise
            report.torn_at = e.offset
            return
        # For a replayed segment the offset is the size of the file.
        if until == END and index is not None and index.offset != segment.size():
            until = index.offset
        if report.position < until < END:
            raise CorruptFile(segment.path, report.position, f"the segment ends before the offset {until}")

    def _stretch(
        self, segment: Segment, stretch: Stretch, bounds: tuple[int, int], origin: Origin, report: SegmentReport
    ) -> Iterator[Window]:
        for mutations in _mutations(segment, stretch, bounds, self._mutations):
            yield from self._walk(segment, stretch, mutations, origin, report)
        end = stretch.offset + len(stretch.data)
        report.position = max(report.position, min(end, bounds[1]))
        if end <= bounds[1]:
            report.place = stretch.next

    def _walk(
        self, segment: Segment, stretch: Stretch, mutations: np.ndarray, origin: Origin, report: SegmentReport
    ) -> Iterator[Window]:
        first = 0
        while first < len(mutations):
            last = int(np.searchsorted(mutations[:, 1], mutations[first, 0] + self._buffers.capacity, "right"))
            if last == first:
                # Earlier batches are released first, because they would use memory at the same time.
                self._buffers = Buffers(self._plans, 0)
                self._buffers = Buffers(self._plans, max(WINDOW, int(mutations[first, 1] - mutations[first, 0])))
                continue
            yield from self._window(segment, stretch, mutations[first:last], origin, report)
            first = last

    def _window(
        self, segment: Segment, stretch: Stretch, mutations: np.ndarray, origin: Origin, report: SegmentReport
    ) -> Iterator[Window]:
        """Return the changes of some mutations. If these need too much memory, or one is unreadable, try each half."""
        changes: list[Iterator[_Change]] | None = None
        unread: _Unread = Counter(), Counter()
        too_large = False
        try:
            unread = self._run(segment, stretch, mutations)
            too_large = sum(self._buffers.key_bytes(i) for i in self._written()) > KEY_BYTES
            if len(mutations) == 1 or not too_large:
                changes = [self._changes(i, origin) for i in self._written()]
        except CorruptFile:
            if self._on_corrupt == "fail" or (self._on_corrupt == "skip-file" and len(mutations) == 1):
                raise
            if len(mutations) == 1:
                unread, changes = self._left_out(segment, stretch, mutations, origin, report)
        if changes is None:
            middle = len(mutations) // 2
            yield from self._window(segment, stretch, mutations[:middle], origin, report)
            yield from self._window(segment, stretch, mutations[middle:], origin, report)
            return
        window: Window = []
        for change in chain.from_iterable(changes):
            window.append(change)
            if too_large:
                yield window
                window = []
        report.unknown_tables += unread[0]
        report.hiding += unread[1]
        report.position = max(report.position, stretch.offset + int(mutations[-1, 1]) + 4)
        report.mutations += len(mutations)
        yield window

    def _left_out(
        self, segment: Segment, stretch: Stretch, mutation: np.ndarray, origin: Origin, report: SegmentReport
    ) -> tuple[_Unread, list[Iterator[_Change]]]:
        """Return the changes of one mutation for the tables that can be read, and report the others."""
        offset = stretch.offset + int(mutation[0, 0])
        try:
            unread = self._run(segment, stretch, mutation)
        except CorruptFile as e:
            report.faults.append(MutationFault(offset, self._plans[self._at_fault].schema, str(e), hides=True))
            return (Counter(), Counter()), []
        changes: list[Iterator[_Change]] = []
        for i in self._written():
            try:
                changes.append(self._changes(i, origin))
            except CorruptFile as e:
                reason = f"{e} (mutation at offset {offset})"
                report.faults.append(MutationFault(offset, self._plans[i].schema, reason, hides=False))
        return unread, changes

    def _changes(self, table: int, origin: Origin) -> Iterator[_Change]:
        """Return the changes of a table in the buffers. If one has an invalid value, raise `CorruptFile` at once."""
        schema = self._plans[table].schema
        batches = self._makers[table].batches(self._buffers, table, origin)
        return ((schema, batch) for batch in batches)

    def _written(self) -> list[int]:
        """Return the requested tables that have changes in the buffers."""
        return [i for i in self._makers if self._buffers.tables[i, L.ROWS]]

    def _run(self, segment: Segment, stretch: Stretch, mutations: np.ndarray) -> _Unread:
        """Read mutations into the buffers; return the numbers of truncated ones."""
        address = stretch.data.ctypes.data
        state, unread = rooms([(L.WALK_FIELDS, np.int64), (len(mutations), np.int64)])
        state[L.START] = address
        state[L.FILE_OFFSET] = stretch.offset
        state[L.UNSIGNED_DELETION_TIME] = segment.version >= 8
        state[L.HAS_EPOCH] = segment.version >= 9
        state[L.OPEN_BYTES] = self._buffers.open_start.ctypes.data
        self._buffers.reset()
        status = walk_mutations(
            state, self._buffers.tables, self._buffers.columns, self._header, self._present, address, mutations, unread
        )
        self._at_fault = int(state[L.TABLE])
        if status != L.DONE:
            at = stretch.offset + int(state[L.POSITION]) - address
            raise CorruptFile(segment.path, at, f"found {L.MESSAGES[status]}")
        tables: Counter[UUID] = Counter()
        hiding: Counter[UUID] = Counter()
        for i in np.flatnonzero(unread):
            at = int(unread[i]) - address
            rest = stretch.data[at : int(mutations[i, 1])].tobytes()
            table = UUID(bytes=rest[:16])
            hidden = [name for name, table_id in self._ids.items() if rest.find(table_id, 16) >= 0]
            where = f"{segment.path}, offset {stretch.offset + at}: the schema of table {table} is not known"
            if self._on_unknown_table == "fail":
                raise SchemaError(where)
            if self._on_unknown_table == "count" and hidden:
                raise SchemaError(
                    f"{where}, and the same mutation writes to {', '.join(hidden)} after it, which cannot be read "
                    "without that schema: add the CREATE TABLE of this table, with its id"
                )
            tables[table] += 1
            hiding[table] += bool(hidden)
        return tables, hiding


def _mutations(segment: Segment, stretch: Stretch, bounds: tuple[int, int], found: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the starts and ends in a stretch of the mutations that end between two offsets. `found` is room for them.
    Raise `CorruptFile` if a frame before the second offset is invalid.
    """
    start, until = bounds
    section = at = 0
    while section < len(stretch.sections):
        count, section, at, reason = frames.read_frames(stretch.data.ctypes.data, stretch.sections, section, at, found)
        ends = found[:count, 1] + 4 + stretch.offset
        yield found[:count][(ends > start) & (ends <= until)]
        if reason != frames.END:
            if stretch.offset + at >= until:
                return
            fault = TornTail if stretch.is_last and section == len(stretch.sections) - 1 else CorruptFile
            raise fault(segment.path, stretch.offset + at, f"found {frames.MESSAGES[reason]}")


def valid_index(segment: Segment) -> CdcIndex | None:
    """Return the `_cdc.idx` of a segment; None if there is none, or if it is invalid."""
    try:
        return segment.cdc_index()
    except CorruptFile:
        return None


def count_mutations(segment: Segment, until: int) -> int:
    """Count the mutations that end at or before an offset, by their frames alone. Stop at an unfinished tail. The other
    errors are those of `CommitLogReader.read`.
    """
    found = room(2 * _MUTATIONS, np.int64).reshape(_MUTATIONS, 2)
    total = 0
    try:
        for stretch in stretches(segment.sections(0, until)):
            total += sum(len(mutations) for mutations in _mutations(segment, stretch, (0, until), found))
    except TornTail:
        pass
    return total
