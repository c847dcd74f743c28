"""A message counts as unreadable, which an operator may skip, only if the cause is in the message."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Message

from tests.support.made import SCHEMA
from writetime.core.errors import Transient, WritetimeError
from writetime.landing import tasks
from writetime.wire.change_messages import ChangeDecoder


def message(offset: int) -> Message:
    place = {"topic": "changes.shop.items", "partition": 1, "offset": offset, "value": b"%d" % offset}
    return cast("Message", SimpleNamespace(**{name: lambda value=value: value for name, value in place.items()}))


def read(monkeypatch: pytest.MonkeyPatch, of_all: Exception, of_second: Exception) -> None:
    """Read three messages, of which the second raises an error."""

    def decode(_decoder: Any, _schema: Any, values: list[bytes]) -> None:
        if len(values) > 1 or values == [b"1"]:
            raise of_all if len(values) > 1 else of_second

    monkeypatch.setattr(tasks, "decode", decode)
    tasks._decoded(cast("ChangeDecoder", None), SCHEMA, [message(offset) for offset in range(3)])


def test_a_message_with_a_fault_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    named = r"partition 1, offset 1: ValueError: bad\..* --skip changes\.shop\.items/1@1"
    with pytest.raises(WritetimeError, match=named):
        read(monkeypatch, ValueError("bad"), ValueError("bad"))


@pytest.mark.parametrize("error", [MemoryError(), Transient("no answer")])
@pytest.mark.parametrize("of_all", [None, ValueError("bad")])
def test_an_outage_names_no_message(
    monkeypatch: pytest.MonkeyPatch, error: Exception, of_all: Exception | None
) -> None:
    with pytest.raises(type(error)) as raised:
        read(monkeypatch, of_all or error, error)
    assert raised.value is error
