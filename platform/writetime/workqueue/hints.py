"""Wakes a worker by change capture: a change of the table of items ends the pause of polling. Polling alone also
suffices.
"""

import logging
import threading
import time
from collections.abc import Callable

from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition

from writetime.clients.kafka import client_config
from writetime.core.config import Settings

log = logging.getLogger(__name__)

_TOPIC_SECONDS = 2.0


class KafkaHint:
    """Reads the topic of changes of `queue_items`, as `writetime agent` publishes it; the table needs `cdc = true`.

    A missing hint costs time, an unnecessary one a poll.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._topic = f"changes.{settings.cassandra.keyspace}.queue_items"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True, name="hint")

    def start(self, notify: Callable[[str], object]) -> None:
        """Start to call `notify` with the queues of items that are inserted from now on, from another thread."""
        self._notify = notify
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()

    def _read(self) -> None:
        own = {"group.id": "writetime-hints", "enable.auto.commit": False, "fetch.wait.max.ms": 100, "log_level": 0}
        consumer = Consumer(client_config(self._settings, **own))
        known = 0
        looked = -_TOPIC_SECONDS
        try:
            while not self._stop.is_set():
                if time.monotonic() - looked > _TOPIC_SECONDS:
                    looked = time.monotonic()
                    # The agent creates the topic at its first change.
                    if (partitions := self._partitions(consumer)) != known:
                        consumer.assign([TopicPartition(self._topic, p, OFFSET_END) for p in range(partitions)])
                        known = partitions
                messages = consumer.consume(1000, 0.1)
                for queue in {queue_of(m.key() or b"") for m in messages if m.error() is None}:
                    self._notify(queue)
        except (KafkaException, RuntimeError) as e:
            # Without hints the queue is polled; a loop that has ended accepts none.
            log.warning("no more hints from %s: %s", self._topic, e)
        finally:
            consumer.close()

    def _partitions(self, consumer: Consumer) -> int:
        try:
            found = consumer.list_topics(self._topic, timeout=2).topics[self._topic]
        except KafkaException:
            return 0
        return 0 if found.error is not None else len(found.partitions)


def queue_of(key: bytes | str) -> str:
    """Return the queue of a message: the first part of the partition key, which has its length before it."""
    key = key.encode() if isinstance(key, str) else key
    return key[2 : 2 + int.from_bytes(key[:2], "big")].decode(errors="replace")
