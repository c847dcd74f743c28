"""The work queue compared with a queue of conditional updates per row: items/s, CPU, idle cost, latency, large queues.

python -m bench.workqueue [--quick]

The peer is the usual design: a table of jobs in 16 partitions. Each job is claimed by `UPDATE .. IF status =
'RECEIVED'` and completed by `UPDATE .. IF owner = ..`, 16 at once. Both sides claim and complete each item with a
handler that does nothing, on the same node, in one run. After each round, all items must be completed. A rate is over
the time from the first claim to the last completion, by the database's write times. CPU is that of the whole program
and of the node.
"""

import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC
from pathlib import Path

import click
import psutil
from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent_with_args

from bench.logs import log_to_file
from bench.rounds import Result, cpu_seconds, measure
from tests.support.settings import write_settings
from writetime.clients import database
from writetime.core import config
from writetime.core.config import Settings, WorkQueue
from writetime.servers.cassandra import CassandraServer
from writetime.servers.kafka import KafkaServer
from writetime.servers.process import free_port
from writetime.workqueue import Enqueuer, Item, NewItem, Worker
from writetime.workqueue.hints import KafkaHint

Work = Callable[[Settings, str, int], None]

SHARDS = 16
TARGET = 10.0
ENQUEUED_TOGETHER = 10_000


def enqueue(settings: Settings, queue: str, count: int) -> None:
    """Enqueue items."""
    with Enqueuer(settings) as enqueuer:
        for first in range(0, count, ENQUEUED_TOGETHER):
            last = min(count, first + ENQUEUED_TOGETHER)
            enqueuer.enqueue_many(queue, [NewItem({"n": n}) for n in range(first, last)])


async def nothing(item: Item) -> None:
    """Do nothing. This is the handler."""


def work_peer(settings: Settings, name: str, count: int) -> None:
    """Claim and complete each job by one conditional update each."""
    keyspace = settings.cassandra.keyspace
    with database.connect(settings) as session:
        claim = session.prepare(
            f"UPDATE {keyspace}.{name} SET status = 'PROCESSING', owner = ?, attempts = ? WHERE shard = ? AND id = ? "
            "IF status = 'RECEIVED'"
        )
        complete = session.prepare(
            f"UPDATE {keyspace}.{name} SET status = 'COMPLETED' WHERE shard = ? AND id = ? IF owner = ?"
        )

        def shard(number: int) -> int:
            jobs = session.execute(f"SELECT id FROM {keyspace}.{name} WHERE shard = %s", [number])
            done = 0
            for job in jobs:
                if session.execute(claim, ("me", 1, number, job.id)).one().applied:
                    done += session.execute(complete, (number, job.id, "me")).one().applied
            return done

        with ThreadPoolExecutor(SHARDS) as pool:
            assert sum(pool.map(shard, range(SHARDS))) == count


def work_project(settings: Settings, name: str, count: int) -> None:
    """Process the queue's items."""
    assert Worker(settings, {name: nothing}).run(until_idle=True) == {"completed": count}


def make_peer(settings: Settings, count: int) -> str:
    """Create the peer's table of jobs."""
    name, keyspace = f"jobs_{uuid.uuid4().hex[:8]}", settings.cassandra.keyspace
    with database.connect(settings) as session:
        session.execute(
            f"CREATE TABLE {keyspace}.{name} (shard int, id int, payload text, status text, owner text, attempts int, "
            "PRIMARY KEY (shard, id))"
        )
        insert = session.prepare(
            f"INSERT INTO {keyspace}.{name} (shard, id, payload, status) VALUES (?, ?, ?, 'RECEIVED')"
        )
        jobs = ((n % SHARDS, n, "{}") for n in range(count))
        execute_concurrent_with_args(session, insert, jobs, concurrency=64)
    return name


def measure_work(work: Work, settings: Settings, name: str, count: int) -> Result:
    """Measure one round; its rate follows from the database's write times."""
    result = measure(work, settings, name, count, count=count, servers=[CassandraServer(settings)])
    with database.connect(settings) as session:
        completed, seconds = written(session, settings, name)
    assert completed == count
    return replace(result, per_second=count / seconds)


def written(session: Session, settings: Settings, name: str) -> tuple[int, float]:
    """Return the number of completed items, and the seconds from the first claim to the last completion."""
    keyspace = settings.cassandra.keyspace
    if name.startswith("jobs_"):
        table, parts = name, [f"shard = {shard}" for shard in range(SHARDS)]
    else:
        table, parts = "queue_state", []
        for row in session.execute(f"SELECT shard, bucket FROM {keyspace}.queue_buckets WHERE queue = %s", [name]):
            bucket = round(row.bucket.replace(tzinfo=UTC).timestamp() * 1000)
            parts.append(f"queue = '{name}' AND shard = {row.shard} AND bucket = {bucket}")
    completed, claims, completions = 0, list[int](), list[int]()
    for part in parts:
        columns = "status, writetime(attempts) AS claimed, writetime(status) AS done"
        for row in session.execute(f"SELECT {columns} FROM {keyspace}.{table} WHERE {part}"):
            completed += row.status == "COMPLETED"
            claims.append(row.claimed)
            completions.append(row.done)
    return completed, (max(completions) - min(claims)) / 1e6


def measure_idle(settings: Settings, seconds: float) -> tuple[float, float, float]:
    """Return the cost per minute of an idle worker on an empty queue: CPU seconds of client and node, statements."""

    def of_node(wait: Callable[[], None]) -> tuple[float, int]:
        cpu, executed = cpu_seconds([CassandraServer(settings)]), statements(settings)
        wait()
        # This query itself is a statement that is not prepared.
        return cpu_seconds([CassandraServer(settings)]) - cpu, statements(settings) - executed

    alone, _ = of_node(lambda: time.sleep(seconds))
    with working(settings, f"idle-{uuid.uuid4().hex[:8]}", nothing):
        time.sleep(10)
        cpu = time.process_time()
        with_worker, executed = of_node(lambda: time.sleep(seconds))
        client = time.process_time() - cpu
    minutes = seconds / 60
    return client / minutes, max(0.0, with_worker - alone) / minutes, executed / minutes


def statements(settings: Settings) -> int:
    """Return the number of prepared statements that the node has executed."""
    query = "SELECT value FROM system_views.cql_metrics WHERE name = 'prepared_statements_executed'"
    with database.connect(settings) as session:
        return int(session.execute(query).one().value)


@contextmanager
def working(settings: Settings, queue: str, handler: Callable, hint: KafkaHint | None = None) -> Iterator[None]:
    """Run a worker in a thread during a `with` block."""
    stop = threading.Event()
    thread = threading.Thread(target=Worker(settings, {queue: handler}, hint).run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def measure_latency(settings: Settings, count: int, hint: KafkaHint | None = None) -> tuple[float, float]:
    """Return the median and the 99th percentile of the time from the acknowledgement to the handler, in ms."""
    queue, begun = f"latency-{uuid.uuid4().hex[:8]}", dict[int, float]()

    async def handle(item: Item) -> None:
        begun[item.payload] = time.perf_counter()

    enqueued = {}
    with Enqueuer(settings) as enqueuer, working(settings, queue, handle, hint):
        # The topic of hints is created, and found, with the first items.
        for n in range(-8, count):
            enqueuer.enqueue(queue, n)
            enqueued[n] = time.perf_counter()
            time.sleep(random.uniform(0.05, 0.6) if n >= 0 else 1)
        while len(begun) < len(enqueued):
            time.sleep(0.1)
    waited = sorted(max(0.0, begun[n] - enqueued[n]) * 1000 for n in range(count))
    return waited[len(waited) // 2], waited[int(len(waited) * 0.99)]


@contextmanager
def hinting(settings: Settings) -> Iterator[Settings]:
    """Create a keyspace whose items an agent publishes to a broker; yield its settings."""
    own = settings.cassandra.model_copy(update={"keyspace": f"h{uuid.uuid4().hex[:12]}"})
    settings = settings.model_copy(update={"cassandra": own})
    broker = KafkaServer(settings)
    broker.start()
    database.apply_schema(settings)
    with database.connect(settings) as session:
        session.execute(f"ALTER TABLE {own.keyspace}.queue_items WITH cdc = true", timeout=60)
    file = settings.embedded.home / "writetime.toml"
    write_settings(settings, file)
    environment = {**os.environ, "WRITETIME_CONFIG": str(file)}
    with file.with_name("agent.log").open("wb") as log:
        agent = subprocess.Popen([sys.executable, "-m", "writetime", "agent"], stderr=log, env=environment)
    try:
        yield settings
    finally:
        agent.terminate()
        agent.wait()
        broker.stop()


def compare(settings: Settings, count: int) -> None:
    """Claim and complete items on both sides."""
    for size in (500, count):
        name = make_peer(settings, size)
        peer = measure_work(work_peer, settings, name, size)
        queue = f"q-{uuid.uuid4().hex[:8]}"
        enqueue(settings, queue, size)
        project = measure_work(work_project, settings, queue, size)
    print(f"{count:,} items claimed and completed, {SHARDS} shards; load average {psutil.getloadavg()[0]:.1f}")
    print(f"{'':14}{'items/s':>10}{'client CPU us/item':>22}{'server CPU us/item':>22}")
    for label, result in (("per-row LWT", peer), ("work queue", project)):
        print(f"{label:14}{result.per_second:10,.0f}{result.client_us:22,.0f}{result.server_us:22,.0f}")
    print(
        f"{'':14}{project.per_second / peer.per_second:9.1f}x{peer.client_us / project.client_us:21.1f}x"
        f"{peer.server_us / project.server_us:21.1f}x  (target {TARGET:g}x of items/s)",
        flush=True,
    )


def grow(settings: Settings, size: int) -> None:
    """Process a queue of one size, and print the cost per item."""
    queue = f"q-{uuid.uuid4().hex[:8]}"
    began = time.perf_counter()
    enqueue(settings, queue, size)
    enqueued = size / (time.perf_counter() - began)
    result = measure_work(work_project, settings, queue, size)
    print(
        f"{size:>10,} items: {enqueued:8,.0f} enqueued/s, {result.per_second:8,.0f} done/s, {result.client_us:6.0f} us "
        f"client, {result.server_us:6.0f} us server CPU per item",
        flush=True,
    )


@click.command()
@click.option("--items", default=20_000, show_default=True, help="Items of the comparison.")
@click.option("--sizes", default="10000,100000,1000000", show_default=True, help="Sizes of queues.")
@click.option("--latency", default=80, show_default=True, help="Items whose latency is measured, polled and hinted.")
@click.option("--idle", default=30.0, show_default=True, help="Seconds for which an idle worker is measured.")
@click.option("--quick", is_flag=True, help="Without the largest size.")
def main(items: int, sizes: str, latency: int, idle: float, quick: bool) -> None:
    """Measure everything."""
    with tempfile.TemporaryDirectory() as home:
        settings = config.load(
            cassandra={"port": free_port(), "keyspace": "bench"},
            kafka={"bootstrap_servers": f"127.0.0.1:{free_port()}"},
            embedded={
                "home": Path(home),
                "cassandra_storage_port": free_port(),
                "kafka_controller_port": free_port(),
            },
            capture={"state_dir": Path(home) / "state", "snapshot": "schema-only"},
        )
        settings = settings.model_copy(update={"workqueue": WorkQueue(lease_seconds=60, enqueue_timeout_seconds=120)})
        server = CassandraServer(settings)
        server.start()
        try:
            database.apply_schema(settings)
            if items:
                compare(settings, items)
            if idle:
                client, node, executed = measure_idle(settings, idle)
                print(f"idle worker: {client:.2f} CPU s per minute, node {node:.2f}, {executed:,.0f} statements")
            if latency:
                polled = measure_latency(settings, latency)
                print("pick-up latency, polled: p50 {:.0f} ms, p99 {:.0f} ms".format(*polled), flush=True)
                with hinting(settings) as hinted:
                    found = measure_latency(hinted, latency, KafkaHint(hinted))
                print("pick-up latency, hinted: p50 {:.0f} ms, p99 {:.0f} ms".format(*found), flush=True)
            found = [int(size) for size in sizes.split(",") if size]
            for size in found[: -1 if quick else None]:
                grow(settings, size)
        finally:
            server.stop()


if __name__ == "__main__":
    log_to_file()
    main()
