"""Hands the changes of a segment over to the broker, and compares the segment's counts at its end."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from uuid import UUID

import pyarrow as pa

from writetime.capture.change_publisher import ChangePublisher, Sent
from writetime.capture.decoding import Decoder
from writetime.capture.progress import SegmentProgress
from writetime.core.counts import pluralize
from writetime.schema.table import TableSchema
from writetime.storage.commitlog import count_mutations
from writetime.storage.file_errors import MissingFile, StorageError
from writetime.storage.segment import END, Segment

log = logging.getLogger(__name__)

# The decoded changes of a table, and those of them that were handed over.
Handed = list[tuple[TableSchema, pa.RecordBatch, Sent]]


def hand_over(
    decoder: Decoder, publisher: ChangePublisher, segment: Segment, until: int, progress: SegmentProgress
) -> Iterator[tuple[SegmentProgress, Handed]]:
    """Hand over the changes up to an offset, and yield them by windows, each with the progress after it. That progress
    is valid once the broker has acknowledged all changes before it.

    Raises:
        MissingFile: the segment no longer exists.
        WritetimeError: Kafka refuses this change or an earlier one.
    """
    published = progress.published
    refused: dict[UUID | None, str] = {}
    for reached, window in decoder.read(segment, until, progress):
        handed = [(schema, changes, publisher.send(schema, changes)) for schema, changes in window]
        for schema, _, sent in handed:
            published += sent.changes.num_rows
            if sent.refused is not None and schema.id not in refused:
                refused[schema.id] = sent.refused
                if str(schema.id) not in (progress.lacking or ()):
                    log.error("not all of %s can be published: %s", segment.name, sent.refused)
        after = reached.without(next(iter(refused.values())), refused) if refused else reached
        yield replace(after, published=published), handed


def unbalanced(segment: Segment, progress: SegmentProgress) -> str | None:
    """Return the mismatch of the counts of a segment that was read to its end, if there is one.

    If the segment was deleted since, its mutations cannot be counted again. All of them were read, so only a change
    that was not published is missing.
    """
    try:
        found = count_mutations(segment, END)
    except MissingFile:
        log.warning("%s was deleted after it was read to its end; its mutations are not counted again", segment.name)
        found = progress.mutations
    except StorageError as e:
        return str(e)
    if found != progress.mutations:
        return f"it has {pluralize(found, 'mutation')}, of which {progress.mutations} were read"
    # If there is a reason, it names the missing changes already.
    if progress.reason is None and progress.decoded != progress.published:
        return f"of {pluralize(progress.decoded, 'change')} that were decoded, {progress.published} were published"
    return None
