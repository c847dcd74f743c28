"""The agent of ScyllaDB tables: follows their CDC logs, and publishes their changes as the agent of a node does.

Logs are read over the network, so one agent is enough for a cluster. Tables take turns, step by step: the agent reads
the log of a table for one window of write times, or for several with few changes, and hands the changes over. When the
broker has acknowledged all of them, the agent saves the time that it reached. So a crash at any point repeats some
windows and misses none. That time is also the table's watermark: all streams are read up to it. A table that cannot
continue, such as one with a gap, reports that and stops no other table.
"""

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
from cassandra import Unauthorized
from cassandra.cluster import Session

from writetime.capture.change_publisher import ChangePublisher
from writetime.capture.metrics import AgentLag, AgentMetrics, counts_of, fault_kind, write_status
from writetime.capture.node_schemas import SchemaEvents
from writetime.capture.snapshots import NamedTaker, Snapshots
from writetime.capture.state_files import lock_and_read, read_json, write_json
from writetime.changes.starts import Truncation
from writetime.clients.database import DRIVER_FAULTS, DatabaseUnreachable, driver_reason, is_without_answer, local_nodes
from writetime.clients.kafka import has_topic
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError, reason_of
from writetime.core.outages import is_outage
from writetime.schema.table import TableSchema
from writetime.scylla_cdc.findings import IN_SNAPSHOT
from writetime.scylla_cdc.late_rows import LateRows, LateStep
from writetime.scylla_cdc.log import SUFFIX, Altered, StaleSets
from writetime.scylla_cdc.offsets import (
    Offset,
    first_offset,
    next_offset,
    offset_of_new,
    pieces_between,
    read_again,
    rescan_micros,
    snapshot_of,
)
from writetime.scylla_cdc.pages import Pages
from writetime.scylla_cdc.source import CdcSource, connect_for_pages, now, settled_until
from writetime.wire.topic_names import changes_topic
from writetime.wire.watermarks import SourceMarks, TableMark

log = logging.getLogger(__name__)

_FILE = "logs.json"
PORTION = 50_000
"""Approximate number of changes that are handed over before the agent waits for the broker. A step of several windows
has no more.
"""
# Of such a step, in memory.
_PORTION_BYTES = 64 << 20
# The longest pause of a table with a lasting fault.
_LONGEST_PAUSE_SECONDS = 60.0
_WARNING_SECONDS = 60.0
# Differences between images of a table that are logged in this time.
_IMAGE_WARNINGS = 10
# Pauses before a table is retried after a failure that may pass. A failure after the last one is an error.
_QUIET_PAUSES = (0.2, 0.5, 1.0)
# The kinds of faults that do not concern the publisher.
_NOT_OF_PUBLISHER = {"database", "gap", "log", "disk"}


@dataclass(frozen=True)
class LogPace:
    """The seconds between two actions of an agent of logs.

    Attributes:
        mark: between two announcements of all watermarks.
        pause: between a fault and the next attempt. For a lasting fault, this is the first pause.
        status: between two writes of the status file.
    """

    mark: float = 5.0
    pause: float = 1.0
    status: float = 1.0


_USUAL = LogPace()


def run(
    settings: Settings, stop: threading.Event, snapshot_at: int | None = None, pace: LogPace = _USUAL
) -> Counter[str]:
    """Publish changes of `capture.tables` until `stop` is set; return the number of acknowledged changes per table.
    Raise a WritetimeError if the database does not answer at the start, or another agent uses the state folder.

    `snapshot_at` is the start time of the snapshot that closes gaps, or that is published, in microseconds.
    """
    with (
        closing(LogProgress(settings.capture.state_dir)) as progress,
        connect_for_pages(settings, settings.capture.tables) as (session, pages),
    ):
        agent = LogAgent(settings, session, pages, progress, snapshot_at, pace=pace, stop=stop)
        agent.follow(stop)
        return agent.metrics.counts()


class LogProgress:
    """The progress of each table's log, in `logs.json`, which is replaced in one step. Only one agent at a time may use
    it. Raises a WritetimeError if another one does.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock, stored = lock_and_read(folder, lambda of: read_json(of / _FILE) or {})
        self.offsets = {name: Offset(**found) for name, found in stored.items()}

    def save(self, table: str, offset: Offset) -> None:
        """Save the offset of a table. The broker has all changes before it."""
        offsets = self.offsets | {table: offset}
        write_json(self.folder / _FILE, {name: asdict(found) for name, found in sorted(offsets.items())})
        # An offset counts only once it is on the disk. Otherwise a gap after a first offset would be missed after a
        # crash.
        self.offsets = offsets

    def close(self) -> None:
        """Release the folder for another agent."""
        os.close(self._lock)


@dataclass
class _Table:
    """The time of a table's next step, and the reason if the table cannot continue. `altered`: a schema was altered,
    perhaps that of this table.

    `attempts` counts successive failures that may pass and are not faults yet. `pause` is the pause after the next
    fault. A step has `windows` at most. `aim` is the end of the last step (a write time in microseconds), and
    `failed_until` the end of the last step that failed. Up to that time, each window is checked before it is published.
    """

    name: str
    pause: float
    altered: bool = False
    next_look: float = 0.0
    fault: str | None = None
    next_warning: float = 0.0
    attempts: int = 0
    windows: int = 1
    aim: int = 0
    failed_until: int = 0
    next_image_warning: float = 0.0
    image_warnings: int = 0
    late: LateRows = field(default_factory=LateRows)


class LogAgent:
    """See the module."""

    def __init__(
        self,
        settings: Settings,
        session: Session,
        pages: Pages,
        progress: LogProgress,
        snapshot_at: int | None,
        *,
        pace: LogPace,
        stop: threading.Event | None = None,
    ) -> None:
        self._settings = settings
        self._pace = pace
        assert session.cluster is not None
        self._session = session
        self._events = SchemaEvents(session.cluster, lambda: local_nodes(session))
        self._pages = pages
        self._progress = progress
        self._snapshot_at = snapshot_at
        self.metrics = AgentMetrics(settings)
        self._publisher = ChangePublisher(settings, before_schema=self._mark_of, stop=stop)
        self._tables = [_Table(name, pace.pause) for name in settings.capture.tables]
        # The schemas as they were last read.
        self._schemas: dict[str, TableSchema] = {}
        # The time from which the log of each of these has all writes (microseconds).
        self._since: dict[str, int] = {}
        taker = NamedTaker(settings.capture.snapshot_folders, self._since.__getitem__, snapshot_at)
        self.snapshots = Snapshots(settings, taker, None, self.metrics, self._announce_marks)
        self._next_status = self._next_mark = self._next_warning = 0.0
        # The nodes' records of TRUNCATE, as of a time (microseconds).
        self._truncations: Mapping[UUID, Truncation] = {}
        self._truncations_at = 0
        # After a failure, a node that does not answer delays all tables only from time to time.
        self._next_truncations = 0.0

    def follow(self, stop: threading.Event) -> None:
        """Advance each table in turn until the stop is requested."""
        while not stop.is_set():
            if self._events.heard():
                for table in self._tables:
                    table.altered = True
            for table in self._tables:
                if self._is_due(table) and not stop.is_set():
                    with self._faults_of(table):
                        self.advance(table, stop)
                    self._report(stop)
            stop.wait(self._report(stop))
        self.snapshots.close()
        self._events.close()

    def _report(self, stop: threading.Event) -> float:
        """Announce the watermarks and write the status, if they are due. Publish a portion of a snapshot. Return the
        pause after this.
        """
        try:
            if time.monotonic() >= self._next_mark:
                self._announce_marks(stop)
            # The tables whose log has a known start, so that it has the changes that a snapshot lacks.
            known = [(schema, True) for name, schema in self._schemas.items() if name in self._progress.offsets]
            is_behind = not stop.is_set() and self.snapshots.step(known, self._publisher, stop)
            self._measure()
        except Exception as e:
            self.metrics.error(fault_kind(e))
            log.error("%s; trying again", reason_of(e), exc_info=not isinstance(e, (WritetimeError, OSError)))
            self._publisher = self._publisher.after(e)
            return self._pace.pause
        return 0 if is_behind else self._settings.capture.poll_seconds

    def advance(self, table: _Table, stop: threading.Event) -> None:
        """Publish one step of a table's log: a settled window, or some if they have few changes.

        Raise LogGap if the next changes are not in the log; LogError if the log cannot be read, or a node is behind or
        the table was altered meanwhile: read it again; and another WritetimeError if Kafka refuses a change.
        """
        name = table.name
        source = CdcSource(self._session, self._pages, self._settings, name)
        schema = source.schema
        offset = self._progress.offsets.get(name)
        if offset is None:
            offset = first_offset(source, None, self._snapshot_at)
            # Saved before anything is read: rows that the log loses from now on are a gap.
            self._progress.save(name, offset)
        elif offset.table_id != str(schema.id):
            log.warning("%s was dropped and created again: its log is read from its beginning", name)
            offset = replace(offset_of_new(source, offset), captured_since=now())
            self._progress.save(name, offset)
            # The step that failed, if one did, was of the earlier table.
            table.aim = table.failed_until = 0
        # Consumers must see new columns even if no write follows.
        if self._settings.capture.snapshot != "never" or has_topic(self._settings, changes_topic(name)):
            self._publisher.announce(schema)
        settled, window = source.settled(), round(source.settings.window_seconds * 1e6)
        is_checked = offset.until < table.failed_until
        if is_checked:
            # Test that the position can be saved first. Otherwise each attempt would publish the same changes again.
            self._progress.save(name, offset)
        most = 1 if is_checked else table.windows
        end = next_offset(source, offset, min(settled, offset.until + most * window), self._snapshot_at)
        # In a keyspace with vnodes, streams are older than the log, so it may be read from before its creation on.
        # Landing leaves out snapshots from before the agent found that the table was created again.
        self._since[name] = max(offset.since, offset.whole_since, offset.captured_since, source.created)
        self._schemas[name] = schema
        if end == offset:
            return
        table.aim = end.until
        if is_checked:
            # Otherwise a fault would publish the changes before it again.
            pieces, snapshot_at = pieces_between(source, offset, end), snapshot_of(end, self._snapshot_at)
            for changes in source.read(pieces, snapshot_at=snapshot_at):
                if stop.is_set():
                    return
                self._publisher.check(schema, changes)
            source.check_schema(schema)
        self._publish(table, source, offset, end, stop)

    def _publish(self, table: _Table, source: CdcSource, offset: Offset, end: Offset, stop: threading.Event) -> None:
        """Publish the changes of a step, and save its end once they are acknowledged. If several windows have too many
        changes, publish none of them. The next step then has one window.
        """
        name, schema = table.name, source.schema
        counts: Counter[tuple[str, str]] = Counter()
        found: Counter[str] = Counter()
        sent = 0
        snapshot_at = snapshot_of(end, self._snapshot_at)
        texts: list[str] = []
        pieces = pieces_between(source, offset, end)
        window = round(source.settings.window_seconds * 1e6)
        windows, late = range(offset.until, end.until, window), LateStep(offset.until, window)
        batches = source.read(pieces, snapshot_at=snapshot_at, found=found, texts=texts, late=late)
        if len(windows) > 1:
            few = _few(batches, stop)
            if few is None:
                # Other tables must not wait for all of these changes.
                table.windows = 1
                return
            batches = iter(few)
        for changes in batches:
            if stop.is_set():
                return
            sent += self._publisher.send(schema, changes).all()
            counts.update(counts_of(name, changes))
            if sent >= PORTION:
                self._publisher.flush(stop)
                sent = 0
        if counts or found:
            # If the table was altered, the sent changes are correct, but may lack columns. Nothing is saved, so they
            # are read again.
            source.check_schema(schema)
        if source.check_gap(offset.until, snapshot_at, offset.earlier_ttl) or found[IN_SNAPSHOT]:
            # Later rows may be only in the snapshot, but an agent that starts without --snapshot-at must continue.
            end = replace(end, snapshot_at=snapshot_at)
        if self._publisher.flush(stop):
            self._progress.save(name, end)
            self.metrics.published(counts)
            if len(windows) == table.windows and counts.total() <= PORTION // 2:
                table.windows = 2 * table.windows
            first_read = windows if rescan_micros(source.settings) else range(0)
            found += table.late.finish(late, first_read, read_again(source.settings, offset, end))
            self.metrics.found(name, found)
            self._warn_of_images(table, texts)
            self._mark(table)
            self._publisher.flush(stop)

    @staticmethod
    def _warn_of_images(table: _Table, texts: Sequence[str]) -> None:
        """Log some differences between images from time to time. All of them are counted."""
        if texts and time.monotonic() >= table.next_image_warning:
            table.next_image_warning = time.monotonic() + _WARNING_SECONDS
            table.image_warnings = _IMAGE_WARNINGS
        for text in texts[: table.image_warnings]:
            table.image_warnings -= 1
            log.warning("%s", text)

    def _mark_of(self, schema: TableSchema) -> None:
        """Announce the watermark of the table with this schema."""
        self._mark(next(table for table in self._tables if table.name == schema.full_name))

    def _mark(self, table: _Table) -> None:
        """Announce the watermark of a table. A window that is read again counts only after that."""
        offset, mark = self._progress.offsets.get(table.name), TableMark(0)
        if offset is not None:
            table_id = UUID(offset.table_id)
            until = offset.until - rescan_micros(self._settings.scylla_cdc)
            # No watermark passes an unknown truncation.
            if until > self._truncations_at:
                self._look_for_truncations()
            until = 0 if self.snapshots.is_pending(table_id) else min(until, self._truncations_at)
            taken_at, truncation = self.snapshots.taken_at(table_id), self._truncations.get(table_id)
            if truncation is not None and truncation.at <= offset.since:
                # Nothing was captured before it.
                truncation = None
            if truncation is not None and self.snapshots.covers_until(table_id) <= truncation.at:
                # Landing leaves the rows of this snapshot out.
                taken_at = 0
            mark = TableMark(until, taken_at, offset.table_id, offset.captured_since, truncation)
        self._publisher.mark(table.name + SUFFIX, SourceMarks({table.name: mark}, status=self._status([table])))

    def _look_for_truncations(self) -> None:
        """Read the nodes' records of truncations, unless this failed recently. While a node does not answer, no
        watermark advances.
        """
        if time.monotonic() < self._next_truncations:
            return
        at, where = now(), self._settings.scylla_cdc.truncations
        try:
            self._truncations, self._truncations_at = read_cluster_truncations(self._session, where), at
        except (DatabaseUnreachable, *DRIVER_FAULTS) as e:
            self._next_truncations = time.monotonic() + self._pace.mark
            self.metrics.error("database")
            if time.monotonic() >= self._next_warning:
                self._next_warning = time.monotonic() + _WARNING_SECONDS
                remedy = "; the role needs SELECT on it" if isinstance(e, Unauthorized) else ""
                log.error("%s cannot be read, so watermarks do not advance: %s%s", where, driver_reason(e), remedy)

    def _announce_marks(self, stop: threading.Event) -> bool:
        """Announce the watermark of each table. Return whether the broker has them; False only if the agent stops."""
        self._next_mark = time.monotonic() + self._pace.mark
        self._look_for_truncations()
        for table in self._tables:
            try:
                self._mark(table)
            except Exception as e:
                if is_outage(e):
                    raise
                # The next round tries it again, and the other tables do not wait for it.
                self.metrics.error("unexpected")
                log.error("the watermark of %s cannot be announced: %s", table.name, reason_of(e), exc_info=True)
        return self._publisher.flush(stop)

    @contextmanager
    def _faults_of(self, table: _Table) -> Iterator[None]:
        """Record why a table cannot continue, and log it from time to time. The table is retried.

        A failure that may pass is retried first, with growing pauses, before it counts as a fault. The pauses of a
        fault that is not an outage grow, too.
        """
        table.altered = False
        pause = self._pace.pause
        try:
            yield
        except Exception as e:
            kind = fault_kind(e)
            table.failed_until = table.aim
            table.windows = 1
            if kind not in _NOT_OF_PUBLISHER:
                # Changes that were handed over are not acknowledged; they are read and sent again.
                self._publisher = self._publisher.after(e)
            passing = kind == "database" or isinstance(e, (Altered, StaleSets))
            if passing and table.fault is None and table.attempts < len(_QUIET_PAUSES):
                pause = _QUIET_PAUSES[table.attempts]
                table.attempts += 1
                log.info("%s: %s; trying again", table.name, e)
            else:
                self.metrics.error(kind)
                reason = reason_of(e)
                if reason != table.fault or time.monotonic() >= table.next_warning:
                    table.next_warning = time.monotonic() + _WARNING_SECONDS
                    log.error("%s: %s; trying again", table.name, reason, exc_info=kind == "unexpected")
                table.fault = reason
                if kind != "database" and not is_outage(e):
                    pause, table.pause = table.pause, min(2 * table.pause, _LONGEST_PAUSE_SECONDS)
        else:
            table.fault = None
            table.attempts = 0
            table.pause = self._pace.pause
            table.next_warning = 0.0
        table.next_look = time.monotonic() + pause

    def _is_due(self, table: _Table) -> bool:
        """Return whether there is work: a settled window is not published, a changed schema is not announced, or
        windows were read before their end, which is a fault.
        """
        offset = self._progress.offsets.get(table.name)
        reading = self._settings.scylla_cdc
        if table.fault is None and not table.attempts and offset is not None and offset.off_since is None:
            window = round(reading.window_seconds * 1e6)
            return table.altered or offset.is_early or settled_until(reading) >= offset.until + window
        # An alteration may end a fault.
        return (table.altered and table.fault is not None) or time.monotonic() >= table.next_look

    def _measure(self) -> None:
        if time.monotonic() < self._next_status:
            return
        self._next_status = time.monotonic() + self._pace.status
        for table in self._tables:
            if (seconds := self._behind(table)) is not None:
                self.metrics.log_lag(table.name, seconds)
        self.metrics.lag(self._lag(self._tables))
        write_status(self._progress.folder, self._status(self._tables))

    def _status(self, tables: Sequence[_Table]) -> dict[str, Any]:
        found = self.metrics.status(self._lag(tables)) | {"snapshots": self.snapshots.status()}
        names = {table.name for table in tables}
        own = {key: {name: n for name, n in found[key].items() if name in names} for key in ("changes", "snapshots")}
        offsets = self._progress.offsets
        logs = {
            t.name: {
                "until": offsets[t.name].until if t.name in offsets else 0,
                "fault": t.fault,
                "found": self.metrics.findings(t.name),
            }
            for t in tables
        }
        return found | own | {"logs": logs, "held_by": next((t.fault for t in tables if t.fault), None)}

    def _lag(self, tables: Sequence[_Table]) -> AgentLag:
        """Return how long a window has been settled and is not published."""
        reading = self._settings.scylla_cdc
        usual = reading.confidence_seconds + reading.window_seconds
        return AgentLag(lag_seconds=max((max((self._behind(t) or 0.0) - usual, 0.0) for t in tables), default=0.0))

    def _behind(self, table: _Table) -> float | None:
        """Return the age in seconds of the time up to which a table's log is published."""
        offset = self._progress.offsets.get(table.name)
        return None if offset is None else max(now() - offset.until, 0) / 1e6


def read_cluster_truncations(session: Session, table: str) -> Mapping[UUID, Truncation]:
    """Return the last truncation of each table that the nodes of a ScyllaDB cluster have truncated, by the table's id.
    `table` is that of these records, `system.truncated`.

    Each node records only its own truncations, with its own time, and the latest time counts. TRUNCATE reaches all
    replicas of a table, in each data center, or fails. So the nodes of the local data center have a record for each
    table that has replicas there. Other tables cannot be read at LOCAL_QUORUM anyway. A node that is down is left out,
    because other nodes have recorded the same truncations. A node that may be up must answer.

    Raise DatabaseUnreachable if all nodes of the local data center are down, or a node that is not known to be down
    does not answer; and an error of the driver if a node refuses the query.
    """
    found: dict[UUID, Truncation] = {}
    hosts = [host for host in local_nodes(session) if host.is_up is not False]
    if not hosts:
        raise DatabaseUnreachable("no node of cassandra.local_datacenter is up")
    query = f"SELECT DISTINCT table_uuid, tounixtimestamp(truncated_at) AS at FROM {table}"
    for host in hosts:
        try:
            rows = list(session.execute(query, host=host))
        except DRIVER_FAULTS as e:
            if not is_without_answer(e):
                raise
            raise DatabaseUnreachable(f"node {host.address} does not answer: {driver_reason(e)}") from None
        for row in rows:
            if row.at is not None:
                latest = max(row.at * 1000, found[row.table_uuid].at if row.table_uuid in found else 0)
                found[row.table_uuid] = Truncation(latest)
    return found


def _few(batches: Iterator[pa.RecordBatch], stop: threading.Event) -> list[pa.RecordBatch] | None:
    """Return the changes of several windows; None if they are too many for one step, or the agent stops."""
    held, count, size = list[pa.RecordBatch](), 0, 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        size += batch.nbytes
        if count > PORTION or size > _PORTION_BYTES or stop.is_set():
            return None
    return held
