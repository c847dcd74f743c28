"""Takes each message from Kafka to its outcome: stored, a duplicate, or a dead letter.

The service (`sink`) and the Spark tasks (`drain`) feed the same pipeline; they differ only in the assignment of
partitions and in the commit.
"""

import logging
from collections.abc import Callable, Iterable

from cassandra.cluster import Session
from confluent_kafka import Message

from writetime.clients.kafka import UnreadableHeaders, headers_of, place_of
from writetime.core.config import Settings
from writetime.core.errors import reason_of
from writetime.ingest.dead_letter_topic import DeadLetters
from writetime.ingest.event import InvalidEvent, decode
from writetime.ingest.partition_progress import PartitionProgress
from writetime.ingest.writer import TRIES, EventWriter, Receipt, WriteOutcome

log = logging.getLogger(__name__)

# Limits for unfinished messages. Each of them is in memory twice: as the message, and as an event.
MAX_UNFINISHED_BYTES = 256 * 1024 * 1024
FETCH_MESSAGES = 500
"""The most messages that are read at once."""


class EventPipeline:
    """Decodes messages, writes events, sends invalid ones to the dead letters, and keeps the progress."""

    def __init__(self, settings: Settings, session: Session, on_receipt: Callable[[Receipt], None]) -> None:
        """Prepare the writer and the dead letters; `on_receipt` is called once for every message that is done."""
        # Of the partitions that are read, from their committed offsets on.
        self.progress: dict[int, PartitionProgress] = {}
        self.writer = EventWriter(session, settings)
        self.dead_letters = DeadLetters(settings)
        self._on_receipt = on_receipt
        self.faults = 0
        # Kept until done: a row that the database refuses becomes a dead letter with the complete message. Also
        # messages that the writer does not have yet.
        self._messages: dict[tuple[int, int], Message] = {}
        self._bytes = 0
        self._max_messages = settings.ingest.max_buffered_events
        self._condemned: dict[tuple[int, int], Receipt] = {}

    @property
    def unfinished(self) -> int:
        """The number of messages that were taken and are not done."""
        return len(self._messages)

    @property
    def fill(self) -> float:
        """The share of the messages, or of the bytes, that may be unfinished; from 1 on, reading must pause."""
        return max(len(self._messages) / self._max_messages, self._bytes / MAX_UNFINISHED_BYTES)

    def oldest_age_seconds(self, now: float) -> float:
        """Return the age of the oldest unfinished message (by its Kafka timestamp), 0 if there is none."""
        message = next(iter(self._messages.values()), None)
        return max(0.0, now - message.timestamp()[1] / 1000) if message else 0.0

    def revoke(self, partitions: Iterable[int]) -> None:
        """Forget partitions and their unfinished messages."""
        revoked = frozenset(partitions)
        self.writer.discard(revoked)
        for partition in revoked:
            self.progress.pop(partition, None)
        for place in [p for p in self._messages if p[0] in revoked]:
            self._forget(place)
            self._condemned.pop(place, None)

    def take(self, message: Message) -> None:
        """Take one delivered message; those that an earlier run has done are skipped."""
        partition, offset = place_of(message)
        if not self.progress[partition].deliver(offset):
            return
        self._messages[partition, offset] = message
        self._bytes += len(message)
        place = f"{message.topic()}/{partition}@{offset}"
        reason = ""
        for tries_left in reversed(range(TRIES)):
            try:
                event = decode(message.value(), headers_of(message))
                self.writer.submit(event, partition, offset, place)
                return
            except InvalidEvent as e:
                reason = str(e)
                break
            except UnreadableHeaders as e:
                reason = f"{e}; the headers are not kept"
                break
            except Exception as e:
                reason = f"the message cannot be stored: {reason_of(e)}"
                self.faults += 1
                if not tries_left:
                    log.exception("%s: failed %d times, goes to the dead letters", place, TRIES)
        self._condemn(Receipt(partition, offset, WriteOutcome.DEAD, reason))

    def step(self, timeout: float) -> None:
        """Make progress; wait up to `timeout` seconds for an event. Raise a `WritetimeError` if the database refuses
        every write.
        """
        written = self.writer.poll(timeout if self.writer.in_flight else 0)
        for receipt in written:
            if (receipt.partition, receipt.offset) not in self._messages:
                continue  # The partition was revoked meanwhile; its new owner reads the message again.
            if receipt.outcome is WriteOutcome.DEAD:
                self._condemn(receipt)
            else:
                self._finish(receipt)
        for place in self.dead_letters.poll(0 if written or self.writer.in_flight else timeout):
            if receipt := self._condemned.pop(place, None):
                self._finish(receipt)

    def _condemn(self, receipt: Receipt) -> None:
        place = receipt.partition, receipt.offset
        self._condemned[place] = receipt
        self.dead_letters.send(self._messages[place], receipt.reason)

    def _finish(self, receipt: Receipt) -> None:
        self._forget((receipt.partition, receipt.offset))
        self.progress[receipt.partition].finish(receipt.offset)
        self._on_receipt(receipt)

    def _forget(self, place: tuple[int, int]) -> None:
        self._bytes -= len(self._messages.pop(place))
