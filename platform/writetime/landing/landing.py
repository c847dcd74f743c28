"""Lands captured changes: from the topic `changes.<keyspace>.<table>` into the lake's `changes`, each message once.

A batch reads each partition of the topic up to an offset. Its commit has, as Delta transactions, its number and the new
offset of each partition. So the lake itself records the progress of landing: a batch that was killed before its commit
leaves nothing, and of two that run at once, only one counts. Late, repeated and disordered changes are handled, because
merging is associative, commutative and idempotent.

A commit also has the id of the topic. If Kafka's data was lost, or the topic was deleted, a topic of the same name has
other messages at these offsets, and some messages may be lost that had not landed. Then landing stops until an operator
accepts this, as it does if Kafka has deleted messages that had not landed (`landing.topic_gaps`).

A commit also has the time up to which each source's changes are in the lake. Landing reads this time from the topic of
the watermarks before it reads the ends of the table's topic. The time counts once all messages up to these ends have
landed. If there are always more messages than a call lands, the ends may be those of an earlier call.

The table and its schema come from the topic of the schemas, where each schema has its table's CQL. So new tables and
columns are found automatically.
"""

import hashlib
import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count, takewhile

from writetime.changes.starts import LATEST, Start
from writetime.clients.kafka import NoTopic, beginning_offsets, end_offsets
from writetime.core.config import Settings
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError
from writetime.core.format_version import FORMAT_VERSION
from writetime.core.instants import instant_text
from writetime.delta.bucketed_table import ERASED, Conflict
from writetime.delta.parquet import WrittenFile
from writetime.delta.versions import BUCKETS, TableVersion
from writetime.files.merging import Runner
from writetime.lake import retention
from writetime.lake.changes import ChangeWriter
from writetime.lake.generation import renew
from writetime.lake.history import raise_history
from writetime.lake.horizon import (
    complete_snapshot,
    raise_snapshot,
    register_source,
    registered_sources,
    retire_source,
    watermark,
    watermark_of,
)
from writetime.lake.packing import FAN, pack_batches
from writetime.lake.state import erased_of, generation_of
from writetime.lake.table import GENERATION, LakeTable, table_storage
from writetime.lake.views import time_of_lake
from writetime.landing.landed_offsets import id_name, is_other_topic, landed_by, place_name
from writetime.landing.schema_changes import LakeSchemas
from writetime.landing.skipping import held_since, release, skips_of
from writetime.landing.tasks import DECODED_TOGETHER, LandedFiles, MessageRange, write_part
from writetime.landing.topic_gaps import ends_early, replaced_topic, require_beginning
from writetime.landing.topics import Topics, no_topic
from writetime.scylla_cdc.log import SUFFIX
from writetime.wire.change_messages import namespace_of
from writetime.wire.publishing import RegisteredSchema
from writetime.wire.topic_names import changes_topic
from writetime.wire.watermarks import LandingPosition, Sources, TableMark

# Messages of a partition per batch, for few large files in the lake and batches of limited duration.
BATCH_MESSAGES = 1_000_000
# The advance of watermarks after which they get a commit of their own: for a table without changes, five minutes,
# because each commit costs some 50 ms of CPU; or a third of `capture.stale_seconds`, if this is less.
WATERMARK_MICROS = 300_000_000
# Batches between two deletions of files that packing replaced; a multiple of `FAN`.
_TRIM_BATCHES = 256
# How often landing looks for a snapshot that releases watermarks.
_RELEASE_SECONDS = 60.0
# The number of commits that are read to find one with the progress of landing. Others are backfills and properties.
_COMMITS_LOOKED_AT = 5


class Incomplete(WritetimeError):
    """The files of a batch do not have one change for each message, so the batch is not committed."""


@dataclass(frozen=True)
class _Batch:
    """The messages that the next commit lands, from offset `begins` to `reached` of each partition.

    Attributes:
        follows: the version of the changes that the commit follows.
        topic_id: the id of the topic, 0 if it is unknown.
        is_other: whether the topic is not the one that was landed before.
        landed: the offsets up to which the lake has the topic, or the earlier one of its name.
        begins: the offsets of the first messages: not those of `landed` after a gap that was accepted.
        reached: the offsets after the last messages.
        ends: the ends of the partitions.
        known: the watermarks of registered sources in the lake.
        moved: the watermarks that the commit moves.
        held: since when messages that were skipped hold the watermarks, 0 if there are none.
    """

    follows: TableVersion
    topic_id: int
    is_other: bool
    landed: Mapping[int, int]
    begins: Mapping[int, int]
    reached: Mapping[int, int]
    ends: Mapping[int, int]
    known: dict[str, int]
    moved: dict[str, int]
    held: int


class Landing:
    """Lands the changes of one table, on each call."""

    def __init__(
        self,
        settings: Settings,
        table: str,
        topics: Topics | None = None,
        place: LandingPosition | None = None,
        *,
        accept_gap: bool = False,
    ) -> None:
        """Land the changes of a table, `keyspace.table`. The landings of several tables share `topics`. `place` is the
        progress at its last report of the table. With `accept_gap`, it continues at the beginning of the topic,
        although earlier messages were lost before they landed, or the topic is not the one that was landed before.
        """
        self._settings = settings
        self.name = table
        self._accept_gap = accept_gap
        self._topic = changes_topic(table)
        self.namespace = namespace_of(table)
        self.topics = topics or Topics(settings)
        self._watermark_micros = min(WATERMARK_MICROS, settings.capture.stale_seconds * 1e6 / 3)
        self._lake = LakeTable(table_storage(settings, table))
        self._schemas = LakeSchemas(settings, self._lake)
        self._is_whole = False
        # The schemas that the lake's table follows, as of that read of their topic, and the sources' reports of
        # truncations and table ids.
        self._followed: tuple[RegisteredSchema, ...] | None = None
        self._marked: Mapping[str, TableMark] = {}
        # The offsets up to which the lake has the topic, if they are known without reading the lake.
        self.landed: Mapping[int, int] | None = None
        # The generation of the lake's table, and the positions from which changes count in it.
        self._generation: int | None = None
        self._starts: Mapping[str, Start] = {}
        self._snapshot_at = 0
        # For a backlog that lands in several calls: the ends and the watermarks as of one of them.
        self._backlog: tuple[Mapping[int, int], Sources] | None = None
        self._next_release = 0.0
        # The progress after the last call, so that a process that starts later need not read the lake.
        self.place = place
        # The reason if its watermarks stay although it lands.
        self.held_by: str | None = None
        # The offsets of its commits, each of which has one change.
        self.offsets_landed = 0

    def drain(self, run: Runner = map) -> int:
        """Land the messages that the topic holds now; return the number of changes. `run` runs the tasks, one per
        partition, or one if there are few messages.

        Raises:
            Incomplete: the changes of a batch are not as many as its messages; then nothing of it lands.
            WritetimeError: the topic is missing, is not the earlier one, or has lost messages that have not landed. Or
                a message is not a change of this table; then nothing of its batch lands.
        """
        sources = self.topics.watermarks.read()
        try:
            ends = end_offsets(self._settings, self._topic)
        except NoTopic:
            raise no_topic(self.name) from None
        # After the ends are read: all schemas of the messages below them are in their topic.
        self.topics.schemas.read_on()
        return self.land(ends, sources, run)

    def land(self, ends: Mapping[int, int], sources: Sources, run: Runner = map, *, one_batch: bool = False) -> int:
        """Land the messages below the ends of the partitions; return the number of changes. (1) Follow the table's
        schemas, sources and generation; then, batch by batch, (2) find its messages and watermarks, (3) write its
        files, (4) commit, (5) pack earlier batches if it is their turn. `sources` is the topic of the watermarks, as
        read before the ends. With `one_batch`, it lands at most one batch, and the next call continues. The errors are
        those of `drain`.
        """
        if self.is_current(ends, sources) or (now := self._follow(ends, sources, run)) is None:
            return 0
        landed = landed_by(now, self._topic, ends)
        firsts = landed if landed == ends else beginning_offsets(self._settings, self._topic, list(ends))
        topic_id = self.topics.id_of(self._topic)
        count = 0
        while True:
            batch = self._next(now, topic_id, firsts, ends, sources)
            ends = batch.ends
            if batch.reached == batch.landed and not batch.is_other and not self._is_far(batch.known, batch.moved):
                self._keep_place(now, batch.reached, batch.known, batch.held)
                return count
            files, messages = self._write(batch, run)
            number = self._commit(batch, files)
            now = self._lake.changes.load()
            if number is None:
                # Another process landed first.
                continue
            count += sum(file.rows for file in files)
            self.offsets_landed += messages
            if number % FAN == 0:
                # A conflict is no fault: the next batches try again.
                with suppress(Conflict):
                    pack_batches(self._lake, now)
                if number % _TRIM_BATCHES == 0:
                    retention.trim_stream(self._lake, self._settings.lake.vacuum_hours)
                now = self._lake.changes.load()
            if one_batch or batch.reached == ends:
                self._keep_place(now, batch.reached, batch.known | batch.moved, batch.held)
                return count

    def _follow(self, ends: Mapping[int, int], sources: Sources, run: Runner) -> TableVersion | None:
        """Bring the lake's table up to its schemas, sources and generation. Return its changes, or None if nothing was
        published.
        """
        schemas = self.topics.schemas.of_namespace(self.namespace)
        now = self._schemas.follow(schemas)
        self._followed, self._marked = schemas, _marked(self.name, sources)
        if now is None:
            self._is_whole = False
            if not any(ends.values()):
                return None
            raise WritetimeError(
                f"{self._topic} has no schema of format version {FORMAT_VERSION} in the topic of the schemas: no agent "
                "of this Writetime has written to it"
            )
        table = self._lake
        if not self._is_whole or table.buckets != int(now.properties[BUCKETS]):
            table.require_parts()
            self._is_whole = True
        if _follow_sources(table, now, sources):
            now = table.changes.load()
        table_id = table.schema(now).id
        if any(mark.id and mark.id != str(table_id) for mark in self._marked.values()):
            # A source hands over its mark of a new table before its changes, so the marks of now, after the ends were
            # read, name the table of each source's changes below them.
            self._marked = _marked(self.name, self.topics.watermarks.read())
        log_name = self.name + SUFFIX
        starts = {source: mark.start(table_id, of_log=source == log_name) for source, mark in self._marked.items()}
        if (self._generation, self._starts) != (generation_of(now), starts):
            renew(table, starts, run)
            now = table.changes.load()
            self._generation, self._starts = generation_of(now), starts
        return now

    def _next(
        self, now: TableVersion, topic_id: int, firsts: Mapping[int, int], ends: Mapping[int, int], sources: Sources
    ) -> _Batch:
        """Return the batch that follows a version of the changes, with the watermarks that it moves. Raise a
        `WritetimeError` if the topic is not the earlier one, or has lost messages that have not landed.
        """
        landed = landed_by(now, self._topic, ends)
        is_other = is_other_topic(now, self._topic, topic_id) or ends_early(self._settings, self._topic, landed, ends)
        if is_other and not self._accept_gap:
            raise replaced_topic(self.name)
        if is_other:
            begins = beginning_offsets(self._settings, self._topic, list(ends))
            self._backlog = None
        else:
            ends = {p: max(end, landed[p]) for p, end in ends.items()}
            if not self._accept_gap:
                require_beginning(self.name, landed, firsts)
            begins = {p: max(landed[p], firsts[p]) for p in ends}
        if is_other or begins != landed:
            raise_history(self._lake, time_of_lake(self._lake))
        reached = {p: min(ends[p], begin + BATCH_MESSAGES) for p, begin in begins.items()}
        known = {source: watermark_of(now, source) for source in registered_sources(now)}
        held = held_since(now)
        if held and release(self._lake, now, sources):
            held = 0
        self._next_release = time.monotonic() + _RELEASE_SECONDS
        self.held_by = _needs_snapshot(self.name, now, self._starts)
        complete = self._complete(reached, ends, sources)
        moved = {} if held or self.held_by else self._moved(known, complete)
        return _Batch(now, topic_id, is_other, landed, begins, reached, ends, known, moved, held)

    def _write(self, batch: _Batch, run: Runner) -> tuple[list[WrittenFile], int]:
        """Write the files of a batch. Return them, and the number of its messages that are changes."""
        self._note_snapshots()
        parts = self._parts(batch)
        written = list(run(write_part, parts))
        if any(each.missing for each in written):
            raise_history(self._lake, time_of_lake(self._lake))
        return [file for each in written for file in each.files], self._require_all(parts, written)

    def _commit(self, batch: _Batch, files: Sequence[WrittenFile]) -> int | None:
        """Commit the files of a batch with its offsets and watermarks. Return the number of the commit, or None if
        another process landed first.
        """
        number = (batch.follows.transaction(self._topic) or 0) + 1
        places = {place_name(self._topic, p): offset for p, offset in batch.reached.items()}
        if batch.topic_id:
            places[id_name(self._topic)] = batch.topic_id
        if batch.is_other:
            places |= dict.fromkeys(_other_places(batch.follows, self._topic, len(batch.ends)), 0)
        for source, until in batch.moved.items():
            places |= watermark(source, until)
        given = {GENERATION: generation_of(batch.follows), ERASED: erased_of(batch.follows)}
        return number if self._lake.changes.append(files, self._topic, number, places, given) else None

    def _parts(self, batch: _Batch) -> list[MessageRange]:
        """Share the partitions out: each separately, or few messages together, because each part costs a connection."""
        now, begins, ends = batch.follows, batch.begins, batch.reached
        new = [p for p, begin in begins.items() if begin < ends[p]]
        few = sum(ends[p] - begins[p] for p in new) <= DECODED_TOGETHER
        schemas = {schema.fingerprint: schema.avro for schema in self.topics.schemas.of_namespace(self.namespace)}
        # Some cells of a column arrive after its drop, and the lake shows times from before it.
        writer = ChangeWriter.of(self._lake, self._lake.whole_schema(now), now)
        skipped = frozenset((p, offset) for topic_id, p, offset in skips_of(now) if topic_id == batch.topic_id)
        return [
            MessageRange(
                self._settings,
                {p: begins[p] for p in some},
                {p: ends[p] for p in some},
                writer,
                schemas,
                self.topics.schemas.ids_of_namespace(self.namespace),
                skipped,
                {source: start for source, start in self._starts.items() if start.since or start.truncation},
                self._accept_gap,
            )
            for some in ([new] if few and new else [[p] for p in new])
        ]

    def _require_all(self, parts: Sequence[MessageRange], written: Sequence[LandedFiles]) -> int:
        """Raise `Incomplete` if the files of a batch do not have one change for each offset; return the number of these
        offsets. Messages that give no change do not count.
        """
        offsets = sum(part.ends[p] - start for part in parts for p, start in part.starts.items())
        offsets -= sum(each.left_out + each.missing for each in written)
        changes = sum(file.rows for each in written for file in each.files)
        if changes != offsets:
            places = (f"{p}@{start}-{part.ends[p] - 1}" for part in parts for p, start in part.starts.items())
            raise Incomplete(
                f"topic {self._topic}: {pluralize(offsets, 'message', ',')} gave {pluralize(changes, 'change', ',')} "
                f"(partition@offsets: {', '.join(places)}). Nothing of this batch has landed, because the lake would "
                f"miss a change or have one twice. Run `writetime land {self.name}` again; if it fails again, this is "
                "a bug: report it with this text"
            )
        return offsets

    def is_current(self, ends: Mapping[int, int], sources: Sources) -> bool:
        """Return whether there is nothing to do, without opening the table of the lake: by the memory of the last call,
        or by the progress that another process reported and the one commit of the lake that proves it.
        """
        if self.place is None:
            return False
        schemas = self.topics.schemas.of_namespace(self.namespace)
        marked = _marked(self.name, sources)
        if self.landed is None:
            if self.place.schemas != _digest(schemas, marked):
                return False
            numbers = self._lake.changes.transactions_of(self.place.version)
            if self.topics.id_of(self._topic) != numbers.get(id_name(self._topic), 0):
                return False
            self.landed = {p: numbers.get(place_name(self._topic, p), -1) for p in ends}
            self._followed, self._marked = schemas, marked
        known = self.place.until
        if self.landed != ends or self._followed is not schemas or self._marked != marked:
            return False
        if _other_sources(self.name, known.keys(), sources):
            return False
        if self.place.held_since or self.held_by:
            # A backfill may release them; only the lake records that.
            return time.monotonic() < self._next_release
        return not self._is_far(known, self._moved(known, sources))

    def _keep_place(self, now: TableVersion, landed: Mapping[int, int], known: Mapping[str, int], held: int) -> None:
        """Remember the progress of the table, and the commit that proves it: the newest one, or one shortly before."""
        self.landed = dict(landed)
        places = {place_name(self._topic, p): offset for p, offset in landed.items()}
        proof = now.version
        if self.place is None or self.place.version != proof:
            newest = range(proof, max(proof - _COMMITS_LOOKED_AT, -1), -1)
            transactions_of = self._lake.changes.transactions_of
            proof = next((v for v in newest if places.items() <= transactions_of(v).items()), proof)
        self.place = LandingPosition(proof, dict(known), held, _digest(self._followed or (), self._marked))

    def _complete(self, reached: Mapping[int, int], ends: Mapping[int, int], sources: Sources) -> Sources:
        """Return the newest known watermarks of which all messages are below some offsets. A backlog may stay for long,
        if as much is written as lands. So its ends, and the watermarks as read before them, are kept until they are
        reached, and then the next ones.
        """
        if reached == ends:
            self._backlog = None
            return sources
        before, now = self._backlog, (ends, sources)
        if before is None or _marked(self.name, before[1]) != _marked(self.name, sources):
            self._backlog = now
            return Sources()
        if any(reached.get(p, 0) < end for p, end in before[0].items()):
            return Sources()
        self._backlog = now
        return before[1]

    def _moved(self, known: Mapping[str, int], sources: Sources) -> dict[str, int]:
        """Return the watermarks of registered sources that are beyond the known ones, except for sources that have only
        an earlier table of the name.
        """
        found = {
            source: marks.tables[self.name].until
            for source, marks in sources.of(self.name).items()
            if source in known and self._starts.get(source, Start()).since < LATEST
        }
        return {source: until for source, until in found.items() if until > known[source]}

    def _is_far(self, known: Mapping[str, int], moved: Mapping[str, int]) -> bool:
        """Return whether watermarks have moved far enough for a commit of their own."""
        return any(until - known[source] >= self._watermark_micros for source, until in moved.items())

    def _note_snapshots(self) -> None:
        """Record the snapshots that messages may belong to. An agent announces a snapshot before it publishes it, so
        all snapshots with messages below the ends are known.
        """
        sources = self.topics.watermarks.read().of(self.name).values()
        snapshot_at = max((marks.tables[self.name].snapshot_at for marks in sources), default=0)
        if snapshot_at > self._snapshot_at:
            raise_history(self._lake, snapshot_at)
            raise_snapshot(self._lake, snapshot_at)
            self._snapshot_at = snapshot_at


def _other_places(now: TableVersion, topic: str, partitions: int) -> Iterator[str]:
    """Yield the names of the offsets of an earlier topic that had more partitions."""
    names = (place_name(topic, partition) for partition in count(partitions))
    return takewhile(lambda name: now.transaction(name) is not None, names)


def _other_sources(table: str, known: Collection[str], sources: Sources) -> list[str]:
    """Return the sources of a table that are registered but were retired since, or that are not registered yet."""
    return [s for s, marks in sources.of(table).items() if marks.retired == (s in known)]


def _follow_sources(table: LakeTable, now: TableVersion, sources: Sources) -> bool:
    """Update the lake's table with the sources that send its changes; return whether this changed anything."""
    other = _other_sources(table.name, registered_sources(now), sources)
    for source in other:
        (retire_source if sources[source].retired else register_source)(table, source)
    return bool(other)


def _needs_snapshot(table: str, now: TableVersion, starts: Mapping[str, Start]) -> str | None:
    """Return why a truncation holds the watermarks of a ScyllaDB table. Its log has write times, which clients may
    choose, so it does not show whether a write came before the truncation. A later snapshot does.
    """
    truncated = [start.truncation.at for start in starts.values() if start.of_log and start.truncation is not None]
    published = (start.snapshot_at for start in starts.values())
    if not truncated or max(complete_snapshot(now), *published) > max(truncated):
        return None
    return (
        f"{table} was truncated at {instant_text(max(truncated))}: bring in a later snapshot with "
        f"`writetime backfill {table}` and the folders of all nodes"
    )


def _marked(table: str, sources: Sources) -> dict[str, TableMark]:
    """Return the sources' reports of a table's id and truncation, without their watermarks."""
    marks = {source: found.tables[table] for source, found in sources.of(table).items()}
    return {
        source: replace(mark, until=0, snapshot_at=mark.snapshot_at if mark.truncation else 0)
        for source, mark in marks.items()
    }


def _digest(schemas: tuple[RegisteredSchema, ...], marked: Mapping[str, TableMark]) -> str:
    """Return a digest of the schemas of a table and of the sources' reports of it. It changes with any of these."""
    content = json.dumps([[(s.fingerprint, s.avro.get("table")) for s in schemas], sorted(map(repr, marked.items()))])
    return hashlib.sha256(content.encode()).hexdigest()[:16]
