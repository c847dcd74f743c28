"""An aggregate by Spark's `sstable` source, and the same aggregate by a full scan with the Python driver.

The database serves the same file that Spark reads. CPU is that of client and server on one side, and of the Spark
driver, the JVM and the Python workers on the other. Both are running already. The results must be equal.
"""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.query import tuple_factory
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bench.storage.measure import Comparison, Cost, best, with_others
from tests.support.format_server import FormatServer
from writetime.clients.spark import spark_conf
from writetime.core.config import load
from writetime.sources.sstable import SSTableSource
from writetime.storage.locations import Location

CREATE = (
    "CREATE TABLE bench.events (id uuid, n int, kind text, amount bigint, price double, at timestamp, note text, "
    "PRIMARY KEY (id, n))"
)
RANGES, THREADS = 64, 8

# By kind: rows, the sum of the amounts, the last write time of one.
Answer = dict[str, tuple[int, int, int]]


def serve(server: FormatServer, location: Location) -> None:
    """Copy the table's SSTable to a server, and restart the server."""
    server.stop()
    (folder,) = (server.folder / "data" / "bench").glob("events-*")
    for file in Path(location.path("Data.db")).parent.iterdir():
        shutil.copy(file, folder)
    server.start()


def compare(server: FormatServer, location: Location, passes: int) -> list[Comparison]:
    """Compare the scans.

    Raises:
        RuntimeError: the answers differ.
    """
    answers: list[Answer] = []
    cql = best(_cql(server, answers) for _ in range(passes))
    spark = _session()
    try:
        ours = best(_spark(spark, location, answers) for _ in range(passes))
    finally:
        spark.stop()
    if any(answer != answers[0] for answer in answers):
        raise RuntimeError(f"the answers differ: {answers}")
    return [Comparison("Spark sstable to an aggregate", ours, f"CQL scan, {RANGES} token ranges", cql, 5)]


def _cql(server: FormatServer, answers: list[Answer]) -> Cost:
    pid = server.pid()
    assert pid is not None
    profile = ExecutionProfile(row_factory=tuple_factory, request_timeout=120)
    cluster = Cluster(["127.0.0.1"], port=server.port, execution_profiles={EXEC_PROFILE_DEFAULT: profile})
    session = cluster.connect()
    select = session.prepare(
        "SELECT kind, amount, writetime(amount) FROM bench.events WHERE token(id) >= ? AND token(id) <= ?"
    )
    width = (1 << 64) // RANGES
    firsts = [-(1 << 63) + i * width for i in range(RANGES)]

    def part(first: int) -> Answer:
        groups: dict[str, list[int]] = {}
        for kind, amount, written in session.execute(select, (first, first + width - 1)):
            group = groups.get(kind)
            if group is None:
                group = groups[kind] = [0, 0, written]
            group[0] += 1
            group[1] += amount
            if written > group[2]:  # noqa: PLR1730 (a call for every row would make the peer slower)
                group[2] = written
        return {kind: (group[0], group[1], group[2]) for kind, group in groups.items()}

    with with_others(pid) as spent, ThreadPoolExecutor(THREADS) as pool:
        parts = list(pool.map(part, firsts))
        answer: Answer = {}
        for kind in {kind for each in parts for kind in each}:
            rows, sums, times = zip(*(each[kind] for each in parts if kind in each), strict=True)
            answer[kind] = sum(rows), sum(sums), max(times)
    cluster.shutdown()
    answers.append(answer)
    return Cost(sum(group[0] for group in answer.values()), *spent)


def _session() -> SparkSession:
    builder: Any = SparkSession.builder
    for name, value in spark_conf(load()).items():
        builder = builder.config(name, value)
    session = builder.config("spark.master", "local[2]").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(SSTableSource)
    return session


def _spark(spark: SparkSession, location: Location, answers: list[Answer]) -> Cost:
    gateway: Any = spark.sparkContext._gateway
    with with_others(gateway.proc.pid) as spent:
        reader = spark.read.format("sstable").option("fields", "column_kind.value,amount.value,amount.write_time")
        changes = reader.load(location.path("Data.db"))
        groups = changes.groupBy(F.col("column_kind.value").alias("kind")).agg(
            F.count("*"), F.sum("amount.value"), F.max("amount.write_time")
        )
        answer: Answer = {row[0]: (row[1], row[2], row[3]) for row in groups.collect()}
    answers.append(answer)
    return Cost(sum(group[0] for group in answer.values()), *spent)
