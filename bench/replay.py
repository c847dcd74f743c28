"""Replay queues compared with the plain lock-write-advertise cycle and with Kafka: rates and CPU, on the same items.

python -m bench.replay

Batches of 1, 100 and 10,000 items are published and consumed, with the same bytes in each way. At the end of each
round, all items must have arrived. There is one publisher, one consumer, and one server of each kind. The ways:

- `replay`: `Publisher.publish` with producer and sequence; `Subscriber.run` with a cursor, and `replay` without one.
- `plain`: the publisher takes ZooKeeper's lock, reads the number, inserts a row per item, sets the number, and releases
  the lock. The consumer reads the number, then the rows batch by batch, and sets its own number.
- `kafka`: an idempotent producer with acks=all waits until a batch is acknowledged. The consumer commits after each
  batch.
- `transactions`: one transaction per batch, read committed, so a batch is complete or missing.
- `stream`: no wait per batch, and the consumer commits at any time. This is the fastest use of Kafka.

At the end, the program prints the table of docs/benchmarks.md.
"""

import json
import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
import psutil
from cassandra.concurrent import execute_concurrent_with_args
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kazoo.client import KazooClient

from bench.logs import log_to_file
from bench.rounds import Result, measure
from writetime import servers
from writetime.clients import database
from writetime.clients.kafka import client_config, ensure_topics
from writetime.core import config
from writetime.core.config import Settings
from writetime.replay import Batch, Publisher, Subscriber, replay
from writetime.servers.cassandra import CassandraServer
from writetime.servers.kafka import KafkaServer
from writetime.servers.process import EmbeddedServer
from writetime.servers.zookeeper import ZooKeeperServer

# The number of batches of each size. With these numbers the benchmark takes about three minutes.
SIZES = {1: 800, 100: 250, 10_000: 5}
_IN_FLIGHT = 100
_FETCH = 10_000

Work = Callable[[Settings, str, int, int], None]


def make_items(size: int) -> list[bytes]:
    """Return the items of a batch: JSON of about 200 bytes, of which about half is random."""
    r = random.Random(size)
    return [
        json.dumps(
            {"user": f"user-{r.randrange(1000)}", "type": "click", "n": n, "token": r.randbytes(60).hex()}
        ).encode()
        for n in range(size)
    ]


# -- replay


def publish_replay(settings: Settings, queue: str, size: int, batches: int) -> None:
    """Publish with Writetime."""
    items = make_items(size)
    with Publisher(settings, queue) as publisher:
        for sequence in range(batches):
            publisher.publish(items, producer="bench", sequence=sequence)


def consume_replay(settings: Settings, queue: str, size: int, batches: int) -> None:
    """Process all batches."""
    seen = 0

    def count(batch: Batch) -> None:
        nonlocal seen
        seen += len(batch.items)

    with Subscriber(settings, queue, "bench") as subscriber:
        subscriber.run(count, until_idle=True)
    assert seen == size * batches


def read_replay(settings: Settings, queue: str, size: int, batches: int) -> None:
    """Read all batches again."""
    assert sum(len(batch.items) for batch in replay(settings, queue)) == size * batches


# -- the plain cycle


@contextmanager
def zookeeper(settings: Settings) -> Iterator[KazooClient]:
    """Open a client."""
    client = KazooClient(settings.zookeeper.hosts)
    client.start()
    yield client
    client.stop()
    client.close()


def number_at(client: KazooClient, path: str) -> int:
    """Return the number in a node."""
    data, _ = client.get(path)  # type: ignore[misc]
    return int(data or 0)


def publish_plain(settings: Settings, queue: str, size: int, batches: int) -> None:
    """Lock, write, advertise."""
    items, path = make_items(size), f"/plain/{queue}"
    with database.connect(settings) as session, zookeeper(settings) as client:
        client.ensure_path(path)
        lock = client.Lock(f"{path}/lock")
        insert = session.prepare(
            f"INSERT INTO {settings.cassandra.keyspace}.plain (queue, n, idx, data) VALUES (?, ?, ?, ?)"
        )
        for _ in range(batches):
            with lock:
                n = number_at(client, path) + 1
                rows = [(queue, n, i, item) for i, item in enumerate(items)]
                execute_concurrent_with_args(session, insert, rows, _IN_FLIGHT, raise_on_first_error=True)
                client.set(path, b"%d" % n)


def consume_plain(settings: Settings, queue: str, size: int, batches: int) -> None:
    """Read batch by batch, and keep the number of the last one."""
    path, seen = f"/plain/{queue}", 0
    with database.connect(settings) as session, zookeeper(settings) as client:
        client.ensure_path(f"{path}/bench")
        select = session.prepare(f"SELECT data FROM {settings.cassandra.keyspace}.plain WHERE queue = ? AND n = ?")
        for n in range(number_at(client, f"{path}/bench") + 1, number_at(client, path) + 1):
            seen += sum(1 for _ in session.execute(select, (queue, n)))
            client.set(f"{path}/bench", b"%d" % n)
    assert seen == size * batches


# -- Kafka


def make_producer(settings: Settings, **own: str) -> Producer:
    """Return a producer that neither loses nor repeats a message. It compresses like Writetime's batches."""
    more = {"enable.idempotence": True, "acks": "all", "compression.type": "zstd"}
    return Producer(client_config(settings, **more, **own))


def send(producer: Producer, topic: str, items: list[bytes]) -> None:
    """Pass items to a producer."""
    for item in items:
        while True:
            try:
                producer.produce(topic, item, partition=0)
                break
            except BufferError:
                producer.poll(0.05)
    producer.poll(0)


def publish_kafka(settings: Settings, topic: str, size: int, batches: int) -> None:
    """Wait for each batch."""
    items, producer = make_items(size), make_producer(settings)
    for _ in range(batches):
        send(producer, topic, items)
        assert producer.flush(60) == 0


def publish_transactions(settings: Settings, topic: str, size: int, batches: int) -> None:
    """Publish each batch in a transaction."""
    items, producer = make_items(size), make_producer(settings, **{"transactional.id": topic})
    producer.init_transactions(60)
    for _ in range(batches):
        producer.begin_transaction()
        send(producer, topic, items)
        producer.commit_transaction(60)


def publish_stream(settings: Settings, topic: str, size: int, batches: int) -> None:
    """Wait at the end only."""
    items, producer = make_items(size), make_producer(settings)
    for _ in range(batches):
        send(producer, topic, items)
    assert producer.flush(60) == 0


def consume_kafka(settings: Settings, topic: str, size: int, batches: int) -> None:
    """Commit after each batch."""
    _consume(settings, topic, size, size * batches, wait=True)


def consume_stream(settings: Settings, topic: str, size: int, batches: int) -> None:
    """Take the available messages, and do not wait for commits."""
    _consume(settings, topic, _FETCH, size * batches, wait=False)


def _consume(settings: Settings, topic: str, fetch: int, left: int, *, wait: bool) -> None:
    own = {"group.id": topic, "enable.auto.commit": False, "isolation.level": "read_committed"}
    consumer = Consumer(client_config(settings, **own))
    consumer.assign([TopicPartition(topic, 0, 0)])
    while left:
        wanted = min(fetch, left)
        got = 0
        # A batch is taken completely; a consumer that does not wait takes the available messages.
        while got < (wanted if wait else 1):
            messages = consumer.consume(wanted - got, 1.0)
            if error := next((m.error() for m in messages if m.error()), None):
                raise KafkaException(error)
            got += len(messages)
        consumer.commit(asynchronous=not wait)
        left -= got
    consumer.close()


# (name, publish, ways to consume by name)
WAYS: list[tuple[str, Work, dict[str, Work]]] = [
    ("replay", publish_replay, {"subscriber": consume_replay, "replay": read_replay}),
    ("plain", publish_plain, {"": consume_plain}),
    ("kafka", publish_kafka, {"": consume_kafka}),
    ("transactions", publish_transactions, {"": consume_kafka}),
    ("stream", publish_stream, {"": consume_stream}),
]


def run_way(settings: Settings, way: str, size: int, batches: int) -> dict[str, Result]:
    """Publish and consume in one way; return the measures of each step."""
    queue = f"bench-{way}-{uuid.uuid4().hex[:8]}"
    [(_, publish, consume)] = [entry for entry in WAYS if entry[0] == way]
    used: list[EmbeddedServer] = [CassandraServer(settings), ZooKeeperServer(settings)]
    if way not in ("replay", "plain"):
        used = [KafkaServer(settings)]
        ensure_topics(settings, {queue: {}}, 1)
    steps = {"publish": publish, **{f"consume {name}".rstrip(): work for name, work in consume.items()}}
    return {
        step: measure(work, settings, queue, size, batches, count=size * batches, servers=used)
        for step, work in steps.items()
    }


def report(way: str, step: str, result: Result, size: int, against: dict[str, Result]) -> str:
    """Return one line: the measures, and the ratios to the rates of the plain cycle and of Kafka."""
    ratios = "".join(f"{result.per_second / other.per_second:9.2f}x" for other in against.values())
    per_batch = result.per_second / size
    cpu = f"{result.client_us:12,.1f}{result.server_us:12,.1f}"
    return f"{way:13}{step:19}{result.per_second:11,.0f}{per_batch:11,.1f}{cpu}{ratios}"


def document(found: dict[int, dict[str, dict[str, Result]]]) -> Iterator[str]:
    """Yield the lines of the table of docs/benchmarks.md."""
    ways = ("replay", "plain", "kafka", "transactions")
    yield "| items per batch | | replay | plain | Kafka | transactions |"
    yield "| ---: | --- | ---: | ---: | ---: | ---: |"
    for size, results in found.items():
        published = [results[way]["publish"] for way in ways]
        consumed = [next(r for step, r in results[way].items() if step != "publish") for way in ways]
        rows = {
            "published, items/s": [f"{r.per_second:,.0f}" for r in published],
            "CPU of client and server, us per item": [
                f"{_short(r.client_us)} + {_short(r.server_us)}" for r in published
            ],
            "consumed with a cursor, items/s": [f"{r.per_second:,.0f}" for r in consumed],
        }
        for first, (name, values) in zip((f"{size:,}", "", ""), rows.items(), strict=True):
            yield " | ".join([f"| {first}".rstrip(), name, *values]) + " |"


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}"


@click.command()
@click.option("--sizes", default="1,100,10000", show_default=True, help="Items of a batch.")
@click.option("--scale", default=1.0, show_default=True, help="Multiple of the usual number of batches.")
def main(sizes: str, scale: float) -> None:
    """Measure all ways with all sizes."""
    settings = config.load()
    keyspace = f"b{uuid.uuid4().hex[:12]}"
    cassandra = settings.cassandra.model_copy(update={"keyspace": keyspace})
    settings = settings.model_copy(update={"cassandra": cassandra})
    started = [server for server, launched in servers.up(settings) if launched]
    try:
        database.apply_schema(settings)
        with database.connect(settings) as session:
            session.execute(
                f"CREATE TABLE {keyspace}.plain (queue text, n bigint, idx int, data blob, "
                "PRIMARY KEY ((queue, n), idx))"
            )
        for way, _, _ in WAYS:
            run_way(settings, way, 100, 20)
        measured: dict[int, dict[str, dict[str, Result]]] = {}
        for size in map(int, sizes.split(",")):
            batches = max(1, round(SIZES[size] * scale))
            print(f"\n{batches:,} batches of {size:,} items; load average {psutil.getloadavg()[0]:.1f}")
            print(
                f"{'':32}{'items/s':>11}{'batches/s':>11}{'client us':>12}{'server us':>12}{'plain':>10}{'kafka':>10}"
            )
            measured[size] = found = {way: run_way(settings, way, size, batches) for way, _, _ in WAYS}
            for way, steps in found.items():
                for step, result in steps.items():
                    kind = step.split(" ")[0]
                    against = {peer: found[peer][kind] for peer in ("plain", "kafka")}
                    print(report(way, step, result, size, against), flush=True)
        print("", *document(measured), sep="\n")
    finally:
        with database.connect(settings) as session:
            session.execute(f"DROP KEYSPACE IF EXISTS {keyspace}", timeout=60)
        for server in reversed(started):
            server.stop()


if __name__ == "__main__":
    log_to_file()
    main()
