"""Processes batches in order, each at least once, or exactly once with effects in the database.

A processor has one cursor, at `/queues/<queue>/processors/<name>`. Of several instances, one is active, and the others
stand by. ZooKeeper's lock is only a hint: an instance that was paused for a long time may not have noticed that it has
lost the lock. So the cursor moves by the version of its node, and a late instance cannot move it.

A handler may return its effects as statements instead of running them. They run in one conditional batch that also
moves a cursor. This cursor is a static column in the same partition, and is then the valid one. So of two instances,
only one applies a batch.
"""

import inspect
import logging
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, Self

from cassandra.query import BatchStatement, BatchType, BoundStatement

from writetime.clients.prepared_statements import UnknownWrite
from writetime.clients.zookeeper import NoZooKeeper
from writetime.core.config import Settings
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError
from writetime.replay.batches import Batch, NoBatch, open_batches
from writetime.replay.coordination import Cursor, Moved, check_name, coordination
from writetime.replay.publisher import tell

log = logging.getLogger(__name__)

Statement = tuple[str, Sequence[Any]]
# The bytes of a cell besides its value, and of the write of the cursor besides the effects.
_CELL_BYTES = 8
_ELEMENT_BYTES = 20
_OWN_BYTES = 1024


@dataclass(frozen=True)
class Effects:
    """The place for the effects of a processor: one partition of its own table, with a static `bigint` as the cursor.

    The handler's statements may only write to that partition.
    """

    table: str
    key: Mapping[str, Any]
    cursor: str = "cursor"


class Subscriber:
    """One instance of a processor of a queue; a context manager."""

    def __init__(self, settings: Settings, queue: str, name: str) -> None:
        self._settings = settings
        self._queue = check_name(queue, "queue")
        self._name = check_name(name, "processor")
        self._resources = ExitStack()
        self._news = threading.Event()
        # The write time of the last copy of the cursor.
        self._copied_at = 0
        self._copying: Future[None] = Future()
        self._copying.set_result(None)
        # The number of batches that `run` has processed.
        self._done = 0
        # The batch that a handler processes, and since when, by the monotonic clock.
        self.working: tuple[str, float] | None = None

    def __enter__(self) -> Self:
        self._batches = self._resources.enter_context(open_batches(self._settings))
        self._zookeeper = self._resources.enter_context(coordination(self._settings, self._queue))
        self._background = self._resources.enter_context(ThreadPoolExecutor(1))
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def run(
        self,
        handler: Callable[[Batch], Any],
        stop: threading.Event | None = None,
        *,
        effects: Effects | None = None,
        until_idle: bool = False,
    ) -> int:
        """Process batches until `stop` is set, or there is none left; return their number.

        The handler is called again for a batch that may not have been completed. Its exceptions end this, with the
        cursor before the batch.

        Raises:
            DamagedBatch: a batch differs from its seal.
            WritetimeError: a statement of the effects is refused, or the handler is a coroutine function.
        """
        self._handler, self._effects = handler, effects
        self._stop = stop = stop or threading.Event()
        self.working, self._done = None, 0
        while not stop.is_set():
            try:
                with self._zookeeper.working(self._name, stop.is_set):
                    self._work(until_idle=until_idle)
                break
            except Moved as e:
                if self.working:
                    raise
                log.warning("%s; it is read again", e)
            except (UnknownWrite, NoZooKeeper) as e:
                # Of the handler: its own queues or databases may never answer.
                if self.working:
                    raise
                log.warning("processor %s of queue %s waits: %s", self._name, self._queue, e)
                stop.wait(self._settings.replay.poll_seconds)
        return self._done

    def _work(self, *, until_idle: bool) -> None:
        cursor = self._cursor()
        while not self._stop.is_set():
            self._news.clear()
            self._zookeeper.watch(self._wake)
            self._zookeeper.require(self._name, cursor, self._wake)
            with closing(self._following(cursor.n)) as following:
                for batch in following:
                    # After a `seek`, this is not the next batch.
                    self._zookeeper.require(self._name, cursor)
                    cursor = self._process(batch, cursor)
                    self._done += 1
                    if self._stop.is_set():
                        return
            if until_idle:
                return
            self._news.wait(self._settings.replay.poll_seconds)

    def _wake(self, _: Any) -> None:
        self._news.set()

    def _following(self, n: int) -> Generator[Batch, None, None]:
        """Yield the batches after a number, until there is none."""
        last = n
        while True:
            for batch in self._batches.read_all(self._batches.after(self._queue, last)):
                yield batch
                last = batch.n
            # Only a serial read is sure to find a batch that was just sealed.
            seal = self._batches.get(self._queue, last + 1)
            if seal is None:
                break
            yield self._batches.read(seal)
            last = seal.n
        # The cursor may be beyond the newest batch.
        if last and self._batches.get(self._queue, last) is None:
            raise NoBatch(
                f"processor {self._name} has done batch {self._queue}-{last}, which the database does not have: "
                "restore the database's data, or move the cursor with `writetime replay seek`"
            )

    def _process(self, batch: Batch, cursor: Cursor) -> Cursor:
        # Completes the work of a publisher that ended before it did; and no cursor is ever beyond the newest batch.
        tell(self._zookeeper, batch.n)
        self._copied_at = self._batches.later(self._copied_at)
        self.working = batch.id, time.monotonic()
        try:
            answer = self._handler(batch)
            # Its code has not run, or not all of it.
            if inspect.isawaitable(answer) or (self._effects is None and inspect.isgenerator(answer)):
                raise WritetimeError(
                    f"the handler of processor {self._name} returned a {type(answer).__name__}, which nothing runs: "
                    "make it an ordinary function without `yield`, which may call asyncio.run"
                )
            # A generator's code runs here.
            statements = [] if self._effects is None else list(answer or ())
        except Exception as e:
            e.add_note(f"batch {batch.id} is not done: processor {self._name} processes it again at its next start")
            raise
        self.working = None
        if self._effects is not None:
            self._apply(self._effects, batch.n, batch.n - 1 or None, statements)
        # The copy is at most one batch behind; the next write makes up for a failed one.
        self._copying.exception()
        moved = self._zookeeper.move(self._name, batch.n, cursor)
        copy = self._queue, self._name, batch.n, self._copied_at
        self._copying = self._background.submit(self._batches.keep_cursor, *copy)
        return moved

    def _cursor(self) -> Cursor:
        found = self._zookeeper.cursor(self._name)
        self._copied_at = self._batches.cursor_time(self._queue, self._name)
        # The lock's node below it creates the cursor's node, too, without content. `seek` may have written 0.
        if not found.known and (kept := self._batches.cursors(self._queue).get(self._name)):
            found = self._zookeeper.move(self._name, kept, found)
        effects = self._effects
        first = found.n if effects is None else self._applied(effects)
        # A new processor begins with the first existing batch.
        if not first and (first := self._batches.floor(self._queue).gone) and effects is not None:
            self._apply(effects, first, None, ())
        return found if first == found.n else self._zookeeper.move(self._name, first, found)

    def _applied(self, effects: Effects) -> int:
        where = " AND ".join(f"{name} = ?" for name in effects.key)
        text = f"SELECT DISTINCT {', '.join(effects.key)}, {effects.cursor} AS n FROM {effects.table} WHERE {where}"
        rows = self._batches.run_serial(text, list(effects.key.values()))
        return (rows[0].n or 0) if rows else 0

    def _apply(self, effects: Effects, n: int, before: int | None, statements: Sequence[Statement]) -> None:
        """Run the statements and move the cursor, all or none, unless this was done before. Raises `UnknownWrite` if
        the database does not answer, and a stop is requested, and `WritetimeError` if the database refuses the
        statements, or they are too large for one batch.
        """
        where = " AND ".join(f"{name} = ?" for name in effects.key)
        guard = f"UPDATE {effects.table} SET {effects.cursor} = ? WHERE {where} IF {effects.cursor} = ?"
        batch = BatchStatement(BatchType.UNLOGGED)
        size = _OWN_BYTES
        for text, values in [(guard, [n, *effects.key.values(), before]), *statements]:
            bound = self._batches.prepared(text).bind(list(values))
            size += _size(bound)
            batch.add(bound)
        if (limit := self._batches.largest_write) and size > limit:
            raise WritetimeError(
                f"batch {self._queue}-{n}: its effects have {pluralize(size, 'byte')}, and the database takes at most "
                f"{limit} in one write (max_mutation_size, by default half of commitlog_segment_size): let the handler "
                "return less, publish smaller batches, or raise these settings of the database"
            )
        while True:
            try:
                # A batch that is not applied now was applied before: by this instance, if an answer was lost, or by
                # another one.
                if not self._batches.run(batch)[0].applied and self._applied(effects) < n:
                    raise Moved(f"the cursor in {effects.table} was moved back by another program")
                return
            except UnknownWrite as e:
                log.warning("batch %s-%d is applied again, because its answer was lost: %s", self._queue, n, e)
                if self._stop.wait(self._settings.replay.poll_seconds):
                    raise


def _size(statement: BoundStatement) -> int:
    """Return about how many bytes a statement has in the mutation."""
    size = 0
    prepared = statement.prepared_statement
    assert prepared is not None
    for column, value in zip(prepared.column_metadata, statement.values or (), strict=False):
        if isinstance(value, bytes):
            size += _CELL_BYTES + len(value)
            if column.type.typename == "list":
                # Each element of a list that is not frozen is a cell, with a key of its own.
                size += _ELEMENT_BYTES * int.from_bytes(value[:4], "big")
    return size
