"""The test's own record of its messages: each is acknowledged, failed, or of unknown outcome."""

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from uuid import UUID

from confluent_kafka import KafkaError, Message, Producer

from writetime.clients.kafka import client_config, place_of
from writetime.core.config import Settings
from writetime.ingest.event import FIRST_SEEN_HEADER, Event, accept

MAX_MESSAGE_BYTES = 32 * 1024 * 1024
Place = tuple[int, int]


class Fate(StrEnum):
    """The producer's record of a message."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Sent:
    """One message; `event_id` is None if it can only become a dead letter."""

    event_id: UUID | None
    fate: Fate = Fate.UNKNOWN
    place: Place | None = None


class Ledger:
    """Produces messages and keeps their fates."""

    def __init__(self, settings: Settings, rng: random.Random, **producer_options: str | int) -> None:
        self.sent: list[Sent] = []
        self._rng = rng
        self._topic = settings.ingest.topic
        # A short timeout, so that a broker's crash leaves unknown fates and not only late ones.
        own = {"acks": "all", "message.timeout.ms": 3000, "message.max.bytes": MAX_MESSAGE_BYTES, **producer_options}
        self.producer = Producer(client_config(settings, **own))

    def events(self, count: int, users: int, repeated: float = 0.0) -> list[Event]:
        """Make and send events spread over users; the share `repeated` is sent a second time right away."""
        made = []
        for _ in range(count):
            event = self.event(f"user-{self._rng.randrange(users)}")
            made.append(event)
            self.send(event)
            if self._rng.random() < repeated:
                self.send(event)
        return made

    def event(self, user: str, size: int = 20) -> Event:
        """Make an event, as the ingress would."""
        body = {"userId": user, "eventType": "click", "payload": {"text": "x" * size}}
        return accept(body, None, datetime.now(UTC))

    def send(self, event: Event) -> Sent:
        """Send an event."""
        headers: list[tuple[str, str | bytes | None]] = [(FIRST_SEEN_HEADER, b"1")] if event.first_seen else []
        return self._send(Sent(event.event_id), event.key(), event.value(), headers)

    def send_poison(self, value: bytes | None) -> Sent:
        """Send a message that can only become a dead letter."""
        return self._send(Sent(None), b"poison", value, [])

    def flush(self) -> None:
        """Wait until every message has its fate."""
        assert self.producer.flush(30) == 0

    def of(self, fate: Fate) -> list[Sent]:
        """Return the messages with this fate."""
        return [s for s in self.sent if s.fate is fate]

    def _send(self, sent: Sent, key: bytes, value: bytes | None, headers: list[tuple[str, str | bytes | None]]) -> Sent:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                sent.fate, sent.place = Fate.OK, place_of(message)

        self.sent.append(sent)
        self.producer.produce(self._topic, key=key, value=value, headers=headers, on_delivery=delivered)
        self.producer.poll(0)
        return sent
