"""Publishes batches, each under the next number.

The items are written first, under a new attempt id. Then a conditional insert seals the batch under the next number,
and then ZooKeeper is updated. If a publisher ends in between, the next publisher or idle subscriber completes its work:
it looks for a batch after the newest known one, and updates ZooKeeper.

A producer that numbers its batches may publish one again if it does not know the outcome. Each batch has its producer
and sequence. Its publisher stores a copy of these, and so does the publisher of the next batch, before it seals that
batch. So the copy is complete except for the newest batch, which is always read.
"""

import logging
import random
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import Self

from writetime.clients.prepared_statements import UnknownWrite
from writetime.clients.zookeeper import NoZooKeeper
from writetime.core.config import Settings
from writetime.core.counts import pluralize
from writetime.core.errors import WritetimeError
from writetime.replay.batches import NoBatch, Seal, open_batches
from writetime.replay.blocks import MAX_ITEM_BYTES, encode
from writetime.replay.coordination import Coordination, check_name, coordination

log = logging.getLogger(__name__)

_LOCK_SECONDS = 5.0
_PAUSE_SECONDS = 0.2


class PublishUnknown(WritetimeError):
    """The database did not report whether a batch was published; repeat it with the same producer and sequence."""


class Publisher:
    """Publishes to one queue; a context manager.

    Raises (when entered):
        DatabaseUnreachable: no contact point answers.
        WritetimeError: the tables are missing, or reads would not see acknowledged writes.
    """

    def __init__(self, settings: Settings, queue: str) -> None:
        """Name the queue.

        Raises:
            WritetimeError: a queue cannot have this name.
        """
        self._settings = settings
        self._queue = check_name(queue, "queue")
        self._resources = ExitStack()
        # The newest batch that this publisher knows, and the last sequence and batch of each producer up to there.
        self._newest: Seal | None = None
        self._sequences: dict[str, tuple[int, int] | None] = {}
        self._recording: Future[None] = Future()
        self._recording.set_result(None)

    def __enter__(self) -> Self:
        self._batches = self._resources.enter_context(open_batches(self._settings))
        # A batch takes three requests to ZooKeeper or more, and needs none of their answers.
        seconds = min(_LOCK_SECONDS, self._settings.replay.publish_timeout_seconds / 6)
        self._zookeeper = self._resources.enter_context(coordination(self._settings, self._queue, seconds))
        self._background = self._resources.enter_context(ThreadPoolExecutor(1))
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def publish(self, items: Sequence[bytes], *, producer: str | None = None, sequence: int | None = None) -> int:
        """Publish items as one batch, and return its number.

        With a producer and its own number of the batch, `sequence`, which must increase, publishing it again has no
        effect.

        Raises:
            PublishUnknown: the database did not answer in `replay.publish_timeout_seconds`.
            NoBatch: ZooKeeper has a batch that the database does not have.
            WritetimeError: an item is too large, or a producer or a sequence is missing. Or the producer has already
                published a later sequence, or this one with other items. Or the database refuses a statement.
        """
        if (producer is None) != (sequence is None):
            raise WritetimeError("a producer and a sequence must be given together")
        large = next((i for i, item in enumerate(items) if len(item) > MAX_ITEM_BYTES), None)
        if large is not None:
            raise WritetimeError(f"item {large} has {pluralize(len(items[large]), 'byte')}, more than {MAX_ITEM_BYTES}")
        blocks, size, digest = encode(items)
        attempt = uuid.uuid4()
        unsealed = Seal(
            self._queue, 0, attempt, len(items), size, len(blocks), digest, producer, sequence, datetime.now(UTC)
        )
        deadline = time.monotonic() + self._settings.replay.publish_timeout_seconds
        written = False
        tried: list[int] = []
        while True:
            try:
                if not written:
                    self._batches.insert_blocks(self._queue, attempt, blocks)
                    written = True
                with self._zookeeper.publishing(_LOCK_SECONDS):
                    seal = self._seal(unsealed, tried)
                    tell(self._zookeeper, seal.n)
                if seal.attempt != attempt:
                    # Published before: these blocks will never be read.
                    self._batches.delete_blocks([unsealed])
                return seal.n
            except UnknownWrite as e:
                if time.monotonic() > deadline:
                    raise PublishUnknown(
                        f"queue {self._queue}: it is not known whether attempt {attempt} was published ({e}); "
                        "publish it again with the same producer and sequence"
                    ) from None
                time.sleep(random.uniform(0, _PAUSE_SECONDS))

    def last_sequence(self, producer: str) -> int | None:
        """Return the last sequence that a producer has published; None if there is none. The producer continues after
        it.

        Raises:
            UnknownWrite: the database does not answer.
            NoBatch: the database does not have a batch that was published.
        """
        self._find(max(self._known(), self._newest.n if self._newest else 0))
        recorded = self._recorded(producer)
        return recorded[0] if recorded else None

    def _seal(self, unsealed: Seal, tried: list[int]) -> Seal:
        """Seal a batch under the next number, or return the producer's earlier batch with the same sequence.

        `tried` has the number under which this attempt may already be sealed, if an answer was lost.
        """
        if tried and (seal := self._batches.get(self._queue, tried[0])) and seal.attempt == unsealed.attempt:
            self._batches.record(seal)
            return seal
        self._look(self._known())
        while True:
            newest = self._newest
            if newest is not None and newest.attempt == unsealed.attempt:
                return newest
            if (published := self._published(unsealed)) is not None:
                return published
            now = self._batches.now()
            n, at = (newest.n if newest else 0) + 1, max(newest.published_at, now) if newest else now
            tried[:] = [n]
            if newest is not None and self._recording.exception() is not None:
                self._batches.record(newest)
            # The database keeps milliseconds.
            at = at.replace(microsecond=at.microsecond // 1000 * 1000)
            sealed = self._batches.seal(replace(unsealed, n=n, published_at=at))
            if sealed.attempt != unsealed.attempt:
                self._look(sealed.n)
                continue
            # This is done before the next batch is sealed, so that nothing waits for it now.
            self._recording = self._background.submit(self._batches.record, sealed)
            self._newest = sealed
            if sealed.producer is not None and sealed.sequence is not None:
                self._sequences[sealed.producer] = (sealed.sequence, n)
            return sealed

    def _look(self, known: int) -> None:
        """Find the newest batch. If no other publisher has sealed one since this one did, its knowledge is still
        correct. Raises `NoBatch` if the database does not have a batch that was published.
        """
        newest = self._newest.n if self._newest else 0
        if newest and known <= newest:
            if not self._batches.has(self._queue, newest):
                raise NoBatch(f"the database no longer has batch {self._queue}-{newest}")
            return
        self._find(max(known, newest))

    def _find(self, at_least: int) -> None:
        found = self._batches.head(self._queue, at_least)
        if found is not None:
            self._batches.record(found)
        self._newest, self._sequences = found, {}

    def _known(self) -> int:
        try:
            return self._zookeeper.head()
        except NoZooKeeper as e:
            log.warning("queue %s: %s; the newest batch is read from the database", self._queue, e)
            return 0

    def _published(self, unsealed: Seal) -> Seal | None:
        if unsealed.producer is None or unsealed.sequence is None:
            return None
        recorded = self._recorded(unsealed.producer)
        if recorded is None or recorded[0] < unsealed.sequence:
            return None
        sequence, n = recorded
        if sequence > unsealed.sequence:
            raise WritetimeError(
                f"queue {self._queue}: producer {unsealed.producer} has published sequence {sequence} (batch {n}), so "
                f"{unsealed.sequence} is published already or never will be; sequences must rise"
            )
        seal = self._batches.get(self._queue, n)
        if seal is None or seal.sha256 != unsealed.sha256:
            raise WritetimeError(
                f"queue {self._queue}: producer {unsealed.producer} has published sequence {sequence} with other items "
                f"(batch {n})"
            )
        return seal

    def _recorded(self, producer: str) -> tuple[int, int] | None:
        if producer not in self._sequences:
            self._sequences[producer] = self._batches.recorded(self._queue, producer)
        return self._sequences[producer]


def tell(zookeeper: Coordination, n: int) -> None:
    """Write a sealed batch to ZooKeeper; if it does not answer, the next publisher or subscriber will."""
    try:
        zookeeper.advance(n)
    except NoZooKeeper as e:
        log.warning("batch %d is published, and ZooKeeper cannot be updated: %s", n, e)
