"""Replication of a table to another cluster: the first load, the delay of a write, and the cost.

python -m bench.replication [--rows 1000000] [--rates 200 1000] [--seconds 60] [--sstables]

Two nodes of Cassandra, an agent of the first one, and `follow`. The first rows go into the lake directly, and `follow`
writes them to the second node. Then each write updates five columns of a random row of the first node. One write in
twenty is looked up in the second node until it is there. CPU is that of `follow` alone, with and without the
replication.
"""

import argparse
import os
import queue
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
from cassandra.cluster import Session

from bench.follow import KEYSPACE, MARKED, cpu_of, service, settings_at
from bench.generated import ROWS, add, first_writes
from bench.logs import log_to_file
from bench.soak import at_rate
from tests.support.servers import server_addresses, start
from tests.support.settings import write_settings
from writetime import servers
from writetime.clients import database
from writetime.core.server_settings import NamedCluster
from writetime.lake import state
from writetime.lake.replica_positions import Positions
from writetime.lake.table import LakeTable, create_table, open_table
from writetime.schema.system import read_schema
from writetime.view.refreshing import refresh

_CLUSTER = "target"
_LOOKED_UP = 20
_WAIT_SECONDS, _STEP_SECONDS = 120, 0.01


class Lookups:
    """Finds writes in the target, and keeps the delay of each from its acknowledgement."""

    def __init__(self, target: Session) -> None:
        self.delays: list[float] = []
        self._target = target
        self._select = target.prepare("SELECT a FROM bench.rows WHERE id = ?")
        self._waiting: queue.SimpleQueue[tuple[int, int, float] | None] = queue.SimpleQueue()

    def expect(self, row: int, value: int) -> None:
        """Look up a value of a row that was acknowledged now."""
        self._waiting.put((row, value, time.time()))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Look up in threads during a `with` block, and to the end of what is expected."""
        threads = [threading.Thread(target=self._work) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            for _ in threads:
                self._waiting.put(None)
            for thread in threads:
                thread.join()

    def _work(self) -> None:
        while (expected := self._waiting.get()) is not None:
            row, value, at = expected
            while time.time() - at < _WAIT_SECONDS:
                found = self._target.execute(self._select, [row]).one()
                if found is not None and found.a == value:
                    break
                time.sleep(_STEP_SECONDS)
            self.delays.append(time.time() - at)


def write(source: Session, rows: int, rate: float, seconds: float, lookups: Lookups | None) -> None:
    """Update rows at a rate. A row is written once, so that a later write does not hide an earlier one."""
    update = source.prepare("UPDATE bench.rows SET a = ?, b = ?, c = ?, d = ?, e = ? WHERE id = ?")
    stop, chosen = threading.Event(), iter(range(int(time.time()) % 1000, rows, 7))

    def work(count: int) -> None:
        sent = []
        for _ in range(count):
            row, n = next(chosen), time.time_ns() & 0x3FFFFFFF
            sent.append((row, n, source.execute_async(update, (n, n, float(n), str(n), f"write{n}", row))))
        for place, (row, n, answer) in enumerate(sent):
            answer.result()
            if lookups is not None and place % _LOOKED_UP == 0:
                lookups.expect(row, n)

    timer = threading.Timer(seconds, stop.set)
    timer.start()
    at_rate(stop, rate, work)


def measured(
    program: psutil.Process, source: Session, rows: int, rate: float, seconds: float, *, lookups: Lookups | None
) -> float:
    """Write at a rate, and return the cores of the program in the second half."""
    write(source, rows, rate, seconds / 2, None)
    cpu, begin = cpu_of(program), time.monotonic()
    write(source, rows, rate, seconds / 2, lookups)
    return (cpu_of(program) - cpu) / (time.monotonic() - begin)


def run(home: Path, arguments: argparse.Namespace, stack: ExitStack) -> None:
    """Measure `follow` without the replication, then with it."""
    os.environ.pop("WRITETIME_CONFIG", None)
    other = stack.enter_context(server_addresses(home / "other"))
    start(other, "cassandra")
    settings = settings_at(home)
    stack.callback(servers.down, settings)
    servers.up(settings)
    plain = {"bench": {"rows": {"row_events": False}}}
    replicated = {"bench": {"rows": {"row_events": False, "replicate_to": _CLUSTER}}}
    folder = str(home / "sstables") if arguments.sstables else None
    cluster = NamedCluster(**dict(other.cassandra), sstables=folder)
    settings = settings.model_copy(update={"clusters": {_CLUSTER: cluster}, "tables": plain})
    write_settings(settings, home / "writetime.toml")
    os.environ["WRITETIME_CONFIG"] = str(home / "writetime.toml")
    source, target = (stack.enter_context(database.connect(each)) for each in (settings, other))
    for session in (source, target):
        session.execute(KEYSPACE)
    source.execute(f"{ROWS.create_statement()} WITH cdc = true")
    table = create_table(settings, read_schema(source, MARKED.table))
    add(table, table.schema(), first_writes(table.schema(), arguments.rows), 1)
    state.fold(table)
    refresh(settings, table)
    without = {}
    with service(home, "agent"):
        with service(home, "follow") as program:
            time.sleep(20)
            for rate in arguments.rates:
                without[rate] = measured(program, source, arguments.rows, rate, arguments.seconds, lookups=None)
        write_settings(settings.model_copy(update={"tables": replicated}), home / "writetime.toml")
        with service(home, "follow") as program:
            _load(open_table(settings, table.name), program, arguments.rows)
            lookups = Lookups(target)
            for rate in arguments.rates:
                with lookups.running():
                    cores = measured(program, source, arguments.rows, rate, arguments.seconds, lookups=lookups)
                delays, lookups.delays = sorted(lookups.delays), []
                p50, p99 = statistics.median(delays), delays[int(len(delays) * 0.99)]
                print(
                    f"{rate:.0f} writes per second: {cores:.2f} cores, {without[rate]:.2f} without the replication; "
                    f"in the target p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms ({len(delays)} writes)",
                    flush=True,
                )


def _load(table: LakeTable, program: psutil.Process, rows: int) -> None:
    """Wait for the first load, and print its rate."""
    positions, begin, cpu = Positions(table, _CLUSTER), time.monotonic(), cpu_of(program)
    while (position := positions.read()) is None or position.loaded is not None:
        time.sleep(0.5)
    wall = time.monotonic() - begin
    per_cpu = rows / (cpu_of(program) - cpu)
    print(f"first load of {rows:,} rows: {per_cpu:,.0f} per CPU second, {rows / wall:,.0f} per second")


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rates", type=float, nargs="+", default=[200, 1000])
    parser.add_argument("--seconds", type=float, default=60, help="per rate; the first half is not counted")
    parser.add_argument("--sstables", action="store_true", help="the first load as SSTables")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        run(Path(name), arguments, stack)


if __name__ == "__main__":
    log_to_file()
    main()
