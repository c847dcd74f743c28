"""A topic that was just created, whose partitions have no leader yet, or which not all brokers know."""

import logging
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from writetime.clients import kafka
from writetime.core import config
from writetime.core.errors import Transient, WritetimeError
from writetime.landing import following
from writetime.landing.following import TableLanding
from writetime.wire.watermarks import Sources

NEW = ("NOT_LEADER_FOR_PARTITION", "UNKNOWN_TOPIC_OR_PART", "LEADER_NOT_AVAILABLE")


class Cluster:
    """Two topics of one partition. The next requests about the end of a topic fail with these errors."""

    def __init__(self, **faults: list[str]) -> None:
        self._faults: dict[str, Iterator[str]] = {topic: iter(names) for topic, names in faults.items()}

    def list_topics(self, timeout: float) -> Any:
        topic = SimpleNamespace(partitions=[0])
        return SimpleNamespace(cluster_id="c", topics={"a": topic, "b": topic})

    def list_offsets(self, asked: dict[TopicPartition, Any], **_: Any) -> dict[TopicPartition, Future[Any]]:
        return {tp: self._end_of(tp.topic) for tp in asked}

    def _end_of(self, topic: str) -> Future[Any]:
        answer: Future[Any] = Future()
        if name := next(self._faults.get(topic, iter(())), None):
            answer.set_exception(KafkaException(KafkaError(getattr(KafkaError, name))))
        else:
            answer.set_result(SimpleNamespace(offset=7))
        return answer

    def poll(self, timeout: float) -> None:
        pass


def ends(monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> kafka.TopicEnds:
    monkeypatch.setattr(kafka, "_admin", lambda _: cluster)
    return kafka.ends_of_topics(config.load(), lambda _: True)


@pytest.mark.parametrize("name", NEW)
def test_the_ends_are_requested_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, if no topic has an end. Otherwise, others would wait meanwhile."""
    found = ends(monkeypatch, Cluster(a=[name, name], b=[name, name]))
    assert found.ends == {"a": {0: 7}, "b": {0: 7}}
    found = ends(monkeypatch, Cluster(a=[name]))
    assert found.ends == {"b": {0: 7}}
    assert isinstance(found.faults["a"], Transient)


def test_a_refusal_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = ["TOPIC_AUTHORIZATION_FAILED"]
    with pytest.raises(WritetimeError, match="TOPIC_AUTHORIZATION_FAILED"):
        ends(monkeypatch, Cluster(a=refused, b=refused))
    fault = ends(monkeypatch, Cluster(a=refused)).faults["a"]
    assert not isinstance(fault, Transient)


@pytest.mark.parametrize(
    ("fault", "levels"),
    [(Transient("no leader"), ["DEBUG", "ERROR"]), (WritetimeError("refused"), ["ERROR"])],
)
def test_a_table_waits_before_this_is_a_fault(
    fault: WritetimeError, levels: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an error, and is reported, if it lasts. An error that does not pass is one at once."""
    monkeypatch.setattr(following, "landed_offsets", lambda *_: {})
    reports: list[Any] = []
    reporter = SimpleNamespace(send=lambda _, report: reports.append(report))
    topics = SimpleNamespace(watermarks=SimpleNamespace(reports={}))
    table = TableLanding(config.load(), "shop.orders", cast(Any, topics), cast(Any, reporter))
    with caplog.at_level(logging.DEBUG):
        for _ in range(3):
            assert table.land(fault, cast(Sources, {})) is fault
            assert not table.is_due(fault)
            assert table.is_due({0: 1})
    of_landing = [record.levelname for record in caplog.records if record.name == "writetime.landing.following"]
    assert of_landing == levels
    assert [report.fault for report in reports] == [str(fault)]


def test_a_table_without_new_changes_is_not_behind_afterwards(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next time, it waits again before this is a fault."""
    known, sources = {0: 1}, cast(Sources, {})
    landing = SimpleNamespace(held_by=None, place=None, landed=known)
    landing.land, landing.is_current = (lambda *_, **__: 1), (lambda *_: True)
    monkeypatch.setattr(following, "Landing", lambda *_, **__: landing)
    topics = SimpleNamespace(watermarks=SimpleNamespace(reports={}))
    table = TableLanding(config.load(), "shop.orders", cast(Any, topics), cast(Any, SimpleNamespace(send=print)))
    assert table.land(known, sources) == 1
    for _ in range(3):
        assert not table.is_behind
        fault = Transient("no leader")
        assert table.land(fault, sources) is fault
        assert table.is_behind
        assert table.is_due(known)
        assert table.is_current(known, sources)
    assert not table.is_behind
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
