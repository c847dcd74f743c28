"""The batches of a queue in the database, which decides which batches are published.

No write time comes from the clock of this machine:

- seals and effects are conditional writes, whose write times follow each other whatever the nodes' clocks are;
- producers and floors have their number as the write time, so the highest one stays;
- blocks are written once and never changed, so they have the lowest write time, and each deletion is newer;
- copies of cursors have the database's time, or a later one than the copy that they replace.

One conditional insert seals a batch under its number. The blocks that a publisher wrote before, under its own attempt
id, are invisible until then. They stay invisible if another attempt was sealed under that number.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any
from uuid import UUID

from cassandra import ConsistencyLevel
from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent_with_args
from cassandra.query import BatchStatement, PreparedStatement

from writetime.clients.database import connect, largest_mutation, timestamp_as_written
from writetime.clients.prepared_statements import Statement, Statements, driver_faults_named
from writetime.core.config import Settings
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError
from writetime.replay.blocks import CHUNK_BLOCKS, decode

ERA = 10_000
_IN_FLIGHT = 16
# The most batches, and the most bytes, that are read ahead.
_AHEAD = 4
_AHEAD_BYTES = 64 << 20
# The time after which the database's clock is read again.
_CLOCK_SECONDS = 60.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NEEDED_BY = "replay queues"
# Seals that are read at once.
_PAGE = 100
_BLOCK_WRITE_TIME = 1
_OF_BATCH = "queue = ? AND era = ? AND n"
_OF_CHUNK = "queue = ? AND attempt = ? AND chunk = ?"
# The columns of the fields of `Seal`, in their order.
_COLUMNS = ("queue", "n", "attempt", "items", "bytes", "blocks", "sha256", "producer", "sequence", "published_at")
_FIELDS = ", ".join(_COLUMNS)


class NoBatch(WritetimeError):
    """The requested batch was not published."""


class Gone(NoBatch):
    """A batch was published, and retention has deleted its items."""

    def __init__(self, queue: str, gone: int) -> None:
        super().__init__(
            f"the batches of queue {queue} up to {gone} were deleted by retention; the first batch that may still "
            f"exist is {gone + 1}"
        )


class DamagedBatch(WritetimeError):
    """A batch differs from its seal."""


@dataclass(frozen=True)
class Seal:
    """The conditional insert of a batch."""

    queue: str
    n: int
    attempt: UUID
    items: int
    size: int
    blocks: int
    sha256: bytes
    producer: str | None
    sequence: int | None
    published_at: datetime

    @property
    def id(self) -> str:
        """The batch's id, as in ZooKeeper."""
        return f"{self.queue}-{self.n}"


@dataclass(frozen=True)
class Floor:
    """The progress of retention: batches up to `gone` may be deleted, and up to `deleted` they are."""

    gone: int
    deleted: int


@dataclass(frozen=True)
class Batch:
    """A sealed batch with its items, in their order."""

    seal: Seal
    items: list[bytes]

    @property
    def n(self) -> int:
        """Its number, from 1 on."""
        return self.seal.n

    @property
    def id(self) -> str:
        """Its id, `<queue>-<n>`."""
        return self.seal.id


class _BatchStatements(Statements):
    needed_by = _NEEDED_BY

    insert_block = Statement(
        "INSERT INTO {}.replay_blocks (queue, attempt, chunk, idx, data) VALUES (?, ?, ?, ?, ?) "
        f"USING TIMESTAMP {_BLOCK_WRITE_TIME}"
    )
    blocks = Statement("SELECT idx, data FROM {}.replay_blocks WHERE queue = ? AND attempt = ? AND chunk = ?")
    seal = Statement(
        f"INSERT INTO {{}}.replay_batches (era, {_FIELDS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS"
    )
    get = Statement(f"SELECT {_FIELDS} FROM {{}}.replay_batches WHERE {_OF_BATCH} = ?", serial=True)
    published_at = Statement(
        f"SELECT published_at, writetime(attempt) AS sealed_at FROM {{}}.replay_batches WHERE {_OF_BATCH} = ?",
        serial=True,
    )
    last = Statement(f"SELECT {_FIELDS} FROM {{}}.replay_batches WHERE queue = ? AND era = ? ORDER BY n DESC LIMIT 1")
    queues = Statement("SELECT DISTINCT queue, era FROM {}.replay_batches")
    between = Statement(f"SELECT {_FIELDS} FROM {{}}.replay_batches WHERE {_OF_BATCH} >= ? AND n <= ?")
    following = Statement(f"SELECT {_FIELDS} FROM {{}}.replay_batches WHERE {_OF_BATCH} > ? LIMIT {_PAGE}")
    record = Statement(
        "INSERT INTO {}.replay_producers (queue, producer, sequence, n) VALUES (?, ?, ?, ?) USING TIMESTAMP ?"
    )
    now = Statement("SELECT toTimestamp(now()) AS now FROM system.local")
    recorded = Statement("SELECT sequence, n FROM {}.replay_producers WHERE queue = ? AND producer = ?")
    keep_cursor = Statement(
        "INSERT INTO {}.replay_cursors (queue, processor, n, moved_at) VALUES (?, ?, ?, ?) USING TIMESTAMP ?"
    )
    forget_cursor = Statement("DELETE FROM {}.replay_cursors USING TIMESTAMP ? WHERE queue = ? AND processor = ?")
    cursor_time = Statement("SELECT WRITETIME(n) AS at FROM {}.replay_cursors WHERE queue = ? AND processor = ?")
    cursors = Statement("SELECT processor, n FROM {}.replay_cursors WHERE queue = ?")
    delete_blocks = Statement(f"DELETE FROM {{}}.replay_blocks WHERE {_OF_CHUNK}")
    newest_block = Statement(f"SELECT max(WRITETIME(data)) AS at FROM {{}}.replay_blocks WHERE {_OF_CHUNK}")
    delete_newer = Statement(f"DELETE FROM {{}}.replay_blocks USING TIMESTAMP ? WHERE {_OF_CHUNK}")
    announce = Statement("INSERT INTO {}.replay_floors (queue, gone) VALUES (?, ?) USING TIMESTAMP ?")
    deleted = Statement("INSERT INTO {}.replay_floors (queue, deleted) VALUES (?, ?) USING TIMESTAMP ?")
    floor = Statement("SELECT gone, deleted FROM {}.replay_floors WHERE queue = ?")


class Batches:
    """The tables, for one session."""

    def __init__(self, session: Session, settings: Settings) -> None:
        """Prepare the statements. Raises as `Statements` does."""
        self._session = session
        self._serial = getattr(ConsistencyLevel, settings.cassandra.serial_consistency)
        self._cql = _BatchStatements(session, settings)
        self._others: dict[str, PreparedStatement] = {}
        # The database's time, and the monotonic one at which it was read.
        self._time: tuple[datetime, float] | None = None

    # -- blocks

    def insert_blocks(self, queue: str, attempt: UUID, blocks: Sequence[bytes]) -> None:
        """Insert the blocks of an attempt; it may be repeated."""
        rows = [(queue, attempt, *divmod(i, CHUNK_BLOCKS), block) for i, block in enumerate(blocks)]
        self._run_all(self._cql.insert_block, rows)

    def read(self, seal: Seal) -> Batch:
        """Return a batch with its items. Raises `DamagedBatch` if they differ from the seal, and `Gone` if retention
        has deleted them.
        """
        blocks = [row.data for row in self._run_all(self._cql.blocks, _chunks(seal))]
        try:
            return self._compared(seal, blocks)
        except DamagedBatch:
            if seal.n <= (gone := self.floor(seal.queue).gone):
                raise Gone(seal.queue, gone) from None
            raise

    def _compared(self, seal: Seal, blocks: Sequence[bytes]) -> Batch:
        try:
            items, digest = decode(blocks)
        except ValueError as e:
            raise DamagedBatch(f"batch {seal.id}: {e}") from None
        if (len(blocks), len(items), digest) != (seal.blocks, seal.items, seal.sha256):
            raise DamagedBatch(
                f"batch {seal.id} has {pluralize(len(blocks), 'block')}, {pluralize(len(items), 'item')} and the "
                f"SHA-256 {digest.hex()}; sealed were {seal.blocks}, {seal.items} and {seal.sha256.hex()}"
            )
        return Batch(seal, items)

    def read_all(self, seals: Iterable[Seal]) -> Iterator[Batch]:
        """Yield batches with their items, in order; some are read ahead. Raises `DamagedBatch` and `Gone` as `read`."""
        ahead: deque[tuple[Seal, Future[Batch]]] = deque()
        with ThreadPoolExecutor(_AHEAD) as pool:
            for seal in seals:
                ahead.append((seal, pool.submit(self.read, seal)))
                while len(ahead) > _AHEAD or (len(ahead) > 1 and sum(s.size for s, _ in ahead) > _AHEAD_BYTES):
                    yield ahead.popleft()[1].result()
            while ahead:
                yield ahead.popleft()[1].result()

    # -- seals

    def seal(self, seal: Seal) -> Seal:
        """Publish a batch under its number, unless that is taken; return the published one."""
        # A seal has its fields in the order of the columns.
        row = self._run(self._cql.seal, (_era(seal.n), *vars(seal).values()))[0]
        return seal if row.applied else _seal(row)

    def get(self, queue: str, n: int) -> Seal | None:
        """Return the batch published under a number, by a serial read, which also completes unfinished writes."""
        rows = self._run(self._cql.get, (queue, _era(n), n)) if n > 0 else []
        return _seal(rows[0]) if rows else None

    def published_at(self, queue: str, n: int) -> datetime | None:
        """Return the time of a batch for searches by time; None if it was not published. No batch gets a time before
        its publishing began, and times do not fall along the numbers.

        The publisher determines the time in a seal before it seals the batch. It may be too early (see `now`), and the
        publisher may pause in between. The database gives the conditional insert its write time (of the Paxos ballot),
        by the clock of the coordinating node, and later ones to later inserts of a partition. The later time counts.
        Cassandra's ballot has the time of its millisecond's begin (`ClientState.getTimestampForPaxos`), so the end of
        that millisecond counts.
        """
        rows = self._run(self._cql.published_at, (queue, _era(n), n))
        if not rows:
            return None
        sealed_at = _EPOCH + timedelta(milliseconds=rows[0].sealed_at // 1000 + 1)
        return max(timestamp_as_written(rows[0].published_at), sealed_at)

    def has(self, queue: str, n: int) -> bool:
        """Return whether a batch that was sealed exists."""
        return bool(self._run(self._cql.between, (queue, _era(n), n, n)))

    def between(self, queue: str, first: int, last: int) -> Iterator[Seal]:
        """Yield the seals of batches, in order. Raises `NoBatch` if one of them was not published."""
        n = first
        while n <= last:
            began = n
            for row in self._run(self._cql.between, (queue, _era(n), n, last)):
                if row.n != n:
                    break
                yield _seal(row)
                n += 1
            # Only a serial read is sure to find a batch that was just sealed.
            if n == began:
                seal = self.get(queue, n)
                if seal is None:
                    raise NoBatch(f"batch {queue}-{n} was not published")
                yield seal
                n += 1

    def after(self, queue: str, n: int) -> Iterator[Seal]:
        """Yield the seals of the batches after a number, in order; batches that were just sealed may be missing."""
        found = _PAGE
        while found == _PAGE:
            found = 0
            for row in self._run(self._cql.following, (queue, _era(n + 1), n)):
                if row.n != n + 1:
                    return
                n, found = row.n, found + 1
                yield _seal(row)

    def head(self, queue: str, at_least: int = 0) -> Seal | None:
        """Return the newest batch, searching from a published number on; None if there is none. Raises `NoBatch` if
        there is no batch with that number.
        """
        found = self.get(queue, at_least)
        if at_least and found is None:
            raise NoBatch(f"the database has no batch {queue}-{at_least}")
        era = _era(max(at_least, 1))
        while rows := self._run(self._cql.last, (queue, era)):
            found = _seal(rows[0])
            era += 1
        while following := self.get(queue, (found.n if found else 0) + 1):
            found = following
        return found

    def newest(self, queue: str, at_least: int = 0) -> int:
        """Return the number of the newest batch, as `head`; 0 if there is none."""
        head = self.head(queue, at_least)
        return head.n if head else 0

    def now(self) -> datetime:
        """Return the time by the database's clock. Retention deletes batches by the times of publishers, and the clocks
        of their machines may be wrong.

        It is too early by at most the time that the answer took, and between two answers the monotonic clock of this
        machine may drift from the database's clock. Too early is right for retention, which then deletes later.
        """
        if self._time is None or time.monotonic() - self._time[1] >= _CLOCK_SECONDS:
            (row,) = self._run(self._cql.now, ())
            self._time = timestamp_as_written(row.now), time.monotonic()
        found, at = self._time
        return found + timedelta(seconds=time.monotonic() - at)

    def queues(self) -> set[str]:
        """Return the queues with batches."""
        return {row.queue for row in self._run(self._cql.queues, ())}

    # -- producers and cursors

    def record(self, seal: Seal) -> None:
        """Store the producer and sequence of a batch; it may be repeated at any time."""
        if seal.producer is not None:
            self._run(self._cql.record, (seal.queue, seal.producer, seal.sequence, seal.n, seal.n))

    def recorded(self, queue: str, producer: str) -> tuple[int, int] | None:
        """Return the last published sequence of a producer, and the batch's number."""
        rows = self._run(self._cql.recorded, (queue, producer))
        return (rows[0].sequence, rows[0].n) if rows else None

    def cursor_time(self, queue: str, processor: str) -> int:
        """Return a write time for the next copy of a cursor, in microseconds: the database's time, or just after the
        write time of the present copy if that is later. Take it before the cursor is moved. Then copies replace each
        other in the order of the moves.
        """
        rows = self._run(self._cql.cursor_time, (queue, processor))
        return self.later(rows[0].at or 0 if rows else 0)

    def later(self, at: int) -> int:
        """Return the database's time in microseconds, or the next microsecond after a time if that is later."""
        return max((self.now() - _EPOCH) // timedelta(microseconds=1), at + 1)

    def keep_cursor(self, queue: str, processor: str, n: int, at: int) -> None:
        """Store a copy of a cursor, with a write time of `cursor_time`."""
        self._run(self._cql.keep_cursor, (queue, processor, n, _EPOCH + timedelta(microseconds=at), at))

    def cursors(self, queue: str) -> dict[str, int]:
        """Return the copies of the cursors."""
        return {row.processor: row.n for row in self._run(self._cql.cursors, (queue,))}

    def forget_cursor(self, queue: str, processor: str) -> None:
        """Delete the copy of a cursor."""
        self._run(self._cql.forget_cursor, (self.cursor_time(queue, processor), queue, processor))

    # -- retention

    def floor(self, queue: str) -> Floor:
        """Return the progress of retention."""
        rows = self._run(self._cql.floor, (queue,))
        return Floor(rows[0].gone or 0, rows[0].deleted or 0) if rows else Floor(0, 0)

    def announce(self, queue: str, n: int) -> None:
        """Announce that the batches up to a number are gone, before they are deleted."""
        self._run(self._cql.announce, (queue, n, n))

    def delete_blocks(self, seals: Sequence[Seal]) -> None:
        """Delete the items of batches; it may be repeated."""
        chunks = [chunk for seal in seals for chunk in _chunks(seal)]
        self._run_all(self._cql.delete_blocks, chunks)
        # Blocks without the write time of this version have that of their publisher, whose clock may have been ahead.
        left = self._run_all(self._cql.newest_block, chunks)
        newer = [(row.at, *chunk) for row, chunk in zip(left, chunks, strict=True) if row.at is not None]
        self._run_all(self._cql.delete_newer, newer)

    def say_deleted(self, queue: str, n: int) -> None:
        """Record that the items of batches up to a number are deleted."""
        self._run(self._cql.deleted, (queue, n, n))

    # -- statements of others

    @cached_property
    def largest_write(self) -> int | None:
        """The largest number of bytes that the database takes in one batch, None if it does not tell."""
        with _faults_named():
            return largest_mutation(self._session)

    def prepared(self, text: str) -> PreparedStatement:
        """Return a processor's own statement, prepared once."""
        if text not in self._others:
            with _faults_named():
                self._others[text] = self._session.prepare(text)
        return self._others[text]

    def run(self, batch: BatchStatement) -> list[Any]:
        """Run a conditional batch."""
        return self._run(batch)

    def run_serial(self, text: str, values: Sequence[Any]) -> list[Any]:
        """Run a serial read."""
        statement = self.prepared(text)
        statement.consistency_level = self._serial
        return self._run(statement, values)

    def _run(self, statement: PreparedStatement | BatchStatement, values: Sequence[Any] | None = None) -> list[Any]:
        with _faults_named():
            return list(self._session.execute(statement, values))

    def _run_all(self, statement: PreparedStatement, values: Sequence[Sequence[Any]]) -> list[Any]:
        """Run a statement with many values at once; return all rows, in the order of the values."""
        if len(values) == 1:
            return self._run(statement, values[0])
        with _faults_named():
            run = execute_concurrent_with_args
            answers = run(self._session, statement, values, _IN_FLIGHT, raise_on_first_error=True)
            return [row for _, rows in answers for row in rows]


@contextmanager
def open_batches(settings: Settings) -> Iterator[Batches]:
    """Connect to the database for a `with` block. Raises `DatabaseUnreachable` if no contact point answers."""
    with connect(settings) as session:
        yield Batches(session, settings)


def _faults_named() -> AbstractContextManager[None]:
    return driver_faults_named(f"the {_NEEDED_BY}")


def _chunks(seal: Seal) -> list[tuple[str, UUID, int]]:
    return [(seal.queue, seal.attempt, chunk) for chunk in range(-(-seal.blocks // CHUNK_BLOCKS))]


def _era(n: int) -> int:
    return (n - 1) // ERA


def _seal(row: Any) -> Seal:
    values = {field.name: getattr(row, column) for field, column in zip(fields(Seal), _COLUMNS, strict=True)}
    values["published_at"] = timestamp_as_written(row.published_at)
    return Seal(**values)
