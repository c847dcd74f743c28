"""Sends statements to a cluster: those of one partition together, and some requests at once."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from cassandra.cluster import ResponseFuture, Session
from cassandra.query import BatchStatement, BatchType, BoundStatement

# The most statements, and bytes of values, of a request, and the most requests at once.
_STATEMENTS, _BYTES, _REQUESTS = 50, 256 << 10, 32


def send(session: Session, batches: Iterable[BatchStatement]) -> None:
    """Send batches, and wait until all are answered. Raise the first error of the driver."""
    # `execute_concurrent` of the driver would make batches in its own thread, in which nothing can be prepared.
    asked: deque[ResponseFuture] = deque()
    for batch in batches:
        if len(asked) == _REQUESTS:
            asked.popleft().result()
        asked.append(session.execute_async(batch))
    for each in asked:
        each.result()


def batches_of(rows: Iterable[tuple[bytes, Sequence[BoundStatement]]]) -> Iterator[BatchStatement]:
    """Yield the statements of rows in batches, given with the partition key of each. A batch is of one partition, so a
    replica applies it at once.
    """
    some: list[BoundStatement] = []
    size, last = 0, None
    for key, statements in rows:
        for statement in statements:
            own = sum(len(value) for value in statement.values or () if isinstance(value, bytes))
            if some and (key != last or len(some) == _STATEMENTS or size + own > _BYTES):
                yield batch_of(some)
                some, size = [], 0
            some.append(statement)
            size, last = size + own, key
    if some:
        yield batch_of(some)


def batch_of(statements: Sequence[BoundStatement]) -> BatchStatement:
    """Return statements as one batch. Each has a write time of its own."""
    batch = BatchStatement(BatchType.UNLOGGED)
    batch.add_all(statements, [None] * len(statements))
    return batch
