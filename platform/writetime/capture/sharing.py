"""The share of an agent with `capture.replicas = "one"`: it sends digests to the agents of other nodes, and reads
theirs.

A digest covers the table's id and a change's message without its origin, which is all that replicas have in common. So
it does not matter how a mutation or a batch came to a node; and a change with other cells, such as that of a read
repair, is another change.

After a TRUNCATE, the database discards on each node what its log has before some position, and so does landing. The
nodes come to their positions at different times, so a change may count on one replica alone. So agents publish all
changes of a truncated table, from those before the position to those of half an hour after it, and send no digests of
them. An agent that sees a TRUNCATE forgets which changes are published, and reads again what its log has after it.

No fault here stops capture.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import blake2b
from uuid import UUID

import pyarrow as pa

from writetime.capture.node_schemas import Ring
from writetime.capture.progress import SegmentProgress
from writetime.capture.replicas import Message, Offered, Patience, Replicas
from writetime.changes.starts import Truncation
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError, reason_of
from writetime.schema.table import TableSchema
from writetime.wire.digests import DIGEST_BYTES, DigestTopic

log = logging.getLogger(__name__)

# Between two signs of life, two searches for changes to take over, and two attempts after a fault of the topic.
_SIGN_SECONDS = 1.0
_SEARCH_SECONDS = 0.25
_AGAIN_SECONDS = 5.0
# Between two looks at the replication of the keyspaces.
_RINGS_SECONDS = 60.0
# Changes that are taken over at once.
_TAKEN_OVER = 2000
# How far the clock of an agent moves at most between two rounds: it does not count the time of a round that waits for
# Kafka, in which no digests are read.
_LONGEST_STEP = 1.0
# How long after a TRUNCATE changes are published by all replicas.
_TRUNCATED_MICROS = 1_800_000_000


class Sharing:
    """See the module. `replicas` decides, and has the progress that is not settled. `ring_of` returns the replicas of a
    keyspace.
    """

    def __init__(
        self, settings: Settings, own: str, replicas: Replicas[SegmentProgress], ring_of: Callable[[str], Ring]
    ) -> None:
        self._settings, self._own, self._replicas, self._ring_of = settings, own, replicas, ring_of
        self._topic: DigestTopic | None = None
        self._clock, self._read_at = 0.0, time.monotonic()
        self._next_try = self._next_sign = self._next_search = self._next_rings = 0.0
        self._rings: dict[str, Ring] = {}
        # Of all tables, and the tables with recent ones.
        self._truncations: Mapping[UUID, Truncation] = {}
        self._recent: set[UUID] = set()

    def listen(self) -> None:
        """Read the digests of the other agents. Call it in each round before changes are read."""
        now = time.monotonic()
        self._clock += min(now - self._read_at, _LONGEST_STEP)
        self._read_at = now

        def read(topic: DigestTopic) -> None:
            for sender, digests in topic.read():
                self._replicas.receive(sender, digests, self._clock)

        self._with_topic(read)

    def follow_rings(self, keyspaces: Collection[str], sync_seconds: float) -> None:
        """Read from time to time, and for a new keyspace, which nodes have replicas. `sync_seconds` is how long after
        another one a node may sync its log. Changes of a keyspace that cannot be read are published at once.
        """
        self._replicas.patience = Patience(grace=Patience.grace + sync_seconds)
        if time.monotonic() < self._next_rings and all(keyspace in self._rings for keyspace in keyspaces):
            return
        self._next_rings = time.monotonic() + _RINGS_SECONDS
        self._rings = {}
        for keyspace in keyspaces:
            try:
                self._rings[keyspace] = self._ring_of(keyspace)
            except Exception as e:
                log.warning("all changes of %s are published: %s", keyspace, reason_of(e))

    def follow_truncations(self, truncations: Mapping[UUID, Truncation]) -> list[Truncation]:
        """Note the truncations of the node; return new ones, from which on the log has to be read again. If there are
        some, nothing that was handed over is in `replicas` any more.
        """
        now = time.time_ns() // 1000
        new = [t for i, t in truncations.items() if self._truncations.get(i) != t]
        recent = {i for i, t in truncations.items() if now - t.at < _TRUNCATED_MICROS}
        if new or recent != self._recent:
            self._replicas.doubt()
        self._truncations, self._recent = truncations, recent
        return [t for t in new if now - t.at < _TRUNCATED_MICROS]

    def choose(
        self, segment: int, schema: TableSchema, tokens: pa.Array, messages: Sequence[Message], origins: Sequence[int]
    ) -> list[Message]:
        """Return those of the messages of a table's changes in a segment that this agent sends now. `origins` are the
        sizes of the origins at their ends.
        """
        if self._is_truncated(schema.id, segment):
            return list(messages)
        table = schema.id.bytes if schema.id is not None else b""
        ring = self._rings.get(schema.keyspace)
        orders = [()] * len(messages) if ring is None else ring.of(tokens.to_numpy())
        offered = (
            Offered(blake2b(value[: len(value) - size], digest_size=DIGEST_BYTES, salt=table).digest(), order, message)
            for message, size, order in zip(messages, origins, orders, strict=True)
            for value in (message[1],)
        )
        return [change.message for change in self._replicas.take(offered, self._clock)]

    def _is_truncated(self, table: UUID | None, segment: int) -> bool:
        """Return whether changes of a table in a segment may not count on each replica."""
        truncation = None if table is None else self._truncations.get(table)
        return truncation is not None and (table in self._recent or segment <= (truncation.segment or 0))

    def due(self) -> list[Message]:
        """Return messages that this agent sends now because no other one did."""
        if time.monotonic() < self._next_search:
            return []
        self._next_search = time.monotonic() + _SEARCH_SECONDS
        return [change.message for change in self._replicas.due(self._clock, _TAKEN_OVER)]

    def waits(self) -> float:
        """Return for how many seconds the first change has waited for other agents."""
        return self._replicas.waits(self._clock)

    def send_digests(self) -> None:
        """Send the digests of the changes that Kafka has acknowledged, or from time to time a message without any."""
        digests = self._replicas.acknowledged()
        if digests or time.monotonic() >= self._next_sign:
            self._next_sign = time.monotonic() + _SIGN_SECONDS
            self._with_topic(lambda topic: topic.send(digests))

    def close(self) -> None:
        """Close the connections."""
        if self._topic is not None:
            self._topic.close()

    def _with_topic(self, action: Callable[[DigestTopic], None]) -> None:
        if self._topic is None and time.monotonic() < self._next_try:
            return
        try:
            if self._topic is None:
                self._topic = DigestTopic(self._settings, self._own)
            action(self._topic)
        except Exception as e:
            unknown = not isinstance(e, (WritetimeError, OSError))
            log.warning("%s; changes of other agents are published again", reason_of(e), exc_info=unknown)
            self.close()
            self._topic, self._next_try = None, time.monotonic() + _AGAIN_SECONDS
