"""The sink as a service: a member of a consumer group that stores events until it is stopped.

Guarantees: an offset is committed only when every message below it is stored, a duplicate, or an acknowledged dead
letter; committed offsets never go back; after a crash at any point the uncommitted messages are read again, and reading
a message again changes nothing.
"""

import logging
import threading
import time
from collections import Counter

from cassandra.cluster import Session
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from writetime.clients.consumer_groups import OtherTopic, committed, offset_fault, require_same_topic, topic_of_note
from writetime.clients.database import connect
from writetime.clients.kafka import NoTopic, beginning_offsets, client_config, end_offsets
from writetime.clients.topic_options import lossy_faults
from writetime.core.config import Settings
from writetime.core.counts import pluralize
from writetime.core.errors import Transient, WritetimeError, reason_of
from writetime.ingest.event_pipeline import FETCH_MESSAGES, EventPipeline
from writetime.ingest.metrics import SinkMetrics
from writetime.ingest.partition_progress import PartitionProgress
from writetime.ingest.topics import kept_in
from writetime.ingest.writer import Receipt

log = logging.getLogger(__name__)

_STEP_SECONDS = 0.02
_IDLE_SECONDS = 0.2
MAX_REMEMBERED_OFFSETS = 200_000
"""The most offsets of all partitions that are remembered from the first unfinished one on."""
_TOPIC_SECONDS = 10.0
_FAULT_LOG_SECONDS = 30.0
_WAIT_SECONDS = 1.0


def run(settings: Settings, stop: threading.Event) -> Counter[str]:
    """Store events until `stop` is set, then drain, commit and leave the group; return the number of messages by
    outcome.

    Raises:
        WritetimeError: no database, no such topic or table, the topic of dead letters would lose them, or messages were
            lost: to retention before they were read, by the broker, or with a topic that was created again.
    """
    with connect(settings) as session:
        return _Service(settings, session).run(stop)


class _Service:
    def __init__(self, settings: Settings, session: Session) -> None:
        # A missing topic is an error now, not a silent wait.
        self._topic_id = require_same_topic(settings, settings.ingest.topic, settings.ingest.group, [])
        _check_topics(settings)
        self._settings = settings
        self._outcomes: Counter[str] = Counter()
        self._metrics = SinkMetrics(settings)
        self._pipeline = EventPipeline(settings, session, self._count)
        self._committed: dict[int, tuple[int, str]] = {}
        # Whether no partition is read now, and the partitions that are not read.
        self._is_full = False
        self._held: set[int] = set()
        self._next_topic_check = 0.0
        self._faults_logged = (0, 0)
        self._next_fault_log = 0.0
        self._stop = threading.Event()
        self._failure: WritetimeError | None = None
        ingest = settings.ingest
        self._topic = ingest.topic
        self._consumer = Consumer(
            client_config(
                settings,
                **{
                    "group.id": ingest.group,
                    "enable.auto.commit": False,
                    "auto.offset.reset": "error",
                    "enable.partition.eof": True,
                    "partition.assignment.strategy": "cooperative-sticky",
                    "session.timeout.ms": int(ingest.session_timeout_seconds * 1000),
                    "heartbeat.interval.ms": int(ingest.session_timeout_seconds * 1000 / 6),
                    "on_commit": self._on_commit,
                },
            )
        )

    def run(self, stop: threading.Event) -> Counter[str]:
        self._stop = stop
        self._consumer.subscribe(
            [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )
        next_commit = time.monotonic()
        try:
            while not stop.is_set():
                self._read()
                self._pipeline.step(_STEP_SECONDS)
                if time.monotonic() >= next_commit:
                    next_commit = time.monotonic() + self._settings.ingest.commit_interval_seconds
                    self._commit(asynchronous=True)
                    if time.monotonic() >= self._next_topic_check:
                        self._is_same_topic()
                    self._observe()
                    self._log_faults()
        finally:
            # Leaving the group revokes the partitions, which drains and commits them.
            self._consumer.close()
        return self._outcomes

    def _observe(self) -> None:
        try:
            self._metrics.observe(self._consumer, self._pipeline)
        except Exception as e:
            # Events are stored without them.
            log.warning("the metrics cannot be read: %s", reason_of(e))

    def _log_faults(self) -> None:
        """Log at intervals that a write is retried, so that a sink that stores nothing is not silent."""
        faults = self._pipeline.writer.retries, self._pipeline.dead_letters.retries
        if faults == self._faults_logged or time.monotonic() < self._next_fault_log:
            return
        self._faults_logged, self._next_fault_log = faults, time.monotonic() + _FAULT_LOG_SECONDS
        last = [e for e in (self._pipeline.writer.last_error, self._pipeline.dead_letters.last_error) if e]
        counts = pluralize(faults[0], "write"), pluralize(faults[1], "dead letter")
        log.warning("retried so far: %s and %s: %s", *counts, "; ".join(last))

    def _read(self) -> None:
        limit = self._settings.ingest.max_buffered_events
        unfinished = self._pipeline.unfinished
        self._pause()
        # While paused, a call serves rebalances, so it must be made.
        room = 1 if self._is_full else max(1, min(FETCH_MESSAGES, limit - unfinished))
        timeout = 0 if unfinished else _IDLE_SECONDS
        messages = self._consumer.consume(room, timeout)
        if self._failure is not None:
            raise self._failure
        for message in messages:
            self._take(message)

    def _pause(self) -> None:
        """Pause all partitions while too much is unfinished. One unfinished message holds its partition's floor, and
        the done messages beyond it must not pile up without a limit, so it pauses its own partition.
        """
        progress = self._pipeline.progress
        is_full = self._pipeline.fill >= (0.5 if self._is_full else 1)
        share = MAX_REMEMBERED_OFFSETS / max(len(progress), 1)
        held = {p for p, each in progress.items() if each.open_count >= share * (0.5 if p in self._held else 1)}
        if (is_full, held) == (self._is_full, self._held):
            return
        self._is_full, self._held = is_full, held
        assignment = self._consumer.assignment()
        paused = [tp for tp in assignment if is_full or tp.partition in held]
        self._consumer.pause(paused)
        self._consumer.resume([tp for tp in assignment if tp not in paused])

    def _is_same_topic(self) -> bool:
        """Return whether the topic is there. Raise `OtherTopic` if it was deleted and created again."""
        self._next_topic_check = time.monotonic() + _TOPIC_SECONDS
        try:
            require_same_topic(self._settings, self._topic, self._settings.ingest.group, [self._topic_id])
            return True
        except (NoTopic, Transient) as e:
            log.warning("offsets are not committed now: %s", e)
            return False

    def _take(self, message: Message) -> None:
        error = message.error()
        progress = self._pipeline.progress.get(message.partition() or 0)
        if error is None:
            if progress is not None:
                self._pipeline.take(message)
        elif error.code() == KafkaError._PARTITION_EOF:
            if progress is not None:
                progress.reach(message.offset() or 0)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            # A topic that was created again has fewer messages.
            self._is_same_topic()
            raise WritetimeError(f"{self._topic}/{message.partition()}: {error.str()}")
        elif error.fatal():
            raise WritetimeError(f"topic {self._topic} cannot be read: {error.str()}")
        else:
            # The client reconnects by itself; the group continues where it was.
            log.warning("kafka: %s", error.str())

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            first, ends, committed = self._offsets(consumer, partitions)
            read = [self._topic_id, *(topic_of_note(tp.metadata) for tp in committed)]
            require_same_topic(self._settings, self._topic, self._settings.ingest.group, read)
            starts = []
            for tp in committed:
                start = start_offset(self._topic, tp.partition, tp.offset, first[tp.partition], ends[tp.partition])
                progress = PartitionProgress(start, tp.metadata or "", self._topic_id)
                self._pipeline.progress[tp.partition] = progress
                self._committed[tp.partition] = (start, tp.metadata or "")
                starts.append(TopicPartition(self._topic, tp.partition, start))
            consumer.incremental_assign(starts)
            if self._is_full:
                # All partitions are paused and resumed together.
                consumer.pause(starts)
        except (WritetimeError, KafkaException) as e:
            # An exception inside a callback would be lost; the loop raises it.
            self._failure = e if isinstance(e, WritetimeError) else WritetimeError(f"topic {self._topic}: {e}")

    def _offsets(
        self, consumer: Consumer, partitions: list[TopicPartition]
    ) -> tuple[dict[int, int], dict[int, int], list[TopicPartition]]:
        """Return the first, the end and the committed offsets; wait for a broker that does not answer."""
        while True:
            try:
                reached = committed(self._settings, consumer, self._settings.ingest.group, partitions)
                first = beginning_offsets(self._settings, self._topic)
                return first, end_offsets(self._settings, self._topic), reached
            except Transient as e:
                if self._stop.is_set():
                    raise
                log.warning("topic %s: the offsets cannot be read yet: %s", self._topic, reason_of(e))
                self._stop.wait(_WAIT_SECONDS)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        deadline = time.monotonic() + self._settings.ingest.drain_seconds
        revoked = [tp.partition for tp in partitions if tp.partition in self._pipeline.progress]
        while time.monotonic() < deadline and not all(self._pipeline.progress[p].idle for p in revoked):
            try:
                self._pipeline.step(_STEP_SECONDS)
            except WritetimeError as e:
                self._failure = e
                break
        try:
            self._commit(asynchronous=False)
        except OtherTopic as e:
            self._failure = e
        self._forget(revoked)
        consumer.incremental_unassign(partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # The partitions already have other owners, so a commit would be refused.
        self._forget([tp.partition for tp in partitions])
        consumer.incremental_unassign(partitions)

    def _forget(self, partitions: list[int]) -> None:
        self._pipeline.revoke(partitions)
        self._held.difference_update(partitions)
        for partition in partitions:
            self._committed.pop(partition, None)

    def _commit(self, *, asynchronous: bool) -> None:
        offsets = []
        for partition, progress in self._pipeline.progress.items():
            place = progress.floor, progress.metadata()
            if place != self._committed.get(partition):
                offsets.append(TopicPartition(self._topic, partition, place[0], place[1]))
        if not offsets or not self._is_same_topic():
            return
        self._committed |= {tp.partition: (tp.offset, tp.metadata or "") for tp in offsets}
        try:
            self._consumer.commit(offsets=offsets, asynchronous=asynchronous)
        except KafkaException as e:
            self._on_commit(e.args[0], offsets)

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        if error is not None:
            log.warning("offsets were not committed; the next commit includes them: %s", error.str())
            for tp in partitions:
                self._committed.pop(tp.partition, None)

    def _count(self, receipt: Receipt) -> None:
        self._outcomes[receipt.outcome] += 1
        self._metrics.count(receipt)


def _check_topics(settings: Settings) -> None:
    """Check the options of the topics. Events are read nevertheless, before Kafka deletes more; but their offsets are
    committed once their dead letters are acknowledged, so it is an error if the topic of dead letters loses these.
    """
    ingest = settings.ingest
    lossy = lossy_faults(settings, kept_in(settings), log, settings.ingest.max_event_bytes)
    for fault in lossy:
        if fault.topic == ingest.dead_letter_topic:
            raise WritetimeError(str(fault))
        log.error("%s", fault)


def start_offset(topic: str, partition: int, committed: int | None, first: int, end: int) -> int:
    """Return where to begin: at the committed offset, or at the first message if nothing was committed. Raise a
    `WritetimeError` if retention has deleted messages that were never read, or the broker has lost some that were.
    """
    if fault := offset_fault(topic, partition, committed, first, end):
        raise WritetimeError(fault)
    return first if committed is None or committed < 0 else committed
