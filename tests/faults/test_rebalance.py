"""Partitions change hands every other second while writes are slow."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer

from tests.faults.stage import MODES, Stage, until
from writetime.clients.kafka import client_config
from writetime.core.config import Settings

pytestmark = pytest.mark.long

ROUNDS, ROUNDS_LONG = 2, 3
# More than two sinks store with slow writes in these rounds.
EVENTS, EVENTS_LONG = 1200, 3000


@pytest.mark.parametrize("mode", MODES)
def test_rebalance_every_two_seconds_with_slow_writes(stage: Callable[..., Stage], mode: str, is_long: bool) -> None:
    # A drain shorter than a write: some writes are still in flight when their partition goes to another sink.
    s = stage(mode=mode, drain_seconds=0.3)
    s.proxy.delay = 0.4
    s.ledger.events(EVENTS_LONG if is_long else EVENTS, users=200, repeated=0.05)
    s.sink()
    s.sink()
    s.wait_for_writes(10)
    third = s.sink()
    for _ in range(ROUNDS_LONG if is_long else ROUNDS):
        with visitor(s.settings):
            pause = time.monotonic() + s.rng.uniform(0.5, 1.0)
            s.ledger.events(100, users=200)
            until(lambda pause=pause: time.monotonic() > pause, "the visitor has stayed")
        s.wait_for_writes(10)
    third.stop()
    s.proxy.delay = 0.0
    s.finish()


@contextmanager
def visitor(settings: Settings) -> Iterator[None]:
    """Join the group, hold partitions without reading them, and leave: two rebalances."""
    ingest = settings.ingest
    own = {
        "group.id": ingest.group,
        "enable.auto.commit": False,
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": int(ingest.session_timeout_seconds * 1000),
    }
    consumer = Consumer(client_config(settings, **own))
    try:
        consumer.subscribe([ingest.topic])
        until(lambda: consumer.poll(0.1) is not None or bool(consumer.assignment()), "partitions for the visitor")
        yield
    finally:
        consumer.close()
