"""Messages that cannot become rows: kept completely in a separate topic, with the reason and their origin.

A dead letter has the key, value and headers of the original, and these additional headers: `dead-letter.reason`,
`dead-letter.topic`, `dead-letter.partition`, `dead-letter.offset`, `dead-letter.at`. If the name of a header is not
UTF-8, the client cannot read the headers: only key and value are kept, and the reason names the cause. A message may
become two dead letters if the sink is killed between the two acknowledgements; topic, partition and offset show that.
"""

import heapq
import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from confluent_kafka import KafkaError, Message, Producer

from writetime.clients.kafka import (
    NoTopic,
    UnreadableHeaders,
    answers,
    beginning_offsets,
    client_config,
    commit_offsets,
    committed_offsets,
    end_offsets,
    headers_of,
    messages_between,
    place_of,
)
from writetime.core.config import Settings
from writetime.core.counts import counted
from writetime.core.errors import WritetimeError, reason_of
from writetime.ingest.event import REDRIVEN_HEADER

HEADER_PREFIX = "dead-letter."
BACKOFF_BASE_SECONDS = 0.2
BACKOFF_CAP_SECONDS = 10.0
# The client's own limit; the topic's `max.message.bytes` is the one that counts.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
_PRODUCER = {
    "acks": "all",
    "enable.idempotence": True,
    "compression.type": "gzip",
    # Like the ingress, so that a redriven event goes to the partition of its user.
    "partitioner": "murmur2_random",
    "message.timeout.ms": 10_000,
    "message.max.bytes": MAX_MESSAGE_BYTES,
}
# A redrive waits while this much is in the client's queue: no message may wait there for longer than its timeout. A
# message that is too large stops no other, as each is a batch of its own.
_REDRIVE = {**_PRODUCER, "queue.buffering.max.messages": 500, "batch.num.messages": 1}
_QUEUED_KIB = 128 * 1024


class DeadLetters:
    """Sends dead letters, and retries each until the broker acknowledges it: only then is its offset done."""

    def __init__(self, settings: Settings) -> None:
        """Open a producer."""
        self._topic = settings.ingest.dead_letter_topic
        self._producer = Producer(client_config(settings, **_PRODUCER))
        self._acknowledged: list[tuple[int, int]] = []
        self._delayed: list[tuple[float, int, Message, str]] = []
        self._failures: dict[tuple[int, int], int] = {}
        self._sequence = itertools.count()
        self.retries = 0
        self.last_error = ""

    def send(self, message: Message, reason: str) -> None:
        """Send one message to the dead letters; `poll` reports its acknowledgement."""
        self._produce(message, reason)

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        """Return partition and offset of the messages whose dead letters were acknowledged since the last call."""
        now = time.monotonic()
        while self._delayed and self._delayed[0][0] <= now:
            _, _, message, reason = heapq.heappop(self._delayed)
            self._produce(message, reason)
        self._producer.poll(timeout)
        acknowledged, self._acknowledged = self._acknowledged, []
        return acknowledged

    def _produce(self, message: Message, reason: str) -> None:
        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is None:
                self._failures.pop(place_of(message), None)
                self._acknowledged.append(place_of(message))
            else:
                self._delay(message, reason, str(error))

        try:
            self._producer.produce(
                self._topic,
                key=message.key(),
                value=message.value(),
                headers=_headers(message, reason),
                on_delivery=delivered,
            )
        except Exception as e:
            # After an error the message is not done, and the others continue.
            self._delay(message, reason, reason_of(e))

    def _delay(self, message: Message, reason: str, error: str) -> None:
        topic, offset = message.topic(), message.offset()
        self.last_error = (
            f"dead letter for {topic}/{message.partition()}@{offset} is not accepted by {self._topic}: {error}"
        )
        self.retries += 1
        failures = self._failures[place_of(message)] = self._failures.get(place_of(message), 0) + 1
        ceiling = min(BACKOFF_CAP_SECONDS, BACKOFF_BASE_SECONDS * 2 ** min(failures, 16))
        due = time.monotonic() + random.uniform(0, ceiling)
        heapq.heappush(self._delayed, (due, next(self._sequence), message, reason))


@dataclass(frozen=True)
class DeadLetter:
    """One dead letter as in its topic; `headers` are those of the original message, `added` those of the dead letter,
    without their prefix.
    """

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    added: Mapping[str, bytes]

    @property
    def reason(self) -> str:
        """Why it is a dead letter."""
        return self._added("reason") or "unknown"

    @property
    def origin(self) -> str:
        """Topic, partition and offset of the original message."""
        return f"{self._added('topic')}/{self._added('partition')}@{self._added('offset')}"

    @property
    def dead_at(self) -> str:
        """The time at which it became a dead letter, in ISO 8601."""
        return self._added("at") or ""

    def _added(self, name: str) -> str | None:
        value = self.added.get(name)
        return None if value is None else value.decode(errors="replace")


def read(settings: Settings, starts: Mapping[int, int], ends: Mapping[int, int]) -> Iterator[DeadLetter]:
    """Yield the dead letters between two offsets of each partition.

    Raises:
        WritetimeError: the topic cannot be read.
    """
    for message in messages_between(settings, settings.ingest.dead_letter_topic, starts, ends):
        yield _dead_letter(message)


@dataclass(frozen=True)
class Redriven:
    """The number of dead letters that were sent back, and of those that the topic refuses as too large, which are dead
    letters again.
    """

    count: int
    refused: int


def redrive(settings: Settings, queued_kib: int = _QUEUED_KIB) -> Redriven:
    """Send every dead letter that was not redriven yet back to its source topic. At most `queued_kib` KiB wait in the
    client's queue.

    The original key, value and headers are sent, and the header `redriven` counts the rounds. A message that fails
    again becomes a dead letter again; so does one that is too large for the topic, once all others were accepted.
    After a crash the round is repeated, and the sink discards the repeated messages as duplicates.

    Raises:
        WritetimeError: a message was not acknowledged; nothing is marked as redriven then.
    """
    topic = settings.ingest.dead_letter_topic
    starts, ends = _not_redriven(settings)
    redriving = _Redriving(settings, queued_kib)
    for letter in read(settings, starts, ends):
        redriving.send(letter)
    redriving.finish()
    if redriving.refused:
        # They are read again, because all together may not fit into memory.
        for letter in read(settings, starts, ends):
            redriving.bury(letter)
        redriving.finish()
    commit_offsets(settings, topic, _group(topic), ends)
    refused = len(redriving.refused)
    return Redriven(redriving.count - refused, refused)


class _Redriving:
    """One round of a redrive.

    Attributes:
        count: of the letters that were sent.
        refused: why the topic refuses some whenever they are sent, by partition and offset of the letter.
    """

    def __init__(self, settings: Settings, queued_kib: int) -> None:
        self._topic, self._dead_letter_topic = settings.ingest.topic, settings.ingest.dead_letter_topic
        own = {**_REDRIVE, "queue.buffering.max.kbytes": queued_kib}
        self._producer = Producer(client_config(settings, **own))
        self._errors: list[str] = []
        self.count = 0
        self.refused: dict[tuple[int, int], str] = {}

    def send(self, letter: DeadLetter) -> None:
        """Send a letter; wait while the client's queue is full."""
        place = letter.partition, letter.offset
        # The sender of the original may have set this header to any value.
        rounds = next(
            (int(v) for name, v in letter.headers if name == REDRIVEN_HEADER and len(v) <= 9 and v.isdigit()), 0
        )
        headers = [
            *((name, value) for name, value in letter.headers if name != REDRIVEN_HEADER),
            (REDRIVEN_HEADER, str(rounds + 1).encode()),
        ]

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None and error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                self.refused[place] = error.str()
            elif error is not None:
                self._errors.append(f"{self._topic} did not accept them: {error.str()}")

        self._produce(self._topic, letter, headers, delivered)
        self.count += 1

    def bury(self, letter: DeadLetter) -> None:
        """Send a letter that the topic refused to the dead letters again; do nothing with others."""
        error = self.refused.get((letter.partition, letter.offset))
        if error is None:
            return

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                self._errors.append(f"{self._dead_letter_topic} did not accept them again: {error.str()}")

        reason = f"redriven, but {self._topic} does not accept it: {error}; raise its max.message.bytes"
        added = {**letter.added, "reason": reason.encode()}
        headers = [*letter.headers, *((HEADER_PREFIX + name, value) for name, value in added.items())]
        self._produce(self._dead_letter_topic, letter, headers, delivered)

    def finish(self) -> None:
        """Wait for all acknowledgements.

        Raises:
            WritetimeError: some letters were not acknowledged.
        """
        self._producer.flush()
        if self._errors:
            failed = f"{len(self._errors)} of {counted(self.count, 'dead letter')} not redriven"
            raise WritetimeError(f"{failed}: {self._errors[0]}")

    def _produce(
        self,
        topic: str,
        letter: DeadLetter,
        headers: list[tuple[str, bytes]],
        delivered: Callable[[KafkaError | None, Message], None],
    ) -> None:
        while True:
            try:
                self._producer.produce(
                    topic, key=letter.key, value=letter.value, headers=[*headers], on_delivery=delivered
                )
                break
            except BufferError:
                # The client's queue is full.
                self._producer.poll(0.1)


def status_lines(settings: Settings) -> Iterator[str]:
    """Yield a line if there are dead letters that were not redriven yet; nothing if Kafka does not answer."""
    if not answers(settings):
        return
    with suppress(NoTopic):
        starts, ends = _not_redriven(settings)
        if count := sum(ends.values()) - sum(starts.values()):
            yield f"ingest     {counted(count, 'dead letter', ',')} not redriven: writetime dead-letters list"


def _not_redriven(settings: Settings) -> tuple[dict[int, int], dict[int, int]]:
    """Return the first and the end offsets of the dead letters that were not redriven yet."""
    topic = settings.ingest.dead_letter_topic
    ends = end_offsets(settings, topic)
    starts = beginning_offsets(settings, topic)
    for partition, committed in committed_offsets(settings, topic, _group(topic)).items():
        starts[partition] = max(starts[partition], committed or 0)
    return starts, ends


def _group(topic: str) -> str:
    """Return the consumer group that records the progress of redriving."""
    return f"{topic}.redrive"


def _dead_letter(message: Message) -> DeadLetter:
    try:
        headers = headers_of(message)
    except UnreadableHeaders:
        # A foreign message: any client that may write to the topic may have sent it.
        headers = []
    partition, offset = place_of(message)
    return DeadLetter(
        partition=partition,
        offset=offset,
        key=message.key(),
        value=message.value(),
        headers=[(name, value) for name, value in headers if not name.startswith(HEADER_PREFIX)],
        added={n.removeprefix(HEADER_PREFIX): value for n, value in headers if n.startswith(HEADER_PREFIX)},
    )


def _headers(message: Message, reason: str) -> list[tuple[str, str | bytes | None]]:
    own = {
        # It may quote the message, whose text may have invalid Unicode.
        "reason": reason.encode(errors="backslashreplace"),
        "topic": message.topic(),
        "partition": str(message.partition()),
        "offset": str(message.offset()),
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
    return [*headers_of(message), *((HEADER_PREFIX + name, value) for name, value in own.items())]
