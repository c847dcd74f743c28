"""The topic `writetime.digests`, by which agents know which changes Kafka has (`capture.replicas = "one"`).

A message has the host id of the sender's node as its key, and digests of changes one after the other as its value. One
without digests shows that the sender is live. Nothing is lost with this topic: agents that read nothing publish all
changes themselves.
"""

import time
from collections.abc import Iterator, Sequence

from confluent_kafka import Consumer, Message, TopicPartition

from writetime.clients.kafka import TIMEOUT_SECONDS, client_config, end_offsets, ensure_topics, offsets_at, place_of
from writetime.clients.kafka_errors import may_pass
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.wire.publishing import Sender

DIGESTS_TOPIC = "writetime.digests"
DIGEST_BYTES = 16
# An agent that starts reads the digests of this time.
_KEPT_SECONDS = 600
# Kafka deletes whole segments.
_SEGMENT_SECONDS = 60
# Digests per message: fewer bytes than any topic allows.
_TOGETHER = 16_384
_MESSAGES = 1000


class DigestTopic:
    """The messages of all agents since some minutes ago, and those of one agent. After a WritetimeError, which is
    Transient if Kafka does not answer, continue with a new object.
    """

    def __init__(self, settings: Settings, sender: str) -> None:
        self._sender = sender.encode()
        options = {"retention.ms": str(_KEPT_SECONDS * 1000), "segment.ms": str(_SEGMENT_SECONDS * 1000)}
        ensure_topics(settings, {DIGESTS_TOPIC: options}, 1)
        # Digests cannot be compressed, and others wait for them.
        self._producer = Sender(settings, "digests cannot be sent", **{"compression.type": "none", "linger.ms": 2})
        self._next = offsets_at(settings, DIGESTS_TOPIC, time.time() - _KEPT_SECONDS)[0]
        self._end = end_offsets(settings, DIGESTS_TOPIC, [0])[0]
        own = {"group.id": "writetime-digests", "enable.auto.commit": False, "auto.offset.reset": "latest"}
        self._consumer = Consumer(client_config(settings, **own))
        self._consumer.assign([TopicPartition(DIGESTS_TOPIC, 0, self._next)])

    def send(self, digests: Sequence[bytes]) -> None:
        """Hand over digests of changes that Kafka has; none only show that the sender is live."""
        for first in range(0, max(len(digests), 1), _TOGETHER):
            value = b"".join(digests[first : first + _TOGETHER])
            self._producer.produce(DIGESTS_TOPIC, value, self._sender, 0)
        self._producer.poll()

    def read(self) -> Iterator[tuple[str, list[bytes]]]:
        """Yield the senders and digests of the new messages. The first call waits for a while for those that were there
        at the start.
        """
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            messages = self._consumer.consume(_MESSAGES, 0.1 if self._next < self._end else 0.0)
            for message in messages:
                if (error := message.error()) is None:
                    self._next = place_of(message)[1] + 1
                    yield _read(message)
                elif not may_pass(error):
                    raise WritetimeError(f"{DIGESTS_TOPIC} cannot be read: {error.str()}")
            if not messages and (self._next >= self._end or time.monotonic() > deadline):
                self._end = 0
                return

    def close(self) -> None:
        """Close the connections for reading."""
        self._consumer.close()


def _read(message: Message) -> tuple[str, list[bytes]]:
    value = message.value() or b""
    digests = [value[i : i + DIGEST_BYTES] for i in range(0, len(value), DIGEST_BYTES)]
    # A foreign message must not stop the reading.
    return (message.key() or b"").decode(errors="replace"), digests
