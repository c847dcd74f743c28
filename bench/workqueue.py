"""The work queue against a queue of per-row conditional updates: items/s, CPU, idle cost, latency, and large queues.

    python -m bench.workqueue

The peer is the usual design: a table of jobs in 16 partitions, each job claimed by `UPDATE .. IF status = 'RECEIVED'`
and completed by `UPDATE .. IF owner = ..`, 16 at once. Both sides claim and complete every item with a handler that
does nothing, on the same node, in one run; after each round all must be completed.
"""

import random
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import click
import psutil

from bench.rounds import cpu_seconds, measure
from writetime import config, database
from writetime.config import Settings, WorkQueue
from writetime.servers.cassandra import CassandraServer
from writetime.workqueue import Enqueuer, Item, NewItem, Worker, inspect

SHARDS = 16
TARGET = 10.0


def enqueue(settings: Settings, queue: str, count: int) -> None:
    """Put items into a queue."""
    with Enqueuer(settings) as enqueuer:
        for first in range(0, count, 2000):
            enqueuer.enqueue_many(queue, [NewItem({"n": n}) for n in range(first, min(count, first + 2000))])


async def nothing(item: Item) -> None:
    """The handler."""


def work_peer(settings: Settings, name: str, count: int) -> None:
    """Claim and complete every job by a conditional update each."""
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
    """Work the queue off."""
    assert Worker(settings, {name: nothing}).run(until_idle=True) == {"completed": count}


def make_peer(settings: Settings, count: int) -> str:
    """Make the peer's table of jobs."""
    name, keyspace = f"jobs_{uuid.uuid4().hex[:8]}", settings.cassandra.keyspace
    with database.connect(settings) as session:
        session.execute(
            f"CREATE TABLE {keyspace}.{name} (shard int, id int, payload text, status text, owner text, attempts int, "
            "PRIMARY KEY (shard, id))"
        )
        insert = session.prepare(
            f"INSERT INTO {keyspace}.{name} (shard, id, payload, status) VALUES (?, ?, ?, 'RECEIVED') IF NOT EXISTS"
        )
        with ThreadPoolExecutor(SHARDS) as pool:
            list(pool.map(lambda n: session.execute(insert, (n % SHARDS, n, "{}")), range(count)))
    return name


def measure_idle(settings: Settings, seconds: float) -> tuple[float, float]:
    """Return what an idle worker of an empty queue costs, client and server, in CPU seconds an hour."""
    servers = [CassandraServer(settings)]

    def server_cpu_of(wait: Callable[[], None]) -> float:
        before = cpu_seconds(servers)
        wait()
        return cpu_seconds(servers) - before

    alone = server_cpu_of(lambda: time.sleep(seconds))
    stop = threading.Event()
    thread = threading.Thread(target=Worker(settings, {f"idle-{uuid.uuid4().hex[:8]}": nothing}).run, args=(stop,))
    thread.start()
    time.sleep(10)
    cpu = time.process_time()
    with_worker = server_cpu_of(lambda: time.sleep(seconds))
    client = time.process_time() - cpu
    stop.set()
    thread.join()
    return client * 3600 / seconds, max(0.0, with_worker - alone) * 3600 / seconds


def measure_latency(settings: Settings, count: int) -> tuple[float, float]:
    """Return the median and the 99th percentile of the time from the acknowledgement to the handler, in ms."""
    queue, begun, stop = f"latency-{uuid.uuid4().hex[:8]}", dict[int, float](), threading.Event()

    async def handle(item: Item) -> None:
        begun[item.payload] = time.perf_counter()

    thread = threading.Thread(target=Worker(settings, {queue: handle}).run, args=(stop,))
    thread.start()
    enqueued = {}
    with Enqueuer(settings) as enqueuer:
        enqueuer.enqueue(queue, -1)
        time.sleep(8)
        for n in range(count):
            enqueuer.enqueue(queue, n)
            enqueued[n] = time.perf_counter()
            time.sleep(random.uniform(0.05, 0.6))
        while len(begun) <= count:
            time.sleep(0.1)
    stop.set()
    thread.join()
    waited = sorted(max(0.0, begun[n] - enqueued[n]) * 1000 for n in enqueued)
    return waited[len(waited) // 2], waited[int(len(waited) * 0.99)]


@click.command()
@click.option("--items", default=10_000, show_default=True, help="Items of the comparison.")
@click.option("--sizes", default="10000,100000,1000000", show_default=True, help="Sizes of queues.")
@click.option("--latency", default=150, show_default=True, help="Items whose latency is measured.")
@click.option("--idle", default=60.0, show_default=True, help="Seconds for which an idle worker is watched.")
def main(items: int, sizes: str, latency: int, idle: float) -> None:
    """Measure it all."""
    settings = config.load()
    keyspace = f"b{uuid.uuid4().hex[:12]}"
    settings = settings.model_copy(
        update={
            "cassandra": settings.cassandra.model_copy(update={"keyspace": keyspace}),
            "workqueue": WorkQueue(lease_seconds=60),
        }
    )
    server = CassandraServer(settings)
    started = server.start()
    try:
        database.apply_schema(settings)
        for count in (500, items):
            name = make_peer(settings, count)
            peer = measure(work_peer, settings, name, count, count=count, servers=[server])
            queue = f"q-{uuid.uuid4().hex[:8]}"
            enqueue(settings, queue, count)
            project = measure(work_project, settings, queue, count, count=count, servers=[server])
            assert inspect(settings, queue).depth == 0
        print(f"{items:,} items claimed and completed, {SHARDS} shards; load average {psutil.getloadavg()[0]:.1f}")
        print(f"{'':14}{'items/s':>10}{'client CPU us/item':>22}{'server CPU us/item':>22}")
        for label, result in (("per-row LWT", peer), ("work queue", project)):
            print(f"{label:14}{result.per_second:10,.0f}{result.client_us:22,.0f}{result.server_us:22,.0f}")
        print(
            f"{'':14}{project.per_second / peer.per_second:9.1f}x{peer.client_us / project.client_us:21.1f}x"
            f"{peer.server_us / project.server_us:21.1f}x  (target {TARGET:g}x of items/s)",
            flush=True,
        )
        if latency:
            print("pick-up latency, polled: p50 {:.0f} ms, p99 {:.0f} ms".format(*measure_latency(settings, latency)))
        if idle:
            print("idle worker: {:.1f} CPU s an hour, node {:.1f}".format(*measure_idle(settings, idle)), flush=True)
        for size in map(int, filter(None, sizes.split(","))):
            queue = f"q-{uuid.uuid4().hex[:8]}"
            enqueue(settings, queue, size)
            result = measure(work_project, settings, queue, size, count=size, servers=[server])
            print(
                f"{size:>10,} items: {result.per_second:8,.0f} items/s, {result.client_us:6.0f} us client, "
                f"{result.server_us:6.0f} us server CPU an item",
                flush=True,
            )
    finally:
        with database.connect(settings) as session:
            session.execute(f"DROP KEYSPACE IF EXISTS {keyspace}", timeout=60)
        if started:
            server.stop()


if __name__ == "__main__":
    main()
