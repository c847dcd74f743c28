"""Requests about a partition while it has no leader, and once it has one again."""

import signal
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cluster.servers import Servers
from tests.support.waiting import PATIENCE_SECONDS
from writetime.clients import kafka
from writetime.core.config import Settings
from writetime.core.errors import Transient


def _ends_of_topics(settings: Settings, topic: str) -> dict[int, int]:
    found = kafka.ends_of_topics(settings, lambda name: name == topic)
    for fault in found.faults.values():
        raise fault
    return dict(found.ends[topic])


@pytest.mark.long_only("starts three nodes and three brokers")
def test_offsets_are_known_again_once_a_partition_has_a_leader(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "TIMEOUT_SECONDS", 1.0)
    settings, topic = servers.settings, f"t{uuid.uuid4().hex[:10]}"
    broker = servers.brokers[2]
    admin = AdminClient(kafka.client_config(settings))
    admin.create_topics([NewTopic(topic, num_partitions=1, replica_assignment=[[3]])])[topic].result()
    questions: list[Callable[[], dict[int, int]]] = [
        lambda: kafka.end_offsets(settings, topic, [0]),
        lambda: kafka.beginning_offsets(settings, topic),
        lambda: _ends_of_topics(settings, topic),
    ]
    assert [_answer(question) for question in questions] == [{0: 0}] * 3
    broker.stop(signal.SIGKILL)
    try:
        while admin.list_topics(topic).topics[topic].partitions[0].leader != -1:
            time.sleep(0.2)
        for question in questions:
            with pytest.raises(Transient):
                question()
    finally:
        broker.start()
    assert [_answer(question) for question in questions] == [{0: 0}] * 3


def _answer(question: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return question()
        except Transient:
            assert time.monotonic() < deadline
            time.sleep(0.5)
