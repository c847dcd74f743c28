"""Commit logs to Kafka: the cost and the delay of Writetime's agent and of Debezium's tuned connector for Cassandra 5.

python -m bench.capture [--writes 200000] [--seconds 20] [--rate 200]

Both programs run as in production, one after the other, on copies of the same segments and with one broker, until all
events are in their topic. The delay is measured from the acknowledgement of a write until the change is in Kafka. For
Writetime with landing, it is also measured until the row is in the virtual view, which is read completely each time.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import psutil
from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent
from confluent_kafka import Consumer, TopicPartition

from bench.logs import log_to_file
from tests.support.format_server import FormatServer
from tests.support.settings import write_settings
from writetime.clients.kafka import client_config, end_offsets, ensure_topics
from writetime.core import config
from writetime.core.config import Settings
from writetime.lake import views
from writetime.lake.table import LakeTable, open_table, table_storage
from writetime.runtime import jars
from writetime.runtime.cassandra_java import module_options
from writetime.runtime.java import java
from writetime.servers.kafka import KafkaServer
from writetime.servers.process import free_port
from writetime.storage.commitlog import CommitLogReader
from writetime.storage.segment import END, find_segments, trusted

KEYSPACE = "CREATE KEYSPACE bench WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
TABLE = "CREATE TABLE bench.writes (k int PRIMARY KEY, a text, n bigint, p double, w text) WITH cdc = true"
FILLING = "CREATE TABLE bench.filling (k int PRIMARY KEY, v blob)"
OURS, THEIRS = "changes.bench.writes", "debezium.bench.writes"
_JSON = "org.apache.kafka.connect.json.JsonConverter"


@dataclass
class Run:
    """The cost of publishing: CPU and wall seconds, including the start of the program, and peak bytes."""

    events: int
    cpu: float
    wall: float
    peak: int


def settings_of(home: Path, node: FormatServer, **capture: object) -> Settings:
    """Return the settings for this benchmark's own broker and a node."""
    return config.load(
        cassandra={"port": node.port},
        kafka={"bootstrap_servers": f"127.0.0.1:{free_port()}"},
        embedded={"home": home / "kafka", "kafka_controller_port": free_port(), "kafka_heap_mb": 512},
        capture={"state_dir": home / "state", "snapshot": "schema-only", **capture},
        lake={"path": str(home / "lake"), "buckets": 4},
    )


def write(node: FormatServer, writes: int) -> None:
    """Write into segments that the node completes."""
    session = node.session()
    session.default_timeout = 120
    for statement in (TABLE, FILLING):
        session.execute(statement)
    write_rows(session, "bench.writes", writes)
    fill = session.prepare("INSERT INTO bench.filling (k, v) VALUES (1, ?)")
    time.sleep(1)  # The log is synced every 100 ms.
    written = {s.id for s, until in trusted(find_segments(str(node.cdc_raw))) if until is not None}
    while any(until != END for s, until in trusted(find_segments(str(node.cdc_raw))) if s.id in written):
        session.execute(fill, (os.urandom(200_000),))


def write_rows(session: Session, table: str, writes: int) -> None:
    """Write to a table with the columns of `TABLE`: three quarters inserts, then updates and some deletions."""
    insert = session.prepare(f"INSERT INTO {table} (k, a, n, p, w) VALUES (?, ?, ?, ?, ?)")
    update = session.prepare(f"UPDATE {table} SET n = ?, w = ? WHERE k = ?")
    delete = session.prepare(f"DELETE FROM {table} WHERE k = ?")
    statements = (
        (insert, (i, f"a{i % 7}", i * 3, i / 2, f"note {i}"))
        if i % 20 < 15
        else (update, (i, f"changed {i}", i - 15))
        if i % 20 < 19
        else (delete, (i - 18,))
        for i in range(writes)
    )
    execute_concurrent(session, statements, concurrency=32, raise_on_first_error=True)


def copy_segments(node: FormatServer, target: Path, most: int | None = None) -> int:
    """Copy completed segments with their indexes, or the first ones; return the number of their changes."""
    target.mkdir(parents=True)
    reader = CommitLogReader(node.schemas(), ["bench.writes"], on_unknown_table="skip")
    count = 0
    for segment, until in trusted(find_segments(str(node.cdc_raw)))[:most]:
        if until == END:
            path = Path(segment.path)
            shutil.copy(path, target)
            shutil.copy(path.with_name(f"{path.stem}_cdc.idx"), target)
            count += sum(changes.num_rows for _, changes in reader.read(segment))
    return count


@contextmanager
def agent(home: Path, settings: Settings) -> Iterator[subprocess.Popen[bytes]]:
    """Run Writetime's agent during a `with` block."""
    write_settings(settings, home / "writetime.toml")
    command = [sys.executable, "-m", "writetime", "agent"]
    with program(home, "writetime", command, environment(home)) as process:
        yield process


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a program with the settings of this folder."""
    return {**os.environ, "WRITETIME_CONFIG": str(home / "writetime.toml")}


@contextmanager
def debezium(home: Path, settings: Settings, node: Path, cdc_raw: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run Debezium's connector during a `with` block, with larger batches and queues and shorter waits than by default.
    `node` is the folder of the node's configuration.
    """
    home = home / "debezium"
    home.mkdir(exist_ok=True)
    yaml = json.loads((node / "cassandra.yaml").read_text()) | {"cdc_raw_directory": str(cdc_raw)}
    (home / "cassandra.yaml").write_text(json.dumps(yaml))
    address = f"127.0.0.1:{settings.cassandra.port}"
    contact = f'contact-points = ["{address}"], load-balancing-policy.local-datacenter = datacenter1'
    (home / "driver.conf").write_text(f"datastax-java-driver {{ basic {{ {contact} }} }}")
    (home / "logback.xml").write_text(
        '<configuration><appender name="OUT" class="ch.qos.logback.core.ConsoleAppender"><encoder><pattern>'
        '%level %logger{0} %msg%n</pattern></encoder></appender><root level="WARN"><appender-ref ref="OUT"/></root>'
        "</configuration>"
    )
    properties = {
        "connector.class": "io.debezium.connector.cassandra.Cassandra5Connector",
        "topic.prefix": "debezium",
        "cassandra.node.id": "bench",
        "cassandra.cluster.name": "writetime",
        "cassandra.config": home / "cassandra.yaml",
        "cassandra.driver.config.file": home / "driver.conf",
        "kafka.producer.bootstrap.servers": settings.kafka.bootstrap_servers,
        "kafka.producer.linger.ms": 20,
        "kafka.producer.batch.size": 262_144,
        "kafka.producer.compression.type": "lz4",
        "offset.backing.store.dir": home / "offsets",
        "offset.flush.interval.ms": 1000,
        "max.offset.flush.size": 100_000,
        "commit.log.relocation.dir": home / "relocated",
        "commit.log.real.time.processing.enabled": "true",
        "commit.log.marked.complete.poll.interval.ms": 100,
        "cdc.dir.poll.interval.ms": 100,
        "max.batch.size": 8192,
        "max.queue.size": 65_536,
        "poll.interval.ms": 10,
        "snapshot.mode": "NEVER",
        "http.port": free_port(),
        "key.converter": _JSON,
        "value.converter": _JSON,
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
    }
    (home / "relocated").mkdir(exist_ok=True)
    (home / "offsets").mkdir(exist_ok=True)
    (home / "connector.properties").write_text("".join(f"{k}={v}\n" for k, v in properties.items()))
    (connector,) = jars.fetch("bench")
    command = [
        str(java()),
        *module_options(),
        f"-Dcassandra.storagedir={home}",
        f"-Dlogback.configurationFile={home / 'logback.xml'}",
        "-Xmx1g",
        *("-jar", str(connector), str(home / "connector.properties")),
    ]
    with program(home, "debezium", command, dict(os.environ)) as process:
        yield process


@contextmanager
def program(
    home: Path, name: str, command: list[str], environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program during a `with` block; its output is in `NAME.log` of the folder."""
    with (home / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def drain(settings: Settings, topic: str, process: subprocess.Popen[bytes], events: int, before: int = 0) -> Run:
    """Wait until a topic has this many more events than before, and return the cost."""
    watched = psutil.Process(process.pid)
    begin = time.perf_counter()
    peak = 0
    while True:
        if process.poll() is not None:
            raise RuntimeError(f"{topic}: the program ended with status {process.returncode}")
        there = sum(end_offsets(settings, topic).values()) - before
        times = watched.cpu_times()
        peak = max(peak, watched.memory_info().rss)
        if there >= events:
            return Run(there, times.user + times.system, time.perf_counter() - begin, peak)
        time.sleep(0.02)


@contextmanager
def topic_keys(settings: Settings, topic: str, key: Callable[[bytes], int]) -> Iterator[Callable[[], list[int]]]:
    """Yield a function that returns the keys of the rows that came to a topic since its last call."""
    consumer = Consumer(client_config(settings, **{"group.id": "bench", "fetch.wait.max.ms": 5}))
    consumer.assign([TopicPartition(topic, p, o) for p, o in end_offsets(settings, topic).items()])

    def read() -> list[int]:
        return [key(m.key() or b"") for m in consumer.consume(500, 0.005) if m.error() is None]

    try:
        yield read
    finally:
        consumer.close()


def view_keys(settings: Settings) -> list[int]:
    """Return the keys of the rows that `writetime view` would show."""
    parts = views.virtual(open_table(settings, "bench.writes"))
    return [k for part in parts for k in part["k"].to_pylist()]


def follow(node: FormatServer, seen: Callable[[], list[int]], base: int, rows: tuple[int, float]) -> list[float]:
    """Write rows at a rate, for some seconds; return the delay of each after its acknowledgement."""
    arrived: dict[int, float] = {}
    acknowledged: dict[int, float] = {}
    rate, seconds = rows
    count = int(rate * seconds)

    def read() -> None:
        deadline = time.perf_counter() + seconds + 60
        missing = set(range(base, base + count))
        while missing and time.perf_counter() < deadline:
            keys = missing.intersection(seen())
            arrived.update(dict.fromkeys(keys, time.perf_counter()))
            missing -= keys

    reader = threading.Thread(target=read)
    reader.start()
    session = node.session()
    insert = session.prepare("INSERT INTO bench.writes (k, a, n, p, w) VALUES (?, 'a', 1, 1.5, 'w')")
    begin = time.perf_counter()
    for i in range(count):
        time.sleep(max(0.0, begin + i / rate - time.perf_counter()))
        session.execute(insert, (base + i,))
        acknowledged[base + i] = time.perf_counter()
    reader.join()
    missing = count - sum(1 for k in acknowledged if k in arrived)
    if missing:
        print(f"  {missing} of {count} rows had not arrived after a minute")
    return sorted(max(0.0, arrived[k] - at) for k, at in acknowledged.items() if k in arrived)


def percentiles(late: list[float]) -> str:
    """Show the median and the 99th percentile."""
    return f"p50 {statistics.median(late) * 1000:.0f} ms, p99 {late[int(len(late) * 0.99) - 1] * 1000:.0f} ms"


def publish(home: Path, settings: Settings, node: FormatServer, name: str, segments: int | None) -> Run:
    """Run one of the programs on copies of the first segments, or of all segments."""
    folder = home / f"{name}-{segments or 'all'}"
    events = copy_segments(node, folder / "cdc_raw", segments)
    topic = OURS if name == "writetime" else THEIRS
    ensure_topics(settings, {topic: {}}, 4)
    before = sum(end_offsets(settings, topic).values())
    if name == "writetime":
        own = settings.capture.model_copy(update={"cdc_raw": folder / "cdc_raw", "state_dir": folder / "state"})
        running = agent(folder, settings.model_copy(update={"capture": own}))
    else:
        running = debezium(folder, settings, node.folder, folder / "cdc_raw")
    with running as process:
        run = drain(settings, topic, process, events, before)
    print(
        f"{name:10} {run.events:>9,} events: {run.cpu:6.2f} CPU s, {run.wall:6.2f} s, peak {run.peak >> 20} MiB",
        flush=True,
    )
    return run


def per_second(events: int, seconds: float) -> float | None:
    """Return the events per second; None if the difference of two runs is too small to give a rate."""
    return events / seconds if events > 0 and seconds > 0 else None


def throughput(home: Path, writes: int) -> None:
    """Print the cost of publishing the same segments: the total with the start, and the part beyond one segment."""
    log = {"commitlog_sync": "periodic", "commitlog_sync_period": "100ms", "commitlog_segment_size": "2MiB"}
    node = FormatServer(home / "node", "oa", **log)
    settings = settings_of(home, node)
    kafka = KafkaServer(settings)
    try:
        kafka.start()
        node.start()
        node.write([KEYSPACE])
        write(node, writes)
        rates: list[tuple[float | None, ...]] = []
        for name in ("writetime", "debezium"):
            one, every = (publish(home, settings, node, name, most) for most in (1, None))
            beyond = every.events - one.events
            rates.append(
                (
                    per_second(every.events, every.cpu),
                    per_second(every.events, every.wall),
                    per_second(beyond, every.cpu - one.cpu),
                    per_second(beyond, every.wall - one.wall),
                )
            )
        labels = ("per CPU s, start included", "per s, start included", "per CPU s, beyond one segment",
                  "per s, beyond one segment")  # fmt: skip
        for label, ours, theirs in zip(labels, *rates, strict=True):
            if ours is None or theirs is None:
                print(f"events {label}: not measured, as the other segments took less than the noise", flush=True)
            else:
                print(f"events {label}: {ours:,.0f} and {theirs:,.0f}, {ours / theirs:.1f} times", flush=True)
    finally:
        node.stop()
        kafka.stop()


def live(home: Path, sync: str, rate: int, seconds: float) -> None:
    """Print the delay of each program while a node takes writes."""
    period = {} if sync == "batch" else {"commitlog_sync_period": "100ms"}
    node = FormatServer(home / "live", "oa", commitlog_sync=sync, **period)
    home.mkdir(exist_ok=True)
    settings = settings_of(home, node)
    kafka = KafkaServer(settings)
    try:
        kafka.start()
        node.start()
        node.write([KEYSPACE, TABLE, "INSERT INTO bench.writes (k) VALUES (-1)"])
        ensure_topics(settings, {OURS: {}, THEIRS: {}}, 4)
        conditions = f"live, commitlog_sync {sync}, {rate} rows per second"
        with agent(home, settings) as process:
            drain(settings, OURS, process, 1)
            with topic_keys(settings, OURS, lambda k: int.from_bytes(k, "big", signed=True)) as seen:
                late = follow(node, seen, 0, (rate, seconds))
            print(f"writetime  {conditions}, in Kafka: {percentiles(late)}", flush=True)
            with program(home, "landing", [sys.executable, "-m", "writetime", "follow"], environment(home)):
                changes = LakeTable(table_storage(settings, "bench.writes")).changes
                while not (changes.exists() and view_keys(settings)):
                    time.sleep(0.1)
                late = follow(node, lambda: view_keys(settings), 10**6, (rate, seconds))
            print(f"writetime  {conditions}, in the virtual view: {percentiles(late)}", flush=True)
        with debezium(home, settings, node.folder, node.cdc_raw) as process:
            drain(settings, THEIRS, process, 1)
            with topic_keys(settings, THEIRS, lambda k: json.loads(k)["k"]) as seen:
                late = follow(node, seen, 2 * 10**6, (rate, seconds))
        print(f"debezium   {conditions}, in Kafka: {percentiles(late)}", flush=True)
    finally:
        node.stop()
        kafka.stop()


@click.command()
@click.option("--writes", default=200_000, show_default=True, help="Mutations in the commit log.")
@click.option("--seconds", default=20.0, show_default=True, help="How long to write live.")
@click.option("--rate", default=200, show_default=True, help="Rows per second, live.")
@click.option("--sync", default="batch", show_default=True, help="The node's commitlog_sync, live: batch, periodic.")
def main(writes: int, seconds: float, rate: int, sync: str) -> None:
    """Compare the agent with Debezium's connector."""
    with tempfile.TemporaryDirectory() as name:
        if writes:
            throughput(Path(name), writes)
        if seconds:
            live(Path(name) / "live-run", sync, rate, seconds)


if __name__ == "__main__":
    log_to_file()
    main()
