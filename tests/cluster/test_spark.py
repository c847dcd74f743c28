"""The lake's work on a Spark cluster: snapshots of three nodes and the lake are in an object store, and the tasks run
where none of the driver's files are."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from tests.cluster.servers import ADDRESSES, REPLICATION, Servers, session_at
from tests.support.object_store import BUCKET, ObjectStore
from tests.support.settings import write_settings
from tests.support.spark_cluster import SparkMaster, SparkWorker
from writetime.clients.node_snapshots import take_snapshot
from writetime.clients.spark import spark_conf
from writetime.core import config
from writetime.core.config import Settings
from writetime.core.errors import WritetimeError
from writetime.lake.table import open_table
from writetime.verify.comparison import verify

_ROWS = 500
KEYSPACE = "shop"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    server = ObjectStore(tmp_path_factory.mktemp("store"))
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkMaster]:
    """A master with two workers, each with one core."""
    home = tmp_path_factory.mktemp("spark")
    found = SparkMaster(home)
    workers = [SparkWorker(home, number, found) for number in range(2)]
    try:
        found.start()
        for worker in workers:
            worker.launch()
        for worker in workers:
            worker.wait_ready()
        yield found
    finally:
        for server in (*workers, found):
            server.stop()


def cluster_settings(settings: Settings, store: ObjectStore, master: SparkMaster) -> Settings:
    """The guide's settings file."""
    conf = {
        "spark.pyspark.python": sys.executable,
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        # Until both workers are there.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
        "spark.cores.max": "2",
        # Where the package is, as it is not installed.
        "spark.executorEnv.PYTHONPATH": os.pathsep.join([str(ROOT / "platform"), str(ROOT)]),
    }
    # Snapshots are read by another client than the lake, which takes these from the environment.
    conf |= {f"spark.executorEnv.{name}": value for name, value in store.options.items() if name.startswith("AWS_")}
    return settings.model_copy(
        update={
            "spark": settings.spark.model_validate({"master": master.url, "conf": conf}),
            "lake": settings.lake.model_validate(
                {"path": f"s3://{BUCKET}/cluster", "storage_options": store.options, "buckets": 4}
            ),
        }
    )


def make_orders(settings: Settings) -> str:
    """A table with rows, of which those of one partition are deleted."""
    table = f"{KEYSPACE}.orders"
    with session_at(settings) as session:
        session.execute(f"CREATE KEYSPACE {KEYSPACE} WITH replication = {REPLICATION}")
        session.execute(f"CREATE TABLE {table} (id int, n int, v text, PRIMARY KEY (id, n))")
        insert = session.prepare(f"INSERT INTO {table} (id, n, v) VALUES (?, ?, ?)")
        for i in range(_ROWS):
            session.execute(insert, (i // 5, i, f"v{i}"))
        session.execute(f"DELETE FROM {table} WHERE id = 7")
    return table


def snapshots_in_the_store(settings: Settings, store: ObjectStore, table: str) -> list[str]:
    """The addresses of the snapshots of all nodes."""
    addresses = []
    for address in ADDRESSES:
        capture = settings.capture.model_copy(update={"node": address})
        for folder in take_snapshot(settings.model_copy(update={"capture": capture}), table, "now"):
            there = f"{BUCKET}/snapshots/{address}"
            fs.copy_files(str(folder), there, destination_filesystem=store.filesystem())
            addresses.append(f"s3://{there}?endpoint_override={store.host}&scheme=http")
    return addresses


def run_lake_job(config: Path, store: ObjectStore, *arguments: str) -> dict[str, Any]:
    """Bring snapshots into the lake by the cluster, in a separate process; return its report."""
    environment = {
        **os.environ,
        **store.options,
        "WRITETIME_CONFIG": str(config),
        # The variables that tests have set for a session on this machine.
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    environment.pop("PYSPARK_PYTHON", None)
    command = [sys.executable, "-m", "tests.cluster.lake_job", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long_only("starts three nodes and three brokers")
def test_snapshots_of_three_nodes_by_two_workers(
    servers: Servers, store: ObjectStore, master: SparkMaster, tmp_path: Path
) -> None:
    settings = cluster_settings(servers.settings, store, master)
    table = make_orders(settings)
    addresses = snapshots_in_the_store(settings, store, table)
    write_settings(settings, tmp_path / "writetime.toml")
    report = run_lake_job(tmp_path / "writetime.toml", store, table, *addresses)
    assert len(report["executors"]) == 2
    assert report["rows"] == report["events"] == _ROWS - 5
    assert report["changes"] >= 3 * (_ROWS - 5)
    proof = verify(settings, open_table(settings, table))
    assert proof.proven
    assert not proof.differences


def test_a_folder_of_the_driver_is_not_a_lake() -> None:
    with pytest.raises(WritetimeError, match=r"lake\.path is \.writetime/lake, below the working folder"):
        spark_conf(config.load(spark={"master": "spark://master:7077"}, lake={}))
