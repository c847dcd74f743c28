"""The HTTP ingress against a real broker: exactly the events answered with 202 are in the topic."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import httpx
import orjson
import pytest
from confluent_kafka import Message
from pydantic import SecretStr

from tests.http.serving import (
    EVENT,
    NO_BROKER,
    Running,
    changed,
    running,
    serving,
    stored,
)
from writetime.clients.kafka import end_offsets, ensure_topics
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.http.ingress import serve
from writetime.ingest.event import FIRST_SEEN_HEADER, Event


@pytest.fixture(scope="module")
def shared(broker: Settings) -> Iterator[Running]:
    """An ingress with small limits."""
    with running(changed(broker, max_event_bytes=2_000, max_batch_events=50)) as ingress:
        yield ingress


def ids(events: list[tuple[Event, Message]]) -> list[str]:
    return sorted(str(event.event_id) for event, _ in events)


def test_an_acknowledged_event_is_in_the_topic(shared: Running) -> None:
    start = end_offsets(shared.settings, shared.settings.ingest.topic)
    answer = shared.post({**EVENT, "payload": {"flight": 1545}})
    [(event, message)] = stored(shared.settings, start)
    assert answer.status_code == 202
    assert answer.json() == {"status": "queued", "eventId": str(event.event_id)}
    assert (event.user_id, event.event_type, event.payload) == ("ada", "departed", '{"flight":1545}')
    assert message.key() == b"ada"
    assert not message.headers()


def test_a_batch_is_acknowledged_as_a_whole(shared: Running) -> None:
    start = end_offsets(shared.settings, shared.settings.ingest.topic)
    batch = [{**EVENT, "userId": f"user-{n}", "payload": n} for n in range(50)]
    answer = shared.post(batch)
    assert answer.status_code == 202
    by_id = {str(event.event_id): event.payload for event, _ in stored(shared.settings, start)}
    assert [by_id[event_id] for event_id in answer.json()["eventIds"]] == [str(n) for n in range(50)]


def test_events_of_a_user_keep_their_order(shared: Running) -> None:
    start = end_offsets(shared.settings, shared.settings.ingest.topic)
    shared.post([{**EVENT, "payload": n} for n in range(50)])
    assert [event.payload for event, _ in stored(shared.settings, start)] == [str(n) for n in range(50)]


def test_a_repeated_call_has_the_same_ids(shared: Running) -> None:
    single = [shared.post(EVENT, key).json()["eventId"] for key in ("k", "k", "l")]
    assert single[0] == single[1] != single[2]
    batches = [shared.post([EVENT, EVENT], key).json()["eventIds"] for key in ("k", "k", "l")]
    assert batches[0] == batches[1]
    assert len({*batches[0], *batches[2]}) == 4
    assert shared.post(EVENT).json() != shared.post(EVENT).json()


def test_first_seen_marks_events_with_a_key_and_no_timestamp(shared: Running) -> None:
    start = end_offsets(shared.settings, shared.settings.ingest.topic)
    timed = {**EVENT, "timestamp": "2013-01-01T05:15:00Z"}
    marked = [shared.post(EVENT, "key").json()["eventId"], *shared.post([EVENT, timed], "batch").json()["eventIds"][:1]]
    shared.post(EVENT)
    shared.post(timed, "key")
    messages = stored(shared.settings, start)
    assert len(messages) == 5
    assert ids([(e, m) for e, m in messages if FIRST_SEEN_HEADER in dict(m.headers() or [])]) == sorted(marked)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not JSON"),
        (b'{"userId":', "not JSON"),
        (b'"text"', "must be a JSON object"),
        (b'{"userId":"ada"}', "eventType must be a non-empty string"),
        (b'{"userId":"","eventType":"t"}', "userId must be a non-empty string"),
        (b'{"userId":"ada","eventType":"t","colour":"red"}', "unknown field 'colour'"),
        (b'{"userId":"ada","eventType":"t","timestamp":"yesterday"}', "timestamp must be ISO 8601"),
        (b'{"userId":"ada","eventType":"t","payload":' + b"[" * 300 + b"]" * 300 + b"}", "payload"),
        (b"[]", "the batch is empty"),
        (b"[1]", "event 0: an event must be a JSON object"),
    ],
)
def test_a_wrong_body_is_refused_with_the_reason(shared: Running, body: bytes, reason: str) -> None:
    answer = shared.client.post("/events", content=body)
    assert answer.status_code == 400
    assert answer.json()["status"] == "error"
    assert reason in answer.json()["reason"]


def test_nothing_of_a_wrong_batch_is_queued(shared: Running) -> None:
    start = end_offsets(shared.settings, shared.settings.ingest.topic)
    answer = shared.post([EVENT, EVENT, {"userId": "ada"}, {}])
    assert answer.status_code == 400
    assert answer.json()["index"] == 2
    shared.post(EVENT)
    assert len(stored(shared.settings, start)) == 1


@pytest.mark.parametrize(("key", "status"), [("", 400), ("k" * 256, 400), ("k" * 255, 202)])
def test_an_idempotency_key_has_1_to_255_characters(shared: Running, key: str, status: int) -> None:
    assert shared.post(EVENT, key).status_code == status


@pytest.mark.parametrize(
    "body",
    [
        {**EVENT, "payload": "x" * 2_000},
        [EVENT, {**EVENT, "payload": "x" * 2_000}],
        [EVENT] * 51,
        [{**EVENT, "payload": "x" * 8_388_608}],
    ],
    ids=["event", "event of a batch", "number of events", "batch"],
)
def test_too_large_bodies_are_refused(shared: Running, body: Any) -> None:
    start = end_offsets(shared.settings, shared.settings.ingest.topic)
    answer = shared.post(body)
    assert answer.status_code == 413
    assert end_offsets(shared.settings, shared.settings.ingest.topic) == start


def test_a_body_without_end_is_refused_while_it_is_sent(shared: Running) -> None:
    chunk = b"400\r\n" + b" " * 1024 + b"\r\n"
    with socket.create_connection(("127.0.0.1", shared.port), timeout=30) as s:
        s.sendall(b"POST /events HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n" + chunk * 2)
        assert s.recv(100).startswith(b"HTTP/1.1 413 ")


def test_a_client_that_leaves_does_not_harm_the_others(shared: Running) -> None:
    start = end_offsets(shared.settings, shared.settings.ingest.topic)
    with socket.create_connection(("127.0.0.1", shared.port)) as s:
        s.sendall(b"POST /events HTTP/1.1\r\nhost: test\r\ncontent-length: 100\r\n\r\n" + orjson.dumps(EVENT))
    assert shared.post(EVENT).status_code == 202
    assert len(stored(shared.settings, start)) == 1


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/events", 405), ("POST", "/ready", 405), ("POST", "/event", 404)]
)
def test_other_calls_are_refused(shared: Running, method: str, path: str, status: int) -> None:
    answer = shared.client.request(method, path)
    assert answer.status_code == status
    assert answer.json()["status"] == "error"
    assert ("allow" in answer.headers) == (status == 405)


def test_metrics_add_up(broker: Settings) -> None:
    with running(broker) as ingress:
        size = len(ingress.post(EVENT).request.content) + len(ingress.post([EVENT] * 3).request.content)
        ingress.post([])
        ingress.client.get("/events")
        metrics = ingress.metrics()
    assert {status: metrics[f"writetime_ingress_requests_total/{status}"] for status in (202, 400, 405)} == {
        202: 2,
        400: 1,
        405: 1,
    }
    assert metrics["writetime_ingress_events_accepted_total"] == 4
    assert metrics["writetime_ingress_events_acknowledged_total"] == 4
    assert metrics["writetime_ingress_events_failed_total"] == 0
    assert metrics["writetime_ingress_events_pending"] == 0
    assert metrics["writetime_ingress_ack_seconds_count"] == 2
    assert metrics["writetime_ingress_body_bytes_total"] == size + len(b"[]")


def test_without_a_broker_events_are_answered_503(broker: Settings) -> None:
    with running(changed(broker, NO_BROKER, ack_timeout_seconds=0.3)) as ingress, ThreadPoolExecutor() as pool:
        single, batch = pool.map(ingress.post, [EVENT, [EVENT, EVENT]])
        ready, health, metrics = ingress.client.get("/ready"), ingress.client.get("/health"), ingress.metrics()
    for answer in (single, batch):
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        assert "Idempotency-Key" in answer.json()["reason"]
    assert batch.json()["acknowledged"] == []
    assert (ready.status_code, health.status_code) == (503, 200)
    assert NO_BROKER in ready.json()["reason"]
    assert metrics["writetime_ingress_events_accepted_total"] == 3
    assert metrics["writetime_ingress_events_failed_total"] == 3
    assert metrics["writetime_ingress_events_pending"] == 0


def test_too_many_waiting_events_are_answered_429(broker: Settings) -> None:
    settings = changed(broker, NO_BROKER, ack_timeout_seconds=3.0, max_pending_events=2)
    with running(settings) as ingress, ThreadPoolExecutor() as pool:
        waiting = pool.submit(ingress.post, [EVENT, EVENT])
        while not ingress.metrics()["writetime_ingress_events_pending"]:
            time.sleep(0.01)
        refused = ingress.post(EVENT)
        assert refused.status_code == 429
        assert refused.headers["retry-after"]
        assert waiting.result().status_code == 503
        assert ingress.post([EVENT] * 3).status_code == 413


def test_an_event_that_is_too_large_for_its_topic_is_refused(broker: Settings) -> None:
    """And stops no other, also of the same partition and batch. To repeat it would never help."""
    settings = changed(broker, topic=f"{broker.ingest.topic}-small", ack_timeout_seconds=5.0)
    ensure_topics(settings, {settings.ingest.topic: {"max.message.bytes": "2000"}}, partitions=1)
    large = {**EVENT, "payload": os.urandom(4_000).hex()}
    # Each fits, and the batch of the producer does not.
    small = [{**EVENT, "userId": f"user-{n}", "payload": os.urandom(300).hex()} for n in range(20)]
    with running(settings) as ingress:
        queued = ingress.post(small)
        single = ingress.post(large)
        batch = ingress.post([*small, large])
        metrics = ingress.metrics()
    reason = f"the event is larger than 2000 bytes, which is the largest message that the topic {settings.ingest.topic}"
    assert (queued.status_code, single.status_code, batch.status_code) == (202, 413, 413)
    assert single.json()["reason"].startswith(reason)
    assert batch.json()["reason"].startswith(f"event 20: {reason}")
    assert batch.json()["reason"].endswith("; 20 of 21 events are queued")
    assert batch.json()["index"] == 20
    assert sorted(batch.json()["acknowledged"] + queued.json()["eventIds"]) == ids(stored(settings))
    counts = [metrics[f"writetime_ingress_events_{name}"] for name in ("pending", "accepted_total", "failed_total")]
    # An alarm counts failed ones: the broker answers here.
    assert counts == [0, 42, 0]
    assert metrics["writetime_ingress_events_acknowledged_total"] == 40


def test_a_batch_that_fails_in_part_names_the_acknowledged_events(
    broker: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = end_offsets(broker, broker.ingest.topic)
    with running(broker) as ingress:
        producer = ingress.app._outbox._producer

        def produce(topic: str, value: bytes, *given: Any, **options: Any) -> None:
            if b"third" in value:
                raise BufferError("Local: Queue full")
            producer.produce(topic, value, *given, **options)

        partly = SimpleNamespace(produce=produce, poll=producer.poll, flush=producer.flush)
        monkeypatch.setattr(ingress.app._outbox, "_producer", partly)
        answer = ingress.post([{**EVENT, "payload": text} for text in ("first", "second", "third", "fourth")])
    assert answer.status_code == 503
    assert "has not acknowledged 2 of 4 events (Local: Queue full)" in answer.json()["reason"]
    assert sorted(answer.json()["acknowledged"]) == ids(stored(broker, start))


def test_ready_names_a_missing_topic_and_a_stop(broker: Settings) -> None:
    with running(changed(broker, topic="no-such-topic")) as ingress:
        missing = ingress.client.get("/ready")
        ingress.app.draining = True
        stopping = ingress.client.get("/ready")
    assert (missing.status_code, stopping.status_code) == (503, 503)
    assert "no-such-topic" in missing.json()["reason"]
    assert "stopping" in stopping.json()["reason"]


def test_a_port_in_use_is_an_error_with_the_fix(broker: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(WritetimeError, match=rf"127.0.0.1:{port} .*ingest\.port"):
            serve(changed(broker, port=port))


def test_a_missing_topic_is_an_error_with_the_fix(broker: Settings) -> None:
    with pytest.raises(WritetimeError, match=r"no-such-topic .*ingest\.topic"):
        serve(changed(broker, topic="no-such-topic"))


def test_a_wrong_client_setting_is_an_error(broker: Settings) -> None:
    kafka = broker.kafka.model_copy(update={"client": {"no.such.setting": SecretStr("1")}})
    with pytest.raises(WritetimeError, match=r"kafka\.client.*no\.such\.setting"):
        serve(broker.model_copy(update={"kafka": kafka}))


def test_a_stop_under_load_loses_nothing(broker: Settings) -> None:
    settings = changed(broker, topic=f"{broker.ingest.topic}-stop")
    ensure_topics(settings, {settings.ingest.topic: {}}, partitions=4)
    acknowledged: list[str] = []

    def post_until_closed(address: str) -> None:
        with httpx.Client(base_url=address, timeout=30) as client:
            while True:
                try:
                    answer = client.post("/events", json=EVENT)
                except httpx.TransportError:
                    return
                assert answer.status_code == 202
                acknowledged.append(answer.json()["eventId"])

    with serving(settings) as (process, address), ThreadPoolExecutor(16) as pool:
        clients = [pool.submit(post_until_closed, address) for _ in range(16)]
        while len(acknowledged) < 500:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        for client in clients:
            client.result()
        assert process.wait(30) == 0
    assert sorted(acknowledged) == ids(stored(settings))


def test_without_a_broker_it_starts_reports_that_and_stops_when_the_calls_are_answered(broker: Settings) -> None:
    with (
        serving(changed(broker, NO_BROKER, ack_timeout_seconds=1.0)) as (process, address),
        ThreadPoolExecutor() as pool,
    ):
        with httpx.Client(base_url=address, timeout=30) as client:
            assert client.get("/health").status_code == 200
            waiting = pool.submit(httpx.post, f"{address}/events", json=EVENT, timeout=30)
            while "writetime_ingress_events_pending 1.0" not in client.get("/metrics").text:
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            assert waiting.result().status_code == 503
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert f"warning: Kafka at {NO_BROKER} does not answer" in errors
