"""Writes events into `user_events`: batched by partition, at most one batch in flight per partition, retried safely.

All rows of one partition go through one *lane*. While a lane's batch is in flight, its further events form the next
batch. So batches grow with the load, and two conditional writes never contend for a partition. Modes:

- `lwt`: one conditional insert per event. `lwt-batch`: up to `ingest.batch_rows` in one conditional batch. Both store
  an event once, and detect a duplicate. An event with the id of another one becomes a dead letter.
- `upsert`: plain inserts stamped with the event's time, the same row for the same event. Duplicates are not detected;
  of two contents with one id, the larger value of each cell stays.

A write whose outcome is unknown is repeated. That is safe: a conditional insert that finds the row there with this
message's own `origin` was the first to write it, and an upsert writes the same cells again.
"""

import heapq
import itertools
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from queue import Empty, SimpleQueue
from typing import Any
from uuid import UUID

from cassandra import InvalidRequest, Unauthorized
from cassandra.cluster import Session
from cassandra.protocol import SyntaxException
from cassandra.query import BatchStatement, BatchType, BoundStatement

from writetime.clients.database import DRIVER_FAULTS, is_without_answer, nodes_agree, timestamp_as_written
from writetime.core.config import Settings
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError, reason_of
from writetime.core.json_texts import same_json
from writetime.ingest.event import Event

log = logging.getLogger(__name__)

BACKOFF_BASE_SECONDS = 0.05
BACKOFF_CAP_SECONDS = 5.0
# Bytes of values in one batch: well below ScyllaDB's and Cassandra's limits for a mutation.
MAX_BATCH_BYTES = 256 * 1024
# The database answers every conditional write beyond its limit for a mutation with a timeout, so such a write must be
# detected before it is sent. The limit is half a commit log segment: 4 MiB embedded, 16 MiB by default elsewhere.
MAX_PAYLOAD_BYTES = 4 * 1024 * 1024 - 64 * 1024
_INITIAL_LIMIT = 16.0
# For an unexpected fault.
TRIES = 3


class WriteOutcome(StrEnum):
    """The outcome of a message."""

    STORED = "stored"
    DUPLICATE = "duplicate"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Receipt:
    """The outcome of one message. `event` is None if the message was not an event."""

    partition: int
    offset: int
    outcome: WriteOutcome
    reason: str
    event: Event | None = None


@dataclass(slots=True)
class _Write:
    """One event on its way into the table; `origin` names the Kafka message that carries it. As long as the event is
    `first_seen`, the first timestamp of its id is not known.
    """

    event: Event
    origin: str
    partition: int
    offset: int
    alone: bool = False
    faults: int = 0


@dataclass(slots=True)
class _Lane:
    key: tuple[Any, ...]
    waiting: deque[_Write] = field(default_factory=deque)
    batch: list[_Write] = field(default_factory=list)
    failures: int = 0


class EventWriter:
    """Stores events. One thread calls `submit` and `poll`; the driver's threads only fill a queue."""

    def __init__(self, session: Session, settings: Settings) -> None:
        """Prepare the statements. Raise a `WritetimeError` if the table is missing."""
        ingest = settings.ingest
        keyspace = settings.cassandra.keyspace
        self._session = session
        self._conditional = ingest.mode != "upsert"
        self._by_day = ingest.bucket == "day"
        self._batch_rows = 1 if ingest.mode == "lwt" else ingest.batch_rows
        table = f"{keyspace}.{ingest.table}"
        day_column, day_mark = (", day", ", ?") if self._by_day else ("", "")
        try:
            self._insert = session.prepare(
                f"INSERT INTO {table} (user_id{day_column}, event_timestamp, event_id, event_type, payload, origin) "
                f"VALUES (?{day_mark}, ?, ?, ?, ?, ?) {'IF NOT EXISTS' if self._conditional else 'USING TIMESTAMP ?'}"
            )
            self._first_seen = session.prepare(
                f"INSERT INTO {keyspace}.event_first_seen (user_id, event_id, event_timestamp) VALUES (?, ?, ?) "
                f"IF NOT EXISTS USING TTL {ingest.idempotency_window_seconds}"
            )
        except InvalidRequest as e:
            raise WritetimeError(f"table {table} is not as expected ({e}); run `writetime init`") from None
        self._table = table
        self._lanes: dict[tuple[Any, ...], _Lane] = {}
        self._ready: deque[_Lane] = deque()
        self._delayed: list[tuple[float, int, _Lane]] = []
        self._sequence = itertools.count()
        self._answers: SimpleQueue[tuple[_Lane, bool, Any]] = SimpleQueue()
        self._decided: list[Receipt] = []
        self._max_in_flight = ingest.max_in_flight
        self.limit = min(_INITIAL_LIMIT, float(self._max_in_flight))
        self._last_cut: float | None = None
        self.in_flight = 0
        self.retries = 0
        self.last_error = ""
        self.faults = 0

    def submit(self, event: Event, partition: int, offset: int, origin: str) -> None:
        """Take an event; a later `poll` returns its outcome."""
        write = _Write(event, origin, partition, offset)
        size = len(event.payload.encode())
        if size > MAX_PAYLOAD_BYTES:
            reason = f"the payload has {pluralize(size, 'byte')}, more than the {MAX_PAYLOAD_BYTES} that a row may have"
            self._decide(write, WriteOutcome.DEAD, reason)
        else:
            self._enqueue(write)

    def poll(self, timeout: float) -> list[Receipt]:
        """Send the next batches, wait up to `timeout` seconds for an answer, and return the outcomes. Raise a
        `WritetimeError` if the database refuses every write (table dropped, permission revoked).
        """
        self._dispatch()
        try:
            answer = self._answers.get(timeout=timeout) if timeout else self._answers.get_nowait()
            while True:
                self._handle(*answer)
                answer = self._answers.get_nowait()
        except Empty:
            pass
        outcomes, self._decided = self._decided, []
        self._dispatch()
        return outcomes

    def discard(self, partitions: Iterable[int]) -> None:
        """Forget the unsent events of revoked Kafka partitions; the next owner reads them again."""
        revoked = frozenset(partitions)
        for lane in self._lanes.values():
            lane.waiting = deque(w for w in lane.waiting if w.partition not in revoked)

    def _decide(self, write: _Write, outcome: WriteOutcome, reason: str = "") -> None:
        self._decided.append(Receipt(write.partition, write.offset, outcome, reason, write.event))

    def _enqueue(self, write: _Write) -> None:
        event = write.event
        key: tuple[Any, ...] = (event.user_id,)
        if self._by_day and not event.first_seen:
            # Until then the user's lane keeps the order in which the events of one id arrived.
            key = (event.user_id, event.timestamp.date())
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(key)
            self._ready.append(lane)
        lane.waiting.append(write)

    def _dispatch(self) -> None:
        now = time.monotonic()
        while self._delayed and self._delayed[0][0] <= now:
            self._ready.append(heapq.heappop(self._delayed)[2])
        while self._ready and self.in_flight < int(self.limit):
            lane = self._ready.popleft()
            if not lane.batch:
                lane.batch = self._next_batch(lane)
            if lane.batch:
                try:
                    self._send(lane)
                except Exception as e:
                    self._guarded(self._handle_error, lane, e)
            else:
                del self._lanes[lane.key]

    def _next_batch(self, lane: _Lane) -> list[_Write]:
        """Take the next writes of a lane: distinct rows only, because one batch would write both of a pair of
        duplicates.
        """
        batch: list[_Write] = []
        seen: set[UUID] = set()
        size = 0
        while lane.waiting and len(batch) < self._batch_rows:
            write = lane.waiting[0]
            size += len(write.event.payload)
            if batch and (write.event.event_id in seen or write.alone or size > MAX_BATCH_BYTES):
                break
            seen.add(write.event.event_id)
            batch.append(lane.waiting.popleft())
            if write.alone:
                break
        return batch

    def _send(self, lane: _Lane) -> None:
        unresolved = [w.event for w in lane.batch if w.event.first_seen]
        rows = [self._first_seen.bind((e.user_id, e.event_id, e.timestamp)) for e in unresolved]
        if not unresolved:
            rows = [self._bind(w) for w in lane.batch]
        statement: BatchStatement | BoundStatement = rows[0]
        if len(rows) > 1:
            # One partition, so the batch is one mutation and needs no batch log.
            statement = BatchStatement(BatchType.UNLOGGED)
            statement.add_all(rows, [None] * len(rows))
        future = self._session.execute_async(statement)
        self.in_flight += 1
        put = self._answers.put
        future.add_callbacks(
            lambda rows, lane=lane: put((lane, True, rows)),
            lambda error, lane=lane: put((lane, False, error)),
        )

    def _bind(self, write: _Write) -> BoundStatement:
        event = write.event
        day = (event.timestamp.date(),) if self._by_day else ()
        values = (event.user_id, *day, event.timestamp, event.event_id, event.event_type, event.payload, write.origin)
        if self._conditional:
            return self._insert.bind(values)
        return self._insert.bind((*values, _microseconds(event.timestamp)))

    def _handle(self, lane: _Lane, answered: bool, answer: Any) -> None:
        self.in_flight -= 1
        self._guarded(self._handle_answer if answered else self._handle_error, lane, answer)

    def _guarded(self, handle: Callable[[_Lane, Any], None], lane: _Lane, answer: Any) -> None:
        """Handle an answer or an error of a lane; an unexpected fault meanwhile is one of the lane's events."""
        try:
            handle(lane, answer)
        except WritetimeError:
            raise
        except Exception as e:
            self._handle_fault(lane, e)

    def _handle_answer(self, lane: _Lane, answer: Any) -> None:
        # The limit doubles with every round of answers until the database has shown its own limit, then grows by one.
        growth = 1.0 if self._last_cut is None else 1 / self.limit
        self.limit = min(float(self._max_in_flight), self.limit + growth)
        lane.failures = 0
        if any(w.event.first_seen for w in lane.batch):
            self._handle_first_seen(lane, answer)
            if self._by_day:
                self._move_to_days(lane)
        else:
            self._handle_rows(lane, answer)
        self._ready.append(lane)

    def _handle_first_seen(self, lane: _Lane, answer: list[Any]) -> None:
        """Set events to the first timestamp of their id; the next step stores them or reads it again."""
        applied = answer[0].applied
        known = {} if applied else {row.event_id: row.event_timestamp for row in answer if row.event_id is not None}
        for write in lane.batch:
            event = write.event
            if event.first_seen and (applied or event.event_id in known):
                first = event.timestamp if applied else timestamp_as_written(known[event.event_id])
                write.event = replace(event, timestamp=first, first_seen=False)

    def _move_to_days(self, lane: _Lane) -> None:
        """Move the events with known timestamps to the lanes of their days."""
        for write in lane.batch:
            if not write.event.first_seen:
                self._enqueue(write)
        lane.batch = [w for w in lane.batch if w.event.first_seen]

    def _handle_rows(self, lane: _Lane, answer: list[Any]) -> None:
        if not self._conditional or answer[0].applied:
            for write in lane.batch:
                self._decide(write, WriteOutcome.STORED)
            lane.batch = []
            return
        existing = {
            (timestamp_as_written(row.event_timestamp), row.event_id): row for row in answer if row.event_id is not None
        }
        remaining = []
        for write in lane.batch:
            row = existing.get((write.event.timestamp, write.event.event_id))
            if row is None:
                remaining.append(write)
            elif row.origin == write.origin:
                self._decide(write, WriteOutcome.STORED)
            elif row.event_type == write.event.event_type and same_json(row.payload or "", write.event.payload):
                self._decide(write, WriteOutcome.DUPLICATE, f"stored by {row.origin}")
            else:
                reason = f"{row.origin} has stored an event with this id, and another event type or payload"
                self._decide(write, WriteOutcome.DEAD, reason)
        lane.batch = remaining

    def _handle_error(self, lane: _Lane, error: Exception) -> None:
        self.last_error = f"{type(error).__name__}: {error}"
        if isinstance(error, Unauthorized) and not is_without_answer(error):
            raise WritetimeError(f"the database refuses all writes to {self._table}: {error}")
        if isinstance(error, InvalidRequest | SyntaxException):
            self._handle_refusal(lane, error)
        elif isinstance(error, DRIVER_FAULTS):
            # Timeouts, unavailable replicas, overload, a node that stops with requests in flight: these pass.
            self._delay(lane)
        else:
            self._handle_fault(lane, error)

    def _handle_fault(self, lane: _Lane, error: Exception) -> None:
        """Retry an unexpected fault three times, each event alone, then send the event to the dead letters."""
        self.faults += 1
        self.last_error = reason_of(error)
        if len(lane.batch) == 1:
            write = lane.batch[0]
            write.faults += 1
            if write.faults < TRIES:
                self._delay(lane)
                return
            log.error("%s: failed %d times, goes to the dead letters", write.origin, TRIES, exc_info=error)
        self._bury_or_separate(lane, f"the event cannot be stored: {self.last_error}")

    def _bury_or_separate(self, lane: _Lane, reason: str) -> None:
        """Send the event of a batch to the dead letters; try those of a batch with several again, each alone."""
        if len(lane.batch) == 1:
            self._decide(lane.batch[0], WriteOutcome.DEAD, reason)
        else:
            for write in lane.batch:
                write.alone = True
            lane.waiting.extendleft(reversed(lane.batch))
        lane.batch = []
        self._ready.append(lane)

    def _delay(self, lane: _Lane) -> None:
        """Repeat a lane's batch after a while, and reduce the load on the database."""
        self.retries += 1
        now = time.monotonic()
        if self._last_cut is None or now - self._last_cut > 1:
            self._last_cut = now
            self.limit = max(1.0, self.limit / 2)
        lane.failures += 1
        ceiling = min(BACKOFF_CAP_SECONDS, BACKOFF_BASE_SECONDS * 2 ** min(lane.failures, 16))
        heapq.heappush(self._delayed, (now + random.uniform(0, ceiling), next(self._sequence), lane))

    def _handle_refusal(self, lane: _Lane, error: Exception) -> None:
        """Send the one row that the database refuses to the dead letters, if the tables are in order."""
        if len(lane.batch) == 1:
            try:
                for statement in (self._insert, self._first_seen):
                    self._session.prepare(statement.query_string)
            except DRIVER_FAULTS as e:
                if not is_without_answer(e):
                    raise WritetimeError(f"the database refuses all writes to {self._table}: {e}") from None
                self._delay(lane)
                return
            if not nodes_agree(self._session):
                # The node that refused the row may not know the table's columns yet.
                self._delay(lane)
                return
        self._bury_or_separate(lane, f"the database refuses the row: {error}")


def _microseconds(instant: datetime) -> int:
    whole = int(instant.replace(microsecond=0).timestamp())
    return whole * 1_000_000 + instant.microsecond
