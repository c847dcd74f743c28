"""Lands captured changes: from the topic `changes.<keyspace>.<table>` into the lake's `changes`, each message once.

A batch takes each partition of the topic up to an offset. Its commit carries, as transactions of Delta, its number and
where each partition is then. So the lake itself says how far landing is: a batch that was killed before its commit was
never there, and of two that run at once one counts. Late, repeated and disordered changes need no care, as merging is
associative, commutative and idempotent.

A commit also carries until when each source's changes are in the lake: what the topic of the watermarks said before the
ends of this table's topic were asked for, once all up to these ends has landed.

The table and its schema come from the topic of the schemas, in which each schema has its table's CQL: a new table or
column needs no word from anyone.
"""

import hashlib
import json
import time
from collections.abc import Collection, Mapping

from writetime.capture.avro import namespace_of
from writetime.capture.landing_schemas import LakeSchemas
from writetime.capture.landing_tasks import DECODED_TOGETHER, Part, write_part
from writetime.capture.publisher import topic_of
from writetime.capture.skipping import held_since, release, skips_of
from writetime.capture.watermarks import Place, SourceMarks, WatermarkTopic
from writetime.config import Settings
from writetime.errors import WritetimeError
from writetime.kafka import NoTopic, beginning_offsets, end_offsets, topic_names
from writetime.lake.changes import ChangeWriter
from writetime.lake.delta import BUCKETS, Snapshot
from writetime.lake.history import raise_history
from writetime.lake.horizon import (
    raise_snapshot,
    register_source,
    registered_sources,
    retire_source,
    watermark,
    watermark_of,
)
from writetime.lake.merging import Runner
from writetime.lake.table import LakeTable, names_table, open_table, table_storage
from writetime.lake.views import time_now
from writetime.publishing import RegisteredSchema, SchemaTopic
from writetime.registry import registry_of

# Messages of a partition in one batch: a lake of few large files, and no batch that takes for ever.
BATCH_MESSAGES = 1_000_000
# How far watermarks move before there is a commit for them alone: of a table without changes, one in five minutes at
# most, as each costs some 50 ms of CPU; or in a third of `capture.stale_seconds`, if that is less.
_WATERMARK_MICROS = 300_000_000
# How often it is looked whether a snapshot has come that releases watermarks.
_RELEASE_SECONDS = 60.0
# How many commits are read to find one that says where landing is; others come from backfills and properties.
_COMMITS_LOOKED_AT = 5


def captured_tables(settings: Settings) -> list[str]:
    """Return the tables that have a topic of changes, as keyspace.table. Topics that name no table do not count."""
    return sorted(table for topic in topic_names(settings) if (table := table_of(topic)) is not None)


def table_of(topic: str) -> str | None:
    """Return the table of which a topic has the changes; None if it is another topic."""
    prefix = topic_of("")
    table = topic.removeprefix(prefix)
    return table if topic.startswith(prefix) and names_table(table) else None


def no_topic(table: str) -> WritetimeError:
    """Return the error of a table that has no topic."""
    return WritetimeError(
        f"{topic_of(table)} is not there: no agent has published {table} yet. Start `writetime agent`, and see that "
        "the table has cdc = true"
    )


def is_published(settings: Settings, table: str) -> bool:
    """Return whether there is a topic of a table's changes."""
    return topic_of(table) in topic_names(settings)


class Topics:
    """What landings of several tables share: the topics of the schemas and the watermarks, each read once for all."""

    def __init__(self, settings: Settings) -> None:
        self.schemas = SchemaTopic(settings)
        self.watermarks = WatermarkTopic(settings)


class Landing:
    """Lands the changes of one table, as often as it is asked to."""

    def __init__(
        self, settings: Settings, table: str, topics: Topics | None = None, place: Place | None = None
    ) -> None:
        """Land a table's changes.

        Args:
            settings: where Kafka and the lake are.
            table: the table, as keyspace.table.
            topics: what landings of several tables share.
            place: where landing of the table was when it last reported.
        """
        self._settings = settings
        self.name = table
        self._topic = topic_of(table)
        self.namespace = namespace_of(table)
        self.topics = topics or Topics(settings)
        self._registry = registry_of(settings)
        self._watermark_micros = min(_WATERMARK_MICROS, settings.capture.stale_seconds * 1e6 / 3)
        self._lake = LakeTable(table_storage(settings, table), 0)
        self._schemas = LakeSchemas(settings, self._lake)
        self._opened: LakeTable | None = None
        # The schemas that the lake's table follows, as they were in the topic then.
        self._followed: tuple[RegisteredSchema, ...] | None = None
        # The offsets up to which the lake has the topic, as they are known without asking it.
        self._landed: Mapping[int, int] | None = None
        self._snapshot_at = 0
        self._next_release = 0.0
        # Where the table is after the last call, so that a process that starts later need not ask the lake.
        self.place = place
        # Offsets between where its commits began and where they ended: as many as the changes, if none is missing.
        self.offsets_landed = 0

    def drain(self, run: Runner = map, *, accept_gap: bool = False) -> int:
        """Land what the topic holds at this moment; return how many changes that was.

        Args:
            run: runs the tasks, one a partition, or one if there is little.
            accept_gap: go on where the topic begins, though messages before are gone and were not landed.

        Raises:
            WritetimeError: the topic is missing, is another one than before, or has lost messages that were not landed;
                or a message is no change of this table, in which case nothing of its batch is landed.
        """
        sources = self.topics.watermarks.read()
        try:
            ends = end_offsets(self._settings, self._topic)
        except NoTopic:
            raise no_topic(self.name) from None
        # Now that the ends are known: all schemas of the messages before are in their topic.
        self.topics.schemas.read_on()
        return self.land(ends, sources, run, accept_gap=accept_gap)

    def land(
        self,
        ends: Mapping[int, int],
        sources: Mapping[str, SourceMarks],
        run: Runner = map,
        *,
        accept_gap: bool = False,
    ) -> int:
        """Land the messages below the ends of the partitions; return how many changes that was.

        Args:
            ends: the offsets where the partitions of the topic end.
            sources: what the topic of the watermarks had before the ends were asked for.
            run: as for `drain`.
            accept_gap: as for `drain`.

        Raises:
            WritetimeError: as `drain` raises it.
        """
        if self._is_current(ends, sources):
            return 0
        schemas = self.topics.schemas.of_namespace(self.namespace)
        now = self._schemas.follow(schemas)
        self._followed = schemas
        if now is None:
            self._opened = None
            if not any(ends.values()):
                return 0
            raise WritetimeError(f"{self._topic} has no schema in the topic of the schemas: no agent has written to it")
        if self._opened is None or self._opened.buckets != int(now.properties[BUCKETS]):
            self._opened = open_table(self._settings, self.name)
        table = self._opened
        if _follow_sources(table, now, sources):
            now = table.changes.load()
        count = 0
        firsts: Mapping[int, int] | None = None
        while True:
            landed = {p: now.transaction(_place(self._topic, p)) or 0 for p in ends}
            if landed != ends and firsts is None:
                firsts = beginning_offsets(self._settings, self._topic)
            first = landed if firsts is None else firsts
            starts = {p: self._start(p, landed[p], first[p], end, accept_gap=accept_gap) for p, end in ends.items()}
            if starts != landed:
                raise_history(table, time_now())
            reached = {p: min(ends[p], start + BATCH_MESSAGES) for p, start in starts.items()}
            known = {source: watermark_of(now, source) for source in registered_sources(now)}
            held = held_since(now)
            if held and release(table, now, sources):
                held = 0
            self._next_release = time.monotonic() + _RELEASE_SECONDS
            moved = {} if held or reached != ends else self._moved(known, sources)
            if reached == landed and not self._is_far(known, moved):
                self._keep_place(now, reached, known, held)
                return count
            self._note_snapshots(table)
            skipped = skips_of(now).keys()
            parts = self._parts(starts, reached, ChangeWriter.of(table, table.schema(now)), skipped)
            files = [file for written in run(write_part, parts) for file in written]
            number = (now.transaction(self._topic) or 0) + 1
            places = {_place(self._topic, p): offset for p, offset in reached.items()}
            for source, until in moved.items():
                places |= watermark(source, until)
            is_new = table.changes.append(files, self._topic, number, places)
            if is_new:
                count += sum(file.rows for file in files)
                passed = sum(starts[p] <= offset < reached[p] for p, offset in skipped if p in reached)
                self.offsets_landed += sum(offset - starts[p] for p, offset in reached.items()) - passed
            now = table.changes.load()
            if is_new and reached == ends:
                self._keep_place(now, reached, known | moved, held)
                return count

    def _parts(
        self,
        starts: Mapping[int, int],
        ends: Mapping[int, int],
        writer: ChangeWriter,
        skipped: Collection[tuple[int, int]],
    ) -> list[Part]:
        """Share the partitions out: each by itself, or few messages together, as each part costs a connection."""
        new = [p for p, start in starts.items() if start < ends[p]]
        few = sum(ends[p] - starts[p] for p in new) <= DECODED_TOGETHER
        schemas = {schema.fingerprint: schema.avro for schema in self.topics.schemas.of_namespace(self.namespace)}
        return [
            Part(
                self._settings,
                {p: starts[p] for p in some},
                {p: ends[p] for p in some},
                writer,
                schemas,
                self._registry,
                frozenset(skipped),
            )
            for some in ([new] if few and new else [[p] for p in new])
        ]

    def _is_current(self, ends: Mapping[int, int], sources: Mapping[str, SourceMarks]) -> bool:
        """Return whether there is nothing to do, without opening the table of the lake: by what is remembered of the
        last call, or by where another process reported that it was and the one commit of the lake that proves it."""
        if self.place is None:
            return False
        schemas = self.topics.schemas.of_namespace(self.namespace)
        if self._landed is None:
            if self.place.schemas != _digest(schemas):
                return False
            numbers = self._lake.changes.transactions_of(self.place.version)
            self._landed = {p: numbers.get(_place(self._topic, p), -1) for p in ends}
            self._followed = schemas
        known = self.place.until
        return (
            self._landed == ends
            and self._followed is schemas
            and not _other_sources(self.name, known.keys(), sources)
            and (
                # A backfill may release them, which only the lake knows.
                time.monotonic() < self._next_release
                if self.place.held_since
                else not self._is_far(known, self._moved(known, sources))
            )
        )

    def _keep_place(self, now: Snapshot, landed: Mapping[int, int], known: Mapping[str, int], held: int) -> None:
        """Remember where the table is, and which commit proves it: the newest one, or one shortly before."""
        self._landed = dict(landed)
        places = {_place(self._topic, p): offset for p, offset in landed.items()}
        if self.place is not None and self.place.version == now.version:
            proof: int | None = now.version
        else:
            newest = range(now.version, max(now.version - _COMMITS_LOOKED_AT, -1), -1)
            proof = next((v for v in newest if places.items() <= self._lake.changes.transactions_of(v).items()), None)
        self.place = Place(now.version if proof is None else proof, dict(known), held, _digest(self._followed or ()))

    def _moved(self, known: Mapping[str, int], sources: Mapping[str, SourceMarks]) -> dict[str, int]:
        """Return the watermarks of registered sources that are beyond those that are known."""
        found = {
            source: marks.tables[self.name].until
            for source, marks in sources.items()
            if source in known and self.name in marks.tables
        }
        return {source: until for source, until in found.items() if until > known[source]}

    def _is_far(self, known: Mapping[str, int], moved: Mapping[str, int]) -> bool:
        """Return whether watermarks have moved so far that they are worth a commit of their own."""
        return any(until - known[source] >= self._watermark_micros for source, until in moved.items())

    def _note_snapshots(self, table: LakeTable) -> None:
        """Record the snapshots that messages may be of. An agent says when one was taken before it publishes it, so
        all of those are known of which there are messages below the ends."""
        sources = self.topics.watermarks.read().values()
        marks = [marks.tables[self.name] for marks in sources if self.name in marks.tables]
        snapshot_at = max((mark.snapshot_at for mark in marks), default=0)
        if snapshot_at > self._snapshot_at:
            raise_history(table, snapshot_at)
            raise_snapshot(table, snapshot_at)
            self._snapshot_at = snapshot_at

    def _start(self, partition: int, landed: int, first: int, end: int, *, accept_gap: bool) -> int:
        where = f"topic {self._topic}, partition {partition}"
        if landed > end:
            raise WritetimeError(
                f"{where} ends at offset {end}, but up to {landed} was landed before: it is not the same topic; bring "
                f"the table {self.name} in under another lake.path"
            )
        if landed < first and not accept_gap:
            raise WritetimeError(
                f"{where} begins at offset {first}, and the messages from {landed} on were not landed: they are gone. "
                f"Bring a snapshot in that is taken now, by `writetime backfill {self.name}`, then go on by "
                f"`writetime land {self.name} --accept-gap`"
            )
        return max(landed, first)


def landed_offsets(settings: Settings, table: str) -> dict[int, int]:
    """Return the offset of each partition of a table's changes up to which the lake has them.

    Raises:
        WritetimeError: the topic is missing.
    """
    changes = LakeTable(table_storage(settings, table), 0).changes
    now = changes.load() if changes.exists() else None
    topic = topic_of(table)
    firsts = beginning_offsets(settings, topic)
    return {p: max((now and now.transaction(_place(topic, p))) or 0, first) for p, first in firsts.items()}


def not_landed(settings: Settings, table: str) -> int:
    """Return how many messages of a table's changes are not in the lake yet.

    Raises:
        WritetimeError: the topic is missing.
    """
    landed = landed_offsets(settings, table)
    return sum(max(end - landed[p], 0) for p, end in end_offsets(settings, topic_of(table)).items())


def _other_sources(table: str, known: Collection[str], sources: Mapping[str, SourceMarks]) -> list[str]:
    """Return the sources of a table that are registered and retired since, or not registered yet."""
    return [s for s, marks in sources.items() if table in marks.tables and marks.retired == (s in known)]


def _follow_sources(table: LakeTable, now: Snapshot, sources: Mapping[str, SourceMarks]) -> bool:
    """Let the lake's table know which sources send changes of it; return whether it did not."""
    other = _other_sources(table.name, registered_sources(now), sources)
    for source in other:
        (retire_source if sources[source].retired else register_source)(table, source)
    return bool(other)


def watermarks_not_landed(settings: Settings, table: str, sources: Mapping[str, SourceMarks]) -> float:
    """Return how many seconds the lake could know more of a table's sources than it does, at most; without messages,
    too, as a table that nobody writes to is as of now."""
    changes = LakeTable(table_storage(settings, table), 0).changes
    if not changes.exists():
        return 0.0
    now = changes.load()
    live = {name: m.tables[table].until for name, m in sources.items() if table in m.tables and not m.retired}
    return max((until - watermark_of(now, name) for name, until in live.items()), default=0) / 1_000_000


def _place(topic: str, partition: int) -> str:
    """Return the name under which the lake keeps the offset that landing has reached in a partition."""
    return f"{topic}/{partition}"


def _digest(schemas: tuple[RegisteredSchema, ...]) -> str:
    """Return a digest of the schemas of a table: another one if any of them comes, goes or changes."""
    content = json.dumps([(s.fingerprint, s.avro.get("cql")) for s in schemas])
    return hashlib.sha256(content.encode()).hexdigest()[:16]
