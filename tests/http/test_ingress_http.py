"""The ingress's answers to HTTP that is broken, slow, hostile or merely unusual, over real sockets."""

import json
import logging
import random
import socket
import struct
import subprocess
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import orjson
import psutil
import pytest
from pydantic import SecretStr

from tests.http.callers import GET, POST, Caller, chunked, post, statuses
from tests.http.serving import (
    EVENT,
    NO_BROKER,
    Running,
    changed,
    cut_off_from,
    running,
    serving,
    stored,
    until,
)
from writetime.clients.kafka import ensure_topics
from writetime.core.config import Settings
from writetime.http.bodies import MAX_PARTS
from writetime.http.protocol import MAX_HEADER_BYTES, MAX_HEADERS, MAX_PIPELINED
from writetime.runtime import jars
from writetime.runtime.java import java
from writetime.servers.process import free_port

pytestmark = pytest.mark.slow

TOKEN = "a-token-of-sixteen-characters"


@pytest.fixture(scope="module")
def ingress(alone: Settings) -> Iterator[Running]:
    with running(alone) as ingress:
        yield ingress


# -- headers and trailers

PIECE = 50_000
ENDLESS = {
    "headers": (POST, b"".join(b"h%d: 1\r\n" % n for n in range(4_000))),
    "a value": (POST + b"h: ", b"x" * PIECE),
    "a name": (POST, b"x" * PIECE),
    "an address": (b"POST /", b"x" * PIECE),
    "a method's line": (b"POST / HTTP/1.1" + b" " * 10, b" " * PIECE),
    "empty headers": (POST, b"a:\r\n" * 10_000),
    "trailers": (chunked(b"{}")[:-2], b"".join(b"h%d: 1\r\n" % n for n in range(4_000))),
    "a trailer": (chunked(b"{}")[:-2] + b"h: ", b"x" * PIECE),
    "an extension of a chunk": (POST + b"transfer-encoding: chunked\r\n\r\n2;a=", b"x" * PIECE),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_no_headers_or_trailers_are_endless(ingress: Running, kind: str) -> None:
    begin, piece = ENDLESS[kind]
    with Caller(ingress.port) as caller:
        caller.send(begin, *[piece] * 40)
        answer = caller.answer()
        assert answer is not None
        assert answer.status in (400, 431)
        assert answer.headers["connection"] == "close"
        assert answer.body["status"] == "error"
        assert caller.answer() is None
    assert ingress.client.get("/health").status_code == 200


def test_150_megabytes_of_headers_take_no_memory(alone: Settings) -> None:
    with serving(alone) as (process, address), ExitStack() as stack:
        port = int(address.rpartition(":")[2])
        assert httpx.get(f"{address}/health").status_code == 200
        before = psutil.Process(process.pid).memory_info().rss
        callers = [stack.enter_context(Caller(port)) for _ in range(30)]
        for piece in range(5):
            data = b"".join(b"h%d-%d: 1\r\n" % (piece, n) for n in range(100_000)) if piece else POST
            for caller in callers:
                caller.send(data)
        assert psutil.Process(process.pid).memory_info().rss - before < 60_000_000
        assert httpx.get(f"{address}/health").status_code == 200


@pytest.mark.parametrize("trailing", [False, True], ids=["headers", "trailers"])
@pytest.mark.parametrize("size", [1_000, 10**9], ids=["pieces", "whole"])
def test_the_limits_of_headers_are_exact(ingress: Running, trailing: bool, size: int) -> None:
    def refused(lines: bytes) -> bool:
        call = chunked(b"{}", trailers=lines) if trailing else post(b"{}", lines)
        found = statuses(ingress.port, [call[i : i + size] for i in range(0, len(call), size)], pause=0.0005)
        assert found in ([400], [431])
        return found == [431]

    # Of a call without trailers, Host and Content-Length count, too, and the path.
    count = MAX_HEADERS - (0 if trailing else 2)
    assert not refused(b"h: 1\r\n" * count)
    assert refused(b"h: 1\r\n" * (count + 1))
    rest = 0 if trailing else len(b"/events" + b"host: test\r\n" + b"content-length: 2\r\n")
    room = MAX_HEADER_BYTES - rest - len(b"h: \r\n")
    assert not refused(b"h: " + b"x" * room + b"\r\n")
    assert refused(b"h: " + b"x" * (room + 1) + b"\r\n")


def test_trailers_are_not_headers(alone: Settings) -> None:
    with running(changed(alone, tokens=[SecretStr(TOKEN)])) as ingress:
        secret = b"authorization: Bearer " + TOKEN.encode() + b"\r\n"
        assert statuses(ingress.port, [chunked(b"{}", trailers=secret)]) == [401]
        assert statuses(ingress.port, [post(b"{}", secret)]) == [400]


# -- rules of HTTP


@pytest.mark.parametrize(
    ("call", "status"),
    [
        (GET, 200),
        (GET.replace(b"1.1", b"1.0"), 200),
        (b"GET /health HTTP/1.0\r\n\r\n", 200),
        (b"GET /health HTTP/1.1\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nhoST: a\r\n\r\n", 400),
        (b"GET /health HTTP/1.0\r\nhost: a\r\nhost: b\r\n\r\n", 400),
        (GET.replace(b"1.1", b"2.0"), 505),
        (GET.replace(b"1.1", b"0.9"), 505),
        (GET.replace(b"1.1", b"1.2"), 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"CONNECT test:80 HTTP/1.1\r\nhost: test\r\n\r\n", 405),
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00", 400),
        (POST + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}", 400),
        (POST + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (POST + b"content-length: -1\r\n\r\n", 400),
    ],
)
def test_calls_that_are_not_http_1_1_are_refused(ingress: Running, call: bytes, status: int) -> None:
    with Caller(ingress.port) as caller:
        caller.send(call)
        answer = caller.answer()
        assert answer is not None
        assert answer.status == status
        assert status == 200 or answer.body["reason"]
        assert status != 405 or answer.headers["allow"]


def test_a_refusal_waits_for_the_answers_before_it(ingress: Running) -> None:
    call = post(json.dumps(EVENT).encode())
    # The first waits for a broker that is not there.
    assert statuses(ingress.port, [call + b"nonsense\r\n\r\n"], expected=2) == [503, 400]
    assert statuses(ingress.port, [call, call, GET.replace(b"1.1", b"2.0"), GET], expected=3) == [503, 503, 505]
    assert statuses(ingress.port, [call + chunked(b"{}")[:-7] + b"zz\r\n"], expected=2) == [503, 400]
    # A call that is answered already gets no second answer.
    assert statuses(ingress.port, [b"GET" + chunked(b"{}")[4:-7], b"zz\r\n"], pause=0.3) == [405]


def test_a_connection_has_so_many_calls_at_once(ingress: Running) -> None:
    call = post(json.dumps(EVENT).encode())
    assert (
        statuses(ingress.port, [call + GET * MAX_PIPELINED], expected=1 + MAX_PIPELINED)
        == [503] + [200] * MAX_PIPELINED
    )
    many = statuses(ingress.port, [call + GET * (MAX_PIPELINED + 1)], expected=2 + MAX_PIPELINED)
    assert many == [503] + [200] * MAX_PIPELINED + [429]


def test_pieces_do_not_matter(ingress: Running) -> None:
    upgrade = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"
    calls = {
        post(b"{}"): 400,
        post(b"{}", upgrade): 400,
        post(b"", upgrade): 400,
        chunked(b"{", b"}", trailers=b"a: 1\r\n"): 400,
        chunked(b"{", b"}").replace(b"host", upgrade + b"host"): 400,
        GET: 200,
        GET.replace(b"host", b"connection: upgrade\r\nupgrade: websocket\r\nhost"): 200,
        b"PUT" + post(b"x" * 500)[4:]: 405,
        b"\r\n" + GET: 200,
    }
    rng = random.Random(1)
    for _ in range(60):
        chosen = rng.choices(list(calls), k=rng.randint(1, 6))
        whole = b"".join(chosen)
        cuts = sorted(rng.sample(range(1, len(whole)), min(rng.choice([0, 1, 3, 40]), len(whole) - 1)))
        pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
        with Caller(ingress.port) as caller:
            assert caller.send(*pieces, pause=0.0005)
            answers = [caller.answer() for _ in chosen]
        assert [answer and answer.status for answer in answers] == [calls[call] for call in chosen], pieces
    assert ingress.metrics()["writetime_ingress_unfinished_bytes"] == 0


def test_an_upgrade_is_ignored_and_the_body_is_kept(ingress: Running) -> None:
    upgrade = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n"
    with Caller(ingress.port) as caller:
        for body in (b'{"userId": 5}', b'{"userId":"ada"}'):
            caller.send(post(body, upgrade)[: -len(body)], body, pause=0.05)
            answer = caller.answer()
            assert answer is not None
            assert answer.status == 400
            assert answer.body["reason"].startswith("userId" if b"5" in body else "eventType")


def test_the_http_client_of_java_is_understood(kafka: Settings, tmp_path: Path) -> None:
    """It asks for HTTP/2 in each call, by default."""
    settings = changed(kafka, topic=f"java-{uuid.uuid4().hex[:8]}", port=free_port())
    ensure_topics(settings, {settings.ingest.topic: {}}, partitions=1)
    with running(settings) as ingress:
        said = run_java(tmp_path, f"http://127.0.0.1:{ingress.port}/events", "3")
    assert said == ["202 HTTP_1_1"] * 3
    assert [event.payload for event, _ in stored(settings)] == ['"0"', '"1"', '"2"']


@pytest.mark.parametrize("path", ["/health/", "/ready/", "/metrics/", "/openapi.json/", "/queues/a/items/", "/events/"])
def test_no_path_is_redirected(ingress: Running, path: str) -> None:
    """A redirect would go to the host that the caller has sent."""
    answer = ingress.client.get(path)
    assert answer.status_code == 404
    assert answer.json() == {"status": "error", "reason": "Not Found"}


@pytest.fixture
def errors(ingress: Running) -> Iterator[list[str]]:
    """The errors that the ingress logs."""
    found: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: found.append(logging.Formatter().format(record))
    log = logging.getLogger("uvicorn.error")
    log.addHandler(handler)
    yield found
    log.removeHandler(handler)


@pytest.mark.parametrize("path", [b"/events", b"/queues/jobs/items", b"/none"])
@pytest.mark.parametrize("before", [b"", GET])
def test_a_refused_call_that_expects_100_continue_is_not_a_fault(
    ingress: Running, errors: list[str], path: bytes, before: bytes
) -> None:
    head = before + POST.replace(b"/events", path) + b"expect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n"
    for rest in (b"zz\r\n", b"1\r\nx\r\nzz\r\n", b"0\r\n" + b"h: 1\r\n" * 200 + b"\r\n"):
        with Caller(ingress.port) as caller:
            caller.send(head + rest)
            assert not before or ((first := caller.answer()) is not None and first.status == 200)
            assert (answer := caller.answer()) is not None
            assert answer.status in (400, 404, 431)
            caller.answer()
    assert errors == []


@pytest.mark.parametrize("pipelined", [0, 1, 3])
def test_a_caller_that_leaves_is_not_a_fault(ingress: Running, errors: list[str], pipelined: int) -> None:
    name, accepted = "writetime_ingress_requests_total/503", "writetime_ingress_events_accepted_total"
    answered = ingress.metrics().get(name, 0)
    for reset in (False, True):
        before = ingress.metrics()[accepted]
        with Caller(ingress.port) as caller:
            # It waits for a broker that is not there. A connection that is reset before would lose the call.
            caller.send(post(json.dumps(EVENT).encode()) + GET * pipelined)
            until(lambda before=before: ingress.metrics()[accepted] > before)
            if reset:
                caller.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    until(lambda: ingress.metrics().get(name, 0) == answered + 2)
    time.sleep(0.1)
    assert errors == []


# -- sizes


def test_unfinished_bodies_of_all_connections_have_a_limit(alone: Settings) -> None:
    workqueue = alone.workqueue.model_copy(update={"max_payload_bytes": 1_024})
    small = changed(alone.model_copy(update={"workqueue": workqueue}), max_event_bytes=6_000, max_batch_bytes=1_024)
    head = POST + b"content-length: 5000\r\n\r\n"
    with running(changed(small, max_unfinished_bytes=8_000)) as ingress, ExitStack() as stack:

        def unfinished(size: int) -> None:
            until(lambda: ingress.metrics()["writetime_ingress_unfinished_bytes"] == size)

        first, second, third, fourth = (stack.enter_context(Caller(ingress.port)) for _ in range(4))
        first.send(head + b" " * 4_000)
        second.send(head.replace(b"events", b"queues/q/items") + b" " * 3_000)
        unfinished(7_000)
        third.send(head + b" " * 2_000)
        assert (answer := third.answer()) is not None
        assert (answer.status, answer.headers["retry-after"]) == (429, "1")
        unfinished(7_000)
        first.send(b" " * 1_000)
        assert (answer := first.answer()) is not None
        assert answer.status == 400
        unfinished(3_000)
        second.socket.close()
        unfinished(0)
        fourth.send(head + b" " * 5_000)
        assert (answer := fourth.answer()) is not None
        assert answer.status == 400
        assert ingress.metrics()["writetime_ingress_refused_total/429"] == 1


@pytest.mark.parametrize("path", ["/events", "/queues/jobs/items"])
def test_bodies_of_calls_without_an_answer_count_with_those_that_arrive(path: str) -> None:
    """The broker and the database are silent."""
    body = {"payload": "x" * 5_000}
    content = orjson.dumps(body if "queues" in path else {**EVENT, **body})
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor() as pool:
        settings = changed(Settings(), NO_BROKER, ack_timeout_seconds=2.0, max_event_bytes=6_000, max_batch_bytes=1_024)
        workqueue = settings.workqueue.model_copy(update={"max_payload_bytes": 6_000})
        settings = settings.model_copy(update={"workqueue": workqueue})
        settings = cut_off_from(changed(settings, max_unfinished_bytes=11_000), silent.getsockname()[1])
        with running(settings) as ingress:

            def unfinished(size: int) -> None:
                until(lambda: ingress.metrics()["writetime_ingress_unfinished_bytes"] == size)

            waiting = [pool.submit(ingress.client.post, path, content=content) for _ in range(2)]
            unfinished(2 * len(content))
            refused = ingress.client.post(path, content=content)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert "not answered yet" in refused.json()["reason"]
            with Caller(ingress.port) as caller:
                caller.send(POST + b"content-length: 5000\r\n\r\n" + b" " * 2_000)
                assert (answer := caller.answer()) is not None
                assert answer.status == 429
            assert [call.result().status_code for call in waiting] == [503, 503]
            unfinished(0)


@pytest.mark.parametrize("path", ["/events", "/queues/jobs/items"])
@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"[]," * 2_700_000 + b"[]]",
        b'[{"userId":"a","eventType":"b","payload":[' + b"{}," * 2_700_000 + b"{}]}]",
        b"[{" + b",".join(b'"%d":0' % n for n in range(700_000)) + b"}]",
        b"[" * 8_000_000,
    ],
    ids=["arrays", "objects", "fields", "levels"],
)
def test_a_body_of_too_many_parts_is_not_parsed(ingress: Running, path: str, body: bytes) -> None:
    answer = ingress.client.post(path, content=body)
    assert answer.status_code == 413
    assert f"more than {MAX_PARTS} arrays, objects and fields" in answer.json()["reason"]


def test_a_body_of_many_numbers_and_texts_is_parsed(ingress: Running) -> None:
    body = b"[" + b'12.5,"[",' * 190_000 + b"1]"
    answer = ingress.client.post("/events", content=body)
    assert "the batch has more than" in answer.json()["reason"]


# -- connections


def test_a_surplus_connection_is_refused_before_its_headers_are_complete(alone: Settings) -> None:
    with running(changed(alone, max_connections=2)) as ingress, ExitStack() as stack:
        ingress.client.close()
        held = [stack.enter_context(Caller(ingress.port)) for _ in range(2)]
        for caller in held:
            caller.send(POST)
        time.sleep(0.2)
        with Caller(ingress.port) as surplus:
            surplus.send(POST)
            assert (answer := surplus.answer()) is not None
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert surplus.answer() is None
        time.sleep(0.3)
        held[0].send(b"content-length: 2\r\n\r\n{}")
        assert (answer := held[0].answer()) is not None
        assert answer.status == 400


def run_java(folder: Path, *arguments: str) -> list[str]:
    """Compile and run the client as `tests.support.oracle` does: the Java of a package has no compiler."""
    compiler = next(p for p in jars.fetch("cassandra") if "ecj" in p.name)
    source = Path(__file__).with_name("Client.java")
    subprocess.run([java(), "-jar", compiler, "-8", "-nowarn", "-d", folder, source], check=True, timeout=300)
    answer = subprocess.run(
        [java(), "-cp", folder, "Client", *arguments], capture_output=True, text=True, timeout=300, check=True
    )
    return answer.stdout.splitlines()
