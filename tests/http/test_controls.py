"""Calls that control a queue, refused before anything is done. Oracle: the calls that reach the queue."""

from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, Counter
from starlette.applications import Starlette
from starlette.testclient import TestClient

from writetime.core.config import Settings
from writetime.http.protocol import Gate
from writetime.http.queue_controls import ControlsEndpoint
from writetime.http.work_items import ItemsEndpoint

ITEM_ID = "0192f7a4-0000-7000-8000-000000000000"
MISSPELT = [
    ("DELETE", "/queues/mails/items?key=ada&older_than_seconds=60"),
    ("DELETE", "/queues/mails/items?all=true&olderthanseconds=60"),
    ("DELETE", f"/queues/mails/items/{ITEM_ID}?waits=1"),
    ("PUT", "/queues/mails/pause?Key=ada"),
    ("DELETE", "/queues/mails/pause?keys=ada"),
    ("POST", "/queues/mails/redrive?Error=Timeout"),
]


class Items:
    """The endpoint of items, whose connection records the calls that reach the queue."""

    def __init__(self) -> None:
        self.requests = Counter("requests", "By status.", ["status"], registry=CollectorRegistry())
        self.called: list[tuple[object, ...]] = []
        self.controls = self.tables = self

    async def connected(self) -> "Items":
        return self

    async def pause(self, *given: object) -> bool:
        self.called.append(given)
        return True

    async def cancel_all(self, queue: str, **given: object) -> int:
        self.called.append((queue, *given.values()))
        return 1

    def __getattr__(self, name: str) -> Any:
        return self.pause


@pytest.fixture
def items() -> Items:
    return Items()


@pytest.fixture
def client(items: Items) -> TestClient:
    endpoint = ControlsEndpoint(cast(ItemsEndpoint, items), Settings(), cast(Gate, None))
    return TestClient(Starlette(routes=endpoint.routes))


@pytest.mark.parametrize(("method", "path"), MISSPELT)
def test_a_misspelt_parameter_widens_no_call(items: Items, client: TestClient, method: str, path: str) -> None:
    answer = client.request(method, path)
    assert (answer.status_code, items.called) == (400, [])
    assert "unknown parameter" in answer.json()["reason"]


def test_known_parameters_reach_the_queue(items: Items, client: TestClient) -> None:
    assert client.put("/queues/mails/pause?key=ada").json() == {"paused": True, "changed": True}
    assert client.delete("/queues/mails/items?key=ada&olderThanSeconds=60&all=true").json() == {"cancelling": 1}
    assert items.called == [("mails", "ada"), ("mails", "ada", 60.0)]
