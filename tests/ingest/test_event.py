"""The event model: accepted events, their form in Kafka, and their ids.

Oracle: the event before it was encoded: our decoder reads what our encoder wrote.
"""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from writetime.ingest.event import FIRST_SEEN_HEADER, MAX_ID_BYTES, InvalidEvent, accept, decode

NOW = datetime(2013, 1, 1, 5, 15, 0, 123_999, tzinfo=UTC)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40).filter(str.strip)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
# A day from either end of Python's range, an offset cannot leave the calendar.
instants = st.datetimes(
    datetime(1, 1, 2),
    datetime(9999, 12, 30),
    timezones=st.timezones() | st.just(timezone(timedelta(hours=5, minutes=45))),
)
bodies = st.fixed_dictionaries(
    {"userId": names, "eventType": names},
    optional={"payload": json_values, "timestamp": instants.map(datetime.isoformat)},
)
keys = st.none() | st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=255)


@given(bodies, keys)
def test_an_event_survives_kafka(body: dict[str, Any], key: str | None) -> None:
    event = accept(body, key, NOW)
    headers = [(FIRST_SEEN_HEADER, b"1")] if event.first_seen else None
    assert decode(event.value(), headers) == event
    assert orjson.loads(event.payload) == body.get("payload")
    assert event.key().decode() == body["userId"]


@given(bodies, keys.filter(bool), st.timedeltas(timedelta(0), timedelta(days=30)))
def test_a_repeated_call_has_the_same_id(body: dict[str, Any], key: str, later: timedelta) -> None:
    first, again = accept(body, key, NOW), accept(body, key, NOW + later)
    assert first.event_id == again.event_id
    assert first.first_seen == ("timestamp" not in body)


@given(bodies)
def test_without_a_key_every_call_is_a_new_event(body: dict[str, Any]) -> None:
    first, again = accept(body, None, NOW), accept(body, None, NOW)
    assert first.event_id != again.event_id
    assert not first.first_seen


def test_the_id_depends_on_user_key_and_timestamp() -> None:
    body = {"userId": "u", "eventType": "t"}
    timed = {**body, "timestamp": "2013-01-01T05:15:00Z"}
    other_time = {**body, "timestamp": "2013-01-01T05:15:00.001Z"}
    events = [
        accept(body, "k", NOW),
        accept(body, "l", NOW),
        accept({**body, "userId": "v"}, "k", NOW),
        accept(timed, "k", NOW),
        accept(other_time, "k", NOW),
    ]
    assert len({event.event_id for event in events}) == len(events)


def test_ids_stay_the_same_in_every_version() -> None:
    event = accept({"userId": "u", "eventType": "t", "timestamp": "2013-01-01T05:15:00Z"}, "k", NOW)
    assert str(event.event_id) == "8e728626-cb7f-5c4b-8049-32c340897a45"


def test_the_value_on_kafka() -> None:
    event = accept({"userId": "ü", "eventType": "t", "payload": {"a": [1]}}, "k", NOW)
    assert orjson.loads(event.value()) == {
        "eventId": str(event.event_id),
        "userId": "ü",
        "eventType": "t",
        "timestamp": "2013-01-01T05:15:00.123Z",
        "payload": {"a": [1]},
    }


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2013-01-01T05:15:00Z", datetime(2013, 1, 1, 5, 15, tzinfo=UTC)),
        ("2013-01-01T05:15:00.123999+05:45", datetime(2012, 12, 31, 23, 30, 0, 123_000, tzinfo=UTC)),
    ],
)
def test_timestamps_are_milliseconds_in_utc(text: str, instant: datetime) -> None:
    assert accept({"userId": "u", "eventType": "t", "timestamp": text}, None, NOW).timestamp == instant


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ([], "must be a JSON object"),
        ({"eventType": "t"}, "userId must be"),
        ({"userId": " ", "eventType": "t"}, "userId must be"),
        ({"userId": 7, "eventType": "t"}, "userId must be"),
        ({"userId": "u"}, "eventType must be"),
        ({"userId": "u\0", "eventType": "t"}, "userId must not contain a NUL"),
        ({"userId": "u", "eventType": "é" * (MAX_ID_BYTES // 2 + 1)}, "eventType is longer"),
        ({"userId": "u", "eventType": "t", "eventId": "mine"}, "unknown field 'eventId'"),
        ({"userId": "u", "eventType": "t", "timestamp": None}, "timestamp must be"),
        ({"userId": "u", "eventType": "t", "timestamp": "2013-01-01T05:15:00"}, "timestamp must be"),
        ({"userId": "u", "eventType": "t", "timestamp": "0001-01-01T00:00:00+14:00"}, "timestamp must be"),
    ],
)
def test_invalid_events(body: Any, reason: str) -> None:
    with pytest.raises(InvalidEvent, match=reason):
        accept(body, None, NOW)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "no value"),
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"userId":"u","eventType":"t","timestamp":"2013-01-01T05:15:00Z"}', "eventId must be"),
        (b'{"eventId":"x","userId":"u","eventType":"t","timestamp":"2013-01-01T05:15:00Z"}', "eventId is not a UUID"),
        (b'{"eventId":"5f0b1c5e-52f7-5a0e-9d0f-0a4c3f1f6c11","userId":"u","eventType":"t"}', "timestamp is missing"),
    ],
)
def test_messages_that_are_not_events(value: bytes | None, reason: str) -> None:
    with pytest.raises(InvalidEvent, match=reason):
        decode(value)


def test_nesting_too_deep_to_write_is_an_invalid_event() -> None:
    deep = "[" * 400 + "]" * 400
    text = (
        '{"eventId":"6f0b1c5e-52f7-5a0e-9d0f-0a4c3f1f6c11","userId":"u","eventType":"t",'
        f'"timestamp":"2020-01-01T00:00:00Z","payload":{deep}}}'
    )
    with pytest.raises(InvalidEvent, match="payload cannot be written"):
        decode(text.encode())
