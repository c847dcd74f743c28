"""Whether there is a topic: one request, about this topic only, however many topics the cluster has."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection, Uuid

from writetime.clients import kafka
from writetime.core import config
from writetime.core.errors import WritetimeError


class Cluster:
    """A cluster with one topic `there`, and one that it refuses to describe. It records the requests, and has none that
    lists all topics.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []

    def describe_topics(self, topics: TopicCollection, **_: Any) -> dict[str, Future[Any]]:
        names = [str(name) for name in topics.topic_names]
        self.asked += names
        return {name: self._answer(name) for name in names}

    def _answer(self, name: str) -> Future[Any]:
        answer: Future[Any] = Future()
        if name == "there":
            answer.set_result(SimpleNamespace(topic_id=Uuid(1, 2)))
        else:
            code = KafkaError.TOPIC_AUTHORIZATION_FAILED if name == "refused" else KafkaError.UNKNOWN_TOPIC_OR_PART
            answer.set_exception(KafkaException(KafkaError(code)))
        return answer

    def poll(self, timeout: float) -> None:
        pass


def test_only_one_topic_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    monkeypatch.setattr(kafka, "_admin", lambda _: cluster)
    settings = config.load()
    assert kafka.has_topic(settings, "there")
    assert not kafka.has_topic(settings, "missing")
    with pytest.raises(WritetimeError, match="AUTHORIZATION"):
        kafka.has_topic(settings, "refused")
    assert cluster.asked == ["there", "missing", "refused"]
