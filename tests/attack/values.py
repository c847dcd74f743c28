"""JSON bodies of calls: valid ones, and ones with a fault in any place. Each records whether it must be accepted."""

import json
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MAX_ID_BYTES = 1024
MAX_DELAY_SECONDS = MAX_TIME_LIMIT_SECONDS = 366 * 86_400
# So deep may a payload be that is accepted for sure, and from there on it may be refused.
DEEP = 200
TOO_DEEP = 300


@dataclass(frozen=True)
class Field:
    """The JSON text of a value, whether it breaks a rule, and the value."""

    text: str
    is_sound: bool = True
    value: Any = None


@dataclass(frozen=True)
class Body:
    """A body, whether it is to be accepted, and the events of it that are in the topic then."""

    data: bytes
    is_sound: bool
    events: tuple[dict[str, Any], ...] = ()
    is_batch: bool = False


def _sound(value: Any) -> Field:
    return Field(json.dumps(value), True, value)


def _wrong(*texts: str) -> list[Field]:
    return [Field(text, False) for text in texts]


_ABSENT = Field("", False)
# Values that are neither text nor a number, and bytes that are not JSON.
_NO_TEXT = _wrong("7", "null", "true", "[]", "{}", '["a"]', "-0.0", "1e300")
_NO_JSON = _wrong(
    *("NaN", "Infinity", "-Infinity", "1e999", "-1e400", "01", "+1", ".5", "1.", "0x10", "'a'", "nul", "undefined", ""),
    *('"\\ud800"', '"\\udc00\\ud800"', '"\\x41"', '"\\u12"', '"a\tb"', '"a', "[1,]", '{"a":1,}', "[1 2]", '{"a" 1}'),
    *("/* */ 1", "[", "]", "}", "{" * 5000, "[" * 100_000),
)
_LONG = "x" * (MAX_ID_BYTES + 1)
_NO_ID = [*_NO_TEXT, *_wrong('""', '" "', '"\\t\\n"', '"a\\u0000b"', f'"{_LONG}"', json.dumps("é" * MAX_ID_BYTES))]
_TIMES = [
    *map(_sound, ("2013-01-01T05:15:00Z", "2013-01-01T05:15:00.123456+02:00", "1969-12-31T23:59:59.999-11:30")),
    *map(_sound, ("0001-01-02T00:00:00Z", "9999-12-30T00:00:00Z", "2024-02-29T12:00:00+00:00")),
]
_NO_TIMES = [
    *_NO_TEXT,
    *_wrong('""', '"yesterday"', '"2013-01-01T05:15:00"', '"2013-13-01T00:00:00Z"', '"2023-02-29T00:00:00Z"'),
    *_wrong('"9999-12-31T23:59:59-23:00"', '"0001-01-01T00:00:00+10:00"', '"2013-01-01T00:00:00+99:00"', '"\\u0000"'),
]
_NUMBERS = (0, -1, 1 << 53, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1, 1 << 64, 10**30, 0.5, -0.0, 1e308, 5e-324, 1e-7)
_TEXTS = ("", "a", "é", "中文", "😀", '"', "\\", "\0", "\x1f", "\ufeff", "\ufffe", "\u2028", "</script>", "a" * 300)


def payload(r: random.Random, depth: int = 3) -> Any:
    """Return a JSON value."""
    kind = r.choice(["number", "text", "constant", "list", "object"] if depth else ["number", "text"])
    match kind:
        case "number":
            return r.choice([*_NUMBERS, r.uniform(-1e9, 1e9), r.randint(-(10**12), 10**12)])
        case "text":
            return "".join(r.choices(_TEXTS, k=r.choice([0, 1, 1, 3])))
        case "constant":
            return r.choice([None, True, False])
        case "list":
            return [payload(r, depth - 1) for _ in range(r.randrange(4))]
    return {payload_name(r): payload(r, depth - 1) for _ in range(r.randrange(4))}


def payload_name(r: random.Random) -> str:
    """Return the name of a field in a payload."""
    return r.choice(["a", "b", "userId", "eventId", "", "é", "\0", "a b", "$", "__proto__"])


def _payload_field(r: random.Random, *, is_sound: bool) -> Field:
    if not is_sound:
        begin, end = r.choice([("[", "]"), ('{"a":', "}")])
        depth = r.choice([TOO_DEEP, 400, 990, 1024, 5000, 50_000])
        return r.choice([*_NO_JSON, *[Field(begin * depth + "1" + end * depth, False)] * 8])
    if r.random() < 0.1:
        text = "[" * DEEP + "]" * DEEP
        return Field(text, True, json.loads(text))
    return _sound(payload(r))


def _object(r: random.Random, fields: dict[str, Field]) -> Field:
    names = [name for name, field in fields.items() if field is not _ABSENT]
    r.shuffle(names)
    space = r.choice(["", "", " ", "\r\n\t"])
    text = ",".join(f"{space}{json.dumps(name)}{space}:{space}{fields[name].text}" for name in names)
    value = {name: field.value for name, field in fields.items()}
    return Field("{" + text + space + "}", all(f.is_sound for f in fields.values()), value)


def _event(r: random.Random, user: str, *, is_sound: bool) -> Field:
    """Make an event; a wrong one has one or more faults."""
    fields = {
        "userId": _sound(user + r.choice(["", "é", "中", " ", "😀", "\n", '"', "x" * 900])),
        "eventType": _sound(r.choice(["click", "é", "a b", "\x7f", "x" * MAX_ID_BYTES])),
    }
    if r.random() < 0.5:
        fields["payload"] = _payload_field(r, is_sound=True)
    if r.random() < 0.4:
        fields["timestamp"] = r.choice(_TIMES)
    if not is_sound:
        for _ in range(r.choice([1, 1, 2])):
            _spoil_event(r, fields)
    return _object(r, fields)


def _spoil_event(r: random.Random, fields: dict[str, Field]) -> None:
    match r.choice(["text", "payload", "timestamp", "unknown", "missing", "no JSON"]):
        case "text":
            fields[r.choice(["userId", "eventType"])] = r.choice(_NO_ID)
        case "payload":
            fields["payload"] = _payload_field(r, is_sound=False)
        case "timestamp":
            fields["timestamp"] = r.choice(_NO_TIMES)
        case "unknown":
            fields[r.choice(["eventId", "userid", "", "é", "a" * 5000, "\0"])] = Field("1", False)
        case "missing":
            fields[r.choice(["userId", "eventType"])] = _ABSENT
        case _:
            fields[r.choice(list(fields))] = r.choice(_NO_JSON)


def uuid7(r: random.Random, at: float) -> str:
    """Return a UUID of version 7 of an instant (seconds)."""
    number = int(at * 1000) << 80 | 7 << 76 | r.getrandbits(12) << 64 | 2 << 62 | r.getrandbits(62)
    return str(uuid.UUID(int=number))


def _item(r: random.Random, *, is_sound: bool) -> Field:
    """Make a work item; a wrong one has one or more faults."""
    fields = {"payload": _payload_field(r, is_sound=True)}
    if r.random() < 0.4:
        fields["key"] = r.choice([_sound("k"), _sound("é" * (MAX_ID_BYTES // 2)), Field("null"), _sound("a b\n")])
    if r.random() < 0.4:
        fields["delaySeconds"] = _sound(r.choice([0, 0.0, -0.0, 0.001, 1, 3.5, MAX_DELAY_SECONDS]))
    elif r.random() < 0.4:
        fields["itemId"] = r.choice([Field("null"), _sound(uuid7(r, time.time()))])
    if r.random() < 0.4:
        limits = [1e-9, 1, 3.5, MAX_TIME_LIMIT_SECONDS]
        fields["timeLimitSeconds"] = r.choice([Field("null"), _sound(r.choice(limits))])
    if not is_sound:
        for _ in range(r.choice([1, 1, 2])):
            _spoil_item(r, fields)
    return _object(r, fields)


_NO_DELAYS = _wrong(
    *("-1", "-1e-300", str(MAX_DELAY_SECONDS + 1), "2.6e11", "9e18", "9223372036854775808", "1e308", "1" + "0" * 300),
    *("null", "true", '"1"', "[]", "{}", "-9e18"),
)
_NO_TIME_LIMITS = _wrong(
    *("-1", "0", "-0.0", str(MAX_TIME_LIMIT_SECONDS + 1), "9223372036854775808", "1e308", "1" + "0" * 300),
    *("true", '"1"', "[]", "{}"),
)
_NO_ITEM_IDS = _wrong(
    *("7", "true", "[]", "{}", '""', '"x"', '"00000000-0000-0000-0000-000000000000"', "1e300"),
    '"3f2504e0-4f89-41d3-9a0c-0305e82c3301"',
    '"ffffffff-ffff-7fff-bfff-ffffffffffff"',
)
_NO_KEYS = _wrong("7", "true", "[]", "{}", '""', json.dumps(_LONG), '["k"]')


def _spoil_item(r: random.Random, fields: dict[str, Field]) -> None:
    times = [("delaySeconds", _NO_DELAYS), ("timeLimitSeconds", _NO_TIME_LIMITS)]
    wrong = [*times, ("itemId", _NO_ITEM_IDS), ("key", _NO_KEYS), ("", _NO_JSON)]
    name, choices = r.choice(wrong)
    kind = r.choice(["field", "field", "field", "payload", "unknown", "missing"])
    if kind == "missing":
        fields["payload"] = _ABSENT
    elif kind == "payload":
        fields["payload"] = _payload_field(r, is_sound=False)
    elif kind == "unknown":
        fields[r.choice(["id", "delayseconds", "", "a" * 5000])] = Field("1", False)
    else:
        fields[name or r.choice(list(fields))] = r.choice(choices)


def _whole(r: random.Random, make: Callable[[int, bool], Field]) -> Body:
    """Make a body of one object, or of several, or one that is neither."""
    is_sound = r.random() < 0.4
    if not is_sound and r.random() < 0.25:
        return Body(_no_body(r), False)
    if r.random() < 0.7:
        made = [make(0, is_sound)]
        text, is_batch = made[0].text, False
    else:
        count = r.choice([1, 2, 5, 40])
        at_fault = set() if is_sound else {r.randrange(count)}
        made = [make(n, n not in at_fault) for n in range(count)]
        text, is_batch = "[" + ",".join(one.text for one in made) + "]", True
    events = tuple(one.value for one in made) if is_sound else ()
    return Body(text.encode(), is_sound, events, is_batch)


def _no_body(r: random.Random) -> bytes:
    sound = b'{"userId":"a","eventType":"b"}'
    return r.choice(
        [
            *(b"", b" ", b"\0", b"null", b"7", b'"x"', b"true", b"[]", b"[[]]", b"[null]", b"[1,2]", b"{}", b"[{}]"),
            *(b"\xef\xbb\xbf" + sound, sound.decode().encode("utf-16"), b"\xff" + sound, sound[:-1], sound + sound),
            *(b'{"userId":"\xff","eventType":"b"}', b'{"userId":"\xed\xa0\x80","eventType":"b"}', sound + b","),
            *(b"userId=a&eventType=b", b"[" * 2000, b"{" * 2000, b"[" * 300_000, r.randbytes(r.randrange(1, 300))),
        ]
    )


def event_body(r: random.Random, user: str) -> Body:
    """Make a body of events of users whose names begin so."""
    return _whole(r, lambda n, is_sound: _event(r, f"{user}-{n}", is_sound=is_sound))


def item_body(r: random.Random) -> Body:
    """Make a body of work items."""
    return _whole(r, lambda _, is_sound: _item(r, is_sound=is_sound))


def is_same(sent: Any, stored: Any) -> bool:
    """Return whether a payload equals the sent one: whole numbers beyond 64 bits are doubles."""
    if isinstance(sent, dict) and isinstance(stored, dict):
        return sent.keys() == stored.keys() and all(is_same(sent[name], stored[name]) for name in sent)
    if isinstance(sent, list) and isinstance(stored, list):
        return len(sent) == len(stored) and all(map(is_same, sent, stored))
    if isinstance(sent, int) and not isinstance(sent, bool) and not -(1 << 63) <= sent < 1 << 64:
        return float(sent) == stored
    return type(sent) is type(stored) and sent == stored
