"""Ingresses in threads and processes, and the events in their topics."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import orjson
import uvicorn
from confluent_kafka import Consumer, Message, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from writetime.clients.kafka import client_config, end_offsets
from writetime.core.config import Settings
from writetime.http.ingress import Ingress, server_config
from writetime.ingest.event import Event, decode

EVENT = {"userId": "ada", "eventType": "departed"}
NO_BROKER = "127.0.0.1:1"
NO_DATABASE = 1


@dataclass
class Running:
    """An ingress that serves in a thread, and a client for it."""

    app: Ingress
    settings: Settings
    client: httpx.Client

    @property
    def port(self) -> int:
        return self.client.base_url.port or 0

    def post(self, body: Any, key: str | None = None) -> httpx.Response:
        headers = {} if key is None else {"Idempotency-Key": key}
        return self.client.post("/events", content=orjson.dumps(body), headers=headers)

    def metrics(self) -> dict[str, float]:
        families = text_string_to_metric_families(self.client.get("/metrics").text)
        return {
            "/".join([sample.name, *sample.labels.values()]): sample.value for f in families for sample in f.samples
        }


def changed(settings: Settings, brokers: str | None = None, **ingest: Any) -> Settings:
    kafka = settings.kafka.model_copy(update={"bootstrap_servers": brokers} if brokers else {})
    return settings.model_copy(update={"ingest": settings.ingest.model_copy(update=ingest), "kafka": kafka})


def cut_off_from(settings: Settings, port: int) -> Settings:
    """Settings of a database that refuses connections, or does not answer."""
    cassandra = settings.cassandra.model_copy(update={"contact_points": ["127.0.0.1"], "port": port})
    workqueue = settings.workqueue.model_copy(update={"enqueue_timeout_seconds": 2.0})
    return settings.model_copy(update={"cassandra": cassandra, "workqueue": workqueue})


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.01)


@contextmanager
def running(settings: Settings) -> Iterator[Running]:
    app = Ingress(settings)
    server = uvicorn.Server(server_config(app, settings))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
                while not server.started:
                    time.sleep(0.01)
                yield Running(app, settings, client)
        finally:
            server.should_exit = True
            thread.join()


def stored(settings: Settings, start: dict[int, int] | None = None) -> list[tuple[Event, Message]]:
    """Return the events of the topic, from the offsets `start`."""
    topic, ends = settings.ingest.topic, end_offsets(settings, settings.ingest.topic)
    start = start or dict.fromkeys(ends, 0)
    consumer = Consumer(client_config(settings, **{"group.id": "test", "enable.auto.commit": False}))
    try:
        consumer.assign([TopicPartition(topic, p, start[p]) for p in ends])
        messages: list[Message] = []
        while missing := sum(ends[p] - start[p] for p in ends) - len(messages):
            messages += consumer.consume(missing, timeout=1)
    finally:
        consumer.close()
    return [(decode(message.value(), message.headers()), message) for message in messages]  # pyright: ignore[reportArgumentType]


@contextmanager
def serving(settings: Settings) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `serve` in a separate process; yield it and its address."""
    code = (
        "import sys; from writetime.core.config import Settings; from writetime.http.ingress import serve;"
        "serve(Settings.model_validate_json(sys.argv[1]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, settings.model_dump_json()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        yield process, process.stdout.readline().split()[-1]
    finally:
        process.kill()
        process.communicate()
