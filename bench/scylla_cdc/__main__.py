"""A ScyllaDB CDC log to Kafka: the cost of Writetime's agent and of a program with ScyllaDB's library scylla-cdc-java.

python -m bench.scylla_cdc --scylla HOST:PORT [--writes 200000] [--tablets] [--idle 90]

The keyspace `bench` is dropped and created. Both programs publish the same logs to one broker, one after the other,
with the same windows, until all rows of the log are in their topic. The node should have as many vnodes and shards as
in production, because a log has a stream for each. The library is the one of scylla-cdc-source-connector. The program
around it (`LogToKafka.java`) only writes each row as JSON, so it costs less than the connector.
"""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import click
import psutil
from cassandra.cluster import Session

from bench.capture import Run, agent, drain, per_second, program, write_rows
from bench.logs import log_to_file
from writetime.clients.database import connect
from writetime.clients.kafka import end_offsets, ensure_topics
from writetime.core import config
from writetime.core.config import Settings
from writetime.runtime import jars
from writetime.runtime.java import java
from writetime.servers.kafka import KafkaServer
from writetime.servers.process import free_port

_FEW = 1000
_CONFIDENCE_SECONDS, _WINDOW_SECONDS = 10, 30


def settings_of(home: Path, scylla: str) -> Settings:
    """Return the settings of the agent, with a broker of its own."""
    host, _, port = scylla.rpartition(":")
    return config.load(
        cassandra={"contact_points": [host], "port": int(port)},
        kafka={"bootstrap_servers": f"127.0.0.1:{free_port()}"},
        embedded={"home": home / "kafka", "kafka_controller_port": free_port(), "kafka_heap_mb": 512},
        scylla_cdc={"confidence_seconds": _CONFIDENCE_SECONDS, "window_seconds": _WINDOW_SECONDS},
    )


def write(session: Session, tables: dict[str, int], *, tablets: bool) -> None:
    """Create the tables, write to them, and wait until all windows with these writes can be read."""
    session.execute("DROP KEYSPACE IF EXISTS bench")
    session.execute(
        "CREATE KEYSPACE bench WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1} "
        f"AND tablets = {{'enabled': {str(tablets).lower()}}}"
    )
    for table, writes in tables.items():
        session.execute(
            f"CREATE TABLE {table} (k int PRIMARY KEY, a text, n bigint, p double, w text) "
            "WITH cdc = {'enabled': true}"
        )
        # The streams of a new table begin a moment later.
        time.sleep(1)
        write_rows(session, table, writes)
    time.sleep(_WINDOW_SECONDS + _CONFIDENCE_SECONDS + 5)


@contextmanager
def library(home: Path, settings: Settings, table: str, topic: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the program with ScyllaDB's library during a `with` block."""
    home.mkdir()
    class_path = os.pathsep.join(map(str, [*jars.fetch("scylla-cdc"), *jars.fetch("kafka"), home]))
    compiler = next(path for path in jars.fetch("cassandra") if "ecj" in path.name)
    source = Path(__file__).with_name("LogToKafka.java")
    options = ["-17", "-nowarn", "-proc:none", "-cp", class_path, "-d", home, source]
    subprocess.run([str(part) for part in (java(), "-jar", compiler, *options)], check=True)
    windows = [str(1000 * seconds) for seconds in (_WINDOW_SECONDS, _CONFIDENCE_SECONDS)]
    node = [settings.cassandra.contact_points[0], str(settings.cassandra.port)]
    arguments = [*node, *table.split("."), settings.kafka.bootstrap_servers, topic, *windows]
    command = [str(java()), "-Xmx1g", "-cp", class_path, "LogToKafka", *arguments]
    with program(home, "library", command, dict(os.environ)) as process:
        yield process


def publish(home: Path, settings: Settings, name: str, log: tuple[str, int], idle: float = 0) -> Run:
    """Run a program on the log of a table with this number of rows, and then for some seconds without new rows."""
    table, rows = log
    topic = f"changes.{table}" if name == "writetime" else f"library.{table}"
    ensure_topics(settings, {topic: {}}, 4)
    folder = home / f"{name}-{table}"
    running: AbstractContextManager[subprocess.Popen[bytes]]
    if name == "writetime":
        folder.mkdir()
        capture = {"source": "scylla-cdc", "tables": [table], "snapshot": "schema-only", "state_dir": folder / "state"}
        running = agent(folder, settings.model_copy(update={"capture": settings.capture.model_copy(update=capture)}))
    else:
        running = library(folder, settings, table, topic)
    before = sum(end_offsets(settings, topic).values())
    with running as process:
        run = drain(settings, topic, process, rows, before)
        cores = _cores(process, idle) if idle else None
    print(
        f"{name:9} {run.events:>9,} rows: {run.cpu:6.2f} CPU s, {run.wall:6.2f} s, peak {run.peak >> 20} MiB",
        flush=True,
    )
    if cores is not None:
        print(f"{name:9} without new rows: {cores:.4f} cores", flush=True)
    return run


def _cores(process: subprocess.Popen[bytes], seconds: float) -> float:
    """Return the cores that a program uses from some windows after its first rows on."""
    watched = psutil.Process(process.pid)
    time.sleep(_WINDOW_SECONDS)
    before, began = sum(watched.cpu_times()[:2]), time.perf_counter()
    time.sleep(seconds)
    return (sum(watched.cpu_times()[:2]) - before) / (time.perf_counter() - began)


@click.command()
@click.option("--scylla", required=True, metavar="HOST:PORT", help="A running ScyllaDB.")
@click.option("--writes", default=200_000, show_default=True, help="Rows of the log.")
@click.option("--tablets/--vnodes", default=False, show_default=True, help="Whether the keyspace uses tablets.")
@click.option("--idle", default=90.0, show_default=True, help="Seconds without new rows; 0 leaves this out.")
def main(scylla: str, writes: int, tablets: bool, idle: float) -> None:
    """Compare the agent with ScyllaDB's library, on a log with few rows and on one with many."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        settings = settings_of(home, scylla)
        kafka = KafkaServer(settings)
        try:
            kafka.start()
            with connect(settings) as session:
                write(session, {"bench.few": _FEW, "bench.writes": writes}, tablets=tablets)
            rates: list[tuple[float | None, ...]] = []
            for each in ("writetime", "library"):
                few = publish(home, settings, each, ("bench.few", _FEW), idle)
                many = publish(home, settings, each, ("bench.writes", writes))
                rates.append(
                    (
                        per_second(many.events, many.cpu),
                        per_second(many.events, many.wall),
                        per_second(many.events - few.events, many.cpu - few.cpu),
                        per_second(many.events - few.events, many.wall - few.wall),
                    )
                )
            labels = ("per CPU s, start included", "per s, start included", "per CPU s, without the start",
                      "per s, without the start")  # fmt: skip
            for label, ours, theirs in zip(labels, *rates, strict=True):
                if ours and theirs:
                    print(f"rows {label}: {ours:,.0f} and {theirs:,.0f}, {ours / theirs:.1f} times", flush=True)
        finally:
            kafka.stop()


if __name__ == "__main__":
    log_to_file()
    main()
