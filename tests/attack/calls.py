"""The inputs of one connection to the ingress: valid and broken calls, complete, in pieces, or cut off.

Each input follows from its number and the seed. If its answers are known, the input has them.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.attack.mutate import mutate
from tests.attack.values import Body, event_body, item_body
from writetime.http.protocol import MAX_HEADER_BYTES, MAX_HEADERS, MAX_PIPELINED

TOKEN = "a-token-of-sixteen-characters"
QUEUES = ("a", "b%20c", "%C3%A9")
# Truncated calls have separate users and queues: only these may be in the database without an acknowledgement.
CUT = "cut"
# The statuses that a call may have; 503 only if Kafka or the database does not accept it.
DOCUMENTED = frozenset({200, 202, 400, 401, 404, 405, 408, 413, 429, 431, 505})
_REFUSED = frozenset({400, 413})
AUTHORIZED = b"authorization: Bearer " + TOKEN.encode()


@dataclass(frozen=True)
class Call:
    """One call: its bytes, the statuses that it may have, and the events that are in the topic after a 202."""

    data: bytes
    statuses: frozenset[int]
    events: tuple[dict[str, Any], ...] = ()
    # Whether the connection ends with the answer.
    is_last: bool = False


@dataclass(frozen=True)
class Input:
    """The input of one connection: pieces, and the seconds that it waits after each."""

    kind: str
    pieces: tuple[tuple[bytes, float], ...]
    # The calls in it, in order; None if they are unknown.
    calls: tuple[Call, ...] | None = None
    # Whether the connection is closed, or reset, without waiting for answers.
    leaves: str = ""

    @property
    def data(self) -> bytes:
        """All bytes of it."""
        return b"".join(piece for piece, _ in self.pieces)


def make(seed: int, number: int) -> Input:
    """Make an input."""
    r = random.Random(f"{seed}/{number}")
    kinds: list[tuple[Callable[[random.Random, str], Input], int]] = [
        (_bodies, 10),
        (_pipelined, 4),
        (_heads, 8),
        (_chunks, 4),
        (_bytes, 10),
        (_pieces, 3),
        (_cut, 4),
        (_late, 1),
        (_large, 1),
    ]
    (kind,) = r.choices([k for k, _ in kinds], [w for _, w in kinds])
    return kind(r, f"n{number}")


def sentinel(name: str) -> bytes:
    """Return a call whose answer names it: all calls before it are answered before."""
    return framed(b"POST", b"/events", [AUTHORIZED], b'{"%s":1}' % name.encode())


def framed(method: bytes, path: bytes, headers: Sequence[bytes], body: bytes) -> bytes:
    """Return a call of HTTP/1.1 with the length of its body."""
    lines = [method + b" " + path + b" HTTP/1.1", b"host: test", *headers, b"content-length: %d" % len(body)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def chunked(r: random.Random, body: bytes) -> bytes:
    """Return a body as chunks."""
    parts = []
    while body:
        size = r.choice([1, 2, 7, 100, 5000, len(body)])
        part, body = body[:size], body[size:]
        extension = r.choice([b"", b"", b";a", b";a=b", b';a="b c"'])
        parts.append(b"%x%s\r\n%s\r\n" % (len(part), extension, part))
    trailers = r.choice([b"", b"", b"a: 1\r\n", b"authorization: Bearer x\r\nhost: b\r\n"])
    return b"".join([*parts, b"0\r\n", trailers, b"\r\n"])


def _whole(*calls: Call, kind: str) -> Input:
    return Input(kind, ((b"".join(call.data for call in calls), 0.0),), calls)


# --- sound HTTP -------------------------------------------------------------------------------------------------------

_OTHER_HEADERS = (
    *(b"accept: */*", b"Content-Type: application/json", b"content-type: text/plain", b"X: \xff\xfe\x80", b"x:"),
    *(b"cookie: " + b"c" * 5000, b"x: " + b" " * 300, b"expect: 100-continue", b"connection: keep-alive"),
    *(b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAA", b"te: trailers"),
    *(b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13", b"x-forwarded-for: ::1"),
    *(b"content-encoding: gzip", b"range: bytes=0-5", b"if-none-match: *", b"idempotency_key: x"),
)


def _authorization(r: random.Random) -> tuple[list[bytes], bool]:
    """Return headers, and whether they let in."""
    sound = [AUTHORIZED, b"AUTHORIZATION:bearer " + TOKEN.encode(), b"authorization: BEARER  " + TOKEN.encode() + b" "]
    if r.random() < 0.9:
        return [r.choice(sound)], True
    wrong = [b"basic " + TOKEN.encode(), b"Bearer " + TOKEN[:-1].encode(), b"Bearer", b"", b"Bearer \xff\xfe" * 50]
    return r.choice([[], [b"authorization: " + r.choice(wrong)], [b"x-authorization: Bearer " + TOKEN.encode()]]), False


def _sent(r: random.Random, user: str) -> Call:
    """Make a call of sound HTTP, whose body is sound or not."""
    authorization, is_known = _authorization(r)
    headers = [*authorization, *r.sample(_OTHER_HEADERS, r.choice([0, 0, 1, 3]))]
    if r.random() < 0.7:
        path, body = b"/events", event_body(r, user)
        events, is_sound = body.events, body.is_sound
    else:
        queue = CUT if user.startswith(CUT) else r.choice(QUEUES)
        wrong = [b"%00", b"%0a", b"a" * 201, b"%1b%5b", b"%ff%fe%00"]
        is_named = queue == CUT or r.random() < 0.95
        path = b"/queues/" + (queue.encode() if is_named else r.choice(wrong)) + b"/items"
        body = item_body(r)
        events, is_sound = (), body.is_sound and is_named
    if path == b"/events" and r.random() < 0.3:
        key, is_key = r.choice([(b"k", True), (b"k" * 255, True), (b"\xe9", True), (b"", False), (b"k" * 256, False)])
        headers.append(b"Idempotency-Key: " + key)
        is_sound = is_sound and is_key
    r.shuffle(headers)
    # A name with the end of a line matches no path.
    statuses = frozenset({202}) if is_sound else _REFUSED | ({404} if path.endswith(b"%0a/items") else set())
    if not is_known:
        statuses = frozenset({401})
    return Call(_encoded(r, path, headers, body), statuses, events if statuses == {202} else ())


def _encoded(r: random.Random, path: bytes, headers: list[bytes], body: Body) -> bytes:
    if r.random() < 0.6:
        return framed(b"POST", path, headers, body.data)
    lines = [b"POST " + path + b" HTTP/1.1", b"Host: [::1]:80", *headers, b"Transfer-Encoding: chunked"]
    return b"\r\n".join(lines) + b"\r\n\r\n" + chunked(r, body.data)


def _bodies(r: random.Random, user: str) -> Input:
    return _whole(_sent(r, user), kind="bodies")


def _pipelined(r: random.Random, user: str) -> Input:
    calls = [_sent(r, f"{user}-{n}") if r.random() < 0.7 else _looked_at(r) for n in range(r.choice([2, 3, 10, 60]))]
    assert len(calls) < MAX_PIPELINED
    return _whole(*calls, kind="pipelined calls")


def _looked_at(r: random.Random) -> Call:
    """Make a call of another path or method."""
    is_known = r.random() < 0.8
    headers = [AUTHORIZED] if is_known else []
    path, status = r.choice(
        [
            (b"/health", 200),
            (b"/ready", 200),
            (b"/metrics", 200),
            (b"/openapi.json", 200),
            (b"/health?x=%ff&y", 200),
            (b"http://test/health", 200),
            (b"/health/", 404),
            (b"/", 404),
            (b"//health", 404),
            (b"/events/", 404),
            (b"/queues", 200),
            (b"/queues/a", 404),
            (b"/queues/a/items/", 404),
            (b"/%2e%2e/events", 404),
            (b"/docs", 404),
        ]
    )
    method = r.choice([b"GET", b"GET", b"PUT", b"DELETE", b"POST", b"OPTIONS", b"PATCH"])
    statuses = frozenset({status})
    if status == 200 and method != b"GET":
        statuses = frozenset({405})
    if r.random() < 0.2 and method != b"POST":
        path, statuses = r.choice([b"/events", b"/events?a", b"/queues/a/items"]), frozenset({405})
        if path == b"/queues/a/items" and method == b"DELETE":
            # It names no items to cancel.
            statuses = frozenset({400})
        if path == b"/queues/a/items" and method == b"GET":
            # The queue may have got its first item already.
            statuses = frozenset({200, 404})
    is_open = path.partition(b"?")[0] in (b"/health", b"/ready", b"/queues", b"http://test/health")
    if not is_known and not is_open:
        statuses = frozenset({401})
    body = r.choice([b"", b"", b"{}", b"x" * 3000])
    return Call(framed(method, path, headers, body), statuses)


# --- broken HTTP ------------------------------------------------------------------------------------------------------


_ODD_HEADERS = (b"x y: 1", b": 1", b"x\0: 1", b"\xff: 1", b"x", b"x(: 1", b"x : 1", b"x: \0", b"x: a\rb", b"x: a\nb")
_VERSIONS = (b"2.0", b"0.9", b"3.0", b"1.2", b"1", b"9.9", b"1.10", b"-1.1")
_METHODS = (b"PRI", b"CONNECT", b"GETX", b"SOURCE", b"BREW", b"A" * 3000, b"P\xc3\x96ST", b"POST\0", b"M-SEARCH")


def _heads(r: random.Random, user: str) -> Input:
    """Break a rule of HTTP in the request line or a header."""
    body = event_body(r, user)
    length = b"content-length: %d" % len(body.data)
    sound = [b"host: test", AUTHORIZED, length]
    lines = [b"POST /events HTTP/1.1", *sound]
    statuses: frozenset[int] = DOCUMENTED - {202}
    refused = frozenset({400})
    match r.choice(["line", "host", "length", "both", "coding", "many", "long", "name", "folded", "version", "method"]):
        case "line":
            lines[0] = r.choice(
                [
                    *(b"", b" ", b"POST", b"POST /events", b"POST  /events HTTP/1.1", b"POST /ev ents HTTP/1.1"),
                    *(b"POST events HTTP/1.1", b"POST \xff HTTP/1.1", b"POST /\0 HTTP/1.1", b"/events HTTP/1.1"),
                    *(b"post /events HTTP/1.1", b"POST /events HTTP/1.1 x", b"POST /events http/1.1", b"\0" * 30),
                    *(b"POST /events HTTP/1.1\r", b"POST http://[/events HTTP/1.1", b"POST /%zz HTTP/1.1"),
                    *(b"POST * HTTP/1.1", b"POST http://a:b:c/events HTTP/1.1", b"POST /events#x HTTP/1.1"),
                    r.randbytes(r.randrange(1, 60)),
                ]
            )
            return Input("request lines and headers", ((_joined(lines, body), 0.0),))
        case "host":
            lines[1] = r.choice([b"host: a\r\nhost: b", b"Host: a\r\nhoST: a", b"x: y", b"host: a\r\n" * 40 + b"x: y"])
            statuses = refused
        case "length":
            wrong = [b"-1", b"+5", b"0x5", b"1,1", b"5 5", b"99999999999999999999999", b"1e3", b"", b"\xb2", b"5\r\n 5"]
            lines[-1] = b"content-length: " + r.choice(wrong)
            statuses = refused
        case "both":
            lines += [r.choice([b"transfer-encoding: chunked", b"Transfer-Encoding:chunked"])]
            if r.random() < 0.5:
                lines[-1] = b"content-length: %d" % (len(body.data) + r.choice([-1, 1, 100]))
                lines.append(length)
            statuses = refused
        case "coding":
            codings = [b"chunked, gzip", b"gzip", b"identity", b"xchunked", b"chunked, chunked", b"", b"\x0bchunked"]
            lines[-1] = b"transfer-encoding: " + r.choice(codings)
            return Input("request lines and headers", ((_joined(lines, body), 0.0),))
        case "many":
            lines += [b"x: 1"] * r.choice([MAX_HEADERS, 2 * MAX_HEADERS, 3000])
            statuses = frozenset({431})
        case "long":
            name, value = r.choice([(1, 1), (1, 0), (0, 1)]), MAX_HEADER_BYTES + r.choice([0, 100, 100_000])
            lines.append(b"x" * (name[0] * value + 1) + b": " + b"y" * (name[1] * value))
            statuses = frozenset({400, 431})
        case "name":
            lines.insert(r.randrange(1, 4), r.choice(_ODD_HEADERS))
            return Input("request lines and headers", ((_joined(lines, body), 0.0),))
        case "folded":
            lines.insert(2, b"x: a\r\n" + r.choice([b" b", b"\tb", b" content-length: 0", b" \r\n"]))
            return Input("request lines and headers", ((_joined(lines, body), 0.0),))
        case "version":
            lines[0] = b"POST /events HTTP/" + r.choice(_VERSIONS)
            statuses = frozenset({400, 505})
        case _:
            lines[0] = r.choice(_METHODS) + b" /events HTTP/1.1"
            return Input("request lines and headers", ((_joined(lines, body), 0.0),))
    call = Call(_joined(lines, body), statuses, is_last=True)
    return Input("request lines and headers", ((call.data, 0.0),), (call,))


def _joined(lines: list[bytes], body: Body) -> bytes:
    return b"\r\n".join(lines) + b"\r\n\r\n" + body.data


def _chunks(r: random.Random, user: str) -> Input:
    """Break chunks or trailers."""
    body = event_body(r, user).data
    head = b"POST /events HTTP/1.1\r\nhost: test\r\n" + AUTHORIZED + b"\r\ntransfer-encoding: chunked\r\n\r\n"
    sound = chunked(r, body)
    size = b"%x" % len(body)
    broken = r.choice(
        [
            *(b"-%s\r\n%s\r\n0\r\n\r\n" % (size, body), b"0x%s\r\n%s\r\n0\r\n\r\n" % (size, body)),
            *(b"%s\r\n%s0\r\n\r\n" % (size, body), b"%s\n%s\n0\n\n" % (size, body), b"zz\r\n" + sound, b"\r\n" + sound),
            *(b"ffffffffffffffff\r\n" + body, b"10000000000000000\r\n" + body, b"f" * 5000 + b"\r\n" + body),
            *(b" %s\r\n%s\r\n0\r\n\r\n" % (size, body), b"%s \r\n%s\r\n0\r\n\r\n" % (size, body)),
            *(b"%s;%s\r\n%s\r\n0\r\n\r\n" % (size, b"a" * 100_000, body), sound[:-2], sound[:-1], sound[:-2] + b"\0"),
            *(sound[:-2] + b"x: 1\r\n" * 3000 + b"\r\n", sound[:-2] + b"x: " + b"y" * 100_000 + b"\r\n\r\n"),
            *(sound[:-2] + b"x y\r\n\r\n", sound[:-2] + b"\xff: 1\r\n\r\n", sound[:-2] + b"content-length: 5\r\n\r\n"),
            *(b"00000000000000000000%s\r\n%s\r\n0\r\n\r\n" % (size, body), b"", b"\r\n", b"0", b"1\r\n" * 5000),
            *([mutate(sound, r)] * 15),
        ]
    )
    return Input("chunks and trailers", ((head + broken, 0.0),))


def _bytes(r: random.Random, user: str) -> Input:
    """Change the bytes of sound calls at random."""
    data = b"".join(_sent(r, f"{user}-{n}").data for n in range(r.choice([1, 1, 2, 5])))
    return Input("changed bytes", ((mutate(data, r), 0.0),))


# --- slow, cut off, large ---------------------------------------------------------------------------------------------


def _pieces(r: random.Random, user: str) -> Input:
    """Send sound calls in pieces."""
    calls = [_sent(r, f"{user}-{n}") for n in range(r.choice([1, 2, 4]))]
    calls = [Call(call.data, call.statuses | {408}, call.events) for call in calls]
    data = b"".join(call.data for call in calls)
    cuts = sorted(r.randrange(len(data)) for _ in range(r.choice([1, 3, 20])))
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    return Input("calls in pieces", tuple((piece, r.choice([0.0, 0.001, 0.02])) for piece in pieces), tuple(calls))


def _cut(r: random.Random, user: str) -> Input:
    """Leave in the midst of a call, or before its answer."""
    data = b"".join(_sent(r, f"{CUT}{user}-{n}").data for n in range(r.choice([1, 1, 3])))
    end = r.choice([len(data), r.randrange(len(data) + 1)])
    middle = r.randrange(end + 1)
    pieces = ((data[:middle], r.choice([0.0, 0.01])), (data[middle:end], r.choice([0.0, 0.0, 0.01, 0.1])))
    return Input("calls that are cut off", pieces, leaves=r.choice(["close", "reset"]))


def _late(r: random.Random, user: str) -> Input:
    """Never send the end of a call."""
    data = _sent(r, user).data
    return Input("calls without an end", ((data[: r.randrange(1, len(data))], 0.0), (b"", 4.0)))


def _large(r: random.Random, user: str) -> Input:
    """Send calls that exceed the limits."""
    bodies = [
        b'{"userId":"%s","eventType":"b","payload":"%s"}' % (user.encode(), b"x" * r.choice([262_144, 1 << 20])),
        b"[" + b'{"userId":"a","eventType":"b"},' * 1000 + b'{"userId":"a","eventType":"b"}]',
        b'[{"userId":"a","eventType":"b","payload":"' + b"x" * (9 << 20) + b'"}]',
        b"[" + b"[]," * 300_000 + b"[]]",
        b'[{"userId":"a","eventType":"b","payload":[' + b"1," * 2_000_000 + b"1]}]",
        b'{"userId":"a","eventType":"b","payload":{' + b",".join(b'"%d":0' % n for n in range(70_000)) + b"}}",
    ]
    path = r.choice([b"/events", b"/events", b"/queues/a/items"])
    call = Call(framed(b"POST", path, [AUTHORIZED], r.choice(bodies)), frozenset({400, 413}))
    return Input("large bodies", ((call.data, 0.0),), (call,))
