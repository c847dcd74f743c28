"""One table at several sizes: the cost of each step, and its use of memory and disk.

python -m bench.scale [--rows 1000000 10000000] [--home DIR] [--workers 0]

Each size has a process of its own. With `--home` the tables stay there, and the next run uses them again (100,000,000
rows take half an hour to build, and need 40 GB). `--workers` also runs the steps on a Spark standalone cluster on this
machine, with that number of workers of one core each. CPU then includes the workers and Spark itself.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from bench.generated import ROWS, add, first_writes, updates
from bench.memory import anonymous_of
from tests.support.spark_cluster import SparkMaster, SparkWorker
from writetime.api.tables import open_table as open_for_readers
from writetime.clients.spark import spark_session
from writetime.core import config
from writetime.core.config import Settings
from writetime.delta.buckets import token_range
from writetime.files.merging import Runner
from writetime.lake import state
from writetime.lake.spark_tasks import in_spark
from writetime.lake.table import LakeTable, create_table, is_in_lake, open_table
from writetime.row_events.stream import extend
from writetime.view.refreshing import refresh

ROOT = Path(__file__).parents[1]
# Small batches come first: large ones mark so many rows that many later refreshes also write a file of the view again.
SIZES = (100, 10_000)
_COLD, _WARM = 2, 10
# The share of the table's rows in a range.
_RANGE_ROWS = 100_000


@dataclass
class Costs:
    """CPU and wall seconds of steps, by their names. `spent` returns the CPU seconds until now."""

    spent: Callable[[], float]
    cpu: dict[str, list[float]] = field(default_factory=dict)
    wall: dict[str, list[float]] = field(default_factory=dict)

    def of(self, name: str, work: Callable[[], Any]) -> Any:
        """Call a function, and record its cost."""
        cpu, wall = self.spent(), time.perf_counter()
        found = work()
        self.wall.setdefault(name, []).append(time.perf_counter() - wall)
        self.cpu.setdefault(name, []).append(self.spent() - cpu)
        return found

    def show(self, name: str) -> None:
        """Print the median of a step."""
        cpu, wall = (statistics.median(of[name]) for of in (self.cpu, self.wall))
        print(f"  {name:44} {cpu:9.3f} CPU s {wall:9.3f} s", flush=True)


def settings_at(home: Path, **spark: Any) -> Settings:
    """Return the settings of a lake in a folder."""
    return config.load(lake={"path": str(home / "lake"), "cache": str(home / "cache"), "cache_gib": 40}, spark=spark)


def built(settings: Settings, rows: int, costs: Costs) -> LakeTable:
    """Return the table with its rows. Build it if it is missing."""
    if is_in_lake(settings, ROWS.full_name):
        return open_table(settings, ROWS.full_name)
    table = create_table(settings, ROWS)
    costs.of("build: changes", lambda: add(table, ROWS, first_writes(ROWS, rows), 1))
    costs.of("build: fold", lambda: state.fold(table))
    costs.of("build: row events", lambda: extend(table))
    costs.of("build: view", lambda: refresh(settings, table))
    for name in ("changes", "fold", "row events", "view"):
        costs.show(f"build: {name}")
    return table


def batches(settings: Settings, table: LakeTable, rows: int, run: Runner, costs: Costs) -> None:
    """Measure batches of updates: the first one, which opens and decodes all files, and warm ones."""
    numbers = iter(range(time.time_ns() // 1_000_000, 1 << 62))
    for size in SIZES:
        for count in range(_COLD + _WARM):
            number = next(numbers)
            add(table, ROWS, updates(rows, size, number << 20, 5), number)
            first = "the first batch, " if size == SIZES[0] and count == 0 else ""
            kind = f"{first}{size:,} updates: " if first or count >= _COLD else "not counted: "
            costs.of(f"{kind}row events", lambda: extend(table, run=run))
            costs.of(f"{kind}view", lambda: refresh(settings, table, run))
            costs.of(f"{kind}fold", lambda: state.fold(table, run))
            costs.of("not counted: compaction", lambda: state.compact(table, run))
    for name in costs.cpu:
        if "updates: " in name:
            costs.show(name)


def reads(settings: Settings, rows: int, costs: Costs) -> None:
    """Measure look-ups, and the read of a range as `verify` does it."""
    readable, random = open_for_readers(ROWS.full_name, settings), np.random.default_rng(5)
    for number in random.integers(0, rows, 30).tolist():
        name = "look-up of a key"
        costs.of(name, lambda number=number: readable.lookup([{"id": number}]))
    first, last = token_range(0, max(rows // _RANGE_ROWS, 1))
    found = costs.of("read of a range", lambda: readable.between(first, last))
    costs.show("look-up of a key")
    costs.show("read of a range")
    print(f"  {'':4}{found.num_rows:,} rows")


@contextmanager
def cluster(home: Path, workers: int) -> Iterator[dict[str, Any]]:
    """Run a Spark standalone cluster during a `with` block; yield the settings of its sessions."""
    if not workers:
        yield {}
        return
    shutil.rmtree(home / "spark", ignore_errors=True)
    master = SparkMaster(home / "spark")
    found = [SparkWorker(home / "spark", number, master) for number in range(workers)]
    try:
        master.start()
        for worker in found:
            worker.launch()
        for worker in found:
            worker.wait_ready()
        conf = {
            "spark.pyspark.python": sys.executable,
            "spark.driver.host": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
            "spark.cores.max": str(workers),
            "spark.executorEnv.PYTHONPATH": os.pathsep.join([str(ROOT / "platform"), str(ROOT)]),
        }
        yield {"master": master.url, "conf": conf}
    finally:
        for server in (*found, master):
            server.stop()


def measure(home: Path, rows: int, workers: int) -> None:
    """Measure one size in this process."""
    own = psutil.Process()
    with cluster(home, workers) as spark:
        settings = settings_at(home, **spark)
        if workers:
            # This includes Spark's processes, and has a resolution of 10 ms.
            costs = Costs(lambda: sum(sum(each.cpu_times()[:4]) for each in (own, *own.children(recursive=True))))
            with spark_session(settings) as session:
                steps(settings, rows, in_spark(session), costs)
        else:
            pa.set_cpu_count(1)
            steps(settings, rows, map, Costs(time.process_time))
    disk = {name: size_of(home / name) / 1e9 for name in ("lake", "cache")}
    print(f"  disk: lake {disk['lake']:.1f} GB, cache {disk['cache']:.1f} GB", flush=True)


def steps(settings: Settings, rows: int, run: Runner, costs: Costs) -> None:
    """Run all steps. Writing a whole view comes last, because it keeps some memory."""
    table = built(settings, rows, costs)
    batches(settings, table, rows, run, costs)
    reads(settings, rows, costs)
    own = psutil.Process()
    print(f"  anonymous memory {anonymous_of(own):.0f} MiB, with mapped files {own.memory_info().rss >> 20} MiB")
    costs.of("view, written whole", lambda: refresh(settings, table, run, whole=True))
    costs.show("view, written whole")


def size_of(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> None:
    """Measure each size in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--home", type=Path)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        home: Path = arguments.home or Path(temporary)
        for rows in arguments.rows:
            folder = home / f"rows-{rows}"
            if arguments.here:
                measure(folder, rows, arguments.workers)
                continue
            for workers in (0, arguments.workers) if arguments.workers else (0,):
                where = f"Spark with {workers} workers" if workers else "one process"
                print(f"{rows:,} rows, {where}", flush=True)
                own = ["--here", "--rows", str(rows), "--home", str(home), "--workers", str(workers)]
                subprocess.run([sys.executable, "-m", "bench.scale", *own], check=True)


if __name__ == "__main__":
    main()
