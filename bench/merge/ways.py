"""Ways to find the latest cells: in a separate process, or in a warm Spark session.

Spark SQL uses the fastest of several forms that were tried: the greatest struct of write time and value of each column,
grouped with the long token as the first key. In Spark, CPU is that of this process, the JVM and the Python workers.
"""

import json
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bench.generated import COLUMNS
from bench.merge import data
from bench.storage.measure import python, with_others
from writetime.clients.spark import spark_conf
from writetime.core.config import load
from writetime.lake import state
from writetime.lake.spark_tasks import in_spark


@dataclass(frozen=True)
class Result:
    """CPU and wall seconds, peak memory beyond that at the start (bytes, if known), and the digest of the result."""

    cpu: float
    wall: float
    memory: int | None
    answer: tuple[int, ...]


class Way(Protocol):
    """Finds the latest cells of a lake's changes, and writes them to a folder or to the lake's state."""

    def __call__(self, lake: Path, target: Path) -> tuple[float, float, int | None]:
        """Return CPU seconds, wall seconds and memory."""
        ...


@dataclass(frozen=True)
class Alone:
    """A way of `bench.merge.alone`."""

    name: str

    def __call__(self, lake: Path, target: Path) -> tuple[float, float, int | None]:
        command = python("bench.merge.alone", self.name, str(lake), str(target))
        found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        return found["cpu"], found["wall"], found["peak"] - found["before"]


@dataclass(frozen=True)
class InSpark:
    """A way in a session."""

    session: SparkSession
    work: Callable[[SparkSession, Path, Path], None]

    def __call__(self, lake: Path, target: Path) -> tuple[float, float, int | None]:
        gateway: Any = self.session.sparkContext._gateway
        with with_others(gateway.proc.pid) as spent:
            self.work(self.session, lake, target)
        return spent[0], spent[1], None


def measure(way: Way, lake: Path, passes: int) -> Result:
    """Run a way `passes` times, each time on a copy of the lake; return the pass with the least CPU."""
    results = []
    for _ in range(passes):
        with tempfile.TemporaryDirectory(dir=lake.parent) as name:
            copied, target = Path(name) / "lake", Path(name) / "latest"
            data.copy(lake, copied)
            spent = way(copied, target)
            results.append(Result(*spent, data.digest(target if target.exists() else data.state(copied))))
    return min(results, key=lambda result: result.cpu)


def session() -> SparkSession:
    """Start a session with as many parallel tasks as cores, and enough memory not to spill."""
    builder: Any = SparkSession.builder
    for name, value in spark_conf(load()).items():
        builder = builder.config(name, value)
    started = builder.config("spark.master", "local[*]").config("spark.driver.memory", "4g").getOrCreate()
    started.sparkContext.setLogLevel("ERROR")
    return started


def fold_in_spark(session: SparkSession, lake: Path, _: Path) -> None:
    """Fold with Writetime, one task per bucket."""
    state.fold(data.opened(lake), in_spark(session))


def spark_sql(session: SparkSession, lake: Path, target: Path) -> None:
    """Aggregate by the greatest struct."""
    cells = [F.max(F.struct(f"{c}.write_time", f"{c}.value")).alias(c) for c in COLUMNS]
    changes = session.read.parquet(*data.files(lake))
    latest = changes.groupBy("token", "id").agg(*cells)
    latest.write.option("compression", "zstd").parquet(str(target))
