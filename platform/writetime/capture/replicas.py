"""Which changes of a node its agent publishes, if the agents of the replicas share them (`capture.replicas = "one"`).

Agreement is needed for cost, and never for correctness: whoever is in doubt publishes. Each write has replicas in an
order. The agent of the first one that is live publishes it at once. The others wait for its digest, which an agent
sends once Kafka has acknowledged the change. What they miss after a grace, they publish: the second replica after one
grace, the third after two. A replica is live while its agent sends messages.

This module decides, and knows neither Kafka nor the database. `tests/capture/test_replica_schedules.py` runs it through
all schedules of a few agents and writes.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Progress = TypeVar("Progress")
Message = tuple[str, bytes, bytes, int]
"""A message: its topic, value, key and partition."""

# The digests of published changes that are remembered, in two halves: when one is full, the other one is forgotten.
_HALF = 250_000
# The size of the messages that may wait for other agents. Beyond it, changes are published at once.
_WAITING_BYTES = 64 << 20


@dataclass(frozen=True)
class Patience:
    """How long an agent waits for others, in seconds: an agent is `live` so long after its last message, and each
    replica has a `grace` to publish a change before the next one does. A node that syncs its log later than another one
    shows its writes later, so `grace` has to be longer than that difference.
    """

    live: float = 5.0
    grace: float = 5.0


@dataclass(slots=True)
class Offered:
    """A change that a node has: its digest, the host ids of its replicas in order, and its message."""

    digest: bytes
    order: tuple[str, ...]
    message: Message
    # When it began to wait.
    since: float = 0.0

    @property
    def size(self) -> int:
        """The bytes of its message."""
        return len(self.message[1]) + len(self.message[2])


class Replicas(Generic[Progress]):
    """Decides for the agent of one node, by its host id, and keeps the progress that is not settled. `now` is in
    seconds, of a clock of this agent alone.
    """

    def __init__(self, own: str, now: float, patience: Patience | None = None) -> None:
        self.patience = patience or Patience()
        self._own = own
        # Until it has read for a while, it takes all others for live.
        self._begun = now
        self._received: dict[str, float] = {}
        self._published: set[bytes] = set()
        self._published_before: set[bytes] = set()
        # The oldest first.
        self._waiting: dict[bytes, Offered] = {}
        self._waiting_bytes = 0
        self._noted: list[bytes] = []
        self._sent: dict[bytes, None] = {}
        # By segment: each progress, and the changes before it that waited.
        self._queues: dict[int, deque[tuple[Progress, list[bytes]]]] = {}

    def take(self, changes: Iterable[Offered], now: float) -> list[Offered]:
        """Return the changes that this agent publishes now. The others are published already, or wait."""
        ranks = self._ranks(now)
        taken = []
        for change in changes:
            digest = change.digest
            if self._is_published(digest) or digest in self._sent:
                continue
            if digest in self._waiting:
                self._noted.append(digest)
            elif ranks(change.order) == 0 or self._waiting_bytes >= _WAITING_BYTES:
                self._sent[digest] = None
                taken.append(change)
            else:
                change.since = now
                self._waiting[digest] = change
                self._waiting_bytes += change.size
                self._noted.append(digest)
        return taken

    def reached(self, segment: int, progress: Progress) -> None:
        """Note the progress of a segment behind the changes of the last calls of `take`."""
        queue = self._queues.setdefault(segment, deque())
        if queue and not queue[-1][1] and not self._noted:
            # The later one includes it.
            queue.pop()
        queue.append((progress, self._noted))
        self._noted = []

    def last(self, segment: int) -> Progress | None:
        """Return the last progress of a segment that was noted, and is not settled."""
        return self._queues[segment][-1][0] if segment in self._queues else None

    def settled(self) -> dict[int, Progress]:
        """Return the progress of each segment up to which all changes are published, by this agent or another, if it
        has moved. Call it after `acknowledged`.
        """
        found: dict[int, Progress] = {}
        for segment, queue in self._queues.items():
            while queue and self._is_settled(queue[0][1]):
                found[segment] = queue.popleft()[0]
        self._queues = {segment: queue for segment, queue in self._queues.items() if queue}
        return found

    def drop(self, segment: int) -> None:
        """Forget the progress of a segment that is gone."""
        self._queues.pop(segment, None)

    def receive(self, sender: str, digests: Sequence[bytes], now: float) -> None:
        """Note that the agent of a node is live, and that Kafka has the changes with these digests."""
        self._received[sender] = now
        for digest in digests:
            self._note(digest)

    def due(self, now: float, limit: int) -> list[Offered]:
        """Return the first changes, up to a number, that this agent publishes now in the place of others."""
        ranks = self._ranks(now)
        grace = self.patience.grace
        found: list[Offered] = []
        for change in self._waiting.values():
            if now - change.since >= ranks(change.order) * grace:
                found.append(change)
                if len(found) == limit:
                    break
        for change in found:
            self._forget(change.digest)
            self._sent[change.digest] = None
        return found

    def waits(self, now: float) -> float:
        """Return for how many seconds the first of the changes that wait has done so."""
        return now - next((change.since for change in self._waiting.values()), now)

    def acknowledged(self) -> list[bytes]:
        """Note that Kafka has all changes that this agent sent. Return their digests, which the others need."""
        sent, self._sent = list(self._sent), {}
        for digest in sent:
            self._note(digest)
        return sent

    def reset(self) -> None:
        """Forget what is not settled: the agent reads it again."""
        self._waiting, self._waiting_bytes, self._noted, self._sent = {}, 0, [], {}
        self._queues = {}

    def doubt(self) -> None:
        """Forget which changes are published: some of them may not count any more."""
        self.reset()
        self._published, self._published_before = set(), set()

    def _is_settled(self, noted: list[bytes]) -> bool:
        """Return whether all of the changes that waited are published, and remove those from the list."""
        while noted and noted[-1] not in self._waiting and noted[-1] not in self._sent:
            noted.pop()
        return not noted

    def _is_published(self, digest: bytes) -> bool:
        return digest in self._published or digest in self._published_before

    def _note(self, digest: bytes) -> None:
        if len(self._published) >= _HALF:
            self._published_before, self._published = self._published, set()
        self._published.add(digest)
        self._forget(digest)

    def _forget(self, digest: bytes) -> None:
        """Let a change no longer wait."""
        change = self._waiting.pop(digest, None)
        if change is not None:
            self._waiting_bytes -= change.size

    def _ranks(self, now: float) -> Callable[[tuple[str, ...]], int]:
        """Return a function for the number of live replicas in an order before the own one."""
        known: dict[tuple[str, ...], int] = {}

        def rank(order: tuple[str, ...]) -> int:
            found = known.get(order)
            if found is None:
                before = order[: order.index(self._own)] if self._own in order else order
                found = known[order] = sum(self._is_live(host, now) for host in before)
            return found

        return rank

    def _is_live(self, host: str, now: float) -> bool:
        return now - self._received.get(host, self._begun) < self.patience.live
