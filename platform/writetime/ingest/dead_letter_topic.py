"""Messages that cannot become rows: kept in a separate topic, with the reason and their origin.

A dead letter has the key, value and headers of the original, and these additional headers: `dead-letter.reason`,
`dead-letter.topic`, `dead-letter.topic-id`, `dead-letter.partition`, `dead-letter.offset`, `dead-letter.at`. If the
topic of dead letters refuses that as too large, the letter is shortened (`clients/dead_letters.py`). If the name of a
header is not UTF-8, the client cannot read the headers: only key and value are kept, and the reason names the cause. A
message may become two dead letters if the sink is killed between the two acknowledgements; topic, partition and offset
show that.
"""

import heapq
import itertools
import random
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from writetime.clients.consumer_groups import OtherTopic, commit_offsets, committed_offsets
from writetime.clients.dead_letters import HEADER_PREFIX, SHORTENED, TOO_LARGE, Form, forms_of, produce_fitting
from writetime.clients.kafka import (
    NoTopic,
    UnreadableHeaders,
    answers,
    beginning_offsets,
    client_config,
    end_offsets,
    headers_of,
    messages_between,
    place_of,
    topic_ids,
)
from writetime.core.config import Settings
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError, reason_of
from writetime.ingest.event import REDRIVEN_HEADER

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
    # A message that is too large stops no other, as each is a batch of its own.
    "batch.num.messages": 1,
}
# A redrive waits while this much is in the client's queue: no message may wait there for longer than its timeout.
REDRIVE = {**_PRODUCER, "queue.buffering.max.messages": 500, "queue.buffering.max.kbytes": 128 * 1024}


class DeadLetters:
    """Sends dead letters, and retries each until the broker acknowledges it: only then is its offset done. A letter
    that is too large is shortened, because a retry would never help.
    """

    def __init__(self, settings: Settings) -> None:
        """Open a producer."""
        self._settings = settings
        self._topic = settings.ingest.dead_letter_topic
        self._origin_id = topic_ids(settings, [settings.ingest.topic]).get(settings.ingest.topic, 0)
        self._producer = Producer(client_config(settings, **_PRODUCER))
        self._has_failed = False
        self._acknowledged: list[tuple[int, int]] = []
        # When each is sent again, and how often that failed.
        self._delayed: list[tuple[float, int, Message, str, int]] = []
        self._sequence = itertools.count()
        self.retries = 0
        self.last_error = ""

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        """Return partition and offset of the messages whose dead letters were acknowledged since the last call."""
        now = time.monotonic()
        while self._delayed and self._delayed[0][0] <= now:
            _, _, message, reason, failures = heapq.heappop(self._delayed)
            self.send(message, reason, failures)
        self._producer.poll(timeout)
        if self._has_failed:
            # A producer that has failed for good refuses all messages from then on.
            self._producer.purge()
            self._producer.flush(timeout)
            self._producer, self._has_failed = Producer(client_config(self._settings, **_PRODUCER)), False
        acknowledged, self._acknowledged = self._acknowledged, []
        return acknowledged

    def send(self, message: Message, reason: str, failures: int = 0) -> None:
        """Send one message to the dead letters; `poll` reports its acknowledgement."""

        def delivered(error: KafkaError | None) -> None:
            if error is None:
                self._acknowledged.append(place_of(message))
            else:
                self._has_failed |= _is_fatal(error)
                self._delay(message, reason, failures + 1, str(error))

        try:
            added = _added(message, reason, self._origin_id)
            forms = forms_of(message.key(), message.value(), headers_of(message), added)
            produce_fitting(self._producer, self._topic, forms, delivered)
        except Exception as e:
            # After an error the message is not done, and the others continue.
            self._has_failed |= isinstance(e, KafkaException) and _is_fatal(e.args[0])
            self._delay(message, reason, failures + 1, reason_of(e))

    def _delay(self, message: Message, reason: str, failures: int, error: str) -> None:
        place = f"{message.topic()}/{message.partition()}@{message.offset()}"
        self.last_error = f"dead letter for {place} is not accepted by {self._topic}: {error}"
        self.retries += 1
        ceiling = min(BACKOFF_CAP_SECONDS, BACKOFF_BASE_SECONDS * 2 ** min(failures, 16))
        due = time.monotonic() + random.uniform(0, ceiling)
        heapq.heappush(self._delayed, (due, next(self._sequence), message, reason, failures))


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

    @property
    def is_shortened(self) -> bool:
        """Whether the letter is not the whole message."""
        return SHORTENED in self.added

    def _added(self, name: str) -> str | None:
        value = self.added.get(name)
        return None if value is None else value.decode(errors="replace")


def read(settings: Settings, starts: Mapping[int, int], ends: Mapping[int, int]) -> Generator[DeadLetter, None, None]:
    """Yield the dead letters between two offsets of each partition. Raises as `messages_between`."""
    with closing(messages_between(settings, settings.ingest.dead_letter_topic, starts, ends)) as messages:
        for message in messages:
            headers = _headers(message)
            yield DeadLetter(
                *place_of(message),
                key=message.key(),
                value=message.value(),
                headers=[(name, value) for name, value in headers if not name.startswith(HEADER_PREFIX)],
                added={n.removeprefix(HEADER_PREFIX): value for n, value in headers if n.startswith(HEADER_PREFIX)},
            )


@dataclass(frozen=True)
class Redriven:
    """The number of dead letters that were sent back, and of those that are dead letters again: because the topic
    refuses them as too large, or because only their beginning is left (`lost`).
    """

    count: int
    refused: int
    lost: int = 0


def redrive(settings: Settings) -> Redriven:
    """Send every dead letter that was not redriven yet back to its source topic.

    The original key, value and headers are sent, and the header `redriven` counts the rounds. Those of a shortened
    letter are read at its origin. A message that fails again becomes a dead letter again; so does one that is too large
    for the topic, once all others were accepted. After a crash the round is repeated, and the sink discards the
    repeated messages as duplicates.

    Raises:
        WritetimeError: a message was not acknowledged; nothing is marked as redriven then.
    """
    topic = settings.ingest.dead_letter_topic
    # Before the offsets: if the topic is another one meanwhile, these do not count in it.
    topic_id = topic_ids(settings, [topic]).get(topic, 0)
    starts, ends = _not_redriven(settings)
    redriving = _Redriving(settings)
    with closing(read(settings, starts, ends)) as letters:
        for letter in letters:
            redriving.send(letter)
    redriving.finish()
    if redriving.refused:
        # They are read again, because all together may not fit into memory.
        with closing(read(settings, starts, ends)) as letters:
            for letter in letters:
                redriving.bury(letter)
        redriving.finish()
    commit_offsets(settings, topic, _group(topic), ends, topic_id)
    refused, lost = len(redriving.refused), redriving.lost
    return Redriven(redriving.count - refused, refused - lost, lost)


class _Redriving:
    """One round of a redrive."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._topic, self._dead_letter_topic = settings.ingest.topic, settings.ingest.dead_letter_topic
        self._producer = Producer(client_config(settings, **REDRIVE))
        self._errors: list[str] = []
        # The letters that were sent, and those of them whose whole message is no longer at its origin.
        self.count = self.lost = 0
        # Why some are dead letters again, by partition and offset of the letter.
        self.refused: dict[tuple[int, int], str] = {}

    def send(self, letter: DeadLetter) -> None:
        """Send a letter; wait while the client's queue is full."""
        place = letter.partition, letter.offset
        self.count += 1
        if letter.is_shortened:
            whole = _whole(self._settings, letter)
            if whole is None:
                self.lost += 1
                self.refused[place] = f"only the beginning is left: {letter.origin} is gone"
                return
            letter = whole
        # The sender of the original may have set this header to any value.
        rounds = [int(v) for name, v in letter.headers if name == REDRIVEN_HEADER and len(v) <= 9 and v.isdigit()]
        headers = [(name, value) for name, value in letter.headers if name != REDRIVEN_HEADER]
        headers.append((REDRIVEN_HEADER, str(rounds[0] + 1 if rounds else 1).encode()))

        def delivered(error: KafkaError | None) -> None:
            if error is not None and error.code() in TOO_LARGE:
                remedy = "raise its max.message.bytes"
                self.refused[place] = f"redriven, but {self._topic} does not accept it: {error.str()}; {remedy}"
            elif error is not None:
                self._errors.append(f"{self._topic} did not accept them: {error.str()}")

        self._produce(self._topic, [Form(letter.key, letter.value, headers)], delivered)

    def bury(self, letter: DeadLetter) -> None:
        """Send a letter that could not be sent back to the dead letters again; do nothing with others."""
        reason = self.refused.get((letter.partition, letter.offset))
        if reason is None:
            return

        def delivered(error: KafkaError | None) -> None:
            if error is not None:
                self._errors.append(f"{self._dead_letter_topic} did not accept them again: {error.str()}")

        added = [*{**letter.added, "reason": reason.encode()}.items()]
        self._produce(self._dead_letter_topic, forms_of(letter.key, letter.value, letter.headers, added), delivered)

    def finish(self) -> None:
        """Wait for all acknowledgements. Raise a `WritetimeError` if some letters were not acknowledged."""
        self._producer.flush()
        if self._errors:
            failed = f"{len(self._errors)} of {pluralize(self.count, 'dead letter')} not redriven"
            raise WritetimeError(f"{failed}: {self._errors[0]}")

    def _produce(self, topic: str, forms: list[Form], delivered: Callable[[KafkaError | None], None]) -> None:
        while True:
            try:
                return produce_fitting(self._producer, topic, forms, delivered)
            except BufferError:
                # The client's queue is full.
                self._producer.poll(0.1)
            except KafkaException as e:
                return delivered(e.args[0])


def status_lines(settings: Settings) -> Iterator[str]:
    """Yield a line if there are dead letters that were not redriven yet; nothing if Kafka does not answer."""
    if not answers(settings):
        return
    with suppress(NoTopic):
        starts, ends = _not_redriven(settings)
        if count := sum(ends.values()) - sum(starts.values()):
            yield f"ingest     {pluralize(count, 'dead letter', ',')} not redriven: writetime dead-letters list"


def _not_redriven(settings: Settings) -> tuple[dict[int, int], dict[int, int]]:
    """Return the first and the end offsets of the dead letters that were not redriven yet."""
    topic = settings.ingest.dead_letter_topic
    ends = end_offsets(settings, topic)
    starts = beginning_offsets(settings, topic)
    # Of a topic that was created again, no letter was redriven.
    with suppress(OtherTopic):
        for partition, committed in committed_offsets(settings, topic, _group(topic)).items():
            starts[partition] = max(starts[partition], committed or 0)
    return starts, ends


def _group(topic: str) -> str:
    """Return the consumer group that records the progress of redriving."""
    return f"{topic}.redrive"


def _headers(message: Message) -> list[tuple[str, bytes]]:
    """Return the headers; none if they are unreadable: any client that may write to a topic may have sent them."""
    try:
        return headers_of(message)
    except UnreadableHeaders:
        return []


def _added(message: Message, reason: str, origin_id: int) -> list[tuple[str, bytes]]:
    """Return the headers that a dead letter adds to its message, without their prefix."""
    own = {
        "reason": reason,
        "topic": message.topic(),
        "topic-id": origin_id,
        "partition": message.partition(),
        "offset": message.offset(),
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
    # The reason may quote the message, whose text may have invalid Unicode.
    return [(name, str(value).encode(errors="backslashreplace")) for name, value in own.items()]


def _whole(settings: Settings, letter: DeadLetter) -> DeadLetter | None:
    """Return a shortened letter with the key, value and headers of its message; None if its topic no longer has it."""
    topic = settings.ingest.topic
    place = [letter.added.get(name, b"") for name in ("topic-id", "partition", "offset")]
    if letter.added.get("topic") != topic.encode() or not all(map(bytes.isdigit, place)):
        return None
    origin_id, partition, offset = map(int, place)
    if topic_ids(settings, [topic]).get(topic, 0) != origin_id:
        return None
    firsts, ends = beginning_offsets(settings, topic), end_offsets(settings, topic)
    if not firsts.get(partition, 0) <= offset < ends.get(partition, 0):
        return None
    # One at most.
    for message in list(messages_between(settings, topic, {partition: offset}, {partition: offset + 1})):
        return replace(letter, key=message.key(), value=message.value(), headers=_headers(message))
    return None


def _is_fatal(error: KafkaError) -> bool:
    return error.fatal() or error.code() == KafkaError._FATAL
