"""The sink's modes compared with a loop of `INSERT IF NOT EXISTS`: events/s and CPU per event, on the same data.

python -m bench.ingest

The events are in Kafka before a round begins. The loop reads them and inserts one after the other, as a simple consumer
does. The sink's rounds run its pipeline from Kafka to the table. Each round has a separate process and keyspace, and
its time includes connecting to both servers. There are two data sets. In one, each event has a different user. In the
other, the events of a few users share partitions. After each round, the table must hold each event once.
"""

import uuid
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime

import click
from confluent_kafka import Consumer, Producer, TopicPartition

from bench import ingress as bench_ingress
from bench import rounds
from bench.logs import log_to_file
from bench.rounds import Result
from writetime.clients import database
from writetime.clients.kafka import client_config, end_offsets
from writetime.core import config
from writetime.core.config import Settings
from writetime.ingest.drain import OffsetRange, store_range
from writetime.ingest.event import accept, decode
from writetime.ingest.topics import ensure_ingest_topics
from writetime.servers.cassandra import CassandraServer
from writetime.servers.kafka import KafkaServer

WARM_UP_EVENTS = 2000


@dataclass(frozen=True)
class Case:
    """One way of storing one data set. The target is the required multiple of the loop's events/s on it."""

    data: str
    way: str
    target: float | None = None


CASES = [
    Case("spread", "loop"),
    Case("spread", "lwt", 3.0),
    Case("spread", "lwt-batch"),
    Case("spread", "upsert", 8.0),
    Case("shared", "loop"),
    Case("shared", "lwt"),
    Case("shared", "lwt-batch", 10.0),
    Case("shared", "upsert", 8.0),
]


def store_by_loop(settings: Settings, count: int) -> None:
    """Insert the events one after the other and wait for each."""
    table = f"{settings.cassandra.keyspace}.user_events"
    consumer = Consumer(client_config(settings, **{"group.id": "loop", "enable.auto.commit": False}))
    consumer.assign([TopicPartition(settings.ingest.topic, 0, 0)])
    with database.connect(settings) as session:
        insert = session.prepare(
            f"INSERT INTO {table} (user_id, event_timestamp, event_id, event_type, payload, origin) "
            "VALUES (?, ?, ?, ?, ?, ?) IF NOT EXISTS"
        )
        while count:
            for message in consumer.consume(min(500, count), 1.0):
                event = decode(message.value())
                origin = f"{message.topic()}/{message.partition()}@{message.offset()}"
                row = (event.user_id, event.timestamp, event.event_id, event.event_type, event.payload, origin)
                session.execute(insert, row)
                count -= 1
    consumer.close()


def store_by_sink(settings: Settings, count: int) -> None:
    """Run the sink's pipeline over the whole topic."""
    for _ in store_range(settings, OffsetRange(0, 0, count)):
        pass


def store(settings: Settings, way: str, count: int) -> None:
    """Store all events."""
    if way == "loop":
        store_by_loop(settings, count)
    else:
        store_by_sink(settings, count)


def measure(settings: Settings, case: Case, topic: str, count: int) -> Result:
    """Run one round in a fresh keyspace and check the table."""
    mode = {} if case.way == "loop" else {"mode": case.way}
    own = settings.model_copy(
        update={
            "ingest": settings.ingest.model_copy(update={"topic": topic, **mode}),
            "cassandra": settings.cassandra.model_copy(update={"keyspace": f"b{uuid.uuid4().hex[:12]}"}),
        }
    )
    database.apply_schema(own)
    result = rounds.measure(store, own, case.way, count, count=count, servers=[CassandraServer(own)])
    check_table(own, count)
    return result


def check_table(settings: Settings, count: int) -> None:
    """Assert that every event is in the table, once; then drop the keyspace."""
    keyspace = settings.cassandra.keyspace
    with database.connect(settings) as session:
        rows = Counter(row.event_id for row in session.execute(f"SELECT event_id FROM {keyspace}.user_events"))
        assert len(rows) == count, f"{len(rows)} of {count} events are in the table"
        assert set(rows.values()) == {1}, "an event is in the table twice"
        session.execute(f"DROP KEYSPACE {keyspace}", timeout=60)


def produce(settings: Settings, count: int, users: int) -> str:
    """Produce the events of `users` users into a new topic of one partition; return its name."""
    topic = f"bench-ingest-{uuid.uuid4().hex[:8]}"
    ingest = settings.ingest.model_copy(update={"topic": topic, "dead_letter_topic": f"{topic}.dead", "partitions": 1})
    own = settings.model_copy(update={"ingest": ingest})
    ensure_ingest_topics(own)
    producer = Producer(client_config(own, **{"acks": "all", "compression.type": "gzip"}))
    for number in range(count):
        body = {"userId": f"user-{number % users}", "eventType": "click", "payload": {"n": number, "text": "x" * 100}}
        event = accept(body, None, datetime.now(UTC))
        producer.produce(topic, key=event.key(), value=event.value())
        producer.poll(0)
    producer.flush()
    assert sum(end_offsets(own, topic).values()) == count
    return topic


def report(case: Case, result: Result, loop: Result | None) -> str:
    """Return one line of the table."""
    ratio = "" if loop is None else f"{result.per_second / loop.per_second:7.1f}x"
    target = "" if case.target is None else f"  (target {case.target:g}x)"
    numbers = f"{result.per_second:12,.0f}{result.client_us:20.0f}{result.server_us:20.0f}"
    return f"{case.data:8}{case.way:11}{numbers}{ratio:>9}{target}"


@click.command()
@click.option("--events", default=20_000, show_default=True, help="Events in each data set.")
@click.option("--users", default=50, show_default=True, help="Users in the data set whose events share partitions.")
@click.option("--ingress/--no-ingress", default=True, show_default=True, help="Measure the HTTP ingress too.")
def main(events: int, users: int, ingress: bool) -> None:
    """Measure every way of storing events, and compare it with the loop on the same data."""
    settings = config.load()
    started = [server for server in (KafkaServer(settings), CassandraServer(settings)) if server.start()]
    try:
        for case in CASES:
            measure(settings, case, produce(settings, WARM_UP_EVENTS, users), WARM_UP_EVENTS)
        topics = {"spread": produce(settings, events, events), "shared": produce(settings, events, users)}
        print(f"{events:,} events; spread: one user each, shared: {users} users; loop: sequential INSERT IF NOT EXISTS")
        print(f"{'data':8}{'way':11}{'events/s':>12}{'client CPU us/event':>20}{'server CPU us/event':>20}{'':>9}")
        loops: dict[str, Result] = {}
        for case in CASES:
            result = measure(settings, case, topics[case.data], events)
            if case.way == "loop":
                loops[case.data] = result
            print(report(case, result, None if case.way == "loop" else loops[case.data]), flush=True)
    finally:
        for server in started:
            server.stop()
    if ingress:
        bench_ingress.main(standalone_mode=False, args=[])


if __name__ == "__main__":
    log_to_file()
    main()
