"""Messages that no program of the platform sends, made from valid ones or from scratch."""

import json
import random
from collections.abc import Sequence
from typing import Any

from tests.attack.mutate import mutate
from writetime.wire.change_messages import HEADER_BYTES

LARGE = 700_000
Value = bytes | None


class NotUtf8(str):
    """The name of a header as a client in another language may send it: bytes that are not UTF-8."""

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        """Return the bytes to send."""
        return b"trace-\xff\xfe"


def headers(r: random.Random) -> list[tuple[str, Any]]:
    """Make headers of a message."""
    return r.choice(
        [
            *([[]] * 4),
            [(NotUtf8("x"), b"1")],
            [("", b""), ("x", None), ("x", b"\xff" * 50)],
            [("first-seen", b"\0"), ("redriven", b"often"), ("dead-letter.offset", b"\xff")],
            [("h", b"x" * 1000)] * 100,
        ]
    )


def key(r: random.Random, sound: Value) -> Value:
    """Make a key."""
    return r.choice([sound, sound, None, b"", b"\xff\xfe", r.randbytes(8), b"x" * 5000, mutate(sound or b"x", r)])


def avro(r: random.Random, sound: bytes, others: Sequence[bytes], head_bytes: int = HEADER_BYTES) -> tuple[str, Value]:
    """Make a value of a sound one in Avro and those of other tables; name its kind.

    Args:
        r: chooses.
        sound: a value.
        others: values of other tables.
        head_bytes: how long the header of values is, which names the schema.
    """
    head, body = sound[:head_bytes], sound[head_bytes:]
    at = r.randrange(len(body) + 1)
    match r.choice(["changed", "changed", "body", "body", "body", "number", "cut", "other", "schema", "garbage"]):
        case "changed":
            return "changed bytes", mutate(sound, r)
        case "body":
            return "changed bytes", head + mutate(body, r)
        case "number":
            # A length, a count or a branch of a union that cannot be.
            numbers = [(1 << 63) - 1, 1 << 62, 1 << 40, 1 << 31, (1 << 64) - 1, 3, 1 << 20]
            return "impossible numbers", head + body[:at] + _varint(r.choice(numbers)) + body[at + 1 :]
        case "cut":
            return "cut", (head + body)[: r.randrange(len(sound))] if r.random() < 0.7 else sound + r.choice(others)
        case "other":
            other = r.choice(others)
            return "other tables' schemas", r.choice([other, other[:head_bytes] + body, head + other[head_bytes:]])
        case "schema":
            heads = [b"\xc3\x01" + r.randbytes(8), b"\x00" + r.randbytes(4), b"\x00\x00\x00\x00\x01", b"\xc3\x01"]
            return "unknown schemas", r.choice(heads) + body
    return "garbage", garbage(r, head)


def garbage(r: random.Random, head: bytes = b"") -> Value:
    """Make a message that no program sends."""
    return r.choice(
        [
            *(None, b"", b"\0", b"{}", b"null", b"[" * 5000, b'{"type": "record"}', b"\xff" * 20, head),
            r.randbytes(r.randrange(1, 200)),
            head + r.randbytes(r.randrange(1, 200)),
            head + r.choice([b"\0", b"\xff", b"\x80", b"\x02"]) * LARGE,
            r.randbytes(LARGE),
        ]
    )


def _varint(number: int) -> bytes:
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


_LEAVES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1e308,
    1 << 62,
    1 << 63,
    10**30,
    "",
    "x",
    "\0",
    "\ud800",
    [],
    {},
    [[]],
    0.5,
)


def json_text(r: random.Random, sound: Any) -> tuple[str, Value]:
    """Make a value out of a sound JSON value; name its kind."""
    text = json.dumps(sound).encode()
    match r.choice(["changed", "fields", "fields", "fields", "nested", "garbage"]):
        case "changed":
            return "changed bytes", mutate(text, r)
        case "fields":
            return "wrong fields", json.dumps(spoiled(r, sound)).encode()
        case "nested":
            depth = r.choice([100, 990, 5000, 50_000])
            nested = r.choice([b"[" * depth, b"[" * depth + b"]" * depth, b'{"tables":' * depth, b"{" * depth])
            return "nested", nested
    return "garbage", garbage(r)


def spoiled(r: random.Random, value: Any) -> Any:
    """Return a JSON value with another one at some place of it."""
    if isinstance(value, dict) and value and r.random() < 0.9:
        name = r.choice(list(value))
        rest = {n: v for n, v in value.items() if n != name}
        match r.choice(["inside", "inside", "inside", "gone", "renamed"]):
            case "inside":
                return rest | {name: spoiled(r, value[name])}
            case "gone":
                return rest
        return rest | {r.choice(["", "unknown", "\0", name.upper()]): value[name]}
    if isinstance(value, list) and value and r.random() < 0.9:
        at = r.randrange(len(value))
        more = r.choice([[spoiled(r, value[at])], [spoiled(r, value[at])], [], [value[at]] * 2])
        return [*value[:at], *more, *value[at + 1 :]]
    if isinstance(value, str) and value and r.random() < 0.5:
        return mutate(value.encode(), r).decode(errors="replace")
    return r.choice(_LEAVES)
