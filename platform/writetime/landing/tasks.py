"""The work of one task of landing: messages of a table's topic become files of the lake. It may run in Spark."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa
from confluent_kafka import Message

from writetime.changes.starts import Start
from writetime.clients.kafka import messages_between, place_of
from writetime.core.config import Settings
from writetime.core.errors import Transient, WritetimeError
from writetime.delta.parquet import WrittenFile
from writetime.lake.changes import ChangeWriter
from writetime.lake.generation import which_count
from writetime.landing.text_checks import check_texts
from writetime.landing.topic_gaps import missing_messages
from writetime.schema.table import TableSchema
from writetime.wire.change_messages import ChangeDecoder
from writetime.wire.topic_names import changes_topic

DECODED_TOGETHER = 20_000
"""The number of messages that are decoded at once."""


@dataclass(frozen=True)
class MessageRange:
    """The messages of some partitions from `starts` up to, not including, `ends`.

    `schemas` has all schemas of the table that messages before the ends may name, by fingerprint, `registered` their
    fingerprints by their ids in a registry. The messages in `skipped`, by partition and offset, are left out.
    `counted_from` has the position from which the changes of a source count. With `accepts_gaps`, messages may be
    missing.
    """

    settings: Settings
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    writer: ChangeWriter
    schemas: Mapping[int, Any]
    registered: Mapping[int, Sequence[int]]
    skipped: frozenset[tuple[int, int]]
    counted_from: Mapping[str | None, Start]
    accepts_gaps: bool = False


@dataclass
class LandedFiles:
    """The files of a part, and the numbers of its messages that give no change: those that are `left_out`, because they
    are skipped or erased, or the table has been truncated or created again since; and those that Kafka no longer has.
    """

    files: list[WrittenFile] = field(default_factory=list)
    left_out: int = 0
    missing: int = 0


def write_part(part: MessageRange) -> LandedFiles:
    """Decode the messages of a part and write their changes as files. The files are not visible until they are
    committed. A `WritetimeError` names the place of a message that is not a change of the table, or is missing.
    """
    written = LandedFiles()
    topic = changes_topic(part.writer.schema.full_name)
    with closing(messages_between(part.settings, topic, part.starts, part.ends)) as messages:
        written.files = part.writer.write(_changes(part, messages, written))
    return written


def _changes(part: MessageRange, messages: Iterator[Message], written: LandedFiles) -> Iterator[pa.RecordBatch]:
    decoder = ChangeDecoder(part.writer.schema, part.schemas, part.registered)
    kept = _kept(part, messages, written)
    while some := list(islice(kept, DECODED_TOGETHER)):
        changes = _decoded(decoder, part.writer.schema, some)
        written.left_out += decoder.left_out
        decoder.left_out = 0
        if part.counted_from:
            decoded = len(changes)
            changes = changes.filter(pa.array(which_count(changes, part.counted_from)))
            written.left_out += decoded - len(changes)
        for batch in changes.to_batches():
            left = list(part.writer.left([batch]))
            written.left_out += len(batch) - sum(map(len, left))
            yield from left


def _kept(part: MessageRange, messages: Iterator[Message], written: LandedFiles) -> Iterator[Message]:
    """Yield the messages that are not skipped. Agents send them without transactions, so each offset has one, until
    Kafka compacts the topic.
    """
    expected = dict(part.starts)
    for message in messages:
        place = partition, offset = place_of(message)
        if offset != expected[partition]:
            _miss(part, written, partition, expected[partition], offset)
        expected[partition] = offset + 1
        if place in part.skipped:
            written.left_out += 1
        else:
            yield message
    for partition, end in part.ends.items():
        if expected[partition] < end:
            _miss(part, written, partition, expected[partition], end)


def _miss(part: MessageRange, written: LandedFiles, partition: int, start: int, end: int) -> None:
    written.missing += end - start
    if not part.accepts_gaps:
        raise missing_messages(part.writer.schema.full_name, partition, start, end)


def _decoded(decoder: ChangeDecoder, schema: TableSchema, messages: list[Message]) -> pa.Table:
    try:
        return decode(decoder, schema, [message.value() for message in messages])
    except (Transient, MemoryError):
        raise
    except Exception:
        for message in messages:
            try:
                decode(decoder, schema, [message.value()])
            except (Transient, MemoryError):
                # An operator must not skip the message because of this.
                raise
            except Exception as e:
                raise _unreadable(message, e) from e
        raise


def decode(decoder: ChangeDecoder, schema: TableSchema, values: list[bytes | None]) -> pa.Table:
    """Return the changes in the values of messages, checked so that they can be merged."""
    changes = decoder.decode(values)
    check_texts(changes, schema)
    return changes


def _unreadable(message: Message, error: Exception) -> WritetimeError:
    partition, offset = place_of(message)
    reason = str(error) if isinstance(error, WritetimeError) else f"{type(error).__name__}: {error}"
    return WritetimeError(
        f"topic {message.topic()}, partition {partition}, offset {offset}: {reason[:1000]}. Nothing from there on has "
        "landed. Correct the cause; if the message is not a change of the table, continue after it with "
        f"`writetime land --skip {message.topic()}/{partition}@{offset}`"
    )
