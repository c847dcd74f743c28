"""Agents that share the changes of their nodes lose none, in any order of their steps and faults.

Oracle: the modelled Kafka: what an agent counts as published is there, and at the end each write is.
"""

from collections.abc import Iterable, Sequence

import pytest

from tests.capture.replica_schedules import Broken, Faults, World, explore
from writetime.capture.replicas import Offered, Replicas


def test_without_faults_each_write_is_published_once() -> None:
    for writes, late in ((2, 0), (1, 0)):
        _, copies = explore(World(writes, Faults(late=late)))
        assert set(copies) == {1}


@pytest.mark.parametrize(
    "faults",
    [
        Faults(kills=1, moments=1),
        Faults(refusals=1, moments=1),
        Faults(lost_topics=1, moments=1),
        Faults(kills=2),
        Faults(moments=2),
        pytest.param(Faults(kills=1, moments=2), marks=pytest.mark.long_only("takes a minute")),
        pytest.param(Faults(kills=1, lost_topics=1, moments=1), marks=pytest.mark.long_only("takes a minute")),
        pytest.param(Faults(moments=4), marks=pytest.mark.long_only("takes a minute")),
    ],
    ids=str,
)
def test_after_faults_no_write_is_lost(faults: Faults) -> None:
    states, copies = explore(World(1, faults))
    assert states > 100
    assert max(copies) > 1 or not faults.moments


@pytest.mark.parametrize(
    "faults",
    [
        Faults(kills=1),
        Faults(late=1),
        pytest.param(Faults(kills=1, late=1, moments=1), marks=pytest.mark.long_only("takes minutes")),
    ],
    ids=str,
)
def test_two_writes_are_not_lost(faults: Faults) -> None:
    explore(World(2, faults))


class SettlesTooSoon(Replicas[int]):
    """Counts what waits for others as published."""

    def reached(self, segment: int, progress: int) -> None:
        """Note the progress alone."""
        self._noted = []
        super().reached(segment, progress)


class KeepsRefused(Replicas[int]):
    """Believes that Kafka has what it was handed over and refused."""

    def reset(self) -> None:
        """Note all that was sent as published."""
        self.acknowledged()
        super().reset()


class NeverTakesOver(Replicas[int]):
    """Waits for the others for ever."""

    def due(self, now: float, limit: int) -> list[Offered]:
        """Return nothing."""
        return super().due(now - 1000, limit)


class TrustsSigns(Replicas[int]):
    """Counts all that waits as published when it hears any agent."""

    def receive(self, sender: str, digests: Sequence[bytes], now: float) -> None:
        """Note all."""
        super().receive(sender, [*digests, *self._waiting], now)


class Impatient(Replicas[int]):
    """Publishes all, as with `capture.replicas = "all"`."""

    def take(self, changes: Iterable[Offered], now: float) -> list[Offered]:
        """Return all that are not known to be published."""
        return super().take([Offered(c.digest, (), c.message) for c in changes], now)


@pytest.mark.parametrize(
    ("kind", "writes", "faults"),
    [
        (SettlesTooSoon, 1, Faults()),
        (KeepsRefused, 1, Faults(refusals=1, moments=1)),
        (NeverTakesOver, 1, Faults(lost_topics=1)),
        (TrustsSigns, 2, Faults()),
    ],
)
def test_the_explorer_finds_agents_that_lose_writes(kind: type[Replicas[int]], writes: int, faults: Faults) -> None:
    with pytest.raises(Broken):
        explore(World(writes, faults, kind))


def test_the_explorer_finds_an_agent_that_tells_of_changes_too_soon() -> None:
    with pytest.raises(Broken, match="has settled"):
        explore(World(1, Faults(kills=1), early=True))


def test_the_explorer_finds_agents_that_all_publish() -> None:
    _, copies = explore(World(1, Faults(), Impatient))
    assert max(copies) == 3
