"""The HTTP ingress compared with a plain kafka-python ingress: requests/s and CPU per event, when `202` waits for the
broker.

python -m bench.ingress

Both get the same events over the same number of keep-alive connections, and write to separate topics on one broker.
After each round, the topic must hold exactly the events that were answered with 202.
"""

import asyncio
import json
import multiprocessing
import random
import re
import socket
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime
from io import StringIO
from itertools import cycle
from typing import Any, cast

import click
import psutil
import uvicorn
import uvloop
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka import KafkaProducer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from bench.logs import log_to_file
from writetime.clients.kafka import client_config, end_offsets
from writetime.core.config import Ingest, Settings, load
from writetime.http.ingress import serve
from writetime.servers.kafka import KafkaServer
from writetime.servers.process import free_port

WARM_UP_SECONDS = 2.0
_spawn = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Round:
    """The results of one server in one round."""

    per_second: float
    p50_ms: float
    p99_ms: float
    cpu_us_per_event: float
    load_cpu: float


def serve_project(settings: Settings) -> None:
    """Run Writetime's ingress, without printing its address."""
    with redirect_stdout(StringIO()):
        serve(settings)


def serve_peer(settings: Settings) -> None:
    """Run an ingress as most are written: uvicorn, Starlette, and kafka-python's future, which the loop awaits."""
    producer = KafkaProducer(
        bootstrap_servers=settings.kafka.bootstrap_servers,
        acks="all",
        compression_type="gzip",
        linger_ms=5,
        value_serializer=lambda event: json.dumps(event).encode(),
    )

    async def post_event(request: Request) -> JSONResponse:
        try:
            body = await request.json()
        except ValueError as e:
            return JSONResponse({"status": "error", "reason": str(e)}, 400)
        for field in ("userId", "eventType"):
            if not isinstance(body.get(field), str) or not body[field]:
                return JSONResponse({"status": "error", "reason": f"{field} must be a non-empty string"}, 400)
        event = {"eventId": str(uuid.uuid4()), "timestamp": datetime.now(UTC).isoformat(), **body}
        loop = asyncio.get_running_loop()
        acknowledged = loop.create_future()
        sent = producer.send(settings.ingest.topic, key=event["userId"].encode(), value=event)
        sent.add_callback(lambda _: loop.call_soon_threadsafe(acknowledged.set_result, None))
        sent.add_errback(lambda e: loop.call_soon_threadsafe(acknowledged.set_exception, e))
        await acknowledged
        return JSONResponse({"status": "queued", "eventId": event["eventId"]}, 202)

    app = Starlette(routes=[Route("/events", post_event, methods=["POST"])])
    ingest = settings.ingest
    uvicorn.run(
        app, host=ingest.host, port=ingest.port, loop="uvloop", http="httptools", access_log=False, log_level=30
    )
    producer.close()


def requests(count: int = 2_000) -> list[bytes]:
    """Return calls of POST /events, the same in every run."""
    rng = random.Random(1)
    calls = []
    for _ in range(count):
        payload = {
            "flight": rng.randrange(9_999),
            "origin": rng.choice(["EWR", "JFK", "LGA"]),
            "delay": rng.randrange(-20, 200),
            "tail": f"N{rng.randrange(99_999)}",
            "note": rng.randbytes(24).hex(),
        }
        event = {"userId": f"user-{rng.randrange(5_000)}", "eventType": "departed", "payload": payload}
        body = json.dumps(event).encode()
        head = f"POST /events HTTP/1.1\r\nhost: bench\r\ncontent-length: {len(body)}\r\n\r\n"
        calls.append(head.encode() + body)
    return calls


class Connection(asyncio.Protocol):
    """One keep-alive connection. It sends a call after the answer to the last one, until it is stopped."""

    _length = re.compile(rb"content-length: (\d+).*?\r\n\r\n", re.IGNORECASE | re.DOTALL)

    def __init__(self, calls: Iterator[bytes], answered: Callable[[float], bool]) -> None:
        self._calls = calls
        self._answered = answered
        self._buffer = b""
        self._sent = 0.0
        self._fault: Exception | None = None
        self.closed = asyncio.get_running_loop().create_future()
        self._transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head = self._length.search(self._buffer)
        if head is None or len(self._buffer) < head.end() + int(head[1]):
            return
        answer, self._buffer = self._buffer, b""
        if not answer.startswith(b"HTTP/1.1 202"):
            self._fault = RuntimeError(f"not queued: {answer.decode()}")
        if self._fault is None and self._answered(time.perf_counter() - self._sent):
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        fault = self._fault or exc
        self.closed.set_result(None) if fault is None else self.closed.set_exception(fault)

    def _send(self) -> None:
        self._sent = time.perf_counter()
        self._transport.write(next(self._calls))


async def drive(port: int, server_pid: int, connections: int, seconds: float) -> tuple[Round, int]:
    """Load a server; return the measures of the time after the warm-up, and the number of all answered calls."""
    loop = asyncio.get_running_loop()
    server, own = psutil.Process(server_pid), psutil.Process()
    latencies: list[float] = []
    stopping = False

    def answered(latency: float) -> bool:
        latencies.append(latency)
        return not stopping

    calls = cycle(requests())
    protocols = []
    for _ in range(connections):
        _, protocol = await loop.create_connection(lambda: Connection(calls, answered), "127.0.0.1", port)
        protocols.append(protocol)
    await asyncio.sleep(WARM_UP_SECONDS)
    first, started, cpu, own_cpu = len(latencies), time.perf_counter(), _cpu(server), _cpu(own)
    await asyncio.sleep(seconds)
    measured, elapsed = latencies[first:], time.perf_counter() - started
    cpu, own_cpu = _cpu(server) - cpu, _cpu(own) - own_cpu
    stopping = True
    await asyncio.gather(*(protocol.closed for protocol in protocols))
    percentiles = statistics.quantiles(measured, n=100)
    return (
        Round(
            per_second=len(measured) / elapsed,
            p50_ms=percentiles[49] * 1e3,
            p99_ms=percentiles[98] * 1e3,
            cpu_us_per_event=cpu / len(measured) * 1e6,
            load_cpu=own_cpu / elapsed,
        ),
        len(latencies),
    )


def load_main(answer: Any, port: int, server_pid: int, connections: int, seconds: float) -> None:
    """Drive the load in a separate process and send its results."""
    answer.send(uvloop.run(drive(port, server_pid, connections, seconds)))


def measure(settings: Settings, server: Callable[[Settings], None], connections: int, seconds: float) -> Round:
    """Run one server on a separate topic under load.

    Raises:
        RuntimeError: the topic does not hold exactly the acknowledged events.
    """
    with _topic(settings) as topic:
        ingest = settings.ingest.model_copy(update={"topic": topic, "port": free_port()})
        settings = settings.model_copy(update={"ingest": ingest})
        serving = _spawn.Process(target=server, args=(settings,), daemon=True)
        serving.start()
        assert serving.pid is not None
        _wait_for(ingest)
        mine, theirs = _spawn.Pipe()
        driving = _spawn.Process(target=load_main, args=(theirs, ingest.port, serving.pid, connections, seconds))
        driving.start()
        theirs.close()
        result, acknowledged = mine.recv()
        driving.join()
        serving.terminate()
        serving.join()
        stored = sum(end_offsets(settings, topic).values())
        if stored != acknowledged:
            raise RuntimeError(f"{acknowledged} events acknowledged, {stored} in the topic")
    return result


@contextmanager
def _topic(settings: Settings) -> Iterator[str]:
    admin = AdminClient(client_config(settings))
    name = f"bench-ingress-{uuid.uuid4().hex[:8]}"
    for future in admin.create_topics([NewTopic(name, 4, 1)]).values():
        future.result()
    try:
        yield name
    finally:
        for future in admin.delete_topics([name]).values():
            future.result()


def _wait_for(ingest: Ingest) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection((ingest.host, ingest.port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


@click.command()
@click.option("--connections", default=256, show_default=True)
@click.option("--seconds", default=8.0, show_default=True, help="Measured time of a round, after the warm-up.")
@click.option("--rounds", default=3, show_default=True, help="Rounds of each; the median counts.")
def main(connections: int, seconds: float, rounds: int) -> None:
    """Measure the ingress and a plain kafka-python ingress, in turns."""
    settings = load()
    kafka = KafkaServer(settings)
    started = kafka.start()
    try:
        results: dict[str, list[Round]] = {"writetime": [], "kafka-python": []}
        print(
            f"POST /events, 202 after the broker's acknowledgement, {connections} connections, {seconds:g} s per round"
        )
        print(f"{'':14}{'requests/s':>12}{'p50 ms':>9}{'p99 ms':>9}{'server CPU us/event':>21}{'load CPU':>10}")
        for _ in range(rounds):
            for name, server in (("kafka-python", serve_peer), ("writetime", serve_project)):
                r = measure(settings, server, connections, seconds)
                results[name].append(r)
                print(
                    f"{name:14}{r.per_second:12,.0f}{r.p50_ms:9.1f}{r.p99_ms:9.1f}{r.cpu_us_per_event:21.0f}{r.load_cpu:10.0%}"
                )
        ours, peer = (
            {field: statistics.median(getattr(r, field) for r in results[name]) for field in Round.__dataclass_fields__}
            for name in ("writetime", "kafka-python")
        )
        print(
            f"medians: {ours['per_second'] / peer['per_second']:.1f} times the requests/s, "
            f"{peer['cpu_us_per_event'] / ours['cpu_us_per_event']:.1f} times less CPU per event, "
            f"p99 {peer['p99_ms'] / ours['p99_ms']:.1f} times shorter"
        )
    finally:
        if started:
            kafka.stop()


if __name__ == "__main__":
    log_to_file()
    main()
