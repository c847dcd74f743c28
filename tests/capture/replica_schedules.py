"""All schedules of a few agents that share the changes of their nodes, up to a number of faults.

The agents decide by `capture.replicas`; nodes, Kafka and the topic of the digests are modelled here. Each step of an
agent, each arrival of a write at a node and each fault is an action, and the explorer tries every order of them. An
agent reads its node's log from the settled position on, hands over what it decides to publish, and is settled when its
flush returns. It may be killed between any two steps, and continues at the position that it saved.
"""

from collections import Counter, deque
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field, replace

from writetime.capture.replicas import Offered, Patience, Replicas

HOSTS = ("a", "b", "c")
# Three moments without a sign of an agent make the others take its changes over.
PATIENCE = Patience(live=2.5, grace=1.0)


@dataclass(frozen=True)
class Faults:
    """The number of faults of each kind in one schedule: an agent is killed, or Kafka refuses what it handed over; the
    topic of the digests loses all; a write reaches one replica only after all others; a moment passes for an agent.
    """

    kills: int = 0
    refusals: int = 0
    lost_topics: int = 0
    late: int = 0
    moments: int = 0


@dataclass
class _Agent:
    replicas: Replicas[int]
    clock: float = 0.0
    # Positions in the node's log.
    read: int = 0
    settled: int = 0
    saved: int = 0
    # Changes on the way to Kafka, and digests on the way to their topic.
    in_flight: list[int] = field(default_factory=list)
    has_sent: bool = False
    to_tell: list[bytes] = field(default_factory=list)
    listened: int = 0

    def copied(self) -> "_Agent":
        agent = copy(self)
        agent.replicas = copied = copy(self.replicas)
        for name, value in vars(copied).items():
            if isinstance(value, (dict, set, list)):
                setattr(copied, name, copy(value))
        copied._waiting = {digest: replace(change) for digest, change in copied._waiting.items()}
        copied._queues = {i: deque((p, list(noted)) for p, noted in queue) for i, queue in copied._queues.items()}
        agent.in_flight, agent.to_tell = list(self.in_flight), list(self.to_tell)
        return agent

    def key(self) -> tuple[object, ...]:
        replicas = self.replicas
        age = {host: min(self.clock - at, 3) for host, at in replicas._received.items()}
        waiting = tuple((digest, min(self.clock - c.since, 3)) for digest, c in replicas._waiting.items())
        return (
            (frozenset(replicas._published), waiting, tuple(replicas._sent), tuple(sorted(age.items()))),
            (min(self.clock - replicas._begun, 3), self.read, self.settled, self.saved, self.listened, self.has_sent),
            (self._queue(), tuple(self.in_flight), tuple(self.to_tell)),
        )

    def _queue(self) -> tuple[object, ...]:
        return tuple((p, tuple(noted)) for queue in self.replicas._queues.values() for p, noted in queue)


class Broken(AssertionError):
    """A schedule after which something is wrong."""


class World:
    """Nodes with logs, their agents, and Kafka. `kind` is the class that decides. With `early`, agents send the digests
    of changes before Kafka has acknowledged them: a fault of the agents that the explorer has to find.
    """

    def __init__(
        self, writes: int, faults: Faults, kind: type[Replicas[int]] = Replicas, *, early: bool = False
    ) -> None:
        self.kind, self.early, self.faults = kind, early, faults
        self.logs: dict[str, list[int]] = {host: [] for host in HOSTS}
        self.coming = frozenset((write, host) for write in range(writes) for host in HOSTS)
        self.kafka: list[int] = []
        self.topic: list[tuple[str, tuple[bytes, ...]]] = []
        self.agents = {host: _Agent(kind(host, 0.0, PATIENCE)) for host in HOSTS}

    def copied(self) -> "World":
        world = copy(self)
        world.logs = {host: list(log) for host, log in self.logs.items()}
        world.kafka, world.topic = list(self.kafka), list(self.topic)
        world.agents = {host: agent.copied() for host, agent in self.agents.items()}
        return world

    def key(self) -> tuple[object, ...]:
        agents = tuple(agent.key() for agent in self.agents.values())
        logs = tuple(map(tuple, self.logs.values()))
        return agents, logs, self.coming, tuple(sorted(self.kafka)), tuple(self.topic), self.faults

    # --- actions ------------------------------------------------------------------------------------------------------

    def actions(self) -> Iterator[tuple[str, str]]:
        """Yield what may happen next: the name of a method, and its argument."""
        if self.coming:
            # In the order of the writes, except for one that is late.
            write = min(self.coming)[0]
            some = sorted(host for each, host in self.coming if each == write)
            yield "arrive", some[0]
            if self.faults.late and len(some) == 1 and len({each for each, _ in self.coming}) > 1:
                yield "arrive_late", some[0]
        for host, agent in self.agents.items():
            if agent.in_flight:
                yield "append", host
            elif agent.has_sent or agent.replicas.last(0) is not None:
                yield "flush", host
            elif agent.read < len(self.logs[host]):
                yield "look", host
            if agent.to_tell:
                yield "announce", host
            if agent.listened < len(self.topic):
                yield "listen", host
            if self.faults.moments:
                yield "moment", host
            if self.faults.kills and self._is_busy(agent, host):
                yield "kill", host
            if self.faults.refusals and agent.in_flight:
                yield "refuse", host
        if self.faults.lost_topics and self.topic:
            yield "lose_topic", ""

    def _is_busy(self, agent: _Agent, host: str) -> bool:
        return agent.saved < len(self.logs[host]) or bool(agent.to_tell)

    def _spend(self, kind: str) -> None:
        self.faults = replace(self.faults, **{kind: getattr(self.faults, kind) - 1})

    def arrive(self, host: str) -> None:
        """A write reaches a node."""
        write = min(each for each, h in self.coming if h == host)
        self.coming -= {(write, host)}
        self.logs[host].append(write)

    def arrive_late(self, host: str) -> None:
        """The newest write that is on its way to a node reaches it before the older ones."""
        write = max(each for each, h in self.coming if h == host)
        self.coming -= {(write, host)}
        self.logs[host].append(write)
        self._spend("late")

    def look(self, host: str) -> None:
        """An agent reads the next write of its node's log, and hands over what it decides to publish."""
        agent = self.agents[host]
        write = self.logs[host][agent.read]
        order = HOSTS[write % 3 :] + HOSTS[: write % 3]
        taken = agent.replicas.take([Offered(b"%d" % write, order, ("", b"", b"", 0))], agent.clock)
        agent.read += 1
        agent.replicas.reached(0, agent.read)
        self._hand_over(agent, taken)

    def _hand_over(self, agent: _Agent, taken: list[Offered]) -> None:
        agent.in_flight += [int(change.digest) for change in taken]
        agent.has_sent |= bool(taken)
        if self.early:
            agent.to_tell += agent.replicas.acknowledged()

    def append(self, host: str) -> None:
        """Kafka has what an agent handed over; the agent does not know it yet."""
        self.kafka += self.agents[host].in_flight
        self.agents[host].in_flight = []

    def flush(self, host: str) -> None:
        """An agent learns that Kafka has all that it handed over."""
        agent = self.agents[host]
        agent.to_tell += agent.replicas.acknowledged()
        agent.has_sent = False
        agent.settled = agent.replicas.settled().get(0, agent.settled)

    def announce(self, host: str) -> None:
        """An agent saves its position, and its digests are in their topic."""
        agent = self.agents[host]
        agent.saved = agent.settled
        self.topic.append((host, tuple(agent.to_tell)))
        agent.to_tell = []

    def listen(self, host: str) -> None:
        """An agent reads the next message with digests."""
        agent = self.agents[host]
        sender, digests = self.topic[agent.listened]
        agent.listened += 1
        agent.replicas.receive(sender, digests, agent.clock)

    def moment(self, host: str) -> None:
        """A moment passes for an agent, and it publishes what is due."""
        self._spend("moments")
        self._wait(host)

    def _wait(self, host: str) -> None:
        agent = self.agents[host]
        agent.clock += 1
        self._hand_over(agent, agent.replicas.due(agent.clock, 10))

    def kill(self, host: str) -> None:
        """An agent is killed, and starts again without the digests that it has read."""
        self._spend("kills")
        saved = self.agents[host].saved
        agent = self.agents[host] = _Agent(self.kind(host, 0.0, PATIENCE), read=saved, settled=saved, saved=saved)
        agent.listened = len(self.topic)

    def refuse(self, host: str) -> None:
        """Kafka refuses what an agent handed over. The agent reads it again."""
        self._spend("refusals")
        agent = self.agents[host]
        agent.replicas.reset()
        agent.in_flight, agent.has_sent, agent.read = [], False, agent.settled

    def lose_topic(self, _: str) -> None:
        """The topic of the digests is lost, and those that were not read with it."""
        self._spend("lost_topics")
        self.topic = []
        for agent in self.agents.values():
            agent.listened = 0

    # --- checks -------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise Broken if an agent counts a write as published that Kafka does not have."""
        for host, agent in self.agents.items():
            lost = set(self.logs[host][: max(agent.settled, agent.saved)]) - set(self.kafka)
            if lost:
                raise Broken(f"{host} has settled {sorted(lost)}, and Kafka has {self.kafka}")

    def drain(self) -> None:
        """Let the agents continue without faults. Raise Broken if they do not publish and settle all."""
        self.faults = Faults()
        for _ in range(100):
            while (action := next((a for a in self.actions() if self._moves(a)), None)) is not None:
                getattr(self, action[0])(action[1])
                self.check()
            for host in HOSTS:
                self._wait(host)
        unsettled = [host for host, agent in self.agents.items() if agent.settled < len(self.logs[host])]
        if unsettled or set(self.kafka) != set().union(*self.logs.values()):
            raise Broken(f"{unsettled} have not settled all, and Kafka has {self.kafka}")

    def _moves(self, action: tuple[str, str]) -> bool:
        """Return whether an action changes anything: a flush may not."""
        if action[0] != "flush":
            return True
        after = self.copied()
        after.flush(action[1])
        return after.key() != self.key()


def explore(world: World) -> tuple[int, Counter[int]]:
    """Try all schedules. Return the number of states, and the ends by the largest number of copies of a write, before
    anything else is done to settle all. Raise Broken with the schedule after which something is wrong.
    """
    seen = {world.key()}
    stack: list[tuple[World, tuple[tuple[str, str], ...]]] = [(world, ())]
    copies: Counter[int] = Counter()
    while stack:
        world, schedule = stack.pop()
        is_end = True
        for name, host in world.actions():
            after = world.copied()
            getattr(after, name)(host)
            key = after.key()
            if key == world.key():
                continue
            is_end = False
            if key in seen:
                continue
            seen.add(key)
            try:
                after.check()
            except Broken as e:
                raise Broken(f"{e}, after {[*schedule, (name, host)]}") from None
            stack.append((after, (*schedule, (name, host))))
        if is_end:
            copies[max(Counter(world.kafka).values(), default=0)] += 1
            try:
                world.drain()
            except Broken as e:
                raise Broken(f"{e}, in the end of {list(schedule)}") from None
    return len(seen), copies
