"""An ingress whose Kafka producer has failed for good. Nothing makes librdkafka fail, so its errors are made here."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.http.serving import EVENT, NO_BROKER, changed, running
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.http.ingress import serve
from writetime.http.outbox import Outbox
from writetime.servers.process import free_port

FATAL = KafkaError(KafkaError._FATAL, "out of order", True)


def test_an_ingress_with_a_failed_producer_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Outbox):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            asyncio.get_running_loop().call_later(0.1, self._on_error, FATAL)

    monkeypatch.setattr("writetime.http.ingress.Outbox", Failing)
    with pytest.raises(WritetimeError, match="the Kafka producer has failed for good: out of order; start the ingress"):
        serve(changed(Settings(), NO_BROKER, port=free_port()))


def test_events_that_a_failed_producer_refuses_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise KafkaException(FATAL)

    polled: list[float] = []
    with running(changed(Settings(), NO_BROKER, ack_timeout_seconds=0.3)) as ingress:
        failed = SimpleNamespace(produce=refuse, poll=polled.append, flush=lambda: None)
        monkeypatch.setattr(ingress.app._outbox, "_producer", failed)
        assert ingress.post([EVENT] * 3).status_code == 503
        metrics = ingress.metrics()
    assert metrics["writetime_ingress_events_not_queued_total"] == 3
    assert metrics["writetime_ingress_events_accepted_total"] == 0
    # Otherwise the error callback would not be called.
    assert polled
