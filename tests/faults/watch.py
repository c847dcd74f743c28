"""Watches the committed offsets and the stored data from outside: in the table and among the dead letters."""

import threading
import time
from collections import Counter
from contextlib import ExitStack
from types import TracebackType
from typing import Self
from uuid import UUID

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tests.faults.ledger import Place
from tests.support.waiting import PATIENCE_SECONDS
from writetime.clients.database import DRIVER_FAULTS, connect
from writetime.clients.kafka import client_config, headers_of
from writetime.core.config import Settings

_INTERVAL_SECONDS = 0.4
_TIMEOUT_SECONDS = 5.0
UNREACHABLE = (KafkaException, *DRIVER_FAULTS)


class Watch:
    """Takes samples until its block ends. Each sample reads the committed offsets first, then the stored rows."""

    def __init__(self, settings: Settings) -> None:
        self.commits: list[dict[int, int]] = []
        self.row_seen: dict[UUID, int] = {}
        self.dead_seen: dict[Place, int] = {}
        self.rows: Counter[UUID] = Counter()
        self._settings = settings
        self._topic = settings.ingest.topic
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        settings = self._settings
        self._session = self._resources.enter_context(connect(settings))
        by_day = settings.ingest.bucket == "day"
        table = f"{settings.cassandra.keyspace}.user_events{'_by_day' if by_day else ''}"
        self._query = f"SELECT event_id FROM {table}"
        quiet = {"enable.auto.commit": False, "log_level": 0}
        self._group = Consumer(client_config(settings, **quiet, **{"group.id": settings.ingest.group}))
        self._resources.callback(self._group.close)
        dead = {"group.id": "watch", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
        self._dead = Consumer(client_config(settings, **quiet, **dead))
        self._resources.callback(self._dead.close)
        self._dead_topic = settings.ingest.dead_letter_topic
        self._partitions = range(settings.ingest.partitions)
        self._dead_read = dict.fromkeys(self._partitions, 0)
        self._dead.assign([TopicPartition(self._dead_topic, p, 0) for p in self._partitions])
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        self._resources.close()

    def sample(self) -> None:
        """Take one sample; one that a server's outage interrupts does not count."""
        with self._lock:
            committed = self._committed()
            rows = Counter(row.event_id for row in self._session.execute(self._query))
            self._read_dead()
            number = len(self.commits)
            self.commits.append(committed)
            self.rows = rows
            for event_id in rows:
                self.row_seen.setdefault(event_id, number)

    def sample_when_reachable(self) -> None:
        """Take one sample; this session may find a server that came back later than the sink does."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return self.sample()
            except UNREACHABLE:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.2)

    def lag(self) -> int:
        """Return how many offsets of the topic are not committed at this moment."""
        with self._lock:
            ends = {p: self._group.get_watermark_offsets(tp, _TIMEOUT_SECONDS)[1] for p, tp in self._places().items()}
            return sum(ends.values()) - sum(self._committed().values())

    def _run(self) -> None:
        while not self._done.wait(_INTERVAL_SECONDS):
            try:
                self.sample()
            except UNREACHABLE:
                continue

    def _places(self) -> dict[int, TopicPartition]:
        return {p: TopicPartition(self._topic, p) for p in self._partitions}

    def _committed(self) -> dict[int, int]:
        answer = self._group.committed(list(self._places().values()), timeout=_TIMEOUT_SECONDS)
        return {tp.partition: max(0, tp.offset) for tp in answer}

    def _read_dead(self) -> None:
        """Read the dead letters up to their present end; one counts from this sample on."""
        for partition in self._partitions:
            try:
                _, end = self._dead.get_watermark_offsets(TopicPartition(self._dead_topic, partition), _TIMEOUT_SECONDS)
            except KafkaException as e:
                if e.args[0].code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION):
                    continue  # A test has deleted the topic.
                raise
            while self._dead_read[partition] < end:
                for message in self._dead.consume(500, 1.0):
                    self._note_dead(message)

    def _note_dead(self, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        if message.error() is not None or partition is None or offset is None:
            return
        headers = dict(headers_of(message))
        if headers["dead-letter.topic"].decode() == self._topic:
            origin = int(headers["dead-letter.partition"]), int(headers["dead-letter.offset"])
            self.dead_seen.setdefault(origin, len(self.commits))
        self._dead_read[partition] = offset + 1
