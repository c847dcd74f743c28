"""A long stream: all services run on embedded servers for a long time, to find anything that grows.

python -m bench.soak [--minutes 40] [--rate 1000] [--landing-only]

Writers change two tables, post events and enqueue items at fixed rates. `agent`, `follow`, `serve`, `sink` and `work`
run all the time, and `maintain` every ten minutes. For each period, the program prints the cores, memory and threads of
each service, the files and commits of the lake, and latencies. At the end, `verify` compares both tables with the
database. With `--landing-only`, a producer of changes replaces the node, and only landing runs. Then the rows of the
lake are compared with those that were sent.
"""

import asyncio
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import click
import psutil
from cassandra import OperationTimedOut, WriteTimeout
from prometheus_client.parser import text_string_to_metric_families

from bench.logs import log_to_file
from tests.support.made import SCHEMA, batch, write
from tests.support.settings import write_settings
from writetime import servers
from writetime.capture.change_publisher import ChangePublisher
from writetime.clients import database
from writetime.clients.kafka import NoTopic, end_offsets
from writetime.core import config
from writetime.core.config import Settings
from writetime.core.waiting import wait_until
from writetime.ingest.topics import ensure_ingest_topics
from writetime.lake import views
from writetime.lake.table import LakeTable, open_table, table_storage
from writetime.landing.landed_offsets import landed_offsets
from writetime.servers.process import free_port, port_answers
from writetime.wire.topic_names import changes_topic
from writetime.workqueue import Enqueuer, EnqueueUnknown, Item, NewItem

KEYSPACE = "soak"
KEYS = 200_000
QUEUE = "soak"
TICK = 0.1
MAINTAIN_SECONDS = 600.0
_DELAYS = "SOAK_DELAYS"


async def handle(item: Item) -> None:
    """Record how long the item waited. This is the handler of the queue."""
    await asyncio.sleep(0)
    with Path(os.environ[_DELAYS]).open("a") as file:
        file.write(f"{time.time() - item.payload['at']:.3f}\n")


def at_rate(stop: threading.Event, rate: float, work: Callable[[int], None]) -> None:
    """Call a function ten times per second, with the number of items that are due."""
    begin, done = time.monotonic(), 0
    while not stop.wait(TICK):
        due = int((time.monotonic() - begin) * rate)
        if due > done:
            work(due - done)
            done = due


def write_rows(settings: Settings, tables: Sequence[str], rate: float, stop: threading.Event) -> None:
    """Write to tables of the node: mostly updates, some deletions."""
    with database.connect(settings) as session:
        updates = [session.prepare(f"UPDATE {t} SET v = ?, w = ? WHERE id = ? AND n = ?") for t in tables]
        deletes = [session.prepare(f"DELETE FROM {t} WHERE id = ? AND n = ?") for t in tables]

        def work(count: int) -> None:
            sent = []
            for i in range(count):
                key, n, table = random.randrange(KEYS), random.randrange(3), i % len(tables)
                if random.random() < 0.05:
                    sent.append(session.execute_async(deletes[table], (key, n)))
                else:
                    value = f"value {random.randrange(10**9)}"
                    sent.append(session.execute_async(updates[table], (value, random.randrange(100), key, n)))
            for future in sent:
                # While all services start, the node may not answer in time. `verify` compares with the node itself.
                with suppress(OperationTimedOut, WriteTimeout):
                    future.result()

        at_rate(stop, rate, work)


def post_events(settings: Settings, rate: float, stop: threading.Event) -> None:
    """Post events to the ingress."""
    connection = http.client.HTTPConnection("127.0.0.1", settings.ingest.port, timeout=30)

    def work(count: int) -> None:
        events = [{"userId": f"u{random.randrange(KEYS)}", "eventType": "t", "payload": {"n": i}} for i in range(count)]
        connection.request("POST", "/events", json.dumps(events), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        if answer.status != 202:
            raise RuntimeError(f"the ingress answered {answer.status}")

    at_rate(stop, rate, work)


def enqueue_items(settings: Settings, rate: float, stop: threading.Event) -> None:
    """Enqueue items."""
    with Enqueuer(settings) as enqueuer:

        def work(count: int) -> None:
            items = [NewItem({"at": time.time()}) for _ in range(count)]
            while items:
                try:
                    enqueuer.enqueue_many(QUEUE, items)
                    items = []
                except EnqueueUnknown as e:
                    # While all services start, the node may not answer in time.
                    items = [replace(item, item_id=own) for item, own in zip(items, e.item_ids, strict=False)] or items

        at_rate(stop, rate, work)


class Producer:
    """Publishes changes like an agent, and keeps the resulting rows."""

    def __init__(self, settings: Settings, tables: Sequence[str]) -> None:
        self._publisher = ChangePublisher(settings)
        self._schemas = [replace(SCHEMA, keyspace=KEYSPACE, name=name.partition(".")[2]) for name in tables]
        self.rows: dict[str, dict[int, str]] = {name: {} for name in tables}
        for schema in self._schemas:
            self._publisher.announce(schema)

    def run(self, rate: float, stop: threading.Event) -> None:
        """Publish until it stops."""
        at_rate(stop, rate, self._send)

    def _send(self, count: int) -> None:
        for schema in self._schemas:
            now, values = views.time_now(), {}
            rows = []
            for i in range(count // len(self._schemas)):
                key, value = random.randrange(KEYS), f"value {random.randrange(10**9)}"
                rows.append(write(key, 0, now + i, v=value, w=i))
                values[key] = value
            self._publisher.send(schema, batch(rows, schema)).all()
            self.rows[schema.full_name] |= values
        self._publisher.flush()


@dataclass
class Costs:
    """The costs of a command that runs repeatedly."""

    cpu: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


class Soak:
    """The services with their costs, and the state of the lake."""

    def __init__(self, settings: Settings, tables: Sequence[str], home: Path) -> None:
        self._settings = settings
        self._tables = tables
        self._home = home
        self._services: dict[str, psutil.Process] = {}
        self._cpu: dict[str, float] = {}
        self._versions = dict.fromkeys(tables, 0)
        self._costs: dict[str, Costs] = {}
        self._landing: list[float] = []
        self._faults: list[str] = []
        self._delays_read = 0

    @contextmanager
    def service(self, *arguments: str) -> Iterator[None]:
        """Run a command during a `with` block."""
        name = arguments[0]
        with (self._home / f"{name}.log").open("wb") as log:
            process = subprocess.Popen([sys.executable, "-m", "writetime", *arguments], stdout=log, stderr=log)
            self._services[name] = psutil.Process(process.pid)
            try:
                yield
            finally:
                process.send_signal(signal.SIGTERM)
                if process.wait(60) not in (0, -signal.SIGTERM):
                    self._faults.append(f"{name} ended with status {process.returncode}")

    def noted(self, work: Callable[[], None]) -> None:
        """Call a function, and record its failure."""
        try:
            work()
        except Exception as e:
            self._faults.append(f"{type(e).__name__}: {e}")
            raise

    def every(self, seconds: float, stop: threading.Event, command: str) -> None:
        """Run a command for each table repeatedly."""
        while not stop.wait(seconds):
            for table in self._tables:
                self.command(command, table)

    def command(self, command: str, table: str) -> str:
        """Run a command for a table, and record its cost."""
        begin = time.monotonic()
        with (self._home / f"{command}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "writetime", command, table], stdout=log, stderr=log, env=os.environ
            )
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        costs = self._costs.setdefault(command, Costs())
        costs.cpu.append(used.ru_utime + used.ru_stime)
        costs.seconds.append(time.monotonic() - begin)
        last = (self._home / f"{command}.log").read_text().splitlines()[-1]
        if process.returncode:
            self._faults.append(f"{command} {table} ended with status {process.returncode}: {last}")
        return last

    def watch_landing(self, stop: threading.Event) -> None:
        """Measure how long messages wait in Kafka until they are in the lake."""
        waiting: dict[str, deque[tuple[float, int]]] = {table: deque() for table in self._tables}
        while not stop.wait(1):
            for table, ends in waiting.items():
                with suppress(NoTopic):
                    ends.append((time.monotonic(), sum(end_offsets(self._settings, changes_topic(table)).values())))
                    landed = sum(landed_offsets(self._settings, table).values())
                    while ends and ends[0][1] <= landed:
                        self._landing.append(time.monotonic() - ends.popleft()[0])

    def report(self, minutes: float, seconds: float) -> None:
        """Print the report of a period."""
        print(f"after {minutes:.0f} minutes, load average {psutil.getloadavg()[0]:.1f}")
        for name, process in self._services.items():
            cpu = sum(process.cpu_times()[:2])
            cores = (cpu - self._cpu.get(name, 0.0)) / seconds
            self._cpu[name] = cpu
            print(
                f"  {name:10}{cores:7.3f} cores{process.memory_info().rss >> 20:7} MiB{process.num_threads():6} threads"
            )
        self._show_steps(seconds)
        for table in self._tables:
            lake = LakeTable(table_storage(self._settings, table))
            for part in (lake.changes, lake.state, lake.row_events, lake.view):
                if part.exists():
                    folder = Path(part.storage.address)
                    now = part.load()
                    log = sum(1 for _ in (folder / "_delta_log").glob("*"))
                    on_disk = sum(path.parent.name != "_delta_log" for path in folder.rglob("*.parquet"))
                    print(
                        f"  {table} {folder.name:10}{len(now.files):6} files{on_disk:7} on disk{now.version:7} commits"
                        f"{log:6} in the log{sum(f.rows for f in now.files):10} rows"
                    )
        for command, costs in self._costs.items():
            mean = sum(costs.cpu) / len(costs.cpu)
            print(f"  {command:10}{len(costs.cpu):4} runs, {mean:.1f} CPU s each, {max(costs.seconds):.0f} s at most")
        self._costs.clear()
        self._show("Kafka to the lake", self._landing)
        self._landing.clear()
        delays = self._home / "delays"
        if delays.exists():
            waited = [float(line) for line in delays.read_text().splitlines()]
            self._show("item to handler", waited[self._delays_read :])
            self._delays_read = len(waited)
        print(end="", flush=True)

    def _show_steps(self, seconds: float) -> None:
        """Print the cores of each step of `follow`, of all tables, and the longest delay of its last batches."""
        found = urllib.request.urlopen(f"http://127.0.0.1:{self._settings.follow.metrics_port}", timeout=30).read()
        cpu, delay = defaultdict[str, float](float), dict[str, float]()
        for family in text_string_to_metric_families(found.decode()):
            for sample in family.samples:
                step = sample.labels.get("step", "")
                if sample.name == "writetime_follow_cpu_seconds_total":
                    cpu[step] += sample.value
                elif sample.name == "writetime_follow_delay_seconds":
                    delay[step] = max(delay.get(step, 0.0), sample.value)
        for step, used in cpu.items():
            cores = (used - self._cpu.get(step, 0.0)) / seconds
            self._cpu[step] = used
            print(f"    {step:12}{cores:7.3f} cores, last delay {delay.get(step, 0.0):.1f} s")

    def _show(self, what: str, waited: Sequence[float]) -> None:
        if waited:
            found = sorted(waited)
            p50, p99 = (found[int(len(found) * q)] for q in (0.5, 0.99))
            print(f"  {what}: {len(found)} measured, p50 {p50:.1f} s, p99 {p99:.1f} s")

    def finish(self) -> None:
        """Fail if a service or a command failed."""
        if self._faults:
            raise SystemExit("\n".join(self._faults))


def settings_of(home: Path) -> Settings:
    """Return the settings for embedded servers."""
    return config.load(
        cassandra={"port": free_port()},
        kafka={"bootstrap_servers": f"127.0.0.1:{free_port()}"},
        embedded={
            "home": home,
            "cassandra_storage_port": free_port(),
            "kafka_controller_port": free_port(),
            "servers": ["kafka", "cassandra"],
        },
        ingest={"port": free_port()},
        follow={"metrics_port": free_port()},
        capture={"state_dir": home / "state"},
        lake={"path": str(home / "lake")},
    )


@click.command()
@click.option("--minutes", default=40.0, show_default=True)
@click.option("--rate", default=1000.0, show_default=True, help="Writes to the two tables per second, in all.")
@click.option("--items", default=500.0, show_default=True, help="Items of the work queue per second.")
@click.option("--events", default=100.0, show_default=True, help="Events posted per second.")
@click.option("--period", default=5.0, show_default=True, help="Minutes per report.")
@click.option("--landing-only", is_flag=True, help="Land the changes of a producer; no node, no other service.")
def main(*, minutes: float, rate: float, items: float, events: float, period: float, landing_only: bool) -> None:
    """Run everything."""
    tables = [f"{KEYSPACE}.one", f"{KEYSPACE}.two"]
    # After this signal, too, the program ends its services and servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        home = Path(name)
        settings = settings_of(home)
        if landing_only:
            own = settings.embedded.model_copy(update={"servers": ["kafka"]})
            settings = settings.model_copy(update={"embedded": own})
        write_settings(settings, home / "writetime.toml")
        os.environ |= {"WRITETIME_CONFIG": str(home / "writetime.toml"), _DELAYS: str(home / "delays")}
        stack.callback(servers.down, settings)
        servers.up(settings)
        soak, stop = Soak(settings, tables, home), threading.Event()
        work: list[Callable[[], None]] = [lambda: soak.watch_landing(stop)]
        producer = Producer(settings, tables) if landing_only else None
        if producer is not None:
            work.append(lambda: producer.run(rate, stop))
            stack.enter_context(soak.service("follow"))
        else:
            prepare(settings, tables)
            for service in (
                ("agent",),
                ("follow",),
                ("serve",),
                ("sink",),
                ("work", "--queue", QUEUE, "--handler", "bench.soak:handle"),
            ):
                stack.enter_context(soak.service(*service))
            if not wait_until(lambda: port_answers(settings.ingest.port, "127.0.0.1"), 120, 0.5):
                raise SystemExit("the ingress does not start")
            work += [
                lambda: write_rows(settings, tables, rate, stop),
                lambda: post_events(settings, events, stop),
                lambda: enqueue_items(settings, items, stop),
                lambda: soak.every(MAINTAIN_SECONDS, stop, "maintain"),
            ]
        threads = [threading.Thread(target=soak.noted, args=(each,)) for each in work]
        for thread in threads:
            thread.start()
        begin = last = time.monotonic()
        while time.monotonic() - begin < minutes * 60:
            time.sleep(min(period * 60, begin + minutes * 60 - time.monotonic()))
            now = time.monotonic()
            soak.report((now - begin) / 60, now - last)
            last = now
        stop.set()
        for thread in threads:
            thread.join()
        time.sleep(15)
        for table in tables:
            print(soak.command("verify", table) if producer is None else compare(settings, table, producer.rows[table]))
        stack.close()
        soak.finish()


def prepare(settings: Settings, tables: Sequence[str]) -> None:
    """Create the keyspaces, tables and topics."""
    database.apply_schema(settings)
    ensure_ingest_topics(settings)
    with database.connect(settings) as session:
        replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        session.execute(f"CREATE KEYSPACE {KEYSPACE} WITH replication = {replication}")
        for table in tables:
            columns = "id int, n int, v text, w int, PRIMARY KEY (id, n)"
            session.execute(f"CREATE TABLE {table} ({columns}) WITH cdc = true")


def compare(settings: Settings, table: str, wanted: dict[int, str]) -> str:
    """Compare the rows of the lake with those that were sent."""
    parts = views.virtual(open_table(settings, table))
    found = {key: v for part in parts for key, v in zip(*(part[n].to_pylist() for n in ("id", "v")), strict=True)}
    if found != wanted:
        raise SystemExit(f"{table}: {len(found)} rows in the lake are not the {len(wanted)} that were sent")
    return f"{table}: {len(found)} rows in the lake are those that were sent"


if __name__ == "__main__":
    log_to_file()
    main()
