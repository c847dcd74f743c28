"""Calls about work items, their queues and their schedules, against a real database."""

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from cassandra import OperationTimedOut
from cassandra.cluster import Session

from tests.http.serving import (
    running,
    until,
)
from writetime.clients.database import connect
from writetime.core.config import Settings
from writetime.workqueue import Item, Worker, inspect, schedules
from writetime.workqueue.queue_tables import QueueTables

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
