"""`writetime follow`: the delay from a write's acknowledgement until its row event is in Kafka and its row in the view.

python -m bench.follow [--rows 1000000] [--rates 200 1000] [--seconds 60] [--kills] [--backlog 5000000] [--debezium]

A node of Cassandra, its agent and `follow` run as in production. The first rows go into the lake directly. The writes
update five columns of random rows. A consumer of committed messages reads each row event. The view's files are read as
soon as their commit is in the log. CPU is that of `follow` alone.

`--kills` kills `follow` and starts it again, and then kills each of two programs that share the tables. `--backlog`
stops it until this number of changes is in Kafka. `--debezium` writes at the same rates to the same node while only
Debezium's tuned connector for Cassandra 5 runs. It measures the delay until the change is in Kafka, because Debezium
has neither row events nor a view.
"""

import argparse
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from bench.capture import debezium
from bench.generated import ROWS, add, first_writes, updates
from bench.logs import log_to_file
from bench.memory import anonymous_of
from bench.soak import at_rate, settings_of
from demo.live import EVENT, Delays, Marked, watched, watched_topic
from tests.support.settings import write_settings
from writetime import servers
from writetime.capture.change_publisher import ChangePublisher
from writetime.clients import database
from writetime.core.config import Settings
from writetime.core.waiting import wait_until
from writetime.lake import state
from writetime.lake.projection import ROW_EVENTS, VIEW
from writetime.lake.table import LakeTable, create_table, open_table
from writetime.landing.landed_offsets import not_landed
from writetime.row_events.publish import not_published
from writetime.row_events.stream import extend
from writetime.schema.system import read_schemas
from writetime.schema.table import TableSchema
from writetime.servers.cassandra import CassandraServer
from writetime.servers.process import free_port
from writetime.view.refreshing import refresh

MARKED, _THEIRS = Marked("bench.rows", "e"), "debezium.bench.rows"
# The number of a write. An event's image before the write may have the number of an earlier write.
_NUMBERS = itertools.count()
# Each service has a log of its own.
_SERVICES = itertools.count(1)
# Writes per second until the first has arrived, and around a kill; and the time in which programs must be ready.
_FIRST_RATE, _KILL_RATE, _SETTLE_SECONDS = 10, 200, 20
KEYSPACE = "CREATE KEYSPACE bench WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"


def fill(settings: Settings, schema: TableSchema, rows: int) -> None:
    """Put the first rows into the lake."""
    table = create_table(settings, schema)
    add(table, schema, first_writes(schema, rows), 1)
    state.fold(table)
    extend(table)
    refresh(settings, table)


def write_rows(settings: Settings, rows: int, rate: float, stop: threading.Event, delays: Delays) -> None:
    """Update rows at a rate."""
    with database.connect(settings) as session:
        update = session.prepare("UPDATE bench.rows SET a = ?, b = ?, c = ?, d = ?, e = ? WHERE id = ?")

        def acknowledge(_: object, number: int) -> None:
            delays.acknowledged[number] = time.time()

        def work(count: int) -> None:
            sent = []
            for number in itertools.islice(_NUMBERS, count):
                n = random.randrange(1 << 30)
                values = (n, n, float(n), str(n), f"write{number:09}", random.randrange(rows))
                sent.append(session.execute_async(update, values))
                sent[-1].add_callback(acknowledge, number)
            for answer in sent:
                answer.result()

        at_rate(stop, rate, work)


@contextmanager
def service(home: Path, *arguments: str) -> Iterator[psutil.Process]:
    """Run a command during a `with` block."""
    path = home / f"{arguments[0]}-{next(_SERVICES)}.log"
    with path.open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "writetime", *arguments], stdout=log, stderr=log)
        try:
            yield psutil.Process(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            if process.wait(60) not in (0, -signal.SIGKILL):
                print(path.read_text()[-3000:])


def measure(
    settings: Settings, delays: Delays, rows: int, program: psutil.Process, arguments: argparse.Namespace
) -> None:
    """Write at each rate for some time. Print the delays of the second half, and the program's CPU and memory."""
    seconds: float = arguments.seconds
    with writing(settings, rows, _FIRST_RATE, delays):
        while not delays.seen[EVENT]:
            time.sleep(1)
    for rate in arguments.rates:
        with writing(settings, rows, rate, delays):
            time.sleep(seconds / 2)
            first, cpu, begin = max(delays.acknowledged), cpu_of(program), time.monotonic()
            time.sleep(seconds / 2)
            last, cores = max(delays.acknowledged), (cpu_of(program) - cpu) / (time.monotonic() - begin)
        print(
            f"{rows:,} rows, {rate:.0f} writes per second: {cores:.2f} cores, {anonymous_of(program):.0f} MiB, "
            f"{program.num_threads()} threads, load average {psutil.getloadavg()[0]:.1f}"
        )
        print("\n".join(f"  {line}" for line in delays.lines(range(first, last))), flush=True)


@contextmanager
def writing(settings: Settings, rows: int, rate: float, delays: Delays) -> Iterator[None]:
    """Write during a `with` block, and then wait until all writes have arrived."""
    written = threading.Event()
    writer = threading.Thread(target=write_rows, args=(settings, rows, rate, written, delays))
    writer.start()
    try:
        yield
    finally:
        written.set()
        writer.join()
    time.sleep(5)


def wait_for_backlog(table: LakeTable, followed: psutil.Process) -> None:
    """Wait until the events of the first rows are published, and print the rate."""
    waiting = not_published(table)
    while not_published(table):
        time.sleep(1)
    print(f"a backlog of {waiting:,} events: {waiting / cpu_of(followed):,.0f} per CPU second", flush=True)


def kill(settings: Settings, rows: int, home: Path, stack: ExitStack) -> None:
    """Kill `follow` and start it again, and print for how long events and view were not updated."""
    followed = stack.enter_context(service(home, "follow"))
    time.sleep(_SETTLE_SECONDS)

    def restart() -> None:
        followed.kill()
        stack.enter_context(service(home, "follow"))

    longest_delay("killed and started again", settings, rows, restart)


def take_over(settings: Settings, rows: int, home: Path, stack: ExitStack) -> None:
    """Kill each of two programs that share the tables, and print for how long events and view were not updated."""
    sharing = settings.model_copy(update={"follow": settings.follow.model_copy(update={"share": True})})
    write_settings(sharing, home / "writetime.toml")
    stack.callback(write_settings, settings, home / "writetime.toml")
    first, second = (stack.enter_context(service(home, "follow")) for _ in range(2))
    time.sleep(_SETTLE_SECONDS)
    longest_delay("the first of two programs killed", settings, rows, first.kill)
    stack.enter_context(service(home, "follow"))
    time.sleep(_SETTLE_SECONDS)
    longest_delay("the second of two programs killed", settings, rows, second.kill)


def longest_delay(what: str, settings: Settings, rows: int, kill: Callable[[], None]) -> None:
    """Write before and after a kill, and print the longest delays."""
    with watched(settings, MARKED, 0.01) as delays:
        with writing(settings, rows, _KILL_RATE, delays):
            time.sleep(5)
            kill()
            time.sleep(25)
        last = max(delays.acknowledged)
        if not wait_until(lambda: all(last in seen for seen in delays.seen.values()), 60):
            missing = [where for where, seen in delays.seen.items() if last not in seen]
            raise RuntimeError(f"{what}: after a minute the last write is not in {missing}: {delays.lines()}")
        shown = ", ".join(f"{where} {max(delays.of(where).values()):.1f} s" for where in delays.seen)
        print(f"{what}: longest delay of a {shown}", flush=True)


def backlog(settings: Settings, table: LakeTable, changes: int, rows: int, home: Path) -> None:
    """Publish changes while `follow` is stopped, and print the cost of bringing them to events and view."""
    publisher, schema = ChangePublisher(settings), table.schema(table.changes.load())
    for batch in updates(rows, changes, time.time_ns() // 1000, 5):
        publisher.send(schema, batch)
        publisher.flush()
    waiting, begin = not_landed(settings, table.name), time.monotonic()
    with service(home, "follow") as followed:
        peak = 0.0
        while not is_current(settings, table):
            peak = max(peak, anonymous_of(followed))
            time.sleep(1)
        cpu, wall = cpu_of(followed), time.monotonic() - begin
        print(
            f"a backlog of {waiting:,} changes: {waiting / cpu:,.0f} per CPU second, {waiting / wall:,.0f} per second, "
            f"at most {peak:,.0f} MiB",
            flush=True,
        )


def is_current(settings: Settings, table: LakeTable) -> bool:
    """Return whether all changes in Kafka have reached row events, their topic, and the view."""
    if not_landed(settings, table.name):
        return False
    newest = table.changes.load().version
    events, view = ROW_EVENTS.position(table.row_events.load()), VIEW.position(table.view.load())
    reached = [at.changes.version for at in (events, view) if at is not None]
    return len(reached) == 2 and min(reached) >= newest and not not_published(table)


def beside_debezium(settings: Settings, rows: int, home: Path, arguments: argparse.Namespace) -> None:
    """Write at the same rates while Debezium runs alone, and print the same figures."""
    node = CassandraServer(settings).folder
    with debezium(home, settings, node, node / "cdc_raw") as process, watched_topic(settings, _THEIRS) as delays:
        print("Debezium, to the change in Kafka")
        measure(settings, delays, rows, psutil.Process(process.pid), arguments)


def cpu_of(process: psutil.Process) -> float:
    """Return the CPU seconds of a program."""
    return sum(process.cpu_times()[:2])


def settings_at(home: Path) -> Settings:
    """Return the settings for embedded servers and a cache in a folder."""
    settings = settings_of(home)
    return settings.model_copy(
        update={
            "lake": settings.lake.model_copy(update={"cache": str(home / "cache")}),
            # Two programs share the tables here, and they cannot share a port.
            "follow": settings.follow.model_copy(update={"metrics_port": None}),
            "zookeeper": settings.zookeeper.model_copy(update={"hosts": f"127.0.0.1:{free_port()}"}),
            "embedded": settings.embedded.model_copy(update={"servers": ["zookeeper", "kafka", "cassandra"]}),
        }
    )


def run(rows: int, home: Path, arguments: argparse.Namespace, stack: ExitStack) -> None:
    """Run everything with a table of one size."""
    os.environ.pop("WRITETIME_CONFIG", None)
    settings = settings_at(home)
    write_settings(settings, home / "writetime.toml")
    os.environ["WRITETIME_CONFIG"] = str(home / "writetime.toml")
    stack.callback(servers.down, settings)
    servers.up(settings)
    with database.connect(settings) as session:
        session.execute(KEYSPACE)
        session.execute(f"{ROWS.create_statement()} WITH cdc = true")
        schema = read_schemas(session, ["bench"])["bench.rows"]
    assert isinstance(schema, TableSchema)
    fill(settings, schema, rows)
    table = open_table(settings, MARKED.table)
    with service(home, "agent"):
        with service(home, "follow") as followed:
            wait_for_backlog(table, followed)
            with watched(settings, MARKED, 0.01) as delays:
                measure(settings, delays, rows, followed, arguments)
        for each in (kill, take_over) if arguments.kills else ():
            with ExitStack() as programs:
                each(settings, rows, home, programs)
        if arguments.backlog:
            backlog(settings, table, arguments.backlog, rows, home)
    if arguments.debezium:
        beside_debezium(settings, rows, home, arguments)


def main() -> None:
    """Run all sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--rates", type=float, nargs="+", default=[200, 1000])
    parser.add_argument("--seconds", type=float, default=60, help="per rate; the first half is not counted")
    parser.add_argument("--kills", action="store_true")
    parser.add_argument("--backlog", type=int, default=0, metavar="CHANGES")
    parser.add_argument("--debezium", action="store_true")
    arguments = parser.parse_args()
    for rows in arguments.rows:
        with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
            run(rows, Path(name), arguments, stack)


if __name__ == "__main__":
    log_to_file()
    main()
