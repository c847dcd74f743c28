"""The HTTP ingress against a real broker: exactly the events answered with 202 are in the topic."""

import os
import signal
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import httpx
import orjson
import pytest
from cassandra import OperationTimedOut
from cassandra.cluster import Session
from confluent_kafka import Message
from pydantic import SecretStr

from tests.http.serving import (
    EVENT,
    NO_BROKER,
    NO_DATABASE,
    Running,
    changed,
    cut_off_from,
    running,
    serving,
    stored,
    until,
)
from writetime.clients.database import connect
from writetime.clients.kafka import end_offsets, ensure_topics
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.http.ingress import serve
from writetime.ingest.event import FIRST_SEEN_HEADER, Event
from writetime.servers.process import free_port
from writetime.workqueue import Item, Worker, inspect, schedules
from writetime.workqueue.queue_tables import QueueTables

SILENT = free_port()
Serve = Callable[..., "Running"]


@pytest.fixture(scope="module")
def broker(kafka: Settings, cassandra: Settings) -> Settings:
    """Settings with a topic for this module's tests."""
    # Work items go to the database.
    del cassandra
    settings = changed(kafka, topic=f"ingress-{uuid.uuid4().hex[:8]}", port=free_port())
    ensure_topics(settings, {settings.ingest.topic: {}}, partitions=4)
    return settings


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


ITEMS = "/queues/{queue}/items"
ITEM = f"{ITEMS}/{{itemId}}"
EVENT_OF_ITEM = f"{ITEM}/events/{{name}}"
PAUSE = "/queues/{queue}/pause"
REDRIVE = "/queues/{queue}/redrive"
SCHEDULES = "/queues/{queue}/schedules"
SCHEDULE = f"{SCHEDULES}/{{name}}"
ABOUT_SCHEDULES = [("GET", SCHEDULES), ("PUT", SCHEDULE), ("DELETE", SCHEDULE)]
ABOUT_QUEUES = [("PUT", PAUSE), ("DELETE", PAUSE), ("POST", REDRIVE), ("DELETE", ITEMS)]
OF_THE_PAGE = ["/queues/names", *(f"/queues/{{queue}}/{part}" for part in ("summary", "items", "dead-letters"))]
LOOKS = [("GET", path) for path in (*OF_THE_PAGE, f"{ITEM}/history")]
ABOUT_ITEMS = [("GET", ITEM), ("DELETE", ITEM), *ABOUT_QUEUES, *LOOKS]
Call = tuple[str, str, httpx.Response]


class Calls:
    """Calls of ingresses: the method, the path as it is documented, and the answer."""

    def __init__(self) -> None:
        self.made: list[Call] = []

    def call(self, ingress: Running, method: str, path: str, **options: Any) -> None:
        address = path.replace("{queue}", "some jobs")
        self.made.append((method, path, ingress.client.request(method, address, **options)))

    def call_one_that_is_working(self, up: Running) -> None:
        for body in (EVENT, [EVENT], {}, {**EVENT, "payload": "x" * 1_024}):
            self.call(up, "POST", "/events", json=body)
        for path in ("/health", "/ready", "/metrics", "/openapi.json", "/queues"):
            self.call(up, "GET", path)
        for body in ({"payload": 1}, [{"payload": 1, "key": "k"}], {}, {"payload": "x" * 300_000}):
            self.call(up, "POST", ITEMS, json=body)
        item_id = up.client.post(ITEMS.replace("{queue}", "some jobs"), json={"payload": 1}).json()["itemId"]
        self.call(up, "POST", ITEMS, json={"payload": 2, "itemId": item_id})
        self.call_about_an_item(up, item_id)
        self.call_about_schedules(up)
        self.call_about_events(up, up.client.post("/queues/some jobs/items", json={"payload": 1}).json()["itemId"])

    def call_about_events(self, up: Running, item_id: str) -> None:
        for queue, name, size, status in (
            ("some jobs", "a", 1, 200),
            ("some jobs", "a\n", 1, 400),
            ("some jobs", "a", 263_000, 413),
            ("unknown", "a", 1, 404),
        ):
            address = f"/queues/{queue}/items/{item_id}/events/{quote(name)}"
            self.made.append(("PUT", EVENT_OF_ITEM, up.client.put(address, json="x" * size)))
            assert self.made[-1][2].status_code == status

    def call_about_schedules(self, up: Running) -> None:
        large = {"cron": "0 0 1 1 *", "payload": {"a": "x" * 262_120}}
        for body, status in (({"cron": "0 0 1 1 *", "key": "k"}, 200), ({"cron": "x"}, 400), (large, 413)):
            self.call(up, "PUT", SCHEDULE, json=body)
            assert self.made[-1][2].status_code == status
        self.call(up, "GET", SCHEDULES)
        self.call(up, "DELETE", SCHEDULE)
        for method, path in ABOUT_SCHEDULES:
            address = path.replace("{queue}", "unknown")
            self.made.append((method, path, up.client.request(method, address, json={"cron": "0 0 1 1 *"})))

    def call_about_an_item(self, up: Running, item_id: str) -> None:
        for method, path in ABOUT_ITEMS:
            self.ask(up, method, path, item_id)
            self.ask(up, method, path, item_id, key="", since="x", start="x")
            self.ask(up, method, path.replace("{queue}", "unknown"), item_id)
        for path, wait in ((ITEM.replace("{itemId}", "7"), "0"), *((ITEM, wait) for wait in ("x", "-1", "nan", "61"))):
            self.ask(up, "GET", path, item_id, wait=wait)
            assert self.made[-1][2].status_code == 400
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(up.client.get, f"/queues/some jobs/items/{item_id}?wait=3")
            until(lambda: up.app._controls._asking == 1)
            for method, path in ABOUT_ITEMS:
                self.ask(up, method, path, item_id)
            for method, path in [*ABOUT_SCHEDULES, ("PUT", EVENT_OF_ITEM)]:
                self.call(up, method, path, json={"cron": "0 0 1 1 *"})
            assert waiting.result().json()["status"] == "cancelling"

    def ask(self, ingress: Running, method: str, path: str, item_id: str, **query: str) -> None:
        """Call about a queue or an item."""
        address = path.replace("{queue}", "some jobs").replace("{itemId}", item_id)
        documented = path.replace("unknown", "{queue}").replace("/7", "/{itemId}")
        if (method, documented) == ("DELETE", ITEMS) and "key" not in query:
            query["all"] = "true"
        self.made.append((method, documented, ingress.client.request(method, address, params=query)))

    def call_one_that_is_cut_off(self, cut_off: Running) -> None:
        """From its broker and its database; a second event comes while one waits."""
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(self.call, cut_off, "POST", "/events", json=EVENT)
            while not cut_off.metrics()["writetime_ingress_events_pending"]:
                time.sleep(0.01)
            self.call(cut_off, "POST", "/events", json=EVENT)
            waiting.result()
        self.call(cut_off, "GET", "/ready")
        self.call(cut_off, "POST", ITEMS, json={"payload": 1})
        refused = self.made[-1][2].json()
        assert refused["itemIds"] == []
        assert " id" not in refused["reason"]
        for method, path in ABOUT_ITEMS:
            self.ask(cut_off, method, path, str(uuid.uuid4()))
        for method, path in [*ABOUT_SCHEDULES, ("PUT", EVENT_OF_ITEM)]:
            self.call(cut_off, method, path, json={"cron": "0 0 1 1 *"})

    def call_one_without_an_answer(self, unanswered: Running) -> None:
        """Its database does not answer; a second item comes while one waits."""
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(self.call, unanswered, "POST", ITEMS, json={"payload": 1})
            until(lambda: unanswered.app._items._pending == 1)
            self.call(unanswered, "POST", ITEMS, json={"payload": 1})
            waiting.result()


def test_the_openapi_document_is_true(broker: Settings) -> None:
    """All answers that it has, and no others, are those of ingresses that work or lack a server."""
    limits = {"max_event_bytes": 1_024, "max_pending_events": 1, "ack_timeout_seconds": 3.0}
    calls = Calls()
    with (
        running(changed(broker, **limits)) as up,
        running(cut_off_from(changed(broker, NO_BROKER, **limits), NO_DATABASE)) as cut_off,
        running(cut_off_from(changed(broker, **limits), SILENT)) as unanswered,
        socket.create_server(("127.0.0.1", SILENT)),
    ):
        document = up.client.get("/openapi.json").json()
        calls.call_one_that_is_cut_off(cut_off)
        calls.call_one_that_is_working(up)
        calls.call_one_without_an_answer(unanswered)
    documented = {
        (method.upper(), path, int(status))
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        for status in operation["responses"]
    }
    assert {(method, path, answer.status_code) for method, path, answer in calls.made} == documented
    for method, path, answer in calls.made:
        assert_documented(answer, document["paths"][path][method.lower()]["responses"], document)


def assert_documented(answer: httpx.Response, responses: dict[str, Any], document: dict[str, Any]) -> None:
    response = responses[str(answer.status_code)]
    content_type = answer.headers["content-type"].partition(";")[0]
    assert content_type in response["content"]
    assert set(response.get("headers", {})) <= {name.title() for name in answer.headers}
    if content_type == "application/json":
        assert fits(answer.json(), response["content"][content_type]["schema"], document)


def fits(body: dict[str, Any], schema: dict[str, Any], document: dict[str, Any]) -> bool:
    """Return whether an object has the properties that a schema requires and, where it lists them, no others."""
    if "oneOf" in schema:
        return sum(fits(body, option, document) for option in schema["oneOf"]) == 1
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    known = schema.get("properties", body)
    return set(schema.get("required", [])) <= set(body) <= set(known)


NO_TIME_LIMITS = b"0", b"-1", b"31622401", b"1e308", b"1" + b"0" * 400, b'"1"', b"true", b"[]"
REFUSED_ITEMS = [
    b"{",
    b"[]",
    b"1",
    b'{"payload":1,"colour":2}',
    b'{"payload":1,"key":""}',
    b'{"payload":1,"key":2}',
    b'{"payload":1,"delaySeconds":"1"}',
    b'{"payload":1,"delaySeconds":-1}',
    b'{"payload":1,"delaySeconds":2.6e11}',
    b'{"payload":1,"delaySeconds":9e18}',
    b'{"payload":1,"delaySeconds":9223372036854775808}',
    b'{"payload":1,"delaySeconds":1e308}',
    *(b'{"payload":1,"timeLimitSeconds":%b}' % limit for limit in NO_TIME_LIMITS),
    b'[{"payload":1},{"payload":' + b"[" * 990 + b"]" * 990 + b"}]",
    b'{"payload":' + b'{"a":' * 251 + b"1" + b"}" * 252,
    b'{"payload":1,"itemId":"7"}',
    b'{"payload":1,"uniqueName":7}',
    b'{"payload":1,"uniqueName":""}',
    b'{"payload":1,"uniqueName":"a","uniqueSeconds":0}',
    b'{"payload":1,"uniqueSeconds":"1"}',
    b'{"payload":NaN}',
    b'{"payload":{"a":1,"a":2}}',
    b'{"payload":1,"payload":2}',
    b'{"payload":1,"itemId":"017F22E2-79B0-7CC3-98C4-DC0C0C07398F"}',
]


def time_limits(settings: Settings, queue: str) -> dict[str, float | None]:
    query = f"SELECT item_id, time_limit_seconds FROM {settings.cassandra.keyspace}.queue_items"
    with connect(settings) as session:
        rows = session.execute(f"{query} WHERE queue = %s ALLOW FILTERING", [queue])
        return {str(row.item_id): row.time_limit_seconds for row in rows}


def test_items_are_enqueued_over_http(broker: Settings) -> None:
    queue = f"http-{uuid.uuid4().hex}"
    with running(broker) as ingress:
        path = f"/queues/{queue}/items"
        one = ingress.client.post(path, json={"payload": {"n": 1}, "key": "k"})
        several = ingress.client.post(
            path, json=[{"payload": n, "delaySeconds": 60, "timeLimitSeconds": n + 0.5} for n in range(40)]
        )
        item_id = one.json()["itemId"]
        again = ingress.client.post(path, json={"payload": {"n": 1}, "key": "k", "itemId": item_id})
        refused = [ingress.client.post(path, content=body) for body in REFUSED_ITEMS]
        metrics = ingress.metrics()
    assert (one.status_code, several.status_code, again.status_code) == (202, 202, 202)
    assert again.json()["itemId"] == item_id
    assert {answer.status_code for answer in refused} == {400}
    state = inspect(broker, queue)
    assert (state.received, state.delayed) == (41, 40)
    assert time_limits(broker, queue) == {item_id: None} | {i: n + 0.5 for n, i in enumerate(several.json()["itemIds"])}
    assert metrics["writetime_ingress_items_enqueued_total"] == 42
    assert metrics["writetime_ingress_queue_requests_total/400"] == len(refused)


def test_an_item_is_awaited_and_cancelled_and_a_queue_paused_over_http(broker: Settings) -> None:
    queue = f"http-{uuid.uuid4().hex}"
    with running(broker) as ingress:
        client, path = ingress.client, f"/queues/{queue}/items"
        good, bad = client.post(path, json=[{"payload": n, "key": "k"} for n in (1, 2)]).json()["itemIds"]
        assert client.put(f"/queues/{queue}/pause").json() == {"paused": True, "changed": True}
        assert inspect(broker, queue).paused
        assert client.delete(f"{path}/{bad}").json() == {"itemId": bad, "status": "cancelling", "attempts": 0}
        assert client.delete(f"/queues/{queue}/pause").json() == {"paused": False, "changed": True}
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(client.get, f"{path}/{good}?wait=60&key=k")
            assert Worker(broker, {queue: lambda item: [item.payload]}).run(until_idle=True) == {"completed": 1}
            assert waiting.result().json() == {"itemId": good, "status": "completed", "attempts": 1, "result": [1]}
        assert client.delete(f"{path}/{good}").json()["status"] == "completed"
        assert client.get(f"{path}/{bad}").json()["status"] == "cancelled"
        client.post(path, json=[{"payload": n, "key": "k"} for n in (1, 2)])
        named = [{"payload": n, "key": "l", "uniqueName": "report"} for n in (1, 2)]
        ids = [client.post(path, json=item).json()["itemId"] for item in named]
        assert ids == [ids[0]] * 2
        assert client.post(path, json=named).json()["itemIds"] == ids
        assert client.delete(path).status_code == 400
        assert client.delete(f"{path}?olderThanSeconds=3600").json() == {"cancelling": 0}
        assert client.delete(f"{path}?key=k").json() == {"cancelling": 2}
        assert client.post(f"/queues/{queue}/redrive?error=x").json() == {"redriven": 0}


def test_an_event_is_sent_over_http(broker: Settings) -> None:
    queue = f"http-{uuid.uuid4().hex}"

    async def handle(item: Item) -> Any:
        await item.sleep("nap", 1)
        return [await item.wait_event("paid", 600), await item.wait_event("other", 1)]

    with running(broker) as ingress, ThreadPoolExecutor() as pool:
        client, path = ingress.client, f"/queues/{queue}/items"
        item_id = client.post(path, json={"payload": 1}).json()["itemId"]
        assert client.put(f"{path}/{item_id}/events/other", content="null").json() == {"sent": True}
        working = pool.submit(Worker(broker, {queue: handle}).run, until_idle=True)
        until(lambda: client.get(f"{path}/{item_id}").json()["status"] == "sleeping")
        assert client.put(f"{path}/{item_id}/events/paid", json={"by": "ada"}).json() == {"sent": True}
        assert working.result() == {"completed": 1}
        found = client.get(f"{path}/{item_id}?wait=60").json()
        assert found == {"itemId": item_id, "status": "completed", "attempts": 1, "result": [{"by": "ada"}, None]}
        assert client.put(f"{path}/{item_id}/events/late", json=1).json() == {"sent": False}
        assert client.put(f"{path}/7/events/late", json=1).status_code == 400


REFUSED_SCHEDULES = [
    {},
    [],
    {"cron": 1},
    {"cron": "0 0 30 2 *"},
    {"cron": "* * * * *", "colour": 1},
    {"cron": "* * * * *", "zone": "Europe/Atlantis"},
    {"cron": "* * * * *", "zone": 1},
    {"cron": "* * * * *", "key": ""},
    {"cron": "* * * * *", "key": 1},
    {"cron": "* * * * *", "payload": [1]},
    {"cron": "* * * * *", "payload": {"slot": 1}},
    {"cron": "* * * * *", "timeLimitSeconds": True},
    {"cron": "* * * * *", "timeLimitSeconds": 0},
]


def test_a_schedule_is_stored_over_http(broker: Settings) -> None:
    queue = f"http-{uuid.uuid4().hex}"
    with running(broker) as ingress:
        client, path = ingress.client, f"/queues/{queue}/schedules"
        client.post(f"/queues/{queue}/items", json={"payload": 1})
        yearly = {"cron": "30 2 1 1 *", "zone": "Asia/Kolkata", "payload": {"a": [1]}, "timeLimitSeconds": 2.5}
        answers = [client.put(f"{path}/{name}", json=yearly).json() for name in ("a b", "a b", "c")]
        assert answers == [{"scheduled": True, "changed": changed} for changed in (True, False, True)]
        assert {client.put(f"{path}/a b", json=body).status_code for body in REFUSED_SCHEDULES} == {400}
        assert client.delete(f"{path}/c").json() == {"scheduled": False, "changed": True}
        assert client.delete(f"{path}/c").json() == {"scheduled": False, "changed": False}
        [found] = client.get(path).json()["schedules"]
    assert found.pop("nextSlot").endswith("-01-01T02:30:00+05:30")
    assert found == {"name": "a b", **yearly}
    assert schedules(broker, queue)[0].schedule.time_limit_seconds == 2.5


@pytest.mark.parametrize(("error", "status"), [(OperationTimedOut(), 503), (RuntimeError("a bug"), 500)])
def test_a_database_that_fails_at_the_first_item_is_queried_again(
    broker: Settings, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    """Such as one that does not answer in time while the statements are prepared. No session of a failure stays."""
    left, sessions = [error, error], list[Session]()
    prepared = QueueTables.__init__

    def fail(tables: QueueTables, session: Session, settings: Settings) -> None:
        sessions.append(session)
        if left:
            raise left.pop()
        prepared(tables, session, settings)

    monkeypatch.setattr(QueueTables, "__init__", fail)
    with running(broker) as ingress:
        path = f"/queues/http-{uuid.uuid4().hex}/items"
        answers = [ingress.client.post(path, json={"payload": 1}) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [status, status, 202, 202]
        assert [session.is_shutdown for session in sessions] == [True, True, False]
    assert answers[0].json()["itemIds"] == []
    assert all(session.is_shutdown for session in sessions)


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
