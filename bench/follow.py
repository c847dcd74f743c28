"""`writetime follow`: how long after a write's acknowledgement its row event is in Kafka, and its row in the view.

python -m bench.follow [--rows 1000000] [--rates 200 1000] [--seconds 60]

A node of Cassandra, its agent and `follow` run as in use. The first rows are put into the lake directly; the writes
update five columns of rows at random. Each row event is read by a consumer of committed messages. The view's files are
read as soon as their commit is in the log. CPU is that of `follow` alone.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from bench.generated import ROWS, add, first_writes
from bench.logs import log_to_file
from bench.soak import at_rate, settings_of
from demo.live import Delays, Marked, watched
from tests.support.settings import write_settings
from writetime import servers
from writetime.clients import database
from writetime.core.config import Settings
from writetime.lake import state
from writetime.lake.table import LakeTable, create_table, open_table
from writetime.row_events.publish import not_published
from writetime.row_events.stream import extend
from writetime.schema.system import read_schemas
from writetime.schema.table import TableSchema
from writetime.view.refreshing import refresh

_KEYSPACE = "CREATE KEYSPACE bench WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"


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

        def work(count: int) -> None:
            first = len(delays.acknowledged)
            sent = []
            for number in range(first, first + count):
                n = random.randrange(1 << 30)
                values = (n, n, float(n), str(n), f"write{number:09}", random.randrange(rows))
                sent.append(session.execute_async(update, values))
            for number, answer in enumerate(sent, first):
                answer.result()
                delays.acknowledged[number] = time.time()

        at_rate(stop, rate, work)


@contextmanager
def service(home: Path, *arguments: str) -> Iterator[psutil.Process]:
    """A command that runs all the time."""
    with (home / f"{arguments[0]}.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "writetime", *arguments], stdout=log, stderr=log)
        try:
            yield psutil.Process(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            if process.wait(60):
                print((home / f"{arguments[0]}.log").read_text()[-3000:])


def measure(
    settings: Settings, delays: Delays, rows: int, followed: psutil.Process, arguments: argparse.Namespace
) -> None:
    """Write at each rate for some time, and print the delays of its second half."""
    seconds: float = arguments.seconds
    for rate in arguments.rates:
        written = threading.Event()
        writer = threading.Thread(target=write_rows, args=(settings, rows, rate, written, delays))
        writer.start()
        time.sleep(seconds / 2)
        first, cpu, begin = len(delays.acknowledged), cpu_of(followed), time.monotonic()
        time.sleep(seconds / 2)
        last, cores = len(delays.acknowledged), (cpu_of(followed) - cpu) / (time.monotonic() - begin)
        written.set()
        writer.join()
        time.sleep(5)
        print(
            f"{rows:,} rows, {rate:.0f} writes per second: {cores:.2f} cores, {anonymous_of(followed):.0f} MiB, "
            f"{followed.num_threads()} threads, load average {psutil.getloadavg()[0]:.1f}"
        )
        print("\n".join(f"  {line}" for line in delays.lines(range(first, last))), flush=True)


def wait_for_backlog(table: LakeTable, followed: psutil.Process) -> None:
    """Wait until the events of the first rows are published, and print the rate."""
    waiting = not_published(table)
    while not_published(table):
        time.sleep(1)
    print(f"a backlog of {waiting:,} events: {waiting / cpu_of(followed):,.0f} per CPU second", flush=True)


def anonymous_of(process: psutil.Process) -> float:
    """Return the memory of a program in MiB, without the files that it maps, which the system may drop."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    [kilobytes] = (line.split()[1] for line in status.splitlines() if line.startswith("RssAnon:"))
    return int(kilobytes) / 1024


def cpu_of(process: psutil.Process) -> float:
    """Return the CPU seconds of a program."""
    return sum(process.cpu_times()[:2])


def settings_at(home: Path, cache: Mapping[str, object]) -> Settings:
    """Settings of own embedded servers, with a cache in the folder."""
    settings = settings_of(home)
    return settings.model_copy(update={"lake": settings.lake.model_copy(update=cache)})


def main() -> None:
    """Run all sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--rates", type=float, nargs="+", default=[200, 1000])
    parser.add_argument("--seconds", type=float, default=60, help="per rate; the first half is not counted")
    arguments = parser.parse_args()
    for rows in arguments.rows:
        with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
            home = Path(name)
            os.environ.pop("WRITETIME_CONFIG", None)
            settings = settings_at(home, {"cache": str(home / "cache")})
            write_settings(settings, home / "writetime.toml")
            os.environ["WRITETIME_CONFIG"] = str(home / "writetime.toml")
            stack.callback(servers.down, settings)
            servers.up(settings)
            with database.connect(settings) as session:
                session.execute(_KEYSPACE)
                session.execute(f"{ROWS.create_statement()} WITH cdc = true")
                schema = read_schemas(session, ["bench"])["bench.rows"]
            assert isinstance(schema, TableSchema)
            fill(settings, schema, rows)
            stack.enter_context(service(home, "agent"))
            followed = stack.enter_context(service(home, "follow"))
            wait_for_backlog(open_table(settings, "bench.rows"), followed)
            delays = stack.enter_context(watched(settings, Marked("bench.rows", "e"), 0.01))
            measure(settings, delays, rows, followed, arguments)


if __name__ == "__main__":
    log_to_file()
    main()
