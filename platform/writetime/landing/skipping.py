"""Skips a message that landing cannot read: `writetime land --skip TOPIC/PARTITION@OFFSET`.

The message is copied completely to the topic `changes.<keyspace>.<table>.dead`, and the lake's table records its place.
Each landing of the table continues after it. The changes in the message may be missing in the lake. So the watermarks
of the table do not advance until there is a snapshot that began later.
"""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaException, Message, Producer

from writetime.capture.change_publisher import MAX_MESSAGE_BYTES
from writetime.clients.dead_letters import forms_of, produce_fitting
from writetime.clients.kafka import (
    TIMEOUT_SECONDS,
    UnreadableHeaders,
    beginning_offsets,
    client_config,
    end_offsets,
    ensure_topics,
    headers_of,
    messages_between,
    topic_ids,
)
from writetime.core.config import Settings
from writetime.core.errors import Transient, WritetimeError
from writetime.delta.versions import TableVersion
from writetime.lake.horizon import complete_snapshot, registered_sources
from writetime.lake.table import LakeTable, table_storage
from writetime.lake.views import time_now
from writetime.landing.landed_offsets import landed_offsets
from writetime.wire.topic_names import changes_topic, dead_changes_topic
from writetime.wire.watermarks import SourceMarks

# The property of the lake's table that records a skipped message.
_NAME = "writetime.skip.{}.{}@{}"
_SKIPPED = re.compile(r"writetime\.skip\.(\d+)\.(\d+)@(\d+)")
_PLACE = re.compile(r"changes\.(\w+\.\w+)/(\d+)@(\d+)", re.ASCII)


@dataclass(frozen=True)
class MessagePlace:
    """The place of a message of a table's topic."""

    table: str
    partition: int
    offset: int

    @classmethod
    def parse(cls, text: str) -> "MessagePlace":
        """Read `changes.<keyspace>.<table>/<partition>@<offset>`. Raise a `WritetimeError` for another form."""
        found = _PLACE.fullmatch(text)
        if found is None:
            raise WritetimeError(f"{text!r} is not a message: use changes.KEYSPACE.TABLE/PARTITION@OFFSET")
        return cls(found[1], int(found[2]), int(found[3]))

    def __str__(self) -> str:
        return f"{changes_topic(self.table)}/{self.partition}@{self.offset}"


def skips_of(changes: TableVersion) -> dict[tuple[int, int, int], int]:
    """Return the skipped messages of a table, each by the id of its topic (`topic_ids`), its partition and its offset,
    with the time of the skip (microseconds), or 0 if a later snapshot has its changes. They may be of an earlier topic
    of the name.
    """
    named = ((_SKIPPED.fullmatch(name), value) for name, value in changes.properties.items())
    return {(int(found[1]), int(found[2]), int(found[3])): int(value) for found, value in named if found}


def held_since(changes: TableVersion) -> int:
    """Return the time (microseconds) from which a skipped message holds the watermarks of a table; 0 if none does."""
    return max(skips_of(changes).values(), default=0)


def release(table: LakeTable, changes: TableVersion, marks: Mapping[str, SourceMarks]) -> bool:
    """Release the watermarks that a skipped message holds, if there is a snapshot that began later: a complete one from
    a backfill, or one from each source that sends changes. Return whether the watermarks are free now.
    """
    held = held_since(changes)
    sources = registered_sources(changes)
    published = {s: m.tables[table.name].snapshot_at for s, m in marks.items() if table.name in m.tables}
    by_sources = bool(sources) and all(published.get(source, 0) > held for source in sources)
    if complete_snapshot(changes) <= held and not by_sources:
        return False
    for skipped, since in skips_of(changes).items():
        if since:
            table.changes.set_property(_NAME.format(*skipped), "0")
    return True


def skip(settings: Settings, place: MessagePlace) -> int:
    """Copy a message to the topic of the dead letters and let landing continue after it; return its size in bytes.

    Raises:
        WritetimeError: there is no such message, it was landed or skipped before, or the lake has no such table.
    """
    topic = changes_topic(place.table)
    changes = LakeTable(table_storage(settings, place.table)).changes
    now = changes.find()
    if now is None:
        raise WritetimeError(f"the lake has no table {place.table}: run `writetime land {place.table}` first")
    skipped = topic_ids(settings, [topic]).get(topic, 0), place.partition, place.offset
    if skipped in skips_of(now):
        raise WritetimeError(f"{place} was skipped before")
    firsts, ends = beginning_offsets(settings, topic), end_offsets(settings, topic)
    if place.partition not in ends or not firsts[place.partition] <= place.offset < ends[place.partition]:
        there = ", ".join(f"{p}@{firsts[p]} to {p}@{ends[p] - 1}" for p in sorted(ends) if firsts[p] < ends[p])
        raise WritetimeError(f"there is no message {place}; {topic} has {there or 'none'}")
    if place.offset < (landed := landed_offsets(settings, place.table)[place.partition]):
        raise WritetimeError(f"{place} has landed: partition {place.partition} is landed up to offset {landed}")
    message = _read(settings, topic, place)
    _copy(settings, message, dead_changes_topic(place.table), place)
    changes.set_property(_NAME.format(*skipped), str(time_now()))
    return len(message.value() or b"")


def _read(settings: Settings, topic: str, place: MessagePlace) -> Message:
    starts, ends = {place.partition: place.offset}, {place.partition: place.offset + 1}
    # One at most.
    for message in list(messages_between(settings, topic, starts, ends)):
        return message
    raise WritetimeError(f"there is no message {place}: Kafka has a gap in its offsets there")


def _copy(settings: Settings, message: Message, topic: str, place: MessagePlace) -> None:
    """Copy a message, with its place as headers; wait for the acknowledgement."""
    ensure_topics(settings, {topic: {"retention.ms": "-1", "max.message.bytes": str(MAX_MESSAGE_BYTES + 65_536)}}, 1)
    try:
        headers: list[tuple[str, bytes]] = headers_of(message)
    except UnreadableHeaders:
        headers = []
    origin = {"topic": changes_topic(place.table), "partition": place.partition, "offset": place.offset}
    own = [(name, str(value).encode()) for name, value in {**origin, "at": time.time()}.items()]
    faults: list[str] = []
    options = {"acks": "all", "message.max.bytes": MAX_MESSAGE_BYTES + 65_536, "batch.num.messages": 1}
    producer = Producer(client_config(settings, **options))
    try:
        produce_fitting(
            producer,
            topic,
            forms_of(message.key(), message.value(), headers, own),
            lambda error: faults.append(error.str()) if error is not None else None,
        )
    except KafkaException as e:
        raise WritetimeError(f"{place} cannot be copied to {topic}: {e.args[0].str()}") from None
    if producer.flush(TIMEOUT_SECONDS) or faults:
        raise Transient(f"{place} cannot be copied to {topic}: {', '.join(faults) or 'no answer from the broker'}")
