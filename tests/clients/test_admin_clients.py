"""Requests of admin clients: their answers are lost with the client, and a request creates no topic."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from threading import Timer
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from writetime.clients import kafka
from writetime.clients.topic_retention import topic_retention_seconds
from writetime.core import config
from writetime.core.config import Settings
from writetime.core.server_settings import Kafka
from writetime.wire.publishing import Sender


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """A cluster that creates missing topics, in the process of the client that it belongs to."""
    cluster = Producer({"test.mock.num.brokers": 1})
    at = ",".join(f"{broker.host}:{broker.port}" for broker in cluster.list_topics(timeout=15).brokers.values())
    # Otherwise the other tests would keep a client of brokers that no longer run.
    monkeypatch.setattr(kafka, "_admin_of", kafka._admin_of.__wrapped__)
    yield config.load(kafka=Kafka(bootstrap_servers=at))
    # The cluster ends with it.
    del cluster


def test_a_request_about_a_missing_topic_does_not_create_it(brokers: Settings) -> None:
    with pytest.raises(kafka.NoTopic):
        kafka.partitions_of(brokers, "missing")
    Sender(brokers, "test")._producer.list_topics("missing", timeout=15)
    assert kafka.topic_names(brokers) == []


def test_ends_are_read_while_other_threads_forget_the_client(brokers: Settings) -> None:
    """Nothing but the request keeps a client here."""
    AdminClient({"bootstrap.servers": brokers.kafka.bootstrap_servers}).list_topics("t", timeout=15)
    assert set(kafka.ends_of_topics(brokers, lambda name: name == "t").ends["t"].values()) == {0}


class Client:
    """An admin client that answers later, and only if it is still there."""

    def __init__(self, *_: Any) -> None:
        self.topics: dict[str, Any] = {}

    def list_topics(self, timeout: float) -> Any:
        return self

    def poll(self, timeout: float) -> None:
        pass

    def _answer(self, *names: Any, value: Any = None) -> dict[Any, Future[Any]]:
        futures: dict[Any, Future[Any]] = {name: Future() for name in names}
        here = ref(self)
        Timer(0.05, lambda: here() and [future.set_result(value) for future in futures.values()]).start()
        return futures

    def create_topics(self, new: list[Any], request_timeout: float) -> dict[Any, Future[Any]]:
        return self._answer(*(topic.topic for topic in new))

    def delete_topics(self, names: list[str], request_timeout: float) -> dict[Any, Future[Any]]:
        return self._answer(*names)

    def describe_configs(self, asked: list[Any], request_timeout: float) -> dict[Any, Future[Any]]:
        value = SimpleNamespace(value="1000")
        return self._answer(*asked, value=dict.fromkeys(("max.message.bytes", "segment.bytes", "retention.ms"), value))


REQUESTS: dict[str, Callable[[Settings], Any]] = {
    "create": lambda settings: kafka.ensure_topics(settings, {"t": {}}, 1),
    "delete": lambda settings: kafka.delete_topics(settings, ["t"]),
    "limit": lambda settings: kafka.max_message_bytes(settings, "t"),
    "retention": lambda settings: topic_retention_seconds(settings, "t"),
}


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_a_client_is_kept_until_it_has_answered(
    request_: Callable[[Settings], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "_admin", Client)
    monkeypatch.setattr("writetime.clients.topic_retention.AdminClient", Client)
    # Brokers list the topics as requested.
    monkeypatch.setattr(kafka, "wait_until", lambda *_: True)
    request_(config.load())


def test_an_answer_that_does_not_come_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "TIMEOUT_SECONDS", 0.0)
    with pytest.raises(kafka.KafkaException) as raised:
        kafka.answer_of(Future(), 0.05)
    assert kafka.kind_of(raised.value.args[0]) is kafka.Transient
