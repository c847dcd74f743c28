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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa
from confluent_kafka import Message

from writetime.capture.avro import ChangeDecoder
from writetime.capture.publisher import topic_of
from writetime.capture.watermarks import SourceMarks, WatermarkTopic
from writetime.config import Settings
from writetime.errors import WritetimeError
from writetime.kafka import NoTopic, beginning_offsets, end_offsets, messages_between, place_of, topic_names
from writetime.lake.changes import ChangeWriter
from writetime.lake.delta import Snapshot
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
from writetime.lake.parquet import WrittenFile
from writetime.lake.table import LakeTable, create_table, table_storage
from writetime.lake.views import time_now
from writetime.publishing import SchemaTopic
from writetime.registry import Registry, registry_of
from writetime.schema.cql import parse_table
from writetime.schema.table import TableSchema

# Messages of a partition in one batch: a lake of few large files, and no batch that takes for ever.
BATCH_MESSAGES = 1_000_000
_DECODED_TOGETHER = 20_000
# How far watermarks move before there is a commit for them alone: of a table without changes, one a minute at most.
_WATERMARK_MICROS = 60_000_000


@dataclass(frozen=True)
class Part:
    """The messages of some partitions from `starts` up to, not including, `ends`.

    `schemas` are the table's by their fingerprints, as far as messages before the ends may name them, and `registry` is
    where those are that are named by its ids.
    """

    settings: Settings
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    writer: ChangeWriter
    schemas: Mapping[int, Any]
    registry: Registry | None


def captured_tables(settings: Settings) -> list[str]:
    """Return the tables that have a topic of changes, as keyspace.table."""
    prefix = topic_of("")
    return sorted(topic.removeprefix(prefix) for topic in topic_names(settings) if topic.startswith(prefix))


def is_published(settings: Settings, table: str) -> bool:
    """Return whether there is a topic of a table's changes."""
    return topic_of(table) in topic_names(settings)


class Landing:
    """Lands the changes of one table, as often as it is asked to."""

    def __init__(self, settings: Settings, table: str, sources: WatermarkTopic | None = None) -> None:
        """Land a table's changes; `sources` is what landings of several tables share."""
        self._settings = settings
        self._name = table
        self._topic = topic_of(table)
        self._schemas = SchemaTopic(settings)
        self._sources = sources or WatermarkTopic(settings)
        self._registry = registry_of(settings)
        self._known: dict[int, Any] = {}
        self._table: LakeTable | None = None
        self._snapshot_at = 0
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
        sources = self._sources.read()
        try:
            ends = end_offsets(self._settings, self._topic)
        except NoTopic:
            raise WritetimeError(
                f"{self._topic} is not there: no agent has published {self._name} yet. Start `writetime agent`, and "
                "see that the table has cdc = true"
            ) from None
        firsts = beginning_offsets(self._settings, self._topic)
        # Now that the ends are known: all schemas of the messages before are in their topic.
        table = self._follow_schemas()
        now = table.changes.load()
        if _follow_sources(table, now, sources):
            now = table.changes.load()
        writer = ChangeWriter.of(table, table.schema(now))
        count = 0
        while True:
            landed = {p: now.transaction(_place(self._topic, p)) or 0 for p in ends}
            starts = {p: self._start(p, landed[p], firsts[p], end, accept_gap=accept_gap) for p, end in ends.items()}
            if starts != landed:
                raise_history(table, time_now())
            reached = {p: min(ends[p], start + BATCH_MESSAGES) for p, start in starts.items()}
            moved = self._moved(now, sources) if reached == ends else {}
            if reached == landed and not any(until - before >= _WATERMARK_MICROS for before, until in moved.values()):
                return count
            self._note_snapshots(table)
            parts = self._parts(starts, reached, writer)
            files = [file for written in run(_write, parts) for file in written]
            number = (now.transaction(self._topic) or 0) + 1
            places = {_place(self._topic, p): offset for p, offset in reached.items()}
            for source, (_, until) in moved.items():
                places |= watermark(source, until)
            if table.changes.append(files, self._topic, number, places):
                count += sum(file.rows for file in files)
                self.offsets_landed += sum(offset - starts[p] for p, offset in reached.items())
                if reached == ends:
                    return count
            now = table.changes.load()

    def _parts(self, starts: Mapping[int, int], ends: Mapping[int, int], writer: ChangeWriter) -> list[Part]:
        """Share the partitions out: each by itself, or few messages together, as each part costs a connection."""
        new = [p for p, start in starts.items() if start < ends[p]]
        few = sum(ends[p] - starts[p] for p in new) <= _DECODED_TOGETHER
        return [
            Part(
                self._settings,
                {p: starts[p] for p in some},
                {p: ends[p] for p in some},
                writer,
                dict(self._known),
                self._registry,
            )
            for some in ([new] if few and new else [[p] for p in new])
        ]

    def _follow_schemas(self) -> LakeTable:
        """Let the lake's table follow the schemas that were registered since the last call."""
        found: dict[str, TableSchema] = {}
        for fingerprint, avro in self._schemas.read_on():
            if "cql" in avro and (schema := parse_table(avro["cql"])).full_name == self._name:
                self._known[fingerprint] = avro
                found[avro["cql"]] = schema
        for schema in found.values():
            lake = self._table or LakeTable(table_storage(self._settings, self._name), 0)
            is_new = not lake.changes.exists()
            if not is_new and lake.schema().id not in (None, schema.id):
                raise WritetimeError(
                    f"the table {self._name} was dropped and made again (id {schema.id}), and the lake has the one "
                    f"before (id {lake.schema().id}): {self._topic} may have changes of both, so give the new table "
                    "another name"
                )
            self._table = create_table(self._settings, schema)
            if is_new:
                # What the table had before its capture began is not among the changes.
                raise_history(self._table, time_now())
        if self._table is None:
            raise WritetimeError(f"{self._topic} has no schema in the topic of the schemas: no agent has written to it")
        return self._table

    def _moved(self, now: Snapshot, sources: Mapping[str, SourceMarks]) -> dict[str, tuple[int, int]]:
        """Return the watermarks that are beyond those of the lake: both, by source."""
        registered = registered_sources(now)
        found = {
            source: (watermark_of(now, source), marks.tables[self._name].until)
            for source, marks in sources.items()
            if source in registered and self._name in marks.tables
        }
        return {source: (before, until) for source, (before, until) in found.items() if until > before}

    def _note_snapshots(self, table: LakeTable) -> None:
        """Record the snapshots that messages may be of. An agent says when one was taken before it publishes it, so
        all of those are known of which there are messages below the ends."""
        marks = [marks.tables[self._name] for marks in self._sources.read().values() if self._name in marks.tables]
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
                f"the table {self._name} in under another lake.path"
            )
        if landed < first and not accept_gap:
            raise WritetimeError(
                f"{where} begins at offset {first}, and the messages from {landed} on were not landed: they are gone. "
                f"Bring a snapshot in that is taken now, by `writetime backfill {self._name}`, then go on by "
                f"`writetime land {self._name} --accept-gap`"
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


def _follow_sources(table: LakeTable, now: Snapshot, sources: Mapping[str, SourceMarks]) -> bool:
    """Let the lake's table know which sources send changes of it; return whether it did not."""
    known = registered_sources(now)
    other = [s for s, marks in sources.items() if table.name in marks.tables and marks.retired == (s in known)]
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


def _write(part: Part) -> list[WrittenFile]:
    return part.writer.write(_changes(part))


def _changes(part: Part) -> Iterator[pa.RecordBatch]:
    topic = topic_of(part.writer.schema.full_name)
    decoder = ChangeDecoder(part.writer.schema, part.schemas, part.registry and part.registry.get)
    messages = messages_between(part.settings, topic, part.starts, part.ends)
    while some := list(islice(messages, _DECODED_TOGETHER)):
        yield from _decoded(decoder, some).to_batches()


def _decoded(decoder: ChangeDecoder, messages: list[Message]) -> pa.Table:
    try:
        return decoder.decode([message.value() for message in messages])
    except WritetimeError:
        for message in messages:
            try:
                decoder.decode([message.value()])
            except WritetimeError as e:
                partition, offset = place_of(message)
                raise WritetimeError(f"topic {message.topic()}, partition {partition}, offset {offset}: {e}") from None
        raise
