"""The OpenAPI document of the ingress, against its answers with real servers and without one."""

import socket
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import httpx

from tests.http.serving import (
    EVENT,
    NO_BROKER,
    NO_DATABASE,
    Running,
    changed,
    cut_off_from,
    running,
    until,
)
from writetime.core.config import Settings
from writetime.servers.process import free_port

SILENT = free_port()

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
