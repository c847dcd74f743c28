"""A broker that accepts connections and never answers, like one that is paused or just starting."""

import functools
import logging
import socket
from collections.abc import Callable, Generator, Iterator
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from writetime.clients import consumer_groups, kafka, kafka_errors
from writetime.clients.zookeeper import NoZooKeeper, connect
from writetime.core import config, logs
from writetime.core.config import Settings
from writetime.core.errors import Transient, WritetimeError
from writetime.core.logs import KAFKA_CLIENT, ZOOKEEPER_CLIENT
from writetime.core.server_settings import Kafka, ZooKeeper
from writetime.ingest import dead_letter_topic
from writetime.servers.process import free_port
from writetime.wire import publishing
from writetime.wire.publishing import Sender

QUESTIONS: dict[str, Callable[[Settings], Any]] = {
    "topics": kafka.topic_names,
    "partitions": lambda settings: kafka.partitions_of(settings, "t"),
    "limit": lambda settings: kafka.max_message_bytes(settings, "t"),
    "ends": lambda settings: kafka.end_offsets(settings, "t", [0]),
    "committed": lambda settings: consumer_groups.committed_offsets(settings, "t", "g"),
    "group": lambda settings: consumer_groups.group_is_live(settings, "g"),
}


@pytest.fixture
def silent_broker() -> Iterator[Settings]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield config.load(kafka=Kafka(bootstrap_servers=f"127.0.0.1:{listener.getsockname()[1]}"))


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_a_silent_broker_is_an_error_that_names_it_and_the_remedy(
    question: Callable[[Settings], Any], silent_broker: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "TIMEOUT_SECONDS", 1.0)
    # Otherwise the other tests would keep a client of a broker that no longer runs.
    monkeypatch.setattr(kafka, "_admin_of", kafka._admin_of.__wrapped__)
    broker = silent_broker.kafka.bootstrap_servers
    with pytest.raises(WritetimeError, match=rf"no broker answers at {broker}.*`writetime up`"):
        question(silent_broker)


def test_the_log_of_the_client_goes_to_the_log_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kafka, "TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr(kafka, "_admin_of", functools.cache(kafka._admin_of.__wrapped__))
    settings = config.load(kafka=Kafka(bootstrap_servers=f"127.0.0.1:{free_port()}"))

    def lines() -> list[str]:
        caplog.clear()
        with pytest.raises(Transient):
            kafka.topic_names(settings)
        return [record.getMessage() for record in caplog.records if record.name == KAFKA_CLIENT]

    logs.log_clients()
    assert "Connection refused" in lines()[0]
    logs.silence_clients()
    assert lines() == []
    logs.log_clients()
    assert capfd.readouterr().err == ""


def test_the_log_of_zookeepers_client_has_no_requests(caplog: pytest.LogCaptureFixture) -> None:
    logs.log_clients()
    settings = config.load(zookeeper=ZooKeeper(hosts=f"127.0.0.1:{free_port()}"))
    for level, least in ((logging.WARNING, logging.WARNING), (logging.DEBUG, logging.INFO)):
        caplog.clear()
        with caplog.at_level(level), pytest.raises(NoZooKeeper), connect(settings, 1):
            pass
        assert min(record.levelno for record in caplog.records if record.name == ZOOKEEPER_CLIENT) == least


SENDS: dict[str, Callable[[Sender, list[bytes]], Any]] = {
    "together": lambda sender, values: sender.produce_all("t", values, [b"k"] * len(values), [0] * len(values)),
    "alone": lambda sender, values: [sender.produce("t", value, b"k", 0) for value in values],
}


@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS)
def test_a_full_queue_of_the_client_is_an_outage(
    send: Callable[[Sender, list[bytes]], Any], silent_broker: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, a table whose changes fill the queue would be set aside while a broker is down."""
    monkeypatch.setattr(publishing, "TIMEOUT_SECONDS", 0.5)
    sender = Sender(silent_broker, "test", **{"queue.buffering.max.kbytes": 64, "log_level": 0})
    with pytest.raises(Transient, match="the client's queue is full with"):
        send(sender, [b"x" * 10_000] * 20)


_MAY_PASS = (
    "_TRANSPORT",
    "_ALL_BROKERS_DOWN",
    "_TIMED_OUT",
    "LEADER_NOT_AVAILABLE",
    "LISTENER_NOT_FOUND",
    "OFFSET_NOT_AVAILABLE",
    "REPLICA_NOT_AVAILABLE",
    "_NOENT",
    "NOT_ENOUGH_REPLICAS",
)
_LASTS = (
    "TOPIC_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "INVALID_CONFIG",
    "POLICY_VIOLATION",
    "MSG_SIZE_TOO_LARGE",
    "_INVALID_ARG",
)


@pytest.mark.parametrize("name", [*_MAY_PASS, *_LASTS])
def test_outages_may_pass_and_refusals_last(name: str) -> None:
    error = KafkaError(getattr(KafkaError, name))
    assert kafka_errors.may_pass(error) == (name in _MAY_PASS)
    assert issubclass(kafka_errors.kind_of(error), Transient) == (name in _MAY_PASS)


@pytest.mark.parametrize("name", ["LISTENER_NOT_FOUND", "OFFSET_NOT_AVAILABLE", "REPLICA_NOT_AVAILABLE"])
def test_a_partition_that_is_being_moved_is_requested_again(name: str) -> None:
    answers: Iterator[Any] = iter([KafkaException(KafkaError(getattr(KafkaError, name))), "a"])

    def ask(_: object) -> str:
        if isinstance(answer := next(answers), Exception):
            raise answer
        return answer

    assert kafka.ask_cluster(config.load(), "offsets", ask) == "a"


class OneUnknown:
    """A consumer whose group's coordinator has moved, and then answers with an error for one of two partitions."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.calls = 0

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[Any]:
        self.calls += 1
        if self.calls == 1:
            raise KafkaException(KafkaError(KafkaError.NOT_COORDINATOR))
        known, unknown = partitions
        error = KafkaError(self.code)
        return [known, SimpleNamespace(topic=unknown.topic, partition=unknown.partition, offset=-1001, error=error)]


@pytest.mark.parametrize("code", [KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.TOPIC_AUTHORIZATION_FAILED])
def test_an_offset_that_cannot_be_read_is_not_taken_for_no_commit(code: int) -> None:
    consumer: Any = OneUnknown(code)
    with pytest.raises(WritetimeError, match="t/1: the offset of group g is not known") as raised:
        consumer_groups.committed(config.load(), consumer, "g", [TopicPartition("t", 0), TopicPartition("t", 1)])
    assert consumer.calls == 2
    assert isinstance(raised.value, Transient) == (code == KafkaError.COORDINATOR_LOAD_IN_PROGRESS)


class Reading:
    """A consumer of two partitions with one message each. It reports an error before the second one, so often."""

    def __init__(self, code: int, times: int, partition: int | None = None) -> None:
        errors = repeat(self._polled(partition, None, KafkaError(code)), times)
        self._reports = chain([self._polled(0, 7)], errors, [self._polled(2, 5)])
        self.is_closed = False

    def _polled(self, partition: int | None, offset: int | None, error: KafkaError | None = None) -> Any:
        place = {"partition": lambda: partition, "offset": lambda: offset, "topic": lambda: "t"}
        return SimpleNamespace(error=lambda: error, **place)

    def assign(self, partitions: list[TopicPartition]) -> None:
        assert {(p.partition, p.offset) for p in partitions} == {(0, 7), (2, 5)}

    def poll(self, timeout: float) -> Any:
        return next(self._reports)

    def unassign(self) -> None:
        assert list(self._reports) == []

    def close(self) -> None:
        self.is_closed = True


def read(monkeypatch: pytest.MonkeyPatch, consumer: Reading) -> Generator[Any, None, None]:
    monkeypatch.setattr(kafka, "Consumer", lambda _: consumer)
    monkeypatch.setattr(kafka, "_idle_readers", lambda *_: [])
    return kafka.messages_between(config.load(), "t", {0: 7, 1: 3, 2: 5}, {0: 8, 1: 3, 2: 6})


@pytest.mark.parametrize("name", ["_RESOLVE", "_TIMED_OUT", "NOT_LEADER_FOR_PARTITION", "_ALL_BROKERS_DOWN"])
def test_a_reader_waits_for_a_broker(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = Reading(getattr(KafkaError, name), 3)
    assert [message.partition() for message in read(monkeypatch, consumer)] == [0, 2]
    assert not consumer.is_closed


def test_a_reader_waits_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = Reading(KafkaError._RESOLVE, 10**9)
    monkeypatch.setattr(kafka, "TIMEOUT_SECONDS", 0.1)
    with pytest.raises(
        Transient, match=r"topic t cannot be read, partition 2: no answer for 0 s, Local: Host resolution failure"
    ):
        list(read(monkeypatch, consumer))
    assert consumer.is_closed


@pytest.mark.parametrize(("partition", "named"), [(2, "partition 2"), (None, "partition 2"), (0, "partition 0")])
def test_an_error_that_lasts_ends_a_reader(partition: int | None, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = Reading(KafkaError.TOPIC_AUTHORIZATION_FAILED, 1, partition)
    with pytest.raises(WritetimeError, match=f"topic t cannot be read, {named}: Broker: Topic authorization") as raised:
        list(read(monkeypatch, consumer))
    assert not isinstance(raised.value, Transient)
    assert consumer.is_closed


def test_a_failed_redrive_closes_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = Reading(KafkaError._RESOLVE, 0)
    letters = read(monkeypatch, consumer)
    monkeypatch.setattr(dead_letter_topic, "messages_between", lambda *_: letters)
    found = dead_letter_topic.read(config.load(), {}, {})
    with pytest.raises(AttributeError, match="headers"):
        next(found)
    assert consumer.is_closed
