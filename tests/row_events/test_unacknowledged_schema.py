"""A broker that dies between the creation of a topic of row events and the acknowledgement of its schema."""

import time

import pytest

from tests.support.made import SCHEMA
from writetime.core import config
from writetime.core.config import Settings
from writetime.core.errors import Transient
from writetime.row_events import publish


class _Encoding(publish.EventPublisher):
    """A publisher that has found its topic, and has encoded no event."""

    def __init__(self, settings: Settings) -> None:
        vars(self).update(_settings=settings, _what="row events cannot be published", _topic="topic", _headers={})

    def encode(self) -> None:
        self._header(SCHEMA, null_keys=False)


def test_it_holds_no_end_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client would wait five minutes for the broker, and `writetime follow` waits for the turn of the table."""
    monkeypatch.setattr(publish, "TIMEOUT_SECONDS", 1.0)
    publisher = _Encoding(config.load(kafka={"bootstrap_servers": "127.0.0.1:9"}, row_events={"format": "avro"}))
    began = time.monotonic()
    with pytest.raises(Transient, match="row events cannot be published"):
        publisher.encode()
    assert time.monotonic() - began < 15
