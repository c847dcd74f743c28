"""Publishes the changes in folders of segments, such as archives of nodes' `cdc_raw`, with Spark's tasks.

This is the work of an agent without the node. Each round lists the segments and their readable offsets, and then reads
the database's schemas. Then tasks decode and publish the new changes, as an agent does. Nothing is deleted or moved.

When a task ends, the checkpoint records the position up to which each of its segments is published. So after a crash,
some changes are published again, and none is missing.

A segment with a fault stops no other segment. The checkpoint has the fault until the segment was read without one.
After an unknown error, a segment is first tried again three times. If a disk or a store cannot return a segment, this
is reported. The checkpoint then has the position up to which the segment was published, and the next round tries the
rest again.

Tasks read segments in parallel. So changes of one key are in order within a segment, but not across segments. The merge
does not need that order. An archive has no watermark, because nothing shows which segments it lacks.
"""

import logging
import os
import posixpath
import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from writetime.capture.change_publisher import ChangePublisher
from writetime.capture.checkpoint import Archived, Checkpoint, read_checkpoint
from writetime.capture.decoding import Decoder, hand_over, unbalanced
from writetime.capture.metrics import fault_kind
from writetime.capture.node_schemas import FixedSchemas, Node, NodeTables, SchemaWatch
from writetime.capture.progress import SegmentProgress
from writetime.clients.database import DRIVER_FAULTS, connect, driver_reason
from writetime.core.config import Settings
from writetime.core.errors import Transient, WritetimeError, reason_of
from writetime.core.outages import is_outage, kind_of
from writetime.files.merging import Runner
from writetime.storage.file_errors import MissingFile
from writetime.storage.locations import without_secrets
from writetime.storage.segment import END, Segment, list_segments
from writetime.wire.publishing import RefusedMessage
from writetime.wire.topic_names import changes_topic

log = logging.getLogger(__name__)

# Segments per task in one round. Progress is saved after it.
SEGMENTS_PER_TASK = 8
# The most segments that are listed per second, so that rounds over a large archive take a small share of a core.
_LISTED_PER_SECOND = 1_000
# How often a segment is tried again after an unknown error, or after Kafka refused a topic.
_RETRIES = 3


@dataclass(frozen=True)
class SegmentListing:
    """A listed segment: its address, the offset up to which it may be read, whether its `_cdc.idx` marks it as
    complete, and the file's size and modification time (ns).
    """

    key: str
    segment: Segment
    until: int
    complete: bool
    file: tuple[int, int]


@dataclass(frozen=True)
class ArchiveListing:
    """The content of folders: the segments that may have unpublished data, and the addresses of all segments. Log files
    that are not known segments, and segments whose `_cdc.idx` cannot be read, are listed with the reason. `unlisted`
    are the folders that cannot be listed, with the reasons.
    """

    looks: list[SegmentListing] = field(default_factory=list)
    there: set[str] = field(default_factory=set)
    faults: dict[str, str] = field(default_factory=dict)
    unlisted: dict[str, Exception] = field(default_factory=dict)


@dataclass
class ArchiveReport:
    """The result of a run: the addresses of the segments that it read to their ends, the number of mutations, and the
    changes by table.

    `faults` has the reason for each segment with missing changes, also from earlier runs. `growing` has the segments
    that were published up to the offset in their `_cdc.idx`, but are not complete yet. Both have addresses without
    secrets. `errors` counts, by kind, the errors that `follow_segments` waited for.
    """

    ended: set[str] = field(default_factory=set)
    mutations: int = 0
    changes: Counter[str] = field(default_factory=Counter)
    faults: dict[str, str] = field(default_factory=dict)
    growing: list[str] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def segments(self) -> int:
        """The number of segments that the run has read to their ends. A segment that was read twice counts once."""
        return len(self.ended)


@dataclass
class PortionOutcome:
    """The segments that a task published, each with its acknowledged progress, the reasons why other segments are not
    read now, by address, and the error that ended the task early, if there was one.
    """

    reached: list[tuple[SegmentListing, SegmentProgress]] = field(default_factory=list)
    changes: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)
    error: WritetimeError | None = None


def _publish_portion(
    settings: Settings, tables: NodeTables, portion: Sequence[tuple[SegmentListing, SegmentProgress]]
) -> PortionOutcome:
    """Publish some segments, each from its progress on. A fault of one does not stop the others."""
    outcome = PortionOutcome()
    attempts: Counter[tuple[str, str | None]] = Counter()
    own = {changes_topic(schema.full_name) for schema in tables.captured}
    try:
        decoder, publisher = Decoder(None, FixedSchemas(tables)), ChangePublisher(settings)
        decoder.refresh()
        work = deque(portion)
        while work:
            look, before = work[0]
            try:
                progress, counts, fault = _publish_segment(decoder, publisher, look, before)
            except (OSError, MemoryError) as e:
                # The next round reads it, if the store has it then.
                publisher = publisher.after(e)
                progress, counts, fault = before, Counter[str](), reason_of(e)
            except Exception as e:
                if isinstance(e, WritetimeError) and not (isinstance(e, RefusedMessage) and e.topic in own):
                    raise
                # After some refusals of a table's topic, its changes are left out.
                publisher = publisher.after(e)
                attempt = look.key, e.topic if isinstance(e, RefusedMessage) else None
                attempts[attempt] += 1
                if attempts[attempt] <= _RETRIES:
                    log.warning("%s: %s; trying again", _shown(look.key), reason_of(e))
                    continue
                log.error("%s", _shown(look.key), exc_info=not isinstance(e, RefusedMessage))
                progress, counts, fault = replace(before.without(reason_of(e), None), broken=True), Counter[str](), None
            if fault is not None:
                outcome.failed[look.key] = fault
            if fault is None or progress != before:
                outcome.reached.append((look, progress))
            outcome.changes += counts
            work.popleft()
    except Exception as e:
        if not isinstance(e, (WritetimeError, OSError)):
            log.exception("a task that publishes segments")
        outcome.error = kind_of(e)(reason_of(e))
    return outcome


def _publish_segment(
    decoder: Decoder, publisher: ChangePublisher, look: SegmentListing, before: SegmentProgress
) -> tuple[SegmentProgress, Counter[str], str | None]:
    """Publish the new changes of a segment. Return its progress, the number of changes per table, and the reason if the
    rest cannot be read now.
    """
    progress, counts, failed = before, Counter[str](), None
    try:
        for after, handed in hand_over(decoder, publisher, look.segment, look.until, before):
            progress = after
            counts.update({schema.full_name: sent.changes.num_rows for schema, _, sent in handed})
    except MissingFile as e:
        progress = replace(progress, reason=str(e), lacking=None)
    except (OSError, MemoryError) as e:
        # The changes before the fault count. Otherwise each round would publish them again.
        failed = reason_of(e)
    publisher.flush()
    if progress.finished:
        try:
            fault = unbalanced(look.segment, progress)
        except (OSError, MemoryError) as e:
            return replace(progress, finished=False), counts, reason_of(e)
        if fault is not None:
            progress = progress.without(fault, None)
    return progress, counts, failed


class Archive:
    """Publishes the segments of some folders, each with the segments of one node, on each call of `drain`.

    `paths` are the folders or single segments, local or in a storage that pyarrow or fsspec can read. `node` is any
    node of the cluster, for its schemas. `run` runs the tasks, of which `tasks` run at once.
    """

    def __init__(
        self, settings: Settings, paths: Sequence[str], node: Node, checkpoint: Checkpoint, *, run: Runner, tasks: int
    ) -> None:
        self._settings = settings
        self._paths = _addresses(paths)
        self._schemas = SchemaWatch(checkpoint.folder, node)
        self._checkpoint = checkpoint
        self._run = run
        self._tasks = tasks
        self._announced: NodeTables | None = None
        # Each run reads segments with faults again once, because the reason may be gone.
        self._again = {key for key, found in checkpoint.segments.items() if found.progress.reason is not None}
        # The content of the folders at the last attempt.
        self.sight = ArchiveListing()
        # The reasons why segments could not be read at the last attempt.
        self._failed: dict[str, str] = {}
        self.report = ArchiveReport()

    def drain(self, stop: threading.Event | None = None) -> None:
        """Publish the present data, or a part of it if `stop` is set; `report` has the result. A folder that is missing
        or cannot be listed is in `sight.unlisted`, and the others are published. Raise a WritetimeError if the database
        or Kafka fails: continue with another call.
        """
        if self._checkpoint.unsaved:
            self._checkpoint.save()
        self._look()
        work = [(look, progress) for look in self.sight.looks if (progress := self._begin(look)) is not None]
        if work or self._announced is None:
            # After the offsets are read: the database knows the schema of all writes below them.
            self._schemas.refresh()
        if self._announced != self._schemas.tables:
            tables = self._schemas.tables
            for fault in ChangePublisher(self._settings, stop=stop).announce_all(tables.captured, tables.faults):
                log.error("%s", fault)
            self._announced = tables
        size = self._tasks * SEGMENTS_PER_TASK
        for i in range(0, len(work), size):
            if stop is not None and stop.is_set():
                break
            self._publish(work[i : i + size])
        if self._checkpoint.unsaved:
            self._checkpoint.save()
        kept = ((key, found.progress.reason) for key, found in self._checkpoint.segments.items())
        faults = {key: reason for key, reason in kept if reason is not None}
        shown = self.sight.faults | faults | self._failed
        self.report.faults = {_shown(key): reason for key, reason in shown.items()}

    def _look(self) -> None:
        """List the folders. Record each segment that vanished, and drop the records of old segments that are done."""
        self.sight = sight = _look(self._paths, self._checkpoint.segments)
        listed = set(self._paths) - set(sight.unlisted)
        self.report.growing = [_shown(look.key) for look in sight.looks if look.until != END]
        self._note_vanished(sight.there, listed)
        self._checkpoint.forget(sight.there, listed)
        self._failed = {key: reason for key, reason in self._failed.items() if key in sight.there}

    def _begin(self, look: SegmentListing) -> SegmentProgress | None:
        """Return the position from which a segment is read; None if it has nothing new."""
        if look.key in self._again:
            self._again.discard(look.key)
            return SegmentProgress(look.segment.name)
        return _begin(look, self._checkpoint.segments.get(look.key))

    def _publish(self, work: Sequence[tuple[SegmentListing, SegmentProgress]]) -> None:
        """Publish some segments in tasks, and save their progress."""
        publish = partial(_publish_portion, self._settings, self._schemas.tables)
        begun = {look.key: progress.mutations for look, progress in work}
        errors = []
        for outcome in self._run(publish, [work[i :: self._tasks] for i in range(min(self._tasks, len(work)))]):
            for key, reason in outcome.failed.items():
                if reason != self._failed.get(key):
                    log.error("%s cannot be read: %s; trying again", _shown(key), reason)
                self._failed[key] = reason
            for look, progress in outcome.reached:
                if look.key not in outcome.failed:
                    self._failed.pop(look.key, None)
                self._checkpoint.keep(look.key, Archived(progress, look.complete, look.file))
                if progress.finished:
                    self.report.ended.add(look.key)
                self.report.mutations += progress.mutations - begun[look.key]
                if progress.reason is not None:
                    log.error("%s: %s", _shown(look.key), progress.reason)
            self.report.changes += outcome.changes
            errors += [outcome.error] if outcome.error else []
        self._checkpoint.save()
        if errors:
            raise (Transient if all(map(is_outage, errors)) else WritetimeError)("; ".join(map(str, errors)))

    def _note_vanished(self, there: set[str], listed: set[str]) -> None:
        """Record the segments that vanished from the listed folders before all of their data was published."""
        for key, found in list(self._checkpoint.segments.items()):
            unread = not found.progress.finished and found.progress.reason is None
            if unread and key not in there and posixpath.dirname(key) in listed:
                reason = (
                    f"{_shown(key)} vanished before it was read to its end (up to offset {found.progress.position}): "
                    "put it back, or bring a snapshot of the tables into the lake with `writetime backfill`"
                )
                log.error("%s", reason)
                # If it is put back, it is read again.
                progress = replace(found.progress, reason=reason, broken=True)
                self._checkpoint.keep(key, replace(found, progress=progress, file=(0, 0)))


def checkpoint_of(settings: Settings) -> Path:
    """Return the default folder of the checkpoint."""
    return settings.capture.state_dir / "segments"


def unpublished(paths: Sequence[str], checkpoint: Path) -> tuple[list[str], dict[str, Exception]]:
    """Return the segments with data that a checkpoint does not have, and the folders that are missing or cannot be
    listed, with the reasons. Only the `_cdc.idx` of a segment is read. A segment with a fault counts if its file has
    changed since. Raise a WritetimeError or an OSError if the checkpoint cannot be read.
    """
    kept = read_checkpoint(checkpoint)
    sight = _look(_addresses(paths), kept)
    return [look.key for look in sight.looks if _begin(look, kept.get(look.key)) is not None], sight.unlisted


def publish_segments(
    settings: Settings, paths: Sequence[str], checkpoint: Path, *, run: Runner = map, tasks: int = 1
) -> ArchiveReport:
    """Publish the present data of folders of segments that a checkpoint does not have yet; see `Archive`. Raise a
    WritetimeError if a folder is missing, another run has the checkpoint, or the database or Kafka fails, and an
    OSError if a folder cannot be listed. The checkpoint has the progress until then.
    """
    with closing(Checkpoint(checkpoint)) as kept, _a_node(settings) as node:
        archive = Archive(settings, paths, node, kept, run=run, tasks=tasks)
        archive.drain()
        for error in archive.sight.unlisted.values():
            raise error
        return archive.report


def follow_segments(
    settings: Settings,
    paths: Sequence[str],
    checkpoint: Path,
    stop: threading.Event,
    *,
    run: Runner = map,
    tasks: int = 1,
) -> ArchiveReport:
    """Publish the segments in folders, and new ones, until `stop` is set. Each failure is logged, counted in the
    report, and retried. Each round lists the folders, so rounds over many segments are rarer. Raise a WritetimeError if
    another run has the checkpoint.
    """
    pause = settings.capture.segments_seconds
    total = ArchiveReport()
    waited = _Waited(total.errors)
    with closing(Checkpoint(checkpoint)) as kept:
        while not stop.is_set():
            try:
                with _a_node(settings) as node:
                    archive = Archive(settings, paths, node, kept, run=run, tasks=tasks)
                    archive.report = total
                    while not stop.is_set():
                        archive.drain(stop)
                        waited.note(next(iter(archive.sight.unlisted.values()), None))
                        stop.wait(max(pause, len(archive.sight.there) / _LISTED_PER_SECOND))
            except Exception as e:
                waited.note(e)
                stop.wait(pause)
    return total


class _Waited:
    """Counts the errors that a program waits for. It logs each error once, until a round succeeds."""

    def __init__(self, errors: Counter[str]) -> None:
        self._errors = errors
        self._logged: str | None = None

    def note(self, error: Exception | None) -> None:
        if error is None:
            self._logged = None
            return
        kind = fault_kind(error)
        reason = driver_reason(error) if isinstance(error, DRIVER_FAULTS) else reason_of(error)
        self._errors[kind] += 1
        if reason != self._logged:
            self._logged = reason
            log.error("%s; trying again", reason, exc_info=error if kind == "unexpected" else None)


@contextmanager
def _a_node(settings: Settings) -> Iterator[Node]:
    """Connect to the database, and yield the node that the settings name, or any."""
    with connect(settings) as session:
        addresses = sorted(str(host.address) for host in session.hosts or ())
        yield Node(session, settings.capture.node or addresses[0])


def _addresses(paths: Sequence[str]) -> list[str]:
    return [path.rstrip("/") if "://" in path else os.path.abspath(path) for path in paths]


def _shown(key: str) -> str:
    """Return the address of a segment without secrets. The options of its folder are before its name."""
    folder, separator, name = key.rpartition("/")
    return f"{without_secrets(folder)}{separator}{name}"


def _look(paths: Sequence[str], kept: Mapping[str, Archived]) -> ArchiveListing:
    """List folders, except for segments that are done."""
    sight = ArchiveListing()
    for path in paths:
        try:
            found, refused = list_segments(path)
        except (WritetimeError, OSError) as e:
            # The other folders do not wait for it.
            sight.unlisted[path] = e
            continue
        for file, error in refused.items():
            if posixpath.basename(file) == posixpath.basename(path):
                # The file that the user named.
                sight.unlisted[path] = error
            else:
                sight.faults[posixpath.join(path, posixpath.basename(file))] = str(error)
        for segment in found:
            key = path if path.endswith(segment.name) else posixpath.join(path, segment.name)
            sight.there.add(key)
            if key in kept and kept[key].is_done:
                continue
            # Before the file is read, so that a change meanwhile is detected the next time.
            try:
                info = segment.filesystem.get_file_info(segment.path)
                index = segment.cdc_index()
            except Exception as e:
                # No other segment waits for it.
                sight.faults[key] = reason_of(e)
                continue
            complete = index is not None and index.completed
            until = END if index is None or complete else index.offset
            sight.looks.append(SegmentListing(key, segment, until, complete, (info.size or 0, info.mtime_ns or 0)))
    return sight


def _begin(look: SegmentListing, known: Archived | None) -> SegmentProgress | None:
    """Return the position from which a segment is read, by its record; None if it has nothing new."""
    from_start = SegmentProgress(look.segment.name)
    if known is None:
        return from_start
    changed = known.file != look.file
    if known.progress.reason is not None and (known.progress.finished or known.progress.broken):
        return from_start if changed else None
    if known.progress.finished:
        # Nothing showed that the segment ends there.
        return replace(known.progress, finished=False) if changed or look.complete else None
    return known.progress if look.until > known.progress.position else None
