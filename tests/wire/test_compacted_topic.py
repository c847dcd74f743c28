"""A reader of a compacted topic with many messages per key."""

from typing import Any

import pytest

from writetime.core import config
from writetime.wire import publishing
from writetime.wire.publishing import CompactedTopic


class Message:
    """A delivered message."""

    def __init__(self, offset: int, key: bytes, value: bytes | None) -> None:
        self._place, self._key, self._value = (0, offset), key, value

    def partition(self) -> int:
        return self._place[0]

    def offset(self) -> int:
        return self._place[1]

    def key(self) -> bytes:
        return self._key

    def value(self) -> bytes | None:
        return self._value


def test_only_the_last_message_of_a_key_is_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [(b"a", b"1"), (b"b", b"?"), (b"a", b"?"), (b"c", b"2"), (b"a", b"3"), (b"c", None), (b"d", b"x")]
    converted: list[tuple[bytes, bytes | None]] = []

    def read(key: bytes, value: bytes | None) -> int | None:
        converted.append((key, value))
        return None if value is None else int(value)

    def messages(_: Any, __: str, starts: dict[int, int], ends: dict[int, int]) -> list[Message]:
        return [Message(n, *values[n]) for n in range(starts[0], ends[0])]

    monkeypatch.setattr(publishing, "messages_between", messages)
    monkeypatch.setattr(publishing, "end_offsets", lambda *_: {0: len(values)})
    monkeypatch.setattr(publishing, "topic_ids", lambda *_: {"t": 1})
    topic = CompactedTopic(config.load(), "t", read)
    assert topic.read_on() == [(4, 3), (5, None)]
    assert converted == [values[1], values[4], values[5], values[6]]
    assert topic.skipped == 2
    values.append((b"a", b"4"))
    assert topic.read_on() == [(7, 4)]
