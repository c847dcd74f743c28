"""Replays real flights through the platform under Dagster, on real servers, and shows that the numbers add up."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from demo.dagster_run import RunResult, launch
from demo.report import Numbers, render
from resources import KafkaResource
from writetime import config, database, servers
from writetime.config import Settings
from writetime.demo import enrichment
from writetime.errors import WritetimeError
from writetime.ingest.topics import ensure_ingest_topics
from writetime.kafka import client_config
from writetime.servers import jars
from writetime.servers.process import port_answers
from writetime.workqueue.audit import database_time
from writetime.workqueue.inspect import inspect

FLIGHTS = int(os.environ.get("DEMO_FLIGHTS", "20000"))
# Messages of a sender that goes past the ingress, which would refuse each of them.
BROKEN_MESSAGES = [
    b"not json",
    b'{"userId": "N14228"}',
    b"[]",
    None,
    b'{"eventId": "1", "userId": "", "eventType": ""}',
]
# Work items that are not flights, which the handler gives up.
BROKEN_ITEMS = [None, "UA1545", {"flight": "UA1545"}]


def main() -> int:
    """Run the demo; return 0 if the numbers add up and all checks passed."""
    settings = config.load()
    if settings.ingest.mode == "upsert":
        raise WritetimeError("the demo counts duplicates, which mode upsert cannot tell: set ingest.mode to lwt-batch")
    if port_answers(settings.ingest.port):
        raise WritetimeError(f"ingest.port {settings.ingest.port} is in use; stop that program (a `writetime serve`?)")
    log_file = Path(os.environ["DAGSTER_HOME"]) / "demo.log"
    jars.fetch("zookeeper", "kafka", "cassandra", "spark")
    with _step("starting Cassandra, Kafka and ZooKeeper"):
        servers.up(settings)
        database.apply_schema(settings)
        ensure_ingest_topics(settings)
    if _lag(settings):
        with _step("storing what an earlier run has left"):
            _ingest_all(settings, log_file)
    rows_before, since = _count_rows(settings), database_time(settings)
    work = ["work", "--queue", enrichment.QUEUE, "--handler", enrichment.HANDLER]
    with _program(["serve"], log_file) as ingress, _program(work, log_file) as worker:
        _wait_for_ingress(settings, ingress, log_file)
        with _step(f"replaying {FLIGHTS:,} real flights as HTTP events and work items (Dagster job replay_flights)"):
            ops = {op: {"config": {"flights": FLIGHTS}} for op in ("sources__flights", "sources__flight_items")}
            replay = launch("replay_flights", {"ops": ops}, log_file)
        _send_broken_messages(settings)
        _enqueue_broken_items(settings)
        with _step("storing, checking and committing them (Dagster job ingest)"):
            ingest = _ingest_all(settings, log_file)
        with _step("waiting until each flight has its plane and weather (`writetime work`)"):
            _wait_for_work(settings, worker, log_file)
    with _step("counting the rows in the database"):
        rows_added = _count_rows(settings) - rows_before
        items = enrichment.account(settings, since)
    numbers = _numbers(replay, ingest, rows_added, items)
    checks = {name: all(run.checks[name] for run in ingest) for name in ingest[0].checks}
    print(render(numbers, checks, settings, log_file))
    return 0 if numbers.add_up and all(checks.values()) else 1


def _ingest_all(settings: Settings, log_file: Path) -> list[RunResult]:
    """Run the job `ingest` until nothing is left; a run takes ingest.max_events_per_run at most."""
    results = [launch("ingest", {}, log_file)]
    while _lag(settings):
        results.append(launch("ingest", {}, log_file))
    return results


def _lag(settings: Settings) -> int:
    return KafkaResource().state(settings.ingest.topic, settings.ingest.group).total_lag


def _numbers(replay: RunResult, ingest: list[RunResult], rows_added: int, items: enrichment.Account) -> Numbers:
    flights = replay.metadata["sources/flights"]
    events = [run.metadata["ingest/user_events"] for run in ingest]
    return Numbers(
        flights=flights["flights"],
        sent=flights["events_sent"],
        acknowledged=flights["events_acknowledged"],
        calls=flights["calls"],
        calls_repeated=flights["calls_repeated"],
        broken=len(BROKEN_MESSAGES),
        stored=sum(e["events_stored"] for e in events),
        rows_added=rows_added,
        duplicates=sum(e["events_duplicate"] for e in events),
        dead=sum(e["events_dead"] for e in events),
        dead_letters_added=sum(run.metadata["ingest/dead_letters"]["rows_appended"] for run in ingest),
        replay_per_second=flights["events_per_second"],
        sink_per_second=sum(e["messages"] for e in events) / sum(e["drain_seconds"] for e in events),
        enqueued=replay.metadata["sources/flight_items"]["items_enqueued"] + len(BROKEN_ITEMS),
        items_added=items.items,
        enriched=items.enriched,
        items_dead=items.dead,
        with_plane=items.with_plane,
        with_weather=items.with_weather,
    )


@contextmanager
def _program(arguments: list[str], log_file: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A shell command of the platform while in the block; then it ends gracefully."""
    with log_file.open("ab") as log:
        process = subprocess.Popen([sys.executable, "-m", "writetime", *arguments], stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _wait_for_ingress(settings: Settings, ingress: subprocess.Popen[bytes], log_file: Path) -> None:
    deadline = time.monotonic() + settings.embedded.start_timeout_seconds
    while not port_answers(settings.ingest.port):
        if ingress.poll() is not None or time.monotonic() > deadline:
            raise WritetimeError(f"`writetime serve` did not start; see {log_file}")
        time.sleep(0.1)


def _enqueue_broken_items(settings: Settings) -> None:
    connection = http.client.HTTPConnection(settings.ingest.host, settings.ingest.port, timeout=60)
    body = json.dumps([{"payload": payload} for payload in BROKEN_ITEMS])
    connection.request("POST", f"/queues/{enrichment.QUEUE}/items", body)
    response = connection.getresponse()
    if response.status != 202:
        raise WritetimeError(f"POST /queues/{enrichment.QUEUE}/items: {response.status} {response.read().decode()}")
    connection.close()


def _wait_for_work(settings: Settings, worker: subprocess.Popen[bytes], log_file: Path) -> None:
    """Wait until nothing in the queue is unfinished, also of an earlier run."""
    while inspect(settings, enrichment.QUEUE).depth:
        if worker.poll() is not None:
            raise WritetimeError(f"`writetime work` has ended; see {log_file}")
        time.sleep(1)


def _send_broken_messages(settings: Settings) -> None:
    producer = Producer(client_config(settings, acks="all"))
    errors: list[str] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            errors.append(error.str())

    for i, value in enumerate(BROKEN_MESSAGES):
        producer.produce(settings.ingest.topic, key=f"broken-{i}".encode(), value=value, on_delivery=delivered)
    if producer.flush(30) or errors:
        raise WritetimeError(f"{settings.ingest.topic} does not take messages: {errors or 'no answer for 30 s'}")


def _count_rows(settings: Settings) -> int:
    with database.connect(settings) as session:
        table = f"{settings.cassandra.keyspace}.{settings.ingest.table}"
        return database.count_rows(session, table, settings.ingest.partition_key)


@contextmanager
def _step(what: str) -> Iterator[None]:
    began = time.monotonic()
    print(f"- {what} ...", end="", flush=True)
    try:
        yield
    except BaseException:
        print()
        raise
    print(f" {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except WritetimeError as e:
        sys.exit(f"Error: {e}")
