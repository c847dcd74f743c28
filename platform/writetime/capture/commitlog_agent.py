"""The agent of one node. It reads the node's commit log segments as they grow, and publishes the changes of the tables
with CDC.

Each round lists the segments and their readable offsets, reads the node's schema version, and publishes the new
changes. Changes are decoded and encoded while earlier ones are in flight. Progress is saved after the broker has
acknowledged the changes. So a crash at any point repeats some changes, and loses none.

A segment is done when it is read to its end and its counts agree: the number of mutations read equals the number of its
frames, and each decoded change was acknowledged. A segment with changes that cannot be decoded or published is set
aside. It holds the watermarks of the tables that the missing changes may belong to, and stops nothing else.

A table's watermark is the time up to which all writes of the node to the table are published. It also advances over
missing changes if the table's snapshot began after they were written, because the snapshot has them. The messages with
the watermarks also have the agent's status.

If the database, the broker or the disk fails, the agent waits for it. An unknown fault is logged with its traceback and
counted, and the round is repeated.
"""

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from writetime.capture.change_publisher import ChangePublisher
from writetime.capture.decoding import Decoder, hand_over
from writetime.capture.gap_records import CaptureGap
from writetime.capture.log_coverage import Listing, LogCoverage
from writetime.capture.metrics import AgentLag, AgentMetrics, counts_of, fault_kind, write_status
from writetime.capture.node_facts import NodeFacts, read_facts, read_truncations
from writetime.capture.node_schemas import Node, SchemaWatch
from writetime.capture.progress import AgentProgress, OtherNode, SegmentProgress
from writetime.capture.replicas import Replicas
from writetime.capture.segment_releases import SegmentReleases
from writetime.capture.segments import LeftSegments, SegmentFolder, backlog_of, readable
from writetime.capture.sharing import Sharing
from writetime.capture.snapshots import NodeTaker, Snapshots, id_of
from writetime.changes.starts import Truncation
from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError, reason_of
from writetime.core.outages import is_outage
from writetime.storage.file_errors import MissingFile, StorageError
from writetime.storage.segment import END, Segment, list_segments
from writetime.wire.watermarks import SourceMarks, TableMark

log = logging.getLogger(__name__)

# Approximate number of changes per portion. A portion ends at the end of a window.
_PORTION = 50_000
# Longest time between two saves of the progress. Each save syncs the disk, which may also hold the commit log.
_SAVE_SECONDS = 0.5
_WARNING_SECONDS = 60.0


@dataclass(frozen=True)
class Pace:
    """The seconds between two actions of an agent.

    Attributes:
        schema: between two queries for the node's schema version while nothing is written.
        mark: between two watermarks.
        pause: between a fault and the next attempt. For completed segments, this is the first pause.
        snapshot: between a fault and the next attempt, for the snapshot of a table.
        status: between two writes of the status file.
        left: between the first sight of a segment that the node has left, and its reading.
        hold: between the end of a segment and its release, with `capture.replicas = "one"`: the node may record a
            TRUNCATE late, and then the segment is read again.
    """

    schema: float = 1.0
    mark: float = 5.0
    pause: float = 1.0
    snapshot: float = 60.0
    status: float = 1.0
    left: float = 10.0
    hold: float = 60.0


_USUAL = Pace()


def run(settings: Settings, stop: threading.Event, pace: Pace = _USUAL) -> Counter[str]:
    """Publish changes until `stop` is set; return the number of acknowledged changes per table. Raise a WritetimeError
    if the database does not answer at the start, or the state folder is that of another node, or used by another agent.
    """
    with (
        closing(AgentProgress(settings.capture.state_dir)) as progress,
        connect(settings) as session,
        closing(Agent(settings, Node(session, settings.capture.node), progress, pace, stop)) as agent,
    ):
        agent.follow(stop)
        return agent.metrics.counts()


class Agent:
    """See the module."""

    def __init__(
        self,
        settings: Settings,
        node: Node,
        progress: AgentProgress,
        pace: Pace = _USUAL,
        stop: threading.Event | None = None,
    ) -> None:
        capture = settings.capture
        self._pace = pace
        self._node = node
        facts = read_facts(node)
        self._node_id = facts.host_id
        progress.of_node(self._node_id)
        self._settings = settings
        self._progress = progress
        self._limit = facts.total_bytes
        self.metrics = AgentMetrics(settings, progress.totals)
        self._schemas = SchemaWatch(capture.state_dir, node)
        self._coverage = LogCoverage(capture, self._schemas.tables, progress.published_until)
        self._decoder = Decoder(self._node_id, self._schemas)
        self._publisher = ChangePublisher(settings, before_schema=lambda _: self._hand_over_marks(), stop=stop)
        self.snapshots = Snapshots(
            settings, NodeTaker(node), self._node_id, self.metrics, self._announce_marks, again_seconds=pace.snapshot
        )
        # The progress of segments behind changes that are not acknowledged, or wait for other agents; and the changes
        # that were handed over since the last acknowledgement.
        self._replicas: Replicas[SegmentProgress] = Replicas(self._node_id, 0.0)
        shares = capture.replicas == "one"
        self._sharing = Sharing(settings, self._node_id, self._replicas, node.ring) if shares else None
        self._counts: Counter[tuple[str, str]] = Counter()
        self._behind_since: float | None = None
        # Consumers must see a dropped column even if no write follows.
        self._unannounced = True
        self._found: list[tuple[Segment, int]] = []
        self._unreadable: list[tuple[Segment, str]] = []
        # Log files that are not segments of a known version, or not regular files, by path.
        self._refused: Mapping[str, StorageError] = {}
        self._left = LeftSegments(pace.left)
        self._lag = AgentLag()
        self._next_look = self._next_mark = self._next_announcement = 0.0
        self._next_save = self._next_status = self._next_warning = self._next_fault = 0.0
        # With sharing, when each finished segment was first seen.
        self._finished_at: dict[int, float] = {}
        # A time, and the offsets of the segments below which all writes before it are.
        self._promise: tuple[int, list[tuple[Segment, int]]] | None = None
        # Reasons that hold the watermarks: of all tables, and by table.
        self.held_by: str | None = None
        self._held: dict[str, str] = {}
        self._truncations: Mapping[UUID, Truncation] = {}
        # Why the record of a table's last truncation cannot be read. The table's watermark waits.
        self._truncation_faults: Mapping[UUID, str] = {}
        self._gaps_now: list[CaptureGap] = []
        # Last, because this locks the folder. A damaged file of the state is found before.
        self._folder = SegmentFolder(settings, facts.cdc_raw)
        self._releases = SegmentReleases(progress, self._folder, self.metrics, pace.pause)

    def follow(self, stop: threading.Event) -> None:
        """Run rounds until the stop is requested. Raise OtherNode if the node is not that of the state folder."""
        while not stop.is_set():
            pause = self._settings.capture.poll_seconds
            try:
                self.round(stop)
                tables = self._schemas.tables
                captured = [(schema, schema.id in tables.live) for schema in tables.captured]
                if not stop.is_set() and self.snapshots.step(captured, self._publisher, stop):
                    pause = 0
            except OtherNode:
                raise
            except Exception as e:
                self.metrics.error(fault_kind(e))
                log.error("%s; trying again", reason_of(e), exc_info=not isinstance(e, (WritetimeError, OSError)))
                pause = self._pace.pause
                # Unacknowledged changes are read and sent again.
                self._replicas.reset()
                self._counts = Counter()
                self._publisher = self._publisher.after(e)
            stop.wait(pause)
        try:
            self._progress.save()
        except OSError as e:
            log.error("the progress cannot be saved: %s; unsaved changes are published again", e)

    def close(self) -> None:
        """Release the node for another agent."""
        self.snapshots.close()
        if self._sharing is not None:
            self._sharing.close()
        self._node.events.close()
        self._folder.close()

    def round(self, stop: threading.Event) -> None:
        """Publish the new changes, and release the segments that are done. Raise a WritetimeError if the node or the
        broker fails: continue from the acknowledged changes. Raise OtherNode if the node is not that of the state
        folder.
        """
        # They are read before the segments are listed, so that these have all writes until then.
        facts = self._read_facts() if time.monotonic() >= self._next_mark else None
        listed, self._refused = list_segments(str(self._folder.path))
        # With `finished = "keep"`, segments that are done stay, and their indexes do not change any more.
        done = {i for i, progress in self._progress.segments.items() if progress.kept}
        pending = [segment for segment in listed if segment.id not in done]
        self._left.begin_round(pending)
        found, self._unreadable = readable(pending, self._left.may_be_read)
        faults = [*map(str, self._refused.values()), *(fault for _, fault in self._unreadable)]
        for segment, _ in found:
            # Otherwise a segment could vanish unnoticed.
            self._progress.segments.setdefault(segment.id, SegmentProgress(segment.name))
        new = [(segment, until) for segment, until in found if self._unread(segment, until)]
        self._found = found
        self._measure()
        heard = self._node.events.heard()
        if new or heard or facts is not None or time.monotonic() >= self._next_look:
            # After the offsets are read, because the node then knows the schema of all writes below them. It may report
            # a change before it reports its new version.
            self._unannounced |= self._decoder.refresh(always=heard)
            self._next_look = time.monotonic() + self._pace.schema
            # Before a watermark passes that time.
            while self._schemas.switched:
                self._coverage.note_cdc(self._schemas.switched[0])
                del self._schemas.switched[0]
            self._coverage.note_not_logged(self._schemas.tables)
            self._check_coverage(facts, listed, found)
            if self._note_truncated() and not self._announce_marks(stop):
                return
        self._coverage.note_imports(self._schemas.tables, always=facts is not None)
        if self._unannounced:
            tables = self._schemas.tables
            for fault in self._publisher.announce_all(tables.captured, tables.faults):
                # Only the changes of this table are set aside.
                self.metrics.error("schema")
                log.error("%s", fault)
            self._unannounced = False
        self._follow_others(facts)
        for segment, until in new:
            if (fault := self._publish(segment, until, stop)) is not None:
                faults.append(fault)
            if stop.is_set():
                break
        self._log_unreadable(faults)
        if not self._settle(stop):
            return
        self._note_gone({segment.id for segment in listed})
        if facts is not None:
            self._mark(facts.synced_until, found, faults, stop)
        self._releases.release_finished(self._releasable(found))
        self._measure()

    def _read_facts(self) -> NodeFacts:
        """Ask the node, and use its present folder of segments."""
        facts = read_facts(self._node)
        self._progress.of_node(facts.host_id)
        # A node without CDC has no limit.
        self._limit = facts.total_bytes or self._limit
        is_set = self._settings.capture.cdc_raw is not None
        if not is_set and facts.cdc_enabled and facts.cdc_raw and Path(facts.cdc_raw) != self._folder.path:
            present = SegmentFolder(self._settings, facts.cdc_raw)
            self._folder.close()
            self._folder = self._releases.folder = present
        if (earlier := self._coverage.earlier_folder(facts, self._folder.path)) is not None:
            log.warning("moving the segments of %s, the node's earlier cdc_raw, to %s", earlier, self._folder.path)
            self._folder.take_from(earlier)
        return facts

    def _check_coverage(self, facts: NodeFacts | None, listed: list[Segment], found: list[tuple[Segment, int]]) -> None:
        """Record times without capture, before a watermark passes them and before a segment is released."""
        ids = [segment.id for segment in listed]
        if facts is None and self._coverage.needs_check(ids):
            facts = self._read_facts()
        listing = Listing(self._folder.path, listed, {segment.id: until for segment, until in found})
        if facts is None:
            self._coverage.note_listed(listing)
        elif not self._coverage.check(facts, listing, self._schemas.tables):
            self.metrics.error("cdc")

    def _note_truncated(self) -> bool:
        """Record truncations before a watermark passes them; return whether there are new ones."""
        before, faults = self._truncations, self._truncation_faults
        self._truncations, self._truncation_faults = read_truncations(self._node)
        if self._coverage.undone(self._truncations, self._truncation_faults, self._schemas.tables):
            # The node also deletes the record of a table that it drops, after it deletes the table's schema.
            self._unannounced |= self._decoder.refresh(always=True)
        self._coverage.note_truncations(self._truncations, self._truncation_faults, self._schemas.tables)
        if self._sharing is not None:
            self._read_again(self._sharing.follow_truncations(self._truncations))
        for schema in self._schemas.tables.captured:
            fault = self._truncation_faults.get(id_of(schema))
            if fault is not None and fault != faults.get(id_of(schema)):
                self.metrics.error("database")
                log.error("the watermark of %s waits: %s", schema.full_name, fault)
            if (truncation := self._truncations.get(id_of(schema))) is not None:
                self.snapshots.take_again(id_of(schema), truncation.at)
        return self._truncations != before or self._truncation_faults != faults

    def _follow_others(self, facts: NodeFacts | None) -> None:
        """Read which changes the agents of other nodes have published, and publish those that they have not."""
        if self._sharing is not None:
            self._sharing.listen()
            if facts is not None:
                keyspaces = {schema.keyspace for schema in self._schemas.tables.captured}
                self._sharing.follow_rings(keyspaces, facts.sync_micros / 1e6)
            self._publisher.produce(self._sharing.due())

    def _read_again(self, truncations: list[Truncation]) -> None:
        """Read the segments again that may have changes after truncations."""
        for truncation in truncations:
            for segment_id, progress in self._progress.segments.items():
                if segment_id >= (truncation.segment or 0) and not progress.kept:
                    self._progress.segments[segment_id] = SegmentProgress(progress.name)

    def _releasable(self, found: list[tuple[Segment, int]]) -> list[Segment]:
        """Return the segments that need not be kept to be read again."""
        segments = [segment for segment, _ in found]
        if self._sharing is None:
            return segments
        now, progress = time.monotonic(), self._progress.segments
        self._finished_at = {s.id: self._finished_at.get(s.id, now) for s in segments if progress[s.id].finished}
        return [s for s in segments if now - self._finished_at.get(s.id, now) >= self._pace.hold]

    def _read_to(self, segment: Segment) -> SegmentProgress:
        """Return the progress of a segment behind all changes that were handed over."""
        return self._replicas.last(segment.id) or self._progress.segments[segment.id]

    def _unread(self, segment: Segment, until: int) -> int:
        """Return the number of bytes of a segment that may be read and are not read yet."""
        progress = self._read_to(segment)
        return 0 if progress.broken and until != END else _rest(segment, until, progress)

    def _unpublished(self, segment: Segment, until: int) -> int:
        """Return the number of bytes of a segment behind its published position."""
        return _rest(segment, until, self._progress.segments[segment.id])

    def _publish(self, segment: Segment, until: int, stop: threading.Event) -> str | None:
        """Hand over the new changes of a segment. If it cannot be read now, return the reason."""
        choose = None if self._sharing is None else partial(self._sharing.choose, segment.id)
        found = hand_over(self._decoder, self._publisher, segment, until, self._read_to(segment), choose=choose)
        try:
            for reached, handed in found:
                for schema, changes, sent in handed:
                    self._counts.update(counts_of(schema.full_name, sent.changes))
                    if sent.refused is not None:
                        self.metrics.refused(schema.full_name, changes.num_rows - sent.changes.num_rows)
                # Before the position behind them is saved.
                self._coverage.note_switches(self._decoder.switches, self._schemas.tables, self._node)
                self._decoder.switches.clear()
                self._replicas.reached(segment.id, reached)
                if self._counts.total() >= _PORTION and self._settle(stop):
                    self._measure()
                    if time.monotonic() >= self._next_announcement:
                        self._announce_marks(stop)
                if stop.is_set():
                    break
        except MissingFile as e:
            # Recorded with the rest of its progress at the end of the round.
            log.warning("%s", e)
        except OSError as e:
            if is_outage(e):
                # Otherwise each attempt would publish again the changes before the fault.
                self._settle(stop)
                raise
            # For example, the agent may not be allowed to read this segment. No other segment waits for it.
            return f"{segment.name} cannot be read: {reason_of(e)}"
        return None

    def _settle(self, stop: threading.Event) -> bool:
        """Wait until the portions that were handed over are acknowledged, and record this. Return False if the agent
        stops first.
        """
        if not self._publisher.flush(stop):
            return False
        if self._sharing is not None:
            self._sharing.send_digests()
        settled = self._replicas.settled()
        self._progress.segments.update(settled)
        self.metrics.published(self._counts)
        self._counts = Counter()
        if settled and time.monotonic() >= self._next_save:
            self._progress.save()
            self._next_save = time.monotonic() + _SAVE_SECONDS
        return True

    # --- the watermark ------------------------------------------------------------------------------------------------

    def _gaps(self, found: list[tuple[Segment, int]]) -> list[CaptureGap]:
        """Return the gaps in the listed segments and in earlier ones."""
        looked_at = [self._progress.segments[segment.id] for segment, _ in found]
        here = [
            CaptureGap(p.reason, p.gap_until(), p.set_aside_at, None if p.lacking is None else frozenset(p.lacking))
            for p in looked_at
            if p.reason is not None
        ]
        return here + self._coverage.gaps()

    def _holding(self, table_id: UUID, gaps: list[CaptureGap]) -> list[CaptureGap]:
        """Return the gaps that hold the watermark of a table: its snapshot began before their ends."""
        return [gap for gap in gaps if gap.concerns(table_id) and gap.until > self.snapshots.covers_until(table_id)]

    def _mark(self, until: int, found: list[tuple[Segment, int]], faults: list[str], stop: threading.Event) -> None:
        """Announce that all writes before a time are published. If some of the listed segments are not published,
        repeat the last announcement.
        """
        self._next_mark = time.monotonic() + self._pace.mark
        # A segment that was left recently may have changes behind the offset in its index.
        faults = faults + [f"{name} is not published" for name in self._left.recent]
        until, not_published = self._promised(until, found, faults)
        self._gaps_now = gaps = self._gaps(found)
        self._held = {}
        captured = self._schemas.tables.captured
        for schema in captured:
            table_id = id_of(schema)
            if table_id in self._truncation_faults:
                self._held[schema.full_name] = self._truncation_faults[table_id]
            elif holding := self._holding(table_id, gaps):
                self._held[schema.full_name] = holding[0].reason
            elif not_published is None and gaps:
                covered = self._progress.covered
                covered[str(table_id)] = max(until, covered.get(str(table_id), 0))
        # With no captured table, a gap may still belong to a table that will be captured.
        first = gaps[0].reason if gaps and not captured else None
        self.held_by = not_published or next(iter(self._held.values()), first)
        if not_published is None and not gaps:
            self._progress.published_until = max(until, self._progress.published_until)
        self._announce_marks(stop)

    def _promised(self, until: int, found: list[tuple[Segment, int]], faults: list[str]) -> tuple[int, str | None]:
        """Return the latest known time before which all writes are published, or why there is none.

        While others publish, writes go on, so all that is listed now may never be published at once. Then an earlier
        list counts.
        """
        listed = None if faults else (until, found)
        for promise in (listed, self._promise):
            if promise is not None and not self._waiting_in(promise[1]):
                self._promise = None if promise is listed else listed
                return promise[0], next(iter(faults), None)
        if self._sharing is not None:
            self._promise = self._promise or listed
        return until, next(iter(faults + self._waiting_in(found)), None)

    def _waiting_in(self, listed: list[tuple[Segment, int]]) -> list[str]:
        """Return which segments of a list have changes that are not published. One that was released has none, and one
        that vanished is a gap.
        """
        progress = self._progress.segments
        return [
            f"{segment.name} is not published"
            for segment, until in listed
            if (p := progress.get(segment.id)) is not None
            and not (p.broken and until != END)
            and _rest(segment, until, p)
        ]

    def _announce_marks(self, stop: threading.Event) -> bool:
        """Publish each table's watermark and the status. Return whether the broker has them; False only if the agent
        stops.
        """
        self._next_announcement = time.monotonic() + self._pace.mark
        self._hand_over_marks()
        return self._publisher.flush(stop)

    def _hand_over_marks(self) -> None:
        tables, marks = self._schemas.tables, dict[str, TableMark]()
        for schema in tables.captured:
            table_id = id_of(schema)
            until = max(self._progress.published_until, self._progress.covered.get(str(table_id), 0))
            waits = self.snapshots.is_pending(table_id) or table_id in self._truncation_faults
            taken_at, truncation = self.snapshots.taken_at(table_id), self._truncations.get(table_id)
            marks[schema.full_name] = TableMark(
                0 if waits else until, taken_at, str(table_id), tables.since(table_id), truncation
            )
        self._publisher.mark(self._node_id, SourceMarks(marks, status=self._status()))

    def _note_gone(self, there: set[int]) -> None:
        """Drop the records of segments that no longer exist. Report their unread parts as lost."""
        gone = [i for i in self._progress.segments if i not in there]
        for segment_id in gone:
            progress = self._progress.segments[segment_id]
            if not progress.finished:
                reason = (
                    f"vanished before it was read to its end (up to offset {progress.position}): its later changes "
                    "are missing; put it back, or bring a snapshot of the tables into the lake with `writetime "
                    "backfill`"
                )
                log.error("%s %s", progress.name, reason)
                told = replace(progress, reason=f"{progress.name} {reason}", lacking=None)
                self._folder.note_missing(told, time.time_ns() // 1000)
            self._folder.tidy(progress.name)
            self._replicas.drop(segment_id)
            self._progress.forget(segment_id)
        if gone:
            self._progress.save()

    def _log_unreadable(self, faults: list[str]) -> None:
        """Report from time to time the segments that cannot be read. They stay until an operator repairs them."""
        if faults and time.monotonic() >= self._next_fault:
            self._next_fault = time.monotonic() + _WARNING_SECONDS
            for fault in faults:
                self.metrics.error("index")
                log.error("%s; nothing is read from it until it is repaired or moved away", fault)

    # --- the status ---------------------------------------------------------------------------------------

    def _measure(self) -> None:
        there = [(segment, until) for segment, until in self._found if segment.id in self._progress.segments]
        sizes = [(segment, self._unpublished(segment, until)) for segment, until in there]
        # The content of a segment with an invalid index is unknown, so all of it counts as unpublished.
        sizes += [(segment, segment.size() or 1) for segment, _ in self._unreadable]
        unread = [segment for segment, size in sizes if size]
        refused = [found.st_size for path in self._refused if (found := _file_of(path)) is not None]
        written = [found.st_mtime for segment in unread if (found := _file_of(segment.path)) is not None]
        now = time.monotonic()
        aside = self._folder.aside()
        captured = self._schemas.tables.captured if self._gaps_now else []
        holding = [gap for schema in captured for gap in self._holding(id_of(schema), self._gaps_now)]
        since = min((gap.since for gap in holding if gap.since), default=None)
        if not refused and not any(_rest(segment, until, self._read_to(segment)) for segment, until in there):
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = now
        self._lag = lag = AgentLag(
            lag_bytes=sum(size for _, size in sizes) + sum(refused) + sum(aside),
            lag_segments=len(unread) + len(refused) + len(aside),
            lag_seconds=max(
                0.0 if self._behind_since is None else now - self._behind_since,
                0.0 if since is None else time.time() - since / 1e6,
                0.0 if self._sharing is None else self._sharing.waits(),
            ),
            oldest_segment_seconds=max(time.time() - min(written), 0.0) if written else 0.0,
            backlog_bytes=backlog_of(self._folder.path),
            backlog_limit_bytes=self._limit,
            aside_segments=len(aside),
            held_tables=len(self._held),
        )
        self.metrics.lag(lag)
        if now >= self._next_status:
            self._next_status = now + self._pace.status
            write_status(self._progress.folder, self._status())
        share = lag.backlog_bytes / self._limit if self._limit else 0.0
        if share >= self._settings.capture.backlog_warning and now >= self._next_warning:
            self._next_warning = now + _WARNING_SECONDS
            log.warning(
                "cdc_raw holds %d MiB, %.0f %% of the node's cdc_total_space: at 100 %% the node refuses writes to "
                "tables with cdc = true; not published yet: %s",
                *(lag.backlog_bytes >> 20, share * 100, pluralize(lag.lag_bytes, "byte")),
            )

    def _status(self) -> dict[str, Any]:
        return self.metrics.status(self._lag) | {
            "address": self._node.address,
            "totals": asdict(self._progress.totals),
            "snapshots": self.snapshots.status(),
            "published_until": self._progress.published_until,
            "held_by": self.held_by,
            "held": self._held,
            "not_captured": self._schemas.tables.faults,
        }


def _rest(segment: Segment, until: int, progress: SegmentProgress) -> int:
    """Return the number of bytes of a segment between its progress and an offset."""
    if progress.finished:
        return 0
    if until == END:
        # It is read at least once, even if nothing was added. A segment that was just deleted has no size.
        return max((segment.size() or 0) - progress.position, 1)
    return max(until - progress.position, 0)


def _file_of(path: str) -> os.stat_result | None:
    """Return the size and the times of a file; None if it no longer exists."""
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None
