"""A broker that dies between the creation of a topic and the acknowledgement of its schema."""

import threading

import pytest

from tests.support.made import SCHEMA
from writetime.capture import change_publisher
from writetime.capture.change_publisher import ChangePublisher
from writetime.core import config
from writetime.core.errors import Transient
from writetime.wire import publishing


@pytest.mark.parametrize("is_followed", [False, True], ids=["first", "after a fault"])
def test_the_wait_ends_at_a_stop(monkeypatch: pytest.MonkeyPatch, *, is_followed: bool) -> None:
    """The client would wait for the broker without a time limit."""
    monkeypatch.setattr(change_publisher, "ensure_schemas_topic", lambda _: None)
    monkeypatch.setattr(change_publisher, "ensure_topics", lambda *_: [])
    monkeypatch.setattr(publishing, "TIMEOUT_SECONDS", 1.0)
    settings, stop = config.load(kafka={"bootstrap_servers": "127.0.0.1:9"}), threading.Event()
    publisher = ChangePublisher(settings, stop=stop)
    if is_followed:
        publisher = publisher.after(Transient("the broker died"))
    found: list[Exception] = []

    def announce() -> None:
        try:
            publisher.announce_all([SCHEMA])
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
