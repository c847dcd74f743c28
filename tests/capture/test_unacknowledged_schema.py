"""A broker that dies between the creation of a topic and the acknowledgement of its schema."""

import threading

import pytest

from tests.support.made import SCHEMA
from writetime.capture import change_publisher
from writetime.capture.change_publisher import ChangePublisher
from writetime.core import config
from writetime.core.config import Settings
from writetime.core.errors import Transient
from writetime.wire import publishing


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings of a broker that has created a topic, and died. The client would wait for it without a time limit."""
    monkeypatch.setattr(change_publisher, "ensure_schemas_topic", lambda _: None)
    monkeypatch.setattr(change_publisher, "ensure_topics", lambda *_: [])
    monkeypatch.setattr(publishing, "TIMEOUT_SECONDS", 1.0)
    return config.load(kafka={"bootstrap_servers": "127.0.0.1:9"})


@pytest.mark.parametrize("is_followed", [False, True], ids=["first", "after a fault"])
def test_the_wait_ends_at_a_stop(settings: Settings, *, is_followed: bool) -> None:
    stop = threading.Event()
    publisher = ChangePublisher(settings, stop=stop)
    if is_followed:
        publisher = publisher.after(Transient("the broker died"))
    found: list[Exception] = []

    def announce() -> None:
        try:
            publisher.announce_all([SCHEMA], {})
        except Transient as e:
            found.append(e)

    thread = threading.Thread(target=announce, daemon=True)
    thread.start()
    thread.join(2)
    assert thread.is_alive()
    stop.set()
    thread.join(10)
    assert not thread.is_alive()
    assert "has not acknowledged the schema of shop.items" in str(found)


def test_the_wait_ends_without_a_stop(settings: Settings) -> None:
    """No stop reaches a task of Spark. The program that runs the tasks waits for the broker, or ends."""
    found: list[str] = []

    def announce() -> None:
        try:
            ChangePublisher(settings).announce(SCHEMA)
        except Transient as e:
            found.append(str(e))

    thread = threading.Thread(target=announce, daemon=True)
    thread.start()
    thread.join(60)
    assert found == ["changes cannot be published: the broker has acknowledged none of 1 message for 1 s"]
