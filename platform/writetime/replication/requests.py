"""Sends statements to a cluster: those of one partition together, and some requests at once."""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cassandra.cluster import ResponseFuture, Session
from cassandra.query import BatchStatement, BatchType, BoundStatement

from writetime.clients.database import DRIVER_FAULTS, driver_reason, is_without_answer
from writetime.core.errors import WritetimeError

# The most statements, and bytes of values, of a request, and the most requests at once.
_STATEMENTS, _BYTES, _REQUESTS = 50, 256 << 10, 32
# The pause before a request is sent again; each further one is twice as long.
_PAUSE_SECONDS = 0.25


@dataclass(frozen=True)
class WriteBatch:
    """Statements that are sent together. All are of the partition with a serialised key, so a replica applies them at
    once.
    """

    key: bytes
    statements: Sequence[BoundStatement]
    attempts: int = 5
    """How often it may be sent if the database does not answer; 1 if sending it twice changes more than once."""

    def request(self) -> BatchStatement:
        """Return the request of the driver. Each statement has a write time of its own."""
        batch = BatchStatement(BatchType.UNLOGGED)
        batch.add_all(self.statements, [None] * len(self.statements))
        return batch


def send(session: Session, batches: Iterable[WriteBatch], needed_by: str) -> None:
    """Send batches, and wait until all are answered. Errors name what they are `needed_by`.

    Raises:
        WritetimeError: the database refuses a batch; the error has the key of its partition.
        DriverException: it does not answer.
    """
    # `execute_concurrent` of the driver would make batches in its own thread, in which nothing can be prepared.
    asked: deque[tuple[WriteBatch, ResponseFuture]] = deque()
    for batch in batches:
        if len(asked) == _REQUESTS:
            _require_answer(session, *asked.popleft(), needed_by)
        asked.append((batch, session.execute_async(batch.request())))
    for each in asked:
        _require_answer(session, *each, needed_by)


def _require_answer(session: Session, batch: WriteBatch, answer: ResponseFuture, needed_by: str) -> None:
    try:
        for attempt in range(1, batch.attempts + 1):
            try:
                answer.result()
                return
            except DRIVER_FAULTS as e:
                if attempt == batch.attempts or not is_without_answer(e):
                    raise
            # A busy database would otherwise fail all that was sent before, too.
            time.sleep(_PAUSE_SECONDS * 2 ** (attempt - 1))
            answer = session.execute_async(batch.request())
    except DRIVER_FAULTS as e:
        if is_without_answer(e):
            raise
        raise WritetimeError(
            f"the database refuses a write of {needed_by}: {driver_reason(e)} (the partition with the serialised key "
            f"0x{batch.key.hex()})"
        ) from None


def batches_of(rows: Iterable[tuple[bytes, Sequence[BoundStatement]]]) -> Iterator[WriteBatch]:
    """Yield the statements of rows in batches, given with the partition key of each."""
    some: list[BoundStatement] = []
    size, last = 0, b""
    for key, statements in rows:
        for statement in statements:
            own = sum(len(value) for value in statement.values or () if isinstance(value, bytes))
            if some and (key != last or len(some) == _STATEMENTS or size + own > _BYTES):
                yield WriteBatch(last, some)
                some, size = [], 0
            some.append(statement)
            size, last = size + own, key
    if some:
        yield WriteBatch(last, some)
